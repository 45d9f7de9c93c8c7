// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4 | FileCheck %s

// Tests that ops that differ in a constant, a format or a shape do not share a
// kernel: whatever is compiled into a kernel is in its name.

mla.weight @square : !mla.weight<8x8xbf16> from "square"
mla.weight @f32 : !mla.weight<8xf32> from "f32"
mla.weight @f16 : !mla.weight<8xf16> from "f16"
mla.cache @latent : !mla.cache<latent, 8xf32>

// CHECK: mla.program
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x8xf32> {
  %square = mla.get_weight @square : !mla.weight<8x8xbf16>
  %f32 = mla.get_weight @f32 : !mla.weight<8xf32>
  %f16 = mla.get_weight @f16 : !mla.weight<8xf16>
  %cache = mla.get_cache @latent : !mla.cache<latent, 8xf32>
  %x = mla.embedding %ids, %square : (tensor<?xi32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>

  // CHECK: mla.launch @[[N0:rms_norm_[a-zA-Z0-9_]+]] grid
  %n0 = mla.rms_norm %x, %f32 {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[N1:rms_norm_[a-zA-Z0-9_]+]] grid
  %n1 = mla.rms_norm %x, %f32 {eps = 1.0e-5} : (tensor<?x8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[N2:rms_norm_[a-zA-Z0-9_]+]] grid
  %n2 = mla.rms_norm %x, %f16 {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xf16>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[N3:rms_norm_[a-zA-Z0-9_]+]] grid
  %n3 = mla.rms_norm %x, %f32 {eps = 1.0000001e-6} : (tensor<?x8xf32>, !mla.weight<8xf32>) -> tensor<?x8xf32>

  // CHECK: mla.launch @[[E0:rotary_embedding_[a-zA-Z0-9_]+]] grid
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  // CHECK: mla.launch @[[E1:rotary_embedding_[a-zA-Z0-9_]+]] grid
  %e1 = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.25>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  // CHECK: mla.launch @[[E2:rotary_embedding_[a-zA-Z0-9_]+]] grid
  %e2 = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.5} : (!mla.batch) -> tensor<?x4xf32>

  // CHECK: mla.launch @[[R0:rope_[a-zA-Z0-9_]+]] grid
  %r0 = mla.rope %x, %cs {head_dim = 8, offset = 0, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[R1:rope_[a-zA-Z0-9_]+]] grid
  %r1 = mla.rope %x, %cs {head_dim = 8, offset = 0, interleaved = false} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[R2:rope_[a-zA-Z0-9_]+]] grid
  %r2 = mla.rope %x, %cs {head_dim = 8, offset = 4, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>
  // CHECK: mla.launch @[[R3:rope_[a-zA-Z0-9_]+]] grid
  %r3 = mla.rope %x, %cs {head_dim = 4, offset = 0, interleaved = true} : (tensor<?x8xf32>, tensor<?x4xf32>) -> tensor<?x8xf32>

  // CHECK: mla.launch @[[A0:latent_attention_[a-zA-Z0-9_]+]] grid
  %a0 = mla.latent_attention %x, %cache, %b {heads = 1, kv_lora = 4, scale = 0.25} : (tensor<?x8xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> tensor<?x4xf32>
  // CHECK: mla.launch @[[A1:latent_attention_[a-zA-Z0-9_]+]] grid
  %a1 = mla.latent_attention %x, %cache, %b {heads = 1, kv_lora = 4, scale = 0.26} : (tensor<?x8xf32>, !mla.cache<latent, 8xf32>, !mla.batch) -> tensor<?x4xf32>

  %logits = mla.lm_head %x, %square, %b : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  return %logits : tensor<?x8xf32>
}

// An op whose kernel was there already would have made no function, and its line
// would find none behind the line before.
// CHECK: module @kernels
// CHECK: func.func @[[N0]](
// CHECK: func.func @[[N1]](
// CHECK: func.func @[[N2]](
// CHECK: func.func @[[N3]](
// CHECK: func.func @[[E0]](
// CHECK: func.func @[[E1]](
// CHECK: func.func @[[E2]](
// CHECK: func.func @[[R0]](
// CHECK: func.func @[[R1]](
// CHECK: func.func @[[R2]](
// CHECK: func.func @[[R3]](
// CHECK: func.func @[[A0]](
// CHECK: func.func @[[A1]](
