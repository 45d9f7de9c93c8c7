// RUN: mla-opt %s -mla-verify-lowered=planned -verify-diagnostics -split-input-file

// Tests that a tensor-level op that was left is named, not the function around
// it.
func.func @left(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.add' op expected no mla op outside of programs after lowering}}
  %0 = mla.add %x, %x : tensor<?x8xf32>
  return
}

// -----

// Tests that a function without such ops is an error too.
// expected-error@+1 {{'func.func' op expected only programs, weights, caches and the module @kernels after lowering}}
func.func private @helper()

// -----

// Tests that a module of another name is an error.
module {
  // expected-error@+1 {{'builtin.module' op expected only programs, weights, caches and the module @kernels after lowering}}
  module @device {
  }
}

// -----

// Tests that a module without a name is an error.
module {
  // expected-error@+1 {{'builtin.module' op expected only programs, weights, caches and the module @kernels after lowering}}
  module {
  }
}

// -----

// Tests that kernels contain no mla ops.
module @kernels {
  func.func @add(%x: tensor<?x8xf32>) {
    // expected-error@+1 {{'mla.add' op expected no mla op outside of programs after lowering}}
    %0 = mla.add %x, %x : tensor<?x8xf32>
    return
  }
}

// -----

// Tests that a program whose memory is not planned is an error,
// expected-error@+1 {{'mla.program' op expected workspace_bytes after mla-plan-memory}}
mla.program @unplanned attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
}

// -----

// as is a workspace without a place,
mla.program @unplaced attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1, workspace_bytes = 64} {
  // expected-error@+1 {{'mla.workspace' op expected an offset inside the 64 bytes of the program, found none}}
  %0 = mla.workspace : !mla.buffer<["tokens"], f32>
}

// -----

// and one beyond the arena.
mla.program @outside attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1, workspace_bytes = 64} {
  // expected-error@+1 {{'mla.workspace' op expected an offset inside the 64 bytes of the program, found 64}}
  %0 = mla.workspace at 64 : !mla.buffer<["tokens"], f32>
}
