// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=2' -mla-verify-distributed | FileCheck %s
// RUN: mla-opt %s -split-input-file -mla-distribute='ranks=2 local' -mla-verify-distributed \
// RUN:   | FileCheck %s --check-prefix=LOCAL
// RUN: mla-opt %s -split-input-file > %t.whole
// RUN: mla-opt %s -split-input-file -mla-distribute -mla-verify-distributed | diff %t.whole -
//
// What each of 2 ranks has of each chain. With one rank nothing changes. With `local`
// every collective says so.
// LOCAL-COUNT-6: {{mla.all_reduce .* [{]local, ranks = 2}}
// LOCAL-COUNT-2: {{mla.all_gather .* [{]local, ranks = 2}}
// LOCAL-NOT: mla.all_reduce {{.*}} {ranks

// Tests heads, with a query that is one part of a joined linear: its rows and those
// of kv_b, and columns of o_proj. Caches, rotation and kv_a stay.
// CHECK: module attributes {mla.layout = "attention tp2, latent projections replicated, cache replicated", mla.ranks = 2 : i64}
// CHECK-DAG: mla.weight @q : !mla.weight<24x16xbf16> from "q" shard <[48, 16] dim 0 in 2>
// CHECK-DAG: mla.weight @kv_a : !mla.weight<14x16xbf16> from "kv_a"{{$}}
// CHECK-DAG: mla.weight @kv_b : !mla.weight<28x10xbf16> from "kv_b" shard <[56, 10] dim 0 in 2>
// CHECK-DAG: mla.weight @o : !mla.weight<16x12xbf16> from "o" shard <[16, 24] dim 1 in 2>
mla.weight @q : !mla.weight<48x16xbf16> from "q"
mla.weight @kv_a : !mla.weight<14x16xbf16> from "kv_a"
mla.weight @norm : !mla.weight<10xbf16> from "norm"
mla.weight @kv_b : !mla.weight<56x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x24xbf16> from "o"
mla.cache @c : !mla.cache<latent, 14xf32>
// CHECK-LABEL: func.func @attention
// CHECK-SAME: (%[[X:.*]]: tensor<?x16xf32>, %[[CS:.*]]: tensor<?x4xf32>
func.func @attention(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %batch: !mla.batch) -> tensor<?x16xf32> {
  %q = mla.get_weight @q : !mla.weight<48x16xbf16>
  %kva = mla.get_weight @kv_a : !mla.weight<14x16xbf16>
  %norm = mla.get_weight @norm : !mla.weight<10xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<56x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x24xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 14xf32>
  // CHECK: %[[D:.*]]:2 = mla.joined_linear %[[X]], %{{.*}} -> (tensor<?x24xf32>, tensor<?x14xf32>)
  %0:2 = mla.joined_linear %x, %q, %kva : (tensor<?x16xf32>, !mla.weight<48x16xbf16>, !mla.weight<14x16xbf16>) -> (tensor<?x48xf32>, tensor<?x14xf32>)
  %new = mla.latent_cache_write %0#1, %norm, %cs, %c, %batch {eps = 1.0e-6, interleaved = true} : (tensor<?x14xf32>, !mla.weight<10xbf16>, tensor<?x4xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> !mla.cache<latent, 14xf32>
  // CHECK: %[[Q:.*]] = mla.absorb_query %[[D]]#0, {{.*}} {heads = 2 : i64, {{.*}} -> tensor<?x28xf32>
  %1 = mla.absorb_query %0#0, %kvb, %cs {heads = 4, nope = 8, v = 6, interleaved = true} : (tensor<?x48xf32>, !mla.weight<56x10xbf16>, tensor<?x4xf32>) -> tensor<?x56xf32>
  // CHECK: %[[L:.*]] = mla.latent_attention %[[Q]], {{.*}} {heads = 2 : i64, {{.*}} -> tensor<?x20xf32>
  %2 = mla.latent_attention %1, %new, %batch {heads = 4, kv_lora = 10, scale = 0.25} : (tensor<?x56xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x40xf32>
  // CHECK: %[[V:.*]] = mla.expand_value %[[L]], {{.*}} {heads = 2 : i64, {{.*}} -> tensor<?x12xf32>
  %3 = mla.expand_value %2, %kvb {heads = 4, nope = 8, v = 6} : (tensor<?x40xf32>, !mla.weight<56x10xbf16>) -> tensor<?x24xf32>
  // CHECK: %[[P:.*]] = mla.linear %[[V]], {{.*}} -> tensor<?x16xf32>
  // CHECK: %[[S:.*]] = mla.all_reduce %[[P]] {ranks = 2 : i64} : tensor<?x16xf32>
  // CHECK: mla.add %[[X]], %[[S]]
  %4 = mla.linear %3, %o : (tensor<?x24xf32>, !mla.weight<16x24xbf16>) -> tensor<?x16xf32>
  %5 = mla.add %x, %4 : tensor<?x16xf32>
  return %5 : tensor<?x16xf32>
}

// -----

// Tests an MLP whose weights have scales: 256 inner columns are two groups of 128.
// CHECK-DAG: mla.weight @gate : !mla.weight<128x128xfp8_block> from "gate" scales ["gate_s"] shard <[256, 128] dim 0 in 2>
// CHECK-DAG: mla.weight @up : !mla.weight<128x128xbf16> from "up" shard <[256, 128] dim 0 in 2>
// CHECK-DAG: mla.weight @down : !mla.weight<128x128xfp8_block> from "down" scales ["down_s"] shard <[128, 256] dim 1 in 2>
mla.weight @gate : !mla.weight<256x128xfp8_block> from "gate" scales ["gate_s"]
mla.weight @up : !mla.weight<256x128xbf16> from "up"
mla.weight @down : !mla.weight<128x256xfp8_block> from "down" scales ["down_s"]
// CHECK-LABEL: func.func @mlp
func.func @mlp(%x: tensor<?x128xf32>) -> tensor<?x128xf32> {
  %g = mla.get_weight @gate : !mla.weight<256x128xfp8_block>
  %u = mla.get_weight @up : !mla.weight<256x128xbf16>
  %d = mla.get_weight @down : !mla.weight<128x256xfp8_block>
  // CHECK: %[[S:.*]] = mla.gated_linear {{.*}} -> tensor<?x128xf32>
  // CHECK: %[[D:.*]] = mla.linear %[[S]]
  // CHECK: %[[R:.*]] = mla.all_reduce %[[D]]
  // CHECK: return %[[R]]
  %s = mla.gated_linear %x, %g, %u : (tensor<?x128xf32>, !mla.weight<256x128xfp8_block>, !mla.weight<256x128xbf16>) -> tensor<?x256xf32>
  %y = mla.linear %s, %d : (tensor<?x256xf32>, !mla.weight<128x256xfp8_block>) -> tensor<?x128xf32>
  return %y : tensor<?x128xf32>
}

// -----

// Tests experts with a shared one: parts of every expert, one sum for all. The
// router stays whole. Ten columns are eight and two.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
// CHECK-DAG: mla.weight @router : !mla.weight<4x16xbf16> from "router"{{$}}
// CHECK-DAG: mla.weight @gate : !mla.weight<4x16x16xnvfp4> from "{}.gate" scales ["{}.gs", "{}.gg"] shard <[4, 32, 16] dim 1 in 2>
// CHECK-DAG: mla.weight @down : !mla.weight<4x16x16xnvfp4> from "{}.down" scales ["{}.ds", "{}.dg"] shard <[4, 16, 32] dim 2 in 2>
// CHECK-DAG: mla.weight @sup : !mla.weight<8x16xbf16> from "sup" shard <[10, 16] dim 0 in 2>
// CHECK-DAG: mla.weight @sdown : !mla.weight<16x8xbf16> from "sdown" shard <[16, 10] dim 1 in 2>
mla.weight @router : !mla.weight<4x16xbf16> from "router"
mla.weight @gate : !mla.weight<4x32x16xnvfp4> from "{}.gate" scales ["{}.gs", "{}.gg"]
mla.weight @up : !mla.weight<4x32x16xnvfp4> from "{}.up" scales ["{}.us", "{}.ug"]
mla.weight @down : !mla.weight<4x16x32xnvfp4> from "{}.down" scales ["{}.ds", "{}.dg"]
mla.weight @sgate : !mla.weight<10x16xbf16> from "sgate"
mla.weight @sup : !mla.weight<10x16xbf16> from "sup"
mla.weight @sdown : !mla.weight<16x10xbf16> from "sdown"
// CHECK-LABEL: func.func @moe
func.func @moe(%x: tensor<?x16xf32>) -> tensor<?x16xf32> {
  %r = mla.get_weight @router : !mla.weight<4x16xbf16>
  %g = mla.get_weight @gate : !mla.weight<4x32x16xnvfp4>
  %u = mla.get_weight @up : !mla.weight<4x32x16xnvfp4>
  %d = mla.get_weight @down : !mla.weight<4x16x32xnvfp4>
  %sg = mla.get_weight @sgate : !mla.weight<10x16xbf16>
  %su = mla.get_weight @sup : !mla.weight<10x16xbf16>
  %sd = mla.get_weight @sdown : !mla.weight<16x10xbf16>
  // CHECK: %[[Y:.*]] = mla.moe
  // CHECK-NEXT: %[[R:.*]] = mla.all_reduce %[[Y]] {ranks = 2 : i64}
  // CHECK-NEXT: return %[[R]]
  %y = mla.moe %x, %r experts %g, %u, %d shared %sg, %su, %sd routing #routing : (tensor<?x16xf32>, !mla.weight<4x16xbf16>, !mla.weight<4x32x16xnvfp4>, !mla.weight<4x32x16xnvfp4>, !mla.weight<4x16x32xnvfp4>, !mla.weight<10x16xbf16>, !mla.weight<10x16xbf16>, !mla.weight<16x10xbf16>) -> tensor<?x16xf32>
  return %y : tensor<?x16xf32>
}

// -----

// Tests experts apart from router and shared expert: summands are added before one
// collective, not sums after two. What is added to the sum is no summand.
mla.weight @gate : !mla.weight<4x6x8xbf16> from "{}.gate"
mla.weight @up : !mla.weight<4x6x8xbf16> from "{}.up"
mla.weight @down : !mla.weight<4x8x6xbf16> from "{}.down"
mla.weight @sgate : !mla.weight<10x8xbf16> from "sgate"
mla.weight @sup : !mla.weight<10x8xbf16> from "sup"
mla.weight @sdown : !mla.weight<8x10xbf16> from "sdown"
// CHECK-LABEL: func.func @apart
// CHECK-SAME: (%[[X:[^:]*]]:
func.func @apart(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>) -> tensor<?x8xf32> {
  %g = mla.get_weight @gate : !mla.weight<4x6x8xbf16>
  %u = mla.get_weight @up : !mla.weight<4x6x8xbf16>
  %d = mla.get_weight @down : !mla.weight<4x8x6xbf16>
  %sg = mla.get_weight @sgate : !mla.weight<10x8xbf16>
  %su = mla.get_weight @sup : !mla.weight<10x8xbf16>
  %sd = mla.get_weight @sdown : !mla.weight<8x10xbf16>
  // CHECK: %[[E:.*]] = mla.experts
  // CHECK-NOT: mla.all_reduce
  // CHECK: %[[S:.*]] = mla.linear
  // CHECK-NEXT: %[[A:.*]] = mla.add %[[E]], %[[S]]
  // CHECK-NEXT: %[[R:.*]] = mla.all_reduce %[[A]] {ranks = 2 : i64}
  // CHECK-NEXT: mla.add %[[X]], %[[R]]
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>) -> tensor<?x8xf32>
  %s = mla.gated_linear %x, %sg, %su : (tensor<?x8xf32>, !mla.weight<10x8xbf16>, !mla.weight<10x8xbf16>) -> tensor<?x10xf32>
  %y = mla.linear %s, %sd : (tensor<?x10xf32>, !mla.weight<8x10xbf16>) -> tensor<?x8xf32>
  %a = mla.add %e, %y : tensor<?x8xf32>
  %h = mla.add %x, %a : tensor<?x8xf32>
  return %h : tensor<?x8xf32>
}

