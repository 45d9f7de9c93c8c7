//===- AttentionPrefill.h - latent attention of many tokens -----*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_ATTENTIONPREFILL_H
#define MLA_LIB_CODEGEN_NVVM_ATTENTIONPREFILL_H

#include "Kernels.h"

namespace mla::nvvm {

/// Whether latentAttentionPrefill() has a kernel for these sizes: `latent` and
/// latent + rope are multiples of 64, at most 512 and 576.
bool canPrefill(const AttentionSpec &spec);

/// Attention (Kernels.h) for steps of many tokens: the operands of its first
/// launch, of which `partial` and `lse` are not touched; no combine. Scalars: P, with
/// fp8_e4m3 the bits of the cache's scale, then T, with `ranks` the rank. The tokens of a step stand sequence
/// by sequence, positions ascending. The work of a token is not split, so a step needs
/// tokens * heads of about 64 times the machine's multiprocessors to fill it.
AttentionKernels latentAttentionPrefill(KernelSite site,
                                        const AttentionSpec &spec);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_ATTENTIONPREFILL_H
