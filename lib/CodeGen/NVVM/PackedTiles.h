//===- PackedTiles.h - packed weights as tensor-core operands ---*- C++ -*-===//
//
// Part of mla. What heads and experts have in common: 16 rows of a packed
// weight (mla/Quant/Pack.h) are the A operand of mma.m16n8k16, 8 tokens the B
// operand. The contraction runs over *spans* of columns, what is loaded of a
// weight at a time, in *chunks* of 64 columns, each 4 instructions of 16. In
// which order a chunk's columns are taken differs from format to format:
// columnAt().
//
// Weights become bf16 (bf16) or f16 (all others), and x the same; f16 holds x *
// 2^-4, so that 2^20 is the largest magnitude, beyond which it is cut off. The
// powers of two are undone by Tile::factor, at the end.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_PACKEDTILES_H
#define MLA_LIB_CODEGEN_NVVM_PACKEDTILES_H

#include "KernelSupport.h"
#include "mla/Quant/Pack.h"

namespace mla::nvvm {

constexpr int64_t tileColumns = 64, chunkSteps = 4;

/// Columns of a span: one or two chunks.
constexpr int64_t spanColumns(Format format) {
  return format == Format::BF16 ? 64 : 128;
}
constexpr int64_t spanChunks(Format format) {
  return spanColumns(format) / tileColumns;
}
inline int64_t spansOf(const MatrixShape &shape) {
  return llvm::divideCeil(shape.columns, spanColumns(shape.format));
}

/// The first of 4 adjacent columns, from the span's first on, that thread t of
/// a quad has in a chunk's step; `t` is a V or a number.
template <typename T>
T columnAt(Format format, T t, int64_t chunk, int64_t step) {
  switch (format) {
  case Format::NVFP4:
    return t * 16 + (tileColumns * chunk + 4 * step);
  case Format::Int4G32:
    return t * 32 + (16 * chunk + 4 * step);
  default:
    return t * 4 + (tileColumns * chunk + 16 * step);
  }
}

/// The part of a packed matrix that a lane reads for 16 rows: two rows, g and g
/// + 8 of the tile.
class PackedTile {
public:
  /// `base` is the matrix's first byte, rows of the tile are `first` and on.
  /// `aligned`: first is a multiple of 16, and below shape.rows. If it is not,
  /// rows behind the end are those of the last one; only bf16 may be so.
  PackedTile(KernelBuilder &k, MatrixShape shape, Ptr base, V first,
             bool aligned);

  /// Registers of a loaded span.
  static unsigned words(Format format);
  /// Loads span `span`, which exists.
  Vs load(V span) const;
  /// Its parts: 8 words of each unit, then the scales.
  static int64_t units(Format format);
  Vs loadUnit(V span, int64_t unit) const;
  Vs loadScales(V span) const;

  /// Ready for the tensor cores: fragment(step) of the span's 4 or 8 steps.
  class Span {
  public:
    Vs fragment(unsigned step) const;
    V scale; ///< fp8_block: of the span's sums; else none

  private:
    friend class PackedTile;
    const PackedTile *tile = nullptr;
    Vs words;
    Vs lowScales, highScales; ///< two f16 each, one for each chunk
  };
  Span open(llvm::ArrayRef<V> words) const;

  /// What sums are to be multiplied with in the end; may load from memory.
  V factor() const;

private:
  KernelBuilder &k;
  MatrixShape shape;
  Ptr base, lowRow, highRow, blockScales;
  V toScales; ///< bytes from lowRow (or highRow) to the row's scales
};

/// Four adjacent values of a row of x as the two registers of a B operand.
std::pair<V, V> packTokens(KernelBuilder &k, Format format,
                           llvm::ArrayRef<V> values);

/// Loads x[column] to x[column + 3] of a row of `columns` f32; columns behind
/// the end give 0. `row` is aligned to 16 bytes if columns are a multiple of 4.
/// `whole`: no column lies behind the end.
Vs loadTokens(KernelBuilder &k, Ptr row, V column, int64_t columns, bool whole,
              bool aligned);

/// acc += A B, for a format's kind of fragment.
Vs multiply(KernelBuilder &k, Format format, llvm::ArrayRef<V> a,
            llvm::ArrayRef<V> b, llvm::ArrayRef<V> acc);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_PACKEDTILES_H
