// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s

// Tests plain attention, over all positions and over selected ones.
// CHECK-LABEL: func.func @attention
// CHECK-SAME: (%[[Q:.*]]: tensor<?x24xf32>, %[[C:.*]]: !mla.cache<expanded, 28xf32>, %[[B:.*]]: !mla.batch, %[[S:.*]]: tensor<?x16xi32>)
func.func @attention(%q: tensor<?x24xf32>, %c: !mla.cache<expanded, 28xf32>, %b: !mla.batch, %s: tensor<?x16xi32>) {
  // CHECK: mla.attention %[[Q]], %[[C]], %[[B]] {heads = 2 : i64, nope = 8 : i64, rope = 4 : i64, scale = 2.500000e-01 : f64, v = 4 : i64} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  %0 = mla.attention %q, %c, %b {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch) -> tensor<?x8xf32>
  // CHECK: mla.attention %[[Q]], %[[C]], %[[B]] selected %[[S]] {{{.*}}} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x8xf32>
  %1 = mla.attention %q, %c, %b selected %s {heads = 2, nope = 8, rope = 4, v = 4, scale = 0.25} : (tensor<?x24xf32>, !mla.cache<expanded, 28xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x8xf32>
  return
}

// CHECK-LABEL: func.func @absorb_query
// CHECK-SAME: (%[[Q:.*]]: tensor<?x24xf32>, %[[W:.*]]: !mla.weight<24x16xbf16>, %[[CS:.*]]: tensor<?x4xf32>)
func.func @absorb_query(%q: tensor<?x24xf32>, %w: !mla.weight<24x16xbf16>, %cs: tensor<?x4xf32>) {
  // CHECK: mla.absorb_query %[[Q]], %[[W]], %[[CS]] {heads = 2 : i64, interleaved = true, nope = 8 : i64, v = 4 : i64} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  %0 = mla.absorb_query %q, %w, %cs {heads = 2, nope = 8, v = 4, interleaved = true} : (tensor<?x24xf32>, !mla.weight<24x16xbf16>, tensor<?x4xf32>) -> tensor<?x40xf32>
  return
}

// Tests attention over latents, over all positions and over selected ones.
// CHECK-LABEL: func.func @latent_attention
// CHECK-SAME: (%[[Q:.*]]: tensor<?x40xf32>, %[[C:.*]]: !mla.cache<latent, 20xf32>, %[[B:.*]]: !mla.batch, %[[S:.*]]: tensor<?x16xi32>)
func.func @latent_attention(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch, %s: tensor<?x16xi32>) {
  // CHECK: mla.latent_attention %[[Q]], %[[C]], %[[B]] {heads = 2 : i64, kv_lora = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  %0 = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> tensor<?x32xf32>
  // CHECK: mla.latent_attention %[[Q]], %[[C]], %[[B]] selected %[[S]] {{{.*}}} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x32xf32>
  %1 = mla.latent_attention %q, %c, %b selected %s {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch, tensor<?x16xi32>) -> tensor<?x32xf32>
  return
}

// Tests attention to the tokens that one rank has, and what merges it.
// CHECK-LABEL: func.func @partial_attention
// CHECK-SAME: (%[[Q:.*]]: tensor<?x40xf32>, %[[C:.*]]: !mla.cache<latent, 20xf32>, %[[B:.*]]: !mla.batch)
func.func @partial_attention(%q: tensor<?x40xf32>, %c: !mla.cache<latent, 20xf32>, %b: !mla.batch) {
  // CHECK: %[[Y:.*]], %[[LSE:.*]] = mla.latent_attention %[[Q]], %[[C]], %[[B]] {heads = 2 : i64, kv_lora = 16 : i64, scale = 2.500000e-01 : f64} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> (tensor<?x32xf32>, tensor<?x2xf32>)
  %y, %lse = mla.latent_attention %q, %c, %b {heads = 2, kv_lora = 16, scale = 0.25} : (tensor<?x40xf32>, !mla.cache<latent, 20xf32>, !mla.batch) -> (tensor<?x32xf32>, tensor<?x2xf32>)
  // CHECK: mla.merge_attention %[[Y]], %[[LSE]] {heads = 2 : i64, ranks = 2 : i64} : (tensor<?x32xf32>, tensor<?x2xf32>) -> tensor<?x16xf32>
  %0 = mla.merge_attention %y, %lse {heads = 2, ranks = 2} : (tensor<?x32xf32>, tensor<?x2xf32>) -> tensor<?x16xf32>
  // CHECK: mla.merge_attention %[[Y]], %[[LSE]] {heads = 2 : i64, local, ranks = 2 : i64} :
  %1 = mla.merge_attention %y, %lse {heads = 2, ranks = 2, local} : (tensor<?x32xf32>, tensor<?x2xf32>) -> tensor<?x16xf32>
  return
}

// CHECK-LABEL: func.func @expand_value
// CHECK-SAME: (%[[X:.*]]: tensor<?x32xf32>, %[[W:.*]]: !mla.weight<24x16xbf16>)
func.func @expand_value(%x: tensor<?x32xf32>, %w: !mla.weight<24x16xbf16>) {
  // CHECK: mla.expand_value %[[X]], %[[W]] {heads = 2 : i64, nope = 8 : i64, v = 4 : i64} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>
  %0 = mla.expand_value %x, %w {heads = 2, nope = 8, v = 4} : (tensor<?x32xf32>, !mla.weight<24x16xbf16>) -> tensor<?x8xf32>
  return
}

// CHECK-LABEL: func.func @indexer
// CHECK-SAME: (%[[Q:.*]]: tensor<?x24xf32>, %[[W:.*]]: tensor<?x3xf32>, %[[C:.*]]: !mla.cache<index, 8xf32>, %[[B:.*]]: !mla.batch)
func.func @indexer(%q: tensor<?x24xf32>, %w: tensor<?x3xf32>, %c: !mla.cache<index, 8xf32>, %b: !mla.batch) {
  // CHECK: mla.indexer %[[Q]], %[[W]], %[[C]], %[[B]] {heads = 3 : i64, scale = 2.500000e-01 : f64, topk = 16 : i64} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  %0 = mla.indexer %q, %w, %c, %b {heads = 3, topk = 16, scale = 0.25} : (tensor<?x24xf32>, tensor<?x3xf32>, !mla.cache<index, 8xf32>, !mla.batch) -> tensor<?x16xi32>
  return
}
