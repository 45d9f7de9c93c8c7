// RUN: mla-opt %s -mla-distribute='ranks=2 shard-cache' -verify-diagnostics -split-input-file
//
// Tests what cannot have the tokens of its cache spread over the ranks, told once.
// Without shard-cache each of them is only left alone, or divided.

// Queries of nothing that could be divided, twice.
mla.cache @c : !mla.cache<latent, 14xf32>
func.func @kept(%q: tensor<?x56xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) {
  // expected-error@+1 {{'mla.latent_attention' op cannot have its cache sharded: expected queries of a mla.absorb_query with no other user (--cache replicated works)}}
  %0 = mla.latent_attention %q, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %1 = mla.latent_attention %q, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  return
}

// -----

func.func @plain(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 28xf32>, %b: !mla.batch) {
  // expected-error@+1 {{'mla.attention' op cannot have its cache sharded: only attention over latents is, which mla-fuse-attention makes}}
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  return
}

// -----

func.func @indexer(%q: tensor<?x32xf32>, %w: tensor<?x4xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // expected-error@+1 {{'mla.indexer' op cannot have its cache sharded: only latent caches can (--cache replicated works)}}
  %0 = mla.indexer %q, %w, %c, %b {heads = 4, topk = 16, scale = 0.125} : (tensor<?x32xf32>, tensor<?x4xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  return
}

// -----

func.func @unread(%x: tensor<?x12xf32>, %n: !mla.weight<8xbf16>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 12xf32>, %b: !mla.batch) {
  // expected-error@+1 {{'mla.latent_cache_write' op cannot have its cache sharded: no attention reads it}}
  %0 = mla.latent_cache_write %x, %n, %cs, %c, %b {eps = 1.0e-6, interleaved = true} : (tensor<?x12xf32>, !mla.weight<8xbf16>, tensor<?x4xf32>, !mla.cache<latent, 12xf32>, !mla.batch) -> !mla.cache<latent, 12xf32>
  return
}

// -----

mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
mla.cache @c : !mla.cache<latent, 14xf32>
func.func @selected(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %s: tensor<?x16xi32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 14xf32>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-error@+1 {{'mla.latent_attention' op cannot have its cache sharded: it attends to positions that an indexer selects (--cache replicated works)}}
  %2 = mla.latent_attention %1, %c, %batch selected %s {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %4 : tensor<?x16xf32>
}

// -----

// A cache that is read as the step found it.
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
mla.cache @c : !mla.cache<latent, 14xf32>
func.func @unwritten(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 14xf32>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<48x16xbf16>) -> tensor<?x48xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // expected-error@+1 {{'mla.latent_attention' op cannot have its cache sharded: expected the cache that a mla.latent_cache_write of the same batch leaves}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %4 : tensor<?x16xf32>
}
