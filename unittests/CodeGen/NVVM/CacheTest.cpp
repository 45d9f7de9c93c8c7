//===- CacheTest.cpp - rotary embedding and cache writes ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/SideBySide.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

TEST(Cache, Compile) {
  expectCompiles([](KernelSite site) {
    // Kimi, the tiny models, odd widths, more than one piece a thread.
    for (auto [latent, rope] : {std::pair{512, 64}, {64, 8}, {21, 6}, {10, 4},
                                {3000, 2}, {601, 130}})
      for (Format cache :
           {Format::F32, Format::BF16, Format::F16, Format::FP8E4M3})
        for (Format norm : {Format::F32, Format::BF16, Format::F16})
          latentCacheWrite(site, latent, rope, norm, cache, 1e-6,
                           latent != 64);
  });
}

/// A rank writes its tokens' rows alone: one scalar more, alone and beside another
/// kernel.
TEST(Cache, SpreadTokensCompile) {
  expectCompiles([](KernelSite site) {
    for (int64_t ranks : {2, 3, 8})
      for (Format cache : {Format::BF16, Format::F16, Format::FP8E4M3}) {
        auto scalars = [&](const Kernel &kernel) {
          return site.kernels
              .lookupSymbol<mlir::LLVM::LLVMFuncOp>(kernel.name)
              ->getAttrOfType<mlir::IntegerAttr>("mla.scalars")
              .getInt();
        };
        Kernel all = latentCacheWrite(site, 512, 64, Format::BF16, cache, 1e-6, true);
        Kernel some =
            latentCacheWrite(site, 512, 64, Format::BF16, cache, 1e-6, true, ranks);
        EXPECT_NE(some.name, all.name);
        EXPECT_EQ(scalars(some), scalars(all) + 1);
        latentCacheWrite(site, 21, 6, Format::F32, cache, 1e-6, false, ranks);
        Kernel query = absorbQuery(site, {8, 128, 64, 128, 512}, true, 1);
        std::optional<Kernel> both = sideBySide(site, query, some);
        ASSERT_TRUE(both);
        EXPECT_EQ(scalars(*both), scalars(query) + scalars(some));
      }
  });
}

TEST(Cache, RotationsCompile) {
  expectCompiles([](KernelSite site) {
    std::vector<float> frequencies;
    for (int i = 0; i < 37; ++i)
      frequencies.push_back(1.0f / float(1 + i * i));
    rotaryEmbedding(site, frequencies, 1.0);
    rotaryEmbedding(site, {frequencies.data(), 1}, 1.25);
    for (bool interleaved : {false, true}) {
      rope(site, 24, 12, 8, 4, interleaved);
      rope(site, 128 * 192, 192, 128, 64, interleaved);
      rope(site, 6, 6, 0, 6, interleaved);
      rope(site, 27, 9, 2, 4, interleaved);
    }
  });
}

TEST(Cache, FrequenciesArePartOfTheName) {
  GpuCode code = compileFor(*lookupGpu("sm_90a"), [](KernelSite site) {
    std::string a = rotaryEmbedding(site, {1.0f, 0.5f}, 1.0).name;
    EXPECT_EQ(rotaryEmbedding(site, {1.0f, 0.5f}, 1.0).name, a);
    EXPECT_NE(rotaryEmbedding(site, {1.0f, 0.25f}, 1.0).name, a);
    EXPECT_NE(rotaryEmbedding(site, {1.0f, 0.5f}, 2.0).name, a);
  });
  EXPECT_EQ(code.resources.size(), 3u);
}

} // namespace
