//===- Reference.h - small number formats, slowly ---------------*- C++ -*-===//
//
// Part of mla. What lib/Quant is compared with: values from the definition of a
// format in double, codes by looking at every one of them.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_QUANT_REFERENCE_H
#define MLA_UNITTESTS_QUANT_REFERENCE_H

#include <cmath>
#include <cstdint>
#include <limits>

namespace mla::test {

/// Sign, exponent and mantissa fields, subnormals; `code` is no special.
inline double fieldsToValue(uint32_t code, int exponentBits, int mantissaBits,
                            int bias) {
  int sign = static_cast<int>(code >> (exponentBits + mantissaBits) & 1);
  int exponent =
      static_cast<int>(code >> mantissaBits & ((1U << exponentBits) - 1));
  double mantissa = static_cast<double>(code & ((1U << mantissaBits) - 1));
  double value = exponent == 0
                     ? std::ldexp(mantissa, 1 - bias - mantissaBits)
                     : std::ldexp(mantissa + std::ldexp(1, mantissaBits),
                                  exponent - bias - mantissaBits);
  return sign ? -value : value;
}

inline double e4m3(uint8_t code) {
  return (code & 127) == 127 ? std::numeric_limits<double>::quiet_NaN()
                             : fieldsToValue(code, 4, 3, 7);
}
inline double e2m1(uint8_t code) { return fieldsToValue(code, 2, 1, 1); }

/// The code below `codes` whose value is nearest to |value|, the even one if
/// two are, with the sign of `value` as `signBit`.
template <typename Decode>
uint32_t nearest(double value, uint32_t codes, uint32_t signBit,
                 Decode decode) {
  double magnitude = std::fabs(value);
  uint32_t best = 0;
  for (uint32_t code = 1; code < codes; ++code) {
    double now = std::fabs(decode(code) - magnitude);
    double before = std::fabs(decode(best) - magnitude);
    if (now < before || (now == before && code % 2 == 0))
      best = code;
  }
  return best | (std::signbit(value) ? signBit : 0);
}

inline uint8_t toE4M3(double value) {
  return static_cast<uint8_t>(
      nearest(value, 127, 128, [](uint32_t c) { return e4m3(uint8_t(c)); }));
}
inline uint8_t toE2M1(double value) {
  return static_cast<uint8_t>(
      nearest(value, 8, 8, [](uint32_t c) { return e2m1(uint8_t(c)); }));
}

} // namespace mla::test

#endif // MLA_UNITTESTS_QUANT_REFERENCE_H
