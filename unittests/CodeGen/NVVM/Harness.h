//===- Harness.h - compiling kernels in tests -------------------*- C++ -*-===//
//
// Part of mla. Kernels are compiled for every GPU target and, where ptxas is at
// hand, assembled; what they compute is checked where there is a GPU (the
// conformance plans of the GPU bundle).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_CODEGEN_NVVM_HARNESS_H
#define MLA_UNITTESTS_CODEGEN_NVVM_HARNESS_H

#include "lib/CodeGen/NVVM/Kernels.h"
#include "mla/CodeGen/NVVM/Compile.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/OwningOpRef.h"
#include "mlir/IR/Verifier.h"
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <optional>
#include <vector>

namespace mla::nvvm::test {

/// Calls `make` with a module for kernels of `gpu` and `then` with the result; a
/// kernel that MLIR refuses is the test's failure. For what is known before
/// anything is compiled: grids, names, widths.
inline void
makeFor(const Gpu &gpu, const std::function<void(KernelSite)> &make,
        const std::function<void(mlir::ModuleOp)> &then = {}) {
  mlir::MLIRContext context(mlir::MLIRContext::Threading::DISABLED);
  context.loadDialect<MLADialect, mlir::LLVM::LLVMDialect,
                      mlir::NVVM::NVVMDialect, mlir::arith::ArithDialect,
                      mlir::scf::SCFDialect>();
  auto loc = mlir::UnknownLoc::get(&context);
  mlir::OwningOpRef<mlir::ModuleOp> kernels =
      mlir::ModuleOp::create(loc, "kernels");
  make({*kernels, loc, gpu});
  EXPECT_TRUE(mlir::succeeded(mlir::verify(*kernels)));
  if (then)
    then(*kernels);
}

/// Compiles what `make` makes for `gpu`; a failure is the test's.
/// With $MLA_KEEP_PTX set to a folder, PTX and cubin are left there, named after
/// the first kernel.
inline GpuCode compileFor(const Gpu &gpu,
                          const std::function<void(KernelSite)> &make) {
  std::optional<GpuCode> code;
  makeFor(gpu, make, [&](mlir::ModuleOp kernels) {
    auto compiled = compileGpuKernels(kernels, gpu);
    if (compiled)
      code = *std::move(compiled);
    else
      ADD_FAILURE() << gpu.name.str() << ": "
                    << llvm::toString(compiled.takeError());
  });
  if (!code)
    return {};
  if (const char *folder = std::getenv("MLA_KEEP_PTX");
      folder && !code->resources.empty()) {
    std::string base = std::string(folder) + "/" +
                       code->resources[0].kernel + "." + gpu.name.str();
    std::ofstream(base + ".ptx") << code->ptx;
    std::ofstream(base + ".cubin", std::ios::binary) << code->cubin;
    std::printf("%s", resourceTable(code->resources, gpu).c_str());
  }
  return *std::move(code);
}

/// Any GPU from compute capability 9.0 on: the driver compiles plain sm_90 for
/// it, which sm_90a is not. For kernels that the runtime carries.
inline Gpu anyGpu() {
  Gpu gpu = *lookupGpu("sm_90a");
  gpu.name = "sm_90";
  return gpu;
}

using Names = std::vector<const char *>;
inline const Names bothGpus = {"sm_120a", "sm_90a"};
/// The GPUs for which large kernels are compiled in number `i` of their formats:
/// every format for the GPU with less memory, the first for the other one as
/// well. More of these is most of the time that tests take.
inline Names gpusOf(size_t i) { return i ? Names{"sm_120a"} : bothGpus; }

/// As compileFor(), for `gpus`; expects kernels that fit SM120's shared memory
/// and, unless `spills`, keep everything in registers.
inline void expectCompilesFor(const Names &gpus,
                              const std::function<void(KernelSite)> &make,
                              bool spills = false) {
  for (const char *name : gpus) {
    const Gpu &gpu = *lookupGpu(name);
    GpuCode code = compileFor(gpu, make);
    EXPECT_FALSE(code.resources.empty());
    for (const KernelResources &r : code.resources) {
      EXPECT_LE(r.sharedBytes, lookupGpu("sm_120a")->sharedBytesPerBlock)
          << r.kernel;
      EXPECT_GE(r.blocksPerSM(gpu), 1) << r.kernel << " on " << name;
      if (!spills) {
        EXPECT_EQ(r.spillBytes, 0) << r.kernel << " on " << name;
        EXPECT_EQ(r.stackBytes, 0) << r.kernel << " on " << name;
      }
    }
  }
}
/// The same for sm_120a and sm_90a.
inline void expectCompiles(const std::function<void(KernelSite)> &make,
                           bool spills = false) {
  expectCompilesFor(bothGpus, make, spills);
}

} // namespace mla::nvvm::test

#endif // MLA_UNITTESTS_CODEGEN_NVVM_HARNESS_H
