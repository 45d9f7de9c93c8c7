//===- CollectiveOps.td - what ranks exchange -----------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_COLLECTIVEOPS_TD
#define MLA_DIALECT_COLLECTIVEOPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/Interfaces/InferTypeOpInterface.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

// Every rank has a graph of its own, made for it by mla-distribute. The graphs
// of all ranks have the same ops in the same order and differ only in which
// parts of the weights they name, so that the n-th collective of each is the
// same one. That is why collectives may be pure: whatever removes or joins one
// does so in every rank's graph.

def MLA_AllReduceOp : MLA_Op<"all_reduce", [Pure, SameOperandsAndResultType]> {
  let summary = "Sums rows over the ranks";
  let description = [{
    `result = sum of x over the ranks`, the same bits on each of them. Made by
    `mla-distribute` after an op whose result on one rank is a summand.

    With `local` nothing is exchanged: `result = x`. Such values mean nothing,
    but they are finite, and everything else of a rank's step does its full
    work: for measuring one rank without the others.

    - C1: `ranks` is at least 2.

    Lowers to: host `all_reduce_local`, with `local` only.

    Example: `%1 = mla.all_reduce %0 {ranks = 8 : i64} : tensor<?x7168xf32>`
  }];
  let arguments = (ins MLA_Rows:$x, I64Attr:$ranks, UnitAttr:$local);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x attr-dict `:` type($result)";
  let hasVerifier = 1;
}

def MLA_AllGatherOp : MLA_Op<"all_gather", [Pure]> {
  let summary = "Joins the columns that the ranks have of each row";
  let description = [{
    `result[t] = [x[t] of rank 0 | x[t] of rank 1 | ...]`. Made by
    `mla-distribute` of the logits.

    With `local` nothing is exchanged, and the rank's own columns stand in the
    place of every rank's: see `mla.all_reduce`.

    - C1: `ranks` is at least 2.
    - C2: a row of the result is `ranks` times that of `x`.

    Lowers to: host `all_gather_local`, with `local` only.

    Example: `%1 = mla.all_gather %0 {ranks = 8 : i64} : (tensor<?x20480xf32>) -> tensor<?x163840xf32>`
  }];
  let arguments = (ins MLA_Rows:$x, I64Attr:$ranks, UnitAttr:$local);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_COLLECTIVEOPS_TD
