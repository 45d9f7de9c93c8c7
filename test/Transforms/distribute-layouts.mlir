// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=4 expert-groups=2 shard-down shard-router' \
// RUN:   -mla-verify-distributed 2> %t.remarks | FileCheck %s
// RUN: FileCheck %s --check-prefix=REMARK < %t.remarks
//
// Layouts other than tensor parallel, and sizes that do not divide.

// Tests experts of two groups of two ranks: five experts are three and two, and each
// is divided among the ranks of its group; the shared expert among all. The router
// is divided too, and its logits are gathered.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
// REMARK: divided unevenly: 2 parts of at most 3 of 5 experts
// CHECK: module attributes {mla.layout = "attention tp4, experts tp2xep2, latent projections replicated, router sharded, cache replicated", mla.ranks = 4 : i64}
// CHECK-DAG: mla.weight @router : !mla.weight<5x16xbf16> from "router" shard <[5, 16] dim 0 in 4>
// CHECK-DAG: mla.weight @gate : !mla.weight<3x16x16xnvfp4> from "{}.gate" scales ["{}.gs", "{}.gg"] shard <[5, 32, 16] dim 0 in 2 by 2, dim 1 in 2>
// CHECK-DAG: mla.weight @down : !mla.weight<3x16x16xnvfp4> from "{}.down" scales ["{}.ds", "{}.dg"] shard <[5, 16, 32] dim 0 in 2 by 2, dim 2 in 2>
// CHECK-DAG: mla.weight @sup : !mla.weight<8x16xbf16> from "sup" shard <[32, 16] dim 0 in 4>
mla.weight @router : !mla.weight<5x16xbf16> from "router"
mla.weight @gate : !mla.weight<5x32x16xnvfp4> from "{}.gate" scales ["{}.gs", "{}.gg"]
mla.weight @up : !mla.weight<5x32x16xnvfp4> from "{}.up" scales ["{}.us", "{}.ug"]
mla.weight @down : !mla.weight<5x16x32xnvfp4> from "{}.down" scales ["{}.ds", "{}.dg"]
mla.weight @sgate : !mla.weight<32x16xbf16> from "sgate"
mla.weight @sup : !mla.weight<32x16xbf16> from "sup"
mla.weight @sdown : !mla.weight<16x32xbf16> from "sdown"
// CHECK-LABEL: func.func @moe
// CHECK-SAME: (%[[X:.*]]: tensor
func.func @moe(%x: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %r = mla.get_weight @router : !mla.weight<5x16xbf16>
  %g = mla.get_weight @gate : !mla.weight<5x32x16xnvfp4>
  %u = mla.get_weight @up : !mla.weight<5x32x16xnvfp4>
  %d = mla.get_weight @down : !mla.weight<5x16x32xnvfp4>
  %sg = mla.get_weight @sgate : !mla.weight<32x16xbf16>
  %su = mla.get_weight @sup : !mla.weight<32x16xbf16>
  %sd = mla.get_weight @sdown : !mla.weight<16x32xbf16>
  // CHECK: %[[P:.*]] = mla.linear %[[X]]
  // CHECK-NEXT: %[[L:.*]] = mla.all_gather %[[P]] {ranks = 4 : i64} : (tensor<?x5xf32>) -> tensor<?x5xf32>
  // CHECK-NEXT: %[[Y:.*]] = mla.moe %[[X]] logits %[[L]] experts {{.*}} {group_ranks = 2 : i64, groups = 2 : i64}
  // CHECK-NEXT: mla.all_reduce %[[Y]]
  %y = mla.moe %x, %r experts %g, %u, %d shared %sg, %su, %sd routing #routing : (tensor<?x16xf32>, !mla.weight<5x16xbf16>, !mla.weight<5x32x16xnvfp4>, !mla.weight<5x32x16xnvfp4>, !mla.weight<5x16x32xnvfp4>, !mla.weight<32x16xbf16>, !mla.weight<32x16xbf16>, !mla.weight<16x32xbf16>) -> tensor<?x16xf32>
  return %y : tensor<?x16xf32>
}

// -----

