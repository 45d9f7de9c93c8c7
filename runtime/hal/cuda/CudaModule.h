//===- CudaModule.h - kernels on a GPU --------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_CUDA_CUDAMODULE_H
#define MLA_RUNTIME_HAL_CUDA_CUDAMODULE_H

#include "runtime/hal/Device.h"
#include "runtime/hal/cuda/Driver.h"

namespace mla::hal {

/// The kernels of a plan, in its order.
class CudaModule final : public Module {
public:
  struct Kernel {
    std::string name;
    cuda::Function function = nullptr; ///< Null if the runtime does it.
    plan::Collective collective = plan::Collective::None;
    bool exchanges = false; ///< Waits for other ranks.
    unsigned threads = 0, sharedBytes = 0;
    size_t parameters = 0;
  };

  CudaModule(const cuda::Driver &driver, cuda::Context context,
             cuda::ModuleHandle handle)
      : handle(handle), driver(driver), context(context) {}
  ~CudaModule() override {
    driver.ctxSetCurrent(context);
    driver.moduleUnload(handle);
  }

  uint64_t peers() const override { return table; }

  const cuda::ModuleHandle handle;
  std::vector<Kernel> kernels;
  uint64_t table = 0; ///< Of the device's peers.

private:
  const cuda::Driver &driver;
  cuda::Context context;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_CUDA_CUDAMODULE_H
