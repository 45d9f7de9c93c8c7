//===- AttentionKernels.h - forms of latent attention -----------*- C++ -*-===//
//
// Part of mla. What the files of latent attention share.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_ATTENTIONKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_ATTENTIONKERNELS_H

#include "KernelSupport.h"

namespace mla::nvvm {

/// A kernel's name from what all forms depend on.
std::string attentionName(llvm::StringRef family, const AttentionSpec &spec);

/// Access of the operands of an attention's first kernel.
llvm::SmallVector<llvm::StringRef> attentionAccess();

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_ATTENTIONKERNELS_H
