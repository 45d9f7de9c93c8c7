//===- ThreadPool.cpp - one loop over many threads ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/ThreadPool.h"
#include "runtime/base/Pause.h"
#include <algorithm>
#include <system_error>

namespace mla::runtime {
namespace {

constexpr int64_t chunksPerThread = 8;
constexpr int spinsBeforeSleep = 4000; ///< Pauses of 40 to 140 cycles.
constexpr int spinsBeforeYield = 2000;

/// In the lower half of `ticket`: no chunk may be taken.
constexpr uint64_t closed = 0xFFFFFFFF;

} // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::create(int threads) {
  if (threads == 0)
    threads = std::max(1u, std::thread::hardware_concurrency());
  if (threads < 0 || threads > maxThreads)
    return invalid("the number of threads must be 1 to " +
                   std::to_string(maxThreads) + ", not " +
                   std::to_string(threads));
  std::unique_ptr<ThreadPool> pool(new ThreadPool);
  try {
    for (int i = 1; i < threads; ++i)
      pool->workers.emplace_back([p = pool.get()] { p->work(); });
  } catch (const std::system_error &e) {
    return exhausted("cannot start " + std::to_string(threads) +
                     " threads: " + e.what());
  }
  return pool;
}

ThreadPool::~ThreadPool() {
  stop.store(true);
  started.fetch_add(1);
  started.notify_all();
  for (std::thread &worker : workers)
    worker.join();
}

void ThreadPool::run(int64_t items, Function f, const void *ctx) {
  if (items <= 0)
    return;
  if (items == 1 || workers.empty()) {
    f(ctx, 0, items);
    return;
  }
  int64_t perChunk = std::max<int64_t>(1, items / (chunksPerThread * size()));
  auto chunkCount = static_cast<uint32_t>((items + perChunk - 1) / perChunk);

  // Closing first, then writing with release: a worker that sees any new field
  // also sees that the ticket it held before is no longer valid.
  uint64_t loop = (ticket.load(std::memory_order_relaxed) >> 32) + 1;
  ticket.store(loop << 32 | closed, std::memory_order_relaxed);
  chunks.store(chunkCount, std::memory_order_release);
  count.store(items, std::memory_order_release);
  chunkItems.store(perChunk, std::memory_order_release);
  function.store(f, std::memory_order_release);
  context.store(ctx, std::memory_order_release);
  pending.store(chunkCount, std::memory_order_release);
  ticket.store((loop + 1) << 32, std::memory_order_release);
  started.fetch_add(1);
  started.notify_all(); // No system call unless somebody sleeps.

  while (takeChunk()) {
  }
  for (int spins = 0; pending.load(std::memory_order_acquire) != 0; ++spins) {
    if (spins < spinsBeforeYield)
      pause();
    else
      std::this_thread::yield();
  }
}

bool ThreadPool::takeChunk() {
  uint64_t now = ticket.load(std::memory_order_acquire);
  while (true) {
    uint32_t chunkCount = chunks.load(std::memory_order_acquire);
    int64_t items = count.load(std::memory_order_acquire);
    int64_t perChunk = chunkItems.load(std::memory_order_acquire);
    Function f = function.load(std::memory_order_acquire);
    const void *ctx = context.load(std::memory_order_acquire);
    uint64_t chunk = now & 0xFFFFFFFF;
    if (chunk >= chunkCount)
      return false;
    // Success means that this loop had a chunk left at this moment, hence was
    // not over, hence that the fields above are its own.
    if (!ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel,
                                      std::memory_order_acquire))
      continue;
    int64_t begin = static_cast<int64_t>(chunk) * perChunk;
    f(ctx, begin, std::min(items, begin + perChunk));
    pending.fetch_sub(1, std::memory_order_acq_rel);
    return true;
  }
}

void ThreadPool::work() {
  uint32_t seen = 0;
  while (!stop.load(std::memory_order_acquire)) {
    while (takeChunk()) {
    }
    int spins = 0;
    while (started.load(std::memory_order_acquire) == seen) {
      if (++spins < spinsBeforeSleep)
        pause();
      else
        started.wait(seen, std::memory_order_acquire);
    }
    seen = started.load(std::memory_order_acquire);
  }
}

} // namespace mla::runtime
