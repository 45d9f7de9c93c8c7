// RUN: mla-opt %s "-mla-select-lowering=target=sm_90a collectives=p2p" -verify-diagnostics
// RUN: mla-opt %s "-mla-select-lowering=target=sm_90a step-tokens=1" | FileCheck %s

// Tests that collectives among more ranks than kernels of a GPU reach are refused where
// these alone may exchange, and else done by NCCL; local ones have a lowering of their own.
// CHECK: mla.all_reduce {{.*}} lowering = "sm_90a.all_reduce_nccl", ranks = 16
// CHECK: mla.all_gather {{.*}} lowering = "sm_90a.all_gather_nccl", ranks = 9
// CHECK: mla.all_reduce {{.*}} lowering = "sm_90a.all_reduce_local"
// CHECK: mla.all_gather {{.*}} lowering = "sm_90a.all_gather_flagged"
func.func @collectives(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{sm_90a.all_reduce_one_shot: needs at most 8 ranks, found 16}}
  %0 = mla.all_reduce %x {ranks = 16 : i64} : tensor<?x8xf32>
  // expected-error@+1 {{sm_90a.all_gather_flagged: needs at most 8 ranks, found 9}}
  %1 = mla.all_gather %x {ranks = 9 : i64} : (tensor<?x8xf32>) -> tensor<?x72xf32>
  %2 = mla.all_reduce %x {ranks = 16 : i64, local} : tensor<?x8xf32>
  %3 = mla.all_gather %x {ranks = 8 : i64} : (tensor<?x8xf32>) -> tensor<?x64xf32>
  return
}
