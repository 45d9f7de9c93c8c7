// RUN: mla-opt %s -mla-select-lowering=target=sm_120a -verify-diagnostics -split-input-file
// RUN: not mla-opt %s "-mla-select-lowering=target=sm_120a lower=latent_attention=split_kv_deep" -split-input-file 2>&1 | FileCheck %s --check-prefix=DEEP
// RUN: not mla-opt %s "-mla-select-lowering=target=sm_120a lower=linear=linear_huge" -split-input-file 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not mla-opt %s "-mla-select-lowering=target=sm_120a lower=matmul=linear_tile" -split-input-file 2>&1 | FileCheck %s --check-prefix=OP
// RUN: not mla-opt %s -mla-select-lowering=target=b200x8 -split-input-file 2>&1 | FileCheck %s --check-prefix=SM100
// RUN: not mla-opt %s "-mla-select-lowering=target=sm_120a activations=int8" -split-input-file 2>&1 | FileCheck %s --check-prefix=ACTIVATIONS

// Tests that an override that cannot be is refused with what it lacks, and one with a
// wrong name with those that there are.
// DEEP: 'mla.latent_attention' op cannot be lowered as --lower latent_attention=split_kv_deep demands: needs 108544 bytes of shared memory, found 101376 on sm_120a
// NAME: --lower linear=linear_huge: expected OP=LOWERING, where LOWERING is one of linear_stream, linear_tile, linear_large, linear_large_fp4, linear_f32
// OP: --lower matmul=linear_tile: expected OP=LOWERING, but sm_120a lowers no op 'matmul'
// SM100: no lowering on target 'sm_100a': sm_100a.split_kv: needs a target that code is generated for, found sm_100a
// ACTIVATIONS: expected activations in 16bit or fp4, found 'int8'
func.func @attention(%q: tensor<?x36864xf32>, %c: !mla.cache<latent, 576xbf16>, %b: !mla.batch) {
  %0 = mla.latent_attention %q, %c, %b {heads = 64, kv_lora = 512, scale = 0.25} : (tensor<?x36864xf32>, !mla.cache<latent, 576xbf16>, !mla.batch) -> tensor<?x32768xf32>
  return
}

// -----

// Tests that a cache in f32 is refused by every candidate, with what to do about it.
func.func @cache(%q: tensor<?x36864xf32>, %c: !mla.cache<latent, 576xf32>, %b: !mla.batch) {
  // expected-error@+1 {{'mla.latent_attention' op has no lowering on target 'sm_120a': sm_120a.split_kv: needs a latent cache in bf16, f16 or fp8_e4m3, found f32 (choose one with --kv-cache-dtype)}}
  %0 = mla.latent_attention %q, %c, %b {heads = 64, kv_lora = 512, scale = 0.25} : (tensor<?x36864xf32>, !mla.cache<latent, 576xf32>, !mla.batch) -> tensor<?x32768xf32>
  return
}

// -----

// Tests that experts in f32 are refused.
func.func @experts(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xf32>, %d: !mla.weight<4x8x16xf32>) {
  // expected-error@+1 {{sm_120a.experts_stream: needs experts in bf16, fp8_block, nvfp4 or int4_g32, found f32}}
  %0 = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xf32>, !mla.weight<4x16x8xf32>, !mla.weight<4x8x16xf32>) -> tensor<?x8xf32>
  return
}
