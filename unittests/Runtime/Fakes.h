//===- Fakes.h - opening the tests' own libraries ---------------*- C++ -*-===//
//
// Part of mla. For tests that get MLA_FAKE_CUDA and MLA_FAKE_NCCL, the libraries'
// files, from CMake.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_FAKES_H
#define MLA_UNITTESTS_RUNTIME_FAKES_H

#include "FakeCuda.h"
#include "FakeNccl.h"
#include "TestPlan.h"
#include <dlfcn.h>

namespace mla::test {

/// As if the process had just started; null if the library cannot be opened.
inline FakeCuda *freshCuda() {
  void *library = dlopen(MLA_FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return nullptr;
  reinterpret_cast<void (*)()>(dlsym(library, "fakeCudaReset"))();
  return static_cast<FakeCuda *>(dlsym(library, "fakeCuda"));
}

/// The same, but for calls that have not returned.
inline FakeNccl *freshNccl() {
  void *library = dlopen(MLA_FAKE_NCCL, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    return nullptr;
  auto *fake = static_cast<FakeNccl *>(dlsym(library, "fakeNccl"));
  fake->idError = fake->asyncError = 0;
  fake->refused = fake->missing = -1;
  fake->graphs = nullptr;
  fake->aborted = fake->endedBeforeGraphs = 0;
  return fake;
}

/// Makes `plan` one of a GPU, whose kernels are `text` in the folder.
inline void giveKernels(plan::Plan &plan, const TempFolder &folder,
                        const char *text = "ptx") {
  plan.target = {"sm_90a", "", {}, plan::cudaKernelAbi};
  plan.library = "kernels.ptx";
  folder.write(plan.library, text);
  plan.libraryHash = *plan::hashFile(folder / plan.library);
}

} // namespace mla::test

#endif // MLA_UNITTESTS_RUNTIME_FAKES_H
