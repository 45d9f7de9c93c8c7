// RUN: mla-opt %s -mla-distribute='ranks=8 rank=3' -verify-diagnostics -split-input-file
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=0' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=1025' 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=2 rank=2' 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=2 rank=-1' 2>&1 | FileCheck %s --check-prefix=RANK
// RUN: echo 'module {}' | not mla-opt -mla-distribute-pipeline='ranks=0' 2>&1 | FileCheck %s --check-prefix=NONE
//
// NONE: error: expected from 1 to 1024 ranks, found 0
// MANY: error: expected from 1 to 1024 ranks, found 1025
// RANK: error: expected a rank from 0 to 1, found

// Tests that heads, and rows and columns of matrices, must divide by the ranks. Each
// kind of failure is told once, with the numbers of ranks that would do; the first
// one tells which would do for all.
mla.weight @q : !mla.weight<144x16xbf16> from "q"
mla.weight @kv_b : !mla.weight<168x10xbf16> from "kv_b"
mla.weight @o : !mla.weight<16x72xbf16> from "o"
mla.weight @gate : !mla.weight<36x16xbf16> from "gate"
mla.weight @up : !mla.weight<36x16xbf16> from "up"
mla.weight @down : !mla.weight<16x36xbf16> from "down"
mla.weight @head : !mla.weight<66x16xbf16> from "head"
func.func @sizes(%x: tensor<?x16xf32>, %cs: tensor<?x4xf32>, %c: !mla.cache<latent, 14xf32>, %batch: !mla.batch) -> tensor<?x66xf32> {
  %q = mla.get_weight @q : !mla.weight<144x16xbf16>
  %kvb = mla.get_weight @kv_b : !mla.weight<168x10xbf16>
  %o = mla.get_weight @o : !mla.weight<16x72xbf16>
  %0 = mla.linear %x, %q : (tensor<?x16xf32>, !mla.weight<144x16xbf16>) -> tensor<?x144xf32>
  %1 = mla.absorb_query %0, %kvb, %cs {heads = 12, nope = 8, v = 6, interleaved = true} : (tensor<?x144xf32>, !mla.weight<168x10xbf16>, tensor<?x4xf32>) -> tensor<?x168xf32>
  // expected-error@+2 {{'mla.latent_attention' op cannot be shared among 8 ranks: its 12 heads can be divided by 2, 3, 4, 6, 12}}
  // expected-note@+1 {{the whole model can be shared among 2, 3, 6 ranks}}
  %2 = mla.latent_attention %1, %c, %batch {heads = 12, kv_lora = 10, scale = 0.25} : (tensor<?x168xf32>, !mla.cache<latent, 14xf32>, !mla.batch) -> tensor<?x120xf32>
  %3 = mla.expand_value %2, %kvb {heads = 12, nope = 8, v = 6} : (tensor<?x120xf32>, !mla.weight<168x10xbf16>) -> tensor<?x72xf32>
  %4 = mla.linear %3, %o : (tensor<?x72xf32>, !mla.weight<16x72xbf16>) -> tensor<?x16xf32>
  %g = mla.get_weight @gate : !mla.weight<36x16xbf16>
  %u = mla.get_weight @up : !mla.weight<36x16xbf16>
  %d = mla.get_weight @down : !mla.weight<16x36xbf16>
  // expected-error@+1 {{'mla.gated_linear' op cannot be shared among 8 ranks: the 36 rows of @gate can be divided by 2, 3, 4, 6, 9, 12, 18, 36 (and 2 more alike)}}
  %s = mla.gated_linear %4, %g, %u : (tensor<?x16xf32>, !mla.weight<36x16xbf16>, !mla.weight<36x16xbf16>) -> tensor<?x36xf32>
  %y = mla.linear %s, %d : (tensor<?x36xf32>, !mla.weight<16x36xbf16>) -> tensor<?x16xf32>
  %h = mla.get_weight @head : !mla.weight<66x16xbf16>
  // expected-error@+1 {{'mla.lm_head' op cannot be shared among 8 ranks: the 66 rows of @head can be divided by 2, 3, 6, 11, 22, 33}}
  %l = mla.lm_head %y, %h, %batch : (tensor<?x16xf32>, !mla.weight<66x16xbf16>, !mla.batch) -> tensor<?x66xf32>
  return %l : tensor<?x66xf32>
}

// -----

