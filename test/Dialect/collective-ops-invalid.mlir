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
  // expected-error@+1 {{C2: expected at most 3 times 8 values in a result row, found 25}}
  %0 = mla.all_gather %x {ranks = 3 : i64} : (tensor<?x8xf32>) -> tensor<?x25xf32>
  return
}

// -----

func.func @all_gather_c2_number(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{C2: expected a number of results of 2, found 1}}
  %0 = mla.all_gather %x, %x {ranks = 3 : i64} : (tensor<?x8xf32>, tensor<?x8xf32>) -> tensor<?x24xf32>
  return
}

// -----

func.func @all_gather_c2_none() {
  // expected-error@+1 {{C2: expected rows, found none}}
  mla.all_gather {ranks = 3 : i64} : () -> ()
  return
}

// -----

func.func @embedding_c3(%ids: tensor<?xi32>, %t: !mla.weight<8x4xbf16>) {
  // expected-error@+1 {{C3: expected a number of ranks of at least 2, found 1}}
  %0 = mla.embedding %ids, %t {ranks = 1 : i64} : (tensor<?xi32>, !mla.weight<8x4xbf16>) -> tensor<?x4xf32>
  return
}

// -----

func.func @experts_c5(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x6x8xbf16>, %d: !mla.weight<4x8x6xbf16>) {
  // expected-error@+1 {{C5: expected groups and group_ranks, found one}}
  %0 = mla.experts %x, %i, %w, %g, %g, %d {groups = 2 : i64} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x6x8xbf16>, !mla.weight<4x6x8xbf16>, !mla.weight<4x8x6xbf16>) -> tensor<?x8xf32>
  return
}

// -----

// expected-error@+1 {{C4: expected a number of dimensions of 2, found 3}}
mla.weight @weight_c4 : !mla.weight<4x8xbf16> from "w" shard <[2, 16, 8] dim 1 in 4>

// -----

// expected-error@+1 {{C4: expected each dimension from 0 to 1 once at the most, found 2}}
mla.weight @weight_c4_dim : !mla.weight<4x8xbf16> from "w" shard <[16, 8] dim 2 in 4>

// -----

// expected-error@+1 {{C4: expected each dimension from 0 to 1 once at the most, found 0}}
mla.weight @weight_c4_twice : !mla.weight<4x8xbf16> from "w" shard <[16, 8] dim 0 in 2, dim 0 in 2 by 2>

// -----

// expected-error@+1 {{C4: expected at least 2 parts by at least 1 rank, found 1 by 1}}
mla.weight @weight_c4_one : !mla.weight<16x8xbf16> from "w" shard <[16, 8] dim 0 in 1>

// -----

// expected-error@+1 {{C4: expected at least 2 parts by at least 1 rank, found 4 by 0}}
mla.weight @weight_c4_stride : !mla.weight<4x8xbf16> from "w" shard <[16, 8] dim 0 in 4 by 0>

// -----

// expected-error@+1 {{C4: expected sizes from 1 to 2^31, found 4294967296}}
mla.weight @weight_c4_large : !mla.weight<4x8xbf16> from "w" shard <[4294967296, 8] dim 0 in 4>

// -----

// expected-error@+1 {{C5: expected parts that make up 16, found 3 of 4}}
mla.weight @weight_c5 : !mla.weight<4x8xbf16> from "w" shard <[16, 8] dim 0 in 3>

// -----

// expected-error@+1 {{C5: expected parts that make up 8, found 1 of 4}}
mla.weight @weight_c5_undivided : !mla.weight<4x4xbf16> from "w" shard <[16, 8] dim 0 in 4>

// -----

// expected-error@+1 {{C6: expected columns in whole groups of 128, found 192}}
mla.weight @weight_c6 : !mla.weight<128x192xfp8_block> from "w" scales ["s"] shard <[128, 384] dim 1 in 2>

// -----

// expected-error@+1 {{C6: expected rows in whole groups of 128, found 96}}
mla.weight @weight_c6_rows : !mla.weight<96x128xfp8_block> from "w" scales ["s"] shard <[192, 128] dim 0 in 2>
