//===- ThreadPool.h - one loop over many threads ----------------*- C++ -*-===//
//
// Part of mla. A fixed set of threads that does one parallel loop at a time.
// A step of a small model is hundreds of loops of some microseconds each, so
// the cost of starting and ending a loop is what counts:
//
//   * Starting one writes a few words; no lock, and no system call while the
//     workers are still spinning from the loop before.
//   * A loop ends when its chunks are done, not when every worker has looked at
//     it. A worker that the operating system has put aside delays nobody.
//
// Workers take chunks from one counter, so uneven items balance themselves.
// After about 100 us without work they sleep.
//
// Threads: parallelFor() is called by one thread at a time, and not from inside
// a body. The caller works too: a pool of one has no worker threads.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_BASE_THREADPOOL_H
#define MLA_RUNTIME_BASE_THREADPOOL_H

#include "mla/Support/Status.h"
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace mla::runtime {

class ThreadPool {
public:
  static constexpr int maxThreads = 1024;

  /// `threads` in all, the caller's among them; 0 means one for each hardware
  /// thread. Exhausted if the system refuses to start them.
  static Result<std::unique_ptr<ThreadPool>> create(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  int size() const { return static_cast<int>(workers.size()) + 1; }

  /// Calls body(begin, end) on ranges that cover 0 <= i < count, and returns
  /// when all have returned; what they wrote is then visible. The body must not
  /// throw. Ranges hold count / (8 * size()) items, at least one.
  template <typename Body> void parallelFor(int64_t count, const Body &body) {
    run(
        count,
        [](const void *context, int64_t begin, int64_t end) {
          (*static_cast<const Body *>(context))(begin, end);
        },
        &body);
  }

private:
  using Function = void (*)(const void *context, int64_t begin, int64_t end);

  ThreadPool() = default;
  void run(int64_t count, Function function, const void *context);
  bool takeChunk();
  void work();

  // The loop in progress. All fields are atomic because a late worker may read
  // them while the next loop is written; what it read counts only if it then
  // wins a chunk of the same loop (see takeChunk).
  /// Loop number in the upper half, next chunk in the lower half.
  alignas(64) std::atomic<uint64_t> ticket{0};
  std::atomic<uint32_t> chunks{0};
  std::atomic<int64_t> count{0};
  std::atomic<int64_t> chunkItems{1};
  std::atomic<Function> function{nullptr};
  std::atomic<const void *> context{nullptr};
  alignas(64) std::atomic<uint32_t> pending{0}; ///< Chunks not yet done.
  alignas(64) std::atomic<uint32_t> started{0}; ///< Counts loops; slept on.
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_BASE_THREADPOOL_H
