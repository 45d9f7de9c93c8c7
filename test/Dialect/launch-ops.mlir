// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s

mla.weight @table : !mla.weight<32x8xbf16> from "model.embed_tokens.weight"
mla.cache @kv : !mla.cache<latent, 8xf32>

module @kernels {
  func.func private @embedding() attributes {mla.access = ["read", "read", "write"], mla.scalars = 1 : i64}
  func.func private @cache_write() attributes {mla.access = ["read", "readwrite"]}
}

// Tests a program with one of each of what it may hold, its memory not planned
// yet.
// CHECK-LABEL: mla.program @small attributes {max_outputs = 1 : i64, max_sequences = 2 : i64, max_tokens = 4 : i64} {
mla.program @small attributes {max_tokens = 4, max_sequences = 2, max_outputs = 1} {
  // CHECK: %[[IDS:.*]] = mla.port "ids" : !mla.buffer<["tokens"], i32>
  %ids = mla.port "ids" : !mla.buffer<["tokens"], i32>
  // CHECK: %[[TABLE:.*]] = mla.get_weight @table : !mla.weight<32x8xbf16>
  %table = mla.get_weight @table : !mla.weight<32x8xbf16>
  // CHECK: %[[CACHE:.*]] = mla.get_cache @kv : !mla.cache<latent, 8xf32>
  %cache = mla.get_cache @kv : !mla.cache<latent, 8xf32>
  // CHECK: %[[H:.*]] = mla.workspace : !mla.buffer<["tokens", "8"], f32>
  %h = mla.workspace : !mla.buffer<["tokens", "8"], f32>
  // CHECK: mla.launch @embedding grid "tokens"(%[[IDS]], %[[TABLE]], %[[H]] : !mla.buffer<["tokens"], i32>, !mla.weight<32x8xbf16>, !mla.buffer<["tokens", "8"], f32>) scalars ["tokens * 8"] for "embed_tokens"
  mla.launch @embedding grid "tokens" (%ids, %table, %h : !mla.buffer<["tokens"], i32>, !mla.weight<32x8xbf16>, !mla.buffer<["tokens", "8"], f32>) scalars ["tokens * 8"] for "embed_tokens"
  // CHECK: mla.launch @cache_write grid "ceildiv(tokens, 4)"(%[[H]], %[[CACHE]] : !mla.buffer<["tokens", "8"], f32>, !mla.cache<latent, 8xf32>) scalars [] for "layers.0.kv"
  mla.launch @cache_write grid "ceildiv(tokens, 4)" (%h, %cache : !mla.buffer<["tokens", "8"], f32>, !mla.cache<latent, 8xf32>) scalars [] for "layers.0.kv"
}

// Tests a program whose memory is planned.
// CHECK-LABEL: mla.program @planned attributes {max_outputs = 1 : i64, max_sequences = 2 : i64, max_tokens = 4 : i64, workspace_bytes = 128 : i64} {
mla.program @planned attributes {max_tokens = 4, max_sequences = 2, max_outputs = 1, workspace_bytes = 128} {
  // CHECK: mla.workspace at 64 : !mla.buffer<["tokens"], f32>
  %0 = mla.workspace at 64 : !mla.buffer<["tokens"], f32>
}

// Tests each name of a port.
// CHECK-LABEL: mla.program @ports
mla.program @ports attributes {max_tokens = 4, max_sequences = 2, max_outputs = 1} {
  // CHECK: mla.port "positions" : !mla.buffer<["tokens"], i32>
  %0 = mla.port "positions" : !mla.buffer<["tokens"], i32>
  // CHECK: mla.port "sequence" : !mla.buffer<["tokens"], i32>
  %1 = mla.port "sequence" : !mla.buffer<["tokens"], i32>
  // CHECK: mla.port "page_table" : !mla.buffer<["sequences", "pages"], i32>
  %2 = mla.port "page_table" : !mla.buffer<["sequences", "pages"], i32>
  // CHECK: mla.port "outputs" : !mla.buffer<["outputs"], i32>
  %3 = mla.port "outputs" : !mla.buffer<["outputs"], i32>
  // CHECK: mla.port "logits" : !mla.buffer<["outputs", "32"], f32>
  %4 = mla.port "logits" : !mla.buffer<["outputs", "32"], f32>
}

// Tests the program that chooses tokens, and the ports that it alone has.
// CHECK-LABEL: mla.program @sample attributes {max_outputs = 4 : i64, max_sequences = 4 : i64, max_tokens = 4 : i64, sampling} {
mla.program @sample attributes {max_tokens = 4, max_sequences = 4, max_outputs = 4, sampling} {
  // CHECK: mla.port "sampling" : !mla.buffer<["outputs", "4"], f32>
  %0 = mla.port "sampling" : !mla.buffer<["outputs", "4"], f32>
  // CHECK: mla.port "top_k" : !mla.buffer<["outputs"], i32>
  %1 = mla.port "top_k" : !mla.buffer<["outputs"], i32>
  // CHECK: mla.port "sampled" : !mla.buffer<["outputs"], i32>
  %2 = mla.port "sampled" : !mla.buffer<["outputs"], i32>
}
