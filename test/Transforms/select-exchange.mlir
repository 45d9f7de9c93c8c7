// RUN: mla-opt %s "-mla-select-lowering=target=%S/Inputs/slow-stores.json step-tokens=1,8,64" | FileCheck %s
// RUN: mla-opt %s "-mla-select-lowering=target=rtx-pro-6000x8-pcie5 step-tokens=1,8,64" | FileCheck %s --check-prefix=FAST
// RUN: mla-opt %s "-mla-select-lowering=target=%S/Inputs/slow-stores.json step-tokens=1 collectives=p2p" | FileCheck %s --check-prefix=P2P
// RUN: mla-opt %s "-mla-select-lowering=target=rtx-pro-6000x8-pcie5 step-tokens=1 collectives=nccl" | FileCheck %s --check-prefix=NCCL
// RUN: mla-opt %s "-mla-select-lowering=target=rtx-pro-6000x8-pcie5 step-tokens=1 lower=all_reduce=all_reduce_nccl,all_gather=all_gather_nccl" | FileCheck %s --check-prefix=LOWER
// RUN: mla-opt %s "-mla-select-lowering=target=%S/Inputs/no-peers.json step-tokens=1" | FileCheck %s --check-prefix=ALONE
// RUN: not mla-opt %s "-mla-select-lowering=target=%S/Inputs/no-peers.json step-tokens=1 collectives=p2p" 2>&1 | FileCheck %s --check-prefix=NONE
// RUN: not mla-opt %s "-mla-select-lowering=target=rtx-pro-6000x8-pcie5 step-tokens=1 collectives=nccl lower=all_reduce=all_reduce_one_shot" 2>&1 | FileCheck %s --check-prefix=WISH

// Tests that what exchanges rows is chosen for each program by the machine's figures, with
// the reasons: kernels of the plan for few bytes, in two steps for more. Where stores into
// peers are slow kernels load from them. What the command line excludes is excluded, and
// devices without peers have NCCL alone, whose f32 rows are twice the bytes.

func.func @step(%x: tensor<?x7168xf32>, %part: tensor<?x20480xf32>) -> (tensor<?x7168xf32>, tensor<?x163840xf32>) {
  %0 = mla.all_reduce %x {ranks = 8 : i64} : tensor<?x7168xf32>
  %1 = mla.all_gather %part {ranks = 8 : i64} : (tensor<?x20480xf32>) -> tensor<?x163840xf32>
  return %0, %1 : tensor<?x7168xf32>, tensor<?x163840xf32>
}

// CHECK: mla.all_reduce
// CHECK-SAME: step1 = ["all_reduce_one_shot_pull: 8.4 us, bound by link", "all_reduce_two_shot_pull: takes 10.2 us, 1.22 times as long", "all_reduce_two_shot: takes 19.0 us, 2.27 times as long", "all_reduce_nccl: takes 21.1 us,
// CHECK-SAME: step64 = ["all_reduce_two_shot_pull: 41.8 us, bound by link", "all_reduce_nccl: takes
// CHECK-SAME: lowering = {step1 = "sm_120a.all_reduce_one_shot_pull", step64 = "sm_120a.all_reduce_two_shot_pull", step8 = "sm_120a.all_reduce_two_shot_pull"}
// CHECK: mla.all_gather
// CHECK-SAME: lowering = "sm_120a.all_gather_pull"

// FAST: mla.all_reduce
// FAST-SAME: all_reduce_one_shot_pull: needs peers' memory that is read half as fast again as it is written, found 50 and 50 GB/s
// FAST-SAME: lowering = {step1 = "sm_120a.all_reduce_one_shot", step64 = "sm_120a.all_reduce_two_shot", step8 = "sm_120a.all_reduce_two_shot"}
// FAST: mla.all_gather
// FAST-SAME: lowering = "sm_120a.all_gather_bulk"

// P2P: all_reduce_nccl: needs NCCL, found collectives by kernels of the plan alone (--collectives exchange or nccl)
// P2P-SAME: lowering = "sm_120a.all_reduce_one_shot_pull"
// P2P: lowering = "sm_120a.all_gather_pull"

// NCCL: ["all_reduce_nccl: 21.1 us, bound by link", {{.*}}"all_reduce_one_shot: needs kernels that exchange, found collectives by NCCL alone (--collectives exchange or p2p)"
// NCCL-SAME: lowering = "sm_120a.all_reduce_nccl"
// NCCL: lowering = "sm_120a.all_gather_nccl"

// LOWER: lowering = "sm_120a.all_reduce_nccl"
// LOWER: lowering = "sm_120a.all_gather_nccl"

// ALONE: all_reduce_one_shot: needs access to the memory of other devices, found none on no-peers
// ALONE-SAME: lowering = "sm_120a.all_reduce_nccl"
// ALONE: lowering = "sm_120a.all_gather_nccl"

// NONE: has no lowering on target 'sm_120a': {{.*}}sm_120a.all_reduce_one_shot: needs access to the memory of other devices, found none on no-peers
// NONE-SAME: sm_120a.all_reduce_nccl: needs NCCL, found collectives by kernels of the plan alone

// WISH: cannot be lowered as --lower all_reduce=all_reduce_one_shot demands: needs kernels that exchange, found collectives by NCCL alone
