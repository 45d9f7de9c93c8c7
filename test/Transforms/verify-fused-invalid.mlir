// RUN: mla-opt %s -mla-verify-fused -verify-diagnostics -split-input-file

// Tests that a cache which is still expanded is an error, whether or not there
// is an attention.
// expected-error@+1 {{'mla.cache' op expected a latent cache after mla-fuse-attention, found an expanded one}}
mla.cache @kv : !mla.cache<expanded, 28xf32>

// -----

// Tests that an MLP that mla-fuse-mlp would fuse is an error.
func.func @mlp(%x: tensor<?x8xf32>, %wg: !mla.weight<16x8xbf16>, %wu: !mla.weight<16x8xbf16>) -> tensor<?x16xf32> {
  %g = mla.linear %x, %wg : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %u = mla.linear %x, %wu : (tensor<?x8xf32>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  // expected-error@+1 {{'mla.swiglu' op expected mla-fuse-mlp to have fused it with its linears}}
  %s = mla.swiglu %g, %u : tensor<?x16xf32>
  return %s : tensor<?x16xf32>
}

// -----

// Tests that a router and experts that mla-fuse-moe would fuse are an error.
func.func @moe(%x: tensor<?x8xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32> {
  %l = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
  %i, %w = mla.route %l routing <topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = false, scale = 1.0 : f64> : (tensor<?x4xf32>) -> (tensor<?x2xi32>, tensor<?x2xf32>)
  // expected-error@+1 {{'mla.experts' op expected mla-fuse-moe to have fused it with its router}}
  %e = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}
