// RUN: mla-opt %s -mla-lower-to-host -verify-diagnostics -split-input-file

// Tests that a module without a step is an error.
// expected-error@+1 {{'builtin.module' op expected a function @step}}
module {
}

// -----

// Tests that an op for which no lowering was chosen is named,
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x4xf32> {
  // expected-error@+1 {{'mla.rotary_embedding' op expected a lowering to the host, found none; run mla-select-lowering first}}
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0} : (!mla.batch) -> tensor<?x4xf32>
  return %cs : tensor<?x4xf32>
}

// -----

// as is one with a lowering to another target,
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x4xf32> {
  // expected-error@+1 {{'mla.rotary_embedding' op expected a lowering to the host, found sm120.rotary_embedding; run mla-select-lowering first}}
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0, lowering = "sm120.rotary_embedding"} : (!mla.batch) -> tensor<?x4xf32>
  return %cs : tensor<?x4xf32>
}

// -----

// and an op of another dialect.
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) {
  // expected-error@+1 {{'arith.constant' op has no lowering to the host}}
  %0 = arith.constant {lowering = "host.constant"} 1 : i32
  return
}

// -----

// Tests that the step takes ids and a batch,
// expected-error@+1 {{'func.func' op expected the arguments ids and batch and one block}}
func.func @step(%ids: tensor<?xi32>) {
  return
}

// -----

// has a body,
// expected-error@+1 {{'func.func' op expected the arguments ids and batch and one block}}
func.func private @step(%ids: tensor<?xi32>, %b: !mla.batch)

// -----

// and returns logits.
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x4xf32> {
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0, lowering = "host.rotary_embedding"} : (!mla.batch) -> tensor<?x4xf32>
  // expected-error@+1 {{'func.return' op expected the step to return the logits of a mla.lm_head}}
  return %cs : tensor<?x4xf32>
}

// -----

// Nothing is not enough.
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) {
  // expected-error@+1 {{'func.return' op expected the step to return the logits of a mla.lm_head}}
  return
}

// -----

// Gathered rows are no logits if no head made them.
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x8xf32> {
  %cs = mla.rotary_embedding %b {frequencies = array<f32: 1.0, 0.5>, factor = 1.0, lowering = "host.rotary_embedding"} : (!mla.batch) -> tensor<?x4xf32>
  %0 = mla.all_gather %cs {ranks = 2 : i64, local, lowering = "host.all_gather"} : (tensor<?x4xf32>) -> tensor<?x8xf32>
  // expected-error@+1 {{'func.return' op expected the step to return the logits of a mla.lm_head}}
  return %0 : tensor<?x8xf32>
}
