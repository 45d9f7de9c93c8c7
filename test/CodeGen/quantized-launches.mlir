// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4 -mla-verify-lowered | FileCheck %s

// Tests what an FP8 latent cache adds to its launches: to the write the port
// that counts what was cut off and the scale, to attention the scale alone. A
// scale is the bits of its f32: 1011666125 is 0x3c4ccccd, 0.0125, and
// 1056964608 is 0x3f000000, 0.5. Weights in parts are operands as any.

mla.weight @table : !mla.weight<100x32xbf16> from "table"
mla.weight @norm : !mla.weight<16xbf16> from "norm"
mla.weight @blocks : !mla.weight<32x32xfp8_block> from "blocks" scales ["blocks_scale_inv"]
mla.weight @head : !mla.weight<300x32xnvfp4> from "head" scales ["head_scale", "head_scale_2"]
mla.cache @first : !mla.cache<latent, 32xfp8_e4m3> {scale = 1.25e-02 : f32}
mla.cache @second : !mla.cache<latent, 32xfp8_e4m3> {scale = 0.5 : f32}
mla.cache @half : !mla.cache<latent, 32xbf16>

// One port for all caches; it comes first, as ports do.
// CHECK: mla.program @step4
// CHECK: %[[SATURATED:.*]] = mla.port "saturated" : !mla.buffer<["tokens"], i32>
// CHECK-NOT: mla.port "saturated"
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x300xf32> {
  %table = mla.get_weight @table : !mla.weight<100x32xbf16>
  %norm = mla.get_weight @norm : !mla.weight<16xbf16>
  %x = mla.embedding %ids, %table : (tensor<?xi32>, !mla.weight<100x32xbf16>) -> tensor<?x32xf32>
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5, 0.25, 0.125, 1.0, 0.5, 0.25, 0.125>, factor = 1.0} : (!mla.batch) -> tensor<?x16xf32>

  // CHECK: %[[FIRST:.*]] = mla.get_cache @first
  // CHECK: mla.launch @[[WRITE:latent_cache_write_[A-Za-z0-9_]+]] grid "tokens"({{.*}}, %[[FIRST]], %[[SATURATED]] : {{.*}}) scalars ["pages", "1011666125"]
  %c0 = mla.get_cache @first : !mla.cache<latent, 32xfp8_e4m3>
  %w0 = mla.latent_cache_write %x, %norm, %cs, %c0, %b {eps = 0.5, interleaved = true} : (tensor<?x32xf32>, !mla.weight<16xbf16>, tensor<?x16xf32>, !mla.cache<latent, 32xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 32xfp8_e4m3>
  // Another scale is no other kernel.
  // CHECK: %[[SECOND:.*]] = mla.get_cache @second
  // CHECK: mla.launch @[[WRITE]] grid "tokens"({{.*}}, %[[SECOND]], %[[SATURATED]] : {{.*}}) scalars ["pages", "1056964608"]
  %c1 = mla.get_cache @second : !mla.cache<latent, 32xfp8_e4m3>
  %w1 = mla.latent_cache_write %x, %norm, %cs, %c1, %b {eps = 0.5, interleaved = true} : (tensor<?x32xf32>, !mla.weight<16xbf16>, tensor<?x16xf32>, !mla.cache<latent, 32xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 32xfp8_e4m3>
  // A cache in 16 bits needs neither.
  // CHECK: %[[HALF:.*]] = mla.get_cache @half
  // CHECK: mla.launch @latent_cache_write_{{[A-Za-z0-9_]+}} grid "tokens"({{.*}}, %[[HALF]] : {{.*}}) scalars ["pages"]
  %c2 = mla.get_cache @half : !mla.cache<latent, 32xbf16>
  %w2 = mla.latent_cache_write %x, %norm, %cs, %c2, %b {eps = 0.5, interleaved = true} : (tensor<?x32xf32>, !mla.weight<16xbf16>, tensor<?x16xf32>, !mla.cache<latent, 32xbf16>, !mla.batch) -> !mla.cache<latent, 32xbf16>

  // CHECK: %[[A0:.*]] = mla.workspace
  // CHECK: mla.launch @[[ATTENTION:latent_attention_[A-Za-z0-9_]+]] grid {{.*}}, %[[FIRST]], %[[A0]] : {{.*}}) scalars ["pages", "1011666125"]
  %a0 = mla.latent_attention %x, %w0, %b {heads = 1, kv_lora = 16, scale = 0.25} : (tensor<?x32xf32>, !mla.cache<latent, 32xfp8_e4m3>, !mla.batch) -> tensor<?x16xf32>
  // CHECK: %[[A1:.*]] = mla.workspace
  // CHECK: mla.launch @[[ATTENTION]] grid {{.*}}, %[[SECOND]], %[[A1]] : {{.*}}) scalars ["pages", "1056964608"]
  %a1 = mla.latent_attention %x, %w1, %b {heads = 1, kv_lora = 16, scale = 0.25} : (tensor<?x32xf32>, !mla.cache<latent, 32xfp8_e4m3>, !mla.batch) -> tensor<?x16xf32>
  // CHECK: mla.launch @latent_attention_{{.*}}, %[[HALF]], {{.*}}) scalars ["pages"]
  %a2 = mla.latent_attention %x, %w2, %b {heads = 1, kv_lora = 16, scale = 0.25} : (tensor<?x32xf32>, !mla.cache<latent, 32xbf16>, !mla.batch) -> tensor<?x16xf32>

  // CHECK: %[[BLOCKS:.*]] = mla.get_weight @blocks
  %blocks = mla.get_weight @blocks : !mla.weight<32x32xfp8_block>
  // CHECK: %[[HEAD:.*]] = mla.get_weight @head
  %head = mla.get_weight @head : !mla.weight<300x32xnvfp4>
  // CHECK: %[[Y:.*]] = mla.workspace
  // CHECK: mla.launch @linear_32_fp8_block_32 grid "4"(%{{.*}}, %[[BLOCKS]], %[[Y]] : {{.*}}) scalars ["tokens"]
  %y = mla.linear %x, %blocks : (tensor<?x32xf32>, !mla.weight<32x32xfp8_block>) -> tensor<?x32xf32>
  // CHECK: mla.launch @lm_head_{{[a-z0-9_]*}}nvfp4{{[a-z0-9_]*}} grid "13"(%[[Y]], %[[HEAD]],
  %logits = mla.lm_head %y, %head, %b : (tensor<?x32xf32>, !mla.weight<300x32xnvfp4>, !mla.batch) -> tensor<?x300xf32>
  return %logits : tensor<?x300xf32>
}

// CHECK: module @kernels
// CHECK: func.func @[[WRITE]]({{.*}}mla.access = ["read", "read", "read", "read", "read", "read", "write", "readwrite"], mla.scalars = 2
// CHECK: func.func @[[ATTENTION]]({{.*}}mla.access = ["read", "read", "read", "read", "read", "write"], mla.scalars = 2

// Tests that a kernel finds the parts of a weight in a table of addresses.
// CHECK: func.func @linear_32_fp8_block_32(%[[ARGS:.*]]: !llvm.ptr,
// CHECK: %[[AT:.*]] = llvm.getelementptr %[[ARGS]][1] : (!llvm.ptr) -> !llvm.ptr, i64
// CHECK: %[[PARTS:.*]] = llvm.load %[[AT]] : !llvm.ptr -> !llvm.ptr
// CHECK: %[[VALUES:.*]] = llvm.getelementptr %[[PARTS]][%{{.*}}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
// CHECK: llvm.load %[[VALUES]] : !llvm.ptr -> !llvm.ptr
// CHECK: %[[AGAIN:.*]] = llvm.getelementptr %[[ARGS]][1] : (!llvm.ptr) -> !llvm.ptr, i64
// CHECK: %[[TABLE:.*]] = llvm.load %[[AGAIN]] : !llvm.ptr -> !llvm.ptr
// CHECK: %[[SCALES:.*]] = llvm.getelementptr %[[TABLE]][%{{.*}}] : (!llvm.ptr, i64) -> !llvm.ptr, !llvm.ptr
// CHECK: llvm.load %[[SCALES]] : !llvm.ptr -> !llvm.ptr
