//===- Matrix.cpp - a matrix in its storage format ------------------------===//
//
// Part of mla. A part is an array of little-endian elements that need not be
// aligned, since a safetensors file puts a tensor anywhere; load() and store()
// are what touches them.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Matrix.h"
#include "mla/Quant/Codec.h"
#include "mla/Support/Wide.h"
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace mla::quant {
static_assert(std::endian::native == std::endian::little);

namespace {
constexpr int64_t tile = 128; ///< fp8_block: rows and columns of a block

template <typename T> T load(const std::byte *part, int64_t index) {
  T value;
  std::memcpy(&value, part + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

template <typename T> void store(std::byte *part, int64_t index, T value) {
  std::memcpy(part + static_cast<size_t>(index) * sizeof(T), &value, sizeof(T));
}

/// The bits of the largest magnitude. Bits of magnitudes order as they do, with
/// infinity and then NaN behind all others.
MLA_WIDE_BODY int32_t magnitudeBits(const float *values, int64_t count, int32_t largest = 0) {
  for (int64_t i = 0; i < count; ++i)
    largest = std::max(largest, std::bit_cast<int32_t>(values[i]) & 0x7FFFFFFF);
  return largest;
}

MLA_WIDE_BODY float magnitude(const float *values, int64_t count) {
  return std::bit_cast<float>(magnitudeBits(values, count));
}

MLA_WIDE_BODY float orOne(float scale) { return scale > 0 ? scale : 1.0F; }

/// The smallest power of two that is not below `scale`, from 2^-126 on.
float powerOfTwoAbove(float scale) {
  scale = std::max(scale, std::numeric_limits<float>::min());
  auto bits = std::bit_cast<uint32_t>(scale);
  return std::bit_cast<float>((bits + 0x7FFFFF) & 0xFF800000U);
}

/// Rounds to an integer, ties to even; |value| < 2^22.
MLA_WIDE_BODY int32_t roundToInteger(float value) {
  constexpr float aligner = 12582912.0F; // 1.5 * 2^23: floats are 1 apart
  return std::bit_cast<int32_t>(value + aligner) -
         std::bit_cast<int32_t>(aligner);
}

//===----------------------------------------------------------------------===//
// One block of each format
//===----------------------------------------------------------------------===//

/// `rows` <= 128 rows of a column block; `in` and `codes` are strided alike.
MLA_WIDE_BODY float quantizeTile(const float *in, int64_t rows, int64_t width, int64_t stride,
                   std::byte *codes, bool ue8m0) {
  int32_t amax = 0;
  for (int64_t r = 0; r < rows; ++r)
    amax = magnitudeBits(in + r * stride, width, amax);
  float scale = orOne(std::bit_cast<float>(amax) / e4m3Max);
  if (ue8m0)
    scale = powerOfTwoAbove(scale);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < width; ++c)
      codes[r * stride + c] = std::byte{encodeE4M3(in[r * stride + c] / scale)};
  return scale;
}

/// The code of the scale of 16 values.
MLA_WIDE_BODY uint8_t scaleOfSixteen(const float *in, float global) {
  float amax = magnitude(in, 16);
  float ideal = amax == 0 ? 1.0F : amax / (e2m1Max * global);
  return encodeE4M3(std::clamp(ideal, 0x1p-9F, e4m3Max));
}

/// `groups` <= 64 groups of 16 values. Pass by pass, since each is then a long
/// loop that becomes vectors.
MLA_WIDE_BODY void quantizeSixteens(const float *in, int64_t groups, float global,
                      std::byte *codes, std::byte *scales) {
  constexpr int64_t most = 64 * 16;
  float steps[most];
  uint8_t nibbles[most];
  for (int64_t g = 0; g < groups; ++g) {
    uint8_t scale = scaleOfSixteen(in + 16 * g, global);
    scales[g] = std::byte{scale};
    std::fill_n(steps + 16 * g, 16, decodeE4M3(scale) * global);
  }
  for (int64_t i = 0; i < 16 * groups; ++i)
    nibbles[i] = encodeE2M1(in[i] / steps[i]);
  for (int64_t i = 0; i < 8 * groups; ++i)
    codes[i] = std::byte(nibbles[2 * i] | nibbles[2 * i + 1] << 4);
}

/// 32 values into four words; returns the scale.
MLA_WIDE_BODY uint16_t quantizeThirtyTwo(const float *in, std::byte *words) {
  uint16_t code = encodeBF16(magnitude(in, 32) / 7);
  if (code == 0)
    code = encodeBF16(1);
  float scale = decodeBF16(code);
  uint32_t shifted[32];
  for (int i = 0; i < 32; ++i)
    shifted[i] = static_cast<uint32_t>(
                     roundToInteger(std::clamp(in[i] / scale, -8.0F, 7.0F)) + 8)
                 << 4 * (i % 8);
  for (int w = 0; w < 4; ++w) {
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i)
      word |= shifted[8 * w + i];
    store(words, w, word);
  }
  return code;
}
//===----------------------------------------------------------------------===//
// Rows, compiled twice
//===----------------------------------------------------------------------===//

MLA_WIDE_BODY void quantizeRowsBody(std::span<const float> in, int64_t firstRow,
                                    const MatrixParts &out, bool ue8m0) {
  const int64_t columns = out.columns, first = firstRow * columns;
  const auto count = static_cast<int64_t>(in.size());
  std::byte *values = out.values.data(), *scales = out.scales.data();
  switch (out.format) {
  case Format::F32:
    std::memcpy(values + first * 4, in.data(), in.size_bytes());
    break;
  case Format::BF16:
    for (int64_t i = 0; i < count; ++i)
      store(values, first + i, encodeBF16(in[i]));
    break;
  case Format::F16:
    for (int64_t i = 0; i < count; ++i)
      store(values, first + i, encodeF16(in[i]));
    break;
  case Format::FP8Block: {
    const int64_t rows = count / columns, across = (columns + tile - 1) / tile;
    for (int64_t r = 0; r < rows; r += tile)
      for (int64_t b = 0; b < across; ++b) {
        int64_t at = r * columns + b * tile;
        float scale = quantizeTile(in.data() + at, std::min(tile, rows - r),
                                   std::min(tile, columns - b * tile), columns,
                                   values + first + at, ue8m0);
        store(scales, (firstRow + r) / tile * across + b, scale);
      }
    break;
  }
  case Format::NVFP4: {
    const auto global = load<float>(out.global.data(), 0);
    for (int64_t i = 0; i < count; i += 64 * 16)
      quantizeSixteens(in.data() + i, std::min<int64_t>(64, (count - i) / 16),
                       global, values + (first + i) / 2,
                       scales + (first + i) / 16);
    break;
  }
  case Format::Int4G32:
    for (int64_t i = 0; i < count; i += 32)
      store(scales, (first + i) / 32,
            quantizeThirtyTwo(in.data() + i, values + (first + i) / 2));
    break;
  case Format::FP8E4M3:
  case Format::I32:
    break; // Excluded by fits().
  }
}

MLA_WIDE_TARGET void quantizeRowsWide(std::span<const float> in,
                                      int64_t firstRow, const MatrixParts &out,
                                      bool ue8m0) {
  quantizeRowsBody(in, firstRow, out, ue8m0);
}
} // namespace

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

bool fits(Format format, int64_t rows, int64_t columns) {
  switch (format) {
  case Format::F32:
  case Format::BF16:
  case Format::F16:
  case Format::FP8Block:
    return rows > 0 && columns > 0;
  case Format::NVFP4:
  case Format::Int4G32:
    return rows > 0 && columns > 0 && columns % scaleGroup(format) == 0;
  case Format::FP8E4M3:
  case Format::I32:
    return false;
  }
  return false;
}

float largestMagnitude(std::span<const float> values) {
  return magnitude(values.data(), static_cast<int64_t>(values.size()));
}

float nvfp4GlobalScale(float amax) { return orOne(amax / (e2m1Max * e4m3Max)); }

void quantizeRows(std::span<const float> in, int64_t firstRow,
                  const MatrixParts &out, bool ue8m0) {
  if (wideVectors())
    quantizeRowsWide(in, firstRow, out, ue8m0);
  else
    quantizeRowsBody(in, firstRow, out, ue8m0);
}

void dequantizeRows(const ConstMatrixParts &in, int64_t firstRow,
                    std::span<float> out) {
  const int64_t columns = in.columns, first = firstRow * columns;
  const auto count = static_cast<int64_t>(out.size());
  const std::byte *values = in.values.data(), *scales = in.scales.data();
  auto code = [&](int64_t i) { return std::to_integer<uint8_t>(values[i]); };
  switch (in.format) {
  case Format::F32:
    std::memcpy(out.data(), values + first * 4, out.size_bytes());
    break;
  case Format::BF16:
    for (int64_t i = 0; i < count; ++i)
      out[i] = decodeBF16(load<uint16_t>(values, first + i));
    break;
  case Format::F16:
    for (int64_t i = 0; i < count; ++i)
      out[i] = decodeF16(load<uint16_t>(values, first + i));
    break;
  case Format::FP8Block: {
    const int64_t across = (columns + tile - 1) / tile;
    for (int64_t r = 0; r < count / columns; ++r)
      for (int64_t b = 0; b < across; ++b) {
        auto scale = load<float>(scales, (firstRow + r) / tile * across + b);
        int64_t end = r * columns + std::min(columns, (b + 1) * tile);
        for (int64_t i = r * columns + b * tile; i < end; ++i)
          out[i] = decodeE4M3(code(first + i)) * scale;
      }
    break;
  }
  case Format::NVFP4: {
    const auto global = load<float>(in.global.data(), 0);
    for (int64_t i = 0; i < count; i += 16) {
      int64_t group = (first + i) / 16;
      float step = decodeE4M3(std::to_integer<uint8_t>(scales[group])) * global;
      for (int64_t k = 0; k < 8; ++k) {
        uint8_t pair = code(group * 8 + k);
        out[i + 2 * k] = decodeE2M1(pair) * step;
        out[i + 2 * k + 1] = decodeE2M1(pair >> 4) * step;
      }
    }
    break;
  }
  case Format::Int4G32:
    for (int64_t i = 0; i < count; i += 8) {
      int64_t word = (first + i) / 8;
      float scale = decodeBF16(load<uint16_t>(scales, word / 4));
      auto bits = load<uint32_t>(values, word);
      for (int64_t k = 0; k < 8; ++k)
        out[i + k] =
            static_cast<float>(static_cast<int32_t>(bits >> 4 * k & 15) - 8) *
            scale;
    }
    break;
  case Format::FP8E4M3:
  case Format::I32:
    break; // Excluded by fits().
  }
}

} // namespace mla::quant
