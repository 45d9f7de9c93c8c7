//===- HostExchangeTest.cpp - a plan's collectives on the host ------------===//
//
// Part of mla. Each collective against its formula in mla/Plan/Plan.h, with
// columns that divide and columns that do not.
//
//===----------------------------------------------------------------------===//
#include "runtime/hal/host/HostExchange.h"
#include "runtime/collectives/host/Threads.h"
#include "runtime/executor/RankThreads.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using plan::Collective;

namespace {

constexpr int64_t rows = 3;

/// x of a rank: small integers, so that sums are exact.
float valueOf(int64_t rank, int64_t row, int64_t column) {
  return static_cast<float>(rank * 100 + row * 10 + column % 10 - 50);
}

/// y[row, column] of rank `rank`, by definition.
float expectedOf(Collective collective, int64_t ranks, int64_t rank,
                 int64_t row, int64_t column, int64_t x, int64_t y) {
  auto sum = [&](int64_t c) {
    float all = 0;
    for (int64_t r = 0; r < ranks; ++r)
      all += valueOf(r, row, c);
    return c < x ? all : 0.0F;
  };
  switch (collective) {
  case Collective::AllReduce:
    return sum(column);
  case Collective::AllGather:
    return valueOf(column / x, row, column % x);
  case Collective::ReduceScatter:
    return sum(rank * y + column);
  case Collective::AllToAll: {
    int64_t part = x / ranks;
    return valueOf(column / part, row, rank * part + column % part);
  }
  case Collective::None:
    break;
  }
  return NAN;
}

class HostExchangeTest : public testing::TestWithParam<int> {
protected:
  void SetUp() override {
    exchanges.clear();
    auto made = collectives::createThreadGroup(GetParam());
    ASSERT_TRUE(made.ok());
    transports = *std::move(made);
    auto started = runtime::RankThreads::create(transports.size());
    ASSERT_TRUE(started.ok());
    threads = *std::move(started);
    for (auto &transport : transports)
      exchanges.emplace_back(new Exchange(*transport));
  }

  Status run(Collective collective, int64_t x, int64_t y, bool inPlace = false) {
    int64_t ranks = GetParam();
    auto outcome = threads->onAll(
        [&](size_t i) -> Status {
          auto rank = static_cast<int64_t>(i);
          std::vector<float> from, to(static_cast<size_t>(rows * y), NAN);
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < x; ++c)
              from.push_back(valueOf(rank, r, c));
          float *result = inPlace ? from.data() : to.data();
          std::vector<uint64_t> arguments = {
              reinterpret_cast<uintptr_t>(from.data()),
              reinterpret_cast<uintptr_t>(result), rows,
              static_cast<uint64_t>(x), static_cast<uint64_t>(y)};
          MLA_RETURN_IF_ERROR(
              exchanges[i]->exchange.run(collective, arguments, "layers.3"));
          for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < y; ++c)
              if (float wanted =
                      expectedOf(collective, ranks, rank, r, c, x, y);
                  result[r * y + c] != wanted)
                return internalError(
                    "rank " + std::to_string(rank) + " has " +
                    std::to_string(result[r * y + c]) + " instead of " +
                    std::to_string(wanted) + " in row " + std::to_string(r) +
                    ", column " + std::to_string(c));
          return {};
        },
        [&](size_t i, const Status &why) { transports[i]->abort(why); });
    return outcome.status;
  }

  struct Exchange {
    explicit Exchange(collectives::Transport &transport)
        : collectives(transport), exchange(collectives) {}
    collectives::Collectives collectives;
    hal::HostExchange exchange;
  };
  std::vector<std::unique_ptr<collectives::Transport>> transports;
  std::unique_ptr<runtime::RankThreads> threads;
  std::vector<std::unique_ptr<Exchange>> exchanges;
};

TEST_P(HostExchangeTest, AsThePlanSays) {
  int64_t ranks = GetParam();
  for (int64_t n : {1, 2, 7, 40}) {
    auto expectOk = [&](Collective collective, int64_t x, int64_t y,
                        bool inPlace = false) {
      Status status = run(collective, x, y, inPlace);
      EXPECT_TRUE(status.ok()) << plan::collectiveName(collective) << " " << x
                               << " " << y << ": " << status.message();
    };
    expectOk(Collective::AllReduce, n, n);
    expectOk(Collective::AllReduce, n, n, true);
    expectOk(Collective::AllToAll, n * ranks, n * ranks);
    for (int64_t cut : {int64_t(0), int64_t(1), ranks - 1})
      if (cut < n * ranks) {
        expectOk(Collective::AllGather, n, n * ranks - cut);
        expectOk(Collective::ReduceScatter, n * ranks - cut, n);
      }
  }
}

TEST_P(HostExchangeTest, ColumnsThatDoNotFit) {
  int64_t ranks = GetParam();
  auto expectWrong = [&](Collective collective, int64_t x, int64_t y,
                         const std::string &message) {
    Status status = run(collective, x, y);
    EXPECT_EQ(status.code(), StatusCode::Invalid);
    EXPECT_EQ(status.message(), message);
    SetUp(); // The group is over.
  };
  expectWrong(Collective::AllReduce, 3, 4,
              "all_reduce of layers.3: expected as many columns of x as of y, "
              "found 3 and 4");
  expectWrong(Collective::AllGather, 3, 3 * ranks + 1,
              "all_gather of layers.3: expected columns of x that the ranks fill "
              "y with, found 3 and " +
                  std::to_string(3 * ranks + 1));
  expectWrong(Collective::ReduceScatter, 3 * ranks + 1, 3,
              "reduce_scatter of layers.3: expected columns of x that fit the "
              "ranks' y, found " +
                  std::to_string(3 * ranks + 1) + " and 3");
  expectWrong(Collective::AllToAll, ranks, 2 * ranks,
              "all_to_all of layers.3: expected as many columns of x as of y, "
              "divided by the ranks, found " +
                  std::to_string(ranks) + " and " + std::to_string(2 * ranks));
}

INSTANTIATE_TEST_SUITE_P(Ranks, HostExchangeTest, testing::Values(2, 3, 8));

} // namespace
