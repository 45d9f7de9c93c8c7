//===- Emit.cpp - a plan for a GPU ----------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CodeGen/NVVM/Emit.h"

using namespace mlir;
using namespace mla;

llvm::Expected<GpuPlan>
mla::emitGpuPlan(ModuleOp module, const ModelConfig &config,
                 const Checkpoint *checkpoint, const Gpu &gpu,
                 const PlanOptions &options,
                 const std::filesystem::path &folder) {
  auto plan = buildPlan(module, config, checkpoint, options,
                        {gpu.name.str(), "", {}, plan::cudaKernelAbi});
  if (!plan)
    return plan.takeError();
  auto code =
      compileGpuKernels(module.lookupSymbol<ModuleOp>("kernels"), gpu);
  if (!code)
    return code.takeError();
  plan->library = "kernels.ptx";
  if (llvm::Error error =
          writeCode(folder / plan->library, code->ptx, plan->libraryHash))
    return error;
  if (!code->cubin.empty()) {
    plan->binary = "kernels.cubin";
    if (llvm::Error error =
            writeCode(folder / plan->binary, code->cubin, plan->binaryHash))
      return error;
  }
  if (llvm::Error error = writePlan(*plan, config, folder))
    return error;
  return GpuPlan{*std::move(plan), std::move(code->resources)};
}
