//===- Lowerings.h - the table of GPU lowerings -----------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_NVVM_LOWERINGS_H
#define MLA_CODEGEN_NVVM_LOWERINGS_H

#include "mla/Target/Lowering.h"

namespace mla::nvvm {

/// The lowerings of all GPUs, for registerGpuLowerings().
llvm::ArrayRef<Lowering> lowerings();

} // namespace mla::nvvm

#endif // MLA_CODEGEN_NVVM_LOWERINGS_H
