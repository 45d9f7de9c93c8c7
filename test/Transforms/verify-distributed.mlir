// RUN: mla-opt %s -mla-verify-distributed -verify-diagnostics -split-input-file
//
// Graphs of a rank that do not add up, and at the end one that does.

// Tests a summand that is used as if it were whole.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" slice <rows = 8, columns = 8, first_row = 4, block_rows = 4>
  mla.weight @down : !mla.weight<8x4xbf16> from "d" slice <rows = 8, columns = 8, first_column = 4, block_rows = 8>
  mla.weight @norm : !mla.weight<8xbf16> from "n"
  func.func @summand(%x: tensor<?x8xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>) {
    %g = mla.get_weight @gate : !mla.weight<4x8xbf16>
    %d = mla.get_weight @down : !mla.weight<8x4xbf16>
    %n = mla.get_weight @norm : !mla.weight<8xbf16>
    %s = mla.gated_linear %x, %g, %g : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
    %y = mla.linear %s, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.rms_norm' op needs all of its operands on each rank, found a summand}}
    %z = mla.rms_norm %y, %n {eps = 1.0e-6} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.add' op adds all and a summand}}
    %a = mla.add %x, %y : tensor<?x8xf32>
    return %z, %a : tensor<?x8xf32>, tensor<?x8xf32>
  }
}

// -----

// Tests rows that are returned, or read whole, of which the rank has a part.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @w : !mla.weight<4x4xbf16> from "g" slice <rows = 8, columns = 4, first_row = 4, block_rows = 4>
  mla.weight @v : !mla.weight<4x4xbf16> from "v"
  func.func @part(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %v = mla.get_weight @v : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'mla.linear' op needs all of its operands on each rank, found columns from 4 on of 8}}
    %z = mla.linear %y, %v : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'func.return' op needs all of its operands on each rank, found columns from 4 on of 8}}
    return %y : tensor<?x4xf32>
  }
}

// -----

// Tests columns that meet other columns of the next matrix, and a matrix of which
// the rank has columns but of the rows has all.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" slice <rows = 8, columns = 8, first_row = 4, block_rows = 4>
  mla.weight @down : !mla.weight<8x4xbf16> from "d" slice <rows = 8, columns = 8, block_rows = 8>
  func.func @other_columns(%x: tensor<?x8xf32>, %h: tensor<?x4xf32>) {
    %g = mla.get_weight @gate : !mla.weight<4x8xbf16>
    %d = mla.get_weight @down : !mla.weight<8x4xbf16>
    %s = mla.gated_linear %x, %g, %g : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{expected rows of which the rank has what it has of the matrix, columns from 0 on of 8, found columns from 4 on of 8}}
    %y = mla.linear %s, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{expected rows of which the rank has what it has of the matrix, columns from 0 on of 8, found all}}
    %z = mla.linear %h, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.gated_linear' op needs all columns of gate and up}}
    %t = mla.gated_linear %h, %d, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    return
  }
}

// -----

// Tests a gate and an up of different rows.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" slice <rows = 8, columns = 8, first_row = 4, block_rows = 4>
  mla.weight @up : !mla.weight<4x8xbf16> from "u" slice <rows = 8, columns = 8, block_rows = 4>
  func.func @gate_and_up(%x: tensor<?x8xf32>) {
    %g = mla.get_weight @gate : !mla.weight<4x8xbf16>
    %u = mla.get_weight @up : !mla.weight<4x8xbf16>
    // expected-error@+1 {{expected the same part of gate and up, found rows from 4 on of 8 and rows from 0 on of 8}}
    %s = mla.gated_linear %x, %g, %u : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
    return
  }
}

// -----

// Tests queries of other heads than kv_b, of half a head, and outputs of other ones.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @q : !mla.weight<24x16xbf16> from "q" slice <rows = 48, columns = 16, first_row = 24, block_rows = 24>
  mla.weight @half : !mla.weight<24x16xbf16> from "q" slice <rows = 48, columns = 16, first_row = 6, block_rows = 24>
  mla.weight @kv_b : !mla.weight<28x10xbf16> from "kv_b" slice <rows = 56, columns = 10, block_rows = 28>
  mla.weight @other : !mla.weight<28x10xbf16> from "kv_b" slice <rows = 56, columns = 10, first_row = 28, block_rows = 28>
  func.func @other_heads(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) {
    %q = mla.get_weight @q : !mla.weight<24x16xbf16>
    %half = mla.get_weight @half : !mla.weight<24x16xbf16>
    %kvb = mla.get_weight @kv_b : !mla.weight<28x10xbf16>
    %other = mla.get_weight @other : !mla.weight<28x10xbf16>
    %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
    %1 = mla.linear %x, %half : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
    // expected-error@+1 {{'mla.absorb_query' op expected the same heads of its rows and of kv_b, found columns from 24 on of 48 and rows from 0 on of 56}}
    %2 = mla.absorb_query %0, %kvb, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    // expected-error@+1 {{'mla.absorb_query' op expected whole heads of 12 values, found columns from 6 on of 48}}
    %3 = mla.absorb_query %1, %kvb, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    %4 = mla.absorb_query %0, %other, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    %5 = mla.latent_attention %4, %c, %batch {heads = 2, kv_lora = 10, scale = 0.25} : (tensor<?x28xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.expand_value' op expected the same heads of its rows and of kv_b, found columns from 20 on of 40 and rows from 0 on of 56}}
    %6 = mla.expand_value %5, %kvb {heads = 2, nope = 8, v = 6} : (tensor<?x20xf32>, !mla.weight<28x10xbf16>) -> tensor<?x12xf32>
    return
  }
}

