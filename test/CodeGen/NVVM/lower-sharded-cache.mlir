// RUN: mla-opt %s -split-input-file "-mla-select-lowering=target=sm_120a step-tokens=1,8,2048" "-mla-lower-to-nvvm=target=sm_120a step-tokens=1,8,2048" -mla-verify-lowered -o %t
// RUN: FileCheck %s --input-file=%t
// RUN: FileCheck %s --input-file=%t --check-prefix=FEW
// RUN: FileCheck %s --input-file=%t --check-prefix=MANY
// RUN: FileCheck %s --input-file=%t --check-prefix=LOCAL

// Tests a latent cache whose tokens are spread over ranks. What positions a rank has is
// no launch: kernels get the step's positions and the rank. Attention writes what it found
// and the logarithms of its sums of weights, which a collective merges; what it found is
// therefore combined before, and not where values are expanded. For one token the cache
// write is beside absorb_query, wherever it stands.

mla.weight @embed : !mla.weight<1024x1152xbf16> from "e"
mla.weight @q : !mla.weight<1536x1152xbf16> from "q" shard <[12288, 1152] dim 0 in 8>
mla.weight @kv_a : !mla.weight<576x1152xbf16> from "a"
mla.weight @norm : !mla.weight<512xbf16> from "n"
mla.weight @kv_b : !mla.weight<2048x512xbf16> from "b" shard <[16384, 512] dim 0 in 8>
mla.weight @head : !mla.weight<64x1024xbf16> from "h"
mla.cache @c : !mla.cache<latent, 576xfp8_e4m3> {scale = 5.000000e-01 : f32}

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %read, %write = mla.shard_batch %batch {ranks = 8 : i64}
  %we = mla.get_weight @embed : !mla.weight<1024x1152xbf16>
  %wq = mla.get_weight @q : !mla.weight<1536x1152xbf16>
  %wa = mla.get_weight @kv_a : !mla.weight<576x1152xbf16>
  %wn = mla.get_weight @norm : !mla.weight<512xbf16>
  %wb = mla.get_weight @kv_b : !mla.weight<2048x512xbf16>
  %wh = mla.get_weight @head : !mla.weight<64x1024xbf16>
  %x = mla.embedding %ids, %we : (tensor<?xi32>, !mla.weight<1024x1152xbf16>) -> tensor<?x1152xf32>
  %cs = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5, 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x64xf32>
  %0 = mla.linear %x, %wq : (tensor<?x1152xf32>, !mla.weight<1536x1152xbf16>) -> tensor<?x1536xf32>
  %1 = mla.linear %x, %wa : (tensor<?x1152xf32>, !mla.weight<576x1152xbf16>) -> tensor<?x576xf32>
  %q = mla.absorb_query %0, %wb, %cs {heads = 8, nope = 128, v = 128, interleaved = true} : (tensor<?x1536xf32>, !mla.weight<2048x512xbf16>, tensor<?x64xf32>) -> tensor<?x4608xf32>
  %all = mla.all_gather %q {ranks = 8 : i64} : (tensor<?x4608xf32>) -> tensor<?x36864xf32>
  %c = mla.get_cache @c : !mla.cache<latent, 576xfp8_e4m3>
  %new = mla.latent_cache_write %1, %wn, %cs, %c, %write {eps = 1.0e-6, interleaved = true} : (tensor<?x576xf32>, !mla.weight<512xbf16>, tensor<?x64xf32>, !mla.cache<latent, 576xfp8_e4m3>, !mla.batch) -> !mla.cache<latent, 576xfp8_e4m3>
  %found, %lse = mla.latent_attention %all, %new, %read {heads = 64, kv_lora = 512, scale = 0.125} : (tensor<?x36864xf32>, !mla.cache<latent, 576xfp8_e4m3>, !mla.batch) -> (tensor<?x32768xf32>, tensor<?x64xf32>)
  %own = mla.merge_attention %found, %lse {heads = 64, ranks = 8} : (tensor<?x32768xf32>, tensor<?x64xf32>) -> tensor<?x4096xf32>
  %v = mla.expand_value %own, %wb {heads = 8, nope = 128, v = 128} : (tensor<?x4096xf32>, !mla.weight<2048x512xbf16>) -> tensor<?x1024xf32>
  %logits = mla.lm_head %v, %wh, %batch : (tensor<?x1024xf32>, !mla.weight<64x1024xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}

