// RUN: mla-opt %s -mla-select-lowering=target=sm_90a -verify-diagnostics

// Tests that collectives are refused on a GPU which would have to exchange rows, and
// experts of groups of ranks.
func.func @collectives(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.all_reduce' op has no lowering on target 'sm_90a': sm_90a.all_reduce_local: needs local collectives, found an exchange among 8 ranks}}
  %0 = mla.all_reduce %x {ranks = 8 : i64} : tensor<?x8xf32>
  // expected-error@+1 {{'mla.all_gather' op has no lowering on target 'sm_90a': sm_90a.all_gather_local: needs local collectives, found an exchange among 2 ranks}}
  %1 = mla.all_gather %x {ranks = 2 : i64} : (tensor<?x8xf32>) -> tensor<?x16xf32>
  %2 = mla.all_reduce %x {ranks = 8 : i64, local} : tensor<?x8xf32>
  return
}

func.func @groups(%x: tensor<?x8xf32>, %i: tensor<?x2xi32>, %w: tensor<?x2xf32>, %g: !mla.weight<4x16x8xbf16>, %d: !mla.weight<4x8x16xbf16>) {
  // expected-error@+1 {{needs all experts on each rank, found groups of ranks that have their own}}
  %0 = mla.experts %x, %i, %w, %g, %g, %d {groups = 2 : i64, group_ranks = 1 : i64} : (tensor<?x8xf32>, tensor<?x2xi32>, tensor<?x2xf32>, !mla.weight<4x16x8xbf16>, !mla.weight<4x16x8xbf16>, !mla.weight<4x8x16xbf16>) -> tensor<?x8xf32>
  return
}
