//===- HostDevice.h - this machine's processor as a device ------*- C++ -*-===//
//
// Part of mla. Kernels are functions of a shared library; a dispatch is a
// parallel loop over the thread pool, or a collective between two of them; every buffer is memory of the process, so
// import() borrows and nothing is ever copied. The floating-point environment
// is left alone: kernels see the default rounding and denormals.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_HOST_HOSTDEVICE_H
#define MLA_RUNTIME_HAL_HOST_HOSTDEVICE_H

#include "runtime/base/ThreadPool.h"
#include "runtime/hal/Device.h"
#include "runtime/hal/host/HostExchange.h"
#include <optional>

namespace mla::hal {

class HostDevice final : public Device {
public:
  /// `pool` and `collectives` must outlive the device; while run() works they are
  /// in use. Without `collectives` no plan is loaded that has some.
  explicit HostDevice(runtime::ThreadPool &pool,
                      collectives::Collectives *collectives = nullptr)
      : pool(pool) {
    if (collectives)
      exchange.emplace(*collectives);
  }

  Result<std::unique_ptr<Buffer>> allocate(uint64_t bytes, Access access,
                                           const std::string &what) override;
  Result<std::unique_ptr<Buffer>> import(std::span<const std::byte> memory,
                                         const std::string &what) override;
  Result<std::unique_ptr<Module>>
  load(const plan::Plan &plan, const std::filesystem::path &folder) override;
  /// Blocks: the work is done on return.
  Status run(const Module &module, std::span<const Dispatch> list,
             uint64_t key = 0) override;
  Result<std::vector<double>> time(const Module &module,
                                   std::span<const Dispatch> list,
                                   int repeats) override;
  Status toDevice(Buffer &, uint64_t) override { return {}; }
  Status toHost(Buffer &, uint64_t) override { return {}; }
  Status write(Buffer &buffer, uint64_t offset,
               std::span<const std::byte> from) override;
  Status synchronize() override;
  Status read(const Buffer &buffer, uint64_t offset,
              std::span<std::byte> to) override;
  Result<DeviceFacts> facts() override;

private:
  runtime::ThreadPool &pool;
  std::optional<HostExchange> exchange;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_HOST_HOSTDEVICE_H
