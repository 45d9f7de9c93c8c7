// RUN: mla-opt %s -mla-fuse-moe -split-input-file | FileCheck %s --implicit-check-not=mla.experts --implicit-check-not=mla.route

// Tests that router, experts and shared expert become one op; the residual is
// added to its result.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @shared
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>, %[[SG:[^:]*]]: !mla.weight<12x8xbf16>, %[[SU:[^:]*]]: !mla.weight<12x8xbf16>, %[[SD:[^:]*]]: !mla.weight<8x12xbf16>
func.func @shared(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>, %h: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK-NEXT: %[[M:.*]] = mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] shared %[[SG]], %[[SU]], %[[SD]] routing <topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.500000e+00 : f64>
  %m = mla.add %e, %t : tensor<?x8xf32>
  // CHECK-NEXT: mla.add %{{.*}}, %[[M]]
  %o = mla.add %h, %m : tensor<?x8xf32>
  return %o : tensor<?x8xf32>
}

// -----

// Tests that the shared expert may be the first operand, and stand before the
// experts.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @shared_first
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>, %[[SG:[^:]*]]: !mla.weight<12x8xbf16>, %[[SU:[^:]*]]: !mla.weight<12x8xbf16>, %[[SD:[^:]*]]: !mla.weight<8x12xbf16>
func.func @shared_first(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>) -> tensor<?x8xf32> {
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK-NEXT: %[[M:.*]] = mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] shared %[[SG]], %[[SU]], %[[SD]] routing <topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.500000e+00 : f64>
  %m = mla.add %t, %e : tensor<?x8xf32>
  // CHECK-NEXT: return %[[M]]
  return %m : tensor<?x8xf32>
}

// -----

// Tests that a router without groups and bias is fused with its experts, and
// that the residual added to these is not taken for a shared expert.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.0 : f64>
// CHECK-LABEL: func.func @residual
func.func @residual(%h: tensor<?x8xf32>, %x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l routing #routing : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK-NEXT: %[[E:.*]] = mla.moe %{{.*}}, %{{.*}} experts %{{.*}}, %{{.*}}, %{{.*}} routing <{{.*}}method = greedy{{.*}}>
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK-NEXT: mla.add %{{.*}}, %[[E]]
  %m = mla.add %h, %e : tensor<?x8xf32>
  return %m : tensor<?x8xf32>
}

// -----

// Tests that an MLP of other rows is not taken for a shared expert.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @shared_of_other_rows
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>
func.func @shared_of_other_rows(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>, %y: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] routing
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.gated_linear
  %s = mla.gated_linear %y, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  // CHECK: mla.linear
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.add
  %m = mla.add %e, %t : tensor<?x8xf32>
  return %m : tensor<?x8xf32>
}

// -----

// Tests that a shared expert whose rows have another user stays outside.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @shared_used
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>
func.func @shared_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] routing
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.gated_linear
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  // CHECK: mla.linear
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.add
  %m = mla.add %e, %t : tensor<?x8xf32>
  return %m, %t : tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// Tests that a shared expert whose inner rows have another user stays outside.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @shared_inner_used
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>
func.func @shared_inner_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>) -> (tensor<?x8xf32>, tensor<?x12xf32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] routing
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.gated_linear
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  // CHECK: mla.linear
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.add
  %m = mla.add %e, %t : tensor<?x8xf32>
  return %m, %s : tensor<?x8xf32>, tensor<?x12xf32>
}

// -----

// Tests that experts whose result has another user than the add with the shared
// expert keep it outside.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @experts_used
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x8xf32>, %[[R:[^:]*]]: !mla.weight<4x8xbf16>, %[[BIAS:[^:]*]]: !mla.weight<4xf32>, %[[G:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[U:[^:]*]]: !mla.weight<4x16x8xbf16>, %[[D:[^:]*]]: !mla.weight<4x8x16xbf16>
func.func @experts_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %sg: !mla.weight<12x8xbf16>, %su: !mla.weight<12x8xbf16>, %sd: !mla.weight<8x12xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: %[[E:.*]] = mla.moe %[[X]], %[[R]] bias %[[BIAS]] experts %[[G]], %[[U]], %[[D]] routing
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x12xf32>
  // CHECK: %[[T:.*]] = mla.linear
  %t = mla.linear %s, %sd : (tensor<?x12xf32>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.add %[[E]], %[[T]]
  %m = mla.add %e, %t : tensor<?x8xf32>
  return %m, %e : tensor<?x8xf32>, tensor<?x8xf32>
}
