//===- MatrixTest.cpp - matrices in every storage format ------------------===//
//
// Part of mla. Against a reference that computes one value at a time in double
// and rounds to f32 where the definition does (a quotient or product of floats,
// computed in double and rounded, is the one of f32 arithmetic).
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Matrix.h"
#include "Reference.h"
#include "mla/Quant/Codec.h"
#include <algorithm>
#include <cstring>
#include <gtest/gtest.h>
#include <random>

using namespace mla;
using namespace mla::quant;
using namespace mla::test;

namespace {

/// Owns the parts of a matrix, each at an odd address. One byte behind each
/// part must stay as it is.
struct Stored {
  Stored(Format format, int64_t rows, int64_t columns)
      : format(format), rows(rows), columns(columns) {
    for (const StoragePart &part : storageParts(format, rows, columns))
      parts.emplace_back(part.bytes() + 2, std::byte{0xA5});
  }
  template <typename Parts> Parts get() {
    Parts out{format, rows, columns, {}, {}, {}};
    auto inner = [](auto &p) { return std::span(p).subspan(1, p.size() - 2); };
    out.values = inner(parts[0]);
    if (parts.size() > 1)
      out.scales = inner(parts[1]);
    if (parts.size() > 2)
      out.global = inner(parts[2]);
    return out;
  }
  void setGlobal(float value) {
    std::memcpy(get<MatrixParts>().global.data(), &value, 4);
  }
  bool fencesStand() const {
    return std::all_of(parts.begin(), parts.end(), [](const auto &p) {
      return p.front() == std::byte{0xA5} && p.back() == std::byte{0xA5};
    });
  }
  Format format;
  int64_t rows, columns;
  std::vector<std::vector<std::byte>> parts;
};

using Floats = std::vector<float>;

float quotient(float a, float b) {
  return static_cast<float>(double(a) / double(b));
}
float product(float a, float b) {
  return static_cast<float>(double(a) * double(b));
}

/// What one [rows, columns] matrix becomes when stored and read back.
class Reference {
public:
  Reference(const Floats &w, int64_t rows, int64_t columns)
      : w(w), rows(rows), columns(columns) {}

  float amax(int64_t r0, int64_t r1, int64_t c0, int64_t c1) const {
    float out = 0;
    for (int64_t r = r0; r < std::min(r1, rows); ++r)
      for (int64_t c = c0; c < std::min(c1, columns); ++c)
        out = std::max(out, std::fabs(w[r * columns + c]));
    return out;
  }
  float fp8(int64_t r, int64_t c, bool ue8m0) const {
    int64_t r0 = r / 128 * 128, c0 = c / 128 * 128;
    float a = amax(r0, r0 + 128, c0, c0 + 128);
    float scale = a == 0 ? 1 : quotient(a, 448);
    if (ue8m0)
      scale = static_cast<float>(std::exp2(std::ceil(std::log2(scale))));
    double x = quotient(w[r * columns + c], scale);
    return product(static_cast<float>(e4m3(toE4M3(std::clamp(x, -448., 448.)))),
                   scale);
  }
  float nvfp4(int64_t r, int64_t c, float global) const {
    int64_t c0 = c / 16 * 16;
    float a = amax(r, r + 1, c0, c0 + 16);
    float ideal = a == 0 ? 1 : quotient(a, product(6, global));
    double scale = e4m3(toE4M3(std::clamp<double>(ideal, 1. / 512, 448)));
    float step = product(static_cast<float>(scale), global);
    double x = quotient(w[r * columns + c], step);
    return product(static_cast<float>(e2m1(toE2M1(std::clamp(x, -6., 6.)))),
                   step);
  }
  float int4(int64_t r, int64_t c) const {
    int64_t c0 = c / 32 * 32;
    float ideal = quotient(amax(r, r + 1, c0, c0 + 32), 7);
    // bf16: 8 bits of mantissa, the hidden one included.
    int exponent = 0;
    double fraction = std::frexp(ideal, &exponent);
    double scale =
        std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
    if (scale == 0)
      scale = 1;
    double x = quotient(w[r * columns + c], static_cast<float>(scale));
    return static_cast<float>(std::clamp(std::nearbyint(x), -8., 7.) * scale);
  }

private:
  const Floats &w;
  int64_t rows, columns;
};

/// Random weights whose blocks differ in size, with zero and tiny blocks.
Floats weights(int64_t rows, int64_t columns) {
  std::mt19937 random(static_cast<uint32_t>(rows * 1000 + columns));
  std::normal_distribution<float> normal(0, .02F);
  Floats out(static_cast<size_t>(rows * columns));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c) {
      int64_t kind = (r + c / 16) % 7;
      float size = kind == 0 ? 0.F : kind == 1 ? 1e-6F : kind == 2 ? 30.F : 1.F;
      out[r * columns + c] = normal(random) * size;
    }
  return out;
}

struct Shape {
  int64_t rows, columns;
};

