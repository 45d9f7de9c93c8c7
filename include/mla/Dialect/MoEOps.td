//===- MoEOps.td - routers and experts ------------------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_MOEOPS_TD
#define MLA_DIALECT_MOEOPS_TD

include "mla/Dialect/MLABase.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def MLA_RouteOp : MLA_Op<"route", [Pure]> {
  let summary = "Chooses experts for each token";
  let description = [{
    See `#mla.routing`. Logits, scores and bias are f32 throughout.

    - C1: `indices` and `weights` have `topk` values a row.
    - C2: `groups` divides the number of experts (the width of `logits`).
    - C3: `topk_groups` is from 1 to `groups`, and `topk` from 1 to the experts
      in that many groups.
    - C4: `bias`, present if and only if the method is `noaux_tc`, has rank 1
      and one value an expert.
    - C5: `noaux_tc` needs two experts in a group if there are several groups.

    Lowers to: host `route`.
  }];
  let arguments = (ins MLA_Rows:$logits, Optional<MLA_Weight>:$bias, MLA_RoutingAttr:$routing);
  let results = (outs MLA_IndexRows:$indices, MLA_Rows:$weights);
  let assemblyFormat = "$logits (`bias` $bias^)? `routing` $routing attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_ExpertsOp : MLA_Op<"experts", [Pure]> {
  let summary = "Runs each token through its experts";
  let description = [{
    `result[t] = sum_j weights[t, j] * mlp_{indices[t, j]}(x[t])`, with
    `mlp_e(x) = down[e] * (silu(gate[e] * x) * (up[e] * x))`, summed in the
    order of j.

    Expert parallel: with `groups` the ranks are that many groups of `group_ranks`
    neighbours, and the weights are those of the rank's group, which has the experts
    from `group * number of its experts` on. Choices of other groups' experts count
    for nothing.

    - C1: `gate` and `up` have rank 3 and the same shape, with as many columns
      as a row of `x` has values.
    - C2: `down` has rank 3, as many matrices, the width of `x` as rows, and as
      many columns as `gate` has rows.
    - C3: `indices` and `weights` are equally wide.
    - C4: the result has the type of `x`.
    - C5: `groups` is at least 2 and `group_ranks` at least 1, and both are given or
      neither.

    Lowers to: host `moe_group`, `moe_gate_up`, `moe_down`, `moe_combine`.
  }];
  let arguments = (ins MLA_Rows:$x, MLA_IndexRows:$indices, MLA_Rows:$weights,
                       MLA_Weight:$gate, MLA_Weight:$up, MLA_Weight:$down,
                       OptionalAttr<I64Attr>:$groups, OptionalAttr<I64Attr>:$group_ranks);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = "$x `,` $indices `,` $weights `,` $gate `,` $up `,` $down attr-dict `:` functional-type(operands, results)";
  let hasVerifier = 1;
}

def MLA_MoEOp : MLA_Op<"moe", [Pure, AttrSizedOperandSegments]> {
  let summary = "Router, experts and shared expert as one";
  let description = [{
    `result = experts(x, route(x * router^T)) + shared(x)`, the shared expert
    an MLP of its own, not scaled. Made by `mla-fuse-moe`. `groups` and
    `group_ranks`: expert parallel, as in `mla.experts`. With `logits` these are
    the router's, gathered from the ranks, and `router` is not read.

    - C1: `router` has rank 2, one row an expert (of all groups, of which the last
      may have fewer than there is room for), as many columns as a row of `x` has
      values; or there is no router, and `logits` has one value an expert.
    - C2: the constraints C2 to C5 of `mla.route` on `bias` and `routing`.
    - C3: the constraints C1 and C2 of `mla.experts` on `gate`, `up`, `down`.
    - C4: `shared` is empty or gate, up and down of an MLP from and to the
      width of `x`.
    - C5: the result has the type of `x`.
    - C6: `groups` is at least 2 and `group_ranks` at least 1, and both are given or
      neither.

    Lowers to: host `linear`, `route`, `moe_group`, `moe_gate_up`, `moe_down`,
    `moe_combine`, and `gated_linear` and `linear` for the shared expert.
  }];
  let arguments = (ins MLA_Rows:$x, Optional<MLA_Weight>:$router, Optional<MLA_Rows>:$logits,
                       Optional<MLA_Weight>:$bias,
                       MLA_Weight:$gate, MLA_Weight:$up, MLA_Weight:$down,
                       Variadic<MLA_Weight>:$shared, MLA_RoutingAttr:$routing,
                       OptionalAttr<I64Attr>:$groups, OptionalAttr<I64Attr>:$group_ranks);
  let results = (outs MLA_Rows:$result);
  let assemblyFormat = [{
    $x (`,` $router^)? (`logits` $logits^)? (`bias` $bias^)? `experts` $gate `,` $up `,` $down
    (`shared` $shared^)? `routing` $routing attr-dict `:` functional-type(operands, results)
  }];
  let extraClassDeclaration = [{
    /// Of all groups, as the router counts them.
    int64_t getNumExperts();
  }];
  let hasVerifier = 1;
}

#endif // MLA_DIALECT_MOEOPS_TD
