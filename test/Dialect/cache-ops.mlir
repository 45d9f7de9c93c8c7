// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s

// Tests that caches are declared and become values.
// CHECK: mla.cache @layers.0.kv : !mla.cache<expanded, 28xf32>
mla.cache @layers.0.kv : !mla.cache<expanded, 28xf32>

// Tests that an FP8 cache has a scale.
// CHECK: mla.cache @layers.0.latent : !mla.cache<latent, 12xfp8_e4m3> {scale = 1.250000e-02 : f32}
mla.cache @layers.0.latent : !mla.cache<latent, 12xfp8_e4m3> {scale = 1.25e-02 : f32}

// CHECK-LABEL: func.func @get_cache
func.func @get_cache() -> !mla.cache<expanded, 28xf32> {
  // CHECK: mla.get_cache @layers.0.kv : !mla.cache<expanded, 28xf32>
  %0 = mla.get_cache @layers.0.kv : !mla.cache<expanded, 28xf32>
  return %0 : !mla.cache<expanded, 28xf32>
}

// CHECK-LABEL: func.func @rotary_embedding
// CHECK-SAME: (%[[B:.*]]: !mla.batch)
func.func @rotary_embedding(%b: !mla.batch) {
  // CHECK: mla.rotary_embedding %[[B]] {factor = 1.000000e+00 : f64, frequencies = array<f32: 1.000000e+00, 2.500000e-01>} : (!mla.batch) -> tensor<?x4xf32>
  %0 = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.25>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  return
}

// Tests rotations of the last part of several heads and of a whole one.
// CHECK-LABEL: func.func @rope
// CHECK-SAME: (%[[Q:.*]]: tensor<?x24xf32>, %[[K:.*]]: tensor<?x4xf32>, %[[CS:.*]]: tensor<?x4xf32>)
func.func @rope(%q: tensor<?x24xf32>, %k: tensor<?x4xf32>, %cs: tensor<?x4xf32>) {
  // CHECK: mla.rope %[[Q]], %[[CS]] {head_dim = 12 : i64, interleaved = true, offset = 8 : i64} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  %0 = mla.rope %q, %cs {head_dim = 12, offset = 8, interleaved = true} : (tensor<?x24xf32>, tensor<?x4xf32>) -> tensor<?x24xf32>
  // CHECK: mla.rope %[[K]], %[[CS]] {head_dim = 4 : i64, interleaved = false, offset = 0 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  %1 = mla.rope %k, %cs {head_dim = 4, offset = 0, interleaved = false} : (tensor<?x4xf32>, tensor<?x4xf32>) -> tensor<?x4xf32>
  return
}

// Tests writes of a row in one part and in two.
// CHECK-LABEL: func.func @cache_write
// CHECK-SAME: (%[[E:.*]]: !mla.cache<expanded, 28xf32>, %[[I:.*]]: !mla.cache<index, 4xbf16>, %[[B:.*]]: !mla.batch, %[[KV:.*]]: tensor<?x24xf32>, %[[K:.*]]: tensor<?x4xf32>)
func.func @cache_write(%e: !mla.cache<expanded, 28xf32>, %i: !mla.cache<index, 4xbf16>, %b: !mla.batch, %kv: tensor<?x24xf32>, %k: tensor<?x4xf32>) {
  // CHECK: mla.cache_write %[[E]], %[[B]], %[[KV]], %[[K]] : (!mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x24xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 28xf32>
  %0 = mla.cache_write %e, %b, %kv, %k : (!mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x24xf32>, tensor<?x4xf32>) -> !mla.cache<expanded, 28xf32>
  // CHECK: mla.cache_write %[[I]], %[[B]], %[[K]] : (!mla.cache<index, 4xbf16>, !mla.batch, tensor<?x4xf32>) -> !mla.cache<index, 4xbf16>
  %1 = mla.cache_write %i, %b, %k : (!mla.cache<index, 4xbf16>, !mla.batch, tensor<?x4xf32>) -> !mla.cache<index, 4xbf16>
  return
}

// CHECK-LABEL: func.func @latent_cache_write
// CHECK-SAME: (%[[X:.*]]: tensor<?x12xf32>, %[[N:.*]]: !mla.weight<8xbf16>, %[[CS:.*]]: tensor<?x4xf32>, %[[C:.*]]: !mla.cache<latent, 12xf32>, %[[B:.*]]: !mla.batch)
func.func @latent_cache_write(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xf32>, %b: !mla.batch) {
  // CHECK: mla.latent_cache_write %[[X]], %[[N]], %[[CS]], %[[C]], %[[B]] {eps = 1.250000e-01 : f64, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xf32>
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 0.125, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xf32>
  return
}

// Tests the batch that a rank's part of a cache sees.
// CHECK-LABEL: func.func @shard_batch
// CHECK-SAME: (%[[B:.*]]: !mla.batch)
func.func @shard_batch(%b: !mla.batch) {
  // CHECK: %{{.*}}, %{{.*}} = mla.shard_batch %[[B]] {ranks = 8 : i64}
  %read, %write = mla.shard_batch %b {ranks = 8 : i64}
  return
}
