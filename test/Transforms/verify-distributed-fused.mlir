// RUN: mla-opt %s -split-input-file -mla-verify-distributed -verify-diagnostics
//
// What a rank has around mla.all_reduce_rms_norm: it sums summands, and adds what is
// whole to them; both results are whole.

module attributes {mla.ranks = 2 : i64} {
  mla.weight @u : !mla.weight<4x4xbf16> from "u" shard <[8, 4] dim 0 in 2>
  mla.weight @d : !mla.weight<4x4xbf16> from "d" shard <[4, 8] dim 1 in 2>
  mla.weight @n : !mla.weight<4xbf16> from "n"
  func.func @sums(%x: tensor<?x4xf32>) {
    %u = mla.get_weight @u : !mla.weight<4x4xbf16>
    %d = mla.get_weight @d : !mla.weight<4x4xbf16>
    %n = mla.get_weight @n : !mla.weight<4xbf16>
    %p = mla.linear %x, %u : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %s = mla.linear %p, %d : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %0:2 = mla.all_reduce_rms_norm %s, %n residual %x {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x4xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    // Both are whole.
    %1 = mla.linear %0#0, %u : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    %2 = mla.linear %0#1, %u : (tensor<?x4xf32>, !mla.weight<4x4xbf16>) -> tensor<?x4xf32>
    // expected-error@+1 {{'mla.all_reduce_rms_norm' op expected a summand, found all}}
    %3:2 = mla.all_reduce_rms_norm %x, %n {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x4xf32>, !mla.weight<4xbf16>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    // expected-error@+1 {{'mla.all_reduce_rms_norm' op expected 2 ranks as the module has, found 4}}
    %4:2 = mla.all_reduce_rms_norm %s, %n {eps = 1.0e-6 : f64, ranks = 4 : i64} : (tensor<?x4xf32>, !mla.weight<4xbf16>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    // A residual that is a summand would be added as often as there are ranks.
    // expected-error@+1 {{'mla.all_reduce_rms_norm' op needs all of its operands on each rank, found a summand}}
    %5:2 = mla.all_reduce_rms_norm %s, %n residual %s {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x4xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    // expected-error@+1 {{'mla.all_reduce_rms_norm' op expected a summand, found 4 of 8 columns}}
    %6:2 = mla.all_reduce_rms_norm %p, %n residual %x {eps = 1.0e-6 : f64, ranks = 2 : i64} : (tensor<?x4xf32>, !mla.weight<4xbf16>, tensor<?x4xf32>) -> (tensor<?x4xf32>, tensor<?x4xf32>)
    return
  }
}
