//===- LaunchOps.td - kernels over buffers --------------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_LAUNCHOPS_TD
#define MLA_DIALECT_LAUNCHOPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/IR/RegionKindInterface.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def MLA_ProgramOp : MLA_Op<"program", [IsolatedFromAbove, Symbol, NoRegionArguments, SingleBlock, NoTerminator]> {
  let summary = "The launches of a step";
  let description = [{
    A straight line of launches for steps of at most `max_tokens` tokens in at
    most `max_sequences` sequences with logits of at most `max_outputs` tokens.
    With `sampling` it is no step, but chooses ids from the logits that one left;
    a module has one such program at most.

    `exchange_bytes` is what its kernels use of each rank's exchange memory.

    - C1: the bounds are positive, and `max_sequences` and `max_outputs` do not
      exceed `max_tokens`.
    - C2: the body holds only `mla.port`, `mla.workspace`, `mla.get_weight`,
      `mla.get_cache`, `mla.peers` and `mla.launch`.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, I64Attr:$max_tokens, I64Attr:$max_sequences, I64Attr:$max_outputs,
                       OptionalAttr<I64Attr>:$workspace_bytes, OptionalAttr<I64Attr>:$exchange_bytes, UnitAttr:$sampling);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat = "$sym_name attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def MLA_PortOp : MLA_Op<"port", []> {
  let summary = "An input or output of a step";
  let description = [{
    - C1: `name` is one of `ids`, `positions`, `sequence`, `page_table`,
      `outputs`, `saturated`, `logits`, `sampling`, `top_k`, `sampled`.
  }];
  let arguments = (ins StrAttr:$name);
  let results = (outs MLA_Buffer:$result);
  let assemblyFormat = "$name attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def MLA_WorkspaceOp : MLA_Op<"workspace", [MemoryEffects<[MemAlloc]>]> {
  let summary = "Scratch memory of a step";
  let description = [{
    `offset` is the place in the arena in bytes, set by `mla-plan-memory`.
    `value` names the value of the graph that it holds, if it holds one, so that
    plans for different targets can be compared value by value.

    - C1: `offset` is a multiple of 64, not negative.
  }];
  let arguments = (ins OptionalAttr<I64Attr>:$offset, OptionalAttr<StrAttr>:$value);
  let results = (outs MLA_Buffer:$result);
  let assemblyFormat = "(`at` $offset^)? (`of` $value^)? attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def MLA_PeersOp : MLA_Op<"peers", []> {
  let summary = "The exchange memory of all ranks, for kernels that exchange";
  let arguments = (ins);
  let results = (outs AnyTypeOf<[MLA_Peers]>:$result);
  let assemblyFormat = "attr-dict `:` type($result)";
}

def MLA_LaunchOp : MLA_Op<"launch", [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "Runs a kernel over a grid";
  let description = [{
    `grid` work items (blocks, on a GPU) of the kernel, which gets the operands in
    order, then the `scalars`. Grid and scalars are expressions over the step
    symbols. `weight_bytes`, an expression too, is what it reads of weights.

    - C1: `kernel` is a function in the module `@kernels` with an `mla.access`
      attribute: `read`, `write` or `readwrite` for each operand.
    - C2: as many operands as `mla.access` has entries, and as many scalars as
      the kernel's `mla.scalars` says.
    - C3: `grid`, `scalars` and `weight_bytes` are valid expressions.
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel, StrAttr:$grid, Variadic<AnyType>:$operands,
                       StrArrayAttr:$scalars, StrAttr:$origin, OptionalAttr<StrAttr>:$weight_bytes);
  let assemblyFormat = "$kernel `grid` $grid `(` ($operands^ `:` type($operands))? `)` `scalars` $scalars `for` $origin (`reads` $weight_bytes^)? attr-dict";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_LAUNCHOPS_TD
