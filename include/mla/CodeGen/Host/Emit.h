//===- Emit.h - a plan for the host -----------------------------*- C++ -*-===//
//
// Part of mla. The last stage: kernels through LLVM and lld (as a library) to
// a shared library, launches and weights to plan.json.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_HOST_EMIT_H
#define MLA_CODEGEN_HOST_EMIT_H

#include "mla/CodeGen/PlanBuilder.h"

namespace mla {

/// Compiles the functions of `kernels` to a shared library at `path`. The
/// module is lowered in place. Symbols that the C library's math part does not
/// define are an error.
llvm::Error compileHostKernels(mlir::ModuleOp kernels, const std::string &cpu,
                               const std::filesystem::path &path);

/// Writes the plan of a lowered module into `folder`, which exists: plan.json,
/// kernels.so and copies of the tokenizer's files from the model's folder.
/// The module's kernels are consumed.
llvm::Expected<plan::Plan> emitHostPlan(mlir::ModuleOp module,
                                        const ModelConfig &config,
                                        const Checkpoint *checkpoint,
                                        const std::string &cpu,
                                        const PlanOptions &options,
                                        const std::filesystem::path &folder);

} // namespace mla

#endif // MLA_CODEGEN_HOST_EMIT_H
