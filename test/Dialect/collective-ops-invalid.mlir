// RUN: mla-opt %s -verify-diagnostics -split-input-file
//
// Each numbered constraint of collectives and of parts of weights, violated.

func.func @all_reduce_c1(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C1: expected a number of ranks of at least 2, found 1}}
  %0 = mla.all_reduce %x {ranks = 1 : i64} : tensor<?x8xf32>
  return
}

// -----

func.func @all_reduce_types(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{requires the same type for all operands and results}}
  %0 = "mla.all_reduce"(%x) {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x4xf32>
  return
}

// -----

func.func @all_gather_c1(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C1: expected a number of ranks of at least 2, found -1}}
  %0 = mla.all_gather %x {ranks = -1 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return
}

// -----

func.func @all_gather_c2(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C2: expected a result row of 24, found 16}}
  %0 = mla.all_gather %x {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  return
}

// -----

// A number of ranks whose product with the width overflows.
func.func @all_gather_c2_overflow(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C2: expected a result row of -1, found 8}}
  %0 = mla.all_gather %x {ranks = 2305843009213693953 : i64} : (tensor<?x8xf32>) -> tensor<?x8xf32>
  return
}

// -----

// expected-error@+1 {{C4: expected rows inside of 16, found the slice to end at 17}}
mla.weight @weight_c4 : !mla.weight<4x8xbf16> from "w" slice <rows = 16, columns = 8, first_row = 13, block_rows = 4>

// -----

// expected-error@+1 {{C4: expected rows inside of 16, found the slice to end at 18}}
mla.weight @weight_c4_runs : !mla.weight<6x8xbf16> from "w" slice <rows = 16, columns = 8, first_row = 0, blocks = 3, block_rows = 2, row_stride = 8>

// -----

// expected-error@+1 {{C4: expected runs that do not overlap, found 4 rows at a stride of 3}}
mla.weight @weight_c4_overlap : !mla.weight<8x8xbf16> from "w" slice <rows = 16, columns = 8, blocks = 2, block_rows = 4, row_stride = 3>

// -----

// expected-error@+1 {{C4: expected sizes from 1 to 2^31, found #mla.slice<rows = 16, columns = 8, blocks = 0, block_rows = 4>}}
mla.weight @weight_c4_empty : !mla.weight<4x8xbf16> from "w" slice <rows = 16, columns = 8, blocks = 0, block_rows = 4>

// -----

// expected-error@+1 {{C4: expected sizes from 1 to 2^31, found}}
mla.weight @weight_c4_large : !mla.weight<4x8xbf16> from "w" slice <rows = 4294967296, columns = 8, block_rows = 4>

// -----

// expected-error@+1 {{C4: expected places from 0 to 2^31, found}}
mla.weight @weight_c4_negative : !mla.weight<4x8xbf16> from "w" slice <rows = 16, columns = 8, first_row = -4, block_rows = 4>

// -----

// expected-error@+1 {{C5: expected a number of rows of 8, found 4}}
mla.weight @weight_c5 : !mla.weight<4x8xbf16> from "w" slice <rows = 16, columns = 8, block_rows = 8>

// -----

// expected-error@+1 {{C5: expected columns inside of 8, found the slice to end at 9}}
mla.weight @weight_c5_columns : !mla.weight<4x4xbf16> from "w" slice <rows = 4, columns = 8, first_column = 5, block_rows = 4>

// -----

// expected-error@+1 {{C5: expected a number of rows of 2, found 1}}
mla.weight @weight_c5_vector : !mla.weight<4xbf16> from "w" slice <rows = 2, columns = 4, block_rows = 2>

// -----

// expected-error@+1 {{C6: expected columns in whole groups of 16, found 8 to 24}}
mla.weight @weight_c6 : !mla.weight<4x16xnvfp4> from "w" scales ["s", "g"] slice <rows = 4, columns = 64, first_column = 8, block_rows = 4>

// -----

// expected-error@+1 {{C6: expected columns in whole groups of 128, found 128 to 192}}
mla.weight @weight_c6_columns : !mla.weight<128x64xfp8_block> from "w" scales ["s"] slice <rows = 128, columns = 256, first_column = 128, block_rows = 128>

// -----

// expected-error@+1 {{C6: expected rows in whole groups of 128, found 64 to 192}}
mla.weight @weight_c6_rows : !mla.weight<128x128xfp8_block> from "w" scales ["s"] slice <rows = 256, columns = 128, first_row = 64, block_rows = 128>

// -----

// expected-error@+1 {{C6: expected rows in whole groups of 128, found 448 to 576}}
mla.weight @weight_c6_runs : !mla.weight<256x128xfp8_block> from "w" scales ["s"] slice <rows = 896, columns = 128, blocks = 2, block_rows = 128, row_stride = 448>
