// RUN: mla-opt %s "-mla-select-lowering=target=sm_120a step-tokens=1,2048" "-mla-lower-to-nvvm=target=sm_120a step-tokens=1,2048 sampling=false" -mla-verify-lowered | FileCheck %s

// Tests experts of groups of ranks: the choice is among all of them, what groups pairs and
// what adds them up get the first expert of the rank's group, and the latter the choices,
// since what others would have written is not there. So it is for one token, too.

mla.weight @embed : !mla.weight<64x128xbf16> from "embed"
mla.weight @router : !mla.weight<8x128xbf16> from "router"
mla.weight @gate : !mla.weight<4x64x128xbf16> from "experts.{}.gate" shard <[8, 64, 128] dim 0 in 2 by 3>
mla.weight @down : !mla.weight<4x128x64xbf16> from "experts.{}.down" shard <[8, 128, 64] dim 0 in 2 by 3>

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %e = mla.get_weight @embed : !mla.weight<64x128xbf16>
  %r = mla.get_weight @router : !mla.weight<8x128xbf16>
  %g = mla.get_weight @gate : !mla.weight<4x64x128xbf16>
  %d = mla.get_weight @down : !mla.weight<4x128x64xbf16>
  %x = mla.embedding %ids, %e : (tensor<?xi32>, !mla.weight<64x128xbf16>) -> tensor<?x128xf32>
  %y = mla.moe %x, %r experts %g, %g, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> {groups = 2 : i64, group_ranks = 3 : i64} : (tensor<?x128xf32>, !mla.weight<8x128xbf16>, !mla.weight<4x64x128xbf16>, !mla.weight<4x64x128xbf16>, !mla.weight<4x128x64xbf16>) -> tensor<?x128xf32>
  %logits = mla.lm_head %y, %e, %batch : (tensor<?x128xf32>, !mla.weight<64x128xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}

// CHECK: mla.program @step1
// CHECK: mla.launch @route_{{.*}}(%{{[^ ]*}}, %[[I:[^ ]*]], %[[W:[^ ]*]] :
// CHECK: mla.launch @moe_group_4_2_{{[^ ]*}}_part grid "1"(%[[I]], {{.*}}) scalars ["tokens", "(ceildiv(rank + 1, 3) - 1) * 4"]
// CHECK: mla.launch @experts_gate_up_bf16_64_128_4_2_
// CHECK: mla.launch @experts_down_bf16_128_64_4_2_{{.*}}, %[[Y:[^ ]*]] :
// CHECK: mla.launch @moe_combine_128_2_0_part_4 grid {{.*}}(%[[Y]], %[[W]], %[[I]], {{.*}}) scalars ["(ceildiv(rank + 1, 3) - 1) * 4"]

// CHECK: mla.program @prefill2048
// CHECK: mla.launch @moe_group_4_2_{{[^ ]*}}_tiles_128_part grid "1"({{.*}}) scalars ["tokens", "(ceildiv(rank + 1, 3) - 1) * 4"]
// CHECK: mla.launch @moe_combine_128_2_0_part_4
