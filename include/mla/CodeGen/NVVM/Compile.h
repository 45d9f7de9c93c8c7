//===- Compile.h - GPU kernels to PTX and machine code ----------*- C++ -*-===//
//
// Part of mla. From nvvm and llvm ops through LLVM's NVPTX backend to PTX, and
// through ptxas, where it is found, to a cubin. Whatever goes wrong inside either
// is an error that names kernel and target; limits of the target are checked
// here, not at launch.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_NVVM_COMPILE_H
#define MLA_CODEGEN_NVVM_COMPILE_H

#include "mla/Target/Gpu.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"
#include <string>
#include <vector>

namespace mla {

/// What a kernel takes, as ptxas reports it.
struct KernelResources {
  std::string kernel;
  int64_t threads = 0;
  int64_t sharedBytes = 0;
  int64_t registers = 0;
  int64_t stackBytes = 0;
  int64_t spillBytes = 0; ///< stores and loads

  /// Blocks that fit an SM of `gpu` at once.
  int64_t blocksPerSM(const Gpu &gpu) const;
};

struct GpuCode {
  std::string ptx;
  std::string cubin; ///< empty if no ptxas was found
  std::vector<KernelResources> resources; ///< registers only with a cubin
};

/// The ptxas that would be used: $MLA_PTXAS, then PATH, then the CUDA toolkit of
/// $CUDA_HOME, $CUDA_PATH or /usr/local/cuda; "" if there is none.
std::string findPtxas();

/// Compiles all kernels of `kernels`, which is consumed.
llvm::Expected<GpuCode> compileGpuKernels(mlir::ModuleOp kernels,
                                          const Gpu &gpu);

/// As a table, in markdown: registers, shared memory, occupancy.
std::string resourceTable(llvm::ArrayRef<KernelResources> resources,
                          const Gpu &gpu);

} // namespace mla

#endif // MLA_CODEGEN_NVVM_COMPILE_H
