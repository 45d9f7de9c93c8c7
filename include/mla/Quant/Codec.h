//===- Codec.h - small number formats, one value at a time ------*- C++ -*-===//
//
// Part of mla. Conversions between f32 and the element types of checkpoints.
// All round to nearest, ties to even code. They are integer arithmetic without
// branches where a loop calls them for every weight, so that a compiler makes
// vectors of them; the one table is 1 kB.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_QUANT_CODEC_H
#define MLA_QUANT_CODEC_H

#include <array>
#include <bit>
#include <cstdint>

namespace mla::quant {

namespace detail {
inline constexpr int32_t magnitudeMask = 0x7FFFFFFF;
inline constexpr int32_t infinityBits = 0x7F800000;

/// `bits` >> `drop`, rounded to nearest, ties to even. For the bits of a
/// magnitude this rounds the mantissa; a carry goes into the exponent.
constexpr int32_t roundShift(int32_t bits, int drop) {
  int32_t half = int32_t(1) << (drop - 1);
  return (bits + (half - 1) + (bits >> drop & 1)) >> drop;
}

constexpr std::array<float, 256> makeE4M3Table() {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) {
    uint32_t exponent = code >> 3 & 15, mantissa = code & 7;
    uint32_t magnitude = code & 127, bits = 0;
    if (magnitude == 127)
      bits = 0x7FC00000;
    else if (exponent == 0) // mantissa * 2^-9
      bits = std::bit_cast<uint32_t>(float(mantissa) / 512);
    else
      bits = (exponent + 120) << 23 | mantissa << 20;
    table[code] = std::bit_cast<float>(bits | (code & 128) << 24);
  }
  return table;
}
inline constexpr std::array<float, 256> e4m3Table = makeE4M3Table();
inline constexpr std::array<float, 16> e2m1Table = {
    0, .5F, 1, 1.5F, 2, 3, 4, 6, -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};
} // namespace detail

/// FP8 e4m3 "fn": largest value 448, smallest normal 2^-6, smallest subnormal
/// 2^-9, no infinity, NaN is 0x7f and 0xff.
inline constexpr float e4m3Max = 448.0F;
constexpr float decodeE4M3(uint8_t code) { return detail::e4m3Table[code]; }

/// Values beyond 448 and infinities saturate; NaN gives 0x7f.
constexpr uint8_t encodeE4M3(float value) {
  auto bits = std::bit_cast<int32_t>(value);
  int32_t magnitude = bits & detail::magnitudeMask;
  constexpr auto largest = std::bit_cast<int32_t>(e4m3Max);
  int32_t clamped = magnitude < largest ? magnitude : largest;
  int32_t normal = detail::roundShift(clamped, 20) - (120 << 3);
  // Below 2^-6 codes are 2^-9 apart, as are floats from 2^14 to 2^15: adding
  // 2^14 rounds, and the code is what the sum's mantissa gained.
  constexpr float aligner = 16384.0F;
  int32_t tiny =
      std::bit_cast<int32_t>(std::bit_cast<float>(clamped) + aligner) -
      std::bit_cast<int32_t>(aligner);
  constexpr auto smallestNormal = std::bit_cast<int32_t>(0x1p-6F);
  int32_t code = clamped < smallestNormal ? tiny : normal;
  code |= bits >> 24 & 128;
  return static_cast<uint8_t>(magnitude > detail::infinityBits ? 0x7F : code);
}

/// FP4 e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives (bit 3).
inline constexpr float e2m1Max = 6.0F;
/// The low four bits of `code`.
constexpr float decodeE2M1(uint8_t code) {
  return detail::e2m1Table[code & 15];
}

/// Values beyond 6 saturate; the sign stays, that of zeros too. Ties as
/// NVIDIA's exporter resolves them: .25 to 0, .75 and 1.25 to 1, 1.75 and 2.5
/// to 2, 3.5 and 5 to 4. NaN gives 0.
constexpr uint8_t encodeE2M1(float value) {
  auto bits = std::bit_cast<int32_t>(value);
  int32_t magnitude = bits & detail::magnitudeMask;
  constexpr auto largest = std::bit_cast<int32_t>(e2m1Max);
  int32_t clamped = magnitude < largest ? magnitude : largest;
  int32_t normal = detail::roundShift(clamped, 22) - (126 << 1);
  // As in encodeE4M3(): below 1 codes are 1/2 apart.
  constexpr float aligner = 4194304.0F; // 2^22
  int32_t tiny =
      std::bit_cast<int32_t>(std::bit_cast<float>(clamped) + aligner) -
      std::bit_cast<int32_t>(aligner);
  constexpr auto smallestNormal = std::bit_cast<int32_t>(1.0F);
  int32_t code = clamped < smallestNormal ? tiny : normal;
  code |= bits >> 28 & 8;
  return static_cast<uint8_t>(magnitude > detail::infinityBits ? 0 : code);
}

constexpr float decodeBF16(uint16_t bits) {
  return std::bit_cast<float>(uint32_t(bits) << 16);
}

/// NaN stays a NaN, made quiet.
constexpr uint16_t encodeBF16(float value) {
  auto bits = std::bit_cast<int32_t>(value);
  bool nan = (bits & detail::magnitudeMask) > detail::infinityBits;
  return static_cast<uint16_t>(nan ? bits >> 16 | 0x40
                                   : detail::roundShift(bits, 16));
}

constexpr float decodeF16(uint16_t bits) {
  uint32_t exponent = bits >> 10 & 31, mantissa = bits & 1023, out = 0;
  if (exponent == 31)
    out = detail::infinityBits | mantissa << 13;
  else if (exponent == 0) // mantissa * 2^-24
    out = std::bit_cast<uint32_t>(float(mantissa) / 16777216);
  else
    out = (exponent + 112) << 23 | mantissa << 13;
  return std::bit_cast<float>(out | uint32_t(bits & 0x8000) << 16);
}

/// Values that round beyond 65504 become infinite; NaN stays a NaN, made quiet.
constexpr uint16_t encodeF16(float value) {
  auto bits = std::bit_cast<int32_t>(value);
  int32_t magnitude = bits & detail::magnitudeMask, code = 0;
  if (magnitude > detail::infinityBits)
    code = 0x7E00 | (magnitude >> 13 & 0x1FF);
  else if (magnitude >= std::bit_cast<int32_t>(0x1p16F))
    code = 0x7C00;
  else if (magnitude >= std::bit_cast<int32_t>(0x1p-14F)) // the smallest normal
    code = detail::roundShift(magnitude, 13) - (112 << 10);
  else // multiples of 2^-24, as far apart as floats from 1/2 to 1
    code = std::bit_cast<int32_t>(std::bit_cast<float>(magnitude) + .5F) -
           std::bit_cast<int32_t>(.5F);
  return static_cast<uint16_t>(code | (bits >> 16 & 0x8000));
}

} // namespace mla::quant

#endif // MLA_QUANT_CODEC_H
