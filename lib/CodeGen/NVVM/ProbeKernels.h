//===- ProbeKernels.h - kernels that measure a machine ----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_PROBEKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_PROBEKERNELS_H

#include "Kernels.h"

namespace mla::nvvm {

/// The kernels of mla-run probe, whose grids the probe chooses:
///   read_ceiling, as in Kernels.h
///   probe_empty ()
///   probe_matrix_bf16 (times i64 [2]), scalar n: 16 n products m16n8k16 a warp;
///     times: cycles and nanoseconds of the first block
///   probe_push (target), scalars bytes (of 16), seed: writes a pattern
///   probe_check (buffer, errors i32 [1]), scalars bytes, seed: adds the number of
///     16 bytes that are not the pattern
///   probe_ping_pong (mine i32 [1], theirs i32 [1], result i64 [2]), scalars
///     rounds, role (0 begins, 1 answers), polls: passes a number to and fro
///     through flags that are 0 before; result: nanoseconds of `rounds`, whether a
///     wait ended after so many polls
void probeKernels(KernelSite site);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_PROBEKERNELS_H
