// RUN: mla-opt %s -mla-fuse-collectives "-mla-select-lowering=target=sm_120a step-tokens=1,8 collectives=nccl" "-mla-verify-selected=target=sm_120a step-tokens=1,8 collectives=nccl" -o %t.selected
// RUN: mla-opt %t.selected "-mla-lower-to-nvvm=target=sm_120a step-tokens=1,8" -mla-verify-lowered -o %t
// RUN: FileCheck %s --input-file=%t
// RUN: FileCheck %s --input-file=%t --check-prefix=FEW
// RUN: FileCheck %s --input-file=%t --check-prefix=KERNELS
// RUN: not mla-opt %t.selected "-mla-verify-selected=target=sm_120a step-tokens=1,8 collectives=p2p" 2>&1 | FileCheck %s --check-prefix=PEERS
// RUN: not mla-opt %t.selected "-mla-verify-selected=target=sm_120a collectives=mpi" 2>&1 | FileCheck %s --check-prefix=WORD
// RUN: not mla-opt %s "-mla-select-lowering=target=sm_120a collectives=mpi" 2>&1 | FileCheck %s --check-prefix=WORD

// Tests what collectives become where NCCL does them: a launch of a kernel that only the
// runtime has, of the rows and their widths, as on the host. The residual is added, and
// the rows are normed, by kernels behind it or by what reads them. No peers' memory.

mla.weight @embed : !mla.weight<16x256xbf16> from "e" shard <[128, 256] dim 0 in 8>
mla.weight @down : !mla.weight<256x128xbf16> from "d" shard <[256, 1024] dim 1 in 8>
mla.weight @up : !mla.weight<128x256xbf16> from "u" shard <[1024, 256] dim 0 in 8>
mla.weight @norm : !mla.weight<256xbf16> from "n"
mla.weight @head : !mla.weight<16x256xbf16> from "h" shard <[128, 256] dim 0 in 8>

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x128xf32> {
  %e = mla.get_weight @embed : !mla.weight<16x256xbf16>
  %u = mla.get_weight @up : !mla.weight<128x256xbf16>
  %d = mla.get_weight @down : !mla.weight<256x128xbf16>
  %n = mla.get_weight @norm : !mla.weight<256xbf16>
  %h = mla.get_weight @head : !mla.weight<16x256xbf16>
  %x = mla.embedding %ids, %e {ranks = 8 : i64} : (tensor<?xi32>, !mla.weight<16x256xbf16>) -> tensor<?x256xf32>
  %h0 = mla.all_reduce %x {ranks = 8 : i64} : tensor<?x256xf32>
  %n0 = mla.rms_norm %h0, %n {eps = 1.0e-6} : (tensor<?x256xf32>, !mla.weight<256xbf16>) -> tensor<?x256xf32>
  %s = mla.linear %n0, %u : (tensor<?x256xf32>, !mla.weight<128x256xbf16>) -> tensor<?x128xf32>
  %y = mla.linear %s, %d : (tensor<?x128xf32>, !mla.weight<256x128xbf16>) -> tensor<?x256xf32>
  %z = mla.all_reduce %y {ranks = 8 : i64} : tensor<?x256xf32>
  %h1 = mla.add %h0, %z : tensor<?x256xf32>
  %n1 = mla.rms_norm %h1, %n {eps = 1.0e-6} : (tensor<?x256xf32>, !mla.weight<256xbf16>) -> tensor<?x256xf32>
  %s2 = mla.linear %n1, %u : (tensor<?x256xf32>, !mla.weight<128x256xbf16>) -> tensor<?x128xf32>
  %y2 = mla.linear %s2, %d : (tensor<?x128xf32>, !mla.weight<256x128xbf16>) -> tensor<?x256xf32>
  %z2 = mla.all_reduce %y2 {ranks = 8 : i64} : tensor<?x256xf32>
  %h2 = mla.add %h1, %z2 : tensor<?x256xf32>
  %part = mla.lm_head %h2, %h, %batch : (tensor<?x256xf32>, !mla.weight<16x256xbf16>, !mla.batch) -> tensor<?x16xf32>
  %logits = mla.all_gather %part {ranks = 8 : i64} : (tensor<?x16xf32>) -> tensor<?x128xf32>
  return %logits : tensor<?x128xf32>
}

// CHECK: mla.program @step1 attributes {max_outputs
// CHECK-NOT: mla.peers
// CHECK-DAG: %[[LOGITS:.*]] = mla.port "logits"
// CHECK: mla.launch @embedding_{{.*}}, %[[E:[^ ]*]] :
// CHECK: mla.launch @exchange_all_reduce grid "1"(%[[E]], %[[H0:[^ ]*]] : {{.*}}) scalars ["tokens", "256", "256"]
// CHECK-NOT: mla.launch
// CHECK: mla.launch @linear_stream_{{[^ ]*}}_norm_{{[^ ]*}} grid {{.*}}(%[[H0]],
// CHECK: mla.launch @linear_stream_{{.*}}, %[[Y:[^ ]*]] :
// CHECK: mla.launch @exchange_all_reduce grid "1"(%[[Y]], %[[Z:[^ ]*]] :
// CHECK-NEXT: mla.launch @add_256 grid {{.*}}(%[[Z]], %[[H0]], %[[H1:[^ ]*]] :
// CHECK: mla.launch @linear_stream_{{[^ ]*}}_norm_{{[^ ]*}} grid {{.*}}(%[[H1]],

// A sum whose norm nobody asked for is one of its own, the residual too.
// CHECK: mla.launch @exchange_all_reduce grid "1"(%{{[^ ]*}}, %[[Z2:[^ ]*]] :
// CHECK: mla.launch @add_256 grid {{.*}}%[[Z2]], %[[H2:[^ ]*]] :
// CHECK: mla.launch @linear_stream_{{[^ ]*}}_outputs grid {{.*}}(%[[H2]], {{.*}}, %[[PART:[^ ]*]], %{{[^ ]*}} :
// CHECK: mla.launch @exchange_all_gather grid "1"(%[[PART]], %[[LOGITS]] : {{.*}}) scalars ["outputs", "16", "128"]

// FEW: mla.program @step8
// FEW: mla.launch @exchange_all_reduce grid "1"(%{{[^ ]*}}, %[[H0:[^ ]*]] :
// FEW: mla.launch @rms_norm_{{[^ ]*}} grid {{.*}}(%[[H0]], %{{[^ ]*}}, %[[N0:[^ ]*]] :
// FEW: mla.launch @linear_tile_{{[^ ]*}} grid {{.*}}(%[[N0]],

// KERNELS: module @kernels
// KERNELS-DAG: llvm.func @exchange_all_reduce() attributes {mla.access = ["read", "write"], mla.collective = "all_reduce", mla.scalars = 3 : i64}
// KERNELS-DAG: llvm.func @exchange_all_gather() attributes {mla.access = ["read", "write"], mla.collective = "all_gather", mla.scalars = 3 : i64}

// PEERS: has a lowering that refuses it: needs NCCL, found collectives by kernels of the plan alone
// WORD: expected collectives by exchange, p2p or nccl, found 'mpi'
