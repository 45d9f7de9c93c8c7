//===- LargeKernels.h - matrices times many tokens --------------*- C++ -*-===//
//
// Part of mla. linear() of Kernels.h for maxTokens > 64 is two launches with one
// buffer between them:
//
//   packRows(spec):    (x, [gamma rows,] [outputs i32,] x16), scalar T
//   linearLarge(spec): (x16, W_0 packed, y_0, W_1, y_1, ... [, residual]), gated
//                      (x16, gate, up, y), scalar T
//
// With `outputs` T is the number of outputs for both, and rows are gathered by the
// first. x16 is u8 [ceildiv(T, 16), packedRowsBytes(spec)]: its rows stand for 16
// tokens each. Its content depends on packedRowsName(spec) alone: linears of the
// same x with equal names may share one x16 and one packRows().
//
// In x16 values are bf16 for bf16 weights; else f16, times 2^-4 and clamped to
// +-65504. With `exact` there are three parts, each what the ones before it lost.
// Columns are padded to 128 with zeros, and tokens to 16. Order: [16 tokens][part]
// [chunk of 64 columns][16 tokens][columns], in a chunk as ldmatrix reads it without
// bank conflicts, columns in the order of the fragments that packed weights are
// (quant/Pack.h).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LARGEKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_LARGEKERNELS_H

#include "Kernels.h"

namespace mla::nvvm {

/// x as linearLarge() reads it, normalised and gathered as `spec` says.
Kernel packRows(KernelSite site, const LinearSpec &spec);
/// Bytes of 16 tokens in x16.
int64_t packedRowsBytes(const LinearSpec &spec);
/// The name of packRows()'s kernel; equal names, equal content.
std::string packedRowsName(const LinearSpec &spec);

/// The products. `spec.norm` and `spec.gamma` are packRows()'s alone.
Kernel linearLarge(KernelSite site, const LinearSpec &spec);

/// The same with x rounded to e2m1, for nvfp4 weights, on targets that have fp4
/// (Gpu::hasFp4): the tensor cores take packed weights and scales as they are. An
/// option, as 4-bit activations lose accuracy; `exact` is not for it. Operands as
/// above, x16 being what packRowsFp4() made: [ceildiv(T, 16),
/// packedRowsFp4Bytes(spec)], for each 16 tokens [chunk of 128 columns][16 tokens x
/// 64 bytes of codes | 16 tokens x 8 e4m3 scales of 16 columns], then 16 f32: a value
/// is code * scale * the token's f32.
Kernel packRowsFp4(KernelSite site, const LinearSpec &spec);
Kernel linearLargeFp4(KernelSite site, const LinearSpec &spec);
int64_t packedRowsFp4Bytes(const LinearSpec &spec);

/// Experts of many tokens, after moeGroup() with tiles of expertTileTokens. x16 is of
/// packRows(expertRows(spec)), h16 u8 [ceildiv(pairs, 16), packedRowsBytes(
/// expertHidden(spec))] with rows in the order of the places p.
///   gate and up: (x16, order, tiles, gate packed stack, up packed stack, h16)
///   down:        (h16, order, tiles, down packed stack, y [pairs, down.rows])
/// Scalar T. h and y are as those of expertsGateUp() and expertsDown().
Kernel expertsGateUpLarge(KernelSite site, const ExpertSpec &spec);
Kernel expertsDownLarge(KernelSite site, const ExpertSpec &spec);
LinearSpec expertRows(const ExpertSpec &spec);
LinearSpec expertHidden(const ExpertSpec &spec);
/// Whether a program has tokens enough for these.
bool expertsAreLarge(const ExpertSpec &spec);
/// Most pairs of a tile.
constexpr int64_t expertTileTokens = 128;

//===--- Inside --------------------------------------------------------------===//

/// Tokens that stand together in x16, and columns of a chunk of it.
constexpr int64_t packedTokens = 16, chunkColumns = 64;
/// Bytes of a chunk of 128 columns in 4 bits.
constexpr int64_t fp4ChunkBytes = packedTokens * (64 + 8);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_LARGEKERNELS_H
