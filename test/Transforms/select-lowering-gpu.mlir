// RUN: mla-opt %s -mla-select-lowering=target=sm_120a -mla-verify-selected=target=sm_120a | FileCheck %s
// RUN: mla-opt %s -mla-select-lowering=target=rtx-pro-6000x8-pcie5 | FileCheck %s
// RUN: mla-opt %s "-mla-select-lowering=target=sm_90a step-tokens=1,8,64,2048" | FileCheck %s --check-prefixes=CHECK,SM90
// RUN: mla-opt %s "-mla-select-lowering=target=sm_120a activations=fp4" | FileCheck %s --check-prefix=FP4
// RUN: mla-opt %s "-mla-select-lowering=target=sm_120a lower=linear=linear_tile" | FileCheck %s --check-prefix=OVERRIDE

// Each kind of reason for which a candidate is not taken.

// Tests that steps of one, of some and of many tokens get different kernels, and that
// each candidate says why it is not taken: the step's size, the format of the weights,
// an instruction that the target lacks, activations that nobody asked for, the cost.
// CHECK-LABEL: func.func @linear
// OVERRIDE-LABEL: func.func @linear
func.func @linear(%x: tensor<?x7168xf32>, %w: !mla.weight<2112x7168xnvfp4>) {
  // CHECK: mla.linear
  // CHECK-SAME: candidates = {prefill2048 = ["linear_large: {{[0-9.]+}} us, bound by
  // CHECK-SAME: "linear_stream: needs steps of one token, found up to 2048 tokens"
  // CHECK-SAME: "linear_tile: needs steps of up to 64 tokens, found up to 2048 tokens"
  // SM90-SAME: "linear_large_fp4: needs block-scaled fp4 products (mma.sync kind::mxf4nvf4), which sm_90a has not"
  // CHECK-SAME: "linear_f32: needs weights in f32 or f16, found nvfp4"
  // CHECK-SAME: step1 = ["linear_stream: {{[0-9.]+}} us, bound by
  // CHECK-SAME: "linear_tile: takes {{[0-9.]+}} us
  // CHECK-SAME: "linear_large: needs steps of more than 16 tokens, found one token"
  // CHECK-SAME: lowering = {prefill2048 = "sm_{{120a|90a}}.linear_large", step1 = "sm_{{120a|90a}}.linear_stream"
  // CHECK-SAME: step8 = "sm_{{120a|90a}}.linear_tile"
  // FP4: mla.linear {{.*}}prefill2048 = "sm_120a.linear_large_fp4"
  // An override decides where its lowering has all it needs, and nowhere else.
  // OVERRIDE: mla.linear
  // OVERRIDE-SAME: step1 = ["linear_tile: {{[0-9.]+}} us{{[^]]*}}"linear_stream: --lower linear=linear_tile is given"
  // OVERRIDE-SAME: lowering = {prefill2048 = "sm_120a.linear_large", step1 = "sm_120a.linear_tile"
  %0 = mla.linear %x, %w : (tensor<?x7168xf32>, !mla.weight<2112x7168xnvfp4>) -> tensor<?x2112xf32>
  return
}

// Tests that attention of 64 heads is refused the form that takes 108,544 bytes of
// shared memory on SM120, with both numbers, and not on SM90; and the form for 17 to
// 24 heads.
// CHECK-LABEL: func.func @attention
func.func @attention(%q: tensor<?x36864xf32>, %c: !mla.cache<latent, 576xbf16>, %b: !mla.batch) {
  // CHECK: mla.latent_attention
  // CHECK-SAME: step8 = [
  // CHECK-SAME: "split_kv_wide: needs 17 to 24 heads, found 64"
  // CHECK-SAME: "prefill: needs a program of prompts, found step8"
  // CHECK-SAME: lowering = {prefill2048 = "sm_{{120a|90a}}.prefill"
  %0 = mla.latent_attention %q, %c, %b {heads = 64, kv_lora = 512, scale = 0.25} : (tensor<?x36864xf32>, !mla.cache<latent, 576xbf16>, !mla.batch) -> tensor<?x32768xf32>
  return
}

