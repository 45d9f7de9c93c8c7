//===- SampleTest.cpp - sampling on every GPU target ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

TEST(Sample, Compile) {
  expectCompiles([](KernelSite site) {
    // One logit, one slice, Kimi's, rows that begin anywhere, fewer candidates.
    for (int64_t vocab : {1, 100, 163840, 163841, 1000003}) {
      argmax(site, vocab);
      sample(site, vocab);
    }
    readCeiling(site);
  });
}

TEST(Sample, PartialRowsKeepTheAlignmentOfTheirHeads) {
  makeFor(*lookupGpu("sm_90a"), [](KernelSite site) {
    for (int64_t vocab : {1, 163840, 163841, 1000003, 4000000}) {
      SampleKernels kernels = sample(site, vocab);
      EXPECT_EQ(kernels.partialWidth % 4, 0) << vocab;
      EXPECT_GT(kernels.partialWidth, 0) << vocab;
    }
  });
}

} // namespace
