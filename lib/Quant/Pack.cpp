//===- Pack.cpp - matrices as GPU kernels read them -----------------------===//
//
// Part of mla. Whole models pass through here when they are loaded, so that a
// row of a unit is moved in words: seen from the words, the layouts of Pack.h
// are small transpositions, and the codes of nvfp4 a table for each byte.
//
//   bf16, nvfp4   8 pairs of words, [a][t] -> [t][a] with a of 2 and t of 4
//   fp8_block     16 words, [w][t] -> [t][w], 4 of each
//   int4_g32      16 words in their order
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Pack.h"
#include <algorithm>
#include <bit>
#include <cstring>

namespace mla::quant {
static_assert(std::endian::native == std::endian::little);

namespace {
constexpr int64_t rowBytes = 64; ///< of values, in a unit
constexpr uint32_t int4Padding = 0x88888888;

/// What byte b of a word of eight e2m1 codes becomes: pair b of both halves.
using CodeTable = std::array<std::array<uint32_t, 256>, 4>;
constexpr CodeTable makeCodeTable() {
  constexpr int sign[4] = {15, 12, 14, 13}, magnitude[4] = {9, 6, 3, 0};
  CodeTable table{};
  for (uint32_t p = 0; p < 4; ++p)
    for (uint32_t byte = 0; byte < 256; ++byte)
      for (int half = 0; half < 2; ++half) {
        uint32_t code = byte >> 4 * half & 15;
        table[p][byte] |= ((code >> 3) << sign[p] | (code & 7) << magnitude[p])
                          << 16 * half;
      }
  return table;
}
constexpr CodeTable codeTable = makeCodeTable();

uint32_t shuffleCodes(uint32_t word) {
  return codeTable[0][word & 255] | codeTable[1][word >> 8 & 255] |
         codeTable[2][word >> 16 & 255] | codeTable[3][word >> 24];
}

/// Nibbles 0, 2, 4, 6 into the low half, the others into the high one.
uint32_t splitNibbles(uint32_t word) {
  uint32_t t = (word ^ word >> 4) & 0x00F000F0; // 0 1 2 3 -> 0 2 1 3
  word ^= t ^ t << 4;
  t = (word ^ word >> 8) & 0x0000FF00;
  return word ^ t ^ t << 8;
}

/// The values of one row in one unit.
template <Format format>
void packRow(const std::byte *__restrict in, std::byte *__restrict out) {
  std::array<uint32_t, 16> from, to;
  std::memcpy(from.data(), in, rowBytes);
  for (size_t t = 0; t < 4; ++t)
    for (size_t w = 0; w < 4; ++w) {
      size_t pairs = 8 * (w / 2) + 2 * t + w % 2;
      uint32_t &word = to[4 * t + w];
      if constexpr (format == Format::BF16)
        word = from[pairs];
      else if constexpr (format == Format::FP8Block)
        word = from[4 * w + t];
      else if constexpr (format == Format::NVFP4)
        word = shuffleCodes(from[pairs]);
      else
        word = splitNibbles(from[4 * t + w]);
    }
  std::memcpy(out, to.data(), rowBytes);
}

template <Format format>
void packQuadAs(int64_t columns, const std::array<PackRow, 4> &rows,
                std::byte *out) {
  constexpr int64_t unit = unitColumns(format), size = unitBytes(format);
  constexpr int64_t scales = size - quadRows * rowBytes; // of all four rows
  constexpr int64_t scaleBytes = scales / quadRows;
  const int64_t whole = columns / unit, rest = columns % unit;
  for (size_t r = 0; r < rows.size(); ++r) {
    const PackRow &row = rows[r];
    std::byte *to = out + static_cast<int64_t>(r) * rowBytes;
    std::byte *toScales = out + quadRows * rowBytes +
                          static_cast<int64_t>(r) * scaleBytes;
    int64_t u = 0;
    if (row.values) {
      for (; u < whole; ++u) {
        packRow<format>(row.values + u * rowBytes, to + u * size);
        if constexpr (scales != 0)
          std::memcpy(toScales + u * size, row.scales + u * scaleBytes,
                      scaleBytes);
      }
    }
    // What is left: of this row, then padding.
    for (; u < packedUnits(format, columns); ++u) {
      std::array<uint32_t, 16> words;
      words.fill(format == Format::Int4G32 ? int4Padding : 0);
      std::array<std::byte, 8> scale{};
      if (row.values && u == whole) {
        std::memcpy(words.data(), row.values + u * rowBytes,
                    static_cast<size_t>(rest * rowBytes / unit));
        if constexpr (scales != 0)
          std::memcpy(scale.data(), row.scales + u * scaleBytes,
                      static_cast<size_t>(rest * scaleBytes / unit));
      }
      packRow<format>(reinterpret_cast<const std::byte *>(words.data()),
                      to + u * size);
      if constexpr (scales != 0)
        std::memcpy(toScales + u * size, scale.data(), scaleBytes);
    }
  }
}
} // namespace

void packQuad(Format format, int64_t columns, const std::array<PackRow, 4> &rows,
              std::byte *out) {
  switch (format) {
  case Format::BF16:
    return packQuadAs<Format::BF16>(columns, rows, out);
  case Format::FP8Block:
    return packQuadAs<Format::FP8Block>(columns, rows, out);
  case Format::NVFP4:
    return packQuadAs<Format::NVFP4>(columns, rows, out);
  case Format::Int4G32:
    return packQuadAs<Format::Int4G32>(columns, rows, out);
  default:
    return; // Excluded by canPack().
  }
}

void pack(const ConstMatrixParts &in, int64_t firstQuad, int64_t lastQuad,
          std::span<std::byte> out) {
  const int64_t stride = in.columns * rowBytes / unitColumns(in.format);
  const int64_t group = scaleGroup(in.format);
  const int64_t scaleStride = in.format == Format::NVFP4 ? in.columns / group
                              : in.format == Format::Int4G32
                                  ? in.columns / group * 2
                                  : 0;
  const int64_t quadBytes =
      packedUnits(in.format, in.columns) * unitBytes(in.format);
  for (int64_t q = firstQuad; q < lastQuad; ++q) {
    std::array<PackRow, 4> rows;
    for (int64_t r = 0; r < quadRows; ++r)
      if (int64_t row = q * quadRows + r; row < in.rows)
        rows[static_cast<size_t>(r)] = {in.values.data() + row * stride,
                                        in.scales.data() + row * scaleStride};
    packQuad(in.format, in.columns, rows, out.data() + q * quadBytes);
  }
  if (lastQuad != packedQuads(in.rows))
    return;
  std::span<std::byte> tail = out.subspan(
      static_cast<size_t>(packedTail(in.format, in.rows, in.columns)),
      static_cast<size_t>(packedBytes(in.format, in.rows, in.columns) -
                          packedTail(in.format, in.rows, in.columns)));
  std::fill(tail.begin(), tail.end(), std::byte{});
  if (in.format == Format::FP8Block)
    std::copy(in.scales.begin(), in.scales.end(), tail.begin());
  if (in.format == Format::NVFP4)
    std::copy(in.global.begin(), in.global.end(), tail.begin());
}

} // namespace mla::quant
