//===- Nccl.cpp - loading NCCL --------------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/nccl/Nccl.h"
#include <dlfcn.h>

namespace mla::nccl {

Result<std::unique_ptr<Library>> Library::load(const std::string &file) {
  std::unique_ptr<Library> library(new Library);
  void *handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char *why = dlerror();
    return unsupported("NCCL cannot be loaded: " +
                       std::string(why ? why : file));
  }
  std::string missing;
  auto find = [&](const char *symbol) {
    void *address = dlsym(handle, symbol);
    if (!address)
      missing += (missing.empty() ? "" : ", ") + std::string(symbol);
    return address;
  };
#define MLA_NCCL_LOAD(name, symbol, parameters)                                \
  library->name = reinterpret_cast<decltype(library->name)>(find(#symbol));
  MLA_NCCL_FUNCTIONS(MLA_NCCL_LOAD)
#undef MLA_NCCL_LOAD
  library->getErrorString = reinterpret_cast<decltype(library->getErrorString)>(
      find("ncclGetErrorString"));
  if (!missing.empty())
    return unsupported(file + " is no NCCL that can be used: it has no " +
                       missing);
  return library;
}

std::string Library::version() const {
  int version = 0;
  if (getVersion(&version) != Success)
    return "of an unknown version";
  // 2.28.9 is 22809; before 2.9 it was 2809 of 2.8.9.
  int unit = version < 10000 ? 1000 : 10000;
  return std::to_string(version / unit) + "." +
         std::to_string(version % unit / 100) + "." +
         std::to_string(version % 100);
}

Status Library::check(Code code, const char *call,
                      const std::string &attempt) const {
  if (code == Success)
    return {};
  const char *text = getErrorString(code);
  return internalError(std::string(call) + " failed " + attempt + ": " +
                       (text ? text : "error " + std::to_string(code)));
}

} // namespace mla::nccl
