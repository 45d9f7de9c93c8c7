// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s
//
// Round trip of collectives and of parts of weights, also through the generic form.

// CHECK: mla.weight @rows : !mla.weight<4x8xbf16> from "r" slice <rows = 16, columns = 8, first_row = 4, block_rows = 4>
mla.weight @rows : !mla.weight<4x8xbf16> from "r" slice <rows = 16, columns = 8, first_row = 4, block_rows = 4>
// CHECK: mla.weight @columns : !mla.weight<2x16x32xnvfp4> from "{}.w" scales ["{}.s", "{}.g"] slice <rows = 16, columns = 64, first_column = 32, block_rows = 16> {reciprocal_global}
mla.weight @columns : !mla.weight<2x16x32xnvfp4> from "{}.w" scales ["{}.s", "{}.g"] slice <rows = 16, columns = 64, first_column = 32, block_rows = 16> {reciprocal_global}
// A corner that ends in the short groups of the tensor.
// CHECK: slice <rows = 200, columns = 300, first_row = 128, first_column = 256, block_rows = 72>
mla.weight @corner : !mla.weight<72x44xfp8_block> from "c" scales ["s"] slice <rows = 200, columns = 300, first_row = 128, first_column = 256, block_rows = 72>
// Two rows of each of three heads.
// CHECK: slice <rows = 12, columns = 8, first_row = 1, blocks = 3, block_rows = 2, row_stride = 4>
mla.weight @heads : !mla.weight<6x8xf32> from "h" slice <rows = 12, columns = 8, first_row = 1, blocks = 3, block_rows = 2, row_stride = 4>
// CHECK: mla.weight @vector : !mla.weight<3xf32> from "v" slice <rows = 1, columns = 8, first_column = 5, block_rows = 1>
mla.weight @vector : !mla.weight<3xf32> from "v" slice <rows = 1, columns = 8, first_column = 5, block_rows = 1>

// CHECK-LABEL: func.func @collectives
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>)
func.func @collectives(%x: tensor<?x8xf32>) {
  // CHECK: mla.all_reduce %[[X]] {ranks = 2 : i64} : tensor<?x8xf32>
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x8xf32>
  // CHECK: mla.all_reduce %[[X]] {local, ranks = 8 : i64} : tensor<?x8xf32>
  %1 = mla.all_reduce %x {ranks = 8 : i64, local} : tensor<?x8xf32>
  // CHECK: mla.all_gather %[[X]] {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x24xf32>
  %2 = mla.all_gather %x {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x24xf32>
  // CHECK: mla.all_gather %[[X]] {local, ranks = 2 : i64}
  %3 = mla.all_gather %x {ranks = 2 : i64, local} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return
}
