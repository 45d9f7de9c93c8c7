// RUN: mla-opt %s -mla-verify-imported | FileCheck %s

// Tests that a graph of plain ops passes and is not changed.
// CHECK: mla.weight @embed
mla.weight @embed : !mla.weight<32x8xbf16> from "model.embed_tokens.weight"
// CHECK-LABEL: func.func @step
func.func @step(%ids: tensor<?xi32>, %b: !mla.batch) -> tensor<?x32xf32> {
  // CHECK-NEXT: %[[W:.*]] = mla.get_weight @embed
  %w = mla.get_weight @embed : !mla.weight<32x8xbf16>
  // CHECK-NEXT: %[[H:.*]] = mla.embedding %{{.*}}, %[[W]]
  %h = mla.embedding %ids, %w : (tensor<?xi32>, !mla.weight<32x8xbf16>) -> tensor<?x8xf32>
  // CHECK-NEXT: %[[L:.*]] = mla.lm_head %[[H]], %[[W]]
  %l = mla.lm_head %h, %w, %b : (tensor<?x8xf32>, !mla.weight<32x8xbf16>, !mla.batch) -> tensor<?x32xf32>
  // CHECK-NEXT: return %[[L]]
  return %l : tensor<?x32xf32>
}
