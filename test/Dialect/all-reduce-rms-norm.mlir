// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s
//
// Round trip, with and without a residual, also through the generic form.

// CHECK-LABEL: func.func @sums
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[R:.*]]: tensor<?x8xf32>, %[[W:.*]]: !mla.weight<8xbf16>)
func.func @sums(%x: tensor<?x8xf32>, %r: tensor<?x8xf32>, %w: !mla.weight<8xbf16>) {
  // CHECK: %{{.*}}, %{{.*}} = mla.all_reduce_rms_norm %[[X]], %[[W]] residual %[[R]] {eps = {{.*}} : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>, tensor<?x8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  %0:2 = mla.all_reduce_rms_norm %x, %w residual %r {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>, tensor<?x8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  // CHECK: %{{.*}}, %{{.*}} = mla.all_reduce_rms_norm %[[X]], %[[W]] {eps = {{.*}} : f64, ranks = 8 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  %1:2 = mla.all_reduce_rms_norm %x, %w {eps = 1.0e-6 : f64, ranks = 8 : i64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
  return
}
