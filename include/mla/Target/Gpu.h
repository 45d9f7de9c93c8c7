//===- Gpu.h - what a GPU has -----------------------------------*- C++ -*-===//
//
// Part of mla. Capabilities by compute capability, never by marketing name. All
// kernels are restricted to what SM120 has (mma.sync, ldmatrix, cp.async, bulk
// copies; no wgmma, no tcgen05); sm_90a is where they are executed and measured.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TARGET_GPU_H
#define MLA_TARGET_GPU_H

#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>

namespace mla {

struct Gpu {
  llvm::StringRef name;          ///< "sm_120a"
  int64_t multiprocessors;       ///< of the machine that is compiled for
  int64_t sharedBytesPerBlock;   ///< most dynamic shared memory of a block
  int64_t sharedBytesPerSM;      ///< 1,024 of which each block takes as well
  int64_t registersPerSM;        ///< of 32 bits
  int64_t threadsPerSM;
  int64_t memoryBytes;
  double bytesPerSecond;         ///< read ceiling of its memory
  bool hasFp4;                   ///< block-scaled fp4 mma, fp4 conversions
  bool canLower;                 ///< has a table of lowerings
};

/// sm_120a (RTX PRO 6000 Blackwell), sm_90a (H200), sm_100a (B200, capabilities
/// only).
llvm::ArrayRef<Gpu> gpus();
/// The one called `name`, or null.
const Gpu *lookupGpu(llvm::StringRef name);

} // namespace mla

#endif // MLA_TARGET_GPU_H
