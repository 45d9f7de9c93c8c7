// RUN: mla-opt %s -mla-verify-distributed -verify-diagnostics -split-input-file
//
// Graphs of a rank that do not add up, and at the end one that does.

// Tests a summand that is used as if it were whole.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" shard <[8, 8] dim 0 in 2>
  mla.weight @down : !mla.weight<8x4xbf16> from "d" shard <[8, 8] dim 1 in 2>
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
module attributes {mla.ranks = 2 : i64} {
  mla.weight @w : !mla.weight<4x4xbf16> from "g" shard <[8, 4] dim 0 in 2>
  mla.weight @v : !mla.weight<4x4xbf16> from "v"
  func.func @part(%x: tensor<?x4xf32>) -> tensor<?x4xf32> {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %v = mla.get_weight @v : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'mla.linear' op needs all of its operands on each rank, found 4 of 8 columns}}
    %z = mla.linear %y, %v : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'func.return' op needs all of its operands on each rank, found 4 of 8 columns}}
    return %y : tensor<?x4xf32>
  }
}

// -----

// Tests columns that meet other columns of the next matrix, and a matrix of which
// the rank has columns but of the rows has all.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" shard <[8, 8] dim 0 in 2>
  mla.weight @down : !mla.weight<8x4xbf16> from "d" shard <[8, 7] dim 1 in 2>
  func.func @other_columns(%x: tensor<?x8xf32>, %h: tensor<?x4xf32>) {
    %g = mla.get_weight @gate : !mla.weight<4x8xbf16>
    %d = mla.get_weight @down : !mla.weight<8x4xbf16>
    %s = mla.gated_linear %x, %g, %g : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{expected rows of which the rank has what it has of the matrix, 4 of 7 columns, found 4 of 8 columns}}
    %y = mla.linear %s, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{expected rows of which the rank has what it has of the matrix, 4 of 7 columns, found all}}
    %z = mla.linear %h, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.gated_linear' op needs all columns of gate and up}}
    %t = mla.gated_linear %h, %d, %d : (tensor<?x4xf32>, !mla.weight<8x4xbf16>, !mla.weight<8x4xbf16>) -> tensor<?x8xf32>
    return
  }
}

// -----

// Tests a gate and an up of different rows: every second rank has the same ones.
module attributes {mla.ranks = 4 : i64} {
  mla.weight @gate : !mla.weight<4x8xbf16> from "g" shard <[8, 8] dim 0 in 2>
  mla.weight @up : !mla.weight<4x8xbf16> from "u" shard <[8, 8] dim 0 in 2 by 2>
  func.func @gate_and_up(%x: tensor<?x8xf32>) {
    %g = mla.get_weight @gate : !mla.weight<4x8xbf16>
    %u = mla.get_weight @up : !mla.weight<4x8xbf16>
    // expected-error@+1 {{expected the same part of gate and up, found 4 of 8 rows and 4 of 8 rows on every 2 ranks}}
    %s = mla.gated_linear %x, %g, %u : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x8xbf16>) -> tensor<?x4xf32>
    return
  }
}

// -----

