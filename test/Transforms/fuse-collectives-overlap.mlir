// RUN: mla-opt %s -split-input-file -mla-fuse-collectives -mla-verify-collectives | FileCheck %s
//
// The order of ops: collectives early, behind them what does not need them.

// Tests that what comes before a collective and is not needed by it comes behind it,
// in its old order, and that names follow their users.
// CHECK-LABEL: func.func @rotary
func.func @rotary(%ids: tensor<?xi32>, %batch: !mla.batch) -> (tensor<?x8xf32>, tensor<?x4xf32>, tensor<?x2xf32>) {
  // CHECK: mla.get_weight @t
  // CHECK-NEXT: mla.embedding
  // CHECK-NEXT: mla.get_weight @n
  // CHECK-NEXT: mla.all_reduce_rms_norm
  // CHECK-NEXT: mla.rotary_embedding {{.*}} -> tensor<?x4xf32>
  // CHECK-NEXT: mla.rotary_embedding {{.*}} -> tensor<?x2xf32>
  // CHECK-NEXT: mla.get_weight @w
  // CHECK-NEXT: mla.linear
  %w = mla.get_weight @w : !mla.weight<8x8xbf16>
  %t = mla.get_weight @t : !mla.weight<16x8xbf16>
  %r = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  %e = mla.embedding %ids, %t {ranks = 2 : i64} : (tensor<?xi32>, !mla.weight<16x8xbf16>) -> tensor<?x8xf32>
  %q = mla.rotary_embedding %batch {frequencies = array<f32: 1.0>, factor = 1.0} : (!mla.batch) -> tensor<?x2xf32>
  %s = mla.all_reduce %e {ranks = 2 : i64} : tensor<?x8xf32>
  %n = mla.get_weight @n : !mla.weight<8xbf16>
  %h = mla.rms_norm %s, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  %y = mla.linear %h, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  return %y, %r, %q : tensor<?x8xf32>, tensor<?x4xf32>, tensor<?x2xf32>
}
mla.weight @t : !mla.weight<16x8xbf16> from "t" shard <[32, 8] dim 0 in 2>
mla.weight @w : !mla.weight<8x8xbf16> from "w"
mla.weight @n : !mla.weight<8xbf16> from "n"

// -----

