// RUN: mla-opt %s -mla-set-cache-format='format=bf16' | FileCheck %s --check-prefixes=CHECK,BF16
// RUN: mla-opt %s -mla-set-cache-format='format=f16' | FileCheck %s --check-prefixes=CHECK,F16
// RUN: mla-opt %s -mla-set-cache-format | FileCheck %s --check-prefixes=CHECK,F32
// RUN: mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=0.5,0.0125' | FileCheck %s --check-prefixes=CHECK,EACH
// RUN: mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=0.25' | FileCheck %s --check-prefixes=CHECK,ONE
// RUN: mla-opt %s -mla-set-cache-format='format=fp8_e4m3 scales=0.25' -mla-set-cache-format='format=f32' | FileCheck %s --check-prefixes=CHECK,F32

// Tests that declarations, the values made of them and what their writes give
// change together, each cache with its own scale, in the order of declaration.
// BF16: mla.cache @layers.0 : !mla.cache<latent, 8xbf16>{{$}}
// F16: mla.cache @layers.0 : !mla.cache<latent, 8xf16>{{$}}
// F32: mla.cache @layers.0 : !mla.cache<latent, 8xf32>{{$}}
// EACH: mla.cache @layers.0 : !mla.cache<latent, 8xfp8_e4m3> {scale = 5.000000e-01 : f32}
// ONE: mla.cache @layers.0 : !mla.cache<latent, 8xfp8_e4m3> {scale = 2.500000e-01 : f32}
mla.cache @layers.0 : !mla.cache<latent, 8xf32>

// Tests that expanded caches and the indexer's stay as they are; they have no
// scale among the scales.
// CHECK: mla.cache @expanded : !mla.cache<expanded, 28xf32>{{$}}
mla.cache @expanded : !mla.cache<expanded, 28xf32>
// CHECK: mla.cache @index : !mla.cache<index, 8xf32>{{$}}
mla.cache @index : !mla.cache<index, 8xf32>

// Tests that a format which a cache has before does not matter.
// BF16: mla.cache @layers.1 : !mla.cache<latent, 8xbf16>{{$}}
// F16: mla.cache @layers.1 : !mla.cache<latent, 8xf16>{{$}}
// F32: mla.cache @layers.1 : !mla.cache<latent, 8xf32>{{$}}
// EACH: mla.cache @layers.1 : !mla.cache<latent, 8xfp8_e4m3> {scale = 1.250000e-02 : f32}
// ONE: mla.cache @layers.1 : !mla.cache<latent, 8xfp8_e4m3> {scale = 2.500000e-01 : f32}
mla.cache @layers.1 : !mla.cache<latent, 8xfp8_e4m3> {scale = 3.0 : f32}

// CHECK-LABEL: func.func @step
func.func @step(%x: tensor<?x8xf32>, %b: !mla.batch, %n: !mla.weight<4xbf16>, %cs: tensor<?x4xf32>, %q: tensor<?x16xf32>, %eq: tensor<?x24xf32>, %wide: tensor<?x28xf32>) {
  // BF16: %[[C0:.*]] = mla.get_cache @layers.0 : !mla.cache<latent, 8xbf16>
  // BF16: %[[W0:.*]] = mla.latent_cache_write {{.*}}%[[C0]]{{.*}} -> !mla.cache<latent, 8xbf16>
  // BF16: mla.latent_attention {{.*}}%[[W0]]{{.*}}!mla.cache<latent, 8xbf16>
  // EACH: mla.get_cache @layers.0 : !mla.cache<latent, 8xfp8_e4m3>
  // EACH: mla.latent_cache_write {{.*}} -> !mla.cache<latent, 8xfp8_e4m3>
  // EACH: mla.latent_attention {{.*}}!mla.cache<latent, 8xfp8_e4m3>
  %c0 = mla.get_cache @layers.0 : !mla.cache<latent, 8xf32>
  %w0 = mla.latent_cache_write %x, %n, %cs, %c0, %b {eps = 0.5, interleaved = true} : (tensor<?x8xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> !mla.cache<latent, 8xf32>
  %a0 = mla.latent_attention %q, %w0, %b {heads = 2, kv_lora = 4, scale = 0.25} : (tensor<?x16xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> tensor<?x8xf32>

  // A write of a write, and a cache that is read without one.
  // BF16-COUNT-2: mla.latent_cache_write {{.*}} -> !mla.cache<latent, 8xbf16>
  // BF16: mla.get_cache @layers.1 : !mla.cache<latent, 8xbf16>
  // BF16: mla.latent_attention {{.*}}!mla.cache<latent, 8xbf16>
  %c1 = mla.get_cache @layers.1 : !mla.cache<latent, 8xfp8_e4m3>
  %w1 = mla.latent_cache_write %x, %n, %cs, %c1, %b {eps = 0.5, interleaved = true} : (tensor<?x8xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>, !mla.cache<latent, 8xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 8xfp8_e4m3>
  %w2 = mla.latent_cache_write %x, %n, %cs, %w1, %b {eps = 0.5, interleaved = true} : (tensor<?x8xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>, !mla.cache<latent, 8xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 8xfp8_e4m3>
  %c2 = mla.get_cache @layers.1 : !mla.cache<latent, 8xfp8_e4m3>
  %a1 = mla.latent_attention %q, %c2, %b {heads = 2, kv_lora = 4, scale = 0.25} : (tensor<?x16xf32>, !mla.cache<latent, 8xfp8_e4m3>, !mla.batch) -> tensor<?x8xf32>

  // CHECK: mla.get_cache @expanded : !mla.cache<expanded, 28xf32>
  // CHECK: mla.cache_write {{.*}} -> !mla.cache<expanded, 28xf32>
  // CHECK: mla.attention {{.*}}!mla.cache<expanded, 28xf32>
  %e0 = mla.get_cache @expanded : !mla.cache<expanded, 28xf32>
  %e1 = mla.cache_write %e0, %b, %wide : (!mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x28xf32>) -> !mla.cache<expanded, 28xf32>
  %e2 = mla.attention %eq, %e1, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  // CHECK: mla.get_cache @index : !mla.cache<index, 8xf32>
  // CHECK: mla.cache_write {{.*}} -> !mla.cache<index, 8xf32>
  %i0 = mla.get_cache @index : !mla.cache<index, 8xf32>
  %i1 = mla.cache_write %i0, %b, %x : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x8xf32>) -> !mla.cache<index, 8xf32>
  return
}
