//===- Passes.h - the passes over the mla dialect ---------------*- C++ -*-===//
//
// Part of mla. Passes.td says what each pass does; lib/Pipelines says in which
// order they run.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TRANSFORMS_PASSES_H
#define MLA_TRANSFORMS_PASSES_H

#include "mla/Dialect/MLA.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/Pass/Pass.h"
#include <memory>
#include <string>

namespace mla {

#define GEN_PASS_DECL
#define GEN_PASS_REGISTRATION
#include "mla/Transforms/Passes.h.inc"

} // namespace mla

#endif // MLA_TRANSFORMS_PASSES_H
