//===- RankThreads.h - a thread for each rank of a process ------*- C++ -*-===//
//
// Part of mla. The ranks of a process do each piece of a step at the same time,
// since they wait for each other in collectives. The caller's thread is the first
// rank's; every other rank has one that lives as long as this object and sleeps
// between two pieces.
//
// If a rank fails, the others, which wait for it, fail too. What is reported is the
// first failure in time, which is the reason of the others: a rank's failure is
// noted before onError tells the others of it.
//
// Threads: onAll() is called by one thread at a time, and not from inside a body.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_RANKTHREADS_H
#define MLA_RUNTIME_EXECUTOR_RANKTHREADS_H

#include "mla/Support/Status.h"
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace mla::runtime {

class RankThreads {
public:
  /// Does the work of rank `rank`, counted from 0 in this process. What it throws
  /// is an Internal error.
  using Body = std::function<Status(size_t rank)>;
  /// Called by a rank's thread after its body has failed.
  using OnError = std::function<void(size_t rank, const Status &why)>;

  struct Outcome {
    Status status;   ///< The first failure, or Ok.
    size_t rank = 0; ///< Whose.
  };

  /// Exhausted if the system refuses to start `ranks` - 1 threads; at least one
  /// rank.
  static Result<std::unique_ptr<RankThreads>> create(size_t ranks);
  ~RankThreads();
  RankThreads(const RankThreads &) = delete;
  RankThreads &operator=(const RankThreads &) = delete;

  size_t size() const { return workers.size() + 1; }

  /// Calls body(rank) for every rank at once and returns when all have returned;
  /// what they wrote is then visible.
  Outcome onAll(const Body &body, const OnError &onError = {});

private:
  RankThreads() = default;
  void work(size_t rank);
  void call(size_t rank);

  const Body *body = nullptr;
  const OnError *onError = nullptr;
  std::mutex mutex; ///< Of `outcome`.
  Outcome outcome;
  std::atomic<uint32_t> round{0};   ///< Counts calls of onAll(); slept on.
  std::atomic<uint32_t> working{0}; ///< Workers that have not returned.
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_RANKTHREADS_H
