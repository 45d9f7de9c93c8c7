//===- CudaModule.cpp - loading kernels on a GPU --------------------------===//
//
// Part of mla. Everything that a launch would fail with is looked at here: the
// machine, the ABI, the file, each kernel's parameters, threads and shared
// memory.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/cuda/CudaModule.h"
#include "mla/Support/Json.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <algorithm>
#include <array>

namespace mla::hal {
using namespace cuda;

namespace {
/// Dynamic shared memory that every kernel may have without asking.
constexpr int64_t freeSharedBytes = 48 * 1024;
constexpr uint64_t maxLibraryBytes = uint64_t(1) << 30;

/// The compute capability of "sm_90a", as 90; 0 for other text.
int capability(std::string_view target) {
  if (!target.starts_with("sm_"))
    return 0;
  target.remove_prefix(3);
  if (target.ends_with('a'))
    target.remove_suffix(1);
  int value = 0;
  for (char c : target) {
    if (c < '0' || c > '9' || value > 1000)
      return 0;
    value = value * 10 + (c - '0');
  }
  return value;
}

} // namespace

Status CudaDevice::checkCollectives(const plan::Plan &plan) {
  for (const plan::Kernel &kernel : plan.kernels)
    if (kernel.collective != plan::Collective::None &&
        kernel.collective != plan::Collective::AllReduce &&
        kernel.collective != plan::Collective::AllGather)
      return unsupported("the plan's " + std::to_string(plan.ranks.count) +
                         " ranks exchange data by " +
                         std::string(plan::collectiveName(kernel.collective)) +
                         ", which GPUs do in kernels only");
  return {};
}

Result<std::unique_ptr<Module>>
CudaDevice::load(const plan::Plan &plan, const std::filesystem::path &folder) {
  if (plan.target.isHost())
    return unsupported("the plan was compiled for the host, not for a GPU");
  MLA_RETURN_IF_ERROR(checkCollectives(plan));
  std::string mine = std::to_string(major) + "." + std::to_string(minor);
  int wanted = capability(plan.target.name);
  if (wanted != 10 * major + minor)
    return unsupported("the plan was compiled for " + plan.target.name +
                       ", compute capability " + std::to_string(wanted / 10) +
                       "." + std::to_string(wanted % 10) + "; " + name +
                       " has " + mine);
  if (plan.target.kernelAbi != plan::cudaKernelAbi)
    return unsupported(
        "the plan's kernels have ABI " + std::to_string(plan.target.kernelAbi) +
        "; this runtime calls ABI " + std::to_string(plan::cudaKernelAbi));
  bool assembled = !plan.binary.empty();
  std::filesystem::path path =
      folder / (assembled ? plan.binary : plan.library);
  MLA_ASSIGN_OR_RETURN(uint64_t hash, plan::hashFile(path));
  if (hash != (assembled ? plan.binaryHash : plan.libraryHash))
    return invalid(path.string() + ": not the file that this plan was written "
                                   "with (its hash differs); compile the plan "
                                   "again");
  // PTX must end in a NUL, which a string has.
  MLA_ASSIGN_OR_RETURN(std::string image, readFile(path, maxLibraryBytes));

  MLA_RETURN_IF_ERROR(enter());
  std::string said;
  ModuleHandle handle = nullptr;
  Code code = driver->loadModule(&handle, image.data(), said);
  if (code != Success) {
    Status status = check(code, "cuModuleLoadDataEx",
                          std::string("to ") +
                              (assembled ? "load " : "compile ") +
                              path.string());
    if (!lost.ok() || code == OutOfMemory)
      return status;
    return Status(code == UnsupportedPtxVersion ? StatusCode::Unsupported
                                                : StatusCode::Invalid,
                  status.message() + said);
  }
  auto module = std::make_unique<CudaModule>(*driver, context, handle);

  for (const plan::Kernel &kernel : plan.kernels) {
    std::string of = path.string() + ": kernel '" + kernel.name + "' ";
    CudaModule::Kernel loaded;
    loaded.name = kernel.name;
    loaded.collective = kernel.collective;
    loaded.exchanges = kernel.hasPeers();
    if (kernel.collective != plan::Collective::None) {
      module->kernels.push_back(std::move(loaded));
      continue;
    }
    loaded.threads = static_cast<unsigned>(kernel.threads);
    loaded.sharedBytes = static_cast<unsigned>(kernel.sharedBytes);
    loaded.parameters = kernel.parameters.size();
    code = driver->moduleGetFunction(&loaded.function, handle,
                                     kernel.name.c_str());
    if (code == NotFound)
      return invalid(path.string() + ": has no kernel '" + kernel.name + "'");
    MLA_RETURN_IF_ERROR(
        check(code, "cuModuleGetFunction", "to find kernel " + kernel.name));
    // At once, not when it is first launched, which would wait for the kernels that
    // run then.
    if (ranks && driver->funcLoad)
      MLA_RETURN_IF_ERROR(check(driver->funcLoad(loaded.function), "cuFuncLoad",
                                "to load kernel " + kernel.name));
    std::string attempt = "to look at kernel " + kernel.name;
    int threads = 0, own = 0;
    MLA_RETURN_IF_ERROR(check(
        driver->funcGetAttribute(&threads, MaxThreadsPerBlock, loaded.function),
        "cuFuncGetAttribute", attempt));
    MLA_RETURN_IF_ERROR(
        check(driver->funcGetAttribute(&own, SharedSizeBytes, loaded.function),
              "cuFuncGetAttribute", attempt));
    if (kernel.threads > threads)
      return unsupported(of + "needs blocks of " +
                         std::to_string(kernel.threads) +
                         " threads; its registers allow " +
                         std::to_string(threads) + " on " + name);
    if (kernel.sharedBytes + own > sharedLimit)
      return unsupported(of + "needs " +
                         std::to_string(kernel.sharedBytes + own) +
                         " bytes of shared memory a block; " + name + " has " +
                         std::to_string(sharedLimit));
    if (kernel.sharedBytes + own > freeSharedBytes)
      MLA_RETURN_IF_ERROR(check(
          driver->funcSetAttribute(loaded.function, MaxDynamicSharedSizeBytes,
                                   static_cast<int>(kernel.sharedBytes)),
          "cuFuncSetAttribute",
          "to give kernel " + kernel.name + " " +
              std::to_string(kernel.sharedBytes) + " bytes of shared memory"));
    // The same division of cache and shared memory for all: kernels that want
    // another cannot begin on an SM while one that has this is there. (Measured on
    // an H200: a pair of kernels took 14 to 20 us without, 14 to 15 with this.)
    MLA_RETURN_IF_ERROR(check(
        driver->funcSetAttribute(loaded.function, PreferredSharedMemoryCarveout,
                                 100),
        "cuFuncSetAttribute",
        "to give kernel " + kernel.name + " an SM's shared memory"));
    // The driver reads as many parameters as the kernel has.
    if (driver->funcGetParamInfo) {
      size_t count = 0, offset = 0, size = 0;
      while (count <= loaded.parameters &&
             driver->funcGetParamInfo(loaded.function, count, &offset, &size) ==
                 Success) {
        if (size != sizeof(uint64_t))
          return invalid(of + "has a parameter of " + std::to_string(size) +
                         " bytes, expected 8");
        ++count;
      }
      if (count != loaded.parameters)
        return invalid(of + "has " +
                       (count > loaded.parameters ? "more" : "fewer") +
                       " parameters than the " +
                       std::to_string(loaded.parameters) + " of the plan");
    }
    module->kernels.push_back(std::move(loaded));
  }
  MLA_RETURN_IF_ERROR(connect(plan));
  module->table = peers ? peers->table() : 0;
  return std::unique_ptr<Module>(std::move(module));
}

} // namespace mla::hal
