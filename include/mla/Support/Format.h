//===- Format.h - element types and storage formats -------------*- C++ -*-===//
//
// Part of mla. The closed set of formats in which a tensor may be stored. The
// names are those that the IR, the plan and every message use.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_SUPPORT_FORMAT_H
#define MLA_SUPPORT_FORMAT_H

#include <cstdint>
#include <optional>
#include <string_view>

namespace mla {

enum class Format {
  F32,
  BF16,
  F16,
  FP8Block, ///< e4m3, one f32 scale for each 128 x 128 block (weight_scale_inv)
  NVFP4,    ///< e2m1, one e4m3 scale for 16 columns, one f32 scale a tensor
  Int4G32,  ///< int4 in int32 words, one bf16 scale for 32 columns
  FP8E4M3,  ///< e4m3 with one f32 scale; the latent cache
  I32       ///< ids and indices
};

/// "f32", "bf16", "f16", "fp8_block", "nvfp4", "int4_g32", "fp8_e4m3", "i32".
std::string_view formatName(Format format);
std::optional<Format> parseFormat(std::string_view name);

/// Bytes of one element for the formats whose elements stand alone (f32, bf16,
/// f16, fp8_e4m3, i32); nothing for those that need scales beside them.
std::optional<uint64_t> elementBytes(Format format);

} // namespace mla

#endif // MLA_SUPPORT_FORMAT_H
