// RUN: mla-opt %s -mla-verify-fused | FileCheck %s

// Tests that plain ops which no fusion takes pass: a linear by itself, an
// activation whose linear has another user, experts without a router.
// CHECK: mla.cache @index
mla.cache @index : !mla.cache<index, 8xf32>
// CHECK-LABEL: func.func @near_misses
func.func @near_misses(%x: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>, %i: tensor<?x2xi32>, %iw: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>) {
  %0 = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %1 = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.swiglu
  %2 = mla.swiglu %0, %1 : tensor<?x8xf32>
  // CHECK: mla.experts
  %3 = mla.experts %x, %i, %iw, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %1, %2, %3 : tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>
}
