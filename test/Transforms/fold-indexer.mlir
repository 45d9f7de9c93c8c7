// RUN: mla-opt %s -mla-fold-indexer=max-context=64 | FileCheck %s
// RUN: mla-opt %s -mla-fold-indexer=max-context=65 2>&1 | FileCheck %s --check-prefix=KEPT

// Tests that an indexer that chooses all positions goes, with its cache, what
// writes it and its weights, and that one that chooses fewer stays, with a remark.

// CHECK-NOT: @keys
// CHECK-NOT: @index_q
// CHECK: mla.cache @latent
// KEPT: remark: keeps its selection: the indexer chooses 64 of up to 65 positions
// KEPT: mla.weight @index_q
// KEPT: mla.cache @keys
mla.weight @index_q : !mla.weight<16x24xbf16> from "index_q"
mla.weight @embed : !mla.weight<9x24xbf16> from "embed"
mla.weight @index_w : !mla.weight<2x24xbf16> from "index_w"
mla.weight @index_k : !mla.weight<8x24xbf16> from "index_k"
mla.cache @keys : !mla.cache<index, 8xf32>
mla.cache @latent : !mla.cache<latent, 12xf32>

// CHECK-LABEL: func.func @step
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %e = mla.get_weight @embed : !mla.weight<9x24xbf16>
  %wq = mla.get_weight @index_q : !mla.weight<16x24xbf16>
  %ww = mla.get_weight @index_w : !mla.weight<2x24xbf16>
  %wk = mla.get_weight @index_k : !mla.weight<8x24xbf16>
  %x = mla.embedding %ids, %e : (tensor<?xi32>, !mla.weight<9x24xbf16>) -> tensor<?x24xf32>
  %kv = mla.get_cache @latent : !mla.cache<latent, 12xf32>
  %keys = mla.get_cache @keys : !mla.cache<index, 8xf32>
  %q = mla.linear %x, %wq : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  %w = mla.linear %x, %ww : (tensor<?x24xf32>, !mla.weight<2x24xbf16>) -> tensor<?x2xf32>
  %k = mla.linear %x, %wk : (tensor<?x24xf32>, !mla.weight<8x24xbf16>) -> tensor<?x8xf32>
  %written = mla.cache_write %keys, %batch, %k : (!mla.cache<index, 8xf32>, !mla.batch, tensor<?x8xf32>) -> !mla.cache<index, 8xf32>
  %s = mla.indexer %q, %w, %written, %batch {heads = 2 : i64, topk = 64 : i64, scale = 0.5 : f64} : (tensor<?x16xf32>, tensor<?x2xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x64xi32>
  // CHECK: mla.embedding
  // CHECK-NEXT: mla.get_cache @latent
  // CHECK-NEXT: mla.latent_attention %{{.*}}, %{{.*}}, %{{[a-z0-9]+}} {
  // KEPT: mla.latent_attention {{.*}} selected
  %y = mla.latent_attention %x, %kv, %batch selected %s {heads = 2 : i64, kv_lora = 8 : i64, scale = 0.25 : f64} : (tensor<?x24xf32>, !mla.cache<latent, 12xf32>, !mla.batch, tensor<?x64xi32>) -> tensor<?x16xf32>
  return %y : tensor<?x16xf32>
}
