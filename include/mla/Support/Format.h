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
#include <vector>

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

/// What one tensor of a weight consists of in memory: its values and, in the
/// quantized formats, scales beside them. Every part is a row-major array of
/// its own, as the checkpoint holds it:
///
///   fp8_block  values u8 e4m3 [rows, columns];
///              scales f32 [ceil(rows/128), ceil(columns/128)]
///   nvfp4      values u8 [rows, columns/2], the even column in the low nibble;
///              scales u8 e4m3 [rows, columns/16]; global f32 [1]
///   int4_g32   values i32 [rows, columns/8], column c in bits 4*(c%8), value
///              plus 8; scales bf16 [rows, columns/32]
struct StoragePart {
  std::string_view name; ///< "values", "scales", "global"
  uint64_t elementBytes;
  uint64_t elements;
  uint64_t bytes() const { return elementBytes * elements; }
};

/// The parts of a [rows, columns] matrix; a vector has one row. The formats
/// whose elements stand alone have one part. The product of the dimensions must
/// fit 60 bits.
std::vector<StoragePart> storageParts(Format format, int64_t rows,
                                      int64_t columns);
/// How many parts a tensor of `format` has: 1, 2 or 3.
size_t storagePartCount(Format format);

/// Columns that share a scale: 128, 16, 32; 1 for other formats. nvfp4 and
/// int4_g32 need it to divide the number of columns.
int64_t scaleGroup(Format format);

} // namespace mla

#endif // MLA_SUPPORT_FORMAT_H
