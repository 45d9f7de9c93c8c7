// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host='step-tokens=4,32 max-sequences=8' | FileCheck %s
// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host='step-tokens=4,32 max-sequences=8' | FileCheck %s --check-prefix=KERNELS
// RUN: mla-opt %s -mla-select-lowering -mla-lower-to-host | FileCheck %s --check-prefix=DEFAULT

// Tests that there is one program for each bound on tokens, with the same
// launches; that no more sequences are promised than tokens; and that the
// default bounds are 16 and 256 tokens.
// CHECK: mla.program @step4 attributes {max_outputs = 4 : i64, max_sequences = 4 : i64, max_tokens = 4 : i64}
// CHECK-COUNT-4: mla.launch
// CHECK-NOT: mla.launch
// CHECK: mla.program @step32 attributes {max_outputs = 32 : i64, max_sequences = 8 : i64, max_tokens = 32 : i64}
// CHECK-COUNT-4: mla.launch
// CHECK-NOT: mla.launch
// CHECK: module @kernels

// DEFAULT: mla.program @step16 attributes {max_outputs = 16 : i64, max_sequences = 16 : i64, max_tokens = 16 : i64}
// DEFAULT: mla.program @step256 attributes {max_outputs = 256 : i64, max_sequences = 64 : i64, max_tokens = 256 : i64}
// DEFAULT-NOT: mla.program

// Tests that ops of the same shape and format share a kernel, also between
// programs.
// KERNELS: module @kernels
// KERNELS: func.func @embedding_bf16_8(
// KERNELS: func.func @linear_8_bf16_8(
// KERNELS: func.func @lm_head_bf16_8x8(
// KERNELS-NOT: func.func

mla.weight @a : !mla.weight<8x8xbf16> from "a"
mla.weight @b : !mla.weight<8x8xbf16> from "b"

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x8xf32> {
  %a = mla.get_weight @a : !mla.weight<8x8xbf16>
  %b = mla.get_weight @b : !mla.weight<8x8xbf16>
  %x = mla.embedding %ids, %a : (tensor<?xi32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %y = mla.linear %x, %a : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %z = mla.linear %y, %b : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %logits = mla.lm_head %z, %b, %batch : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  return %logits : tensor<?x8xf32>
}
