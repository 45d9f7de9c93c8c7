// RUN: mla-opt %s | mla-opt | FileCheck %s
// RUN: mla-opt %s -mlir-print-op-generic | mla-opt | FileCheck %s

// Tests that weights are declared with their tensor of the checkpoint, a stack
// of experts with the place of the expert's number.
// CHECK: mla.weight @norm : !mla.weight<8xbf16> from "model.norm.weight"
mla.weight @norm : !mla.weight<8xbf16> from "model.norm.weight"
// CHECK: mla.weight @layers.1.mlp.experts.up_proj : !mla.weight<4x16x8xbf16> from "e.{}.up_proj.weight"
mla.weight @layers.1.mlp.experts.up_proj : !mla.weight<4x16x8xbf16> from "e.{}.up_proj.weight"

// Tests that a quantized weight names its scales, and that the scale of the
// matrix may be a reciprocal.
// CHECK: mla.weight @layers.1.mlp.experts.gate_proj : !mla.weight<4x16x32xnvfp4> from "e.{}.gate_proj.weight_packed" scales ["e.{}.gate_proj.weight_scale", "e.{}.gate_proj.weight_global_scale"] {reciprocal_global}
mla.weight @layers.1.mlp.experts.gate_proj : !mla.weight<4x16x32xnvfp4> from "e.{}.gate_proj.weight_packed" scales ["e.{}.gate_proj.weight_scale", "e.{}.gate_proj.weight_global_scale"] {reciprocal_global}
// CHECK: mla.weight @w : !mla.weight<16x8xfp8_block> from "w" scales ["s"]
mla.weight @w : !mla.weight<16x8xfp8_block> from "w" scales ["s"]

// Tests that a declared weight becomes a value.
// CHECK-LABEL: func.func @get_weight
func.func @get_weight() -> !mla.weight<8xbf16> {
  // CHECK: mla.get_weight @norm : !mla.weight<8xbf16>
  %0 = mla.get_weight @norm : !mla.weight<8xbf16>
  return %0 : !mla.weight<8xbf16>
}

// CHECK-LABEL: func.func @embedding
// CHECK-SAME: (%[[IDS:.*]]: tensor<?xi32>, %[[TABLE:.*]]: !mla.weight<32x8xbf16>)
func.func @embedding(%ids: tensor<?xi32>, %table: !mla.weight<32x8xbf16>) {
  // CHECK: mla.embedding %[[IDS]], %[[TABLE]] : (tensor<?xi32>, !mla.weight<32x8xbf16>) -> tensor<?x8xf32>
  %0 = mla.embedding %ids, %table : (tensor<?xi32>, !mla.weight<32x8xbf16>) -> tensor<?x8xf32>
  return
}

// CHECK-LABEL: func.func @norms
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[W:.*]]: !mla.weight<8xbf16>, %[[B:.*]]: !mla.weight<8xf32>)
func.func @norms(%x: tensor<?x8xf32>, %w: !mla.weight<8xbf16>, %b: !mla.weight<8xf32>) {
  // CHECK: mla.rms_norm %[[X]], %[[W]] {eps = 1.250000e-01 : f64} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  %0 = mla.rms_norm %x, %w {eps = 0.125} : (tensor<?x8xf32>, !mla.weight<8xbf16>) -> tensor<?x8xf32>
  // CHECK: mla.layer_norm %[[X]], %[[W]], %[[B]] {eps = 1.250000e-01 : f64} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  %1 = mla.layer_norm %x, %w, %b {eps = 0.125} : (tensor<?x8xf32>, !mla.weight<8xbf16>, !mla.weight<8xf32>) -> tensor<?x8xf32>
  return
}

// Tests that linears take weights of any format, and different ones at once.
// CHECK-LABEL: func.func @linears
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[A:.*]]: !mla.weight<16x8xfp8_block>, %[[B:.*]]: !mla.weight<16x8xbf16>)
func.func @linears(%x: tensor<?x8xf32>, %a: !mla.weight<16x8xfp8_block>, %b: !mla.weight<16x8xbf16>) {
  // CHECK: mla.linear %[[X]], %[[A]] : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>) -> tensor<?x16xf32>
  %0 = mla.linear %x, %a : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>) -> tensor<?x16xf32>
  // CHECK: %{{.*}}:2 = mla.joined_linear %[[X]], %[[A]], %[[B]] : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>, !mla.weight<16x8xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>)
  %1:2 = mla.joined_linear %x, %a, %b : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>, !mla.weight<16x8xbf16>) -> (tensor<?x16xf32>, tensor<?x16xf32>)
  // CHECK: mla.gated_linear %[[X]], %[[A]], %[[B]] : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  %2 = mla.gated_linear %x, %a, %b : (tensor<?x8xf32>, !mla.weight<16x8xfp8_block>, !mla.weight<16x8xbf16>) -> tensor<?x16xf32>
  return
}

// CHECK-LABEL: func.func @rows
// CHECK-SAME: (%[[A:.*]]: tensor<?x12xf32>, %[[B:.*]]: tensor<?x12xf32>)
func.func @rows(%a: tensor<?x12xf32>, %b: tensor<?x12xf32>) {
  // CHECK: mla.swiglu %[[A]], %[[B]] : tensor<?x12xf32>
  %0 = mla.swiglu %a, %b : tensor<?x12xf32>
  // CHECK: mla.add %[[A]], %[[B]] : tensor<?x12xf32>
  %1 = mla.add %a, %b : tensor<?x12xf32>
  // CHECK: %{{.*}}:3 = mla.split %[[A]] : (tensor<?x12xf32>) -> (tensor<?x8xf32>, tensor<?x3xf32>, tensor<?x1xf32>)
  %2:3 = mla.split %a : (tensor<?x12xf32>) -> (tensor<?x8xf32>, tensor<?x3xf32>, tensor<?x1xf32>)
  return
}

// CHECK-LABEL: func.func @lm_head
// CHECK-SAME: (%[[X:.*]]: tensor<?x8xf32>, %[[W:.*]]: !mla.weight<32x8xbf16>, %[[B:.*]]: !mla.batch)
func.func @lm_head(%x: tensor<?x8xf32>, %w: !mla.weight<32x8xbf16>, %b: !mla.batch) {
  // CHECK: mla.lm_head %[[X]], %[[W]], %[[B]] : (tensor<?x8xf32>, !mla.weight<32x8xbf16>, !mla.batch) -> tensor<?x32xf32>
  %0 = mla.lm_head %x, %w, %b : (tensor<?x8xf32>, !mla.weight<32x8xbf16>, !mla.batch) -> tensor<?x32xf32>
  return
}
