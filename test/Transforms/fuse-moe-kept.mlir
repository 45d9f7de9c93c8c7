// RUN: mla-opt %s -mla-fuse-moe -verify-diagnostics -split-input-file | FileCheck %s
//
// Near misses: experts that must stay apart from their router, each with the
// remark that says why.

// Tests that experts whose router reads other rows are left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @router_of_other_rows
func.func @router_of_other_rows(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %y: tensor<?x8xf32>) -> tensor<?x8xf32> {
  %l = mla.linear %y, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: expected router logits of a mla.linear of the experts' rows}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}

// -----

// Tests that experts whose logits no linear makes are left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @no_router
func.func @no_router(%x: tensor<?x8xf32>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %l: tensor<?x4xf32>) -> tensor<?x8xf32> {
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: expected router logits of a mla.linear of the experts' rows}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}

// -----

// Tests that experts that no router chooses are left alone.
// CHECK-LABEL: func.func @no_route
func.func @no_route(%x: tensor<?x8xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>) -> tensor<?x8xf32> {
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: expected indices and weights of one mla.route}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}

// -----

// Tests that experts whose weights come from elsewhere are left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @weights_from_elsewhere
func.func @weights_from_elsewhere(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %w2: tensor<?x2xf32>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: expected indices and weights of one mla.route}}
  %e = mla.experts %x, %i, %w2, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}

// -----

// Tests that a router whose choice has another user is left alone: the fused op
// does not return it.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @choice_used
func.func @choice_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> (tensor<?x8xf32>, tensor<?x2xi32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: the router's values have other users}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e, %i : tensor<?x8xf32>, tensor<?x2xi32>
}

// -----

// Tests that a router whose weights have another user is left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @weights_used
func.func @weights_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> (tensor<?x8xf32>, tensor<?x2xf32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: the router's values have other users}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e, %w : tensor<?x8xf32>, tensor<?x2xf32>
}

// -----

// Tests that a router whose logits have another user is left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @logits_used
func.func @logits_used(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> (tensor<?x8xf32>, tensor<?x4xf32>) {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: the router's values have other users}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e, %l : tensor<?x8xf32>, tensor<?x4xf32>
}

// -----

// Tests that experts of another number than the router scores are left alone.
#routing = #mla.routing<topk = 2, groups = 2, topk_groups = 1, scoring = sigmoid, method = noaux_tc, normalize = true, scale = 2.5 : f64>
// CHECK-LABEL: func.func @other_number
func.func @other_number(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %bias: !mla.weight<4xf32>, %g: !mla.weight<5x16x8xbf16>, %u: !mla.weight<5x16x8xbf16>, %d: !mla.weight<5x8x16xbf16>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l bias %bias routing #routing : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // CHECK: mla.experts
  // expected-remark@+1 {{not fused: expected as many experts as the router scores, 4, found 5}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<5x16x8xbf16>, !mla.weight<5x16x8xbf16>, !mla.weight<5x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}
