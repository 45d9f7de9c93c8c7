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

// All ranks run the same graph, on their own parts of the weights, so the n-th
// collective is the same one for each of them. That is why collectives may be pure:
// whatever removes or joins one does so for every rank.

def MLA_AllReduceOp : MLA_Op<"all_reduce", [Pure, SameOperandsAndResultType]> {
  let summary = "Sums rows over the ranks";
  let description = [{
    `result = sum of x over the ranks`, the same bits on each of them. Made by
    `mla-distribute` after an op whose result on one rank is a summand.

    With `local` nothing is exchanged: `result = x`. Such values mean nothing,
    but they are finite, and everything else of a rank's step does its full
    work: for measuring one rank without the others.

    - C1: `ranks` is at least 2.

    Lowers to: host `all_reduce`, a copy with `local`; GPUs, for up to 8 ranks,
    `all_reduce_one_shot` and `all_reduce_two_shot`.

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
    `result[t] = [x[t] of rank 0 | x[t] of rank 1 | ...]`, as many of them as the
    result is wide: the last ranks' columns may be padding. Made by `mla-distribute`
    of logits and of the results of divided linears.

    With `local` nothing is exchanged, and the rank's own columns stand in the
    place of every rank's: see `mla.all_reduce`.

    Several such rows, as those of the linears that read the same input, are one
    collective.

    - C1: `ranks` is at least 2.
    - C2: there are as many results as operands, and a row of a result is at most
      `ranks` times that of its operand.

    Lowers to: host `all_gather`, copies with `local`; GPUs, for up to 8 ranks,
    `all_gather_flagged` and `all_gather_bulk`.

    Example: `%1 = mla.all_gather %0 {ranks = 8 : i64} : (tensor<?x20480xf32>) -> tensor<?x163840xf32>`
  }];
  let arguments = (ins Variadic<MLA_Rows>:$xs, I64Attr:$ranks, UnitAttr:$local);
  let results = (outs Variadic<MLA_Rows>:$alls);
  let assemblyFormat = "$xs attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_AllReduceRMSNormOp : MLA_Op<"all_reduce_rms_norm", [Pure]> {
  let summary = "Sums rows over the ranks, adds a residual, and norms what comes out";
  let description = [{
    `sum = residual + sum of x over the ranks`, `normed = rms_norm(sum, weight)` as by
    `mla.rms_norm`; without `residual` nothing is added. Both results are the same
    bits on each rank. Made by `mla-fuse-collectives`: what comes out of a layer's
    attention or experts is summed, added to the residual stream and normed for the
    next, and a kernel that has the sum in registers does all three.

    - C1: `ranks` is at least 2.
    - C2: `weight` has rank 1 and as many values as a row of `x`.
    - C3: `residual` and the results have the type of `x`.
    - C4: `eps` is positive.

    Lowers to: host `all_reduce`, `add`, `rms_norm`; GPUs, for up to 8 ranks,
    `all_reduce_norm`, or an all-reduce that adds the residual, and the norm by what
    reads the rows.

    Example:
    ```mlir
    %h, %n = mla.all_reduce_rms_norm %x, %norm residual %r {eps = 1.0e-6 : f64, ranks = 8 : i64} : (tensor<?x7168xf32>, !mla.weight<7168xbf16>, tensor<?x7168xf32>) -> (tensor<?x7168xf32>, tensor<?x7168xf32>)
    ```
  }];
  let arguments = (ins MLA_Rows:$x, MLA_Weight:$weight, Optional<MLA_Rows>:$residual,
                       F64Attr:$eps, I64Attr:$ranks);
  let results = (outs MLA_Rows:$sum, MLA_Rows:$normed);
  let assemblyFormat = "$x `,` $weight (`residual` $residual^)? attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_COLLECTIVEOPS_TD
