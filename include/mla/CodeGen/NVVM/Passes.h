//===- Passes.h - lowering to GPU targets -------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_NVVM_PASSES_H
#define MLA_CODEGEN_NVVM_PASSES_H

#include "mla/Dialect/MLA.h"
#include "mlir/Pass/Pass.h"

namespace mla {

#define GEN_PASS_DECL
#include "mla/CodeGen/NVVM/Passes.h.inc"
#define GEN_PASS_REGISTRATION
#include "mla/CodeGen/NVVM/Passes.h.inc"

} // namespace mla

#endif // MLA_CODEGEN_NVVM_PASSES_H
