// RUN: mla-opt %s -verify-diagnostics -split-input-file

func.func @route_c1(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected an indices row of 2, found 3}}
  %i, %w = mla.route %l routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x3xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c1_weights(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C1: expected a weights row of 2, found 3}}
  %i, %w = mla.route %l routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x3xf32>)
  return
}

// -----

func.func @route_c2(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected a number of groups that divides 4 experts, found 3}}
  %i, %w = mla.route %l routing <topk = 2, groups = 3, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c2_zero(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C2: expected a number of groups that divides 4 experts, found 0}}
  %i, %w = mla.route %l routing <topk = 2, groups = 0, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c3(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected topk_groups from 1 to 2, found 3}}
  %i, %w = mla.route %l routing <topk = 2, groups = 2, topk_groups = 3, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c3_topk(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected topk from 1 to 2 (experts in the kept groups), found 3}}
  %i, %w = mla.route %l routing <topk = 3, groups = 2, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x3xi32>, tensor<?x3xf32>)
  return
}

// -----

func.func @route_c3_none(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C3: expected topk from 1 to 4 (experts in the kept groups), found 0}}
  %i, %w = mla.route %l routing <topk = 0, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x0xi32>, tensor<?x0xf32>)
  return
}

// -----

func.func @route_c4(%l: tensor<?x4xf32>) {
  // expected-error@+1 {{C4: expected a bias with method noaux_tc, found none}}
  %i, %w = mla.route %l routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c4_superfluous(%l: tensor<?x4xf32>, %b: !mla.weight<4xf32>) {
  // expected-error@+1 {{C4: expected no bias with method greedy, found one}}
  %i, %w = mla.route %l bias %b routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c4_length(%l: tensor<?x4xf32>, %b: !mla.weight<2xf32>) {
  // expected-error@+1 {{C4: expected a bias length of 4, found 2}}
  %i, %w = mla.route %l bias %b routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>, !mla.weight<2xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c4_rank(%l: tensor<?x4xf32>, %b: !mla.weight<4x1xf32>) {
  // expected-error@+1 {{C4: expected bias rank of 1, found 2}}
  %i, %w = mla.route %l bias %b routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>, !mla.weight<4x1xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @route_c5(%l: tensor<?x4xf32>, %b: !mla.weight<4xf32>) {
  // expected-error@+1 {{C5: expected at least two experts in a group, found 1}}
  %i, %w = mla.route %l bias %b routing <topk = 2, groups = 4, topk_groups = 2, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x4xf32>, !mla.weight<4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  return
}

// -----

func.func @experts_c1(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x4xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected gate columns of 8, found 4}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x4xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c1_rank(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected gate rank of 3, found 2}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c1_up(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x12x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected up dimension 1 of 16, found 12}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x12x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c1_up_rank(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected up rank of 3, found 2}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c2(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<3x8x16xbf16>) {
  // expected-error@+1 {{C2: expected down matrices of 4, found 3}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<3x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c2_rank(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C2: expected down rank of 3, found 1}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c2_rows(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x16x16xbf16>) {
  // expected-error@+1 {{C2: expected down rows of 8, found 16}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c2_columns(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x12xbf16>) {
  // expected-error@+1 {{C2: expected down columns of 16, found 12}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x12xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c3(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x3xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C3: expected a weights row of 2, found 3}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x3xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @experts_c4(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C4: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x16xf32>'}}
  %0 = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @moe_c1(%x: tensor<?x8xf32>, %r: !mla.weight<3x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected 3 experts of 3, found 4}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<3x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c1_columns(%x: tensor<?x8xf32>, %r: !mla.weight<4x4xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected router columns of 8, found 4}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x4xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c1_rank(%x: tensor<?x8xf32>, %r: !mla.weight<4xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected router rank of 2, found 1}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c2(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C2: expected a number of groups that divides 4 experts, found 3}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 3, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c2_topk(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C2: expected topk from 1 to 4 (experts in the kept groups), found 5}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 5, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c2_bias(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C2: expected a bias with method noaux_tc, found none}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c2_pairs(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %b: !mla.weight<4xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C2: expected at least two experts in a group, found 1}}
  %0 = mla.moe %x, %r bias %b experts %g, %u, %d routing <topk = 2, groups = 4, topk_groups = 2, scoring = softmax, method = noaux_tc, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c3(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x4xbf16>, %u: !mla.weight<4x16x4xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C3: expected gate columns of 8, found 4}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x4xbf16>, !mla.weight<4x16x4xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c3_rank(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<16x8xbf16>, %u: !mla.weight<16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C3: expected gate rank of 3, found 2}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c3_down(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x12xbf16>) {
  // expected-error@+1 {{C3: expected down columns of 16, found 12}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x12xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x8xbf16>, %s1: !mla.weight<12x8xbf16>) {
  // expected-error@+1 {{C4: expected a number of shared weights of 3, found 2}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4_rank(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x8xbf16>, %s1: !mla.weight<12x8xbf16>, %s2: !mla.weight<8xbf16>) {
  // expected-error@+1 {{C4: expected shared rank of 2, found 1}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1, %s2 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4_gate(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x4xbf16>, %s1: !mla.weight<12x8xbf16>, %s2: !mla.weight<8x12xbf16>) {
  // expected-error@+1 {{C4: expected shared gate columns of 8, found 4}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1, %s2 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x4xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4_up(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x8xbf16>, %s1: !mla.weight<16x8xbf16>, %s2: !mla.weight<8x12xbf16>) {
  // expected-error@+1 {{C4: expected shared up rows of 12, found 16}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1, %s2 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<16x8xbf16>, !mla.weight<8x12xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4_down(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x8xbf16>, %s1: !mla.weight<12x8xbf16>, %s2: !mla.weight<4x12xbf16>) {
  // expected-error@+1 {{C4: expected shared down rows of 8, found 4}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1, %s2 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<4x12xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c4_inner(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>, %s0: !mla.weight<12x8xbf16>, %s1: !mla.weight<12x8xbf16>, %s2: !mla.weight<8x16xbf16>) {
  // expected-error@+1 {{C4: expected shared down columns of 12, found 16}}
  %0 = mla.moe %x, %r experts %g, %u, %d shared %s0, %s1, %s2 routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>, !mla.weight<12x8xbf16>, !mla.weight<12x8xbf16>, !mla.weight<8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c5(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C5: expected a result of type 'tensor<?x8xf32>', found 'tensor<?x16xf32>'}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x16xf32>
  return
}

// -----

func.func @moe_c1_neither(%x: tensor<?x8xf32>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C1: expected a router or its logits, found neither}}
  %0 = mla.moe %x experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> : (tensor<?x8xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c1_groups(%x: tensor<?x8xf32>, %l: tensor<?x6xf32>, %g: !mla.weight<2x16x8xbf16>, %u: !mla.weight<2x16x8xbf16>, %d: !mla.weight<2x8x16xbf16>) {
  // expected-error@+1 {{C1: expected 3 experts of 6, found 2}}
  %0 = mla.moe %x logits %l experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> {groups = 2 : i64, group_ranks = 1 : i64} : (tensor<?x8xf32>, tensor<?x6xf32>, !mla.weight<2x16x8xbf16>, !mla.weight<2x16x8xbf16>, !mla.weight<2x8x16xbf16>) -> tensor<?x8xf32>
  return
}

// -----

func.func @moe_c6(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %u: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{C6: expected a number of groups of at least 2, found 1}}
  %0 = mla.moe %x, %r experts %g, %u, %d routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64> {groups = 1 : i64, group_ranks = 2 : i64} : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}
