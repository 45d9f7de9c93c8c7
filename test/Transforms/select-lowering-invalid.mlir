// RUN: mla-opt %s -mla-select-lowering -verify-diagnostics -split-input-file
// RUN: not mla-opt %s -mla-select-lowering=target=tpu -split-input-file 2>&1 | FileCheck %s

// Tests that a target that does not exist is refused with those that do.
// CHECK: unknown target 'tpu', expected one of 'host'

// Tests that a weight in blocks of FP8 is refused, with the format found.
func.func @linear_fp8(%x: tensor<?x256xf32>, %w: !mla.weight<128x256xfp8_block>) {
  // expected-error@+1 {{'mla.linear' op has no lowering on target 'host': host.linear: needs weights in f32, bf16 or f16, found fp8_block}}
  %0 = mla.linear %x, %w : (tensor<?x256xf32>, !mla.weight<128x256xfp8_block>) -> tensor<?x128xf32>
  return
}

// -----

// Tests that all ops are looked at, and that one weight of several suffices.
func.func @several(%x: tensor<?x32xf32>, %a: !mla.weight<32x32xnvfp4>, %b: !mla.weight<32x32xbf16>) {
  // expected-error@+1 {{'mla.gated_linear' op has no lowering on target 'host': host.gated_linear: needs weights in f32, bf16 or f16, found nvfp4}}
  %0 = mla.gated_linear %x, %b, %a : (tensor<?x32xf32>, !mla.weight<32x32xbf16>, !mla.weight<32x32xnvfp4>) -> tensor<?x32xf32>
  %1 = mla.linear %x, %b : (tensor<?x32xf32>, !mla.weight<32x32xbf16>) -> tensor<?x32xf32>
  // expected-error@+1 {{'mla.joined_linear' op has no lowering on target 'host': host.joined_linear: needs weights in f32, bf16 or f16, found nvfp4}}
  %2:2 = mla.joined_linear %x, %b, %a : (tensor<?x32xf32>, !mla.weight<32x32xbf16>, !mla.weight<32x32xnvfp4>) -> (tensor<?x32xf32>, tensor<?x32xf32>)
  return
}

// -----

// Tests that int4 experts are refused.
func.func @experts_int4(%x: tensor<?x32xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x64x32xint4_g32>, %d: !mla.weight<4x32x64xint4_g32>) {
  // expected-error@+1 {{host.experts: needs weights in f32, bf16 or f16, found int4_g32}}
  %0 = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x32xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x64x32xint4_g32>, !mla.weight<4x64x32xint4_g32>, !mla.weight<4x32x64xint4_g32>) -> tensor<?x32xf32>
  return
}

// -----

// Tests that a cache in FP8 is refused by what writes and by what reads it.
func.func @cache_fp8(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xfp8_e4m3>, %b: !mla.batch, %q: tensor<?x24xf32>) {
  // expected-error@+1 {{host.latent_cache_write: needs caches in f32, found fp8_e4m3}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 0.5, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 12xfp8_e4m3>
  // expected-error@+1 {{host.latent_attention: needs caches in f32, found fp8_e4m3}}
  %1 = mla.latent_attention %q, %0, %b {heads = 2, kv_lora = 8, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<latent, 12xfp8_e4m3>, !mla.batch) -> tensor<?x16xf32>
  return
}
