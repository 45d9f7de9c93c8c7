// RUN: mla-opt %s -mla-verify-imported -mla-fuse-attention -mla-fuse-mlp -mla-fuse-moe -mla-verify-fused \
// RUN:   -mla-select-lowering -mla-verify-selected | FileCheck %s \
// RUN:   --implicit-check-not=mla.attention --implicit-check-not=mla.swiglu --implicit-check-not=mla.split \
// RUN:   --implicit-check-not=mla.route --implicit-check-not=mla.experts

// Tests a whole model with sparse attention: a layer with its own indexer, then one
// that takes over its selection, as in GLM-5.2.
mla.weight @embed_tokens : !mla.weight<32x16xbf16> from "model.embed_tokens.weight"
mla.weight @layers.0.input_layernorm : !mla.weight<16xbf16> from "model.layers.0.input_layernorm.weight"
mla.weight @layers.0.self_attn.q_a_proj : !mla.weight<12x16xbf16> from "model.layers.0.self_attn.q_a_proj.weight"
mla.weight @layers.0.self_attn.q_a_layernorm : !mla.weight<12xbf16> from "model.layers.0.self_attn.q_a_layernorm.weight"
mla.weight @layers.0.self_attn.q_b_proj : !mla.weight<24x12xbf16> from "model.layers.0.self_attn.q_b_proj.weight"
mla.weight @layers.0.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16> from "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
mla.weight @layers.0.self_attn.kv_a_layernorm : !mla.weight<10xbf16> from "model.layers.0.self_attn.kv_a_layernorm.weight"
mla.weight @layers.0.self_attn.kv_b_proj : !mla.weight<28x10xbf16> from "model.layers.0.self_attn.kv_b_proj.weight"
// CHECK-DAG: mla.cache @layers.0.self_attn.kv : !mla.cache<latent, 14xf32>
mla.cache @layers.0.self_attn.kv : !mla.cache<expanded, 32xf32>
mla.weight @layers.0.self_attn.indexer.wq_b : !mla.weight<24x12xbf16> from "model.layers.0.self_attn.indexer.wq_b.weight"
mla.weight @layers.0.self_attn.indexer.wk : !mla.weight<8x16xbf16> from "model.layers.0.self_attn.indexer.wk.weight"
mla.weight @layers.0.self_attn.indexer.k_norm : !mla.weight<8xf32> from "model.layers.0.self_attn.indexer.k_norm.weight"
mla.weight @layers.0.self_attn.indexer.k_norm.bias : !mla.weight<8xf32> from "model.layers.0.self_attn.indexer.k_norm.bias"
// CHECK-DAG: mla.cache @layers.0.self_attn.indexer.k : !mla.cache<index, 8xf32>
mla.cache @layers.0.self_attn.indexer.k : !mla.cache<index, 8xf32>
mla.weight @layers.0.self_attn.indexer.weights_proj : !mla.weight<3x16xbf16> from "model.layers.0.self_attn.indexer.weights_proj.weight"
mla.weight @layers.0.self_attn.o_proj : !mla.weight<16x12xbf16> from "model.layers.0.self_attn.o_proj.weight"
mla.weight @layers.0.post_attention_layernorm : !mla.weight<16xbf16> from "model.layers.0.post_attention_layernorm.weight"
mla.weight @layers.0.mlp.gate_proj : !mla.weight<24x16xbf16> from "model.layers.0.mlp.gate_proj.weight"
mla.weight @layers.0.mlp.up_proj : !mla.weight<24x16xbf16> from "model.layers.0.mlp.up_proj.weight"
mla.weight @layers.0.mlp.down_proj : !mla.weight<16x24xbf16> from "model.layers.0.mlp.down_proj.weight"
mla.weight @layers.1.input_layernorm : !mla.weight<16xbf16> from "model.layers.1.input_layernorm.weight"
mla.weight @layers.1.self_attn.q_a_proj : !mla.weight<12x16xbf16> from "model.layers.1.self_attn.q_a_proj.weight"
mla.weight @layers.1.self_attn.q_a_layernorm : !mla.weight<12xbf16> from "model.layers.1.self_attn.q_a_layernorm.weight"
mla.weight @layers.1.self_attn.q_b_proj : !mla.weight<24x12xbf16> from "model.layers.1.self_attn.q_b_proj.weight"
mla.weight @layers.1.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16> from "model.layers.1.self_attn.kv_a_proj_with_mqa.weight"
mla.weight @layers.1.self_attn.kv_a_layernorm : !mla.weight<10xbf16> from "model.layers.1.self_attn.kv_a_layernorm.weight"
mla.weight @layers.1.self_attn.kv_b_proj : !mla.weight<28x10xbf16> from "model.layers.1.self_attn.kv_b_proj.weight"
// CHECK-DAG: mla.cache @layers.1.self_attn.kv : !mla.cache<latent, 14xf32>
mla.cache @layers.1.self_attn.kv : !mla.cache<expanded, 32xf32>
mla.weight @layers.1.self_attn.o_proj : !mla.weight<16x12xbf16> from "model.layers.1.self_attn.o_proj.weight"
mla.weight @layers.1.post_attention_layernorm : !mla.weight<16xbf16> from "model.layers.1.post_attention_layernorm.weight"
mla.weight @layers.1.mlp.gate : !mla.weight<8x16xbf16> from "model.layers.1.mlp.gate.weight"
mla.weight @layers.1.mlp.gate.e_score_correction_bias : !mla.weight<8xf32> from "model.layers.1.mlp.gate.e_score_correction_bias"
mla.weight @layers.1.mlp.experts.gate_proj : !mla.weight<8x12x16xbf16> from "model.layers.1.mlp.experts.{}.gate_proj.weight"
mla.weight @layers.1.mlp.experts.up_proj : !mla.weight<8x12x16xbf16> from "model.layers.1.mlp.experts.{}.up_proj.weight"
mla.weight @layers.1.mlp.experts.down_proj : !mla.weight<8x16x12xbf16> from "model.layers.1.mlp.experts.{}.down_proj.weight"
mla.weight @layers.1.mlp.shared_experts.gate_proj : !mla.weight<12x16xbf16> from "model.layers.1.mlp.shared_experts.gate_proj.weight"
mla.weight @layers.1.mlp.shared_experts.up_proj : !mla.weight<12x16xbf16> from "model.layers.1.mlp.shared_experts.up_proj.weight"
mla.weight @layers.1.mlp.shared_experts.down_proj : !mla.weight<16x12xbf16> from "model.layers.1.mlp.shared_experts.down_proj.weight"
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
  %w3 = mla.get_weight @layers.0.self_attn.q_a_proj : !mla.weight<12x16xbf16>
  %qa_0 = mla.linear %x_0, %w3 : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  %w4 = mla.get_weight @layers.0.self_attn.q_a_layernorm : !mla.weight<12xbf16>
  %qn_0 = mla.rms_norm %qa_0, %w4 {eps = 0.125} : (tensor<?x12xf32>, !mla.weight<12xbf16>) -> tensor<?x12xf32>
  %w5 = mla.get_weight @layers.0.self_attn.q_b_proj : !mla.weight<24x12xbf16>
  %q_0 = mla.linear %qn_0, %w5 : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  // CHECK: %[[D0:.*]]:4 = mla.joined_linear %[[X0]]
  // CHECK: %[[QN0:.*]] = mla.rms_norm %[[D0]]#0
  // CHECK: %[[Q0:.*]] = mla.linear %[[QN0]]
  %w6 = mla.get_weight @layers.0.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16>
  %kva_0 = mla.linear %x_0, %w6 : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c_0, %kr_0 = mla.split %kva_0 : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %w7 = mla.get_weight @layers.0.self_attn.kv_a_layernorm : !mla.weight<10xbf16>
  %cn_0 = mla.rms_norm %c_0, %w7 {eps = 1.0e-6} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %w8 = mla.get_weight @layers.0.self_attn.kv_b_proj : !mla.weight<28x10xbf16>
  %kv_0 = mla.linear %cn_0, %w8 : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr_0 = mla.rope %q_0, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr_0 = mla.rope %kr_0, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache_0 = mla.get_cache @layers.0.self_attn.kv : !mla.cache<expanded, 32xf32>
  // CHECK: %[[C0:.*]] = mla.latent_cache_write %[[D0]]#1
  %new_0 = mla.cache_write %cache_0, %batch, %kv_0, %krr_0 : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  %w9 = mla.get_weight @layers.0.self_attn.indexer.wq_b : !mla.weight<24x12xbf16>
  %iq_0 = mla.linear %qn_0, %w9 : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  %iqr_0 = mla.rope %iq_0, %cs {head_dim = 8, offset = 0, interleaved = false} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %w10 = mla.get_weight @layers.0.self_attn.indexer.wk : !mla.weight<8x16xbf16>
  %ik_0 = mla.linear %x_0, %w10 : (tensor<?x16xf32>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  %w11 = mla.get_weight @layers.0.self_attn.indexer.k_norm : !mla.weight<8xf32>
  %w12 = mla.get_weight @layers.0.self_attn.indexer.k_norm.bias : !mla.weight<8xf32>
  %ikn_0 = mla.layer_norm %ik_0, %w11, %w12 {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  %ikr_0 = mla.rope %ikn_0, %cs {head_dim = 8, offset = 0, interleaved = false} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  %ic_0 = mla.get_cache @layers.0.self_attn.indexer.k : !mla.cache<index, 8xf32>
  // CHECK: %[[IQ0:.*]] = mla.linear %[[QN0]]
  // CHECK: %[[IQR0:.*]] = mla.rope %[[IQ0]]
  // CHECK: %[[IK0:.*]] = mla.layer_norm %[[D0]]#2
  // CHECK: %[[IKR0:.*]] = mla.rope %[[IK0]]
  // CHECK: %[[IC0:.*]] = mla.cache_write %{{.*}}, %{{.*}}, %[[IKR0]]
  // CHECK: %[[SEL:.*]] = mla.indexer %[[IQR0]], %[[D0]]#3, %[[IC0]]
  %icw_0 = mla.cache_write %ic_0, %batch, %ikr_0 : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x8xf32>) -> !mla.cache<index, 8xf32>
  %w13 = mla.get_weight @layers.0.self_attn.indexer.weights_proj : !mla.weight<3x16xbf16>
  %iw_0 = mla.linear %x_0, %w13 : (tensor<?x16xf32>, !mla.weight<3x16xbf16>) -> tensor<?x3xf32>
  %sel = mla.indexer %iqr_0, %iw_0, %icw_0, %batch {heads = 3, topk = 5, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x5xi32>
  // CHECK: %[[QL0:.*]] = mla.absorb_query %[[Q0]]
  // CHECK: %[[OL0:.*]] = mla.latent_attention %[[QL0]], %[[C0]], %{{.*}} selected %[[SEL]]
  // CHECK: %[[O0:.*]] = mla.expand_value %[[OL0]]
  // CHECK: %[[AO0:.*]] = mla.linear %[[O0]]
  // CHECK: %[[HA0:.*]] = mla.add %[[H0]], %[[AO0]]
  // CHECK: %[[Y0:.*]] = mla.rms_norm %[[HA0]]
  %o_0 = mla.attention %qr_0, %new_0, %batch selected %sel {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x5xi32>) -> tensor<?x12xf32>
  %w14 = mla.get_weight @layers.0.self_attn.o_proj : !mla.weight<16x12xbf16>
  %ao_0 = mla.linear %o_0, %w14 : (tensor<?x12xf32>, !mla.weight<16x12xbf16>) -> tensor<?x16xf32>
  %h1_0 = mla.add %h0, %ao_0 : tensor<?x16xf32>
  %w15 = mla.get_weight @layers.0.post_attention_layernorm : !mla.weight<16xbf16>
  %y_0 = mla.rms_norm %h1_0, %w15 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[S0:.*]] = mla.gated_linear %[[Y0]]
  // CHECK: %[[M0:.*]] = mla.linear %[[S0]]
  %w16 = mla.get_weight @layers.0.mlp.gate_proj : !mla.weight<24x16xbf16>
  %dg_0 = mla.linear %y_0, %w16 : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %w17 = mla.get_weight @layers.0.mlp.up_proj : !mla.weight<24x16xbf16>
  %du_0 = mla.linear %y_0, %w17 : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %ds_0 = mla.swiglu %dg_0, %du_0 : tensor<?x24xf32>
  %w18 = mla.get_weight @layers.0.mlp.down_proj : !mla.weight<16x24xbf16>
  %dd_0 = mla.linear %ds_0, %w18 : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[H1:.*]] = mla.add %[[HA0]], %[[M0]]
  %h1 = mla.add %h1_0, %dd_0 : tensor<?x16xf32>
  // CHECK: %[[X1:.*]] = mla.rms_norm %[[H1]]
  %w19 = mla.get_weight @layers.1.input_layernorm : !mla.weight<16xbf16>
  %x_1 = mla.rms_norm %h1, %w19 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  %w20 = mla.get_weight @layers.1.self_attn.q_a_proj : !mla.weight<12x16xbf16>
  %qa_1 = mla.linear %x_1, %w20 : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  %w21 = mla.get_weight @layers.1.self_attn.q_a_layernorm : !mla.weight<12xbf16>
  %qn_1 = mla.rms_norm %qa_1, %w21 {eps = 0.125} : (tensor<?x12xf32>, !mla.weight<12xbf16>) -> tensor<?x12xf32>
  %w22 = mla.get_weight @layers.1.self_attn.q_b_proj : !mla.weight<24x12xbf16>
  %q_1 = mla.linear %qn_1, %w22 : (tensor<?x12xf32>, !mla.weight<24x12xbf16>) -> tensor<?x24xf32>
  // CHECK: %[[D1:.*]]:2 = mla.joined_linear %[[X1]]
  // CHECK: %[[QN1:.*]] = mla.rms_norm %[[D1]]#0
  // CHECK: %[[Q1:.*]] = mla.linear %[[QN1]]
  %w23 = mla.get_weight @layers.1.self_attn.kv_a_proj_with_mqa : !mla.weight<14x16xbf16>
  %kva_1 = mla.linear %x_1, %w23 : (tensor<?x16xf32>, !mla.weight<14x16xbf16>) -> tensor<?x14xf32>
  %c_1, %kr_1 = mla.split %kva_1 : (tensor<?x14xf32>) -> (tensor<?x10xf32>, tensor<?x4xf32>)
  %w24 = mla.get_weight @layers.1.self_attn.kv_a_layernorm : !mla.weight<10xbf16>
  %cn_1 = mla.rms_norm %c_1, %w24 {eps = 1.0e-6} : (tensor<?x10xf32>, !mla.weight<10xbf16>) -> tensor<?x10xf32>
  %w25 = mla.get_weight @layers.1.self_attn.kv_b_proj : !mla.weight<28x10xbf16>
  %kv_1 = mla.linear %cn_1, %w25 : (tensor<?x10xf32>, !mla.weight<28x10xbf16>) -> tensor<?x28xf32>
  %qr_1 = mla.rope %q_1, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %krr_1 = mla.rope %kr_1, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %cache_1 = mla.get_cache @layers.1.self_attn.kv : !mla.cache<expanded, 32xf32>
  // CHECK: %[[C1:.*]] = mla.latent_cache_write %[[D1]]#1
  %new_1 = mla.cache_write %cache_1, %batch, %kv_1, %krr_1 : (!mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x28xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 32xf32>
  // CHECK: %[[QL1:.*]] = mla.absorb_query %[[Q1]]
  // CHECK: %[[OL1:.*]] = mla.latent_attention %[[QL1]], %[[C1]], %{{.*}} selected %[[SEL]]
  // CHECK: %[[O1:.*]] = mla.expand_value %[[OL1]]
  // CHECK: %[[AO1:.*]] = mla.linear %[[O1]]
  // CHECK: %[[HA1:.*]] = mla.add %[[H1]], %[[AO1]]
  // CHECK: %[[Y1:.*]] = mla.rms_norm %[[HA1]]
  %o_1 = mla.attention %qr_1, %new_1, %batch selected %sel {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch, tensor<?x5xi32>) -> tensor<?x12xf32>
  %w26 = mla.get_weight @layers.1.self_attn.o_proj : !mla.weight<16x12xbf16>
  %ao_1 = mla.linear %o_1, %w26 : (tensor<?x12xf32>, !mla.weight<16x12xbf16>) -> tensor<?x16xf32>
  %h1_1 = mla.add %h1, %ao_1 : tensor<?x16xf32>
  %w27 = mla.get_weight @layers.1.post_attention_layernorm : !mla.weight<16xbf16>
  %y_1 = mla.rms_norm %h1_1, %w27 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  %w28 = mla.get_weight @layers.1.mlp.gate : !mla.weight<8x16xbf16>
  %l_1 = mla.linear %y_1, %w28 : (tensor<?x16xf32>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  %w29 = mla.get_weight @layers.1.mlp.gate.e_score_correction_bias : !mla.weight<8xf32>
  %idx_1, %rw_1 = mla.route %l_1 bias %w29 routing <topk = 2, groups = 4, topk_groups = 2, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64> : (tensor<?x8xf32>, !mla.weight<8xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  %w30 = mla.get_weight @layers.1.mlp.experts.gate_proj : !mla.weight<8x12x16xbf16>
  %w31 = mla.get_weight @layers.1.mlp.experts.up_proj : !mla.weight<8x12x16xbf16>
  %w32 = mla.get_weight @layers.1.mlp.experts.down_proj : !mla.weight<8x16x12xbf16>
  %e_1 = mla.experts %y_1, %idx_1, %rw_1, %w30, %w31, %w32 : (tensor<?x16xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<8x12x16xbf16>, !mla.weight<8x12x16xbf16>, !mla.weight<8x16x12xbf16>) -> tensor<?x16xf32>
  %w33 = mla.get_weight @layers.1.mlp.shared_experts.gate_proj : !mla.weight<12x16xbf16>
  %sg_1 = mla.linear %y_1, %w33 : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  %w34 = mla.get_weight @layers.1.mlp.shared_experts.up_proj : !mla.weight<12x16xbf16>
  %su_1 = mla.linear %y_1, %w34 : (tensor<?x16xf32>, !mla.weight<12x16xbf16>) -> tensor<?x12xf32>
  %ss_1 = mla.swiglu %sg_1, %su_1 : tensor<?x12xf32>
  %w35 = mla.get_weight @layers.1.mlp.shared_experts.down_proj : !mla.weight<16x12xbf16>
  %sd_1 = mla.linear %ss_1, %w35 : (tensor<?x12xf32>, !mla.weight<16x12xbf16>) -> tensor<?x16xf32>
  // CHECK: %[[M1:.*]] = mla.moe %[[Y1]], %{{.*}} bias %{{.*}} experts %{{.*}} shared %{{.*}} routing <topk = 2, groups = 4, topk_groups = 2, {{.*}}>
  %m_1 = mla.add %e_1, %sd_1 : tensor<?x16xf32>
  // CHECK: %[[H2:.*]] = mla.add %[[HA1]], %[[M1]]
  %h2 = mla.add %h1_1, %m_1 : tensor<?x16xf32>
  // CHECK: %[[N:.*]] = mla.rms_norm %[[H2]]
  // CHECK: %[[LOGITS:.*]] = mla.lm_head %[[N]]
  // CHECK: return %[[LOGITS]]
  %w36 = mla.get_weight @norm : !mla.weight<16xbf16>
  %n = mla.rms_norm %h2, %w36 {eps = 0.125} : (tensor<?x16xf32>, !mla.weight<16xbf16>) -> tensor<?x16xf32>
  %w37 = mla.get_weight @lm_head : !mla.weight<32x16xbf16>
  %logits = mla.lm_head %n, %w37, %batch : (tensor<?x16xf32>, !mla.weight<32x16xbf16>, !mla.batch) -> tensor<?x32xf32>
  return %logits : tensor<?x32xf32>
}
