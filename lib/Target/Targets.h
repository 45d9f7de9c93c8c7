//===- Targets.h - one function a target ------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_TARGET_TARGETS_H
#define MLA_LIB_TARGET_TARGETS_H

#include "mla/Target/Lowering.h"

namespace mla {
const Target &hostTarget();
/// Weights in f32, bf16 or f16: elements that stand alone.
Refusal needsPlainWeights(mlir::Operation *op);
/// A collective that exchanges nothing: ranks do not exchange rows yet.
Refusal needsLocalCollective(mlir::Operation *op);
/// The lowerings of every GPU target that has some.
llvm::ArrayRef<Lowering> gpuLowerings();
} // namespace mla

#endif // MLA_LIB_TARGET_TARGETS_H
