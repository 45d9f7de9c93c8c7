// RUN: mla-opt %s -split-input-file -mla-verify-collectives -verify-diagnostics
//
// What mla-fuse-collectives claims to leave nowhere, left.

func.func @sums(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.all_reduce' op expected mla-fuse-collectives to have fused it with the norm of its sum}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.rms_norm %0, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  // expected-error@+1 {{'mla.all_reduce' op expected mla-fuse-collectives to have fused it with the norm of its sum}}
  %2 = mla.all_reduce %1 {ranks = 2 : i64} : tensor<?x8xf32>
  %3 = mla.add %2, %h : tensor<?x8xf32>
  %4 = mla.rms_norm %3, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return %3, %4 : tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// All of them are told, also that of an op in the shared expert's way. Gathers that
// exchange nothing and a sum without a norm are no findings.
#routing = #mla.routing<topk = 1, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
func.func @gathers(%x: tensor<?x8xf32>, %p: tensor<?x1xf32>, %e: !mla.weight<2x4x8xbf16>, %d: !mla.weight<2x8x4xbf16>, %s: !mla.weight<4x8xbf16>, %t: !mla.weight<8x4xbf16>) -> (tensor<?x16xf32>, tensor<?x8xf32>) {
  %0 = mla.all_gather %x {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %1 = mla.all_gather %x {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %2 = mla.add %1, %1 : tensor<?x16xf32>
  // expected-error@+1 {{'mla.all_gather' op could come before mla.add, which would run meanwhile}}
  %3 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  // expected-error@+1 {{'mla.all_gather' op expected one collective with the one before}}
  %4 = mla.all_gather %p {ranks = 2 : i64} : (tensor<?x1xf32>) -> tensor<?x2xf32>
  // expected-error@+1 {{'mla.moe' op expected its shared expert apart, to run while its logits are gathered}}
  %5 = mla.moe %x logits %4 experts %e, %e, %d shared %s, %s, %t routing #routing : (tensor<?x8xf32>, tensor<?x2xf32>, !mla.weight<2x4x8xbf16>, !mla.weight<2x4x8xbf16>, !mla.weight<2x8x4xbf16>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
  %6 = mla.all_reduce %5 {ranks = 2 : i64} : tensor<?x8xf32>
  return %3, %6 : tensor<?x16xf32>, tensor<?x8xf32>
}
