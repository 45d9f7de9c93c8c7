//===- Codec.h - small number formats, one value at a time ------*- C++ -*-===//
//
// Part of mla. Conversions between f32 and the element types of checkpoints.
// All round to nearest, ties to even code. No table is larger than 1 kB.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_QUANT_CODEC_H
#define MLA_QUANT_CODEC_H

#include <cstdint>

namespace mla::quant {

/// FP8 e4m3 "fn": largest value 448, smallest normal 2^-6, smallest subnormal
/// 2^-9, no infinity, NaN is 0x7f and 0xff.
constexpr float e4m3Max = 448.0F;
float decodeE4M3(uint8_t code);
/// Values beyond 448 and infinities saturate; NaN gives 0x7f.
uint8_t encodeE4M3(float value);

/// FP4 e2m1: 0, .5, 1, 1.5, 2, 3, 4, 6 and their negatives (bit 3).
constexpr float e2m1Max = 6.0F;
float decodeE2M1(uint8_t code); ///< the low four bits of `code`
/// Values beyond 6 saturate. Ties as NVIDIA's exporter resolves them: .25 to 0,
/// .75 and 1.25 to 1, 1.75 and 2.5 to 2, 3.5 and 5 to 4. NaN gives 0.
uint8_t encodeE2M1(float value);

float decodeBF16(uint16_t bits);
uint16_t encodeBF16(float value); ///< NaN stays a (quiet) NaN
float decodeF16(uint16_t bits);
uint16_t encodeF16(float value); ///< values beyond 65504 become infinite

} // namespace mla::quant

#endif // MLA_QUANT_CODEC_H