// Tests work that stands behind the first user: it comes before it. What feeds the next
// collective goes first.
// CHECK-LABEL: func.func @pull
// CHECK-SAME: (%[[X:[^:]*]]: {{.*}}, %[[Y:[^:]*]]: tensor
func.func @pull(%x: tensor<?x8xf32>, %y: tensor<?x8xf32>, %w: !mla.weight<8x8xbf16>, %v: !mla.weight<16x16xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x8xf32>) {
  // CHECK-NEXT: %[[G:.*]] = mla.all_gather %[[X]]
  // CHECK-NEXT: %[[F:.*]] = mla.linear %[[Y]]
  // CHECK-NEXT: %[[H:.*]] = mla.all_gather %[[F]]
  // CHECK-NEXT: %[[A:.*]] = mla.add %[[Y]], %[[Y]]
  // CHECK-NEXT: %[[U:.*]] = mla.linear %[[G]]
  // CHECK-NEXT: return %[[U]], %[[H]], %[[A]]
  %0 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %1 = mla.linear %0, %v : (tensor<?x16xf32>, !mla.weight<16x16xbf16>) -> tensor<?x16xf32>
  %2 = mla.add %y, %y : tensor<?x8xf32>
  %3 = mla.linear %y, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %4 = mla.all_gather %3 {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return %1, %4, %2 : tensor<?x16xf32>, tensor<?x16xf32>, tensor<?x8xf32>
}

// -----

// Tests a chain: nothing is independent, so the order stays, names included.
// CHECK-LABEL: func.func @chain
func.func @chain(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>) -> tensor<?x16xf32> {
  // CHECK-NEXT: mla.get_weight @w
  // CHECK-NEXT: mla.linear
  // CHECK-NEXT: mla.get_weight @n
  // CHECK-NEXT: %[[S:.*]], %[[N:.*]] = mla.all_reduce_rms_norm
  // CHECK-NEXT: mla.add %[[S]], %[[N]]
  // CHECK-NEXT: mla.all_gather
  // CHECK-NEXT: return
  %w = mla.get_weight @w : !mla.weight<8x8xbf16>
  %y = mla.linear %x, %w : (tensor<?x8xf32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %s = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x8xf32>
  %a = mla.add %h, %s : tensor<?x8xf32>
  %n = mla.get_weight @n : !mla.weight<8xbf16>
  %m = mla.rms_norm %a, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  %z = mla.add %a, %m : tensor<?x8xf32>
  %g = mla.all_gather %z {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return %g : tensor<?x16xf32>
}
mla.weight @w : !mla.weight<8x8xbf16> from "w"
mla.weight @n : !mla.weight<8xbf16> from "n"

// -----

// Tests caches. A write waits for the reads of what it overwrites, though it needs
// nothing of theirs; a read waits for the write whose result it has. The write of @b
// needs nobody's and runs under the gather.
mla.cache @a : !mla.cache<expanded, 6xf32>
mla.cache @b : !mla.cache<expanded, 6xf32>
// CHECK-LABEL: func.func @caches
// CHECK-SAME: (%[[X:[^:]*]]: tensor<?x3xf32>, %[[P:[^:]*]]: tensor
func.func @caches(%x: tensor<?x3xf32>, %p: tensor<?x6xf32>, %batch: !mla.batch) -> (tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2xf32>) {
  // CHECK-NEXT: %[[G:.*]] = mla.all_gather %[[X]]
  // CHECK-NEXT: %[[B:.*]] = mla.get_cache @b
  // CHECK-NEXT: %[[B1:.*]] = mla.cache_write %[[B]],
  // CHECK-NEXT: %[[OFB:.*]] = mla.attention %[[P]], %[[B1]]
  // CHECK-NEXT: %[[A:.*]] = mla.get_cache @a
  // CHECK-NEXT: %[[OLD:.*]] = mla.attention %[[G]], %[[A]]
  // CHECK-NEXT: %[[A1:.*]] = mla.cache_write %[[A]],
  // CHECK-NEXT: %[[NEW:.*]] = mla.attention %[[G]], %[[A1]]
  // CHECK-NEXT: mla.cache_write %[[A1]],
  // CHECK-NEXT: return %[[OLD]], %[[NEW]], %[[OFB]]
  %a = mla.get_cache @a : !mla.cache<expanded, 6xf32>
  %b = mla.get_cache @b : !mla.cache<expanded, 6xf32>
  %q = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x3xf32>) -> tensor<?x6xf32>
  %old = mla.attention %q, %a, %batch {heads = 2, nope = 1, rope = 2, v = 1, scale = 1.0} : (tensor<?x6xf32>, !mla.cache<expanded, 6xf32>, !mla.batch) -> tensor<?x2xf32>
  %a1 = mla.cache_write %a, %batch, %p : (!mla.cache<expanded, 6xf32>, !mla.batch, tensor<?x6xf32>) -> !mla.cache<expanded, 6xf32>
  %b1 = mla.cache_write %b, %batch, %p : (!mla.cache<expanded, 6xf32>, !mla.batch, tensor<?x6xf32>) -> !mla.cache<expanded, 6xf32>
  %new = mla.attention %q, %a1, %batch {heads = 2, nope = 1, rope = 2, v = 1, scale = 1.0} : (tensor<?x6xf32>, !mla.cache<expanded, 6xf32>, !mla.batch) -> tensor<?x2xf32>
  %a2 = mla.cache_write %a1, %batch, %p : (!mla.cache<expanded, 6xf32>, !mla.batch, tensor<?x6xf32>) -> !mla.cache<expanded, 6xf32>
  %ofb = mla.attention %p, %b1, %batch {heads = 2, nope = 1, rope = 2, v = 1, scale = 1.0} : (tensor<?x6xf32>, !mla.cache<expanded, 6xf32>, !mla.batch) -> tensor<?x2xf32>
  return %old, %new, %ofb : tensor<?x2xf32>, tensor<?x2xf32>, tensor<?x2xf32>
}

// -----

// Tests that a cache of which nothing is known is any of them.
mla.cache @a : !mla.cache<expanded, 6xf32>
// CHECK-LABEL: func.func @unknown_cache
func.func @unknown_cache(%x: tensor<?x3xf32>, %p: tensor<?x6xf32>, %batch: !mla.batch, %c: !mla.cache<expanded, 6xf32>) -> tensor<?x2xf32> {
  // CHECK-NEXT: mla.get_cache @a
  // CHECK-NEXT: mla.all_gather
  // CHECK-NEXT: mla.attention
  // CHECK-NEXT: mla.cache_write %arg3
  // CHECK-NEXT: return
  %a = mla.get_cache @a : !mla.cache<expanded, 6xf32>
  %q = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x3xf32>) -> tensor<?x6xf32>
  %old = mla.attention %q, %a, %batch {heads = 2, nope = 1, rope = 2, v = 1, scale = 1.0} : (tensor<?x6xf32>, !mla.cache<expanded, 6xf32>, !mla.batch) -> tensor<?x2xf32>
  %c1 = mla.cache_write %c, %batch, %p : (!mla.cache<expanded, 6xf32>, !mla.batch, tensor<?x6xf32>) -> !mla.cache<expanded, 6xf32>
  return %old : tensor<?x2xf32>
}

// -----

// Tests that nothing moves across an op whose effects are not known.
func.func private @effect()
// CHECK-LABEL: func.func @barrier
func.func @barrier(%x: tensor<?x8xf32>) -> (tensor<?x16xf32>, tensor<?x8xf32>, tensor<?x16xf32>) {
  // CHECK-NEXT: mla.all_gather
  // CHECK-NEXT: mla.add {{.*}} : tensor<?x16xf32>
  // CHECK-NEXT: call @effect
  // CHECK-NEXT: mla.all_gather
  // CHECK-NEXT: mla.add {{.*}} : tensor<?x8xf32>
  // CHECK-NEXT: return
  %0 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %1 = mla.add %0, %0 : tensor<?x16xf32>
  func.call @effect() : () -> ()
  %2 = mla.add %x, %x : tensor<?x8xf32>
  %3 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return %1, %2, %3 : tensor<?x16xf32>, tensor<?x8xf32>, tensor<?x16xf32>
}

// -----

// Tests a shared expert whose op waits for gathered logits: it comes out and runs while
// they are gathered, and its summand is added before the one reduction.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
// CHECK-LABEL: func.func @shared
// CHECK-SAME: (%[[X:[^:]*]]: tensor
func.func @shared(%x: tensor<?x8xf32>, %h: tensor<?x8xf32>, %r: !mla.weight<2x8xbf16>, %e: !mla.weight<4x6x8xbf16>, %d: !mla.weight<4x8x6xbf16>, %sg: !mla.weight<5x8xbf16>, %su: !mla.weight<5x8xf32>, %sd: !mla.weight<8x5xf16>, %n: !mla.weight<8xbf16>) -> tensor<?x8xf32> {
  // CHECK-NEXT: %[[P:.*]] = mla.linear %[[X]]
  // CHECK-NEXT: %[[L:.*]] = mla.all_gather %[[P]]
  // CHECK-NEXT: %[[S:.*]] = mla.gated_linear %[[X]], %{{.*}} : (tensor<?x8xf32>, !mla.weight<5x8xbf16>, !mla.weight<5x8xf32>) -> tensor<?x5xf32>
  // CHECK-NEXT: %[[T:.*]] = mla.linear %[[S]], %{{.*}} : (tensor<?x5xf32>, !mla.weight<8x5xf16>) -> tensor<?x8xf32>
  // CHECK-NEXT: %[[M:.*]] = mla.moe %[[X]] logits %[[L]] experts
  // CHECK-NOT: shared
  // CHECK-NEXT: %[[A:.*]] = mla.add %[[M]], %[[T]]
  // CHECK-NEXT: %{{.*}}, %[[N:.*]] = mla.all_reduce_rms_norm %[[A]], %{{.*}} residual
  // CHECK-NEXT: return %[[N]]
  %p = mla.linear %x, %r : (tensor<?x8xf32>, !mla.weight<2x8xbf16>) -> tensor<?x2xf32>
  %l = mla.all_gather %p {ranks = 2 : i64} : (tensor<?x2xf32>) -> tensor<?x4xf32>
  %y = mla.moe %x logits %l experts %e, %e, %d shared %sg, %su, %sd routing #routing : (tensor<?x8xf32>, tensor<?x4xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>, !mla.weight<5x8xbf16>, !mla.weight<5x8xf32>, !mla.weight<8x5xf16>) -> tensor<?x8xf32>
  %s = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x8xf32>
  %a = mla.add %h, %s : tensor<?x8xf32>
  %m = mla.rms_norm %a, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  return %m : tensor<?x8xf32>
}

// -----

// Tests near misses: a router of which the rank has all, and logits that are its own
// or gathered without an exchange. The shared expert stays where it is.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
// CHECK-LABEL: func.func @not_shared
func.func @not_shared(%x: tensor<?x8xf32>, %l: tensor<?x4xf32>, %p: tensor<?x2xf32>, %r: !mla.weight<4x8xbf16>, %e: !mla.weight<4x6x8xbf16>, %d: !mla.weight<4x8x6xbf16>, %sg: !mla.weight<5x8xbf16>, %sd: !mla.weight<8x5xbf16>) -> (tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>) {
  // CHECK: mla.moe %{{.*}}, %{{.*}} experts {{.*}} shared
  // CHECK-NEXT: mla.moe %{{.*}} logits %{{.*}} experts {{.*}} shared
  // CHECK-NEXT: mla.all_gather
  // CHECK-NEXT: mla.moe %{{.*}} logits %{{.*}} experts {{.*}} shared
  // CHECK-NEXT: return
  %0 = mla.moe %x, %r experts %e, %e, %d shared %sg, %sg, %sd routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>, !mla.weight<5x8xbf16>, !mla.weight<5x8xbf16>, !mla.weight<8x5xbf16>) -> tensor<?x8xf32>
  %1 = mla.moe %x logits %l experts %e, %e, %d shared %sg, %sg, %sd routing #routing : (tensor<?x8xf32>, tensor<?x4xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>, !mla.weight<5x8xbf16>, !mla.weight<5x8xbf16>, !mla.weight<8x5xbf16>) -> tensor<?x8xf32>
  %g = mla.all_gather %p {ranks = 2 : i64, local} : (tensor<?x2xf32>) -> tensor<?x4xf32>
  %2 = mla.moe %x logits %g experts %e, %e, %d shared %sg, %sg, %sd routing #routing : (tensor<?x8xf32>, tensor<?x4xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>, !mla.weight<5x8xbf16>, !mla.weight<5x8xbf16>, !mla.weight<8x5xbf16>) -> tensor<?x8xf32>
  return %0, %1, %2 : tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x8xf32>
}

