// RUN: mla-opt %s -mla-verify-imported -verify-diagnostics -split-input-file

// Tests that an op which only a fusion makes is an error.
func.func @fused(%x: tensor<?x8xf32>, %w: !mla.weight<16x8xbf16>) {
  // expected-error@+1 {{'mla.gated_linear' op expected only functions and plain mla ops after import}}
  %0 = mla.gated_linear %x, %w, %w : (tensor<?x8xf32>, !mla.weight<16x8xbf16>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  return
}

// -----

// Tests that what a lowering makes is an error, op by op.
// expected-error@+1 {{'mla.program' op expected only functions and plain mla ops after import}}
mla.program @lowered attributes {max_tokens = 4, max_sequences = 1, max_outputs = 1} {
  // expected-error@+1 {{'mla.workspace' op expected only functions and plain mla ops after import}}
  %0 = mla.workspace : !mla.buffer<["tokens"], f32>
}

// -----

// Tests that an op of another dialect is an error.
func.func @foreign() {
  // expected-error@+1 {{'builtin.unrealized_conversion_cast' op expected only functions and plain mla ops after import}}
  %0 = builtin.unrealized_conversion_cast to !mla.batch
  return
}

// -----

// Tests that a module inside the module is an error.
module {
  // expected-error@+1 {{'builtin.module' op expected only functions and plain mla ops after import}}
  module @kernels {
  }
}

// -----

// Tests that a lowering that is already chosen is an error.
func.func @selected(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.add' op has a lowering before one is selected}}
  %0 = mla.add %x, %x {lowering = "host.add"} : tensor<?x8xf32>
  return
}
