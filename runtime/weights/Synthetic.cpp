//===- Synthetic.cpp - weights as a function of name and seed -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Synthetic.h"
#include "mla/Quant/Codec.h"
#include "mla/Support/Hash.h"
#include "mla/Support/Wide.h"
#include <algorithm>
#include <cmath>

namespace mla::runtime {
namespace {

constexpr uint64_t golden = 0x9E3779B97F4A7C15;

MLA_WIDE_BODY uint64_t splitMix64(uint64_t x) {
  x += golden;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

MLA_WIDE_BODY float valueOf(uint64_t state, double offset, double scale) {
  // Through 32 bits, for which more processors have a vector conversion.
  auto u = static_cast<int32_t>(splitMix64(state) >> 40);
  return static_cast<float>(
      offset + scale * (static_cast<double>(u) * 0x1p-23 - 1.0));
}

MLA_WIDE_BODY void fillBody(uint64_t state, double offset, double scale,
                            std::span<float> out, bool rounded) {
  if (rounded)
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = quant::decodeBF16(
          quant::encodeBF16(valueOf(state + i, offset, scale)));
  else
    for (size_t i = 0; i < out.size(); ++i)
      out[i] = valueOf(state + i, offset, scale);
}

MLA_WIDE_TARGET void fillWide(uint64_t state, double offset, double scale,
                              std::span<float> out, bool rounded) {
  fillBody(state, offset, scale, out, rounded);
}

/// int4's values go by the name of the weight that they pack.
std::string_view weightName(std::string_view name) {
  constexpr std::string_view packed = "_packed";
  if (name.ends_with(packed))
    name.remove_suffix(packed.size());
  return name;
}

} // namespace

SyntheticTensor::SyntheticTensor(std::string_view name,
                                 std::span<const int64_t> shape, int64_t seed)
    : start(fnv1a64(weightName(name)) + static_cast<uint64_t>(seed) * golden) {
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
  return valueOf(start + index, offset, scale);
}

void SyntheticTensor::fill(uint64_t first, std::span<float> out,
                           bool rounded) const {
  if (wideVectors())
    fillWide(start + first, offset, scale, out, rounded);
  else
    fillBody(start + first, offset, scale, out, rounded);
}

float SyntheticTensor::bound() const {
  return static_cast<float>(offset + scale);
}

std::vector<int64_t> checkpointShape(const plan::Weight &weight) {
  std::vector<int64_t> own(weight.shape.begin() + (weight.stacked ? 1 : 0),
                           weight.shape.end());
  if (weight.slice.rows == 0)
    return own;
  if (own.size() < 2)
    return {weight.slice.columns};
  return {weight.slice.rows, weight.slice.columns};
}

void generateMatrix(const SyntheticTensor &tensor, int64_t columns,
                    const Rectangle &wanted, const quant::MatrixParts &out,
                    std::vector<float> &values) {
  // As few rows at a time as there can be: they are still in the cache when
  // they are quantized.
  int64_t step = out.format == Format::FP8Block ? 128 : 1;
  auto width = static_cast<size_t>(wanted.columns);
  for (int64_t row = 0; row < wanted.rows; row += step) {
    int64_t n = std::min(step, wanted.rows - row);
    values.resize(static_cast<size_t>(n) * width);
    for (int64_t r = 0; r < n; ++r)
      tensor.fill(
          static_cast<uint64_t>((wanted.firstRow + row + r) * columns +
                                wanted.firstColumn),
          std::span(values).subspan(static_cast<size_t>(r) * width, width),
          out.format != Format::F32);
    quant::quantizeRows(values, row, out);
  }
}

} // namespace mla::runtime