// Tests that few heads are refused forms whose second team would have nothing to do,
// and an FP8 cache the form that has no registers for it.
// CHECK-LABEL: func.func @heads
func.func @heads(%q: tensor<?x11520xf32>, %few: tensor<?x4608xf32>, %c: !mla.cache<latent, 576xfp8_e4m3>, %b: !mla.batch) {
  // CHECK: mla.latent_attention
  // CHECK-SAME: "split_kv_teams: needs more than 16 heads for its second team, found 8"
  %0 = mla.latent_attention %few, %c, %b {heads = 8, kv_lora = 512, scale = 0.25} : (tensor<?x4608xf32>, !mla.cache<latent, 576xfp8_e4m3>, !mla.batch) -> tensor<?x4096xf32>
  // CHECK: mla.latent_attention
  // CHECK-SAME: "split_kv_wide: needs a latent cache in bf16 or f16, found fp8_e4m3 (--kv-cache-dtype bf16)"
  %1 = mla.latent_attention %q, %c, %b {heads = 20, kv_lora = 512, scale = 0.25} : (tensor<?x11520xf32>, !mla.cache<latent, 576xfp8_e4m3>, !mla.batch) -> tensor<?x10240xf32>
  return
}

// Tests that dimensions that fit no tile get the form for any.
// CHECK-LABEL: func.func @odd
func.func @odd(%q: tensor<?x117xf32>, %c: !mla.cache<latent, 39xbf16>, %b: !mla.batch) {
  // CHECK: mla.latent_attention
  // CHECK-SAME: "split_kv: needs latents of a multiple of 128 values and rows of one of 64, at most 576, found 33 and 39"
  // CHECK-SAME: lowering = "sm_{{120a|90a}}.simple"
  %0 = mla.latent_attention %q, %c, %b {heads = 3, kv_lora = 33, scale = 0.25} : (tensor<?x117xf32>, !mla.cache<latent, 39xbf16>, !mla.batch) -> tensor<?x99xf32>
  return
}

#routing = #mla.routing<topk = 8, groups = 1, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.827 : f64>
// Tests that experts of one token, of some and of many have kernels of their own.
// CHECK-LABEL: func.func @moe
func.func @moe(%x: tensor<?x7168xf32>, %r: !mla.weight<384x7168xbf16>, %b: !mla.weight<384xf32>, %g: !mla.weight<384x256x7168xnvfp4>, %d: !mla.weight<384x7168x256xnvfp4>) {
  // CHECK: mla.moe
  // CHECK-SAME: prefill2048 = ["moe_large: {{[0-9.]+}} us, bound by {{[a-z]+}}", "moe_stream: needs steps of one token, found up to 2048 tokens", "moe_grouped: needs up to 64 tokens or 12 choices for each expert, found up to 2048 tokens, 16384 choices among 384"]
  // CHECK-SAME: step1 = ["moe_stream: {{[0-9.]+}} us, bound by {{[a-z]+}}", "moe_grouped: needs steps of more than one token, found one token", "moe_large: needs more than 64 tokens and 12 choices for each expert, found up to 1 tokens, 8 choices among 384"]
  // CHECK-SAME: step64 = ["moe_grouped: {{[0-9.]+}} us, bound by
  // CHECK-SAME: lowering = {prefill2048 = "sm_{{120a|90a}}.moe_large", step1 = "sm_{{120a|90a}}.moe_stream"
  %0 = mla.moe %x, %r bias %b experts %g, %g, %d routing #routing : (tensor<?x7168xf32>, !mla.weight<384x7168xbf16>, !mla.weight<384xf32>, !mla.weight<384x256x7168xnvfp4>, !mla.weight<384x256x7168xnvfp4>, !mla.weight<384x7168x256xnvfp4>) -> tensor<?x7168xf32>
  return
}
