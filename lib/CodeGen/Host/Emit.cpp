//===- Emit.cpp - a plan for the host -------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CodeGen/Host/Emit.h"
#include "mla/Support/LLVMError.h"

using namespace mlir;
using namespace mla;

/// The features of a CPU level that the runtime must find on the machine.
static std::optional<std::vector<std::string>> featuresOf(llvm::StringRef cpu) {
  std::vector<std::string> v3 = {"avx", "avx2", "bmi",  "bmi2",
                                 "f16c", "fma", "lzcnt", "movbe"};
  if (cpu == "x86-64-v3")
    return v3;
  if (cpu != "x86-64-v4")
    return std::nullopt;
  for (const char *f : {"avx512f", "avx512bw", "avx512cd", "avx512dq",
                        "avx512vl"})
    v3.push_back(f);
  return v3;
}

llvm::Expected<plan::Plan>
mla::emitHostPlan(ModuleOp module, const ModelConfig &config,
                  const Checkpoint *checkpoint, const std::string &cpu,
                  const PlanOptions &options,
                  const std::filesystem::path &folder) {
  auto features = featuresOf(cpu);
  if (!features)
    return llvm::createStringError("expected a CPU of x86-64-v3 or x86-64-v4, "
                                   "found '" +
                                   cpu + "'");
  auto plan = buildPlan(module, config, checkpoint, options,
                        {"host", cpu, *features, plan::hostKernelAbi});
  if (!plan)
    return plan.takeError();
  plan->library = "kernels.so";
  std::filesystem::path library = folder / plan->library;
  auto kernels = module.lookupSymbol<ModuleOp>("kernels");
  if (llvm::Error error = compileHostKernels(kernels, cpu, library))
    return error;
  auto hash = plan::hashFile(library);
  if (!hash.ok())
    return toError(hash.status());
  plan->libraryHash = *hash;
  if (llvm::Error error = writePlan(*plan, config, folder))
    return error;
  return plan;
}
