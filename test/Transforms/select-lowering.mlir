// RUN: mla-opt %s -mla-select-lowering -mla-verify-selected | FileCheck %s
// RUN: mla-opt %s -mla-select-lowering=target=host | FileCheck %s

// Tests that every tensor-level op gets the host's lowering for it, and that
// declarations and values made of them get none.
// CHECK: mla.weight @norm : !mla.weight<8xf16> from "norm"{{$}}
mla.weight @norm : !mla.weight<8xf16> from "norm"
// CHECK: mla.cache @index : !mla.cache<index, 8xf32>{{$}}
mla.cache @index : !mla.cache<index, 8xf32>

// CHECK-LABEL: func.func @linear_family
func.func @linear_family(%ids: tensor<?xi32>, %b: !mla.batch, %m: !mla.weight<8x8xbf16>, %v: !mla.weight<8xf32>) {
  // CHECK: mla.get_weight @norm : !mla.weight<8xf16>{{$}}
  %n = mla.get_weight @norm : !mla.weight<8xf16>
  // CHECK: mla.embedding {{.*}}lowering = "host.embedding"
  %x = mla.embedding %ids, %m : (tensor<?xi32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.rms_norm {{.*}}lowering = "host.rms_norm"
  %0 = mla.rms_norm %x, %n {eps = 0.5} : (tensor<?x8xf32>, !mla.weight<8xf16>) -> tensor<?x8xf32>
  // CHECK: mla.layer_norm {{.*}}lowering = "host.layer_norm"
  %1 = mla.layer_norm %x, %v, %v {eps = 0.5} : (tensor<?x8xf32>, !mla.weight<8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  // CHECK: mla.linear {{.*}}lowering = "host.linear"
  %2 = mla.linear %x, %m : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.joined_linear {{.*}}lowering = "host.joined_linear"
  %3:2 = mla.joined_linear %x, %m, %m : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.weight<8x8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  // CHECK: mla.gated_linear {{.*}}lowering = "host.gated_linear"
  %4 = mla.gated_linear %x, %m, %m : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.swiglu {{.*}}lowering = "host.swiglu"
  %5 = mla.swiglu %0, %1 : tensor<?x8xf32>
  // CHECK: mla.add {{.*}}lowering = "host.add"
  %6 = mla.add %0, %1 : tensor<?x8xf32>
  // CHECK: mla.split {{.*}}lowering = "host.split"
  %7:2 = mla.split %x : (tensor<?x8xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
  // CHECK: mla.lm_head {{.*}}lowering = "host.lm_head"
  %8 = mla.lm_head %x, %m, %b : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  return
}

// CHECK-LABEL: func.func @cache_family
func.func @cache_family(%x: tensor<?x8xf32>, %b: !mla.batch, %n: !mla.weight<4xbf16>, %c: !mla.cache<latent, 8xf32>) {
  // CHECK: mla.get_cache @index : !mla.cache<index, 8xf32>{{$}}
  %i = mla.get_cache @index : !mla.cache<index, 8xf32>
  // CHECK: mla.rotary_embedding {{.*}}lowering = "host.rotary_embedding"
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  // CHECK: mla.rope {{.*}}lowering = "host.rope"
  %0 = mla.rope %x, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  // CHECK: mla.cache_write {{.*}}lowering = "host.cache_write"
  %1 = mla.cache_write %i, %b, %0 : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x8xf32>) -> !mla.cache<index, 8xf32>
  // CHECK: mla.latent_cache_write {{.*}}lowering = "host.latent_cache_write"
  %2 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 0.5, interleaved = true} : (tensor<?x8xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> !mla.cache<latent, 8xf32>
  return
}

// CHECK-LABEL: func.func @attention_family
func.func @attention_family(%q: tensor<?x24xf32>, %e: !mla.cache<expanded, 28xf32>, %b: !mla.batch, %w: !mla.weight<24x16xbf16>, %cs: tensor<?x4xf32>, %l: !mla.cache<latent, 20xf32>, %iw: tensor<?x3xf32>, %i: !mla.cache<index, 8xf32>) {
  // CHECK: mla.indexer {{.*}}lowering = "host.indexer"
  %s = mla.indexer %q, %iw, %i, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  // CHECK: mla.attention {{.*}}lowering = "host.attention"
  %0 = mla.attention %q, %e, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  // CHECK: mla.absorb_query {{.*}}lowering = "host.absorb_query"
  %1 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  // CHECK: mla.latent_attention {{.*}}lowering = "host.latent_attention"
  %2 = mla.latent_attention %1, %l, %b selected %s {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x32xf32>
  // CHECK: mla.expand_value {{.*}}lowering = "host.expand_value"
  %3 = mla.expand_value %2, %w {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>
  return
}

#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.0 : f64>
// CHECK-LABEL: func.func @moe_family
func.func @moe_family(%x: tensor<?x8xf32>, %l: tensor<?x4xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // CHECK: mla.route {{.*}}lowering = "host.route"
  %i, %w = mla.route %l routing #routing : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts {{.*}}lowering = "host.experts"
  %0 = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.moe {{.*}}lowering = "host.moe"
  %1 = mla.moe %x, %r experts %g, %g, %d routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// Tests that an earlier choice is replaced.
// CHECK-LABEL: func.func @again
func.func @again(%x: tensor<?x8xf32>) {
  // CHECK: mla.add {{.*}}lowering = "host.add"
  %0 = mla.add %x, %x {lowering = "sm120.add"} : tensor<?x8xf32>
  return
}
