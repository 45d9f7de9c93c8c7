// RUN: not mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=32,4 2>&1 | FileCheck %s --check-prefix=DESCENDING
// RUN: not mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=4,4 2>&1 | FileCheck %s --check-prefix=EQUAL
// RUN: not mla-opt %s -mla-select-lowering -mla-lower-to-host=step-tokens=0,4 2>&1 | FileCheck %s --check-prefix=ZERO

// Tests that bounds of steps that do not ascend from 1 are refused.
// DESCENDING: error: 'builtin.module' op expected ascending, positive step-tokens, found 4
// EQUAL: error: 'builtin.module' op expected ascending, positive step-tokens, found 4
// ZERO: error: 'builtin.module' op expected ascending, positive step-tokens, found 0

mla.weight @w : !mla.weight<8x8xbf16> from "w"
func.func @step(%ids: tensor<?xi32>, %batch: !mla.batch) -> tensor<?x8xf32> {
  %w = mla.get_weight @w : !mla.weight<8x8xbf16>
  %x = mla.embedding %ids, %w : (tensor<?xi32>, !mla.weight<8x8xbf16>) -> tensor<?x8xf32>
  %logits = mla.lm_head %x, %w, %batch : (tensor<?x8xf32>, !mla.weight<8x8xbf16>, !mla.batch) -> tensor<?x8xf32>
  return %logits : tensor<?x8xf32>
}
