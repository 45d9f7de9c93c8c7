// RUN: mla-opt %s -mla-fuse-collectives "-mla-select-lowering=target=sm_120a step-tokens=1,8,2048" "-mla-lower-to-nvvm=target=sm_120a step-tokens=1,8,2048" -mla-verify-lowered -o %t
// RUN: FileCheck %s --input-file=%t
// RUN: FileCheck %s --input-file=%t --check-prefix=FEW
// RUN: FileCheck %s --input-file=%t --check-prefix=MANY
// RUN: mla-opt %s -mla-fuse-collectives -mla-select-lowering=target=sm_120a "-mla-lower-to-nvvm=target=sm_120a step-tokens=1 exchange-blocks=4" | FileCheck %s --check-prefix=BLOCKS
// RUN: not mla-opt %s -mla-select-lowering=target=sm_120a "-mla-lower-to-nvvm=target=sm_120a exchange-blocks=65" 2>&1 | FileCheck %s --check-prefix=BOUND

// Tests what collectives become on a GPU: one launch each, with the peers' memory and the
// number of the launch. For one token and for many the norm is left to what reads the
// rows; between, the kernel that has the sums does it. Large ones take two steps, whose
// slots lie behind the others: the program says how much memory that is.

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
  %part = mla.lm_head %n1, %h, %batch : (tensor<?x256xf32>, !mla.weight<16x256xbf16>, !mla.batch) -> tensor<?x16xf32>
  %logits = mla.all_gather %part {ranks = 8 : i64} : (tensor<?x16xf32>) -> tensor<?x128xf32>
  return %logits : tensor<?x128xf32>
}

// CHECK: mla.program @step1 attributes {exchange_bytes = 33689600 : i64
// CHECK-DAG: %[[PEERS:.*]] = mla.peers : !mla.peers
// CHECK-DAG: %[[LOGITS:.*]] = mla.port "logits"
// CHECK: mla.launch @embedding_{{.*}}, %[[E:[^ ]*]] :
// CHECK: mla.launch @all_reduce_one_shot_bf16_8_256 grid "min(64, ceildiv(tokens * 256, 1024))"(%[[PEERS]], %[[E]], %[[H0:[^ ]*]] : !mla.peers, {{.*}}) scalars ["tokens", "1"]
// CHECK-NOT: mla.launch @rms_norm
// CHECK: mla.launch @linear_stream_{{[^ ]*}}_norm_{{[^ ]*}} grid {{.*}}(%[[H0]],
// CHECK: mla.launch @linear_stream_{{.*}}, %[[Y:[^ ]*]] :
// CHECK: mla.launch @all_reduce_one_shot_bf16_8_256_residual grid {{.*}}(%[[PEERS]], %[[Y]], %[[H0]], %[[H1:[^ ]*]] : {{.*}}) scalars ["tokens", "4"]
// CHECK-NOT: mla.launch @add
// CHECK: mla.launch @linear_stream_{{[^ ]*}}_norm_{{[^ ]*}}_outputs grid {{.*}}(%[[H1]], {{.*}}, %[[PART:[^ ]*]], %{{[^ ]*}} :
// CHECK: mla.launch @all_gather_flagged_f32_8_16x128 grid "min(64, ceildiv(outputs * 8, 256))"(%[[PEERS]], %[[PART]], %[[LOGITS]] : {{.*}}) scalars ["outputs", "6"]

// FEW: mla.program @step8
// FEW: mla.launch @all_reduce_norm_bf16_8_256_bf16_358637bd grid "min(64, ceildiv(tokens * 64, 256))"(%[[PEERS:[^ ]*]], %{{[^ ]*}}, %[[H0:[^ ]*]], %[[GAMMA:[^ ]*]], %[[N0:[^ ]*]] :
// FEW-NOT: mla.launch @rms_norm
// FEW: mla.launch @linear_tile_{{[^ ]*}} grid {{.*}}(%[[N0]],
// FEW: mla.launch @all_reduce_norm_bf16_8_256_residual_bf16_358637bd grid {{.*}}(%[[PEERS]], %{{[^ ]*}}, %[[H0]], %{{[^ ]*}}, %[[GAMMA]], %{{[^ ]*}} :

// MANY: mla.program @prefill2048 attributes {exchange_bytes = 67244032 : i64
// MANY: mla.launch @all_reduce_two_shot_bf16_8_256 grid "min(64, ceildiv(tokens * 256, 2048))"
// MANY: mla.launch @pack_rows_{{[^ ]*}}norm
// MANY: mla.launch @all_reduce_two_shot_bf16_8_256_residual
// MANY: mla.program @step2048

// BLOCKS: mla.launch @all_reduce_one_shot_bf16_8_blocks4_256 grid "min(4,
// BOUND: expected exchange-blocks from 0 to 64, found 65
