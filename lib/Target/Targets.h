//===- Targets.h - one function a target ------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_TARGET_TARGETS_H
#define MLA_LIB_TARGET_TARGETS_H

#include "mla/Target/Lowering.h"

namespace mla {
const Target &hostTarget();
} // namespace mla

#endif // MLA_LIB_TARGET_TARGETS_H
