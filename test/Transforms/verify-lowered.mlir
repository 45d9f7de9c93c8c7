// RUN: mla-opt %s -mla-verify-lowered=planned | FileCheck %s

// Tests that programs, declarations and a module of kernels pass.
// CHECK: mla.weight @table
mla.weight @table : !mla.weight<32x8xbf16> from "model.embed_tokens.weight"
// CHECK: mla.cache @kv
mla.cache @kv : !mla.cache<latent, 8xf32>
// CHECK: module @kernels
module @kernels {
  func.func private @embedding() attributes {mla.access = ["read", "write"]}
}
// CHECK: mla.program @step
mla.program @step attributes {max_tokens = 4, max_sequences = 2, max_outputs = 1, workspace_bytes = 128} {
  %table = mla.get_weight @table : !mla.weight<32x8xbf16>
  %h = mla.workspace at 0 : !mla.buffer<["tokens", "8"], f32>
  mla.launch @embedding grid "tokens" (%table, %h : !mla.weight<32x8xbf16>, !mla.buffer<["tokens", "8"], f32>) scalars [] for "embed_tokens"
}
