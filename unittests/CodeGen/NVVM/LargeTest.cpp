//===- LargeTest.cpp - kernels of many tokens on every GPU target ---------===//
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

constexpr Format packedFormats[] = {Format::BF16, Format::FP8Block,
                                    Format::NVFP4, Format::Int4G32};

LinearSpec specOf(llvm::ArrayRef<MatrixShape> segments, int64_t tokens) {
  LinearSpec spec;
  spec.segments.assign(segments.begin(), segments.end());
  spec.maxTokens = tokens;
  return spec;
}

TEST(Large, ProductsCompile) {
  for (Format f : packedFormats)
    expectCompiles([&](KernelSite site) {
      linearLarge(site, specOf({{f, 1536, 7168}, {f, 576, 7168}}, 4096));
      LinearSpec residual = specOf({{f, 7168, 8192}}, 4096);
      residual.residual = true;
      linearLarge(site, residual);
      LinearSpec gated = specOf({{f, 2048, 7168}, {f, 2048, 7168}}, 4096);
      gated.gated = true;
      linearLarge(site, gated);
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

} // namespace
