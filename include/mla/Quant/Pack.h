//===- Pack.h - matrices as GPU kernels read them ---------------*- C++ -*-===//
//
// Part of mla. A packed matrix is one stream: what a warp needs for a step of
// its tensor-core instruction lies together, values and scales, so that 16-byte
// loads of lanes are fragments of mma.m16n8k16 (row g, thread t of a quad) as
// they come. Rows are padded to 16 and columns to a unit, with zeros.
//
//   [quad of 4 rows][unit of columns][4 rows x 64 bytes of values | scales]
//
//   format            unit columns   bytes of a unit
//   bf16              32             256
//   fp8_block         64             256
//   nvfp4, int4_g32   128            256 + 32
//
// In a unit, row r (0..3) has 64 bytes at 64 * r, of which thread t (0..3) of
// the instruction loads 16 at 16 * t: four words w of 32 bits, little endian.
// With c counted from the unit's first column:
//
//   bf16       halves h (0, 1) of word w: c = 16 * (w / 2) + 4 * t + 2 * (w % 2) + h
//   fp8_block  bytes i (0..3) of word w:  c = 16 * w + 4 * t + i
//   nvfp4      code of pair p (0..3), half h (0, 1): c = 16 * (t + 4 * (w / 2)) +
//              8 * (w % 2) + 4 * (p / 2) + 2 * (p % 2) + h. The half h is the
//              word's bits 16 * h and up; in it the sign is bit {15, 12, 14, 13}[p]
//              and the magnitude's three bits begin at {9, 6, 3, 0}[p]: shifted
//              left by 0, 3, 6 and 9 (and the sign by 0, 3, 1, 2) they are the
//              value times 2^-14 as f16.
//   int4_g32   code of pair p, half h: c = 32 * t + 8 * w + 4 * (p / 2) + 2 *
//              (p % 2) + h, unsigned (value plus 8), at bits 16 * h + 4 * p; the
//              code of padding is 8.
//
// Scales of a unit, from byte 256 on, row r at 8 * r:
//   nvfp4      8 bytes e4m3: of columns 16 * b to 16 * b + 15 at byte b
//   int4_g32   4 bf16: of columns 32 * g to 32 * g + 31 at byte 2 * g
//
// Behind the quads, from packedTail() on:
//   fp8_block  f32 [ceil(rows / 128), ceil(columns / 128)], the block scales
//   nvfp4      f32 [1], the global scale
// A packed matrix is a multiple of 256 bytes long, so that those of a stack lie
// one behind the other.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_QUANT_PACK_H
#define MLA_QUANT_PACK_H

#include "mla/Quant/Matrix.h"
#include "mla/Support/Format.h"
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mla::quant {

/// Rows of a quad, and what rows are padded to.
constexpr int64_t quadRows = 4, packedRowGroup = 16;

/// bf16, fp8_block, nvfp4 and int4_g32 can be packed.
constexpr bool canPack(Format format) {
  return format == Format::BF16 || format == Format::FP8Block ||
         format == Format::NVFP4 || format == Format::Int4G32;
}
constexpr int64_t unitColumns(Format format) {
  return format == Format::BF16 ? 32 : format == Format::FP8Block ? 64 : 128;
}
constexpr int64_t unitBytes(Format format) {
  return format == Format::BF16 || format == Format::FP8Block ? 256 : 288;
}
constexpr int64_t packedUnits(Format format, int64_t columns) {
  return (columns + unitColumns(format) - 1) / unitColumns(format);
}
constexpr int64_t packedQuads(int64_t rows) {
  return (rows + packedRowGroup - 1) / packedRowGroup *
         (packedRowGroup / quadRows);
}
/// Bytes before the tail.
constexpr int64_t packedTail(Format format, int64_t rows, int64_t columns) {
  return packedQuads(rows) * packedUnits(format, columns) * unitBytes(format);
}
/// Bytes of a packed [rows, columns] matrix.
constexpr int64_t packedBytes(Format format, int64_t rows, int64_t columns) {
  int64_t tail = format == Format::FP8Block
                     ? (rows + 127) / 128 * ((columns + 127) / 128) * 4
                 : format == Format::NVFP4 ? 4
                                           : 0;
  return (packedTail(format, rows, columns) + tail + 255) / 256 * 256;
}

/// Packs quads [firstQuad, lastQuad) of `in` into `out`, the whole packed matrix;
/// with lastQuad == packedQuads(rows) the tail too. `out` needs no content before.
/// Different ranges may be packed by different threads.
void pack(const ConstMatrixParts &in, int64_t firstQuad, int64_t lastQuad,
          std::span<std::byte> out);

/// A row of a quad: where its first column and the scale of that are, at any
/// address; fp8_block's scales are not looked at. Null: padding.
struct PackRow {
  const std::byte *values = nullptr, *scales = nullptr;
};

/// Packs one quad, packedUnits() units, to `out`: for rows that do not lie one
/// behind the other, as in a slice of a larger matrix.
void packQuad(Format format, int64_t columns, const std::array<PackRow, 4> &rows,
              std::byte *out);

} // namespace mla::quant

#endif // MLA_QUANT_PACK_H
