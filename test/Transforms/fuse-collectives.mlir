// RUN: mla-opt %s -split-input-file -mla-fuse-collectives -mla-verify-collectives -mla-verify-distributed | FileCheck %s
//
// Sums over the ranks take up the residual and the norm behind them.

module attributes {mla.ranks = 2 : i64} {
  mla.weight @embed : !mla.weight<16x8xbf16> from "e" shard <[32, 8] dim 0 in 2>
  mla.weight @up : !mla.weight<6x8xbf16> from "u" shard <[12, 8] dim 0 in 2>
  mla.weight @down : !mla.weight<8x6xbf16> from "d" shard <[8, 12] dim 1 in 2>
  mla.weight @n0 : !mla.weight<8xbf16> from "n0"
  mla.weight @n1 : !mla.weight<8xbf16> from "n1"
  mla.weight @head : !mla.weight<16x8xbf16> from "h" shard <[32, 8] dim 0 in 2>

  // Tests the embedding's sum, without a residual, with the first norm; a layer's with
  // the next norm, and its residual on either side; the last norm's. Sums have other
  // users, which read the first result.
  // CHECK-LABEL: func.func @step
  func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x32xf32> {
    // CHECK: %[[E:.*]] = mla.embedding
    // CHECK-NEXT: %[[W0:.*]] = mla.get_weight @n0
    // CHECK-NEXT: %[[H0:.*]], %[[N0:.*]] = mla.all_reduce_rms_norm %[[E]], %[[W0]] {eps = 9.9999999999999995E-7 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) ->
    // CHECK: mla.gated_linear %[[N0]],
    // CHECK: %[[Y0:.*]] = mla.linear
    // CHECK-NEXT: %[[W1:.*]] = mla.get_weight @n1
    // CHECK-NEXT: %[[H1:.*]], %[[N1:.*]] = mla.all_reduce_rms_norm %[[Y0]], %[[W1]] residual %[[H0]] {eps = 2.000000e-05 : f64, ranks = 2 : i64}
    // CHECK: mla.gated_linear %[[N1]],
    // CHECK: %[[Y1:.*]] = mla.linear
    // CHECK: %[[H2:.*]], %[[N2:.*]] = mla.all_reduce_rms_norm %[[Y1]], %[[W0]] residual %[[H1]]
    // CHECK: %[[L:.*]] = mla.lm_head %[[N2]]
    // CHECK-NEXT: mla.all_gather %[[L]]
    // CHECK-NOT: mla.{{all_reduce |add |rms_norm }}
    %t = mla.get_weight @embed : !mla.weight<16x8xbf16>
    %e = mla.embedding %ids, %t {ranks = 2 : i64} : (tensor<?xi32>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32>
    %h0 = mla.all_reduce %e {ranks = 2 : i64} : tensor<?x8xf32>
    %w0 = mla.get_weight @n0 : !mla.weight<8xbf16>
    %n0 = mla.rms_norm %h0, %w0 {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
    %u = mla.get_weight @up : !mla.weight<6x8xbf16>
    %s0 = mla.gated_linear %n0, %u, %u : (tensor<?x8xf32>, !mla.weight<6x8xbf16>, !mla.weight<6x8xbf16>) -> tensor<?x6xf32>
    %d = mla.get_weight @down : !mla.weight<8x6xbf16>
    %y0 = mla.linear %s0, %d : (tensor<?x6xf32>, !mla.weight<8x6xbf16>) -> tensor<?x8xf32>
    %r0 = mla.all_reduce %y0 {ranks = 2 : i64} : tensor<?x8xf32>
    %h1 = mla.add %h0, %r0 : tensor<?x8xf32>
    %w1 = mla.get_weight @n1 : !mla.weight<8xbf16>
    %n1 = mla.rms_norm %h1, %w1 {eps = 2.0e-5} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
    %s1 = mla.gated_linear %n1, %u, %u : (tensor<?x8xf32>, !mla.weight<6x8xbf16>, !mla.weight<6x8xbf16>) -> tensor<?x6xf32>
    %y1 = mla.linear %s1, %d : (tensor<?x6xf32>, !mla.weight<8x6xbf16>) -> tensor<?x8xf32>
    %r1 = mla.all_reduce %y1 {ranks = 2 : i64} : tensor<?x8xf32>
    %h2 = mla.add %r1, %h1 : tensor<?x8xf32>
    %n2 = mla.rms_norm %h2, %w0 {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
    %h = mla.get_weight @head : !mla.weight<16x8xbf16>
    %l = mla.lm_head %n2, %h, %batch : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.batch) -> tensor<?x16xf32>
    %logits = mla.all_gather %l {ranks = 2 : i64} : (tensor<?x16xf32>) -> tensor<?x32xf32>
    return %logits : tensor<?x32xf32>
  }
}

// -----

// Tests two norms of one sum: the first is fused, the other reads the sum, as does what
// came before both of them.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @d : !mla.weight<4x4xbf16> from "d" shard <[4, 8] dim 1 in 2>
  mla.weight @u : !mla.weight<4x4xbf16> from "u" shard <[8, 4] dim 0 in 2>
  mla.weight @w : !mla.weight<4x4xbf16> from "w"
  mla.weight @a : !mla.weight<4xbf16> from "a"
  mla.weight @b : !mla.weight<4xbf16> from "b"
  // CHECK-LABEL: func.func @two_norms
  func.func @two_norms(%x: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>) {
    // CHECK: %[[S:.*]], %[[N:.*]] = mla.all_reduce_rms_norm %{{.*}}, %[[A:.*]] residual
    // CHECK: %[[L:.*]] = mla.linear %[[S]]
    // CHECK: %[[M:.*]] = mla.rms_norm %[[S]]
    // CHECK: return %[[N]], %[[M]], %[[L]]
    %u = mla.get_weight @u : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %p = mla.linear %x, %u : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %y = mla.linear %p, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %r = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x4xf32>
    %s = mla.add %r, %x : tensor<?x4xf32>
    %l = mla.linear %s, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %a = mla.get_weight @a : !mla.weight<4xbf16>
    %n = mla.rms_norm %s, %a {eps = 1.0e-6} : (tensor<?x4xf32>, !mla.weight<4xbf16>) -> tensor<?x4xf32>
    %b = mla.get_weight @b : !mla.weight<4xbf16>
    %m = mla.rms_norm %s, %b {eps = 1.0e-6} : (tensor<?x4xf32>, !mla.weight<4xbf16>) -> tensor<?x4xf32>
    return %n, %m, %l : tensor<?x4xf32>, tensor<?x4xf32>, tensor<?x4xf32>
  }
}

// -----

// Tests that a sum with a norm of its own is fused without the residual that is added
// beside it.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @d : !mla.weight<4x4xbf16> from "d" shard <[4, 8] dim 1 in 2>
  mla.weight @u : !mla.weight<4x4xbf16> from "u" shard <[8, 4] dim 0 in 2>
  mla.weight @a : !mla.weight<4xbf16> from "a"
  // CHECK-LABEL: func.func @norm_beside_add
  // CHECK-SAME: (%[[X:.*]]: tensor
  func.func @norm_beside_add(%x: tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>) {
    // CHECK: %[[S:.*]], %[[N:.*]] = mla.all_reduce_rms_norm %{{[^ ]*}}, %{{[^ ]*}} {eps
    // CHECK: %[[H:.*]] = mla.add %[[S]], %[[X]]
    // CHECK: return %[[H]], %[[N]]
    %u = mla.get_weight @u : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %p = mla.linear %x, %u : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %y = mla.linear %p, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %r = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x4xf32>
    %h = mla.add %r, %x : tensor<?x4xf32>
    %a = mla.get_weight @a : !mla.weight<4xbf16>
    %n = mla.rms_norm %r, %a {eps = 1.0e-6} : (tensor<?x4xf32>, !mla.weight<4xbf16>) -> tensor<?x4xf32>
    return %h, %n : tensor<?x4xf32>, tensor<?x4xf32>
  }
}
