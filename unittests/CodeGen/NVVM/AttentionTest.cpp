//===- AttentionTest.cpp - attention kernels on every GPU target ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/LatentDecode.h"
#include "mla/Plan/Expr.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

AttentionSpec spec(int64_t heads, int64_t latent, int64_t rope, Format cache,
                   int64_t maxTokens = 1) {
  return {heads,     latent,    rope,  cache, 0.1352337788608801,
          maxTokens, maxTokens, 131072};
}

/// The form that small steps and one token alone get.
AttentionKernels latentAttention(KernelSite site, const AttentionSpec &s) {
  if (!fitsDecodeTiles(s))
    return latentAttentionSimple(site, s);
  DecodeForm form = DecodeForm::Narrow;
  if (s.heads > 16 && s.maxTokens > 1)
    form = s.heads <= 24 && s.cache != Format::FP8E4M3 ? DecodeForm::Wide
                                                       : DecodeForm::Teams;
  return latentAttentionSplit(site, s, form);
}

/// The kernels for `s` on `name`, compiled, and what they take.
struct Compiled {
  AttentionKernels kernels;
  GpuCode code;
};
Compiled compile(const char *name, const AttentionSpec &s) {
  Compiled c;
  c.code = compileFor(*lookupGpu(name), [&](KernelSite site) {
    c.kernels = latentAttention(site, s);
  });
  return c;
}

/// The same, not compiled.
AttentionKernels make(const char *name, const AttentionSpec &s) {
  AttentionKernels kernels;
  makeFor(*lookupGpu(name),
          [&](KernelSite site) { kernels = latentAttention(site, s); });
  return kernels;
}

int64_t at(const std::string &expression, int64_t tokens) {
  auto parsed = plan::Expr::parse(expression);
  EXPECT_TRUE(parsed.ok()) << expression;
  plan::SymbolValues symbols;
  for (int64_t &v : symbols.values)
    v = 1;
  symbols[plan::Symbol::Tokens] = tokens;
  return *parsed->evaluate(symbols);
}

TEST(Attention, OddDimensionsCompile) {
  expectCompiles([](KernelSite site) {
    for (Format cache : {Format::BF16, Format::F16, Format::FP8E4M3}) {
      latentAttention(site, spec(3, 33, 6, cache));
      latentAttention(site, spec(8, 128, 16, cache));
      latentAttention(site, spec(1, 1, 1, cache));
    }
  });
}

TEST(Attention, RealDimensionsCompileWithoutSpills) {
  for (Format cache : {Format::BF16, Format::F16, Format::FP8E4M3})
    expectCompiles([&](KernelSite site) {
      for (int64_t heads : {8, 16, 20})
        latentAttention(site,
                        spec(heads, 512, 64, cache, heads == 16 ? 1 : 32));
    });
}

TEST(Attention, OtherWholeTilesAndMoreTokensThanSplitsCompile) {
  expectCompiles([](KernelSite site) {
    for (Format cache : {Format::BF16, Format::FP8E4M3}) {
      latentAttention(site, spec(5, 256, 64, cache, 4));
      latentAttention(site, spec(33, 128, 64, cache, 512));
    }
  });
}

/// The same over tokens that are spread over `ranks`, with the second result.
AttentionSpec spread(AttentionSpec s, int64_t ranks) {
  s.ranks = ranks;
  s.lse = true;
  return s;
}

/// Each form, for one token, for several, and for more tokens than splits.
TEST(Attention, SpreadTokensCompileWithoutSpills) {
  constexpr Format caches[] = {Format::BF16, Format::FP8E4M3, Format::F16};
  for (auto [i, f] : llvm::enumerate(caches))
    expectCompilesFor(gpusOf(i), [&, f = f](KernelSite site) {
      latentAttention(site, spread(spec(64, 512, 64, f), 8));
      latentAttention(site, spread(spec(64, 512, 64, f, 8), 8));
      latentAttention(site, spread(spec(24, 512, 64, f, 8), 3));
      latentAttention(site, spread(spec(8, 512, 64, f, 32), 2));
      latentAttention(site, spread(spec(6, 128, 64, f, 512), 3));
      latentAttention(site, spread(spec(9, 33, 6, f, 8), 3));
    });
  for (Format f : {Format::BF16, Format::FP8E4M3}) {
    GpuCode code = compileFor(*lookupGpu("sm_90a"), [&](KernelSite site) {
      latentAttentionSplit(site, spread(spec(64, 512, 64, f, 8), 8),
                           DecodeForm::Deep);
    });
    for (const KernelResources &r : code.resources)
      EXPECT_EQ(r.spillBytes, 0) << r.kernel;
  }
}

