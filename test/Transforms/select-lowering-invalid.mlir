// RUN: mla-opt %s -mla-select-lowering -verify-diagnostics -split-input-file
// RUN: not mla-opt %s -mla-select-lowering=target=tpu -split-input-file 2>&1 | FileCheck %s

// Tests that a target that does not exist is refused with those that do.
// CHECK: no target is called 'tpu' (host, sm_120a, sm_90a, sm_100a): machine 'tpu': expected a file or one of {{.*}}h200x1

// Tests that a table of embeddings in blocks of FP8 is refused, with the format
// found: rows of it are looked up, not multiplied.
func.func @embedding_fp8(%ids: tensor<?xi32>, %w: !mla.weight<128x256xfp8_block>) {
  // expected-error@+1 {{'mla.embedding' op has no lowering on target 'host': host.embedding: needs weights in f32, bf16 or f16, found fp8_block}}
  %0 = mla.embedding %ids, %w : (tensor<?xi32>, !mla.weight<128x256xfp8_block>) -> tensor<?x256xf32>
  return
}

// -----

// Tests that all ops are looked at, and that caches which are not latent are
// refused in other formats than f32 by what writes and by what reads them.
func.func @caches(%k: tensor<?x24xf32>, %c: !mla.cache<expanded, 24xbf16>, %i: !mla.cache<index, 16xfp8_e4m3>, %b: !mla.batch, %q: tensor<?x32xf32>, %w: tensor<?x2xf32>) {
  // expected-error@+1 {{'mla.cache_write' op has no lowering on target 'host': host.cache_write: needs caches that are not latent in f32, found bf16}}
  %0 = mla.cache_write %c, %b, %k : (!mla.cache<expanded, 24xbf16>, !mla.batch, tensor<?x24xf32>) -> !mla.cache<expanded, 24xbf16>
  %1 = mla.add %k, %k : tensor<?x24xf32>
  // expected-error@+1 {{host.indexer: needs caches that are not latent in f32, found fp8_e4m3}}
  %2 = mla.indexer %q, %w, %i, %b {heads = 2, scale = 0.25, topk = 4} : (tensor<?x32xf32>, tensor<?x2xf32>, !mla.cache<index, 16xfp8_e4m3>, !mla.batch) -> tensor<?x4xi32>
  return
}
