// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=3 shard-cache' -mla-verify-distributed | FileCheck %s
// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=3 shard-cache local' -mla-verify-distributed \
// RUN:   | FileCheck %s --check-prefix=LOCAL
// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=3' -mla-verify-distributed \
// RUN:   | FileCheck %s --check-prefix=WHOLE
//
// Tests latent caches whose tokens are spread over 3 ranks. 4 heads are parts of 2, so
// attention has 6, two of them padding.
// LOCAL-COUNT-2: {{mla.merge_attention .* [{]heads = 6 : i64, local, ranks = 3}}
// WHOLE: module attributes {mla.layout = "attention tp3, latent projections replicated, cache replicated", mla.ranks = 3 : i64}
// WHOLE-NOT: mla.shard_batch

// CHECK: module attributes {mla.layout = "attention tp3, latent projections replicated, cache sharded", mla.page_ranks = 3 : i64, mla.ranks = 3 : i64}
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_a : !mla.weight<14x16xbf16> from "kv_a"
mla.weight @norm : !mla.weight<10xbf16> from "norm"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
mla.cache @c : !mla.cache<latent, 14xf32>
mla.cache @d : !mla.cache<latent, 14xf32>
// CHECK-LABEL: func.func @two_layers
// CHECK-SAME: (%[[X:.*]]: tensor<?x16xf32>, %[[B:.*]]: !mla.batch)
func.func @two_layers(%x: tensor<?x16xf32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  // One for all layers; rotation is by the true positions.
  // CHECK-NEXT: %[[R:.*]], %[[W:.*]] = mla.shard_batch %[[B]] {ranks = 3 : i64}
  // CHECK-NOT: mla.shard_batch
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kva = mla.get_weight @kv_a : !mla.weight<14x16xbf16>
  %norm = mla.get_weight @norm : !mla.weight<10xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 14xf32>
  // CHECK: mla.rotary_embedding %[[B]]
  %cs = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  %0:2 = mla.joined_linear %x, %q, %kva : (tensor<?x16xf32>, !mla.weight<48x16xbf16>, !mla.weight<14x16xbf16>) -> (tensor<?x48xf32>, tensor<?x14xf32>)
  // CHECK: %[[NEW:.*]] = mla.latent_cache_write {{.*}}, %[[W]] {
  %new = mla.latent_cache_write %0#1, %norm, %cs, %c, %batch {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
  // CHECK: %[[Q:.*]] = mla.absorb_query {{.*}} {heads = 2 : i64, {{.*}} -> tensor<?x28xf32>
  // CHECK-NEXT: %[[ALL:.*]] = mla.all_gather %[[Q]] {ranks = 3 : i64} : (tensor<?x28xf32>) -> tensor<?x84xf32>
  %1 = mla.absorb_query %0#0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // CHECK-NEXT: %[[P:.*]], %[[LSE:.*]] = mla.latent_attention %[[ALL]], %[[NEW]], %[[R]] {heads = 6 : i64, kv_lora = 10 : i64, scale = 2.500000e-01 : f64} : {{.*}} -> (tensor<?x60xf32>, tensor<?x6xf32>)
  // CHECK-NEXT: %[[M:.*]] = mla.merge_attention %[[P]], %[[LSE]] {heads = 6 : i64, ranks = 3 : i64} : {{.*}} -> tensor<?x20xf32>
  %2 = mla.latent_attention %1, %new, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  // CHECK-NEXT: mla.expand_value %[[M]], {{.*}} {heads = 2 : i64, {{.*}} -> tensor<?x12xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  // CHECK-NEXT: mla.linear
  // CHECK-NEXT: mla.all_reduce
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  %5 = mla.add %x, %4 : tensor<?x16xf32>
  %d = mla.get_cache @d : !mla.cache<latent, 14xf32>
  %6:2 = mla.joined_linear %5, %q, %kva : (tensor<?x16xf32>, !mla.weight<48x16xbf16>, !mla.weight<14x16xbf16>) -> (tensor<?x48xf32>, tensor<?x14xf32>)
  // CHECK: mla.latent_cache_write {{.*}}, %[[W]] {
  %7 = mla.latent_cache_write %6#1, %norm, %cs, %d, %batch {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
  %8 = mla.absorb_query %6#0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // CHECK: mla.latent_attention {{.*}}, %[[R]] {heads = 6
  %9 = mla.latent_attention %8, %7, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  // CHECK: mla.merge_attention
  %10 = mla.expand_value %9, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  %11 = mla.linear %10, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  return %11 : tensor<?x16xf32>
}
