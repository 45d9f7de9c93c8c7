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
llvm::SmallVector<llvm::StringRef> attentionAccess(const AttentionSpec &spec);

/// What a kernel's last scalar, number `rank`, makes of the positions at `positions`.
Positions positionsOf(KernelBuilder &k, const AttentionSpec &spec, Ptr positions,
                      unsigned rank);

/// log(2): scores are in units of log2, results in natural ones.
constexpr double naturalLog2 = 0.6931471805599453;

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_ATTENTIONKERNELS_H
