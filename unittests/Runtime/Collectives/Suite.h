//===- Suite.h - what the tests of collectives share ------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_COLLECTIVES_SUITE_H
#define MLA_UNITTESTS_RUNTIME_COLLECTIVES_SUITE_H

#include "Backend.h"
#include <algorithm>
#include <cmath>
#include <gtest/gtest.h>
#include <initializer_list>
#include <iostream>
#include <limits>
#include <ostream>
#include <thread>

/// Skips a test if the backend lacks what it is about.
#define MLA_NEEDS(feature)                                                     \
  if (!backend().has(Feature::feature))                                        \
  GTEST_SKIP() << backend().name() << " has no " #feature

namespace mla::testing {

/// What test reports call a backend.
inline void PrintTo(Backend *backend, std::ostream *out) {
  *out << backend->name();
}

class Ranks : public ::testing::TestWithParam<Backend *> {
protected:
  void SetUp() override {
    if (std::string why = backend().unusable(); !why.empty())
      GTEST_SKIP() << why;
  }
  Backend &backend() const { return *GetParam(); }

  /// Of `numbers` of ranks those that the backend can have; says what it left out.
  std::vector<int> some(std::initializer_list<int> numbers) const {
    std::vector<int> possible;
    for (int ranks : numbers)
      if (ranks <= backend().mostRanks())
        possible.push_back(ranks);
      else
        std::cout << backend().name() << ": not with " << ranks << " ranks\n";
    return possible;
  }
  /// `ranks`, or as many as there can be.
  int atMost(int ranks) const { return std::min(ranks, backend().mostRanks()); }

  std::vector<Outcome> run(int ranks, const Body &body) const {
    return backend().start(ranks, body)->wait();
  }
  void runWell(int ranks, const Body &body) const {
    auto outcomes = run(ranks, body);
    for (size_t rank = 0; rank < outcomes.size(); ++rank) {
      EXPECT_FALSE(outcomes[rank].died) << "rank " << rank << " of " << ranks;
      EXPECT_TRUE(outcomes[rank].status.ok())
          << "rank " << rank << " of " << ranks << ": "
          << outcomes[rank].status.message();
    }
  }
};

/// The value that a rank has at a place, other ones in each round. Sums of them
/// are rounded, so that their order shows.
inline float valueOf(int rank, int64_t place, int round = 0) {
  uint32_t bits = static_cast<uint32_t>(place) * 2654435761u +
                  static_cast<uint32_t>(rank) * 40503u * 65599u +
                  static_cast<uint32_t>(round) * 2246822519u;
  bits ^= bits >> 15;
  bits *= 2246822507u;
  bits ^= bits >> 13;
  return static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-24f;
}

/// How far sums of them in another order may be from those in the order of ranks.
constexpr float sumTolerance = 1e-3f;

/// What all ranks must find, to the bit.
inline float sumOf(int ranks, int64_t place, int round = 0) {
  float sum = valueOf(0, place, round);
  for (int rank = 1; rank < ranks; ++rank)
    sum += valueOf(rank, place, round);
  return sum;
}

inline void fill(std::vector<float> &x, int rank, int round = 0) {
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = valueOf(rank, static_cast<int64_t>(i), round);
}

constexpr float poison = std::numeric_limits<float>::quiet_NaN();

/// An array of NaN whose end is watched.
struct Output {
  explicit Output(int64_t count)
      : values(static_cast<size_t>(count) + guards, poison) {}
  float *data() { return values.data(); }
  float operator[](int64_t i) const { return values[static_cast<size_t>(i)]; }
  int64_t count() const { return static_cast<int64_t>(values.size() - guards); }

  /// `expected` is what must stand at a place, or `tolerance` from it. Of large ones
  /// some are looked at.
  template <typename Expected>
  Status check(const std::string &what, const Expected &expected,
               float tolerance = 0) const {
    int64_t stride = count() > 100'000 ? 61 : 1;
    for (int64_t i = 0; i < count(); ++i) {
      if (!(std::abs(values[static_cast<size_t>(i)] - expected(i)) <=
            tolerance))
        return internalError(what + ": at " + std::to_string(i) + " expected " +
                             std::to_string(expected(i)) + ", found " +
                             std::to_string(values[static_cast<size_t>(i)]));
      // The ends, and a place in each stretch between.
      if (i > 100 && i < count() - 100)
        i += stride - 1;
    }
    for (size_t i = values.size() - guards; i < values.size(); ++i)
      if (!std::isnan(values[i]))
        return internalError(what + ": written beyond the end");
    return {};
  }

  static constexpr size_t guards = 16;
  std::vector<float> values;
};

inline void sleepFor(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

} // namespace mla::testing

#endif // MLA_UNITTESTS_RUNTIME_COLLECTIVES_SUITE_H
