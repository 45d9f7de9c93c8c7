//===- LargeTest.cpp - kernels of many tokens on every GPU target ---------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/AttentionPrefill.h"
#include "lib/CodeGen/NVVM/LargeKernels.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

constexpr Format packedFormats[] = {Format::BF16, Format::FP8Block,
                                    Format::NVFP4, Format::Int4G32};

LinearSpec specOf(llvm::ArrayRef<MatrixShape> segments, int64_t tokens) {
  LinearSpec spec;
  spec.segments.assign(segments.begin(), segments.end());
  spec.maxTokens = tokens;
  return spec;
}

/// As expectCompiles(). These kernels use all registers there are: values that only
/// the prologue and the epilogue need may cross the loop in memory, 8 at most.
void expectFits(const Names &gpus,
                const std::function<void(KernelSite)> &make) {
  for (const char *name : gpus) {
    GpuCode code = compileFor(*lookupGpu(name), make);
    EXPECT_FALSE(code.resources.empty());
    for (const KernelResources &r : code.resources) {
      EXPECT_LE(r.sharedBytes, lookupGpu("sm_120a")->sharedBytesPerBlock)
          << r.kernel;
      EXPECT_GE(r.blocksPerSM(*lookupGpu(name)), 1) << r.kernel;
      EXPECT_LE(r.spillBytes, 32) << r.kernel << " on " << name;
    }
  }
}

TEST(Large, ProductsCompile) {
  for (auto [i, f] : llvm::enumerate(packedFormats))
    expectFits(gpusOf(i), [&, f = f](KernelSite site) {
      linearLarge(site, specOf({{f, 1536, 7168}, {f, 576, 7168}}, 4096));
      LinearSpec residual = specOf({{f, 7168, 8192}}, 4096);
      residual.residual = true;
      linearLarge(site, residual);
      LinearSpec gated = specOf({{f, 2048, 7168}, {f, 2048, 7168}}, 4096);
      gated.gated = true;
      linearLarge(site, gated);
      // Odd sizes, few tokens; a router.
      LinearSpec small = specOf({{f, 41, 41}, {f, 300, 41}}, 65);
      small.exact = true;
      linearLarge(site, small);
    });
}

TEST(Large, PackRowsCompiles) {
  for (Format f : packedFormats)
    expectCompiles([&](KernelSite site) {
      LinearSpec spec = specOf({{f, 64, 7168}}, 100);
      packRows(site, spec);
      spec.norm = true;
      packRows(site, spec);
      spec.segments[0].columns = 41;
      spec.exact = spec.outputs = true;
      packRows(site, spec);
    });
}

TEST(Large, Fp4CompilesWhereThereIsFp4) {
  GpuCode code = compileFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    LinearSpec spec = specOf(
        {{Format::NVFP4, 1536, 7168}, {Format::NVFP4, 576, 7168}}, 4096);
    spec.norm = true;
    packRowsFp4(site, spec);
    linearLargeFp4(site, spec);
    LinearSpec gated = specOf(
        {{Format::NVFP4, 2048, 7168}, {Format::NVFP4, 2048, 7168}}, 4096);
    gated.gated = true;
    linearLargeFp4(site, gated);
    LinearSpec residual = specOf({{Format::NVFP4, 7168, 8192}}, 4096);
    residual.residual = true;
    packRowsFp4(site, residual);
    linearLargeFp4(site, residual);
  });
  EXPECT_EQ(code.resources.size(), 5u);
  for (const KernelResources &r : code.resources) {
    EXPECT_LE(r.sharedBytes, 101376) << r.kernel;
    EXPECT_EQ(r.spillBytes, 0) << r.kernel;
  }
  EXPECT_NE(code.ptx.find("kind::mxf4nvf4"), std::string::npos);
}

AttentionSpec attentionOf(Format cache, int64_t heads, int64_t latent,
                          int64_t rope) {
  return {heads, latent, rope, cache, 0.0721688, 4096, 64, 131072};
}

TEST(Large, AttentionCompiles) {
  constexpr Format caches[] = {Format::FP8E4M3, Format::BF16, Format::F16};
  for (auto [i, f] : llvm::enumerate(caches))
    expectFits(gpusOf(i), [&, f = f](KernelSite site) {
      // Heads are a divisor, no more: one, a power of two, another.
      for (int64_t heads : {1, 20, 128})
        latentAttentionPrefill(site, attentionOf(f, heads, 512, 64));
      latentAttentionPrefill(site, attentionOf(f, 4, 64, 64));
      latentAttentionPrefill(site, attentionOf(f, 4, 192, 0));
    });
}

/// Tokens spread over ranks, of which a rank may have none.
TEST(Large, AttentionOverSpreadTokensCompiles) {
  constexpr Format caches[] = {Format::FP8E4M3, Format::BF16, Format::F16};
  for (auto [i, f] : llvm::enumerate(caches))
    expectFits(gpusOf(i), [&, f = f](KernelSite site) {
      for (auto [heads, ranks] : {std::pair<int64_t, int64_t>(128, 8), {6, 3}}) {
        AttentionSpec spec = attentionOf(f, heads, 512, 64);
        std::string whole = latentAttentionPrefill(site, spec).first.name;
        spec.ranks = ranks;
        spec.lse = true;
        EXPECT_NE(latentAttentionPrefill(site, spec).first.name, whole);
      }
      AttentionSpec spec = attentionOf(f, 4, 192, 0);
      spec.ranks = 2;
      spec.lse = true;
      latentAttentionPrefill(site, spec);
    });
}

TEST(Large, AttentionKnowsItsSizes) {
  EXPECT_TRUE(canPrefill(attentionOf(Format::BF16, 64, 512, 64)));
  EXPECT_TRUE(canPrefill(attentionOf(Format::BF16, 3, 64, 0)));
  EXPECT_FALSE(canPrefill(attentionOf(Format::BF16, 64, 512, 32)));
  EXPECT_FALSE(canPrefill(attentionOf(Format::BF16, 64, 576, 64)));
  EXPECT_FALSE(canPrefill(attentionOf(Format::BF16, 64, 32, 32)));
}

} // namespace
