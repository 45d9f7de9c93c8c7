//===- MirrorDevice.h - the host as if it were a GPU ------------*- C++ -*-===//
//
// Part of mla. Kernels of the host's, but shared buffers are two, as on a GPU:
// what is not copied is not seen. Notes the keys that lists are run with. Takes
// plans whose target is a GPU; their kernels are those of the host's library.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_MIRRORDEVICE_H
#define MLA_UNITTESTS_RUNTIME_MIRRORDEVICE_H

#include "runtime/hal/host/HostDevice.h"
#include <algorithm>
#include <functional>

namespace mla::test {

struct MirrorLog {
  std::vector<uint64_t> keys;
  std::vector<size_t> launches; ///< Of each list.
  int toDevice = 0, toHost = 0, writes = 0;
  /// What fills memory as it is allocated, for tests of who must write all of it.
  std::byte fill{};
  /// Called first of all, if they are set; an error is what the device returns.
  std::function<Status()> onAllocate, onRun;
};

class MirrorDevice final : public hal::Device {
public:
  MirrorDevice(runtime::ThreadPool &pool, MirrorLog &log,
               collectives::Collectives *collectives = nullptr)
      : host(pool, collectives), log(log) {}

  Result<std::unique_ptr<hal::Buffer>>
  allocate(uint64_t bytes, hal::Access access,
           const std::string &what) override {
    if (log.onAllocate)
      MLA_RETURN_IF_ERROR(log.onAllocate());
    MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> memory,
                         host.allocate(bytes, hal::Access::Shared, what));
    std::span<std::byte> content = memory->host();
    std::fill(content.begin(), content.end(), log.fill);
    return std::unique_ptr<hal::Buffer>(std::make_unique<Mirrored>(
        std::move(memory), access == hal::Access::Shared, log.fill));
  }
  Result<std::unique_ptr<hal::Buffer>>
  import(std::span<const std::byte> memory, const std::string &what) override {
    MLA_ASSIGN_OR_RETURN(
        std::unique_ptr<hal::Buffer> buffer,
        allocate(memory.size(), hal::Access::Device, what));
    MLA_RETURN_IF_ERROR(host.write(*buffer, 0, memory));
    return buffer;
  }
  Result<std::unique_ptr<hal::Module>>
  load(const plan::Plan &plan, const std::filesystem::path &folder) override {
    plan::Plan other = plan;
    other.target.name = "host";
    return host.load(other, folder);
  }
  Status toDevice(hal::Buffer &buffer, uint64_t bytes) override {
    ++log.toDevice;
    return host.write(buffer, 0, buffer.host().first(bytes));
  }
  Status toHost(hal::Buffer &buffer, uint64_t bytes) override {
    ++log.toHost;
    return host.read(buffer, 0, buffer.host().first(bytes));
  }
  Status write(hal::Buffer &buffer, uint64_t offset,
               std::span<const std::byte> from) override {
    ++log.writes;
    return host.write(buffer, offset, from);
  }
  Status run(const hal::Module &module, std::span<const hal::Dispatch> list,
             uint64_t key) override {
    if (log.onRun)
      MLA_RETURN_IF_ERROR(log.onRun());
    log.keys.push_back(key);
    log.launches.push_back(list.size());
    return host.run(module, list, key);
  }
  Result<std::vector<double>> time(const hal::Module &module,
                                   std::span<const hal::Dispatch> list,
                                   int repeats) override {
    return host.time(module, list, repeats);
  }
  Status synchronize() override { return {}; }
  Status read(const hal::Buffer &buffer, uint64_t offset,
              std::span<std::byte> to) override {
    return host.read(buffer, offset, to);
  }
  Result<hal::DeviceFacts> facts() override { return host.facts(); }

private:
  struct View {
    std::vector<std::byte> bytes;
  };
  struct Mirrored final : private View, public hal::Buffer {
    Mirrored(std::unique_ptr<hal::Buffer> memory, bool shared, std::byte fill)
        : View{std::vector<std::byte>(shared ? memory->size() : 0, fill)},
          Buffer(memory->address(), memory->size(), View::bytes),
          memory(std::move(memory)) {}
    std::unique_ptr<hal::Buffer> memory;
  };

  hal::HostDevice host;
  MirrorLog &log;
};

} // namespace mla::test

#endif // MLA_UNITTESTS_RUNTIME_MIRRORDEVICE_H
