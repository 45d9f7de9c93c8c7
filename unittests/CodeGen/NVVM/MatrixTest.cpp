//===- MatrixTest.cpp - linears on every GPU target -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

constexpr Format formats[] = {Format::BF16, Format::FP8Block, Format::NVFP4,
                              Format::Int4G32};

LinearSpec plain(Format format, std::initializer_list<int64_t> rows,
                 int64_t columns, int64_t maxTokens) {
  LinearSpec spec;
  for (int64_t r : rows)
    spec.segments.push_back({format, r, columns});
  spec.maxTokens = maxTokens;
  return spec;
}

TEST(Matrix, EveryFormatAndCountOfTokens) {
  for (Format format : formats)
    expectCompiles([&](KernelSite site) {
      for (int64_t tokens : {1, 8, 16, 32, 4096})
        linear(site, plain(format, {2112}, 7168, tokens));
    });
}

TEST(Matrix, SizesFromOneRowAndColumnToTheVocabulary) {
  for (Format format : formats)
    expectCompiles([&](KernelSite site) {
      for (int64_t tokens : {1, 64}) {
        linear(site, plain(format, {1}, 1, tokens));
        linear(site, plain(format, {17}, 130, tokens));
        linear(site, plain(format, {20480}, 7168, tokens));
        linear(site, plain(format, {3000}, 18432, tokens));
      }
    });
}

TEST(Matrix, PrologueAndEpilogues) {
  for (Format format : formats)
    expectCompiles([&](KernelSite site) {
      for (int64_t tokens : {1, 64}) {
        LinearSpec spec = plain(format, {1536, 576}, 7168, tokens);
        spec.norm = true;
        spec.eps = 1e-6;
        linear(site, spec);
        spec.gamma = Format::F32;
        linear(site, spec);
        LinearSpec gated = plain(format, {2304, 2304}, 7168, tokens);
        gated.gated = gated.norm = true;
        linear(site, gated);
        LinearSpec residual = plain(format, {7168}, 1024, tokens);
        residual.residual = true;
        linear(site, residual);
        LinearSpec head = plain(format, {20480}, 7168, tokens);
        head.outputs = head.norm = true;
        linear(site, head);
        LinearSpec router = plain(format, {384}, 7168, tokens);
        router.exact = router.norm = true;
        linear(site, router);
      }
    });
}

TEST(Matrix, WeightsInF32) {
  expectCompiles([](KernelSite site) {
    for (int64_t tokens : {1, 9}) {
      LinearSpec spec = plain(Format::F32, {256}, 7168, tokens);
      linearF32(site, spec);
      spec.norm = true;
      linearF32(site, spec);
      LinearSpec head = plain(Format::F32, {3, 2}, 7, tokens);
      head.outputs = true;
      linearF32(site, head);
      LinearSpec residual = plain(Format::F32, {33}, 100, tokens);
      residual.residual = true;
      linearF32(site, residual);
    }
  });
}

TEST(Matrix, ExpertsOfOneToken) {
  for (Format format : formats)
    expectCompiles([&](KernelSite site) {
      // Kimi-K2 at 8 ranks and whole, one with odd sizes, and a tiny one.
      for (int64_t shared : {0, 1}) {
        ExpertSpec kimi{{format, 256, 7168}, {format, 7168, 256}, 384, 8, 1,
                        256 * shared};
        expertsGateUpOne(site, kimi);
        expertsDownOne(site, kimi, shared == 1);
        ExpertSpec whole{{format, 2048, 7168}, {format, 7168, 2048}, 384, 8, 1,
                         2048 * shared};
        expertsGateUpOne(site, whole);
        expertsDownOne(site, whole, false);
        whole.norm = true;
        whole.eps = 1e-6;
        expertsGateUpOne(site, whole);
        ExpertSpec odd{{format, 150, 1000}, {format, 1000, 150}, 10, 3, 1,
                       330 * shared};
        expertsGateUpOne(site, odd);
        expertsDownOne(site, odd, true);
        ExpertSpec tiny{{format, 17, 33}, {format, 33, 17}, 5, 2, 1,
                        3 * shared};
        expertsGateUpOne(site, tiny);
        expertsDownOne(site, tiny, false);
      }
    });
}

TEST(Matrix, GridsCoverTheTokens) {
  makeFor(*lookupGpu("sm_90a"), [](KernelSite site) {
    EXPECT_EQ(linear(site, plain(Format::BF16, {256}, 512, 8)).grid, "16");
    std::string tiles = linear(site, plain(Format::BF16, {256}, 512, 64)).grid;
    EXPECT_EQ(linear(site, plain(Format::BF16, {256}, 512, 4096)).grid,
              "ceildiv(tokens, 64) * " + tiles);
    LinearSpec head = plain(Format::F32, {5}, 512, 16);
    head.outputs = true;
    EXPECT_EQ(linearF32(site, head).grid, "ceildiv(outputs, 8) * 3");
  });
}

} // namespace
