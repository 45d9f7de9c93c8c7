//===- ExpertTest.cpp - heads and experts on every GPU target -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/LargeKernels.h"

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

AttentionSpec attentionOf(const HeadShape &shape, Format cache) {
  return {shape.heads, shape.latent, 64, cache, 0.13, 1, 1, 4096};
}

TEST(Heads, CombineCompiles) {
  expectCompiles([&](KernelSite site) {
    for (Format cache : {Format::BF16, Format::FP8E4M3})
      for (HeadShape shape :
           {HeadShape{8, 128, 64, 128, 512}, HeadShape{16, 128, 64, 128, 512},
            HeadShape{128, 128, 64, 128, 512}, HeadShape{3, 192, 64, 250, 128},
            HeadShape{2, 64, 64, 5, 256}}) {
        AttentionSpec spec = attentionOf(shape, cache);
        ASSERT_TRUE(canCombineInExpand(spec, DecodeForm::Narrow, shape, site.gpu));
        combineExpand(site, spec, DecodeForm::Narrow, shape);
      }
  });
}

TEST(Heads, CombineOnlyWhereABlockCan) {
  const Gpu &gpu = *lookupGpu("sm_90a");
  HeadShape shape{8, 128, 64, 128, 512};
  AttentionSpec spec = attentionOf(shape, Format::BF16);
  EXPECT_TRUE(canCombineInExpand(spec, DecodeForm::Narrow, shape, gpu));
  spec.maxTokens = 8;
  EXPECT_FALSE(canCombineInExpand(spec, DecodeForm::Narrow, shape, gpu));
  // Units of 8 values that do not divide the threads; a form without splits.
  for (int64_t latent : {384, 500}) {
    shape.latent = latent;
    EXPECT_FALSE(
        canCombineInExpand(attentionOf(shape, Format::BF16), DecodeForm::Narrow,
                           shape, gpu));
  }
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
        for (int64_t tile : {0, 128})
          moeGroup(site, experts, std::min<int64_t>(experts, 8), maxTokens,
                   tile);
    // A rank's group of experts: fewer than a token's choices, too.
    for (int64_t experts : {2, 48})
      for (int64_t tile : {0, 128})
        moeGroup(site, experts, 8, 64, tile, /*part=*/true);
    for (int64_t width : {1, 30, 7168})
      for (int64_t addends : {0, 1, 2})
        for (int64_t partOf : {0, 48})
          moeCombine(site, width, 8, addends, partOf);
  });
}

class Experts : public testing::TestWithParam<Format> {};

/// The kernels that a program has.
void products(KernelSite site, const ExpertSpec &spec) {
  if (expertsAreLarge(spec)) {
    expertsGateUpLarge(site, spec);
    expertsDownLarge(site, spec);
  } else {
    expertsGateUp(site, spec);
    expertsDown(site, spec);
  }
}
/// The experts of a model of hidden size 7168.
void experts(KernelSite site, Format format, int64_t inter, int64_t experts,
             int64_t maxTokens) {
  products(site, {{format, inter, 7168},
                  {format, 7168, inter},
                  experts,
                  8,
                  maxTokens});
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
  // Few values that cross the main loops: these use all registers there are.
  expectCompiles(
      [&](KernelSite site) { experts(site, GetParam(), 2048, 48, 4096); },
      /*spills=*/true);
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
          products(site, spec);
        },
        /*spills=*/true);
}

INSTANTIATE_TEST_SUITE_P(Formats, Experts,
                         testing::Values(Format::BF16, Format::FP8Block,
                                         Format::NVFP4, Format::Int4G32),
                         [](const auto &info) {
                           return std::string(formatName(info.param));
                         });

TEST(Experts, FormatsOfGateAndDownMayDiffer) {
  expectCompiles(
      [](KernelSite site) {
        products(site, {{Format::NVFP4, 96, 256},
                        {Format::BF16, 256, 96},
                        8,
                        2,
                        300});
      },
      /*spills=*/true);
}

TEST(Experts, GridsCoverSlotsRowsAndTiles) {
  makeFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    ExpertSpec spec{
        {Format::BF16, 2048, 7168}, {Format::BF16, 7168, 2048}, 48, 8, 64};
    EXPECT_EQ(expertsGateUp(site, spec).grid, "min(tokens * 8, 48) * 128");
    spec.maxTokens = 4096;
    EXPECT_TRUE(expertsAreLarge(spec));
    EXPECT_EQ(expertsGateUpLarge(site, spec).grid,
              "min((ceildiv(tokens * 8, 128) + min(tokens * 8, 48)) * 16, 188)");
    EXPECT_EQ(expertsDownLarge(site, spec).grid,
              "min((ceildiv(tokens * 8, 128) + min(tokens * 8, 48)) * 28, 188)");
    // x may be packed once for experts and a shared expert beside them.
    LinearSpec shared = expertRows(spec);
    shared.segments = {{Format::BF16, 4096, 7168}, {Format::BF16, 4096, 7168}};
    shared.gated = true;
    EXPECT_EQ(packedRowsName(shared), packedRowsName(expertRows(spec)));
  });
}

} // namespace