// Tests queries of other heads than kv_b, and parts that are no whole heads.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @q : !mla.weight<24x16xbf16> from "q" shard <[48, 16] dim 0 in 2>
  mla.weight @half : !mla.weight<24x16xbf16> from "q" shard <[42, 16] dim 0 in 2>
  mla.weight @kv_b : !mla.weight<28x10xbf16> from "kv_b" shard <[42, 10] dim 0 in 2>
  mla.weight @same : !mla.weight<28x10xbf16> from "kv_b" shard <[56, 10] dim 0 in 2>
  func.func @other_heads(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) {
    %q = mla.get_weight @q : !mla.weight<24x16xbf16>
    %half = mla.get_weight @half : !mla.weight<24x16xbf16>
    %kvb = mla.get_weight @kv_b : !mla.weight<28x10xbf16>
    %same = mla.get_weight @same : !mla.weight<28x10xbf16>
    %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
    %1 = mla.linear %x, %half : (tensor<?x16xf32>, !mla.weight<24x16xbf16>) -> tensor<?x24xf32>
    // expected-error@+1 {{'mla.absorb_query' op expected the same heads of its rows and of kv_b, found 24 of 48 columns and 28 of 42 rows}}
    %2 = mla.absorb_query %0, %kvb, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    // expected-error@+1 {{'mla.absorb_query' op expected whole heads of 12 values, found 24 of 42 columns}}
    %3 = mla.absorb_query %1, %kvb, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    %4 = mla.absorb_query %0, %same, %cs {heads = 2, nope = 8, v = 6, interleaved = true} : (tensor<?x24xf32>, !mla.weight<28x10xbf16>, tensor<?x4xf32>) -> tensor<?x28xf32>
    %5 = mla.latent_attention %4, %c, %batch {heads = 2, kv_lora = 10, scale = 0.25} : (tensor<?x28xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x20xf32>
    // expected-error@+1 {{'mla.expand_value' op expected the same heads of its rows and of kv_b, found 20 of 40 columns and 28 of 42 rows}}
    %6 = mla.expand_value %5, %kvb {heads = 2, nope = 8, v = 6} : (tensor<?x20xf32>, !mla.weight<28x10xbf16>) -> tensor<?x12xf32>
    return
  }
}

// -----

// Tests experts of which the rank has a part beside a shared expert of which it has
// all, and a down that is not what gate and up make.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
module attributes {mla.ranks = 2 : i64} {
  mla.weight @router : !mla.weight<4x8xbf16> from "router"
  mla.weight @gate : !mla.weight<4x3x8xbf16> from "{}.gate" shard <[4, 6, 8] dim 1 in 2>
  mla.weight @down : !mla.weight<4x8x3xbf16> from "{}.down" shard <[4, 8, 6] dim 2 in 2>
  mla.weight @first : !mla.weight<4x8x3xbf16> from "{}.down" shard <[4, 8, 5] dim 2 in 2>
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
    // expected-error@+1 {{'mla.moe' op expected a part of down that gate and up make, found 3 of 5 columns for 3 of 6 rows}}
    %1 = mla.moe %x, %r experts %g, %g, %f routing #routing : (tensor<?x8xf32>, !mla.weight<4x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x3x8xbf16>, !mla.weight<4x8x3xbf16>) -> tensor<?x8xf32>
    return
  }
}

// -----

// Tests experts of groups of ranks: the op must say what the weights are.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
module attributes {mla.ranks = 4 : i64} {
  mla.weight @gate : !mla.weight<2x6x8xbf16> from "{}.gate" shard <[4, 6, 8] dim 0 in 2 by 2>
  mla.weight @down : !mla.weight<2x8x6xbf16> from "{}.down" shard <[4, 8, 6] dim 0 in 2 by 2>
  mla.weight @all : !mla.weight<2x6x8xbf16> from "{}.gate"
  func.func @groups(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>) {
    %g = mla.get_weight @gate : !mla.weight<2x6x8xbf16>
    %d = mla.get_weight @down : !mla.weight<2x8x6xbf16>
    %a = mla.get_weight @all : !mla.weight<2x6x8xbf16>
    // expected-error@+1 {{'mla.experts' op expected experts of 1 groups of ranks in gate, up and down}}
    %0 = mla.experts %x, %i, %w, %g, %g, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<2x6x8xbf16>, !mla.weight<2x6x8xbf16>, !mla.weight<2x8x6xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.experts' op expected experts of 2 groups of ranks in gate, up and down}}
    %1 = mla.experts %x, %i, %w, %g, %a, %d {groups = 2 : i64, group_ranks = 2 : i64} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<2x6x8xbf16>, !mla.weight<2x6x8xbf16>, !mla.weight<2x8x6xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.experts' op expected groups of all 4 ranks}}
    %2 = mla.experts %x, %i, %w, %g, %g, %d {groups = 2 : i64, group_ranks = 1 : i64} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<2x6x8xbf16>, !mla.weight<2x6x8xbf16>, !mla.weight<2x8x6xbf16>) -> tensor<?x8xf32>
    %3 = mla.experts %x, %i, %w, %g, %g, %d {groups = 2 : i64, group_ranks = 2 : i64} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<2x6x8xbf16>, !mla.weight<2x6x8xbf16>, !mla.weight<2x8x6xbf16>) -> tensor<?x8xf32>
    // expected-error@+1 {{'mla.add' op adds all and a summand}}
    %4 = mla.add %x, %3 : tensor<?x8xf32>
    return
  }
}

