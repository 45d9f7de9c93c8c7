//===- Driver.cpp - loading the CUDA driver -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/cuda/Driver.h"
#include <array>
#include <dlfcn.h>

namespace mla::hal::cuda {

Result<std::unique_ptr<Driver>> Driver::load(const std::string &library) {
  std::unique_ptr<Driver> driver(new Driver);
  driver->handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!driver->handle) {
    const char *why = dlerror();
    return unsupported("an NVIDIA GPU is needed, but its driver cannot be "
                       "loaded: " +
                       std::string(why ? why : library));
  }
  std::string missing;
#define MLA_CUDA_LOAD(name, symbol, parameters)                                \
  driver->name = reinterpret_cast<decltype(driver->name)>(                     \
      dlsym(driver->handle, #symbol));                                         \
  if (!driver->name)                                                           \
    missing += missing.empty() ? #symbol : ", " #symbol;
  MLA_CUDA_FUNCTIONS(MLA_CUDA_LOAD)
#undef MLA_CUDA_LOAD
  if (!missing.empty())
    return unsupported("the NVIDIA driver is too old: " + library +
                       " has no " + missing + "; 550 or later has all");
  driver->funcGetParamInfo =
      reinterpret_cast<decltype(driver->funcGetParamInfo)>(
          dlsym(driver->handle, "cuFuncGetParamInfo"));
  driver->funcLoad = reinterpret_cast<decltype(driver->funcLoad)>(
      dlsym(driver->handle, "cuFuncLoad"));
  if (Code code = driver->init(0); code != Success)
    return unsupported(
        "an NVIDIA GPU is needed" +
        std::string(code == NoDevice ? ", but this machine has none"
                                     : ", but the driver does not start") +
        ": cuInit: " + driver->describe(code));
  return driver;
}

Driver::~Driver() {
  // Not dlclose: the driver has threads and handlers of its own.
}

Code Driver::loadModule(ModuleHandle *module, const char *image,
                        std::string &said) const {
  std::array<char, 8192> text{};
  int options[] = {JitErrorLogBuffer, JitErrorLogBufferSizeBytes};
  void *values[] = {text.data(), reinterpret_cast<void *>(text.size() - 1)};
  Code code = moduleLoadDataEx(module, image, 2, options, values);
  said = code != Success && text[0] != '\0' ? "\n" + std::string(text.data())
                                            : "";
  if (code == UnsupportedPtxVersion)
    said += "; a newer driver is needed";
  return code;
}

std::string Driver::describe(Code code) const {
  const char *name = nullptr, *text = nullptr;
  if (getErrorName(code, &name) != Success || !name)
    return "error " + std::to_string(code);
  if (getErrorString(code, &text) != Success || !text)
    return name;
  return std::string(name) + " (" + text + ")";
}

bool Driver::isSticky(Code code) {
  switch (code) {
  case Deinitialized:
  case DeviceUnavailable:
  case EccUncorrectable:
  case NvlinkUncorrectable:
  case Contained:
  case IllegalAddress:
  case LaunchTimeout:
  case ContextIsDestroyed:
  case Assertion:
  case HardwareStackError:
  case IllegalInstruction:
  case MisalignedAddress:
  case InvalidAddressSpace:
  case InvalidPc:
  case LaunchFailed:
  case Unknown:
    return true;
  default:
    return false;
  }
}

} // namespace mla::hal::cuda
