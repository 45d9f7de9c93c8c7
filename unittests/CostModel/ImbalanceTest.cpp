//===- ImbalanceTest.cpp - the busiest group, by counting -----------------===//
//
// Part of mla. Small cases are counted one by one.
//
//===----------------------------------------------------------------------===//
#include "mla/CostModel/CostModel.h"
#include <bit>
#include <cmath>
#include <gtest/gtest.h>
#include <numeric>

using namespace mla;
using namespace mla::cost;

namespace {

Experts inGroups(int64_t count, int64_t topk, int64_t groups, int64_t routing = 1,
                int64_t kept = 1) {
  Experts e{{Format::NVFP4, 256, 7168}, {Format::NVFP4, 7168, 256}, count, topk};
  e.groups = groups;
  e.routingGroups = routing;
  e.routingKept = kept;
  return e;
}

int64_t most(uint32_t chosen, int64_t count, int64_t groups) {
  int64_t size = count / groups, largest = 0;
  for (int64_t g = 0; g < groups; ++g) {
    uint32_t group = ((uint32_t(1) << size) - 1) << (g * size);
    largest = std::max<int64_t>(largest, std::popcount(chosen & group));
  }
  return largest;
}

/// All choices of one token: of each choice of the router's groups those of experts
/// in them.
std::vector<double> counted(const Experts &e) {
  std::vector<double> found(e.topk + 1);
  double all = 0;
  int64_t size = e.experts / e.routingGroups;
  for (uint32_t kept = 0; kept < uint32_t(1) << e.routingGroups; ++kept) {
    if (std::popcount(kept) != e.routingKept)
      continue;
    uint32_t open = 0;
    for (int64_t r = 0; r < e.routingGroups; ++r)
      if (kept >> r & 1)
        open |= ((uint32_t(1) << size) - 1) << (r * size);
    for (uint32_t chosen = 0; chosen < uint32_t(1) << e.experts; ++chosen) {
      if ((chosen & ~open) || std::popcount(chosen) != e.topk)
        continue;
      found[most(chosen, e.experts, e.groups)] += 1;
      all += 1;
    }
  }
  for (double &f : found)
    f /= all;
  return found;
}

TEST(Imbalance, OneTokenByCounting) {
  for (const Experts &e :
       {inGroups(8, 3, 4), inGroups(12, 4, 2), inGroups(12, 5, 3), inGroups(8, 8, 4),
        inGroups(6, 2, 6), inGroups(10, 1, 5), inGroups(12, 4, 1),
        // The router's groups in those of ranks, the same, and the other way round.
        inGroups(16, 4, 4, 8, 4), inGroups(16, 4, 2, 8, 3), inGroups(12, 4, 4, 4, 2),
        inGroups(12, 3, 6, 3, 2)}) {
    std::vector<double> expected = counted(e), found = busiestGroup(e);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t k = 0; k < found.size(); ++k)
      EXPECT_NEAR(found[k], expected[k], 1e-9)
          << k << " of " << e.topk << " of " << e.experts << " in " << e.groups;
  }
}

TEST(Imbalance, SeveralTokensByCounting) {
  for (const Experts &e : {inGroups(12, 2, 4), inGroups(12, 4, 3), inGroups(8, 2, 2)}) {
    double sum = 0, all = 0;
    for (uint32_t a = 0; a < uint32_t(1) << e.experts; ++a)
      for (uint32_t b = 0; b < uint32_t(1) << e.experts; ++b)
        if (std::popcount(a) == e.topk && std::popcount(b) == e.topk) {
          sum += double(most(a | b, e.experts, e.groups));
          all += 1;
        }
    // The number of different experts is taken at its mean.
    EXPECT_NEAR(busiestExperts(e, 2), sum / all, 0.03 * sum / all);
  }
}

TEST(Imbalance, PublishedModels) {
  // 8 of 384 in 8 groups of 48: 2.6, not the 1 of an equal share.
  double kimi = busiestExperts(inGroups(384, 8, 8), 1);
  EXPECT_GT(kimi, 2.4);
  EXPECT_LT(kimi, 2.8);
  // The router of DeepSeek-V3 chooses four of eight groups first.
  EXPECT_GT(busiestExperts(inGroups(256, 8, 8, 8, 4), 1),
            busiestExperts(inGroups(256, 8, 8), 1) + 0.3);
  double before = 0;
  for (int64_t tokens : {1, 2, 4, 8, 16, 64, 256, 4096}) {
    double now = busiestExperts(inGroups(384, 8, 8), tokens);
    EXPECT_GE(now, before);
    EXPECT_LE(now, 48);
    before = now;
  }
  EXPECT_DOUBLE_EQ(before, 48);
}

TEST(Imbalance, TimeIsThatOfTheBusiest) {
  Model model(*findMachine("rtx-pro-6000x8-pcie5"));
  Experts whole = inGroups(384, 8, 8);
  whole.gate.rows = whole.down.columns = 2048;
  std::vector<double> probability = busiestGroup(whole);
  EXPECT_NEAR(std::accumulate(probability.begin(), probability.end(), 0.0), 1, 1e-9);
  double expected = 0, bytes = 0;
  for (size_t k = 1; k < probability.size(); ++k) {
    Experts some = whole;
    some.experts = 48;
    some.topk = int64_t(k);
    some.groups = 1;
    expected += probability[k] * model.expertsOne(some).seconds;
    bytes += probability[k] * model.expertsOne(some).weightBytes;
  }
  Estimate found = model.expertsOne(whole);
  EXPECT_NEAR(found.seconds, expected, 1e-9);
  EXPECT_NEAR(found.weightBytes, bytes, 1);
  EXPECT_LE(found.floorSeconds, found.seconds);
  EXPECT_EQ(found.launches, 2);
  // A group of all experts is no group.
  Experts one = inGroups(384, 8, 1);
  for (int64_t tokens : {8, 64})
    EXPECT_LT(model.experts(one, tokens).weightBytes,
              8 * model.experts(inGroups(384, 8, 8), tokens).weightBytes);
}

//===----------------------------------------------------------------------===//
// Overlap
//===----------------------------------------------------------------------===//

TEST(Timeline, TheLongerCounts) {
  for (double work : {0.0, 3.0, 10.0, 12.0}) {
    Timeline t;
    t.work(5);
    size_t sum = t.exchange(10);
    t.work(work);
    t.wait(sum);
    t.work(1);
    EXPECT_DOUBLE_EQ(t.end(), 5 + std::max(10.0, work) + 1);
  }
}

TEST(Timeline, OneLink) {
  Timeline t;
  size_t first = t.exchange(4), second = t.exchange(4);
  t.wait(first);
  EXPECT_DOUBLE_EQ(t.end(), 8); // the second is on its way
  t.work(1);                    // until 5
  t.wait(second);
  t.work(1);
  EXPECT_DOUBLE_EQ(t.end(), 9);
  // Nobody waits for the last one, and the step does.
  t.exchange(2);
  EXPECT_DOUBLE_EQ(t.end(), 11);
}

TEST(Timeline, NothingBeside) {
  Timeline t;
  double sum = 0;
  for (double seconds : {1.0, 2.0, 3.0}) {
    t.work(seconds);
    t.wait(t.exchange(2 * seconds));
    sum += 3 * seconds;
  }
  EXPECT_DOUBLE_EQ(t.end(), sum);
}

} // namespace
