//===- HostDevice.cpp - this machine's processor as a device --------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/host/HostDevice.h"
#include "runtime/base/Memory.h"
#include "runtime/hal/host/CpuFeatures.h"
#include <algorithm>
#include <chrono>
#include <dlfcn.h>

namespace mla::hal {
namespace {

using Kernel = void (*)(const uint64_t *arguments, int64_t begin, int64_t end);

uint64_t addressOf(const void *pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

class OwnedBuffer final : public Buffer {
public:
  OwnedBuffer(runtime::HostMemory memory, Access access)
      : Buffer(addressOf(memory.bytes().data()), memory.bytes().size(),
               access == Access::Shared ? memory.bytes()
                                        : std::span<std::byte>()),
        memory(std::move(memory)) {}

private:
  runtime::HostMemory memory;
};

class BorrowedBuffer final : public Buffer {
public:
  explicit BorrowedBuffer(std::span<const std::byte> memory)
      : Buffer(addressOf(memory.data()), memory.size(), {}) {}
};

class HostModule final : public Module {
public:
  explicit HostModule(void *library) : library(library) {}
  ~HostModule() override { dlclose(library); }
  struct Entry {
    Kernel function; ///< Null if it is a collective.
    plan::Collective collective;
  };
  std::vector<Entry> kernels;

private:
  void *library;
};

} // namespace

Result<std::unique_ptr<Buffer>>
HostDevice::allocate(uint64_t bytes, Access access, const std::string &what) {
  MLA_ASSIGN_OR_RETURN(runtime::HostMemory memory,
                       runtime::HostMemory::allocate(bytes, what));
  return std::unique_ptr<Buffer>(
      std::make_unique<OwnedBuffer>(std::move(memory), access));
}

Result<std::unique_ptr<Buffer>>
HostDevice::import(std::span<const std::byte> memory, const std::string &what) {
  return std::unique_ptr<Buffer>(std::make_unique<BorrowedBuffer>(memory));
}

Result<std::unique_ptr<Module>>
HostDevice::load(const plan::Plan &plan, const std::filesystem::path &folder) {
  if (plan.target.name != "host")
    return unsupported("the plan was compiled for target '" + plan.target.name +
                       "', not for the host");
  if (plan.target.kernelAbi != plan::hostKernelAbi)
    return unsupported(
        "the plan's kernels have ABI " + std::to_string(plan.target.kernelAbi) +
        "; this runtime calls ABI " + std::to_string(plan::hostKernelAbi));
  MLA_RETURN_IF_ERROR(checkCpuFeatures(plan.target.features));
  for (const plan::Kernel &kernel : plan.kernels)
    if (kernel.collective != plan::Collective::None && !exchange)
      return unsupported("the plan's " + std::to_string(plan.ranks.count) +
                         " ranks exchange data (" + kernel.name +
                         "), and only one of them is here");

  // An absolute path: dlopen would search the system for a bare name.
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::absolute(folder / plan.library, error);
  if (error)
    return ioError(folder.string() + ": " + error.message());
  MLA_ASSIGN_OR_RETURN(uint64_t hash, plan::hashFile(path));
  if (hash != plan.libraryHash)
    return invalid(path.string() + ": not the library that this plan was "
                                   "written with (its hash differs); compile "
                                   "the plan again");
  void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char *why = dlerror();
    return invalid("cannot load the plan's kernels: " +
                   std::string(why ? why : path.c_str()));
  }
  auto module = std::make_unique<HostModule>(library);
  for (const plan::Kernel &kernel : plan.kernels) {
    if (kernel.collective != plan::Collective::None) {
      module->kernels.push_back({nullptr, kernel.collective});
      continue;
    }
    void *symbol = dlsym(library, kernel.name.c_str());
    if (!symbol)
      return invalid(path.string() + ": has no kernel '" + kernel.name + "'");
    module->kernels.push_back(
        {reinterpret_cast<Kernel>(symbol), plan::Collective::None});
  }
  return std::unique_ptr<Module>(std::move(module));
}

Status HostDevice::write(Buffer &buffer, uint64_t offset,
                         std::span<const std::byte> from) {
  if (offset > buffer.size() || from.size() > buffer.size() - offset)
    return invalid("cannot write " + std::to_string(from.size()) +
                   " bytes from byte " + std::to_string(offset) +
                   " of a buffer of " + std::to_string(buffer.size()));
  std::copy(from.begin(), from.end(),
            reinterpret_cast<std::byte *>(buffer.address()) + offset);
  return {};
}

Result<std::vector<double>> HostDevice::time(const Module &module,
                                             std::span<const Dispatch> list,
                                             int repeats) {
  std::vector<double> seconds;
  for (int i = -1; i < repeats; ++i) {
    auto start = std::chrono::steady_clock::now();
    MLA_RETURN_IF_ERROR(run(module, list, 0));
    std::chrono::duration<double> taken =
        std::chrono::steady_clock::now() - start;
    if (i >= 0)
      seconds.push_back(taken.count());
  }
  return seconds;
}

Status HostDevice::run(const Module &module, std::span<const Dispatch> list,
                       uint64_t key) {
  const auto &kernels = static_cast<const HostModule &>(module).kernels;
  for (const Dispatch &dispatch : list) {
    const HostModule::Entry &entry = kernels[dispatch.kernel];
    if (!entry.function) {
      if (dispatch.grid > 0)
        MLA_RETURN_IF_ERROR(exchange->run(
            entry.collective, dispatch.arguments,
            dispatch.launch ? std::string_view(dispatch.launch->origin)
                            : std::string_view()));
      continue;
    }
    Kernel kernel = entry.function;
    const uint64_t *arguments = dispatch.arguments.data();
    pool.parallelFor(dispatch.grid, [=](int64_t begin, int64_t end) {
      kernel(arguments, begin, end);
    });
  }
  return {};
}

Result<DeviceFacts> HostDevice::facts() {
  DeviceFacts facts;
  facts.name = "host";
  facts.architecture = "x86-64";
  facts.units = pool.size();
  facts.totalMemory = runtime::physicalMemory();
  facts.freeMemory = runtime::availableMemory();
  return facts;
}

Status HostDevice::synchronize() { return {}; }

Status HostDevice::read(const Buffer &buffer, uint64_t offset,
                        std::span<std::byte> to) {
  if (offset > buffer.size() || to.size() > buffer.size() - offset)
    return invalid("cannot read " + std::to_string(to.size()) +
                   " bytes from byte " + std::to_string(offset) +
                   " of a buffer of " + std::to_string(buffer.size()));
  std::copy_n(reinterpret_cast<const std::byte *>(buffer.address()) + offset,
              to.size(), to.begin());
  return {};
}

} // namespace mla::hal