/// What a launch has to give: an operand more with the second result, a scalar more
/// with ranks, for both kernels; and they are others than those of all tokens.
TEST(Attention, SpreadTokensTakeAnOperandAndAScalarMore) {
  struct Signature {
    std::string name;
    size_t operands;
    int64_t scalars;
  };
  auto signatures = [](const AttentionSpec &s) {
    AttentionKernels kernels;
    std::vector<Signature> out;
    makeFor(
        *lookupGpu("sm_120a"),
        [&](KernelSite site) { kernels = latentAttention(site, s); },
        [&](mlir::ModuleOp module) {
          std::vector<std::string> names{kernels.first.name};
          if (kernels.combine)
            names.push_back(kernels.combine->name);
          for (const std::string &name : names) {
            auto f = module.lookupSymbol<mlir::LLVM::LLVMFuncOp>(name);
            ASSERT_TRUE(f);
            out.push_back(
                {name, f->getAttrOfType<mlir::ArrayAttr>("mla.access").size(),
                 f->getAttrOfType<mlir::IntegerAttr>("mla.scalars").getInt()});
          }
        });
    return out;
  };
  for (Format cache : {Format::BF16, Format::FP8E4M3})
    for (AttentionSpec s : {spec(8, 512, 64, cache), spec(3, 33, 6, cache)}) {
      std::vector<Signature> whole = signatures(s), some = signatures(spread(s, 4));
      AttentionSpec other = s;
      other.lse = true;
      std::vector<Signature> lse = signatures(other);
      ASSERT_EQ(whole.size(), some.size());
      ASSERT_EQ(whole.size(), lse.size());
      for (size_t i = 0; i < whole.size(); ++i) {
        EXPECT_EQ(some[i].operands, whole[i].operands + 1);
        EXPECT_EQ(some[i].scalars, whole[i].scalars + 1);
        EXPECT_EQ(lse[i].operands, whole[i].operands + 1);
        EXPECT_EQ(lse[i].scalars, whole[i].scalars);
        EXPECT_NE(some[i].name, whole[i].name);
        EXPECT_NE(some[i].name, lse[i].name);
        EXPECT_NE(whole[i].name, lse[i].name);
        EXPECT_NE(some[i].name, signatures(spread(s, 8))[i].name);
      }
    }
}

/// What ranks found is merged first.
TEST(Attention, SpreadTokensAreNotCombinedInExpand) {
  const Gpu &gpu = *lookupGpu("sm_120a");
  HeadShape shape{8, 128, 64, 128, 512};
  AttentionSpec s = spec(8, 512, 64, Format::BF16);
  EXPECT_TRUE(canCombineInExpand(s, DecodeForm::Narrow, shape, gpu));
  EXPECT_FALSE(canCombineInExpand(spread(s, 2), DecodeForm::Narrow, shape, gpu));
}

/// One stage more than SM120 has shared memory for.
TEST(Attention, TheDeepFormIsForMoreSharedMemory) {
  for (Format cache : {Format::BF16, Format::FP8E4M3}) {
    GpuCode code = compileFor(*lookupGpu("sm_90a"), [&](KernelSite site) {
      latentAttentionSplit(site, spec(64, 512, 64, cache, 8), DecodeForm::Deep);
    });
    int64_t most = 0;
    for (const KernelResources &r : code.resources) {
      most = std::max(most, r.sharedBytes);
      EXPECT_EQ(r.spillBytes, 0) << r.kernel;
    }
    EXPECT_EQ(most, 108544);
  }
}

/// Two blocks fit an SM of sm_90a, one fits one of sm_120a; every split has a
/// block and a row for its result.
TEST(Attention, SplitsFillTheMachine) {
  for (auto [gpu, blocks] : {std::pair("sm_90a", 2), {"sm_120a", 1}}) {
    int64_t splits = lookupGpu(gpu)->multiprocessors * blocks;
    for (int64_t maxTokens : {1, 32}) {
      Compiled c = compile(gpu, spec(8, 512, 64, Format::FP8E4M3, maxTokens));
      ASSERT_TRUE(c.kernels.combine);
      EXPECT_EQ(at(c.kernels.partialRows, 1), splits);
      EXPECT_EQ(at(c.kernels.partialRows, maxTokens), splits);
      EXPECT_EQ(at(c.kernels.lseRows, 1), splits);
      EXPECT_EQ(c.kernels.partialWidth, 8 * 512);
      EXPECT_EQ(c.kernels.lseWidth, 8);
      EXPECT_EQ(at(c.kernels.first.grid, maxTokens),
                splits + (maxTokens == 1 ? 0 : maxTokens));
      EXPECT_EQ(at(c.kernels.combine->grid, 2 * maxTokens),
                2 * at(c.kernels.combine->grid, maxTokens));
      for (const KernelResources &r : c.code.resources) {
        if (r.kernel == c.kernels.first.name) {
          EXPECT_EQ(r.blocksPerSM(*lookupGpu(gpu)), blocks);
        }
      }
    }
  }
}

/// Up to 32 heads share what a block reads, 16 where there is one token.
TEST(Attention, HeadsAreDividedAmongBlocks) {
  for (auto [heads, groups] : {std::pair<int64_t, int64_t>(16, 1),
                               {20, 1},
                               {32, 1},
                               {33, 2},
                               {128, 4}}) {
    AttentionKernels k = make("sm_120a", spec(heads, 512, 64, Format::BF16, 4));
    int64_t splits = 188 / groups;
    EXPECT_EQ(at(k.first.grid, 3), (splits + 3) * groups) << heads;
    EXPECT_EQ(at(k.partialRows, 3), splits) << heads;
  }
  AttentionKernels k = make("sm_120a", spec(128, 512, 64, Format::FP8E4M3));
  EXPECT_EQ(at(k.first.grid, 1), 188 / 8 * 8);
  EXPECT_EQ(at(k.partialRows, 1), 188 / 8);
}

TEST(Attention, OddDimensionsHaveNoSecondKernel) {
  Compiled c = compile("sm_120a", spec(6, 75, 6, Format::F16, 16));
  EXPECT_FALSE(c.kernels.combine);
  EXPECT_EQ(at(c.kernels.first.grid, 5), 30);
  EXPECT_EQ(at(c.kernels.partialRows, 5), 1);
}

TEST(Attention, ProgramsShareKernels) {
  GpuCode code = compileFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    auto a = latentAttention(site, spec(8, 512, 64, Format::BF16, 48));
    auto b = latentAttention(site, spec(8, 512, 64, Format::BF16, 64));
    EXPECT_EQ(a.first.name, b.first.name);
    EXPECT_EQ(a.combine->name, b.combine->name);
    EXPECT_NE(latentAttention(site, spec(8, 512, 64, Format::BF16)).first.name,
              a.first.name);
  });
  EXPECT_EQ(code.resources.size(), 4u);
}

} // namespace
