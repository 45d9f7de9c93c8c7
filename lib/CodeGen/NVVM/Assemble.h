//===- Assemble.h - PTX to machine code -------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_ASSEMBLE_H
#define MLA_LIB_CODEGEN_NVVM_ASSEMBLE_H

#include "mla/CodeGen/NVVM/Compile.h"

namespace mla {

inline llvm::Error makeError(const llvm::Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

/// Fills code.cubin and the registers of code.resources from code.ptx, if a
/// ptxas is found; otherwise leaves both. An error of ptxas is one.
llvm::Error assemble(GpuCode &code, const Gpu &gpu);

} // namespace mla

#endif // MLA_LIB_CODEGEN_NVVM_ASSEMBLE_H
