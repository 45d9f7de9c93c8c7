//===- ConformanceTest.cpp - what collectives compute ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Suite.h"
#include <cstring>

namespace mla::testing {
namespace {

Status reduceOnce(Member &member, int64_t count, bool inPlace, float tolerance,
                  int round = 0) {
  std::string what = std::to_string(count) + " values" +
                     (inPlace ? " in place" : "") + ", round " +
                     std::to_string(round);
  std::vector<float> x(static_cast<size_t>(count));
  fill(x, member.rank(), round);
  Output y(count);
  if (inPlace)
    std::copy(x.begin(), x.end(), y.data());
  MLA_RETURN_IF_ERROR(
      member.allReduce(inPlace ? y.data() : x.data(), y.data(), count, what));
  return y.check(
      what, [&](int64_t i) { return sumOf(member.size(), i, round); },
      tolerance);
}

class Conformance : public Ranks {
protected:
  float tolerance() const {
    return backend().has(Feature::OrderedSums) ? 0 : sumTolerance;
  }
};

TEST_P(Conformance, SumsOfEverySize) {
  for (int ranks : some({2, 3, 5, 8}))
    runWell(ranks, [near = tolerance()](Member &member) -> Status {
      for (int64_t count : {0,    1,     2,     3,     4,     5,     7,
                            8,    9,     31,    1000,  3584,  7168,  9362,
                            9363, 16384, 16385, 32769, 65536, 65537, 262143})
        for (bool inPlace : {false, true})
          MLA_RETURN_IF_ERROR(reduceOnce(member, count, inPlace, near));
      return {};
    });
}

TEST_P(Conformance, SumsOf16Megabytes) {
  for (int ranks : some({2, 8}))
    runWell(ranks, [near = tolerance()](Member &member) {
      return reduceOnce(member, 4 << 20, member.size() == 2, near);
    });
}

TEST_P(Conformance, SumsDoNotDependOnTheMethod) {
  MLA_NEEDS(OrderedSums);
  runWell(atMost(3), [](Member &member) -> Status {
    for (int64_t count : {1, 2, 5, 1000, 20001})
      for (int64_t limit : {0, 1 << 30})
        for (bool inPlace : {false, true}) {
          member.setOneShotBytes(limit);
          MLA_RETURN_IF_ERROR(reduceOnce(member, count, inPlace, 0));
        }
    return {};
  });
}

// Data change as soon as a call returns, and small and large calls alternate:
// who reads too late reads something else.
TEST_P(Conformance, ManySumsInARow) {
  for (int ranks : some({2, 4})) {
    int rounds = ranks == 4 ? backend().replays() : backend().replays() / 4;
    runWell(ranks, [rounds, ranks, near = tolerance()](Member &member) -> Status {
      constexpr int64_t counts[] = {1, 7, 64, 257};
      std::vector<float> x(20'000), y(20'000);
      for (int round = 0; round < rounds; ++round) {
        int64_t count = round % 97 == 96 ? 20'000 : counts[round % 4];
        for (int64_t i = 0; i < count; ++i) {
          x[static_cast<size_t>(i)] = valueOf(member.rank(), i, round);
          y[static_cast<size_t>(i)] = poison;
        }
        MLA_RETURN_IF_ERROR(
            member.allReduce(x.data(), y.data(), count, "a value"));
        for (int64_t i = 0; i<count; i += count> 1000 ? 37 : 1)
          if (!(std::abs(y[static_cast<size_t>(i)] - sumOf(ranks, i, round)) <=
                near))
            return internalError("round " + std::to_string(round) + " at " +
                                 std::to_string(i));
      }
      return {};
    });
  }
}

struct Shape {
  int64_t rows, columns;
  std::string text() const {
    return std::to_string(rows) + " x " + std::to_string(columns);
  }
};
constexpr Shape shapes[] = {{0, 5}, {1, 0},   {1, 1},    {1, 7},    {1, 50'000},
                            {2, 3}, {5, 129}, {3, 1000}, {17, 1024}};

TEST_P(Conformance, GathersColumns) {
  for (int ranks : some({2, 3, 8}))
    runWell(ranks, [](Member &member) -> Status {
      for (Shape shape : shapes) {
        std::vector<float> x(static_cast<size_t>(shape.rows * shape.columns));
        fill(x, member.rank());
        int64_t width = shape.columns * member.size();
        Output y(shape.rows * width);
        MLA_RETURN_IF_ERROR(member.allGather(x.data(), y.data(), shape.rows,
                                             shape.columns, shape.text()));
        MLA_RETURN_IF_ERROR(y.check(shape.text(), [&](int64_t i) {
          int64_t row = i / width, column = i % width;
          return valueOf(static_cast<int>(column / shape.columns),
                         row * shape.columns + column % shape.columns);
        }));
      }
      return {};
    });
}

TEST_P(Conformance, ScattersSums) {
  MLA_NEEDS(Moves);
  for (int ranks : some({2, 3, 8}))
    runWell(ranks, [near = tolerance()](Member &member) -> Status {
      for (Shape shape : shapes) {
        int64_t width = shape.columns * member.size();
        std::vector<float> x(static_cast<size_t>(shape.rows * width));
        fill(x, member.rank());
        Output y(shape.rows * shape.columns);
        MLA_RETURN_IF_ERROR(member.reduceScatter(x.data(), y.data(), shape.rows,
                                                 shape.columns, shape.text()));
        MLA_RETURN_IF_ERROR(y.check(
            shape.text(),
            [&](int64_t i) {
              return sumOf(member.size(), i / shape.columns * width +
                                              member.rank() * shape.columns +
                                              i % shape.columns);
            },
            near));
      }
      return {};
    });
}

TEST_P(Conformance, ExchangesColumnsForRows) {
  MLA_NEEDS(Moves);
  for (int ranks : some({2, 3, 8}))
    runWell(ranks, [](Member &member) -> Status {
      for (Shape shape : shapes) {
        int64_t width = shape.columns * member.size();
        std::vector<float> x(static_cast<size_t>(shape.rows * width));
        fill(x, member.rank());
        Output y(shape.rows * width);
        MLA_RETURN_IF_ERROR(member.allToAll(x.data(), y.data(), shape.rows,
                                            shape.columns, shape.text()));
        MLA_RETURN_IF_ERROR(y.check(shape.text(), [&](int64_t i) {
          int64_t block = shape.rows * shape.columns;
          int64_t row = i % block / shape.columns;
          return valueOf(static_cast<int>(i / block),
                         row * width + member.rank() * shape.columns +
                             i % shape.columns);
        }));
      }
      return {};
    });
}

TEST_P(Conformance, MovesBytes) {
  MLA_NEEDS(Bytes);
  runWell(3, [](Member &member) -> Status {
    collectives::Collectives *host = member.onHost();
    for (size_t size : {0, 1, 7, 100'000, 3'000'000}) {
      std::vector<std::byte> bytes(size), all(3 * size);
      auto valueAt = [](int rank, size_t i) {
        return static_cast<std::byte>(static_cast<size_t>(rank) * 77 + i % 251);
      };
      for (int root = 0; root < 3; ++root) {
        for (size_t i = 0; i < size; ++i)
          bytes[i] = valueAt(member.rank(), i);
        MLA_RETURN_IF_ERROR(host->broadcast(bytes, root, "bytes"));
        for (size_t i = 0; i < size; ++i)
          if (bytes[i] != valueAt(root, i))
            return internalError("broadcast at " + std::to_string(i));
      }
      for (size_t i = 0; i < size; ++i)
        bytes[i] = valueAt(member.rank(), i);
      MLA_RETURN_IF_ERROR(host->allGatherBytes(bytes, all, "bytes"));
      for (int rank = 0; rank < 3; ++rank)
        for (size_t i = 0; i < size; ++i)
          if (all[static_cast<size_t>(rank) * size + i] != valueAt(rank, i))
            return internalError("all-gather at " + std::to_string(i));
    }
    return {};
  });
}

TEST_P(Conformance, BarrierWaitsForTheLast) {
  runWell(atMost(3), [](Member &member) -> Status {
    MLA_RETURN_IF_ERROR(member.barrier("begin"));
    auto begin = std::chrono::steady_clock::now();
    if (member.rank() == 1)
      sleepFor(200);
    MLA_RETURN_IF_ERROR(member.barrier("end"));
    auto waited = std::chrono::steady_clock::now() - begin;
    return waited >= std::chrono::milliseconds(150)
               ? Status()
               : internalError("the barrier opened too early");
  });
}

TEST_P(Conformance, OneRankNeedsNobody) {
  MLA_NEEDS(OneRank);
  runWell(1, [](Member &member) -> Status {
    MLA_RETURN_IF_ERROR(reduceOnce(member, 5, false, 0));
    MLA_RETURN_IF_ERROR(reduceOnce(member, 100'000, true, 0));
    float x[6] = {1, 2, 3, 4, 5, 6};
    for (auto call :
         {&Member::allGather, &Member::reduceScatter, &Member::allToAll}) {
      Output y(6);
      MLA_RETURN_IF_ERROR((member.*call)(x, y.data(), 2, 3, "six"));
      MLA_RETURN_IF_ERROR(y.check("six", [&](int64_t i) { return x[i]; }));
    }
    return member.barrier("end");
  });
}

TEST_P(Conformance, GroupsDoNotDisturbEachOther) {
  MLA_NEEDS(SeveralGroups);
  auto body = [](int seed) {
    return [seed](Member &member) -> Status {
      for (int round = 0; round < 60; ++round)
        MLA_RETURN_IF_ERROR(reduceOnce(member, 1 + 397 * (round % 40),
                                       round % 2 == 1, 0, round * 2 + seed));
      return {};
    };
  };
  auto first = backend().start(3, body(0)),
       second = backend().start(2, body(1));
  for (Ongoing *group : {first.get(), second.get()})
    for (const Outcome &outcome : group->wait())
      EXPECT_TRUE(outcome.status.ok() && !outcome.died)
          << outcome.status.message();
}

} // namespace

INSTANTIATE_TEST_SUITE_P(All, Conformance, ::testing::ValuesIn(backends()),
                         [](const auto &info) { return info.param->name(); });

} // namespace mla::testing
