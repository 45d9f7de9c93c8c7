//===- CompileTest.cpp - from kernels to PTX and cubin --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/KernelBuilder.h"

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

/// The error of compiling what `make` makes.
std::string errorOf(const Gpu &gpu,
                    const std::function<void(KernelSite)> &make) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<MLADialect, mlir::LLVM::LLVMDialect,
                      mlir::NVVM::NVVMDialect, mlir::arith::ArithDialect,
                      mlir::scf::SCFDialect>();
  std::string diagnostics;
  context.getDiagEngine().registerHandler([&](mlir::Diagnostic &diagnostic) {
    diagnostics += diagnostic.str() + "\n";
  });
  auto loc = mlir::UnknownLoc::get(&context);
  mlir::OwningOpRef<mlir::ModuleOp> kernels =
      mlir::ModuleOp::create(loc, "kernels");
  make({*kernels, loc, gpu});
  auto code = compileGpuKernels(*kernels, gpu);
  if (code)
    return "no error";
  return diagnostics + llvm::toString(code.takeError());
}

TEST(Compile, SharedMemoryBeyondTheTargetIsAnError) {
  auto make = [](KernelSite site) {
    KernelBuilder k(site.kernels, site.loc, "too_large", {"write"}, 0, {32});
    Ptr p = k.shared(102400);
    k.gridWait();
    k.store(k.buffer(0), k.loadI32(p));
    k.finish();
  };
  std::string error = errorOf(*lookupGpu("sm_120a"), make);
  EXPECT_NE(error.find("kernel 'too_large' needs 102400 bytes of shared "
                       "memory, sm_120a has 101376"),
            std::string::npos)
      << error;
  EXPECT_EQ(errorOf(*lookupGpu("sm_90a"), make), "no error");
}

TEST(Compile, WhatTheTargetLacksIsAnErrorAndNoAbort) {
  auto make = [](KernelSite site) {
    KernelBuilder k(site.kernels, site.loc, "fp4", {"readwrite"}, 0, {32});
    k.gridWait();
    V v = k.intrinsic("llvm.nvvm.e2m1x2.to.f16x2.rn",
                      mlir::VectorType::get({2}, k.b.getF16Type()),
                      {V{mlir::LLVM::TruncOp::create(
                             k.b, k.i16Type(), k.loadI32(k.buffer(0)).value),
                         &k}});
    k.store(k.buffer(0),
            V{mlir::LLVM::BitcastOp::create(k.b, k.i32Type(), v.value), &k});
    k.finish();
  };
  std::string error = errorOf(*lookupGpu("sm_90a"), make);
  EXPECT_NE(error.find("sm_90a"), std::string::npos) << error;
  EXPECT_NE(error.find("kernel 'fp4'"), std::string::npos) << error;
  EXPECT_EQ(errorOf(*lookupGpu("sm_120a"), make), "no error");
}

TEST(Compile, AFunctionThatDoesNotExistIsAnError) {
  auto make = [](KernelSite site) {
    mlir::OpBuilder b(site.kernels.getBodyRegion());
    auto type = mlir::LLVM::LLVMFunctionType::get(b.getF32Type(),
                                                  {b.getF32Type()});
    auto sine =
        mlir::LLVM::LLVMFuncOp::create(b, site.loc, "__nv_sinf", type);
    KernelBuilder k(site.kernels, site.loc, "calls", {"readwrite"}, 0, {32});
    k.gridWait();
    V x = k.loadF32(k.buffer(0));
    k.store(k.buffer(0),
            V{mlir::LLVM::CallOp::create(k.b, sine, mlir::ValueRange{x.value})
                  .getResult(),
              &k});
    k.finish();
  };
  std::string error = errorOf(*lookupGpu("sm_120a"), make);
  EXPECT_NE(error.find("__nv_sinf"), std::string::npos) << error;
}

TEST(Compile, OccupancyCountsThreadsRegistersAndSharedMemory) {
  const Gpu &gpu = *lookupGpu("sm_120a");
  KernelResources r;
  r.threads = 128;
  EXPECT_EQ(r.blocksPerSM(gpu), 12);
  r.registers = 255; // 256 * 32 * 4 = 32768 a block
  EXPECT_EQ(r.blocksPerSM(gpu), 2);
  r.sharedBytes = 101376;
  EXPECT_EQ(r.blocksPerSM(gpu), 1);
}

} // namespace
