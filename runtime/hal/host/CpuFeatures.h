//===- CpuFeatures.h - what this processor can do ---------------*- C++ -*-===//
//
// Part of mla. A plan lists the CPU features its kernels were compiled for, by
// LLVM's names. Running them without one of these ends in SIGILL, so the check
// comes before the library is loaded.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_HAL_HOST_CPUFEATURES_H
#define MLA_RUNTIME_HAL_HOST_CPUFEATURES_H

#include "mla/Support/Status.h"
#include <string>
#include <vector>

namespace mla::hal {

/// Unsupported, naming every feature that this processor lacks or that this
/// build does not know.
Status checkCpuFeatures(const std::vector<std::string> &features);

} // namespace mla::hal

#endif // MLA_RUNTIME_HAL_HOST_CPUFEATURES_H
