//===- Gpu.h - one GPU under measurement ------------------------*- C++ -*-===//
//
// Part of mla. A context, a stream and the probe's kernels. Every wait has a
// deadline; after one that passed, the GPU is left as it is: its kernels may
// never end, and to free what they use would wait for them.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_PROBE_GPU_H
#define MLA_RUNTIME_PROBE_GPU_H

#include "mla/Support/Status.h"
#include "runtime/hal/cuda/Driver.h"
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>

namespace mla::probe {

enum class Kernel { Read, Empty, Matrix, Push, Check, PingPong };
constexpr size_t kernelCount = 6;

class Gpu;

/// Memory of a GPU.
class Memory {
public:
  Memory() = default;
  Memory(Gpu *gpu, uint64_t address, uint64_t bytes)
      : gpu(gpu), start(address), length(bytes) {}
  Memory(Memory &&other) noexcept { *this = std::move(other); }
  Memory &operator=(Memory &&other) noexcept {
    std::swap(gpu, other.gpu);
    std::swap(start, other.start);
    std::swap(length, other.length);
    return *this;
  }
  ~Memory();
  uint64_t address() const { return start; }
  uint64_t size() const { return length; }

private:
  Gpu *gpu = nullptr;
  uint64_t start = 0, length = 0;
};

class Gpu {
public:
  /// Seconds after which something that takes milliseconds will never end.
  inline static double patience = 20; // less in tests

  static Result<std::unique_ptr<Gpu>> open(const hal::cuda::Driver &driver,
                                           int ordinal);
  ~Gpu();
  Gpu(const Gpu &) = delete;
  Gpu &operator=(const Gpu &) = delete;

  const hal::cuda::Driver &driver;
  const int ordinal;
  hal::cuda::Ordinal device = 0;
  hal::cuda::Context context = nullptr;
  hal::cuda::Stream stream = nullptr, side = nullptr; ///< the second beside it
  std::string name, address; ///< "NVIDIA H200", "0000:01:00.0"
  int major = 0, minor = 0, multiprocessors = 0, l2Bytes = 0;
  bool hung = false;

  /// Makes the context current in the calling thread.
  Status enter();
  /// Bytes free and in all.
  Result<std::pair<uint64_t, uint64_t>> memory();
  /// Reads as zero.
  Result<Memory> allocate(uint64_t bytes, const std::string &what);
  Status fill(uint64_t address, unsigned char value, uint64_t bytes);
  Status read(uint64_t address, std::span<std::byte> to);

  /// One launch. `early`: may begin while the one before it runs.
  Status launch(Kernel kernel, int64_t blocks,
                std::span<const uint64_t> arguments, bool early = false) {
    return launchIn(stream, kernel, blocks, arguments, early);
  }
  Status launchIn(hal::cuda::Stream in, Kernel kernel, int64_t blocks,
                  std::span<const uint64_t> arguments, bool early = false);
  /// Waits for what was launched in either stream, at most `patience`.
  Status finish(const std::string &attempt);
  /// Median seconds of what `enqueue` launches, as a graph, over `repeats` after
  /// one that does not count.
  Result<double> time(const std::function<Status()> &enqueue, int repeats,
                      const std::string &attempt);
  /// An error with `call` and what was attempted, unless Success.
  Status check(hal::cuda::Code code, const char *call,
               const std::string &attempt) const;

private:
  Status finishIn(hal::cuda::Stream in, const std::string &attempt);
  Gpu(const hal::cuda::Driver &driver, int ordinal)
      : driver(driver), ordinal(ordinal) {}
  Status start();
  Status loadKernels();
  struct Loaded {
    hal::cuda::Function function = nullptr;
    int threads = 0;
  };
  hal::cuda::ModuleHandle module = nullptr;
  std::array<Loaded, kernelCount> kernels;
};

} // namespace mla::probe

#endif // MLA_RUNTIME_PROBE_GPU_H
