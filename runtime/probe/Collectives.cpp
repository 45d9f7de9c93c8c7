//===- Collectives.cpp - NCCL's all-reduces by size -----------------------===//
//
// Part of mla. One thread a GPU, as a runtime of several GPUs has. Each size is a
// graph of several all-reduces, replayed; the slowest rank's time counts.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/nccl/Nccl.h"
#include "runtime/probe/Internal.h"
#include <algorithm>
#include <atomic>
#include <barrier>
#include <mutex>
#include <thread>

namespace mla::probe {
namespace {

/// Rows of 7168 in 16 bits for 1, 4, 8 and 32 tokens, then what prompts have.
constexpr int64_t sizes[] = {14336, 57344, 114688, 458752, 1048576, 16777216};
constexpr int inGraph = 20, repeats = 15;

class Ranks {
public:
  Ranks(Gpus &gpus, const nccl::Library &library)
      : gpus(gpus), library(library),
        together(static_cast<std::ptrdiff_t>(gpus.size())),
        seconds(gpus.size()) {}

  Result<std::vector<CollectiveTime>> run() {
    MLA_RETURN_IF_ERROR(
        library.check(library.getUniqueId(&id), "ncclGetUniqueId", "to begin"));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < gpus.size(); ++rank)
      threads.emplace_back([this, rank] { work(static_cast<int>(rank)); });
    for (std::thread &thread : threads)
      thread.join();
    MLA_RETURN_IF_ERROR(status);
    std::vector<CollectiveTime> times;
    for (size_t i = 0; i < std::size(sizes); ++i) {
      double slowest = 0;
      for (const std::vector<double> &of : seconds)
        slowest = std::max(slowest, of[i]);
      times.push_back({"nccl", static_cast<int64_t>(gpus.size()), sizes[i],
                       slowest});
    }
    return times;
  }

private:
  /// Whether all ranks are still well; they all get here.
  bool agree(const Status &own) {
    if (!own.ok()) {
      std::lock_guard lock(mutex);
      if (status.ok())
        status = own;
      failed = true;
    }
    together.arrive_and_wait();
    bool well = !failed;
    together.arrive_and_wait(); // Nobody writes before all have read.
    return well;
  }

  void work(int rank) {
    Gpu &gpu = *gpus[static_cast<size_t>(rank)];
    int ranks = static_cast<int>(gpus.size());
    std::string attempt = "on GPU " + std::to_string(gpu.ordinal);
    nccl::Comm comm = nullptr;
    Memory memory;
    Status own = gpu.enter();
    if (own.ok()) {
      Result<Memory> allocated =
          gpu.allocate(uint64_t(sizes[std::size(sizes) - 1]), "an all-reduce");
      own = allocated.status();
      if (allocated.ok())
        memory = *std::move(allocated);
    }
    if (!agree(own))
      return;
    own = library.check(library.commInitRank(&comm, ranks, id, rank),
                        "ncclCommInitRank", attempt);
    bool well = agree(own);
    for (size_t i = 0; well && i < std::size(sizes); ++i) {
      auto reduce = [&](int times) -> Status {
        void *data = reinterpret_cast<void *>(memory.address());
        for (int n = 0; n < times; ++n)
          MLA_RETURN_IF_ERROR(library.check(
              library.allReduce(data, data, static_cast<size_t>(sizes[i] / 2),
                                nccl::BFloat16, nccl::Sum, comm, gpu.stream),
              "ncclAllReduce", attempt));
        return {};
      };
      // The first makes connections, which a recording is not for.
      own = reduce(1);
      if (own.ok())
        own = gpu.finish(attempt);
      well = agree(own);
      if (!well)
        break;
      Result<double> time =
          gpu.time([&] { return reduce(inGraph); }, repeats, attempt);
      if (time.ok())
        seconds[static_cast<size_t>(rank)].push_back(*time / inGraph);
      well = agree(time.status());
    }
    if (!comm)
      return;
    // A communicator whose peers are gone waits for ever when destroyed.
    if (well)
      library.commDestroy(comm);
    else
      library.commAbort(comm);
  }

  Gpus &gpus;
  const nccl::Library &library;
  nccl::UniqueId id;
  std::barrier<> together;
  std::vector<std::vector<double>> seconds; ///< by rank and size
  std::mutex mutex;
  std::atomic<bool> failed{false};
  Status status;
};

} // namespace

Result<NcclFigures> measureNccl(Gpus &gpus, const std::string &file) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<nccl::Library> library,
                       nccl::Library::load(
                           file.empty() ? nccl::Library::defaultFile : file));
  NcclFigures figures;
  figures.version = library->version();
  Ranks ranks(gpus, *library);
  MLA_ASSIGN_OR_RETURN(figures.times, ranks.run());
  return figures;
}

} // namespace mla::probe
