// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s
//
// Round trip of collectives and of parts of weights, also through the generic form.

// CHECK: mla.weight @rows : !mla.weight<4x8xbf16> from "r" shard <[16, 8] dim 0 in 4>
mla.weight @rows : !mla.weight<4x8xbf16> from "r" shard <[16, 8] dim 0 in 4>
// CHECK: mla.weight @columns : !mla.weight<2x16x32xnvfp4> from "{}.w" scales ["{}.s", "{}.g"] shard <[2, 16, 64] dim 2 in 2> {reciprocal_global}
mla.weight @columns : !mla.weight<2x16x32xnvfp4> from "{}.w" scales ["{}.s", "{}.g"] shard <[2, 16, 64] dim 2 in 2> {reciprocal_global}
// Experts of two groups of four ranks, and a quarter of the rows of each.
// CHECK: shard <[5, 16, 8] dim 0 in 2 by 4, dim 1 in 4>
mla.weight @experts : !mla.weight<3x4x8xbf16> from "{}.w" shard <[5, 16, 8] dim 0 in 2 by 4, dim 1 in 4>
// Parts that reach beyond the whole, and beyond the last, short group of scales.
// CHECK: shard <[200, 300] dim 0 in 2>
mla.weight @beyond : !mla.weight<128x300xfp8_block> from "c" scales ["s"] shard <[200, 300] dim 0 in 2>
// Parts of one group.
// CHECK: shard <[128, 256] dim 0 in 4>
mla.weight @copies : !mla.weight<32x256xfp8_block> from "d" scales ["s"] shard <[128, 256] dim 0 in 4>
// CHECK: mla.weight @vector : !mla.weight<3xf32> from "v" shard <[8] dim 0 in 3>
mla.weight @vector : !mla.weight<3xf32> from "v" shard <[8] dim 0 in 3>

// CHECK-LABEL: func.func @collectives
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>)
func.func @collectives(%x: tensor<?x8xf32>) {
  // CHECK: mla.all_reduce %[[X]] {ranks = 2 : i64} : tensor<?x8xf32>
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  // CHECK: mla.all_reduce %[[X]] {local, ranks = 8 : i64} : tensor<?x8xf32>
  %1 = mla.all_reduce %x {ranks = 8 : i64, local} : tensor<?x8xf32>
  // CHECK: mla.all_gather %[[X]] {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x24xf32>
  %2 = mla.all_gather %x {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x24xf32>
  // CHECK: mla.all_gather %[[X]], %[[X]] {ranks = 3 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>) -> (tensor<?x20xf32>, tensor<?x24xf32>)
  %4:2 = mla.all_gather %x, %x {ranks = 3 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>) -> (tensor<?x20xf32>, tensor<?x24xf32>)
  // CHECK: mla.all_gather %[[X]] {local, ranks = 2 : i64}
  %3 = mla.all_gather %x {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return
}
