//===- GpuSeat.h - a rank's stream and memory on a GPU ----------*- C++ -*-===//
//
// Part of mla. What tests and benchmarks of collectives between GPUs need: a stream
// with the kernels of Kernels.ptx and memory, taken before any kernel waits for
// another rank. From then on nothing is allocated, freed or loaded, since the driver
// may let that wait for kernels that run, which may wait for the rank that asks.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUSEAT_H
#define MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUSEAT_H

#include "runtime/collectives/p2p/Kernels.h"
#include "runtime/collectives/p2p/Peers.h"
#include <functional>
#include <initializer_list>

namespace mla::testing {

/// Sets, unless they are set, the variables that ranks on one GPU need. Before CUDA is
/// used in this process.
void prepareEnvironment();

/// How many GPUs there are, found out in another process: one that has used CUDA
/// cannot be forked. `why` says why there are none.
int countGpus(std::string &why);

/// An array on the GPU and one of the same size on the host, pinned.
struct Values {
  hal::cuda::Address device = 0;
  float *host = nullptr;
  int64_t count = 0;

  float *begin() const { return host; }
  float *end() const { return host + count; }
  float &operator[](int64_t i) const { return host[i]; }
};

class Seat {
public:
  static constexpr uint64_t capacity = uint64_t(64) << 20;

  /// A stream on a GPU that nobody else has; it belongs to one rank at a time. Seats
  /// are used again, and stay until the process ends.
  static Result<Seat *> take(int gpu);
  /// The stream is idle.
  void giveBack();

  p2p::Place place() const { return {*driver, device, context, stream}; }

  /// `count` values of the seat's memory, until it is given back. Exhausted.
  Result<Values> values(int64_t count);
  /// Puts a copy into the stream; `count` values, or all.
  Status up(const Values &values, int64_t count = -1);
  Status down(const Values &values, int64_t count = -1);
  /// Puts NaN into all values on the GPU.
  Status poison(const Values &values);

  /// One launch, as p2p::Kernels::launch().
  Status launch(p2p::Kernel kernel, const p2p::Peers *peers,
                std::initializer_list<Values> buffers, int64_t rows,
                uint32_t number = 0, bool early = false);

  /// A graph of what `enqueue` puts into the stream. The first launch of a graph
  /// belongs into time that is not measured.
  Result<hal::cuda::GraphExec> record(const std::function<Status()> &enqueue);
  Status replay(hal::cuda::GraphExec graph);
  void destroy(hal::cuda::GraphExec graph);
  Status synchronize();

  /// An error with the call, unless Success.
  Status check(hal::cuda::Code code, const char *call) const;

  const int gpu;
  std::unique_ptr<hal::cuda::Driver> driver;
  hal::cuda::Ordinal device = 0;
  hal::cuda::Context context = nullptr;
  hal::cuda::Stream stream = nullptr;

private:
  explicit Seat(int gpu) : gpu(gpu) {}
  Status open();

  std::shared_ptr<p2p::Kernels> kernels;
  hal::cuda::Address memory = 0;
  std::byte *pinned = nullptr;
  uint64_t used = 0;
  bool taken = false;
};

} // namespace mla::testing

#endif // MLA_UNITTESTS_RUNTIME_COLLECTIVES_GPUSEAT_H
