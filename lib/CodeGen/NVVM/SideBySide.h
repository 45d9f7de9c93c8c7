//===- SideBySide.h - two kernels in one launch -----------------*- C++ -*-===//
//
// Part of mla. A launch costs about as much as a small kernel does. Two that do not
// depend on each other go into one: the first blocks of the grid do what the first
// kernel does, the rest what the second does.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_SIDEBYSIDE_H
#define MLA_LIB_CODEGEN_NVVM_SIDEBYSIDE_H

#include "Kernels.h"

namespace mla::nvvm {

/// The kernel that does both, in programs of one token, where the symbol `tokens`
/// is 1. Its operands are those of `first`, then those of `second`; then come the
/// scalars in the same order. Nothing if the number of blocks of one of the two is
/// not known, or if one asks for it.
std::optional<Kernel> sideBySide(KernelSite site, const Kernel &first,
                                 const Kernel &second);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_SIDEBYSIDE_H
