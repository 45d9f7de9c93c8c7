//===- CodecTest.cpp - small number formats, value by value ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Codec.h"
#include "Reference.h"
#include <gtest/gtest.h>
#include <random>

using namespace mla::quant;
using namespace mla::test;

namespace {
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();

/// Bits, since 0 == -0 and NaN != NaN.
uint32_t bits(double value) {
  return std::bit_cast<uint32_t>(static_cast<float>(value));
}

/// Some of everything: exponents spread over the whole range of f32.
std::vector<float> manyFloats() {
  std::mt19937 random(7);
  std::vector<float> out = {0, -0.F, inf, -inf, 1e-45F, -1e-45F, 3e38F};
  for (int i = 0; i < 200000; ++i) {
    out.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    out.push_back(std::ldexp(static_cast<float>(random()) - 0x1p31F,
                             static_cast<int>(random() % 30) - 42));
  }
  return out;
}

TEST(E4M3, EveryCode) {
  for (int c = 0; c < 256; ++c) {
    auto code = static_cast<uint8_t>(c);
    if ((code & 127) == 127) {
      EXPECT_TRUE(std::isnan(decodeE4M3(code)));
      continue;
    }
    EXPECT_EQ(bits(decodeE4M3(code)), bits(e4m3(code))) << c;
    EXPECT_EQ(encodeE4M3(decodeE4M3(code)), code);
  }
  EXPECT_EQ(decodeE4M3(0x7E), 448.F);
  EXPECT_EQ(decodeE4M3(0x08), 0x1p-6F);
  EXPECT_EQ(decodeE4M3(0x01), 0x1p-9F);
}

TEST(E4M3, MidpointsGoToTheEvenCode) {
  for (uint8_t code = 0; code < 126; ++code) {
    auto middle = static_cast<float>((e4m3(code) + e4m3(code + 1)) / 2);
    uint8_t even = code % 2 == 0 ? code : code + 1;
    EXPECT_EQ(encodeE4M3(middle), even);
    EXPECT_EQ(encodeE4M3(-middle), even | 128);
    EXPECT_EQ(encodeE4M3(std::nextafter(middle, inf)), code + 1);
    EXPECT_EQ(encodeE4M3(std::nextafter(middle, 0.F)), code);
  }
}

TEST(E4M3, Specials) {
  EXPECT_EQ(encodeE4M3(nan), 0x7F);
  EXPECT_EQ(encodeE4M3(-nan), 0x7F);
  EXPECT_EQ(encodeE4M3(inf), 0x7E);
  EXPECT_EQ(encodeE4M3(-inf), 0xFE);
  EXPECT_EQ(encodeE4M3(464), 0x7E);
  EXPECT_EQ(encodeE4M3(-3e38F), 0xFE);
  EXPECT_EQ(encodeE4M3(-0.F), 0x80);
  EXPECT_EQ(encodeE4M3(-0x1p-10F), 0x80); // A tie between 0 and -2^-9.
  EXPECT_EQ(encodeE4M3(1e-45F), 0);
}

TEST(E4M3, AgreesWithASearch) {
  for (float value : manyFloats())
    if (!std::isnan(value)) {
      double clamped = std::clamp<double>(value, -448, 448);
      ASSERT_EQ(encodeE4M3(value), toE4M3(clamped)) << value;
    }
}

TEST(E2M1, EveryCode) {
  const float values[8] = {0, .5F, 1, 1.5F, 2, 3, 4, 6};
  for (uint8_t code = 0; code < 16; ++code) {
    float value = code < 8 ? values[code] : -values[code - 8];
    EXPECT_EQ(bits(decodeE2M1(code)), bits(value));
    EXPECT_EQ(bits(decodeE2M1(code)), bits(e2m1(code)));
    EXPECT_EQ(bits(decodeE2M1(code | 0xF0)), bits(value));
    EXPECT_EQ(encodeE2M1(value), code);
  }
}

TEST(E2M1, MidpointsAsNvidiaHasThem) {
  const std::pair<float, float> ties[] = {{.25F, 0},  {.75F, 1}, {1.25F, 1},
                                          {1.75F, 2}, {2.5F, 2}, {3.5F, 4},
                                          {5, 4}};
  uint8_t below = 0;
  for (auto [middle, value] : ties) {
    EXPECT_EQ(decodeE2M1(encodeE2M1(middle)), value) << middle;
    EXPECT_EQ(decodeE2M1(encodeE2M1(-middle)), -value) << middle;
    EXPECT_EQ(encodeE2M1(std::nextafter(middle, 0.F)), below);
    EXPECT_EQ(encodeE2M1(std::nextafter(middle, inf)), below + 1);
    ++below;
  }
}

TEST(E2M1, Specials) {
  EXPECT_EQ(encodeE2M1(nan), 0);
  EXPECT_EQ(encodeE2M1(-nan), 0);
  EXPECT_EQ(encodeE2M1(inf), 7);
  EXPECT_EQ(encodeE2M1(-100), 15);
  EXPECT_EQ(encodeE2M1(-0.F), 8);
  EXPECT_EQ(encodeE2M1(-.1F), 8);
}

TEST(E2M1, AgreesWithASearch) {
  for (float value : manyFloats())
    if (!std::isnan(value)) {
      double clamped = std::clamp<double>(value, -6, 6);
      ASSERT_EQ(encodeE2M1(value), toE2M1(clamped)) << value;
    }
}

//===----------------------------------------------------------------------===//
// bf16 and f16: every code, and between the codes
//===----------------------------------------------------------------------===//

struct Sixteen {
  const char *name;
  int exponentBits, mantissaBits, bias;
  float (*decode)(uint16_t);
  uint16_t (*encode)(float);
  uint16_t infinity() const {
    return static_cast<uint16_t>(((1 << exponentBits) - 1) << mantissaBits);
  }
  double value(uint32_t code) const {
    return fieldsToValue(code, exponentBits, mantissaBits, bias);
  }
};

class SixteenBits : public testing::TestWithParam<Sixteen> {};

TEST_P(SixteenBits, EveryCode) {
  const Sixteen &f = GetParam();
  for (uint32_t c = 0; c < 65536; ++c) {
    auto code = static_cast<uint16_t>(c);
    uint32_t magnitude = c & 0x7FFF;
    float value = f.decode(code);
    if (magnitude > f.infinity()) {
      ASSERT_TRUE(std::isnan(value)) << c;
      ASSERT_TRUE(std::isnan(f.decode(f.encode(value)))) << c;
      continue;
    }
    if (magnitude == f.infinity())
      ASSERT_EQ(value, c >> 15 ? -inf : inf);
    else
      ASSERT_EQ(bits(value), bits(f.value(c))) << c;
    ASSERT_EQ(f.encode(value), code) << c;
  }
}

TEST_P(SixteenBits, RoundsBetweenCodes) {
  const Sixteen &f = GetParam();
  for (uint32_t c = 0; c + 1 < f.infinity(); ++c) {
    double middle = (f.value(c) + f.value(c + 1)) / 2;
    auto m = static_cast<float>(middle);
    ASSERT_EQ(double(m), middle); // Both formats leave f32 room for it.
    ASSERT_EQ(f.encode(m), c % 2 == 0 ? c : c + 1);
    ASSERT_EQ(f.encode(-m), (c % 2 == 0 ? c : c + 1) | 0x8000);
    ASSERT_EQ(f.encode(std::nextafter(m, inf)), c + 1);
    ASSERT_EQ(f.encode(std::nextafter(m, 0.F)), c);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Formats, SixteenBits,
    testing::Values(Sixteen{"bf16", 8, 7, 127, decodeBF16, encodeBF16},
                    Sixteen{"f16", 5, 10, 15, decodeF16, encodeF16}),
    [](const auto &info) { return info.param.name; });

TEST(F16, BeyondTheLargest) {
  EXPECT_EQ(encodeF16(65504), 0x7BFF);
  EXPECT_EQ(encodeF16(65519.996F), 0x7BFF);
  EXPECT_EQ(encodeF16(65520), 0x7C00); // A tie; the even code is infinity.
  EXPECT_EQ(encodeF16(-1e30F), 0xFC00);
}

TEST(BF16, BeyondTheLargest) {
  EXPECT_EQ(encodeBF16(std::numeric_limits<float>::max()), 0x7F80);
  // A NaN whose upper mantissa is empty must not become infinity.
  EXPECT_EQ(encodeBF16(std::bit_cast<float>(0x7F800001)), 0x7FC0);
}

} // namespace
