//===- Optimize.h - LLVM's passes over kernels ------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_EMIT_OPTIMIZE_H
#define MLA_LIB_CODEGEN_EMIT_OPTIMIZE_H

#include "llvm/IR/Module.h"
#include "llvm/Passes/OptimizationLevel.h"
#include "llvm/Target/TargetMachine.h"

namespace mla {

/// Runs LLVM's default passes of `level`, but no vectoriser: kernels are
/// vectorised as written, in an order of sums that must stay.
void optimizeKernels(llvm::Module &module, llvm::TargetMachine &machine,
                     llvm::OptimizationLevel level, bool unrollLoops);

} // namespace mla

#endif // MLA_LIB_CODEGEN_EMIT_OPTIMIZE_H
