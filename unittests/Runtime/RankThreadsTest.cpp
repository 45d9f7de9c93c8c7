//===- RankThreadsTest.cpp - a thread for each rank of a process ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/RankThreads.h"
#include <gtest/gtest.h>
#include <stdexcept>

using namespace mla;
using namespace mla::runtime;

namespace {

std::unique_ptr<RankThreads> create(size_t ranks) {
  auto threads = RankThreads::create(ranks);
  EXPECT_TRUE(threads.ok()) << threads.status().message();
  return *std::move(threads);
}

TEST(RankThreads, AllAtOnceAndTheFirstIsTheCaller) {
  for (size_t ranks : {1U, 2U, 7U}) {
    auto threads = create(ranks);
    ASSERT_EQ(threads->size(), ranks);
    std::thread::id caller = std::this_thread::get_id();
    std::vector<std::thread::id> before(ranks);
    std::vector<int> sums(ranks, 0);
    for (int round = 0; round < 300; ++round) {
      // Each waits until all are there.
      std::atomic<size_t> there{0};
      auto outcome = threads->onAll([&](size_t rank) -> Status {
        there.fetch_add(1);
        while (there.load() < ranks)
          std::this_thread::yield();
        if (round > 0 && before[rank] != std::this_thread::get_id())
          return invalid("another thread");
        before[rank] = std::this_thread::get_id();
        sums[rank] += round;
        return {};
      });
      ASSERT_TRUE(outcome.status.ok()) << outcome.status.message();
    }
    EXPECT_EQ(before[0], caller);
    EXPECT_EQ(sums, std::vector<int>(ranks, 299 * 300 / 2));
  }
}

TEST(RankThreads, TheReasonIsReportedAndNotWhatFollows) {
  auto threads = create(5);
  for (size_t bad = 0; bad < 5; ++bad)
    for (bool throws : {false, true}) {
      std::atomic<bool> over{false};
      std::atomic<int> told{0};
      auto outcome = threads->onAll(
          [&](size_t rank) -> Status {
            if (rank == bad) {
              if (throws)
                throw std::runtime_error("it broke");
              return exhausted("it broke");
            }
            while (!over.load())
              std::this_thread::yield();
            return invalid("another gave up");
          },
          [&](size_t rank, const Status &why) {
            EXPECT_EQ(why.message(),
                      rank == bad ? "it broke" : "another gave up");
            told.fetch_add(1);
            over.store(true);
          });
      EXPECT_EQ(outcome.rank, bad);
      EXPECT_EQ(outcome.status.message(), "it broke");
      EXPECT_EQ(outcome.status.code(),
                throws ? StatusCode::Internal : StatusCode::Exhausted);
      EXPECT_EQ(told.load(), 5);
    }
  // An error is not remembered.
  EXPECT_TRUE(threads->onAll([](size_t) { return Status(); }).status.ok());
}

} // namespace
