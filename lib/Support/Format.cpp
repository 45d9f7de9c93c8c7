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

} // namespace mla
