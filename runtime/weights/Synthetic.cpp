//===- Synthetic.cpp - weights as a function of name and seed -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Synthetic.h"
#include "mla/Support/Hash.h"
#include <bit>
#include <cmath>
#include <cstring>

namespace mla::runtime {
namespace {

constexpr uint64_t golden = 0x9E3779B97F4A7C15;

uint64_t splitMix64(uint64_t x) {
  x += golden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

} // namespace

SyntheticTensor::SyntheticTensor(std::string_view name,
                                 std::span<const int64_t> shape, int64_t seed)
    : start(fnv1a64(name) + static_cast<uint64_t>(seed) * golden) {
  offset = 0.0;
  if (shape.size() > 1) {
    double columns = static_cast<double>(shape.back());
    scale =
        name == "model.embed_tokens.weight"
            ? 1.0
            : static_cast<double>(static_cast<float>(std::sqrt(3.0 / columns)));
    return;
  }
  scale = 0.1;
  if (!name.ends_with(".bias") && !name.ends_with("e_score_correction_bias"))
    offset = 1.0; // A norm's weight.
}

float SyntheticTensor::value(uint64_t index) const {
  uint64_t bits = splitMix64(start + index);
  double u = static_cast<double>(bits >> 40) * 0x1p-23 - 1.0;
  return static_cast<float>(offset + scale * u);
}

void SyntheticTensor::fill(Format format, uint64_t first,
                           std::span<std::byte> out) const {
  if (format == Format::BF16) {
    for (size_t i = 0; i < out.size() / 2; ++i) {
      uint16_t bits = roundToBF16(value(first + i));
      std::memcpy(out.data() + 2 * i, &bits, 2);
    }
    return;
  }
  for (size_t i = 0; i < out.size() / 4; ++i) {
    float v = value(first + i);
    std::memcpy(out.data() + 4 * i, &v, 4);
  }
}

uint16_t roundToBF16(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7FFF + ((bits >> 16) & 1);
  return static_cast<uint16_t>(bits >> 16);
}

} // namespace mla::runtime
