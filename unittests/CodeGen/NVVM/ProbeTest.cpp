//===- ProbeTest.cpp - the kernels that mla-run probe carries -------------===//
//
// Part of mla. With $MLA_WRITE_PROBE_PTX set the file is made anew:
//
//   MLA_WRITE_PROBE_PTX=1 build/dev/bin/CodeGenNVVMTests --gtest_filter='Probe.*'
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/ProbeKernels.h"
#include <iterator>

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

TEST(Probe, FilesKernelsAreWhatIsMadeNow) {
  GpuCode code = compileFor(anyGpu(), probeKernels);
  ASSERT_FALSE(code.ptx.empty());
  EXPECT_NE(code.ptx.find(".target sm_90\n"), std::string::npos);
  if (std::getenv("MLA_WRITE_PROBE_PTX"))
    std::ofstream(MLA_PROBE_PTX) << code.ptx;
  std::ifstream file(MLA_PROBE_PTX);
  std::string kept{std::istreambuf_iterator<char>(file), {}};
  // Not EXPECT_EQ, which prints both.
  EXPECT_TRUE(kept == code.ptx)
      << MLA_PROBE_PTX << " is stale: see the head of this file";
}

TEST(Probe, AssemblesForAllTargets) {
  expectCompiles(probeKernels);
  if (findPtxas().empty())
    GTEST_SKIP() << "no ptxas";
  for (const char *name : {"sm_90", "sm_100", "sm_120"}) {
    Gpu gpu = anyGpu();
    gpu.name = name;
    GpuCode code = compileFor(gpu, probeKernels);
    EXPECT_FALSE(code.cubin.empty()) << name;
    EXPECT_EQ(code.resources.size(), 6u);
    for (const KernelResources &r : code.resources)
      EXPECT_EQ(r.spillBytes, 0) << r.kernel << " on " << name;
  }
}

} // namespace