// Tests groups of scales: 192 columns of 16 are 12 groups, 384 rows of FP8 are 3
// blocks, 320 columns of FP8 no whole blocks, 64 columns of int4 are 2 groups.
#routing = #mla.routing<topk = 2, groups = 1, topk_groups = 1, scoring = softmax, method = greedy, normalize = true, scale = 1.0 : f64>
mla.weight @router : !mla.weight<4x64xbf16> from "router"
mla.weight @gate : !mla.weight<4x192x64xnvfp4> from "{}.gate" scales ["{}.gs", "{}.gg"]
mla.weight @down : !mla.weight<4x64x192xnvfp4> from "{}.down" scales ["{}.ds", "{}.dg"]
mla.weight @sgate : !mla.weight<384x64xfp8_block> from "sgate" scales ["s"]
mla.weight @sup : !mla.weight<384x64xbf16> from "sup"
mla.weight @sdown : !mla.weight<64x384xbf16> from "sdown"
mla.weight @g8 : !mla.weight<320x64xbf16> from "g8"
mla.weight @d8 : !mla.weight<64x320xfp8_block> from "d8" scales ["s"]
mla.weight @g4 : !mla.weight<64x64xbf16> from "g4"
mla.weight @d4 : !mla.weight<64x64xint4_g32> from "d4" scales ["s"]
func.func @groups(%x: tensor<?x64xf32>) -> tensor<?x64xf32> {
  %r = mla.get_weight @router : !mla.weight<4x64xbf16>
  %g = mla.get_weight @gate : !mla.weight<4x192x64xnvfp4>
  %d = mla.get_weight @down : !mla.weight<4x64x192xnvfp4>
  %sg = mla.get_weight @sgate : !mla.weight<384x64xfp8_block>
  %su = mla.get_weight @sup : !mla.weight<384x64xbf16>
  %sd = mla.get_weight @sdown : !mla.weight<64x384xbf16>
  // expected-error@+3 {{'mla.moe' op cannot be shared among 8 ranks: the 192 columns of @down, in whole groups of 16 (nvfp4), can be divided by 2, 3, 4, 6, 12}}
  // expected-note@+2 {{the whole model can be shared among no number from 2 to 64 ranks}}
  // expected-error@+1 {{'mla.moe' op cannot be shared among 8 ranks: the 384 rows of @sgate, in whole groups of 128 (fp8_block), can be divided by 3}}
  %y = mla.moe %x, %r experts %g, %g, %d shared %sg, %su, %sd routing #routing : (tensor<?x64xf32>, !mla.weight<4x64xbf16>, !mla.weight<4x192x64xnvfp4>, !mla.weight<4x192x64xnvfp4>, !mla.weight<4x64x192xnvfp4>, !mla.weight<384x64xfp8_block>, !mla.weight<384x64xbf16>, !mla.weight<64x384xbf16>) -> tensor<?x64xf32>
  %g8 = mla.get_weight @g8 : !mla.weight<320x64xbf16>
  %d8 = mla.get_weight @d8 : !mla.weight<64x320xfp8_block>
  %s = mla.gated_linear %y, %g8, %g8 : (tensor<?x64xf32>, !mla.weight<320x64xbf16>, !mla.weight<320x64xbf16>) -> tensor<?x320xf32>
  // expected-error@+1 {{'mla.linear' op cannot be shared among 8 ranks: the 320 columns of @d8, in whole groups of 128 (fp8_block), can be divided by no number from 2 to 64}}
  %z = mla.linear %s, %d8 : (tensor<?x320xf32>, !mla.weight<64x320xfp8_block>) -> tensor<?x64xf32>
  %g4 = mla.get_weight @g4 : !mla.weight<64x64xbf16>
  %d4 = mla.get_weight @d4 : !mla.weight<64x64xint4_g32>
  %t = mla.gated_linear %z, %g4, %g4 : (tensor<?x64xf32>, !mla.weight<64x64xbf16>, !mla.weight<64x64xbf16>) -> tensor<?x64xf32>
  // expected-error@+1 {{'mla.linear' op cannot be shared among 8 ranks: the 64 columns of @d4, in whole groups of 32 (int4_g32), can be divided by 2}}
  %v = mla.linear %t, %d4 : (tensor<?x64xf32>, !mla.weight<64x64xint4_g32>) -> tensor<?x64xf32>
  return %v : tensor<?x64xf32>
}

// -----

// Tests that a rank's graph is not distributed again,
// expected-error@+1 {{is distributed already}}
module attributes {mla.rank = 0 : i64, mla.ranks = 2 : i64} {
}

// -----

// nor one in which a weight is a part.
// expected-error@+1 {{'mla.weight' op is a part already, where a whole weight is expected}}
mla.weight @part : !mla.weight<4x8xbf16> from "w" slice <rows = 16, columns = 8, first_row = 4, block_rows = 4>
