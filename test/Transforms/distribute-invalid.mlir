// RUN: mla-opt %s -mla-distribute='ranks=8 expert-groups=8' -verify-diagnostics -split-input-file
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=0' 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=1025' 2>&1 | FileCheck %s --check-prefix=MANY
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=6 expert-groups=4' 2>&1 | FileCheck %s --check-prefix=GROUPS
// RUN: echo 'module {}' | not mla-opt -mla-distribute='ranks=6 expert-groups=0' 2>&1 | FileCheck %s --check-prefix=GROUPS
// RUN: echo 'module {}' | not mla-opt -mla-distribute-pipeline='ranks=0' 2>&1 | FileCheck %s --check-prefix=NONE
//
// NONE: error: expected from 1 to 1024 ranks, found 0
// MANY: error: expected from 1 to 1024 ranks, found 1025
// GROUPS: error: expected a number of groups of ranks that divides 6, found

// Tests that there must be an expert for each group of ranks.
mla.weight @gate : !mla.weight<6x16x8xbf16> from "{}.gate"
mla.weight @up : !mla.weight<6x16x8xbf16> from "{}.up"
mla.weight @down : !mla.weight<6x8x16xbf16> from "{}.down"
func.func @experts(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>) -> tensor<?x8xf32> {
  %g = mla.get_weight @gate : !mla.weight<6x16x8xbf16>
  %u = mla.get_weight @up : !mla.weight<6x16x8xbf16>
  %d = mla.get_weight @down : !mla.weight<6x8x16xbf16>
  // expected-error@+1 {{'mla.experts' op its 6 experts cannot be placed on 8 groups of ranks: expected one of 1, 2, 4}}
  %e = mla.experts %x, %i, %w, %g, %u, %d : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<6x16x8xbf16>, !mla.weight<6x16x8xbf16>, !mla.weight<6x8x16xbf16>) -> tensor<?x8xf32>
  return %e : tensor<?x8xf32>
}

// -----

// Tests that a graph of several ranks is not distributed again,
// expected-error@+1 {{is distributed already}}
module attributes {mla.ranks = 2 : i64} {
}

// -----

// nor one in which a weight is a part.
// expected-error@+1 {{'mla.weight' op is a part already, where a whole weight is expected}}
mla.weight @part : !mla.weight<4x8xbf16> from "w" shard <[16, 8] dim 0 in 4>