// -----

// Tests a sum that others read as well: it stays, beside the other one.
mla.weight @gate : !mla.weight<4x6x8xbf16> from "{}.gate"
mla.weight @up : !mla.weight<4x6x8xbf16> from "{}.up"
mla.weight @down : !mla.weight<4x8x6xbf16> from "{}.down"
// CHECK-LABEL: func.func @sum_with_users
func.func @sum_with_users(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
  %g = mla.get_weight @gate : !mla.weight<4x6x8xbf16>
  %u = mla.get_weight @up : !mla.weight<4x6x8xbf16>
  %d = mla.get_weight @down : !mla.weight<4x8x6xbf16>
  // CHECK: %[[A:.*]] = mla.all_reduce
  // CHECK-NOT: mla.all_reduce
  // CHECK: mla.add %[[A]], %[[A]]
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>) -> tensor<?x8xf32>
  %a = mla.add %e, %e : tensor<?x8xf32>
  return %a, %e : tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// Tests a head that is tied to the embedding: a rank has the same part of the
// vocabulary for both.
// CHECK: mla.weight @embed : !mla.weight<16x16xbf16> from "embed" shard <[32, 16] dim 0 in 2>
mla.weight @embed : !mla.weight<32x16xbf16> from "embed"
// CHECK-LABEL: func.func @tied
func.func @tied(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x32xf32> {
  // CHECK: %[[T:.*]] = mla.get_weight @embed : !mla.weight<16x16xbf16>
  // CHECK: %[[H:.*]] = mla.embedding %{{.*}}, %[[T]] {ranks = 2 : i64}
  // CHECK: %[[S:.*]] = mla.all_reduce %[[H]] {ranks = 2 : i64}
  // CHECK: %[[L:.*]] = mla.lm_head %[[S]], %[[T]], {{.*}} -> tensor<?x16xf32>
  // CHECK: %[[A:.*]] = mla.all_gather %[[L]] {ranks = 2 : i64} : (tensor<?x16xf32>) -> tensor<?x32xf32>
  // CHECK: return %[[A]]
  %t = mla.get_weight @embed : !mla.weight<32x16xbf16>
  %h = mla.embedding %ids, %t : (tensor<?xi32>, !mla.weight<32x16xbf16>) -> tensor<?x16xf32>
  %l = mla.lm_head %h, %t, %batch : (tensor<?x16xf32>, !mla.weight<32x16xbf16>, !mla.batch) -> tensor<?x32xf32>
  return %l : tensor<?x32xf32>
}

// -----

// Tests a weight that something else reads whole: the part is a declaration of its
// own.
// CHECK-DAG: mla.weight @w : !mla.weight<32x16xbf16> from "w"{{$}}
// CHECK-DAG: mla.weight @w.part : !mla.weight<16x16xbf16> from "w" shard <[32, 16] dim 0 in 2>
mla.weight @w : !mla.weight<32x16xbf16> from "w"
// CHECK-LABEL: func.func @other_user
func.func @other_user(%x: tensor<?x16xf32>, %batch: !mla.batch) -> (tensor<?x32xf32>, tensor<?x32xf32>) {
  // CHECK: %[[W:.*]] = mla.get_weight @w : !mla.weight<32x16xbf16>
  // CHECK: mla.linear %{{.*}}, %[[W]]
  // CHECK: %[[P:.*]] = mla.get_weight @w.part : !mla.weight<16x16xbf16>
  // CHECK: mla.lm_head %{{.*}}, %[[P]]
  %w = mla.get_weight @w : !mla.weight<32x16xbf16>
  %y = mla.linear %x, %w : (tensor<?x16xf32>, !mla.weight<32x16xbf16>) -> tensor<?x32xf32>
  %l = mla.lm_head %x, %w, %batch : (tensor<?x16xf32>, !mla.weight<32x16xbf16>, !mla.batch) -> tensor<?x32xf32>
  return %y, %l : tensor<?x32xf32>, tensor<?x32xf32>
}
