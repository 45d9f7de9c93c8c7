// RUN: mla-opt %s -pass-pipeline='builtin.module(mla.program(mla-plan-memory{max-pages=3}))' | FileCheck %s

!rows = !mla.buffer<["tokens", "16"], f32>

module {
  module @kernels {
    func.func private @one() attributes {mla.access = ["write"]}
    func.func private @two() attributes {mla.access = ["read", "write"]}
    func.func private @three() attributes {mla.access = ["read", "read", "write"]}
  }

  // Tests that workspaces that are never live together share memory: in a chain
  // of equal ones every second takes the place of the one before the last, and
  // the arena holds two.
  // CHECK-LABEL: mla.program @chain
  // CHECK-SAME: workspace_bytes = 512 : i64
  mla.program @chain attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
    // CHECK-NEXT: mla.workspace at 0 :
    %a = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 256 :
    %b = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 0 :
    %c = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 256 :
    %d = mla.workspace : !rows
    mla.launch @one grid "tokens" (%a : !rows) scalars [] for "a"
    mla.launch @two grid "tokens" (%a, %b : !rows, !rows) scalars [] for "b"
    mla.launch @two grid "tokens" (%b, %c : !rows, !rows) scalars [] for "c"
    mla.launch @two grid "tokens" (%c, %d : !rows, !rows) scalars [] for "d"
  }

  // Tests that a residual stays in place until its last use, also while it is
  // not read in between.
  // CHECK-LABEL: mla.program @residual
  // CHECK-SAME: workspace_bytes = 768 : i64
  mla.program @residual attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
    // CHECK-NEXT: mla.workspace at 0 :
    %h = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 256 :
    %a = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 512 :
    %b = mla.workspace : !rows
    // CHECK-NEXT: mla.workspace at 256 :
    %c = mla.workspace : !rows
    mla.launch @one grid "tokens" (%h : !rows) scalars [] for "h"
    mla.launch @two grid "tokens" (%h, %a : !rows, !rows) scalars [] for "a"
    mla.launch @two grid "tokens" (%a, %b : !rows, !rows) scalars [] for "b"
    mla.launch @three grid "tokens" (%h, %b, %c : !rows, !rows, !rows) scalars [] for "c"
  }

  // Tests that the largest is placed first and each into the smallest gap that
  // holds it. When %x is placed, %q lies at 1024 and %s at 448: of the gaps of
  // 448 and 256 bytes it takes the second.
  // CHECK-LABEL: mla.program @gaps
  // CHECK-SAME: workspace_bytes = 1536 : i64
  mla.program @gaps attributes {max_tokens = 1, max_sequences = 1, max_outputs = 1} {
    // CHECK-NEXT: mla.workspace at 768 : !mla.buffer<["48"], f32>
    %x = mla.workspace : !mla.buffer<["48"], f32>
    // CHECK-NEXT: mla.workspace at 448 : !mla.buffer<["80"], f32>
    %s = mla.workspace : !mla.buffer<["80"], f32>
    // CHECK-NEXT: mla.workspace at 0 : !mla.buffer<["112"], f32>
    %r = mla.workspace : !mla.buffer<["112"], f32>
    // CHECK-NEXT: mla.workspace at 1024 : !mla.buffer<["128"], f32>
    %q = mla.workspace : !mla.buffer<["128"], f32>
    // CHECK-NEXT: mla.workspace at 0 : !mla.buffer<["256"], f32>
    %p = mla.workspace : !mla.buffer<["256"], f32>
    mla.launch @one grid "1" (%p : !mla.buffer<["256"], f32>) scalars [] for "p"
    mla.launch @two grid "1" (%p, %q : !mla.buffer<["256"], f32>, !mla.buffer<["128"], f32>) scalars [] for "q"
    mla.launch @three grid "1" (%q, %r, %s : !mla.buffer<["128"], f32>, !mla.buffer<["112"], f32>, !mla.buffer<["80"], f32>) scalars [] for "r, s"
    mla.launch @three grid "1" (%q, %s, %x : !mla.buffer<["128"], f32>, !mla.buffer<["80"], f32>, !mla.buffer<["48"], f32>) scalars [] for "x"
  }

  // Tests that sizes are rounded up to 64 bytes.
  // CHECK-LABEL: mla.program @rounding
  // CHECK-SAME: workspace_bytes = 192 : i64
  mla.program @rounding attributes {max_tokens = 1, max_sequences = 1, max_outputs = 1} {
    // CHECK-NEXT: mla.workspace at 0 : !mla.buffer<["17"], f32>
    %a = mla.workspace : !mla.buffer<["17"], f32>
    // CHECK-NEXT: mla.workspace at 128 : !mla.buffer<["1"], f32>
    %b = mla.workspace : !mla.buffer<["1"], f32>
    mla.launch @two grid "1" (%a, %b : !mla.buffer<["17"], f32>, !mla.buffer<["1"], f32>) scalars [] for "a, b"
  }

  // Tests that sizes are those at the bounds: 4 tokens * 3 pages * 64 of 4
  // bytes, 2 sequences * 2 bytes, and 1 output * 8 of 4 bytes.
  // CHECK-LABEL: mla.program @symbols
  // CHECK-SAME: workspace_bytes = 3200 : i64
  mla.program @symbols attributes {max_tokens = 4, max_sequences = 2, max_outputs = 1} {
    // CHECK-NEXT: mla.workspace at 0 :
    %scores = mla.workspace : !mla.buffer<["tokens", "pages * 64"], f32>
    // CHECK-NEXT: mla.workspace at 3072 :
    %counts = mla.workspace : !mla.buffer<["sequences"], bf16>
    // CHECK-NEXT: mla.workspace at 3136 :
    %logits = mla.workspace : !mla.buffer<["outputs", "8"], f32>
    mla.launch @three grid "tokens" (%scores, %counts, %logits : !mla.buffer<["tokens", "pages * 64"], f32>, !mla.buffer<["sequences"], bf16>, !mla.buffer<["outputs", "8"], f32>) scalars [] for "all"
  }

  // Tests that a workspace that no launch uses is removed, and that a program
  // without any needs no arena.
  // CHECK-LABEL: mla.program @unused
  // CHECK-SAME: workspace_bytes = 0 : i64
  // CHECK-NOT: mla.workspace
  mla.program @unused attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
    %a = mla.workspace : !rows
  }

  // Tests that planning twice gives the same places: offsets of before are not
  // looked at.
  // CHECK-LABEL: mla.program @again
  // CHECK-SAME: workspace_bytes = 256 : i64
  mla.program @again attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1, workspace_bytes = 4096} {
    // CHECK-NEXT: mla.workspace at 0 :
    %a = mla.workspace at 1024 : !rows
    mla.launch @one grid "tokens" (%a : !rows) scalars [] for "a"
  }

  // Tests that ports, weights and caches have no place in the arena.
  mla.cache @kv : !mla.cache<latent, 16xf32>
  // CHECK-LABEL: mla.program @others
  // CHECK-SAME: workspace_bytes = 0 : i64
  mla.program @others attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
    %cache = mla.get_cache @kv : !mla.cache<latent, 16xf32>
    %logits = mla.port "logits" : !mla.buffer<["outputs", "16"], f32>
    mla.launch @two grid "tokens" (%cache, %logits : !mla.cache<latent, 16xf32>, !mla.buffer<["outputs", "16"], f32>) scalars [] for "logits"
  }
}
