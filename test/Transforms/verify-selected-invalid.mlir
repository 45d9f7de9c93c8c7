// RUN: mla-opt %s -mla-verify-selected -verify-diagnostics -split-input-file

// Tests that an op without a lowering is an error.
func.func @none(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.add' op has no lowering}}
  %0 = mla.add %x, %x : tensor<?x8xf32>
  return
}

// -----

// Tests that a name which is in no target's table is an error,
func.func @unknown(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.add' op has an unknown lowering, found "host.addition"}}
  %0 = mla.add %x, %x {lowering = "host.addition"} : tensor<?x8xf32>
  // expected-error@+1 {{'mla.add' op has an unknown lowering, found "tpu.add"}}
  %1 = mla.add %x, %x {lowering = "tpu.add"} : tensor<?x8xf32>
  // expected-error@+1 {{'mla.add' op has an unknown lowering, found "add"}}
  %2 = mla.add %x, %x {lowering = "add"} : tensor<?x8xf32>
  // expected-error@+1 {{'mla.add' op has an unknown lowering, found ["host.add", "host.add"]}}
  %3 = mla.add %x, %x {lowering = ["host.add", "host.add"]} : tensor<?x8xf32>
  return
}

// -----

// Tests that the lowering of another op is an error.
func.func @other_op(%x: tensor<?x8xf32>) {
  // expected-error@+1 {{'mla.add' op has the lowering of another op, mla.swiglu, found "host.swiglu"}}
  %0 = mla.add %x, %x {lowering = "host.swiglu"} : tensor<?x8xf32>
  return
}

// -----

// Tests that a lowering which does not fit the op's formats is an error.
func.func @refuses(%x: tensor<?xi32>, %w: !mla.weight<32x32xnvfp4>) {
  // expected-error@+1 {{'mla.embedding' op has a lowering that refuses it: needs weights in f32, bf16 or f16, found nvfp4, found "host.embedding"}}
  %0 = mla.embedding %x, %w {lowering = "host.embedding"} : (tensor<?xi32>, !mla.weight<32x32xnvfp4>) -> tensor<?x32xf32>
  return
}