Floats roundTrip(const Floats &w, Format format, Shape shape, float global = 0,
                 bool ue8m0 = false) {
  Stored stored(format, shape.rows, shape.columns);
  if (format == Format::NVFP4)
    stored.setGlobal(global);
  quantizeRows(w, 0, stored.get<MatrixParts>(), ue8m0);
  EXPECT_TRUE(stored.fencesStand());
  Floats back(w.size());
  dequantizeRows(stored.get<ConstMatrixParts>(), 0, back);
  return back;
}

template <typename F>
void expectSame(const Floats &got, Shape shape, F expected) {
  for (int64_t r = 0; r < shape.rows; ++r)
    for (int64_t c = 0; c < shape.columns; ++c)
      ASSERT_EQ(got[r * shape.columns + c], expected(r, c)) << r << " " << c;
}

TEST(Matrix, Fp8Block) {
  for (Shape s : {Shape{1, 1}, {128, 40}, {130, 129}, {257, 48}, {7, 300}}) {
    Floats w = weights(s.rows, s.columns);
    Reference reference(w, s.rows, s.columns);
    for (bool ue8m0 : {false, true})
      expectSame(
          roundTrip(w, Format::FP8Block, s, 0, ue8m0), s,
          [&](int64_t r, int64_t c) { return reference.fp8(r, c, ue8m0); });
  }
}

TEST(Matrix, NvFp4) {
  for (Shape s : {Shape{1, 16}, {3, 48}, {129, 16 * 7}, {64, 256}}) {
    Floats w = weights(s.rows, s.columns);
    Reference reference(w, s.rows, s.columns);
    float own = nvfp4GlobalScale(largestMagnitude(w));
    // The second is what a partner with larger values would impose; the third
    // is too small, so that scales and codes saturate.
    for (float global : {own, own * 5, own / 3})
      expectSame(
          roundTrip(w, Format::NVFP4, s, global), s,
          [&](int64_t r, int64_t c) { return reference.nvfp4(r, c, global); });
  }
}

TEST(Matrix, Int4) {
  for (Shape s : {Shape{1, 32}, {3, 96}, {129, 32 * 7}, {64, 256}}) {
    Floats w = weights(s.rows, s.columns);
    Reference reference(w, s.rows, s.columns);
    expectSame(roundTrip(w, Format::Int4G32, s), s,
               [&](int64_t r, int64_t c) { return reference.int4(r, c); });
  }
}

TEST(Matrix, FormatsWithoutScalesRoundEachValue) {
  Shape s{5, 33};
  Floats w = weights(s.rows, s.columns);
  expectSame(roundTrip(w, Format::F32, s), s,
             [&](int64_t r, int64_t c) { return w[r * s.columns + c]; });
  expectSame(roundTrip(w, Format::BF16, s), s, [&](int64_t r, int64_t c) {
    return decodeBF16(encodeBF16(w[r * s.columns + c]));
  });
  expectSame(roundTrip(w, Format::F16, s), s, [&](int64_t r, int64_t c) {
    return decodeF16(encodeF16(w[r * s.columns + c]));
  });
}

/// The layout, byte by byte, on values that are exact in the format.
TEST(Matrix, Layout) {
  Floats w(32, 0);
  w[0] = 6, w[1] = -.5F, w[2] = 1, w[31] = -6;
  Stored fp4(Format::NVFP4, 1, 32);
  fp4.setGlobal(1);
  quantizeRows(w, 0, fp4.get<MatrixParts>());
  auto parts = fp4.get<MatrixParts>();
  EXPECT_EQ(parts.values[0], std::byte{0x97}); // -0.5 above 6
  EXPECT_EQ(parts.values[1], std::byte{0x02});
  EXPECT_EQ(parts.values[15], std::byte{0xF0});
  EXPECT_EQ(parts.scales[0], std::byte{0x38}); // 1
  EXPECT_EQ(parts.scales[1], std::byte{0x38});

  Floats v(32, 0);
  v[0] = 7, v[1] = -7, v[7] = 1, v[8] = 2;
  Stored four(Format::Int4G32, 1, 32);
  quantizeRows(v, 0, four.get<MatrixParts>());
  auto words = four.get<MatrixParts>();
  uint32_t word[2];
  std::memcpy(word, words.values.data(), sizeof(word));
  EXPECT_EQ(word[0], 0x9888881FU);
  EXPECT_EQ(word[1], 0x8888888AU);
  uint16_t scale = 0;
  std::memcpy(&scale, words.scales.data(), 2);
  EXPECT_EQ(scale, 0x3F80); // 1

  Floats x(130 * 130, 0);
  x[0] = 448, x[129 * 130 + 129] = -896;
  Stored eight(Format::FP8Block, 130, 130);
  quantizeRows(x, 0, eight.get<MatrixParts>());
  auto blocks = eight.get<MatrixParts>();
  float scales[4];
  std::memcpy(scales, blocks.scales.data(), sizeof(scales));
  EXPECT_EQ(scales[0], 1);
  EXPECT_EQ(scales[1], 1); // A block of zeros.
  EXPECT_EQ(scales[2], 1);
  EXPECT_EQ(scales[3], 2);
  EXPECT_EQ(blocks.values[0], std::byte{0x7E});
  EXPECT_EQ(blocks.values[129 * 130 + 129], std::byte{0xFE});
}

