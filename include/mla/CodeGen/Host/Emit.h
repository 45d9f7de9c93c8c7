//===- Emit.h - from launches to a plan on disk -----------------*- C++ -*-===//
//
// Part of mla. The last stage: kernels through LLVM and lld (as a library) to
// a shared library, launches and weights to plan.json.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_HOST_EMIT_H
#define MLA_CODEGEN_HOST_EMIT_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"
#include "mla/Plan/Plan.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace mla {

struct HostPlanOptions {
  std::string cpu = "x86-64-v3";
  plan::Checkpoint::Kind weights = plan::Checkpoint::Kind::Safetensors;
  int64_t seed = 0; ///< of synthetic weights
  std::string producer;
};

/// Compiles the functions of `kernels` to a shared library at `path`. The
/// module is lowered in place. Symbols that the C library's math part does not
/// define are an error.
llvm::Error compileHostKernels(mlir::ModuleOp kernels, const std::string &cpu,
                               const std::filesystem::path &path);

/// The plan of a lowered module, without kernels and tokenizer.
llvm::Expected<plan::Plan> buildPlan(mlir::ModuleOp module,
                                     const ModelConfig &config,
                                     const Checkpoint *checkpoint,
                                     const HostPlanOptions &options);

/// Writes the plan of a lowered module into `folder`, which exists: plan.json,
/// kernels.so and copies of the tokenizer's files from the model's folder.
/// The module's kernels are consumed.
llvm::Expected<plan::Plan> emitHostPlan(mlir::ModuleOp module,
                                        const ModelConfig &config,
                                        const Checkpoint *checkpoint,
                                        const HostPlanOptions &options,
                                        const std::filesystem::path &folder);

} // namespace mla

#endif // MLA_CODEGEN_HOST_EMIT_H
