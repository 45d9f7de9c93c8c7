//===- OptMain.cpp - mla-opt ----------------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CodeGen/Host/Passes.h"
#include "mla/CodeGen/NVVM/Lowerings.h"
#include "mla/CodeGen/NVVM/Passes.h"
#include "mla/Dialect/MLA.h"
#include "mla/Driver/Driver.h"
#include "mla/Pipelines/Pipelines.h"
#include "mla/Transforms/Passes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;

int mla::optMain(int argc, char **argv) {
  // Only what our stages make. MLIR knows some forty dialects; registering them
  // all would make --help and error messages useless.
  DialectRegistry registry;
  registry.insert<MLADialect, arith::ArithDialect, func::FuncDialect,
                  LLVM::LLVMDialect, math::MathDialect, NVVM::NVVMDialect, memref::MemRefDialect,
                  scf::SCFDialect, vector::VectorDialect>();

  registerMLATransformsPasses();
  registerMLAHostPasses();
  registerMLANVVMPasses();
  registerPipelines();
  registerGpuLowerings(nvvm::lowerings());
  registerCSEPass();
  registerCanonicalizerPass();
  return asMainReturnCode(
      MlirOptMain(argc, argv, "mla-opt: runs passes on mla IR\n", registry));
}
