//===- CudaDevice.h - an NVIDIA GPU as a device -----------------*- C++ -*-===//
//
// Part of mla. One primary context and one stream, in which everything happens
// in order. A list that is run with a key is launched the first time, recorded
// the second time and replayed from then on, since launching hundreds of
// kernels takes the host longer than they take the GPU. Within a list every
// launch but the first may begin while the one before it still runs
// (programmatic dependent launch; plan::cudaKernelAbi says how kernels wait).
//
// Errors name the call, the driver's code and what was attempted. After one
// that destroys the context (an illegal address, a lost device) every call
// returns that error again, and destructors still run.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H
#define MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H

#include "runtime/hal/Device.h"
#include "runtime/hal/cuda/Driver.h"
#include <unordered_map>

namespace mla::hal {

class CudaDevice final : public Device {
public:
  /// Recorded lists that are kept; the one longest not used goes first.
  static constexpr size_t maxGraphs = 64;

  /// GPU number `ordinal`. Unsupported if there is no driver or no such GPU.
  static Result<std::unique_ptr<Device>>
  open(int ordinal, const std::string &library = cuda::Driver::defaultLibrary);
  ~CudaDevice() override;

  /// Unsupported if ranks of `plan` exchange data, by the runtime's collectives or
  /// in kernels that reach each other's memory.
  static Status checkCollectives(const plan::Plan &plan);

  Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes, Access access,
                                           const std::string &what) override;
  /// Copies.
  Result<std::unique_ptr<Buffer>> import(std::span<const std::byte> memory,
                                         const std::string &what) override;
  Result<std::unique_ptr<Module>>
  load(const plan::Plan &plan, const std::filesystem::path &folder) override;
  Status toDevice(Buffer &buffer, uint64_t bytes) override;
  Status toHost(Buffer &buffer, uint64_t bytes) override;
  Status write(Buffer &buffer, uint64_t offset,
               std::span<const std::byte> from) override;
  Status run(const Module &module, std::span<const Dispatch> list,
             uint64_t key = 0) override;
  Result<std::vector<double>> time(const Module &module,
                                   std::span<const Dispatch> list,
                                   int repeats) override;
  Status synchronize() override;
  Status read(const Buffer &buffer, uint64_t offset,
              std::span<std::byte> to) override;
  Result<DeviceFacts> facts() override;

private:
  struct Recorded {
    cuda::GraphExec exec = nullptr; ///< Null after the first run.
    uint64_t used = 0;              ///< When, in runs.
  };

  explicit CudaDevice(std::unique_ptr<cuda::Driver> driver)
      : driver(std::move(driver)) {}
  Status start(int ordinal);
  /// Makes the context current in the calling thread; the error that destroyed
  /// it, if one did.
  Status enter();
  /// Ok for Success; else an error with `call` and what was attempted.
  Status check(cuda::Code code, const char *call, const std::string &attempt);
  Status checkRange(const Buffer &buffer, uint64_t offset, uint64_t bytes,
                    const char *verb) const;
  Status launch(const Module &module, std::span<const Dispatch> list);
  Result<cuda::GraphExec> record(const Module &module,
                                 std::span<const Dispatch> list);
  void evict();

  std::unique_ptr<cuda::Driver> driver;
  cuda::Ordinal device = 0;
  cuda::Context context = nullptr;
  cuda::Stream stream = nullptr;
  std::string name;
  int major = 0, minor = 0, multiprocessors = 0, sharedLimit = 0;
  Status lost;
  std::unordered_map<uint64_t, Recorded> recorded;
  size_t graphs = 0;
  uint64_t runs = 0;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_CUDA_CUDADEVICE_H