// -----

// Tests an embedding whose op does not say what its table is.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @part : !mla.weight<8x4xbf16> from "e" shard <[16, 4] dim 0 in 2>
  mla.weight @whole : !mla.weight<16x4xbf16> from "e"
  func.func @vocabulary(%ids: tensor<?xi32>) {
    %p = mla.get_weight @part : !mla.weight<8x4xbf16>
    %w = mla.get_weight @whole : !mla.weight<16x4xbf16>
    // expected-error@+1 {{expected a part of the vocabulary if and only if it has ranks, found 8 of 16 rows}}
    %0 = mla.embedding %ids, %p : (tensor<?xi32>, !mla.weight<8x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{expected a part of the vocabulary if and only if it has ranks, found all}}
    %1 = mla.embedding %ids, %w {ranks = 2 : i64} : (tensor<?xi32>, !mla.weight<16x4xbf16>) -> tensor<?x4xf32>
    return
  }
}

// -----

// Tests collectives of what is whole, of another number of ranks, and of columns of
// something else; and two where one would do.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @w : !mla.weight<4x4xbf16> from "w" shard <[8, 4] dim 0 in 2>
  mla.weight @d : !mla.weight<4x4xbf16> from "d" shard <[4, 8] dim 1 in 2>
  func.func @collectives(%x: tensor<?x4xf32>) {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %s = mla.linear %y, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected a summand, found all}}
    %0 = mla.all_reduce %x {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected a summand, found 4 of 8 columns}}
    %1 = mla.all_reduce %y {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce' op expected 2 ranks as the module has, found 4}}
    %2 = mla.all_reduce %s {ranks = 4 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_gather' op expected 4 of 7 columns, found 4 of 8 columns}}
    %3 = mla.all_gather %y {ranks = 2 : i64} : (tensor<?x4xf32>) -> tensor<?x7xf32>
    %4 = mla.all_reduce %s {ranks = 2 : i64} : tensor<?x4xf32>
    %5 = mla.all_reduce %s {ranks = 2 : i64} : tensor<?x4xf32>
    // expected-error@+1 {{'mla.add' op adds two sums over the ranks, where one collective after it would do}}
    %6 = mla.add %4, %5 : tensor<?x4xf32>
    return
  }
}

// -----

// Tests a part that is cut both ways, told where it is declared.
module attributes {mla.ranks = 4 : i64} {
  // expected-error@+1 {{'mla.weight' op expected a part of rows or of columns, not of both}}
  mla.weight @w : !mla.weight<4x4xbf16> from "w" shard <[8, 8] dim 0 in 2, dim 1 in 2 by 2>
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

// Tests a number of ranks that makes no sense.
// expected-error@+1 {{expected from 1 to 1024 ranks, found 0}}
module attributes {mla.ranks = 0 : i64} {
}

// -----

// Two summands add up to a summand; a joined gather makes both of its rows whole.
module attributes {mla.ranks = 2 : i64} {
  mla.weight @w : !mla.weight<4x4xbf16> from "w" shard <[8, 4] dim 0 in 2>
  mla.weight @d : !mla.weight<4x4xbf16> from "d" shard <[4, 8] dim 1 in 2>
  func.func @good(%x: tensor<?x4xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x4xf32>) {
    %w = mla.get_weight @w : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %y = mla.linear %x, %w : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %s = mla.linear %y, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %t = mla.add %s, %s : tensor<?x4xf32>
    %1 = mla.all_reduce %t {ranks = 2 : i64} : tensor<?x4xf32>
    %2:2 = mla.all_gather %y, %y {ranks = 2 : i64} : (tensor<?x4xf32>, tensor<?x4xf32>) -> (tensor<?x8xf32>, tensor<?x8xf32>)
    return %2#0, %2#1, %1 : tensor<?x8xf32>, tensor<?x8xf32>, tensor<?x4xf32>
  }
}
