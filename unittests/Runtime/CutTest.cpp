//===- CutTest.cpp - rectangles cut out of stored tensors -----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Cut.h"
#include "mla/Quant/Matrix.h"
#include <gtest/gtest.h>
#include <vector>

using namespace mla;
using namespace mla::runtime;

namespace {

using Bytes = std::vector<std::byte>;

/// Nothing is written but what is wanted, and all of that.
TEST(Cut, Padding) {
  constexpr std::byte poison{0xA5};
  for (Format f : {Format::F32, Format::BF16, Format::F16, Format::FP8Block,
                   Format::NVFP4, Format::Int4G32}) {
    constexpr int64_t rows = 200, columns = 320;
    Bytes stored[3];
    size_t p = 0;
    for (const StoragePart &part : storageParts(f, rows, columns))
      stored[p++].assign(part.bytes(), std::byte{0x11});
    for (const Rectangle &w :
         {Rectangle{128, 128, 256, 128}, Rectangle{192, 32, 288, 32},
          Rectangle{256, 5, 0, 64}, Rectangle{0, 7, 384, 96},
          Rectangle{0, 200, 0, 320}}) {
      std::vector<PartCut> cuts = cutParts(f, rows, columns, w);
      std::vector<StoragePart> parts = storageParts(f, w.rows, w.columns);
      ASSERT_EQ(cuts.size(), parts.size());
      for (p = 0; p < cuts.size(); ++p) {
        const PartCut &cut = cuts[p];
        ASSERT_EQ(cut.bytes(), parts[p].bytes());
        Bytes out(cut.bytes() + 2, poison);
        int64_t half = cut.wantedRows / 2;
        cut.copy(stored[p].data(), half, cut.wantedRows,
                 out.data() + 1 + half * cut.wantedBytes);
        EXPECT_EQ(out[static_cast<size_t>(half * cut.wantedBytes)], poison);
        cut.copy(stored[p].data(), 0, half, out.data() + 1);
        EXPECT_EQ(out.front(), poison);
        EXPECT_EQ(out.back(), poison);
        for (int64_t row = 0; row < cut.wantedRows; ++row)
          for (int64_t b = 0; b < cut.wantedBytes; ++b) {
            bool there = cut.firstRow + row < cut.rows &&
                         cut.firstByte + b < cut.rowBytes;
            ASSERT_EQ(out[size_t(1 + row * cut.wantedBytes + b)],
                      there ? std::byte{0x11} : cut.padding[size_t(b % 4)])
                << formatName(f) << " " << p << " " << row << " " << b;
          }
      }
    }
    // Of nothing, all is padding: zeros as they are read.
    Bytes out[3];
    p = 0;
    for (const PartCut &cut : cutParts(f, 0, 0, {0, 3, 0, 64})) {
      out[p].assign(cut.bytes(), poison);
      cut.copy(nullptr, 0, cut.wantedRows, out[p++].data());
    }
    std::vector<float> values(3 * 64, 1);
    quant::dequantizeRows({f, 3, 64, out[0], out[1], out[2]}, 0, values);
    for (float value : values)
      ASSERT_EQ(value, 0) << formatName(f);
  }
}

} // namespace
