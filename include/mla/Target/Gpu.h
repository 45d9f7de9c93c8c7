//===- Gpu.h - what kernels need to know of a GPU ---------------*- C++ -*-===//
//
// Part of mla. A machine's device and its compute capability in one. All kernels
// are restricted to what SM120 has (mma.sync, ldmatrix, cp.async, bulk copies; no
// wgmma, no tcgen05); sm_90a is where they are executed and measured.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TARGET_GPU_H
#define MLA_TARGET_GPU_H

#include "mla/Machine/Machine.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <optional>

namespace mla {

struct Gpu {
  llvm::StringRef name;          ///< "sm_120a"
  int64_t multiprocessors;       ///< of the machine that is compiled for
  int64_t sharedBytesPerBlock;   ///< most dynamic shared memory of a block
  int64_t sharedBytesPerSM;      ///< 1,024 of which each block takes as well
  int64_t registersPerSM;        ///< of 32 bits
  int64_t threadsPerSM;
  bool hasFp4;                   ///< block-scaled fp4 mma, fp4 conversions
  bool canLower;                 ///< kernels are generated for it
};

/// The device of `machine`; none if that is the host.
std::optional<Gpu> gpuOf(const Machine &machine);

/// The devices of the machines that stand for each architecture.
llvm::ArrayRef<Gpu> gpus();
/// The one called `name`, or null.
const Gpu *lookupGpu(llvm::StringRef name);

} // namespace mla

#endif // MLA_TARGET_GPU_H
