//===- Format.cpp - element types and storage formats ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Format.h"
#include <array>
#include <utility>

namespace mla {

static constexpr std::array<std::pair<Format, std::string_view>, 8> names = {{
    {Format::F32, "f32"},
    {Format::BF16, "bf16"},
    {Format::F16, "f16"},
    {Format::FP8Block, "fp8_block"},
    {Format::NVFP4, "nvfp4"},
    {Format::Int4G32, "int4_g32"},
    {Format::FP8E4M3, "fp8_e4m3"},
    {Format::I32, "i32"},
}};

std::string_view formatName(Format format) {
  for (const auto &[f, name] : names)
    if (f == format)
      return name;
  return "unknown";
}

std::optional<Format> parseFormat(std::string_view name) {
  for (const auto &[f, n] : names)
    if (n == name)
      return f;
  return std::nullopt;
}

std::optional<uint64_t> elementBytes(Format format) {
  switch (format) {
  case Format::F32:
  case Format::I32:
    return 4;
  case Format::BF16:
  case Format::F16:
    return 2;
  case Format::FP8E4M3:
    return 1;
  case Format::FP8Block:
  case Format::NVFP4:
  case Format::Int4G32:
    return std::nullopt;
  }
  return std::nullopt;
}

static uint64_t ceilDiv(uint64_t a, uint64_t b) { return (a + b - 1) / b; }

std::vector<StoragePart> storageParts(Format format, int64_t rows,
                                      int64_t columns) {
  auto r = static_cast<uint64_t>(rows), c = static_cast<uint64_t>(columns);
  switch (format) {
  case Format::FP8Block:
    return {{"values", 1, r * c},
            {"scales", 4, ceilDiv(r, 128) * ceilDiv(c, 128)}};
  case Format::NVFP4:
    return {{"values", 1, r * (c / 2)},
            {"scales", 1, r * (c / 16)},
            {"global", 4, 1}};
  case Format::Int4G32:
    return {{"values", 4, r * (c / 8)}, {"scales", 2, r * (c / 32)}};
  default:
    return {{"values", elementBytes(format).value_or(0), r * c}};
  }
}

size_t storagePartCount(Format format) {
  return storageParts(format, 1, 1).size();
}

int64_t scaleGroup(Format format) {
  switch (format) {
  case Format::FP8Block:
    return 128;
  case Format::NVFP4:
    return 16;
  case Format::Int4G32:
    return 32;
  default:
    return 1;
  }
}

} // namespace mla
