//===- PackTest.cpp - packed matrices, element by element -----------------===//
//
// Part of mla. What must stand where is taken from the text of Pack.h, one
// element at a time, and compared with what pack() made of whole matrices.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Pack.h"
#include <cstring>
#include <gtest/gtest.h>
#include <random>
#include <vector>

using namespace mla;
using namespace mla::quant;

namespace {

using Bytes = std::vector<std::byte>;

struct Stored {
  Format format;
  int64_t rows, columns;
  Bytes values, scales, global;
  ConstMatrixParts parts() const {
    return {format, rows, columns, values, scales, global};
  }
};

/// Random bytes: pack() does not look at what they mean.
Stored randomMatrix(Format format, int64_t rows, int64_t columns,
                    uint32_t seed) {
  std::mt19937 random(seed);
  Stored m{format, rows, columns, {}, {}, {}};
  Bytes *all[] = {&m.values, &m.scales, &m.global};
  size_t i = 0;
  for (const StoragePart &part : storageParts(format, rows, columns)) {
    all[i]->resize(part.bytes());
    for (std::byte &b : *all[i++])
      b = std::byte(random() & 255);
  }
  return m;
}

uint32_t bits(const Bytes &bytes, int64_t at, int64_t count) {
  uint32_t value = 0;
  EXPECT_LE(static_cast<size_t>(at + count), bytes.size());
  std::memcpy(&value, bytes.data() + at, static_cast<size_t>(count));
  return value;
}

/// The bits of an element as the checkpoint has them; of padding beyond.
uint32_t stored(const Stored &m, int64_t row, int64_t column) {
  bool inside = row < m.rows && column < m.columns;
  int64_t i = row * m.columns + column;
  switch (m.format) {
  case Format::BF16:
    return inside ? bits(m.values, 2 * i, 2) : 0;
  case Format::FP8Block:
    return inside ? bits(m.values, i, 1) : 0;
  case Format::NVFP4:
    return inside ? bits(m.values, i / 2, 1) >> 4 * (i % 2) & 15 : 0;
  default:
    return inside ? bits(m.values, i / 8 * 4, 4) >> 4 * (i % 8) & 15 : 8;
  }
}

/// The same from the packed matrix. Looks for the words and bits of which the
/// header's formula gives this column.
uint32_t packedElement(const Stored &m, const Bytes &out, int64_t row,
                       int64_t column) {
  int64_t unit = unitColumns(m.format), c = column % unit;
  int64_t units = (m.columns + unit - 1) / unit;
  int64_t base = (row / 4 * units + column / unit) * unitBytes(m.format) +
                 64 * (row % 4);
  int found = 0;
  uint32_t value = 0;
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t w = 0; w < 4; ++w) {
      uint32_t word = bits(out, base + 16 * t + 4 * w, 4);
      for (int64_t k = 0; k < 8; ++k) {
        int64_t p = k / 2, h = k % 2;
        if (m.format == Format::BF16 && k < 2 &&
            c == 16 * (w / 2) + 4 * t + 2 * (w % 2) + k) {
          value = word >> 16 * k & 0xFFFF;
        } else if (m.format == Format::FP8Block && k < 4 &&
                   c == 16 * w + 4 * t + k) {
          value = word >> 8 * k & 0xFF;
        } else if (m.format == Format::NVFP4 &&
                   c == 16 * (t + 4 * (w / 2)) + 8 * (w % 2) + 4 * (p / 2) +
                            2 * (p % 2) + h) {
          constexpr int sign[] = {15, 12, 14, 13}, magnitude[] = {9, 6, 3, 0};
          uint32_t half = word >> 16 * h & 0xFFFF;
          value = (half >> sign[p] & 1) << 3 | (half >> magnitude[p] & 7);
        } else if (m.format == Format::Int4G32 &&
                   c == 32 * t + 8 * w + 4 * (p / 2) + 2 * (p % 2) + h) {
          value = word >> (16 * h + 4 * p) & 15;
        } else {
          continue;
        }
        ++found;
      }
    }
  EXPECT_EQ(found, 1);
  return value;
}

