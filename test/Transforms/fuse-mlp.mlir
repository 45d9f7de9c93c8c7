// RUN: mla-opt %s -mla-fuse-mlp | FileCheck %s

// Tests that the linears of an MLP and its activation become one op, and the
// down-projection stays.
// CHECK-LABEL: func.func @mlp
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[G:.*]]: !mla.weight<16x8xbf16>, %[[U:.*]]: !mla.weight<16x8xbf16>, %[[D:.*]]: !mla.weight<8x16xbf16>)
func.func @mlp(%x: tensor<?x8xf32>, %wg: !mla.weight<16x8xbf16>, %wu: !mla.weight<16x8xbf16>, %wd: !mla.weight<8x16xbf16>) -> tensor<?x8xf32> {
  %g = mla.linear %x, %wg : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %u = mla.linear %x, %wu : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK-NEXT: %[[S:.*]] = mla.gated_linear %[[X]], %[[G]], %[[U]] : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  // CHECK-NEXT: mla.linear %[[S]], %[[D]]
  %d = mla.linear %s, %wd : (tensor<?x16xf32>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  return %d : tensor<?x8xf32>
}

// Tests that the formats of the two weights may differ.
// CHECK-LABEL: func.func @mixed_formats
func.func @mixed_formats(%x: tensor<?x8xf32>, %wg: !mla.weight<16x8xfp8_block>, %wu: !mla.weight<16x8xf32>) -> tensor<?x16xf32> {
  %g = mla.linear %x, %wg : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>) -> tensor<?x16xf32>
  %u = mla.linear %x, %wu : (tensor<?x8xf32>, !mla.weight<16x8xf32>) -> tensor<?x16xf32>
  // CHECK-NEXT: mla.gated_linear %{{.*}} : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>, !mla.weight<16x8xf32>) -> tensor<?x16xf32>
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s : tensor<?x16xf32>
}

// Tests that linears of different rows are left alone.
// CHECK-LABEL: func.func @different_rows
func.func @different_rows(%x: tensor<?x8xf32>, %y: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) -> tensor<?x16xf32> {
  %g = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %u = mla.linear %y, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK: mla.swiglu
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s : tensor<?x16xf32>
}

// Tests that a linear with another user, which would be computed twice, is left
// alone: the gate here,
// CHECK-LABEL: func.func @gate_used
func.func @gate_used(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>) {
  %g = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %u = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK: mla.swiglu
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s, %g : tensor<?x16xf32>, tensor<?x16xf32>
}

// the other factor here,
// CHECK-LABEL: func.func @up_used
func.func @up_used(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>) {
  %g = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %u = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK: mla.swiglu
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s, %u : tensor<?x16xf32>, tensor<?x16xf32>
}

// and one linear that is both here.
// CHECK-LABEL: func.func @same_linear
func.func @same_linear(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) -> tensor<?x16xf32> {
  %g = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK: mla.swiglu
  %s = mla.swiglu %g, %g : tensor<?x16xf32>
  return %s : tensor<?x16xf32>
}

// Tests that an activation of rows that no linear made is left alone.
// CHECK-LABEL: func.func @no_linear
func.func @no_linear(%x: tensor<?x8xf32>, %u: tensor<?x16xf32>, %w: !mla.weight<16x8xbf16>) -> tensor<?x16xf32> {
  %g = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // CHECK: mla.swiglu
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s : tensor<?x16xf32>
}
