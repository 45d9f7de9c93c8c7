// RUN: mla-opt %s -mla-fuse-collectives -mla-select-lowering -mla-lower-to-host='step-tokens=4' | FileCheck %s

// Tests a sum over the ranks that took up a residual and a norm: on the host it is the
// runtime's collective and the kernels that there are for both. Each buffer carries the
// name that its value has without the fusion, so that plans can be compared.
mla.weight @embed : !mla.weight<16x8xbf16> from "e" shard <[32, 8] dim 0 in 2>
mla.weight @gate : !mla.weight<6x8xbf16> from "g" shard <[12, 8] dim 0 in 2>
mla.weight @down : !mla.weight<8x6xbf16> from "d" shard <[8, 12] dim 1 in 2>
mla.weight @norm : !mla.weight<8xbf16> from "n"
mla.weight @head : !mla.weight<16x8xbf16> from "h" shard <[32, 8] dim 0 in 2>

// CHECK: %[[LOGITS:.*]] = mla.port "logits"
// CHECK: mla.launch @embedding_{{.*}}, %[[E:[^ ]*]] : {{.*}}) scalars ["rank * 16"]
// CHECK: %[[H0:.*]] = mla.workspace of "embed.all_reduce/all_reduce:0"
// CHECK: mla.launch @exchange_all_reduce grid "1"(%[[E]], %[[H0]] : {{.*}}) scalars ["tokens", "8", "8"] for "embed.all_reduce"
// CHECK: %[[N0:.*]] = mla.workspace of "layers.0.input_layernorm/rms_norm:0"
// CHECK: mla.launch @rms_norm_{{[^ ]*}} grid "tokens"(%[[H0]], %{{.*}}, %[[N0]] :
// CHECK: mla.launch @gated_linear_{{[^ ]*}} grid {{.*}}(%[[N0]],
// CHECK: mla.launch @linear_{{.*}}, %[[Y:[^ ]*]] : {{.*}} for "layers.0.mlp.down_proj"
// CHECK: %[[H1:.*]] = mla.workspace of "layers.0/add:0"
// CHECK: %[[R:.*]] = mla.workspace of "layers.0.mlp.down_proj.all_reduce/all_reduce:0"
// CHECK: mla.launch @exchange_all_reduce grid "1"(%[[Y]], %[[R]] :
// CHECK: mla.launch @add_8 grid "tokens"(%[[H0]], %[[R]], %[[H1]] : {{.*}} for "layers.0.mlp.down_proj.all_reduce"
// CHECK: %[[N1:.*]] = mla.workspace of "norm/rms_norm:0"
// CHECK: mla.launch @rms_norm_{{[^ ]*}} grid "tokens"(%[[H1]], %{{.*}}, %[[N1]] :
// CHECK: mla.launch @lm_head_{{[^ ]*}} grid "{{[0-9]+}}"(%[[N1]], {{.*}}, %[[PART:[^ ]*]] :
// CHECK: mla.launch @exchange_all_gather grid "1"(%[[PART]], %[[LOGITS]] : {{.*}}) scalars ["outputs", "16", "32"]
// CHECK: func.func private @exchange_all_reduce() attributes {{.*}}mla.collective = "all_reduce"
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x32xf32> {
  %e = mla.get_weight @embed : !mla.weight<16x8xbf16>
  %g = mla.get_weight @gate : !mla.weight<6x8xbf16>
  %d = mla.get_weight @down : !mla.weight<8x6xbf16>
  %n = mla.get_weight @norm : !mla.weight<8xbf16>
  %h = mla.get_weight @head : !mla.weight<16x8xbf16>
  %x = mla.embedding %ids, %e {ranks = 2 : i64} : (tensor<?xi32>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32> loc("embed")
  %h0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32> loc("embed.all_reduce")
  %n0 = mla.rms_norm %h0, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32> loc("layers.0.input_layernorm")
  %s = mla.gated_linear %n0, %g, %g : (tensor<?x8xf32>, !mla.weight<6x8xbf16>, !mla.weight<6x8xbf16>) -> tensor<?x6xf32> loc("layers.0.mlp.act_fn")
  %y = mla.linear %s, %d : (tensor<?x6xf32>, !mla.weight<8x6xbf16>) -> tensor<?x8xf32> loc("layers.0.mlp.down_proj")
  %z = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x8xf32> loc("layers.0.mlp.down_proj.all_reduce")
  %h1 = mla.add %h0, %z : tensor<?x8xf32> loc("layers.0")
  %n1 = mla.rms_norm %h1, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32> loc("norm")
  %l = mla.lm_head %n1, %h, %batch : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.batch) -> tensor<?x16xf32> loc("lm_head")
  %logits = mla.all_gather %l {ranks = 2 : i64} : (tensor<?x16xf32>) -> tensor<?x32xf32> loc("lm_head.all_gather")
  return %logits : tensor<?x32xf32>
}
