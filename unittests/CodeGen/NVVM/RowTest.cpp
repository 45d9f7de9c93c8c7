//===- RowTest.cpp - row kernels on every GPU target ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

TEST(Rows, Compile) {
  expectCompiles([](KernelSite site) {
    for (int64_t width : {1, 40, 7168})
      for (Format format : {Format::F32, Format::BF16, Format::F16}) {
        embedding(site, {format, 512, width});
        rmsNorm(site, width, format, 1e-6);
      }
    add(site, 7168);
    swiglu(site, 2048);
    split(site, {1536, 512, 64});
  });
}

TEST(Rows, AKernelIsMadeOnce) {
  GpuCode code = compileFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    EXPECT_EQ(add(site, 64).name, add(site, 64).name);
  });
  EXPECT_EQ(code.resources.size(), 1u);
}

} // namespace
