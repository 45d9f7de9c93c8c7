//===- CollectiveTest.cpp - all-reduce by the machine's table -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CostModel/CostModel.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::cost;

namespace {

Machine machine() {
  Machine m = *findMachine("rtx-pro-6000x8-pcie5");
  m.collectives = {{"nccl", 8, 16384, 20e-6},
                   {"nccl", 8, 1048576, 80e-6},
                   {"nccl", 8, 262144, 32e-6},
                   {"one_shot", 4, 16384, 8e-6},
                   {"one_shot", 8, 16384, 10e-6}};
  return m;
}

double seconds(const Machine &m, Collective method, int64_t ranks,
               int64_t bytes) {
  Result<Estimate> e = Model(m).allReduce(method, ranks, bytes);
  EXPECT_TRUE(e.ok()) << e.status().message();
  if (!e.ok())
    return 0;
  EXPECT_EQ(e->bound, Bound::Link);
  EXPECT_LE(e->floorSeconds, e->seconds);
  return e->seconds;
}

TEST(AllReduce, FiguresOfTheTable) {
  Machine m = machine();
  EXPECT_DOUBLE_EQ(seconds(m, Collective::Nccl, 8, 16384), 20e-6);
  EXPECT_DOUBLE_EQ(seconds(m, Collective::Nccl, 8, 262144), 32e-6);
  EXPECT_DOUBLE_EQ(seconds(m, Collective::Nccl, 8, 1048576), 80e-6);
  EXPECT_DOUBLE_EQ(seconds(m, Collective::OneShot, 4, 16384), 8e-6);
}

TEST(AllReduce, BetweenAndBeyond) {
  Machine m = machine();
  // The middle of two sizes by their logarithm has the mean of two logarithms.
  EXPECT_NEAR(seconds(m, Collective::Nccl, 8, 65536), std::sqrt(20. * 32) * 1e-6,
              1e-10);
  EXPECT_DOUBLE_EQ(seconds(m, Collective::Nccl, 8, 1), 20e-6);
  // 48 us for 786,432 bytes more.
  EXPECT_NEAR(seconds(m, Collective::Nccl, 8, 1048576 + 786432), 128e-6, 1e-10);
  // One size alone: the link's rate.
  EXPECT_NEAR(seconds(m, Collective::OneShot, 8, 16384 + 1000000),
              10e-6 + 1e6 / m.link.writeBytesPerSecond, 1e-10);
  double before = 0;
  for (int64_t bytes = 1024; bytes < int64_t(1) << 28; bytes *= 2) {
    double now = seconds(m, Collective::Nccl, 8, bytes);
    EXPECT_GE(now, before);
    before = now;
  }
}

TEST(AllReduce, OtherRanks) {
  Machine m = machine();
  double eight = seconds(m, Collective::Nccl, 8, 1048576);
  double two = seconds(m, Collective::Nccl, 2, 1048576);
  // A ring of two sends as many bytes as each has, one of eight 7/4 of that.
  EXPECT_NEAR(two, 20e-6 + (eight - 20e-6) * 1 / 1.75, 1e-10);
  EXPECT_GT(seconds(m, Collective::Nccl, 16, 1048576), eight);
  // Nothing passes when there is nobody to send to.
  Result<Estimate> alone = Model(m).allReduce(Collective::Fused, 1, 1024);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->seconds, 0);
  EXPECT_EQ(alone->launches, 0);
}

TEST(AllReduce, TwoShotSendsParts) {
  Machine m = machine();
  m.collectives = {{"two_shot", 8, 16384, 13e-6}, {"two_shot", 8, 1048576, 80e-6}};
  double eight = seconds(m, Collective::TwoShot, 8, 1048576);
  double two = seconds(m, Collective::TwoShot, 2, 1048576);
  EXPECT_NEAR(two, 13e-6 + (eight - 13e-6) * 1 / 1.75, 1e-10);
  EXPECT_EQ(collectiveName(Collective::TwoShot), "two_shot");
}

TEST(AllGather, FollowsFromReductions) {
  Machine m = machine();
  Model model(m);
  // Every rank sends its part to all others, as in a reduction of that part.
  EXPECT_DOUBLE_EQ(model.allGather(Collective::OneShot, 8, 8 * 20000)->seconds,
                   seconds(m, Collective::OneShot, 8, 20000));
  // A ring passes half of what a reduction does.
  EXPECT_DOUBLE_EQ(model.allGather(Collective::Nccl, 8, 262144)->seconds, 16e-6);
  EXPECT_FALSE(model.allGather(Collective::Fused, 8, 1024).ok());
  EXPECT_FALSE(model.allGather(Collective::TwoShot, 8, 1024).ok());
  EXPECT_EQ(model.allGather(Collective::OneShot, 1, 1024)->seconds, 0);
}

TEST(AllReduce, Refusals) {
  Machine m = machine();
  Result<Estimate> e = Model(m).allReduce(Collective::Fused, 8, 1024);
  ASSERT_FALSE(e.ok());
  EXPECT_NE(e.status().message().find("fused"), std::string::npos);
  EXPECT_NE(e.status().message().find(m.name), std::string::npos);
  EXPECT_FALSE(Model(m).allReduce(Collective::Nccl, 0, 1024).ok());
  EXPECT_FALSE(Model(m).allReduce(Collective::Nccl, 8, -1).ok());
  EXPECT_FALSE(
      Model(*findMachine("h200x1")).allReduce(Collective::Nccl, 2, 1).ok());
}

} // namespace
