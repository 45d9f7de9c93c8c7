//===- Emit.h - a plan for a GPU --------------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_NVVM_EMIT_H
#define MLA_CODEGEN_NVVM_EMIT_H

#include "mla/CodeGen/NVVM/Compile.h"
#include "mla/CodeGen/PlanBuilder.h"

namespace mla {

struct GpuPlan {
  plan::Plan plan;
  std::vector<KernelResources> resources;
};

/// Writes the plan of a lowered module into `folder`, which exists: plan.json,
/// kernels.ptx, kernels.cubin if there is a ptxas, and copies of the tokenizer's
/// files from the model's folder. The module's kernels are consumed.
llvm::Expected<GpuPlan> emitGpuPlan(mlir::ModuleOp module,
                                    const ModelConfig &config,
                                    const Checkpoint *checkpoint,
                                    const Gpu &gpu, const PlanOptions &options,
                                    const std::filesystem::path &folder);

} // namespace mla

#endif // MLA_CODEGEN_NVVM_EMIT_H