// Tests projections to latents: what comes out is gathered at once. Six heads among
// four ranks are 2, 2, 2 and none.
// REMARK: divided unevenly: 4 parts of at most 2 of 6 heads
// CHECK-DAG: mla.weight @q_a : !mla.weight<8x16xbf16> from "q_a" shard <[32, 16] dim 0 in 4>
// CHECK-DAG: mla.weight @kv_a : !mla.weight<8x16xbf16> from "kv_a" shard <[14, 16] dim 0 in 4>
// CHECK-DAG: mla.weight @q_b : !mla.weight<24x32xbf16> from "q_b" shard <[72, 32] dim 0 in 4>
// CHECK-DAG: mla.weight @o : !mla.weight<16x12xbf16> from "o" shard <[16, 36] dim 1 in 4>
mla.weight @q_a : !mla.weight<32x16xbf16> from "q_a"
mla.weight @kv_a : !mla.weight<14x16xbf16> from "kv_a"
mla.weight @q_b : !mla.weight<72x32xbf16> from "q_b"
mla.weight @kv_b : !mla.weight<84x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x36xbf16> from "o"
mla.cache @c : !mla.cache<latent, 14xf32>
// CHECK-LABEL: func.func @attention
func.func @attention(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %batch: !mla.batch) -> (tensor<?x16xf32>, tensor<?x14xf32>) {
  %qa = mla.get_weight @q_a : !mla.weight<32x16xbf16>
  %kva = mla.get_weight @kv_a : !mla.weight<14x16xbf16>
  %qb = mla.get_weight @q_b : !mla.weight<72x32xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<84x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x36xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 14xf32>
  // CHECK: %[[D:.*]]:2 = mla.joined_linear {{.*}} -> (tensor<?x8xf32>, tensor<?x8xf32>)
  // CHECK: %[[G:.*]]:2 = mla.all_gather %[[D]]#0, %[[D]]#1 {ranks = 4 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>) -> (tensor<?x32xf32>, tensor<?x14xf32>)
  // CHECK: mla.linear %[[G]]#0
  %0:2 = mla.joined_linear %x, %qa, %kva : (tensor<?x16xf32>, !mla.weight<32x16xbf16>, !mla.weight<14x16xbf16>) -> (tensor<?x32xf32>, tensor<?x14xf32>)
  %q = mla.linear %0#0, %qb : (tensor<?x32xf32>, !mla.weight<72x32xbf16>) -> tensor<?x72xf32>
  %1 = mla.absorb_query %q, %kvb, %cs {heads = 6, nope = 8, v = 6, interleaved = true} : (tensor<?x72xf32>, !mla.weight<84x10xbf16>, tensor<?x4xf32>) -> tensor<?x84xf32>
  %2 = mla.latent_attention %1, %c, %batch {heads = 6, kv_lora = 10, scale = 0.25} : (tensor<?x84xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x60xf32>
  %3 = mla.expand_value %2, %kvb {heads = 6, nope = 8, v = 6} : (tensor<?x60xf32>, !mla.weight<84x10xbf16>) -> tensor<?x36xf32>
  %4 = mla.linear %3, %o : (tensor<?x36xf32>, !mla.weight<16x36xbf16>) -> tensor<?x16xf32>
  // CHECK: return %{{.*}}, %[[G]]#1
  return %4, %0#1 : tensor<?x16xf32>, tensor<?x14xf32>
}

// -----

// Tests groups of scales: parts of 80 rows become one of 128; a quarter of a group
// (32 rows of 128) carries the scale's copy; 24 columns of nvfp4 become 32.
// CHECK-DAG: mla.weight @a : !mla.weight<128x128xfp8_block> from "a" scales ["s"] shard <[320, 128] dim 0 in 4>
// CHECK-DAG: mla.weight @ad : !mla.weight<64x128xbf16> from "ad" shard <[64, 320] dim 1 in 4>
// CHECK-DAG: mla.weight @b : !mla.weight<32x64xfp8_block> from "b" scales ["s"] shard <[128, 64] dim 0 in 4>
// CHECK-DAG: mla.weight @bd : !mla.weight<64x32xfp8_block> from "bd" scales ["s"] shard <[64, 128] dim 1 in 4>
// CHECK-DAG: mla.weight @e : !mla.weight<32x64xbf16> from "e" shard <[96, 64] dim 0 in 4>
// CHECK-DAG: mla.weight @ed : !mla.weight<64x32xnvfp4> from "ed" scales ["s", "g"] shard <[64, 96] dim 1 in 4>
mla.weight @a : !mla.weight<320x128xfp8_block> from "a" scales ["s"]
mla.weight @ad : !mla.weight<64x320xbf16> from "ad"
mla.weight @b : !mla.weight<128x64xfp8_block> from "b" scales ["s"]
mla.weight @bd : !mla.weight<64x128xfp8_block> from "bd" scales ["s"]
mla.weight @e : !mla.weight<96x64xbf16> from "e"
mla.weight @ed : !mla.weight<64x96xnvfp4> from "ed" scales ["s", "g"]
func.func @scales(%x: tensor<?x128xf32>) -> tensor<?x64xf32> {
  %a = mla.get_weight @a : !mla.weight<320x128xfp8_block>
  %ad = mla.get_weight @ad : !mla.weight<64x320xbf16>
  %b = mla.get_weight @b : !mla.weight<128x64xfp8_block>
  %bd = mla.get_weight @bd : !mla.weight<64x128xfp8_block>
  %e = mla.get_weight @e : !mla.weight<96x64xbf16>
  %ed = mla.get_weight @ed : !mla.weight<64x96xnvfp4>
  %0 = mla.gated_linear %x, %a, %a : (tensor<?x128xf32>, !mla.weight<320x128xfp8_block>, !mla.weight<320x128xfp8_block>) -> tensor<?x320xf32>
  %1 = mla.linear %0, %ad : (tensor<?x320xf32>, !mla.weight<64x320xbf16>) -> tensor<?x64xf32>
  %2 = mla.gated_linear %1, %b, %b : (tensor<?x64xf32>, !mla.weight<128x64xfp8_block>, !mla.weight<128x64xfp8_block>) -> tensor<?x128xf32>
  %3 = mla.linear %2, %bd : (tensor<?x128xf32>, !mla.weight<64x128xfp8_block>) -> tensor<?x64xf32>
  %4 = mla.gated_linear %3, %e, %e : (tensor<?x64xf32>, !mla.weight<96x64xbf16>, !mla.weight<96x64xbf16>) -> tensor<?x96xf32>
  %5 = mla.linear %4, %ed : (tensor<?x96xf32>, !mla.weight<64x96xnvfp4>) -> tensor<?x64xf32>
  return %5 : tensor<?x64xf32>
}
