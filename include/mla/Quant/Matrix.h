//===- Matrix.h - a matrix in its storage format ----------------*- C++ -*-===//
//
// Part of mla. Quantizes f32 rows into the parts that storageParts() describes,
// and back. Both work on a range of rows, so that a matrix is done by several
// threads and never stands in memory as f32 as a whole.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_QUANT_MATRIX_H
#define MLA_QUANT_MATRIX_H

#include "mla/Support/Format.h"
#include "mla/Support/Status.h"
#include <cstddef>
#include <span>

namespace mla::quant {

/// The parts of a matrix, in the order of storageParts(); readers and writers
/// differ in constness alone.
template <typename Byte> struct BasicMatrixParts {
  Format format = Format::F32;
  int64_t rows = 0, columns = 0;
  std::span<Byte> values, scales, global;
};
using MatrixParts = BasicMatrixParts<std::byte>;
using ConstMatrixParts = BasicMatrixParts<const std::byte>;

/// Whether a [rows, columns] matrix can be stored in `format`, which must be
/// one of f32, bf16, f16, fp8_block, nvfp4 and int4_g32; the last two need
/// columns to be a multiple of 16 and 32.
bool fits(Format format, int64_t rows, int64_t columns);

/// The largest magnitude among `values`, 0 if there are none. A NaN among them
/// gives NaN, else an infinity gives infinity.
float largestMagnitude(std::span<const float> values);

/// nvfp4's second scale for a matrix (or a group that shares it) of the given
/// largest magnitude: amax / (6 * 448); 1 if that is 0.
float nvfp4GlobalScale(float amax);

/// Quantizes rows [firstRow, firstRow + n) where `in` has n * columns finite
/// values, into the parts of a matrix that fits(). For fp8_block firstRow is a
/// multiple of 128, and n too unless the range ends with the matrix. For nvfp4
/// `out.global` is filled by the caller before. Parts may lie at any address.
/// All arithmetic is f32, rounded to nearest:
///
///   fp8_block: scale = blockamax / 448 (1 if that is 0), code =
///     e4m3(value / scale). With ue8m0 the scale is rounded up to a power of 2.
///   nvfp4: scale = e4m3(clamp(blockamax / (6 * global), 2^-9, 448)), 1 for a
///     block of zeros; code = e2m1(value / (scale * global)).
///   int4_g32: scale = bf16(blockamax / 7), 1 if that is 0; code =
///     clamp(round to even(value / scale), -8, 7) + 8.
///
/// Sources: DeepSeek-V3 README_WEIGHTS.md (fp8 blocks), NVIDIA Model Optimizer
/// nvfp4_tensor.py, compressed-tensors pack_quantized/helpers.py.
void quantizeRows(std::span<const float> in, int64_t firstRow,
                  const MatrixParts &out, bool ue8m0 = false);

/// The values of rows [firstRow, firstRow + n), n * columns == out.size(), as
/// they are used:
///   fp8_block: e4m3 * scale; nvfp4: e2m1 * (e4m3 * global); int4: (u-8) *
///   scale.
void dequantizeRows(const ConstMatrixParts &in, int64_t firstRow,
                    std::span<float> out);

} // namespace mla::quant

#endif // MLA_QUANT_MATRIX_H
