//===- Numbers.h - whether bytes are numbers --------------------*- C++ -*-===//
//
// Part of mla. Kernels turn e4m3 codes and scales into f32 without looking for
// NaN, so a weight that has one is refused when it is loaded.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_NUMBERS_H
#define MLA_RUNTIME_WEIGHTS_NUMBERS_H

#include "mla/Support/Format.h"
#include <cstddef>
#include <span>

namespace mla::runtime {

/// The elements of a part of a weight that is looked at.
enum class CheckedFormat {
  None, ///< NaN stays NaN in kernels, or the format has none
  E4M3,
  BF16,
  F32
};

/// That of part `part` (see storageParts()) of a weight of `format`.
CheckedFormat checkedFormat(Format format, size_t part);

/// Whether no element is NaN or infinite. With None it reads a byte of each page
/// of the memory and is true.
bool allNumbers(CheckedFormat format, std::span<const std::byte> bytes);

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_NUMBERS_H
