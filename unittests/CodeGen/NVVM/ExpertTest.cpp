//===- ExpertTest.cpp - heads and experts on every GPU target -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

constexpr int64_t tokenBounds[] = {1, 8, 16, 64, 4096};

TEST(Heads, Compile) {
  for (int64_t maxTokens : tokenBounds)
    expectCompiles([&](KernelSite site) {
      for (int64_t heads : {8, 128}) {
        HeadShape shape{heads, 128, 64, 128, 512};
        absorbQuery(site, shape, true, maxTokens);
        expandValue(site, shape, maxTokens);
      }
    });
}

TEST(Heads, CompileWithDimensionsOfAnySize) {
  for (int64_t maxTokens : {1, 16, 4096})
    expectCompiles(
        [&](KernelSite site) {
          for (HeadShape shape :
               {HeadShape{1, 1, 2, 1, 1}, HeadShape{3, 33, 6, 17, 45},
                HeadShape{2, 192, 64, 256, 512}, HeadShape{5, 40, 0, 24, 20}}) {
            absorbQuery(site, shape, false, maxTokens);
            expandValue(site, shape, maxTokens);
          }
        },
        /*spills=*/true);
}

TEST(Heads, GridsCoverRowsAndTokens) {
  makeFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    HeadShape shape{8, 128, 64, 128, 512};
    EXPECT_EQ(absorbQuery(site, shape, true, 1).grid, "128");
    EXPECT_EQ(absorbQuery(site, shape, true, 64).grid,
              "64 * ceildiv(tokens, 32)");
    EXPECT_EQ(absorbQuery(site, shape, true, 4096).grid,
              "32 * ceildiv(tokens, 64)");
    EXPECT_EQ(expandValue(site, shape, 1).grid, "64");
  });
}

TEST(MoE, Compile) {
  expectCompiles([](KernelSite site) {
    for (int64_t experts : {1, 48, 384, 1024})
      for (int64_t maxTokens : {1, 64, 4096})
        moeGroup(site, experts, std::min<int64_t>(experts, 8), maxTokens);
    for (int64_t width : {1, 30, 7168})
      for (int64_t addends : {0, 1, 2})
        moeCombine(site, width, 8, addends);
  });
}

class Experts : public testing::TestWithParam<Format> {};

/// The experts of a model of hidden size 7168.
void experts(KernelSite site, Format format, int64_t inter, int64_t experts,
             int64_t maxTokens) {
  ExpertSpec spec{
      {format, inter, 7168}, {format, 7168, inter}, experts, 8, maxTokens};
  expertsGateUp(site, spec);
  expertsDown(site, spec);
}

TEST_P(Experts, FewTokensOfManyExpertsStayInRegisters) {
  expectCompiles(
      [&](KernelSite site) { experts(site, GetParam(), 256, 384, 8); });
}
TEST_P(Experts, FewTokensOfFewExpertsCompile) {
  // fp8_block spills a few loop invariants.
  expectCompiles(
      [&](KernelSite site) { experts(site, GetParam(), 2048, 48, 64); },
      GetParam() == Format::FP8Block);
}
TEST_P(Experts, ManyTokensCompile) {
  // nvfp4 spills a few loop invariants.
  expectCompiles(
      [&](KernelSite site) { experts(site, GetParam(), 2048, 48, 4096); },
      GetParam() == Format::NVFP4);
}

TEST_P(Experts, CompileWithDimensionsOfAnySize) {
  for (int64_t maxTokens : {2, 64, 4096})
    expectCompiles(
        [&](KernelSite site) {
          int64_t inter = GetParam() == Format::NVFP4     ? 48
                          : GetParam() == Format::Int4G32 ? 96
                                                          : 37;
          int64_t hidden = GetParam() == Format::NVFP4     ? 80
                           : GetParam() == Format::Int4G32 ? 160
                                                           : 129;
          ExpertSpec spec{{GetParam(), inter, hidden},
                          {GetParam(), hidden, inter},
                          6,
                          3,
                          maxTokens};
          expertsGateUp(site, spec);
          expertsDown(site, spec);
        },
        /*spills=*/true);
}

INSTANTIATE_TEST_SUITE_P(Formats, Experts,
                         testing::Values(Format::BF16, Format::FP8Block,
                                         Format::NVFP4, Format::Int4G32),
                         [](const auto &info) {
                           return std::string(formatName(info.param));
                         });

TEST(Experts, GridsCoverSlotsRowsAndTiles) {
  makeFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    ExpertSpec spec{
        {Format::BF16, 2048, 7168}, {Format::BF16, 7168, 2048}, 48, 8, 64};
    EXPECT_EQ(expertsGateUp(site, spec).grid, "min(tokens * 8, 48) * 128");
    spec.maxTokens = 4096;
    EXPECT_EQ(expertsGateUp(site, spec).grid,
              "(ceildiv(tokens * 8, 128) + min(tokens * 8, 48)) * 16");
    EXPECT_EQ(expertsDown(site, spec).grid,
              "(ceildiv(tokens * 8, 128) + min(tokens * 8, 48)) * 28");
  });
}

} // namespace