TEST(Matrix, ZeroBlocksHaveScaleOne) {
  Floats zeros(32, 0);
  EXPECT_EQ(nvfp4GlobalScale(0), 1);
  for (Format format : {Format::FP8Block, Format::NVFP4, Format::Int4G32})
    EXPECT_EQ(roundTrip(zeros, format, {1, 32}, 1), zeros);
  Stored fp4(Format::NVFP4, 1, 32);
  fp4.setGlobal(0.001F);
  quantizeRows(zeros, 0, fp4.get<MatrixParts>());
  EXPECT_EQ(fp4.get<MatrixParts>().scales[0], std::byte{0x38});
}

/// A block far below the matrix' largest value has scale 2^-9 at least; the
/// largest block has 448.
TEST(Matrix, ScalesOfNvFp4AreClamped) {
  Floats w(48, 0);
  w[0] = 2688, w[16] = 1e-6F, w[32] = 6 * 0x1p-9F;
  Stored fp4(Format::NVFP4, 1, 48);
  float global = nvfp4GlobalScale(2688);
  EXPECT_EQ(global, 1);
  fp4.setGlobal(global);
  quantizeRows(w, 0, fp4.get<MatrixParts>());
  auto parts = fp4.get<MatrixParts>();
  EXPECT_EQ(parts.scales[0], std::byte{0x7E});
  EXPECT_EQ(parts.scales[1], std::byte{0x01});
  EXPECT_EQ(parts.scales[2], std::byte{0x01});
  EXPECT_EQ(parts.values[0], std::byte{0x07});
  EXPECT_EQ(parts.values[8], std::byte{0x00});
  EXPECT_EQ(parts.values[16], std::byte{0x07});
}

/// The smallest and largest floats must give finite values.
TEST(Matrix, ExtremeMagnitudes) {
  for (float size : {1e-45F, 1e-40F, 3e-38F, 3e38F}) {
    Floats w(32, 0);
    w[0] = size, w[5] = -size;
    for (Format format : {Format::FP8Block, Format::NVFP4, Format::Int4G32})
      for (bool ue8m0 : {false, true})
        for (float back :
             roundTrip(w, format, {1, 32}, nvfp4GlobalScale(size), ue8m0)) {
          EXPECT_TRUE(std::isfinite(back));
          EXPECT_LE(std::fabs(back), size + 1e-39F + size / 64);
        }
  }
}

TEST(Matrix, LargestMagnitude) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(largestMagnitude({}), 0);
  EXPECT_EQ(largestMagnitude(Floats{1, -3, 2, -0.F}), 3);
  EXPECT_EQ(largestMagnitude(Floats{1, -inf}), inf);
  EXPECT_TRUE(std::isnan(largestMagnitude(Floats{inf, -std::nanf(""), 1})));
}

TEST(Matrix, Fits) {
  EXPECT_TRUE(fits(Format::NVFP4, 1, 48));
  EXPECT_FALSE(fits(Format::NVFP4, 1, 40));
  EXPECT_TRUE(fits(Format::Int4G32, 1, 96));
  EXPECT_FALSE(fits(Format::Int4G32, 1, 48));
  EXPECT_TRUE(fits(Format::FP8Block, 3, 5));
  EXPECT_TRUE(fits(Format::BF16, 3, 5));
  EXPECT_FALSE(fits(Format::BF16, 3, 0));
  EXPECT_FALSE(fits(Format::FP8E4M3, 3, 5));
  EXPECT_FALSE(fits(Format::I32, 3, 5));
}

TEST(Matrix, RangesOfRowsGiveTheWhole) {
  Shape s{300, 96};
  Floats w = weights(s.rows, s.columns);
  float global = nvfp4GlobalScale(largestMagnitude(w));
  for (Format format : {Format::F32, Format::BF16, Format::F16,
                        Format::FP8Block, Format::NVFP4, Format::Int4G32}) {
    SCOPED_TRACE(formatName(format));
    Stored whole(format, s.rows, s.columns), pieces(format, s.rows, s.columns);
    if (format == Format::NVFP4)
      whole.setGlobal(global), pieces.setGlobal(global);
    quantizeRows(w, 0, whole.get<MatrixParts>());
    auto cuts = format == Format::FP8Block
                    ? std::vector<int64_t>{0, 128, 256, 300}
                    : std::vector<int64_t>{0, 1, 130, 131, 299, 300};
    for (size_t i = 0; i + 1 < cuts.size(); ++i)
      quantizeRows(
          std::span(w).subspan(
              static_cast<size_t>(cuts[i] * s.columns),
              static_cast<size_t>((cuts[i + 1] - cuts[i]) * s.columns)),
          cuts[i], pieces.get<MatrixParts>());
    EXPECT_EQ(whole.parts, pieces.parts);

    Floats all(w.size()), some(static_cast<size_t>(7 * s.columns));
    dequantizeRows(whole.get<ConstMatrixParts>(), 0, all);
    dequantizeRows(whole.get<ConstMatrixParts>(), 125, some);
    EXPECT_TRUE(
        std::equal(some.begin(), some.end(), all.begin() + 125 * s.columns));
  }
}

} // namespace
