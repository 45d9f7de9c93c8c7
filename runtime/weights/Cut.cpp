//===- Cut.cpp - a rank's part of a matrix --------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Cut.h"
#include <algorithm>
#include <cstring>

namespace mla::runtime {
namespace {
int64_t ceilDiv(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t down(int64_t value, int64_t step) { return value / step * step; }
int64_t up(int64_t value, int64_t step) { return ceilDiv(value, step) * step; }

/// Rows that share a scale.
int64_t rowGroup(Format format) {
  return format == Format::FP8Block ? tile : 1;
}

std::array<std::byte, 4> repeated(std::byte a, std::byte b) {
  return {a, b, a, b};
}
/// 1, as each format of scales has it.
constexpr std::array<std::byte, 4> oneF32 = {std::byte{0}, std::byte{0},
                                             std::byte{0x80}, std::byte{0x3F}};
const auto oneE4M3 = repeated(std::byte{0x38}, std::byte{0x38});
const auto oneBF16 = repeated(std::byte{0x80}, std::byte{0x3F});
/// Codes of int4_g32 are the value plus 8.
const auto zeroInt4 = repeated(std::byte{0x88}, std::byte{0x88});

void pad(std::byte *out, int64_t bytes, const std::array<std::byte, 4> &with) {
  if (std::all_of(with.begin(), with.end(),
                  [&](std::byte byte) { return byte == with[0]; })) {
    std::fill_n(out, bytes, with[0]);
    return;
  }
  for (int64_t i = 0; i < bytes; ++i)
    out[i] = with[static_cast<size_t>(i % 4)];
}
} // namespace

Rectangle Rectangle::grown(Format format) const {
  int64_t height = rowGroup(format), width = scaleGroup(format);
  Rectangle all;
  all.firstRow = down(firstRow, height);
  all.rows = up(firstRow + rows, height) - all.firstRow;
  all.firstColumn = down(firstColumn, width);
  all.columns = up(firstColumn + columns, width) - all.firstColumn;
  return all;
}

Rectangle Rectangle::clipped(int64_t matrixRows, int64_t matrixColumns) const {
  Rectangle in = *this;
  in.rows = std::clamp<int64_t>(matrixRows - firstRow, 0, rows);
  in.columns = std::clamp<int64_t>(matrixColumns - firstColumn, 0, columns);
  if (in.rows == 0 || in.columns == 0)
    in.rows = in.columns = 0;
  return in;
}

Rectangle rectangleOf(const plan::Weight &weight) {
  return {weight.slice.firstRow, weight.matrixRows(), weight.slice.firstColumn,
          weight.matrixColumns()};
}

void PartCut::copy(const std::byte *array, int64_t begin, int64_t end,
                   std::byte *out) const {
  int64_t there = std::clamp<int64_t>(rowBytes - firstByte, 0, wantedBytes);
  for (int64_t row = begin; row < end; ++row, out += wantedBytes) {
    int64_t n = firstRow + row < rows ? there : 0;
    if (n != 0)
      std::memcpy(out, array + (firstRow + row) * rowBytes + firstByte,
                  static_cast<size_t>(n));
    // It begins at a whole element, and an element divides 4 bytes.
    pad(out + n, wantedBytes - n, padding);
  }
}

std::vector<PartCut> cutParts(Format format, int64_t rows, int64_t columns,
                              const Rectangle &w) {
  // Of values and scales of which a row has `bits` bits for `group` columns.
  auto rowWise = [&](int64_t bits, int64_t group,
                     const std::array<std::byte, 4> &padding) {
    auto bytes = [&](int64_t n) { return n / group * bits / 8; };
    return PartCut{rows,   bytes(columns),   w.firstRow, bytes(w.firstColumn),
                   w.rows, bytes(w.columns), padding};
  };
  PartCut global = {rows == 0 ? 0 : 1, 4, 0, 0, 1, 4, oneF32};
  switch (format) {
  case Format::FP8Block:
    return {rowWise(8, 1, {}),
            {ceilDiv(rows, tile), ceilDiv(columns, tile) * 4, w.firstRow / tile,
             w.firstColumn / tile * 4, ceilDiv(w.rows, tile),
             ceilDiv(w.columns, tile) * 4, oneF32}};
  case Format::NVFP4:
    // Two codes make a byte.
    return {rowWise(8, 2, {}), rowWise(8, 16, oneE4M3), global};
  case Format::Int4G32:
    return {rowWise(8, 2, zeroInt4), rowWise(16, 32, oneBF16)};
  default:
    return {rowWise(static_cast<int64_t>(elementBytes(format).value_or(0)) * 8,
                    1, {})};
  }
}

void cutMatrix(const quant::ConstMatrixParts &in, const Rectangle &wanted,
               const quant::MatrixParts &out) {
  std::vector<PartCut> cuts = cutParts(in.format, in.rows, in.columns, wanted);
  cuts[0].copy(in.values.data(), 0, cuts[0].wantedRows, out.values.data());
  if (cuts.size() > 1)
    cuts[1].copy(in.scales.data(), 0, cuts[1].wantedRows, out.scales.data());
}

quant::MatrixParts MatrixStore::resize(Format format, int64_t rows,
                                       int64_t columns) {
  size_t p = 0;
  for (const StoragePart &part : storageParts(format, rows, columns))
    parts[p++].resize(part.bytes());
  for (; p < parts.size(); ++p)
    parts[p].clear();
  return {format, rows, columns, parts[0], parts[1], parts[2]};
}

quant::MatrixParts rowsOf(const quant::MatrixParts &all, int64_t first,
                          int64_t rows) {
  quant::MatrixParts some = all;
  some.rows = rows;
  Rectangle wanted = {first, rows, 0, all.columns};
  std::vector<PartCut> cuts =
      cutParts(all.format, all.rows, all.columns, wanted);
  some.values = all.values.subspan(cuts[0].offset(), cuts[0].bytes());
  if (cuts.size() > 1)
    some.scales = all.scales.subspan(cuts[1].offset(), cuts[1].bytes());
  return some;
}

} // namespace mla::runtime
