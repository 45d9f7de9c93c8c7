//===- CacheTest.cpp - rotary embedding and cache writes ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

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

TEST(Cache, RotationsCompile) {
  expectCompiles([](KernelSite site) {
    std::vector<float> frequencies(37, 0.5f);
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
