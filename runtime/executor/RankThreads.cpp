//===- RankThreads.cpp - a thread for each rank of a process --------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/RankThreads.h"
#include <exception>
#include <system_error>

namespace mla::runtime {

Result<std::unique_ptr<RankThreads>> RankThreads::create(size_t ranks) {
  std::unique_ptr<RankThreads> threads(new RankThreads);
  try {
    for (size_t rank = 1; rank < ranks; ++rank)
      threads->workers.emplace_back(
          [t = threads.get(), rank] { t->work(rank); });
  } catch (const std::system_error &e) {
    return exhausted("cannot start a thread for each of " +
                     std::to_string(ranks) + " ranks: " + e.what());
  }
  return threads;
}

RankThreads::~RankThreads() {
  stop.store(true);
  round.fetch_add(1);
  round.notify_all();
  for (std::thread &worker : workers)
    worker.join();
}

RankThreads::Outcome RankThreads::onAll(const Body &body,
                                        const OnError &onError) {
  this->body = &body;
  this->onError = &onError;
  outcome = {};
  working.store(static_cast<uint32_t>(workers.size()),
                std::memory_order_relaxed);
  round.fetch_add(1, std::memory_order_release);
  round.notify_all();
  call(0);
  while (uint32_t left = working.load(std::memory_order_acquire))
    working.wait(left, std::memory_order_acquire);
  return std::move(outcome);
}

void RankThreads::call(size_t rank) {
  Status status;
  try {
    status = (*body)(rank);
  } catch (const std::exception &e) { // Out of memory, mostly.
    status = internalError(e.what());
  }
  if (status.ok())
    return;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (outcome.status.ok())
      outcome = {status, rank};
  }
  if (*onError)
    (*onError)(rank, status);
}

void RankThreads::work(size_t rank) {
  uint32_t seen = 0;
  while (true) {
    round.wait(seen, std::memory_order_acquire);
    seen = round.load(std::memory_order_acquire);
    if (stop.load(std::memory_order_acquire))
      return;
    call(rank);
    if (working.fetch_sub(1, std::memory_order_acq_rel) == 1)
      working.notify_one();
  }
}

} // namespace mla::runtime