// CHECK: mla.program @step1 attributes {exchange_bytes = 33689600 : i64
// CHECK-DAG: %[[PEERS:.*]] = mla.peers : !mla.peers
// CHECK-DAG: %[[POSITIONS:.*]] = mla.port "positions"
// CHECK-DAG: %[[SEQUENCE:.*]] = mla.port "sequence"
// CHECK-DAG: %[[PAGES:.*]] = mla.port "page_table"
// CHECK-NOT: mla.launch @shard_batch
// CHECK: mla.launch @rotary_embedding_{{[^ ]*}} grid "tokens"(%[[POSITIONS]],
// CHECK: mla.launch @absorb_query_{{[^ ]*}}_and_latent_cache_write_bf16_fp8_e4m3_512_64_358637bd_interleaved_of_8 grid {{.*}}, %[[POSITIONS]], %[[SEQUENCE]], %[[PAGES]], {{.*}}) scalars ["tokens", "pages", "1056964608", "rank"]
// CHECK: mla.launch @all_gather_flagged_f32_8_4608x36864 grid {{.*}}, %[[ALL:[^ ]*]] :
// CHECK: mla.launch @latent_attention_fp8_e4m3_64_512_64_3e000000_of_8_lse_{{[0-9]+}}_one grid {{.*}}(%[[ALL]], %[[POSITIONS]], %[[SEQUENCE]], %[[PAGES]], %[[CACHE:[^ ]*]], %[[PARTIAL:[^ ]*]], %[[SPLITS:[^ ]*]], %[[FOUND:[^ ]*]], %[[LSE:[^ ]*]] : {{.*}}) scalars ["pages", "1056964608", "rank"]
// CHECK: mla.launch @latent_combine_fp8_e4m3_64_512_64_3e000000_of_8_lse_{{[^ ]*}} grid {{.*}}(%[[POSITIONS]], %[[PARTIAL]], %[[SPLITS]], %[[FOUND]], %[[LSE]] : {{.*}}) scalars ["rank"]
// CHECK: mla.launch @merge_attention_flagged_bf16_8_8_512 grid "min(64, tokens * 8)"(%[[PEERS]], %[[FOUND]], %[[LSE]], %[[OWN:[^ ]*]] : {{.*}}) scalars ["tokens", "{{[0-9]+}}"]
// CHECK: mla.launch @expand_value_{{[^ ]*}} grid {{.*}}(%[[OWN]],

// FEW: mla.program @step8
// FEW: mla.launch @latent_cache_write_bf16_fp8_e4m3_512_64_358637bd_interleaved_of_8 grid "tokens"{{.*}} scalars ["pages", "1056964608", "rank"]
// FEW: mla.launch @latent_attention_fp8_e4m3_64_512_64_3e000000_of_8_lse_{{[0-9]+}}_few grid {{.*}} scalars ["pages", "1056964608", "rank"]
// FEW: mla.launch @latent_combine_fp8_e4m3_64_512_64_3e000000_of_8_lse_{{.*}} scalars ["rank"]

// MANY: mla.program @prefill2048 attributes {exchange_bytes = 67244032 : i64
// MANY: mla.launch @latent_attention_prefill_fp8_e4m3_64_512_64_3e000000_of_8_lse grid {{.*}}, %[[FOUND:[^ ]*]], %[[LSE:[^ ]*]] : {{.*}}) scalars ["pages", "1056964608", "tokens", "rank"]
// MANY-NOT: mla.launch @latent_combine
// MANY: mla.launch @merge_attention_bulk_bf16_8_8_512 grid {{.*}}(%{{[^ ]*}}, %[[FOUND]], %[[LSE]], {{.*}}) scalars ["tokens",

// -----

// Small dimensions have the form without a second kernel, and a rank that is measured
// alone merges its own heads.
mla.weight @embed : !mla.weight<1024x117xbf16> from "e"
mla.weight @norm : !mla.weight<33xbf16> from "n"
mla.weight @head : !mla.weight<64x33xbf16> from "h"
mla.cache @c : !mla.cache<latent, 39xbf16>

func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x64xf32> {
  %read, %write = mla.shard_batch %batch {ranks = 3 : i64}
  %we = mla.get_weight @embed : !mla.weight<1024x117xbf16>
  %wn = mla.get_weight @norm : !mla.weight<33xbf16>
  %wh = mla.get_weight @head : !mla.weight<64x33xbf16>
  %c = mla.get_cache @c : !mla.cache<latent, 39xbf16>
  %q = mla.embedding %ids, %we : (tensor<?xi32>, !mla.weight<1024x117xbf16>) -> tensor<?x117xf32>
  %cs = mla.rotary_embedding %batch {frequencies = array<f32: 1.0, 0.5, 0.25>, factor = 1.0} : (!mla.batch) -> tensor<?x6xf32>
  %x:2 = mla.split %q : (tensor<?x117xf32>) -> (tensor<?x39xf32>, tensor<?x78xf32>)
  %new = mla.latent_cache_write %x#0, %wn, %cs, %c, %write {eps = 1.0e-6, interleaved = false} : (tensor<?x39xf32>, !mla.weight<33xbf16>, tensor<?x6xf32>, !mla.cache<latent, 39xbf16>, !mla.batch) -> !mla.cache<latent, 39xbf16>
  %found, %lse = mla.latent_attention %q, %new, %read {heads = 3, kv_lora = 33, scale = 0.125} : (tensor<?x117xf32>, !mla.cache<latent, 39xbf16>, !mla.batch) -> (tensor<?x99xf32>, tensor<?x3xf32>)
  %own = mla.merge_attention %found, %lse {heads = 3, ranks = 3, local} : (tensor<?x99xf32>, tensor<?x3xf32>) -> tensor<?x33xf32>
  %logits = mla.lm_head %own, %wh, %batch : (tensor<?x33xf32>, !mla.weight<64x33xbf16>, !mla.batch) -> tensor<?x64xf32>
  return %logits : tensor<?x64xf32>
}

// LOCAL: mla.launch @latent_attention_simple_bf16_3_33_6_3e000000_of_3_lse grid "tokens * 3"({{.*}}, %[[FOUND:[^ ]*]], %[[LSE:[^ ]*]] : {{.*}}) scalars ["pages", "rank"]
// LOCAL-NOT: mla.peers
// LOCAL: mla.launch @merge_attention_local_1_33_3 grid "tokens * 1"(%[[FOUND]], %[[LSE]], %{{[^ ]*}} :
