// RUN: mla-opt %s | mla-opt | FileCheck %s

// Tests that each storage format of a weight and each rank is parsed and
// printed.
// CHECK-LABEL: func.func @weights
func.func @weights(
    // CHECK-SAME: !mla.weight<3xf32>
    %a: !mla.weight<3xf32>,
    // CHECK-SAME: !mla.weight<3x4xbf16>
    %b: !mla.weight<3x4xbf16>,
    // CHECK-SAME: !mla.weight<3x4xf16>
    %c: !mla.weight<3x4xf16>,
    // CHECK-SAME: !mla.weight<256x384xfp8_block>
    %d: !mla.weight<256x384xfp8_block>,
    // CHECK-SAME: !mla.weight<8x16x32xnvfp4>
    %e: !mla.weight<8x16x32xnvfp4>,
    // CHECK-SAME: !mla.weight<8x16x32xint4_g32>
    %f: !mla.weight<8x16x32xint4_g32>) {
  return
}

// Tests that each kind of cache and each of its formats is parsed and printed.
// CHECK-LABEL: func.func @caches
func.func @caches(
    // CHECK-SAME: !mla.cache<expanded, 28xf32>
    %a: !mla.cache<expanded, 28xf32>,
    // CHECK-SAME: !mla.cache<latent, 12xbf16>
    %b: !mla.cache<latent, 12xbf16>,
    // CHECK-SAME: !mla.cache<index, 8xf16>
    %c: !mla.cache<index, 8xf16>,
    // CHECK-SAME: !mla.cache<latent, 576xfp8_e4m3>
    %d: !mla.cache<latent, 576xfp8_e4m3>) {
  return
}

// Tests that batches and buffers, of any rank and with expressions as
// dimensions, are parsed and printed.
// CHECK-LABEL: func.func @others
func.func @others(
    // CHECK-SAME: !mla.batch
    %a: !mla.batch,
    // CHECK-SAME: !mla.buffer<[], f32>
    %b: !mla.buffer<[], f32>,
    // CHECK-SAME: !mla.buffer<["tokens", "256"], bf16>
    %c: !mla.buffer<["tokens", "256"], bf16>,
    // CHECK-SAME: !mla.buffer<["min(tokens * 8, 384)", "ceildiv(pages, 2) + 1"], i32>
    %d: !mla.buffer<["min(tokens * 8, 384)", "ceildiv(pages, 2) + 1"], i32>) {
  return
}

// Tests that the routing attribute is parsed and printed with each of its
// words.
// CHECK-LABEL: func.func @routings
func.func @routings() attributes {
    // CHECK-SAME: a = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.500000e+00 : f64>
    a = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>,
    // CHECK-SAME: b = #mla.routing<topk = 6, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.000000e+00 : f64>
    b = #mla.routing<topk = 6, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.0 : f64>,
    // CHECK-SAME: c = #mla.routing<topk = 6, groups = 8, topk_groups = 3, scoring = softmax, method = group_limited_greedy, normalize = false, scale = 1.600000e+01 : f64>
    c = #mla.routing<topk = 6, groups = 8, topk_groups = 3, scoring = softmax, method = group_limited_greedy, normalize = false, scale = 16.0 : f64>} {
  return
}
