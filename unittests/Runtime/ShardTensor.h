//===- ShardTensor.h - tensors of tests, with their values ------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_SHARDTENSOR_H
#define MLA_UNITTESTS_RUNTIME_SHARDTENSOR_H

#include "mla/Quant/Codec.h"
#include "mla/Quant/Matrix.h"
#include "runtime/weights/Synthetic.h"
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace mla::test {

/// A checkpoint's tensor as a whole, and its values.
struct Tensor {
  int64_t rows, columns;
  std::vector<std::byte> part[3];
  std::vector<float> values;

  Tensor(Format format, int64_t rows, int64_t columns,
         const std::vector<float> &from, float bound)
      : rows(rows), columns(columns), values(from.size()) {
    size_t p = 0;
    for (const StoragePart &one : storageParts(format, rows, columns))
      part[p++].resize(one.bytes());
    if (format == Format::NVFP4) {
      float global = quant::nvfp4GlobalScale(bound);
      std::memcpy(part[2].data(), &global, 4);
    }
    quant::quantizeRows(from, 0,
                        {format, rows, columns, part[0], part[1], part[2]});
    quant::dequantizeRows({format, rows, columns, part[0], part[1], part[2]}, 0,
                          values);
  }
  float at(int64_t row, int64_t column) const {
    return row < rows && column < columns
               ? values[static_cast<size_t>(row * columns + column)]
               : 0;
  }
};

inline Tensor randomTensor(Format format, int64_t rows, int64_t columns,
                    std::mt19937 &random) {
  std::vector<float> values(static_cast<size_t>(rows * columns));
  float most = 0;
  // Of several magnitudes, so that a scale that is another's is seen.
  for (size_t i = 0; i < values.size(); ++i) {
    float size = static_cast<float>(1 + i / 16 % 7 + i / 4096 % 5);
    values[i] = size * (static_cast<float>(random() >> 8) * 0x1p-23F - 1);
    most = std::max(most, std::abs(values[i]));
  }
  return {format, rows, columns, values, most};
}

/// By docs/synthetic.md.
inline Tensor syntheticTensor(const std::string &name, Format format, bool vector,
                       int64_t rows, int64_t columns) {
  std::vector<int64_t> shape = {rows, columns};
  if (vector)
    shape = {columns};
  runtime::SyntheticTensor formula(name, shape, 5);
  std::vector<float> values(static_cast<size_t>(rows * columns));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = formula.value(i);
    if (format != Format::F32)
      values[i] = quant::decodeBF16(quant::encodeBF16(values[i]));
  }
  return {format, rows, columns, values, formula.bound()};
}

} // namespace mla::test

#endif // MLA_UNITTESTS_RUNTIME_SHARDTENSOR_H
