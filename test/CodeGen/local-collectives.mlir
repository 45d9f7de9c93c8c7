// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host='step-tokens=4' | FileCheck %s

// Tests collectives that exchange nothing: a sum is a copy of the rank's rows, and
// its logits go to the place of every rank's. The head's own rows are scratch memory
// with a row for each token that wants logits.
mla.weight @embed : !mla.weight<16x8xbf16> from "e"
mla.weight @gate : !mla.weight<6x8xbf16> from "g" shard <[12, 8] dim 0 in 2>
mla.weight @down : !mla.weight<8x6xbf16> from "d" shard <[8, 12] dim 1 in 2>
mla.weight @head : !mla.weight<8x8xbf16> from "h" shard <[16, 8] dim 0 in 2>

// CHECK: %[[LOGITS:.*]] = mla.port "logits" : !mla.buffer<["outputs", "16"], f32>
// CHECK: mla.launch @linear_{{.*}}, %[[Y:.*]] : {{.*}}) scalars ["tokens"] for "mla.linear"
// CHECK: mla.launch @repeat_8_8 grid "tokens"(%[[Y]], %[[Z:.*]] : !mla.buffer<["tokens", "8"], f32>, !mla.buffer<["tokens", "8"], f32>)
// CHECK: %[[PART:.*]] = mla.workspace : !mla.buffer<["outputs", "8"], f32>
// CHECK: mla.launch @lm_head_{{[^ ]*}} grid "{{[0-9]+}}"(%[[Z]], {{.*}}, %[[PART]] :
// CHECK: mla.launch @repeat_8_16 grid "outputs"(%[[PART]], %[[LOGITS]] :
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %e = mla.get_weight @embed : !mla.weight<16x8xbf16>
  %g = mla.get_weight @gate : !mla.weight<6x8xbf16>
  %d = mla.get_weight @down : !mla.weight<8x6xbf16>
  %h = mla.get_weight @head : !mla.weight<8x8xbf16>
  %x = mla.embedding %ids, %e : (tensor<?xi32>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32>
  %s = mla.gated_linear %x, %g, %g : (tensor<?x8xf32>, !mla.weight<6x8xbf16>, !mla.weight<6x8xbf16>) -> tensor<?x6xf32>
  %y = mla.linear %s, %d : (tensor<?x6xf32>, !mla.weight<8x6xbf16>) -> tensor<?x8xf32>
  %z = mla.all_reduce %y {ranks = 2 : i64, local} : tensor<?x8xf32>
  %l = mla.lm_head %z, %h, %batch : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  %logits = mla.all_gather %l {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return %logits : tensor<?x16xf32>
}
