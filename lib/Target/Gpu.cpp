//===- Gpu.cpp - what kernels need to know of a GPU -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Gpu.h"
#include "llvm/Support/ErrorHandling.h"
#include <vector>

using namespace mla;

std::optional<Gpu> mla::gpuOf(const Machine &machine) {
  const Capability *has = machine.capability();
  if (!has)
    return std::nullopt;
  return Gpu{has->name,           machine.multiprocessors,
             has->sharedBytesPerBlock, has->sharedBytesPerSM,
             has->registersPerSM, has->threadsPerSM,
             has->hasFp4,         has->hasKernels};
}

llvm::ArrayRef<Gpu> mla::gpus() {
  static const std::vector<Gpu> all = [] {
    std::vector<Gpu> list;
    for (const Capability &has : capabilities()) {
      auto machine = defaultMachine(has.name);
      if (!machine.ok())
        llvm::report_fatal_error("a shipped machine is wrong");
      list.push_back(*gpuOf(*machine));
    }
    return list;
  }();
  return all;
}

const Gpu *mla::lookupGpu(llvm::StringRef name) {
  for (const Gpu &gpu : gpus())
    if (gpu.name == name)
      return &gpu;
  return nullptr;
}
