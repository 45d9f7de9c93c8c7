// RUN: mla-opt %s -split-input-file -mla-fuse-collectives -mla-verify-collectives -verify-diagnostics -o %t.after
// RUN: mla-opt %s -split-input-file -o %t.before
// RUN: diff %t.before %t.after
//
// Sums that stay as they are, and why. Nothing is changed.

func.func @no_norm(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>) -> tensor<?x8xf32> {
  // expected-remark@+1 {{not fused: expected a mla.rms_norm that reads the sum, or a mla.add as the only reader, found mla.linear}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.linear %0, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}

// -----

func.func @no_reader(%x: tensor<?x8xf32>) {
  // expected-remark@+1 {{or a mla.add as the only reader, found nobody}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  return
}

// -----

// The bare sum would not be there any more.
func.func @other_readers(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %m: !mla.weight<8x8xbf16>, %w: !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  // expected-remark@+1 {{not fused: expected a mla.rms_norm that reads the sum, or a mla.add as the only reader, found mla.add and mla.linear}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.add %h, %0 : tensor<?x8xf32>
  %2 = mla.rms_norm %1, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  %3 = mla.linear %0, %m : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  return %2, %3 : tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// Twice the sum: it is its own residual.
func.func @twice(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) -> tensor<?x8xf32> {
  // expected-remark@+1 {{or a mla.add as the only reader, found mla.add}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.add %0, %0 : tensor<?x8xf32>
  %2 = mla.rms_norm %1, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return %2 : tensor<?x8xf32>
}

// -----

func.func @residual_without_norm(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>) -> tensor<?x8xf32> {
  // expected-remark@+1 {{not fused: expected a mla.rms_norm that reads the sum with its residual, found mla.linear}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.add %h, %0 : tensor<?x8xf32>
  %2 = mla.linear %1, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  return %2 : tensor<?x8xf32>
}

// -----

// A layer norm is another norm.
func.func @layer_norm(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %b: !mla.weight<8xbf16>) -> tensor<?x8xf32> {
  // expected-remark@+1 {{found mla.layer_norm}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  %1 = mla.layer_norm %0, %w, %b {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return %1 : tensor<?x8xf32>
}

// -----

// Nothing is exchanged, so nothing is fused, moved or joined, and nothing said.
#routing = #mla.routing<topk = 1, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
func.func @local(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %batch: !mla.batch, %e: !mla.weight<2x4x8xbf16>, %d: !mla.weight<2x8x4xbf16>, %s: !mla.weight<4x8xbf16>, %t: !mla.weight<8x4xbf16>, %p: tensor<?x1xf32>) -> (tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x4xf32>) {
  %0 = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  %1 = mla.all_reduce %x {ranks = 2 : i64, local} : tensor<?x8xf32>
  %2 = mla.add %h, %1 : tensor<?x8xf32>
  %3 = mla.rms_norm %2, %w {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  %4 = mla.all_gather %x {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %5 = mla.all_gather %h {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %6 = mla.all_gather %p {ranks = 2 : i64, local} : (tensor<?x1xf32>) -> tensor<?x2xf32>
  %7 = mla.moe %3 logits %6 experts %e, %e, %d shared %s, %s, %t routing #routing : (tensor<?x8xf32>, tensor<?x2xf32>, !mla.weight<2x4x8xbf16>, !mla.weight<2x4x8xbf16>, !mla.weight<2x8x4xbf16>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
  return %7, %4, %5, %0 : tensor<?x8xf32>, tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x4xf32>
}
