// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s

#greedy = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.0 : f64>
#noaux = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>

// Tests a router without and with a correction bias.
// CHECK-LABEL: func.func @route
// CHECK-SAME: (%[[L:.*]]: tensor<?x4xf32>, %[[B:.*]]: !mla.weight<4xf32>)
func.func @route(%l: tensor<?x4xf32>, %b: !mla.weight<4xf32>) {
  // CHECK: %{{.*}}, %{{.*}} = mla.route %[[L]] routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.000000e+00 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  %i0, %w0 = mla.route %l routing #greedy : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: %{{.*}}, %{{.*}} = mla.route %[[L]] bias %[[B]] routing <topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.500000e+00 : f64> : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  %i1, %w1 = mla.route %l bias %b routing #noaux : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// CHECK-LABEL: func.func @experts
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[I:.*]]: tensor<?x2xi32>, %[[W:.*]]: tensor<?x2xf32>, %[[G:.*]]: !mla.weight<4x16x8xbf16>, %[[D:.*]]: !mla.weight<4x8x16xnvfp4>)
func.func @experts(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xnvfp4>) {
  // CHECK: mla.experts %[[X]], %[[I]], %[[W]], %[[G]], %[[G]], %[[D]] : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xnvfp4>) -> tensor<?x8xf32>
  %0 = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xnvfp4>) -> tensor<?x8xf32>
  return
}

// Tests the fused op with and without a bias, with and without a shared expert.
// CHECK-LABEL: func.func @moe
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[R:.*]]: !mla.weight<4x8xbf16>, %[[B:.*]]: !mla.weight<4xf32>,
// CHECK-SAME: %[[G:.*]]: !mla.weight<4x16x8xbf16>, %[[D:.*]]: !mla.weight<4x8x16xbf16>,
// CHECK-SAME: %[[SG:.*]]: !mla.weight<12x8xbf16>, %[[SD:.*]]: !mla.weight<8x12xbf16>)
func.func @moe(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %b: !mla.weight<4xf32>,
               %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>,
               %sg: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>) {
  // CHECK: mla.moe %[[X]], %[[R]] bias %[[B]] experts %[[G]], %[[G]], %[[D]] shared %[[SG]], %[[SG]], %[[SD]] routing <{{.*}}> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  %0 = mla.moe %x, %r bias %b experts %g, %g, %d shared %sg, %sg, %sd routing #noaux : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.moe %[[X]], %[[R]] experts %[[G]], %[[G]], %[[D]] routing <{{.*}}> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  %1 = mla.moe %x, %r experts %g, %g, %d routing #greedy : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}
