// RUN: mla-opt %s -mla-distribute='ranks=2' -mla-verify-distributed -verify-diagnostics -split-input-file | FileCheck %s
//
// Near misses: chains that every rank computes whole, each with the remark that says
// why. No weight of theirs is cut and nothing is exchanged.
// CHECK-NOT: slice
// CHECK-NOT: mla.all_

// Tests queries that others read.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
func.func @queries_read(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> (tensor<?x16xf32>, tensor<?x48xf32>) {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: expected queries of a linear with no other user}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %4, %0 : tensor<?x16xf32>, tensor<?x48xf32>
}

// -----

// Tests queries that no linear makes.
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
func.func @no_linear(%x: tensor<?x48xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %1 = mla.absorb_query %x, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: expected queries of a linear with no other user}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %4 : tensor<?x16xf32>
}

// -----

// Tests queries that are in the latent space from the start.
func.func @no_absorb(%x: tensor<?x56xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x40xf32> {
  // expected-remark@+1 {{not distributed: expected queries of a mla.absorb_query with no other user}}
  %2 = mla.latent_attention %x, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  return %2 : tensor<?x40xf32>
}

// -----

// Tests outputs that stay in the latent space.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
func.func @no_expand(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x40xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: expected a mla.expand_value as the only user}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  return %2 : tensor<?x40xf32>
}

// -----

// Tests heads that are other ones on the way out.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @kv_b2 : !mla.weight<28x20xbf16> from "kv_b2"
mla.weight @o : !mla.weight<16x12xbf16> from "o"
func.func @other_heads(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %kvb2 = mla.get_weight @kv_b2 : !mla.weight<28x20xbf16>
  %o = mla.get_weight @o : !mla.weight<16x12xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: its mla.absorb_query and mla.expand_value have other heads}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb2 {heads = 2, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<28x20xbf16>) -> tensor<?x12xf32>
  %4 = mla.linear %3, %o : (tensor<?x12xf32>, !mla.weight<16x12xbf16>) -> tensor<?x16xf32>
  return %4 : tensor<?x16xf32>
}

// -----

// Tests values that no linear reads.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
func.func @no_output(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x24xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: expected a mla.linear as the only user of its values}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  return %3 : tensor<?x24xf32>
}

// -----

// Tests matrices that are values, not declarations.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
func.func @undeclared(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch, %o: !mla.weight<16x24xbf16>) -> tensor<?x16xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-remark@+1 {{not distributed: expected declared weights}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %4 : tensor<?x16xf32>
}

// -----

// Tests attention over expanded keys and values.
func.func @plain(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 32xf32>, %b: !mla.batch) -> tensor<?x12xf32> {
  // expected-remark@+1 {{not distributed: only attention over latents is, which mla-fuse-attention makes}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 6, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 32xf32>, !mla.batch) -> tensor<?x12xf32>
  return %0 : tensor<?x12xf32>
}

// -----

// Tests an MLP whose inner rows have other users, and linears that are no MLP.
mla.weight @gate : !mla.weight<24x16xbf16> from "gate"
mla.weight @down : !mla.weight<16x24xbf16> from "down"
func.func @inner_rows_read(%x: tensor<?x16xf32>) -> (tensor<?x16xf32>, tensor<?x24xf32>, tensor<?x24xf32>) {
  %g = mla.get_weight @gate : !mla.weight<24x16xbf16>
  %d = mla.get_weight @down : !mla.weight<16x24xbf16>
  // expected-remark@+1 {{not distributed: expected a mla.linear as the only user}}
  %s = mla.gated_linear %x, %g, %g : (tensor<?x16xf32>, !mla.weight<24x16xbf16>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  %y = mla.linear %s, %d : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  %z = mla.linear %y, %g : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
  return %y, %s, %z : tensor<?x16xf32>, tensor<?x24xf32>, tensor<?x24xf32>
}

// -----

// Tests an MLP, experts and a head whose weights are values.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
func.func @values(%x: tensor<?x8xf32>, %b: !mla.batch, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %r: !mla.weight<4x8xbf16>, %g: !mla.weight<6x8xbf16>, %d: !mla.weight<8x6xbf16>, %eg: !mla.weight<4x6x8xbf16>, %ed: !mla.weight<4x8x6xbf16>) -> tensor<?x4xf32> {
  // expected-remark@+1 {{not distributed: expected declared weights}}
  %s = mla.gated_linear %x, %g, %g : (tensor<?x8xf32>, !mla.weight<6x8xbf16>, !mla.weight<6x8xbf16>) -> tensor<?x6xf32>
  %y = mla.linear %s, %d : (tensor<?x6xf32>, !mla.weight<8x6xbf16>) -> tensor<?x8xf32>
  // expected-remark@+1 {{not distributed: expected declared weights}}
  %e = mla.experts %y, %i, %w, %eg, %eg, %ed : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>) -> tensor<?x8xf32>
  // expected-remark@+1 {{not distributed: expected declared weights}}
  %m = mla.moe %e, %r experts %eg, %eg, %ed routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>) -> tensor<?x8xf32>
  // expected-remark@+1 {{not distributed: expected declared weights}}
  %l = mla.lm_head %m, %r, %b : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.batch) -> tensor<?x4xf32>
  return %l : tensor<?x4xf32>
}
