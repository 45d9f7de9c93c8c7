//===- Exchanges.cpp - all-reduces by kernels, by size --------------------===//
//
// Part of mla. What plans use between GPUs that reach each other's memory: the kernels
// of collectives/p2p, one thread a GPU, each size a graph of several, replayed; the
// slowest rank's time counts.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Threads.h"
#include "runtime/collectives/p2p/Kernels.h"
#include "runtime/collectives/p2p/Peers.h"
#include "runtime/probe/Internal.h"
#include <algorithm>
#include <thread>

namespace mla::probe {
namespace exchange {

using p2p::Kernel; // Not the probe's own.

constexpr int64_t width = 7168; ///< of the kernels for rows
constexpr int inGraph = 20, repeats = 15;

struct Case {
  const char *method;
  Kernel kernel;
  int64_t rows, bytes; ///< of the kernel; in 16 bits, of what is reduced
};

/// Rows for 1, 4, 8 and 32 tokens, then what prompts have.
static std::vector<Case> cases() {
  std::vector<Case> all;
  for (int64_t rows : {1, 4, 8, 32}) {
    all.push_back({"one_shot", Kernel::OneShotRows, rows, rows * width * 2});
    all.push_back({"two_shot", Kernel::TwoShotRows, rows, rows * width * 2});
    all.push_back({"fused", Kernel::ReduceNorm, rows, rows * width * 2});
  }
  all.push_back({"one_shot", Kernel::OneShotBf16, 1 << 19, 1 << 20});
  for (int64_t bytes : {1 << 20, 1 << 24})
    all.push_back({"two_shot", Kernel::TwoShotBf16, bytes / 2, bytes});
  return all;
}

/// Seconds of each case, on one of the GPUs.
static Result<std::vector<double>> measureOne(Gpu &gpu,
                                       collectives::Collectives &ranks) {
  MLA_RETURN_IF_ERROR(gpu.enter());
  std::string attempt = "to exchange rows on GPU " + std::to_string(gpu.ordinal);
  p2p::Place place{gpu.driver, gpu.device, gpu.context, gpu.stream};
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<p2p::Peers> peers,
      p2p::Peers::connect(place, p2p::exchangeBytes, p2p::Path::Any, ranks));
  if (peers->path() != "peer access")
    return unsupported("the GPUs meet in " + peers->path());
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<p2p::Kernels> kernels,
      p2p::Kernels::load(gpu.driver, gpu.device, gpu.context));
  // f32, the largest size and its sum, and what stands beside rows.
  MLA_ASSIGN_OR_RETURN(Memory x, gpu.allocate(1 << 25, "what is reduced"));
  MLA_ASSIGN_OR_RETURN(Memory sum, gpu.allocate(1 << 25, "sums"));
  MLA_ASSIGN_OR_RETURN(Memory more, gpu.allocate(3 * 32 * width * 4, "rows"));
  uint64_t residual = more.address(), normed = residual + 32 * width * 4,
           weight = normed + 32 * width * 4;

  std::vector<double> seconds;
  for (const Case &c : cases()) {
    // As many as the kernel has.
    const uint64_t all[] = {x.address(), residual, sum.address(), weight, normed},
                   plain[] = {x.address(), sum.address()};
    auto count = static_cast<size_t>(p2p::infoOf(c.kernel).buffers);
    auto buffers = count == 2 ? std::span<const uint64_t>(plain)
                              : std::span<const uint64_t>(all).first(count);
    // Launches behind one another may begin early, as in plans.
    auto enqueue = [&]() -> Status {
      for (int n = 0; n < inGraph; ++n)
        MLA_RETURN_IF_ERROR(kernels->launch(c.kernel, gpu.stream,
                                            peers.get(), buffers, c.rows,
                                            static_cast<uint32_t>(n), n > 0));
      return {};
    };
    MLA_RETURN_IF_ERROR(ranks.barrier("a size of an exchange"));
    MLA_ASSIGN_OR_RETURN(double time, gpu.time(enqueue, repeats, attempt));
    MLA_RETURN_IF_ERROR(peers->check(
        [&](uint32_t) { return std::string(p2p::infoOf(c.kernel).name); }));
    seconds.push_back(time / inGraph);
  }
  // Nobody frees what another still writes to.
  MLA_RETURN_IF_ERROR(ranks.barrier("the end of exchanges"));
  return seconds;
}

} // namespace exchange

Result<std::vector<CollectiveTime>> measureExchanges(Gpus &gpus) {
  MLA_ASSIGN_OR_RETURN(
      auto group, collectives::createThreadGroup(static_cast<int>(gpus.size())));
  std::vector<Result<std::vector<double>>> results(
      gpus.size(), Result<std::vector<double>>(std::vector<double>()));
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < gpus.size(); ++rank)
    threads.emplace_back([&, rank] {
      collectives::Transport &own = *group[rank];
      // A kernel gives up before the probe gives up the GPU.
      own.setTimeout(std::chrono::milliseconds(
          static_cast<int64_t>(Gpu::patience * 500)));
      collectives::Collectives ranks(own);
      results[rank] = exchange::measureOne(*gpus[rank], ranks);
      if (!results[rank].ok())
        own.abort(results[rank].status());
    });
  for (std::thread &thread : threads)
    thread.join();
  for (const auto &result : results)
    MLA_RETURN_IF_ERROR(result.status());
  std::vector<CollectiveTime> times;
  for (size_t i = 0; const exchange::Case &c : exchange::cases()) {
    double slowest = 0;
    for (const auto &of : results)
      slowest = std::max(slowest, (*of)[i]);
    times.push_back({c.method, static_cast<int64_t>(gpus.size()), c.bytes,
                     slowest});
    ++i;
  }
  return times;
}

} // namespace mla::probe
