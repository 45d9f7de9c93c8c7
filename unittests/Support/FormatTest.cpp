//===- FormatTest.cpp - element types and storage formats -----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Format.h"
#include <gtest/gtest.h>

using namespace mla;

namespace {

TEST(Format, NamesGoBothWays) {
  for (Format format :
       {Format::F32, Format::BF16, Format::F16, Format::FP8Block, Format::NVFP4,
        Format::Int4G32, Format::FP8E4M3, Format::I32})
    EXPECT_EQ(parseFormat(formatName(format)), format) << formatName(format);
  EXPECT_EQ(formatName(Format::Int4G32), "int4_g32");
  EXPECT_EQ(parseFormat("BF16"), std::nullopt);
  EXPECT_EQ(parseFormat(""), std::nullopt);
}

TEST(Format, BytesOnlyWhereElementsStandAlone) {
  EXPECT_EQ(elementBytes(Format::F32), 4u);
  EXPECT_EQ(elementBytes(Format::I32), 4u);
  EXPECT_EQ(elementBytes(Format::BF16), 2u);
  EXPECT_EQ(elementBytes(Format::F16), 2u);
  EXPECT_EQ(elementBytes(Format::FP8E4M3), 1u);
  EXPECT_EQ(elementBytes(Format::FP8Block), std::nullopt);
  EXPECT_EQ(elementBytes(Format::NVFP4), std::nullopt);
  EXPECT_EQ(elementBytes(Format::Int4G32), std::nullopt);
}

} // namespace
