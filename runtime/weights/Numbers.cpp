//===- Numbers.cpp - whether bytes are numbers ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Numbers.h"
#include <cstdint>
#include <cstring>

namespace mla::runtime {

CheckedFormat checkedFormat(Format format, size_t part) {
  switch (format) {
  case Format::FP8Block:
    return part == 0 ? CheckedFormat::E4M3 : CheckedFormat::F32;
  case Format::NVFP4:
    return part == 0   ? CheckedFormat::None
           : part == 1 ? CheckedFormat::E4M3
                       : CheckedFormat::F32;
  case Format::Int4G32:
    return part == 0 ? CheckedFormat::None : CheckedFormat::BF16;
  default:
    return CheckedFormat::None;
  }
}

/// Whether the bits of `mask` are all set in no element. `bytes` may lie
/// anywhere.
template <typename Bits>
static bool noneFull(std::span<const std::byte> bytes, Bits mask) {
  uint32_t bad = 0;
  for (size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    bad |= static_cast<uint32_t>((bits & mask) == mask);
  }
  return bad == 0;
}

bool allNumbers(CheckedFormat format, std::span<const std::byte> bytes) {
  constexpr size_t pageBytes = 4096;
  switch (format) {
  case CheckedFormat::E4M3:
    return noneFull<uint8_t>(bytes, 0x7F);
  case CheckedFormat::BF16:
    return noneFull<uint16_t>(bytes, 0x7F80);
  case CheckedFormat::F32:
    return noneFull<uint32_t>(bytes, 0x7F800000);
  case CheckedFormat::None:
    for (size_t at = 0; at < bytes.size(); at += pageBytes)
      (void)*static_cast<const volatile std::byte *>(&bytes[at]);
  }
  return true;
}

} // namespace mla::runtime