// -----

// Tests gathers side by side: they become one, three at a time, with the results of
// each in the place of its own.
// CHECK-LABEL: func.func @gathers
// CHECK-SAME: (%[[X:[^:]*]]: {{.*}}, %[[Y:[^:]*]]: {{.*}}, %[[Z:[^:]*]]: tensor
func.func @gathers(%x: tensor<?x8xf32>, %y: tensor<?x3xf32>, %z: tensor<?x4xf32>) -> (tensor<?x16xf32>, tensor<?x5xf32>, tensor<?x8xf32>) {
  // CHECK-NEXT: %[[G:.*]]:3 = mla.all_gather %[[X]], %[[Y]], %[[Z]] {ranks = 2 : i64} : ({{.*}}) -> (tensor<?x16xf32>, tensor<?x5xf32>, tensor<?x8xf32>)
  // CHECK-NEXT: %[[A:.*]] = mla.add %[[G]]#0, %[[G]]#0
  // CHECK-NEXT: return %[[A]], %[[G]]#1, %[[G]]#2
  %0 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %1 = mla.add %0, %0 : tensor<?x16xf32>
  %2:2 = mla.all_gather %y, %z {ranks = 2 : i64} : (tensor<?x3xf32>, tensor<?x4xf32>) -> (tensor<?x5xf32>, tensor<?x8xf32>)
  return %1, %2#0, %2#1 : tensor<?x16xf32>, tensor<?x5xf32>, tensor<?x8xf32>
}

