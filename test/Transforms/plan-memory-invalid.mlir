// RUN: mla-opt %s -pass-pipeline='builtin.module(mla.program(mla-plan-memory))' -verify-diagnostics -split-input-file

module @kernels {
  func.func private @one() attributes {mla.access = ["write"]}
}
// Tests that a size which only the runtime knows is refused.
mla.program @capacity attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{expected a size that is known at compile time, found one that depends on 'capacity'}}
  %0 = mla.workspace : !mla.buffer<["capacity", "64"], f32>
  mla.launch @one grid "tokens" (%0 : !mla.buffer<["capacity", "64"], f32>) scalars [] for "a"
}

// -----

module @kernels {
  func.func private @one() attributes {mla.access = ["write"]}
}
// Tests that a size that overflows is refused.
mla.program @overflow attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{has no size at the bounds of the program: the size of a buffer overflows 64 bits}}
  %0 = mla.workspace : !mla.buffer<["1000000000 * 1000000000", "tokens * 1000000000"], f32>
  mla.launch @one grid "tokens" (%0 : !mla.buffer<["1000000000 * 1000000000", "tokens * 1000000000"], f32>) scalars [] for "a"
}

// -----

module @kernels {
  func.func private @one() attributes {mla.access = ["write"]}
}
// Tests that a size below zero is refused.
mla.program @negative attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{has no size at the bounds of the program: expected a dimension of at least 0}}
  %0 = mla.workspace : !mla.buffer<["2 - tokens"], f32>
  mla.launch @one grid "tokens" (%0 : !mla.buffer<["2 - tokens"], f32>) scalars [] for "a"
}

// -----

module @kernels {
  func.func private @one() attributes {mla.access = ["write"]}
}
// Tests that an arena beyond what can be addressed is refused.
mla.program @too_large attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{is too large, 8000000000000000000 bytes}}
  %0 = mla.workspace : !mla.buffer<["1000000000 * 1000000000 * 2"], f32>
  mla.launch @one grid "tokens" (%0 : !mla.buffer<["1000000000 * 1000000000 * 2"], f32>) scalars [] for "a"
}
