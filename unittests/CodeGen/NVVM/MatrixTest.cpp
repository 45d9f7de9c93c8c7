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

/// The kernel of one token, or the one for some.
Kernel linear(KernelSite site, const LinearSpec &spec) {
  return canStream(spec, site.gpu) ? linearStream(site, spec)
                                   : linearTile(site, spec);
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
  for (auto [i, format] : llvm::enumerate(formats))
    expectCompilesFor(gpusOf(i), [&, format = format](KernelSite site) {
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
  for (auto [i, format] : llvm::enumerate(formats))
    expectCompilesFor(gpusOf(i), [&, format = format](KernelSite site) {
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

/// Routing of `topk` experts, in groups or not.
RoutingAttr routing(KernelSite site, int64_t topk, int64_t groups) {
  mlir::Builder b(site.kernels.getContext());
  return RoutingAttr::get(b.getContext(), topk, groups,
                          std::max<int64_t>(1, groups / 2),
                          ScoringKind::Sigmoid, TopkKind::NoAuxTc,
                          /*normalize=*/true, b.getF64FloatAttr(2.5));
}

TEST(Matrix, ExpertsThatChoose) {
  auto bothAt = [](KernelSite site, ExpertSpec spec, RoutingAttr routing) {
    ASSERT_TRUE(canChooseInExperts(spec, routing));
    spec.routing = routing;
    expertsGateUpOne(site, spec);
    expertsDownOne(site, spec, false);
  };
  for (Format format : formats) {
    // With groups of experts the registers that the router's kernel leaves are two or
    // four short in NVFP4.
    expectCompiles(
        [&](KernelSite site) {
          ExpertSpec v3{{format, 256, 7168}, {format, 7168, 256}, 256, 8, 1,
                        256, /*norm=*/true};
          v3.bias = Format::F32;
          bothAt(site, v3, routing(site, 8, 8));
        },
        /*spills=*/format == Format::NVFP4);
    expectCompiles([&](KernelSite site) {
      auto both = [&](const ExpertSpec &spec, RoutingAttr routing) {
        bothAt(site, spec, routing);
      };
      ExpertSpec kimi{{format, 256, 7168}, {format, 7168, 256}, 384, 8, 1, 256,
                      /*norm=*/true};
      kimi.bias = Format::F32;
      both(kimi, routing(site, 8, 1));
      // More choices than are made at once, and fewer experts than lanes.
      ExpertSpec odd{{format, 150, 1000}, {format, 1000, 150}, 50, 20, 1, 330};
      both(odd, routing(site, 20, 1));
      ExpertSpec tiny{{format, 17, 33}, {format, 33, 17}, 5, 2, 1};
      both(tiny, routing(site, 2, 1));
    });
  }
}

/// What chooses for so many experts, or for more tokens, is a kernel of its own.
TEST(Matrix, ExpertsThatCannotChoose) {
  compileFor(*lookupGpu("sm_90a"), [](KernelSite site) {
    RoutingAttr eight = routing(site, 8, 1);
    route(site, eight, 384, std::nullopt);
    ExpertSpec spec{{Format::BF16, 64, 64}, {Format::BF16, 64, 64}, 512, 8, 1};
    EXPECT_TRUE(canChooseInExperts(spec, eight));
    spec.maxTokens = 2;
    EXPECT_FALSE(canChooseInExperts(spec, eight));
    spec.maxTokens = 1;
    spec.experts = 513;
    EXPECT_FALSE(canChooseInExperts(spec, eight));
  });
}

/// Beside the router's block (16 warps of 56 registers) one of gate and up fits, and
/// no second one by itself: else those that begin early would crowd on some SMs.
TEST(Matrix, GateAndUpLeaveRoomForTheRouter) {
  for (Format format : {Format::FP8Block, Format::NVFP4}) {
    GpuCode code = compileFor(*lookupGpu("sm_90a"), [&](KernelSite site) {
      ExpertSpec kimi{{format, 256, 7168}, {format, 7168, 256}, 384, 8, 1, 256,
                      /*norm=*/true};
      kimi.routing = routing(site, 8, 1);
      expertsGateUpOne(site, kimi);
    });
    ASSERT_EQ(code.resources.size(), 1u);
    const KernelResources &r = code.resources[0];
    int64_t registers = r.threads * llvm::alignTo(r.registers, 8);
    EXPECT_LE(registers + 512 * 56, 65536) << r.kernel;
    EXPECT_GT(2 * registers, 65536) << r.kernel;
  }
}

/// One quad of rows a block, also of rows that no instruction divides.
TEST(Matrix, FoldedRowsCompile) {
  expectCompiles([](KernelSite site) {
    for (int64_t rows : {1, 5, 64, 384, 500})
      for (int64_t columns : {128, 7168, 1536}) {
        linear(site, plain(Format::BF16, {rows}, columns, 1));
        LinearSpec router = plain(Format::BF16, {rows}, columns, 1);
        router.exact = router.norm = true;
        linear(site, router);
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
