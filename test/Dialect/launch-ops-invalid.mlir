// RUN: mla-opt %s -verify-diagnostics -split-input-file

// expected-error@+1 {{C1: expected max_tokens of at least 1, found 0}}
mla.program @program_c1 attributes {max_tokens = 0, max_sequences = 1, max_outputs = 1} {
}

// -----

// expected-error@+1 {{C1: expected max_sequences of at least 1, found -1}}
mla.program @program_c1_sequences attributes {max_tokens = 4, max_sequences = -1, max_outputs = 1} {
}

// -----

// expected-error@+1 {{C1: expected max_outputs of at least 1, found 0}}
mla.program @program_c1_outputs attributes {max_tokens = 4, max_sequences = 1, max_outputs = 0} {
}

// -----

// expected-error@+1 {{C1: expected max_sequences and max_outputs of at most 4, found 5}}
mla.program @program_c1_order attributes {max_tokens = 4, max_sequences = 1, max_outputs = 5} {
}

// -----

mla.program @program_c2 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C2: does not belong into a mla.program}}
  mla.cache @kv : !mla.cache<latent, 8xf32>
}

// -----

mla.program @port_c1 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C1: expected a port of the plan, found "tokens"}}
  %0 = mla.port "tokens" : !mla.buffer<["tokens"], i32>
}

// -----

mla.program @workspace_c1 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C1: expected an offset that is a multiple of 64, found 32}}
  %0 = mla.workspace at 32 : !mla.buffer<["tokens"], f32>
}

// -----

mla.program @workspace_c1_negative attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C1: expected an offset that is a multiple of 64, found -64}}
  %0 = mla.workspace at -64 : !mla.buffer<["tokens"], f32>
}

// -----

mla.program @launch_c1 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C1: no kernel named @add in the module @kernels}}
  mla.launch @add grid "tokens" () scalars [] for "add"
}

// -----

module @kernels {
  func.func private @helper()
}
mla.program @launch_c1_no_access attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C1: no kernel named @helper in the module @kernels}}
  mla.launch @helper grid "tokens" () scalars [] for "add"
}

// -----

module @kernels {
  func.func private @add() attributes {mla.access = ["append"]}
}
mla.program @launch_c1_access attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  %0 = mla.workspace : !mla.buffer<["tokens"], f32>
  // expected-error@+1 {{C1: expected mla.access of 'read', 'write' and 'readwrite', found "append"}}
  mla.launch @add grid "tokens" (%0 : !mla.buffer<["tokens"], f32>) scalars [] for "add"
}

// -----

module @kernels {
  func.func private @add() attributes {mla.access = ["read", "write"]}
}
mla.program @launch_c2 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  %0 = mla.workspace : !mla.buffer<["tokens"], f32>
  // expected-error@+1 {{C2: expected a number of operands of 2, found 1}}
  mla.launch @add grid "tokens" (%0 : !mla.buffer<["tokens"], f32>) scalars [] for "add"
}

// -----

module @kernels {
  func.func private @add() attributes {mla.access = [], mla.scalars = 2 : i64}
}
mla.program @launch_c2_scalars attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C2: expected a number of scalars of 2, found 1}}
  mla.launch @add grid "tokens" () scalars ["tokens"] for "add"
}

// -----

module @kernels {
  func.func private @add() attributes {mla.access = []}
}
mla.program @launch_c3 attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C3: }}
  mla.launch @add grid "tokens *" () scalars [] for "add"
}

// -----

module @kernels {
  func.func private @add() attributes {mla.access = [], mla.scalars = 1 : i64}
}
mla.program @launch_c3_scalar attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{C3: }}
  mla.launch @add grid "tokens" () scalars ["rows"] for "add"
}
