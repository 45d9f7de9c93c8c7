//===- Device.h - what the executor asks of a machine -----------*- C++ -*-===//
//
// Part of mla. Three nouns, kept to what a step needs. The executor knows only
// these; which device stands behind them is decided once, when a plan is
// loaded.
//
//   noun     host                         CUDA
//   -------  ---------------------------  -----------------------------------
//   Device   a thread pool                a context and a stream
//   Buffer   pages, or borrowed memory    cuMemAlloc; Shared: and a pinned mirror
//   Module   dlopen                       cuModuleLoadData
//   run()    one parallel loop a dispatch launches in the stream, or a graph
//
// Threads: a device and what it made belong to one thread at a time. Lifetime:
// buffers and modules are destroyed before their device.
// Failure: every call that can fail returns a Status and has then no effect.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_DEVICE_H
#define MLA_RUNTIME_HAL_DEVICE_H

#include "mla/Plan/Plan.h"
#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mla::hal {

/// Who touches a buffer.
enum class Access {
  Device, ///< Kernels only.
  Shared  ///< The host too, in its own view: toDevice() and toHost() move bytes
          ///< between the two where they are not one.
};

/// A range of memory that kernels can address. Owns it, unless it came from
/// import() on a device that can use the host's memory in place.
class Buffer {
public:
  virtual ~Buffer();
  /// What a kernel receives.
  uint64_t address() const { return start; }
  uint64_t size() const { return length; }
  /// The bytes as the host sees them; empty with Access::Device.
  std::span<std::byte> host() const { return view; }

protected:
  Buffer(uint64_t start, uint64_t length, std::span<std::byte> view)
      : start(start), length(length), view(view) {}

private:
  const uint64_t start;
  const uint64_t length;
  const std::span<std::byte> view;
};

/// Loaded kernels; a dispatch names them by their position in the plan.
class Module {
public:
  virtual ~Module();
  /// What kernels that exchange rows with other ranks' get as "peers": the address of
  /// the table of mla/Plan/Peers.h; 0 if the plan has none.
  virtual uint64_t peers() const { return 0; }
};

/// One launch: work items 0 <= i < grid of a kernel. `arguments` are laid out
/// as plan::hostKernelAbi or plan::cudaKernelAbi says.
struct Dispatch {
  uint32_t kernel = 0;
  int64_t grid = 0; ///< Work items, or blocks; 0 does nothing.
  std::span<const uint64_t> arguments;
  /// Of the plan, for its name in errors; null if it is none of a program.
  const plan::Launch *launch = nullptr;
};

/// What reports say of a device.
struct DeviceFacts {
  std::string name;         ///< "NVIDIA H200"
  std::string architecture; ///< "sm_90", "x86-64"
  std::string driver;       ///< "CUDA 13.0"; "" for the host
  /// How ranks that are GPUs exchange rows, and why so: "peer access"; "" if they do
  /// not.
  std::string exchange;
  int64_t units = 0;        ///< Multiprocessors, or threads.
  uint64_t totalMemory = 0, freeMemory = 0; ///< Bytes.
};

class Device {
public:
  virtual ~Device();

  /// Memory that reads as zero. Does not block on kernels. Exhausted, with
  /// `what` and the size.
  virtual Result<std::unique_ptr<Buffer>>
  allocate(uint64_t bytes, Access access, const std::string &what) = 0;

  /// Makes `memory` readable for kernels, in place if the device can, otherwise
  /// by a copy that has ended on return. The caller keeps `memory` unchanged
  /// and alive as long as the buffer. Exhausted if a copy does not fit.
  virtual Result<std::unique_ptr<Buffer>>
  import(std::span<const std::byte> memory, const std::string &what) = 0;

  /// Loads the plan's library from `folder`. Invalid if the file is not the one
  /// the plan was written with or lacks a kernel, Unsupported if it was made
  /// for another ABI or for a machine that can do more than this one, or if its
  /// ranks exchange data and this device cannot. The library is code and trusted
  /// like any executable. If the ranks exchange data, all load the plan at once, one
  /// plan a device, and errors of one end it on all.
  virtual Result<std::unique_ptr<Module>>
  load(const plan::Plan &plan, const std::filesystem::path &folder) = 0;

  /// Makes the first `bytes` of the host's view of a shared buffer those that
  /// what is run next reads.
  virtual Status toDevice(Buffer &buffer, uint64_t bytes) = 0;
  /// Makes the first `bytes` that what was run leaves in a shared buffer those
  /// of the host's view, from the next synchronize() on.
  virtual Status toHost(Buffer &buffer, uint64_t bytes) = 0;

  /// Copies `from` to `offset` of `buffer`, of whatever access, before what is
  /// run next; `from` may be reused on return. Invalid if it lies beyond its end.
  virtual Status write(Buffer &buffer, uint64_t offset,
                       std::span<const std::byte> from) = 0;

  /// Runs `list` in order, each dispatch after the one before has ended. The
  /// whole list is given at once so that a device can record it: lists of the
  /// same `key` other than 0 are the same, with the same arguments. May return
  /// before the work is done; `list`, the arguments and shared buffers stay
  /// untouched until synchronize(). A dispatch that is a collective waits for the
  /// other ranks' (plan::Kernel::collective).
  virtual Status run(const Module &module, std::span<const Dispatch> list,
                     uint64_t key = 0) = 0;

  /// Runs `list` as run() does, `repeats` times after a first that does not
  /// count, and returns the seconds of each, as the device measures them.
  virtual Result<std::vector<double>> time(const Module &module,
                                           std::span<const Dispatch> list,
                                           int repeats) = 0;

  /// Blocks until what was run has ended. Returns the first error of a kernel,
  /// if the device can tell; the device is then of no further use. Io, or the error
  /// that another rank ended with, if kernels waited for one in vain.
  virtual Status synchronize() = 0;

  /// Copies bytes from `offset` of `buffer` on, of whatever access, as they are
  /// when all that was run has ended. Invalid if they lie beyond its end.
  virtual Status read(const Buffer &buffer, uint64_t offset,
                      std::span<std::byte> to) = 0;

  virtual Result<DeviceFacts> facts() = 0;
};

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_DEVICE_H