// -----

// Tests gathers that stay two: one of what the other made, of other ranks (which the
// stage's verification would refuse), and of the rows that want logits.
// CHECK-LABEL: func.func @two_gathers
func.func @two_gathers(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>, %batch: !mla.batch) -> (tensor<?x32xf32>, tensor<?x24xf32>, tensor<?x32xf32>) {
  // CHECK-NEXT: mla.all_gather {{.*}} -> tensor<?x16xf32>
  // CHECK-NEXT: mla.all_gather {{.*}} -> tensor<?x32xf32>
  // CHECK-NEXT: mla.all_gather {{.*}} {ranks = 3 : i64}
  // CHECK-NEXT: mla.lm_head
  // CHECK-NEXT: mla.all_gather {{.*}} -> tensor<?x32xf32>
  // CHECK-NEXT: return
  %0 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %1 = mla.all_gather %0 {ranks = 2 : i64} : (tensor<?x16xf32>) -> tensor<?x32xf32>
  %2 = mla.all_gather %x {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x24xf32>
  %3 = mla.lm_head %x, %w, %batch : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.batch) -> tensor<?x16xf32>
  %4 = mla.all_gather %3 {ranks = 2 : i64} : (tensor<?x16xf32>) -> tensor<?x32xf32>
  return %1, %2, %4 : tensor<?x32xf32>, tensor<?x24xf32>, tensor<?x32xf32>
}