void check(const Stored &m, const Bytes &out) {
  int64_t unit = unitColumns(m.format);
  int64_t rows = (m.rows + 15) / 16 * 16;
  int64_t units = (m.columns + unit - 1) / unit;
  int64_t mistakes = 0;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < units * unit; ++c)
      mistakes += stored(m, r, c) != packedElement(m, out, r, c);
  EXPECT_EQ(mistakes, 0);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t u = 0; u < units; ++u) {
      int64_t at = (r / 4 * units + u) * unitBytes(m.format) + 256 + 8 * (r % 4);
      if (m.format == Format::NVFP4)
        for (int64_t b = 0; b < 8; ++b) {
          int64_t c = 128 * u + 16 * b;
          bool inside = r < m.rows && c < m.columns;
          mistakes += bits(out, at + b, 1) !=
                      (inside ? bits(m.scales, (r * m.columns + c) / 16, 1) : 0);
        }
      if (m.format == Format::Int4G32)
        for (int64_t g = 0; g < 4; ++g) {
          int64_t c = 128 * u + 32 * g;
          bool inside = r < m.rows && c < m.columns;
          mistakes +=
              bits(out, at + 2 * g, 2) !=
              (inside ? bits(m.scales, (r * m.columns + c) / 32 * 2, 2) : 0);
        }
    }
  EXPECT_EQ(mistakes, 0);
  // The tail.
  int64_t at = rows / 4 * units * unitBytes(m.format);
  ASSERT_EQ(packedTail(m.format, m.rows, m.columns), at);
  const Bytes &tail = m.format == Format::FP8Block ? m.scales : m.global;
  ASSERT_LE(static_cast<size_t>(at) + tail.size(), out.size());
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), out.begin() + at));
  for (size_t i = static_cast<size_t>(at) + tail.size(); i < out.size(); ++i)
    EXPECT_EQ(out[i], std::byte{}) << i;
  EXPECT_EQ(out.size() % 256, 0u);
  EXPECT_LT(out.size(), static_cast<size_t>(at) + tail.size() + 256);
}

class Pack : public testing::TestWithParam<Format> {};

TEST_P(Pack, EveryElementOfEveryShape) {
  const int64_t group =
      GetParam() == Format::FP8Block ? 1 : scaleGroup(GetParam());
  uint32_t seed = 1;
  for (int64_t rows : {1, 3, 4, 15, 16, 17, 130, 257})
    for (int64_t columns : {1, 2, 3, 4, 5, 8, 9, 31, 130}) {
      SCOPED_TRACE(std::to_string(rows) + " x " +
                   std::to_string(columns * group));
      Stored m = randomMatrix(GetParam(), rows, columns * group, ++seed);
      // What was in memory before must not show.
      Bytes out(packedBytes(GetParam(), rows, columns * group),
                std::byte{0xA5});
      pack(m.parts(), 0, packedQuads(rows), out);
      check(m, out);
    }
}

TEST_P(Pack, RangesAddUp) {
  Stored m = randomMatrix(GetParam(), 137, 416, 7);
  Bytes out(packedBytes(GetParam(), m.rows, m.columns), std::byte{0x5A});
  int64_t quads = packedQuads(m.rows);
  ASSERT_EQ(quads, 36);
  pack(m.parts(), 20, quads, out); // In any order.
  pack(m.parts(), 0, 1, out);
  pack(m.parts(), 1, 20, out);
  pack(m.parts(), 3, 3, out);
  check(m, out);
}

INSTANTIATE_TEST_SUITE_P(Quant, Pack,
                         testing::Values(Format::BF16, Format::FP8Block,
                                         Format::NVFP4, Format::Int4G32),
                         [](const auto &info) {
                           return std::string(formatName(info.param));
                         });

TEST(PackFormats, Known) {
  for (Format f : {Format::F32, Format::F16, Format::FP8E4M3, Format::I32})
    EXPECT_FALSE(canPack(f)) << formatName(f);
}

} // namespace
