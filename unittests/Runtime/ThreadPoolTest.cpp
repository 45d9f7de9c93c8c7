//===- ThreadPoolTest.cpp - one loop over many threads --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/ThreadPool.h"
#include <gtest/gtest.h>
#include <numeric>

using mla::runtime::ThreadPool;

namespace {

std::unique_ptr<ThreadPool> poolOf(int threads) {
  auto pool = ThreadPool::create(threads);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return *std::move(pool);
}

TEST(ThreadPool, CoversEveryItemOnce) {
  for (int threads : {1, 2, 3, 8}) {
    auto pool = poolOf(threads);
    EXPECT_EQ(pool->size(), threads);
    for (int64_t count : {0, 1, 2, 7, 63, 64, 65, 1000}) {
      std::vector<int> touched(static_cast<size_t>(count));
      pool->parallelFor(count, [&](int64_t begin, int64_t end) {
        ASSERT_LT(begin, end);
        for (int64_t i = begin; i < end; ++i)
          ++touched[static_cast<size_t>(i)];
      });
      EXPECT_EQ(std::accumulate(touched.begin(), touched.end(), 0), count);
      EXPECT_EQ(std::count(touched.begin(), touched.end(), 1), count);
    }
  }
}

// Tests that a loop sees everything that the loop before it wrote, however late
// workers arrive: every loop is short, and each depends on the one before.
TEST(ThreadPool, LoopsFollowEachOther) {
  auto pool = poolOf(8);
  std::vector<int64_t> values(67, 0);
  constexpr int64_t loops = 3000;
  for (int64_t loop = 0; loop < loops; ++loop) {
    // A changing count makes a stale description of the loop visible.
    auto count = static_cast<int64_t>(values.size()) - loop % 3;
    int64_t expected = loop;
    pool->parallelFor(count, [&, expected](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(i)], expected);
        ++values[static_cast<size_t>(i)];
      }
    });
    for (auto i = static_cast<size_t>(count); i < values.size(); ++i)
      ++values[i];
  }
  for (int64_t value : values)
    EXPECT_EQ(value, loops);
}

TEST(ThreadPool, WakesAfterSleep) {
  auto pool = poolOf(4);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int64_t> sum{0};
    pool->parallelFor(100, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        sum += i;
    });
    EXPECT_EQ(sum, 4950);
  }
}

TEST(ThreadPool, RefusesImpossibleSizes) {
  for (int threads : {-1, ThreadPool::maxThreads + 1}) {
    auto pool = ThreadPool::create(threads);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(pool.status().code(), mla::StatusCode::Invalid);
  }
  EXPECT_GE(poolOf(0)->size(), 1);
}

} // namespace
