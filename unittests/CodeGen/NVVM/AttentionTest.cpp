//===- AttentionTest.cpp - attention kernels on every GPU target ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

constexpr Format cacheFormats[] = {Format::BF16, Format::F16, Format::FP8E4M3};

AttentionSpec spec(int64_t heads, int64_t latent, int64_t rope, Format cache,
                   int64_t maxTokens = 1) {
  return {heads,     latent,    rope,  cache, 0.1352337788608801,
          maxTokens, maxTokens, 131072};
}

TEST(Attention, OddDimensionsCompile) {
  expectCompiles([](KernelSite site) {
    for (Format cache : cacheFormats) {
      latentAttention(site, spec(3, 33, 6, cache));
      latentAttention(site, spec(8, 128, 16, cache));
      latentAttention(site, spec(1, 1, 1, cache));
    }
  });
}

TEST(Attention, RealDimensionsCompileWithoutSpills) {
  for (Format cache : cacheFormats)
    for (int64_t heads : {8, 16, 20, 64, 128})
      for (int64_t maxTokens : {1, 32})
        expectCompiles([&](KernelSite site) {
          latentAttention(site, spec(heads, 512, 64, cache, maxTokens));
        });
}

} // namespace
