// RUN: mla-opt %s "-mla-select-lowering=target=sm_120a step-tokens=1,8,128 max-context=4096" "-mla-lower-to-nvvm=target=sm_120a step-tokens=1,8,128 max-context=4096" -mla-verify-lowered -o %t
// RUN: FileCheck %s --input-file=%t
// RUN: FileCheck %s --input-file=%t --check-prefix=FEW
// RUN: FileCheck %s --input-file=%t --check-prefix=MANY
// RUN: mla-opt %s -mla-select-lowering=target=sm_120a "-mla-lower-to-nvvm=target=sm_120a step-tokens=1 sampling=false" | FileCheck %s --check-prefix=NOSAMPLING
// RUN: not mla-opt %s -mla-select-lowering=target=sm_90a -mla-lower-to-nvvm=target=sm_120a 2>&1 | FileCheck %s --check-prefix=OTHER
// RUN: not mla-opt %s -mla-select-lowering=target=sm_120a -mla-lower-to-nvvm=target=sm_100a 2>&1 | FileCheck %s --check-prefix=NONE

// Tests what the ops of a layer become for one token, a few, and a prompt: a norm
// is done by the linears that read it (one token), where rows are packed (many), or
// by itself; a sum by the linear whose result it adds; weights are read through
// views; values keep their names.

// OTHER: expected a lowering to sm_120a for step1, found sm_90a.embedding; run mla-select-lowering first
// NONE: expected a GPU target that kernels are made for, found 'sm_100a'

mla.weight @embed : !mla.weight<64x256xbf16> from "embed"
mla.weight @norm : !mla.weight<256xbf16> from "norm"
mla.weight @fp4 : !mla.weight<256x256xnvfp4> from "fp4" scales ["fp4.scale", "fp4.global"]
mla.weight @f32 : !mla.weight<256x256xf32> from "f32"

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %e = mla.get_weight @embed : !mla.weight<64x256xbf16>
  %n = mla.get_weight @norm : !mla.weight<256xbf16>
  %w = mla.get_weight @fp4 : !mla.weight<256x256xnvfp4>
  %f = mla.get_weight @f32 : !mla.weight<256x256xf32>
  %x = mla.embedding %ids, %e : (tensor<?xi32>, !mla.weight<64x256xbf16>) -> tensor<?x256xf32>
  %normed = mla.rms_norm %x, %n {eps = 1.0e-6} : (tensor<?x256xf32>, !mla.weight<256xbf16>) -> tensor<?x256xf32>
  %y = mla.linear %normed, %w : (tensor<?x256xf32>, !mla.weight<256x256xnvfp4>) -> tensor<?x256xf32>
  %sum = mla.add %x, %y : tensor<?x256xf32>
  %z = mla.linear %sum, %f : (tensor<?x256xf32>, !mla.weight<256x256xf32>) -> tensor<?x256xf32>
  %logits = mla.lm_head %z, %e, %batch : (tensor<?x256xf32>, !mla.weight<64x256xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}

// CHECK: mla.program @step1
// CHECK: mla.get_weight @embed {view = #mla.view<layout = rows, format = "bf16",
// CHECK: mla.workspace of "mla.embedding/embedding:0"
// CHECK: mla.launch @embedding_bf16_256
// CHECK-NOT: mla.launch @rms_norm
// CHECK: mla.get_weight @fp4 {view = #mla.view<layout = packed, format = "nvfp4",
// CHECK: mla.launch @linear_stream_nvfp4_256_256_1_norm_bf16_358637bd_residual grid
// CHECK-SAME: for "mla.linear" reads "37120"
// CHECK-NOT: mla.launch @add
// CHECK: mla.get_weight @f32 {view = #mla.view<layout = rows, format = "f32",
// CHECK: mla.launch @linear_f32_
// CHECK: mla.launch @linear_stream_bf16_64_256_1_outputs {{.*}} scalars ["outputs"]

// FEW: mla.program @step8
// FEW: mla.launch @rms_norm_bf16_256
// FEW: mla.launch @linear_tile_nvfp4_256_256_8_residual

// MANY: mla.program @prefill128 {{.*}}max_sequences = 8
// MANY-NOT: mla.launch @rms_norm
// MANY: mla.launch @pack_rows_{{.*}}norm
// MANY: mla.launch @linear_large_nvfp4_256_256
// MANY: mla.program @step128 {{.*}}max_sequences = 64

// One program more chooses tokens, from as many rows as a step has at most.
// CHECK: mla.program @sample attributes {max_outputs = 128 : i64, max_sequences = 128 : i64, max_tokens = 128 : i64, sampling}
// CHECK-DAG: [[LOGITS:%.*]] = mla.port "logits" : !mla.buffer<["outputs", "64"], f32>
// CHECK-DAG: [[NUMBERS:%.*]] = mla.port "sampling" : !mla.buffer<["outputs", "4"], f32>
// CHECK-DAG: [[TOPK:%.*]] = mla.port "top_k" : !mla.buffer<["outputs"], i32>
// CHECK-DAG: [[IDS:%.*]] = mla.port "sampled" : !mla.buffer<["outputs"], i32>
// CHECK: [[PARTIAL:%.*]] = mla.workspace : !mla.buffer<["outputs", "{{[0-9]+}}"], i32>
// CHECK: mla.launch @sample_slices_64 grid "outputs * 1"([[LOGITS]], [[NUMBERS]], [[TOPK]], [[PARTIAL]] :
// CHECK-SAME: for "sample"
// CHECK: mla.launch @sample_rows_64 grid "outputs"([[LOGITS]], [[NUMBERS]], [[TOPK]], [[PARTIAL]], [[IDS]] :
// NOSAMPLING-NOT: sample

// CHECK: module @kernels
// CHECK: llvm.func @embedding_bf16_256({{.*}}mla.access = ["read", "read", "write"]
// CHECK: nvvm.griddepcontrol wait
