// RUN: mla-opt %s -mla-verify-imported -mla-fuse-attention -mla-fuse-mlp -mla-fuse-moe -mla-verify-fused \
// RUN:   -mla-select-lowering -mla-verify-selected | FileCheck %s \
// RUN:   --implicit-check-not=mla.attention --implicit-check-not=mla.swiglu --implicit-check-not=mla.split \
// RUN:   --implicit-check-not=mla.route --implicit-check-not=mla.experts

// Tests a whole model with one dense layer whose query is one linear, as the first
// layer of DeepSeek-V2-Lite: from the front end's graph to selected lowerings.
mla.weight @embed_tokens : !mla.weight<32x16xbf16> from "model.embed_tokens.weight"
mla.weight @layers.0.input_layernorm : !mla.weight<16xbf16> from "model.layers.0.input_layernorm.weight"
mla.weight @layers.0.self_attn.q_proj : !mla.weight<24x16xbf16> from "model.layers.0.self_attn.q_proj.weight"
mla.weight @layers.0.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16> from "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
mla.weight @layers.0.self_attn.kv_a_layernorm : !mla.weight<10xbf16> from "model.layers.0.self_attn.kv_a_layernorm.weight"
mla.weight @layers.0.self_attn.kv_b_proj : !mla.weight<28x10xbf16> from "model.layers.0.self_attn.kv_b_proj.weight"
// CHECK-DAG: mla.cache @layers.0.self_attn.kv : !mla.cache<latent, 14xf32>
mla.cache @layers.0.self_attn.kv : !mla.cache<expanded, 32xf32>
mla.weight @layers.0.self_attn.o_proj : !mla.weight<16x12xbf16> from "model.layers.0.self_attn.o_proj.weight"
mla.weight @layers.0.post_attention_layernorm : !mla.weight<16xbf16> from "model.layers.0.post_attention_layernorm.weight"
mla.weight @layers.0.mlp.gate_proj : !mla.weight<24x16xbf16> from "model.layers.0.mlp.gate_proj.weight"
mla.weight @layers.0.mlp.up_proj : !mla.weight<24x16xbf16> from "model.layers.0.mlp.up_proj.weight"
mla.weight @layers.0.mlp.down_proj : !mla.weight<16x24xbf16> from "model.layers.0.mlp.down_proj.weight"
mla.weight @norm : !mla.weight<16xbf16> from "model.norm.weight"
mla.weight @lm_head : !mla.weight<32x16xbf16> from "lm_head.weight"

// CHECK-LABEL: func.func @step
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x32xf32> {
  // CHECK: %[[H0:.*]] = mla.embedding
  %w1 = mla.get_weight @embed_tokens : !mla.weight<32x16xbf16>
  %cs = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.01>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  %h0 = mla.embedding %ids, %w1 : (tensor<?xi32>, !mla.weight<32x16xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[X0:.*]] = mla.rms_norm %[[H0]]
  %w2 = mla.get_weight @layers.0.input_layernorm : !mla.weight<16xbf16>
  %x_0 = mla.rms_norm %h0, %w2 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  %w3 = mla.get_weight @layers.0.self_attn.q_proj : !mla.weight<24x16xbf16>
  %q_0 = mla.linear %x_0, %w3 : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  // CHECK: %[[D0:.*]]:2 = mla.joined_linear %[[X0]]
  %w4 = mla.get_weight @layers.0.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16>
  %kva_0 = mla.linear %x_0, %w4 : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c_0, %kr_0 = mla.split %kva_0 : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %w5 = mla.get_weight @layers.0.self_attn.kv_a_layernorm : !mla.weight<10xbf16>
  %cn_0 = mla.rms_norm %c_0, %w5 {eps = 1.0e-6} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %w6 = mla.get_weight @layers.0.self_attn.kv_b_proj : !mla.weight<28x10xbf16>
  %kv_0 = mla.linear %cn_0, %w6 : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr_0 = mla.rope %q_0, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr_0 = mla.rope %kr_0, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache_0 = mla.get_cache @layers.0.self_attn.kv : !mla.cache<expanded, 32xf32>
  // CHECK: %[[C0:.*]] = mla.latent_cache_write %[[D0]]#1
  %new_0 = mla.cache_write %cache_0, %batch, %kv_0, %krr_0 : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: %[[QL0:.*]] = mla.absorb_query %[[D0]]#0
  // CHECK: %[[OL0:.*]] = mla.latent_attention %[[QL0]], %[[C0]]
  // CHECK: %[[O0:.*]] = mla.expand_value %[[OL0]]
  // CHECK: %[[AO0:.*]] = mla.linear %[[O0]]
  // CHECK: %[[HA0:.*]] = mla.add %[[H0]], %[[AO0]]
  // CHECK: %[[Y0:.*]] = mla.rms_norm %[[HA0]]
  %o_0 = mla.attention %qr_0, %new_0, %batch {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  %w7 = mla.get_weight @layers.0.self_attn.o_proj : !mla.weight<16x12xbf16>
  %ao_0 = mla.linear %o_0, %w7 : (tensor<?x12xf32>, !mla.weight<16x12xbf16>) -> tensor<?x16xf32>
  %h1_0 = mla.add %h0, %ao_0 : tensor<?x16xf32>
  %w8 = mla.get_weight @layers.0.post_attention_layernorm : !mla.weight<16xbf16>
  %y_0 = mla.rms_norm %h1_0, %w8 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[S0:.*]] = mla.gated_linear %[[Y0]]
  // CHECK: %[[M0:.*]] = mla.linear %[[S0]]
  %w9 = mla.get_weight @layers.0.mlp.gate_proj : !mla.weight<24x16xbf16>
  %dg_0 = mla.linear %y_0, %w9 : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %w10 = mla.get_weight @layers.0.mlp.up_proj : !mla.weight<24x16xbf16>
  %du_0 = mla.linear %y_0, %w10 : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %ds_0 = mla.swiglu %dg_0, %du_0 : tensor<?x24xf32>
  %w11 = mla.get_weight @layers.0.mlp.down_proj : !mla.weight<16x24xbf16>
  %dd_0 = mla.linear %ds_0, %w11 : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[H1:.*]] = mla.add %[[HA0]], %[[M0]]
  %h1 = mla.add %h1_0, %dd_0 : tensor<?x16xf32>
  // CHECK: %[[N:.*]] = mla.rms_norm %[[H1]]
  // CHECK: %[[LOGITS:.*]] = mla.lm_head %[[N]]
  // CHECK: return %[[LOGITS]]
  %w12 = mla.get_weight @norm : !mla.weight<16xbf16>
  %n = mla.rms_norm %h1, %w12 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  %w13 = mla.get_weight @lm_head : !mla.weight<32x16xbf16>
  %logits = mla.lm_head %n, %w13, %batch : (tensor<?x16xf32>, !mla.weight<32x16xbf16>, !mla.batch) -> tensor<?x32xf32>
  return %logits : tensor<?x32xf32>
}
