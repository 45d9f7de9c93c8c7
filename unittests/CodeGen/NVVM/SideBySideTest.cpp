//===- SideBySideTest.cpp - two kernels in one launch ---------------------===//
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

TEST(SideBySide, BlocksThreadsAndSharedMemoryOfBoth) {
  expectCompiles([](KernelSite site) {
    Kernel sum = add(site, 5000);                           // 5 chunks
    Kernel norm = rmsNorm(site, 40, Format::BF16, 1e-6);    // 1 row
    std::optional<Kernel> both = sideBySide(site, sum, norm);
    ASSERT_TRUE(both);
    EXPECT_EQ(both->grid, "6");
    EXPECT_EQ(sideBySide(site, sum, norm)->name, both->name);
    auto find = [&](const std::string &name) {
      return site.kernels.lookupSymbol<mlir::LLVM::LLVMFuncOp>(name);
    };
    auto number = [&](const std::string &name, const char *attribute) {
      return find(name)->getAttrOfType<mlir::IntegerAttr>(attribute).getInt();
    };
    for (const char *attribute : {"mla.threads", "mla.shared"})
      EXPECT_EQ(number(both->name, attribute),
                std::max(number(sum.name, attribute),
                         number(norm.name, attribute)));
    EXPECT_EQ(find(both->name)
                  ->getAttrOfType<mlir::ArrayAttr>("mla.access")
                  .size(),
              6u);
  });
}

TEST(SideBySide, NothingOfAKernelThatIsNotThere) {
  compileFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    Kernel sum = add(site, 64);
    EXPECT_FALSE(sideBySide(site, sum, {"none", "1"}));
    EXPECT_FALSE(sideBySide(site, {sum.name, "not an expression"}, sum));
  });
}

} // namespace