// -----

// Tests experts of which the rank has a part beside a shared expert of which it has
// all, and a down that is not what gate and up make.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @router : !mla.weight<4x8xbf16> from "router"
  mla.weight @gate : !mla.weight<4x3x8xbf16> from "{}.gate" slice <rows = 6, columns = 8, first_row = 3, block_rows = 3>
  mla.weight @down : !mla.weight<4x8x3xbf16> from "{}.down" slice <rows = 8, columns = 6, first_column = 3, block_rows = 8>
  mla.weight @first : !mla.weight<4x8x3xbf16> from "{}.down" slice <rows = 8, columns = 6, block_rows = 8>
  mla.weight @sgate : !mla.weight<10x8xbf16> from "sgate"
  mla.weight @sdown : !mla.weight<8x10xbf16> from "sdown"
  func.func @experts(%x: tensor<?x8xf32>) {
    %r = mla.get_weight @router : !mla.weight<4x8xbf16>
    %g = mla.get_weight @gate : !mla.weight<4x3x8xbf16>
    %d = mla.get_weight @down : !mla.weight<4x8x3xbf16>
    %f = mla.get_weight @first : !mla.weight<4x8x3xbf16>
    %sg = mla.get_weight @sgate : !mla.weight<10x8xbf16>
    %sd = mla.get_weight @sdown : !mla.weight<8x10xbf16>
    // expected-error@+1 {{'mla.moe' op expected parts of all experts or of none, the shared one included}}
    %0 = mla.moe %x, %r experts %g, %g, %d shared %sg, %sg, %sd routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x8x3xbf16>, !mla.weight<10x8xbf16>, !mla.weight<10x8xbf16>, !mla.weight<8x10xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.moe' op expected a part of down that gate and up make, found columns from 0 on of 6 for rows from 3 on of 6}}
    %1 = mla.moe %x, %r experts %g, %g, %f routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x8x3xbf16>) -> tensor<?x8xf32>
    return
  }
}

// -----

// Tests collectives of what is whole, of another number of ranks, and of another
// rank's columns; and two where one would do.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @w : !mla.weight<4x4xbf16> from "w" slice <rows = 8, columns = 4, block_rows = 4>
  mla.weight @d : !mla.weight<4x4xbf16> from "d" slice <rows = 4, columns = 8, block_rows = 4>
  func.func @collectives(%x: tensor<?x4xf32>) {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %s = mla.linear %y, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected a summand, found all}}
    %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected a summand, found columns from 0 on of 8}}
    %1 = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected 2 ranks as the module has, found 4}}
    %2 = mla.all_reduce %s {ranks = 4 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_gather' op expected columns from 4 on of 8, found columns from 0 on of 8}}
    %3 = mla.all_gather %y {ranks = 2 : i64} : (tensor<?x4xf32>) -> tensor<?x8xf32>
    %4 = mla.all_reduce %s {ranks = 2 : i64} : tensor<?x4xf32>
    %5 = mla.all_reduce %s {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.add' op adds two sums over the ranks, where one collective after it would do}}
    %6 = mla.add %4, %5 : tensor<?x4xf32>
    return
  }
}

// -----

// Tests a part that is cut both ways, told where it is declared.
module attributes {mla.rank = 0 : i64, mla.ranks = 2 : i64} {
  // expected-error@+1 {{'mla.weight' op expected a part of rows in one run, or of columns}}
  mla.weight @w : !mla.weight<4x4xbf16> from "w" slice <rows = 8, columns = 8, block_rows = 4>
  func.func @corner(%x: tensor<?x4xf32>) {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    return
  }
}

// -----

// Tests that a whole model has no collectives.
func.func @whole(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
  // expected-error@+1 {{'mla.all_reduce' op expected 1 ranks as the module has, found 2}}
  %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x4xf32>
  return %0 : tensor<?x4xf32>
}

// -----

// Tests a rank that does not exist.
// expected-error@+1 {{expected a rank below the number of ranks, found rank 2 of 2}}
module attributes {mla.rank = 2 : i64, mla.ranks = 2 : i64} {
}

// -----

// A part that is all of its tensor is whole; two summands add up to a summand.
module attributes {mla.rank = 1 : i64, mla.ranks = 2 : i64} {
  mla.weight @all : !mla.weight<8x4xbf16> from "a" slice <rows = 8, columns = 4, block_rows = 8>
  mla.weight @w : !mla.weight<4x4xbf16> from "w" slice <rows = 8, columns = 4, first_row = 4, block_rows = 4>
  mla.weight @d : !mla.weight<4x4xbf16> from "d" slice <rows = 4, columns = 8, first_column = 4, block_rows = 4>
  func.func @good(%x: tensor<?x4xf32>) -> (tensor<?x8xf32>, tensor<?x4xf32>) {
    %a = mla.get_weight @all : !mla.weight<8x4xbf16>
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %0 = mla.linear %x, %a : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %s = mla.linear %y, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %t = mla.add %s, %s : tensor<?x4xf32>
    %1 = mla.all_reduce %t {ranks = 2 : i64} : tensor<?x4xf32>
    return %0, %1 : tensor<?x8xf32>, tensor<?x4xf32>
  }
}
