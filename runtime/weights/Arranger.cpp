//===- Arranger.cpp - cutting, converting and packing weights -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Pack.h"
#include "runtime/weights/Arrange.h"
#include "runtime/weights/Numbers.h"
#include "runtime/weights/Synthetic.h"
#include <algorithm>
#include <cmath>
#include <cstring>

namespace mla::runtime {
namespace {
constexpr int64_t tile = 128; ///< fp8_block: rows and columns of a block

/// Bytes of `columns` columns of a row, of values and of scales (without those
/// of fp8_block, which do not belong to a row).
int64_t valueBytes(Format format, int64_t columns) {
  switch (format) {
  case Format::FP8Block:
    return columns;
  case Format::NVFP4:
  case Format::Int4G32:
    return columns / 2;
  default:
    return columns * static_cast<int64_t>(elementBytes(format).value_or(0));
  }
}
int64_t scaleBytes(Format format, int64_t columns) {
  return format == Format::NVFP4     ? columns / 16
         : format == Format::Int4G32 ? columns / 32 * 2
                                     : 0;
}

/// Columns that are taken of the checkpoint's.
int64_t takenColumns(const plan::Weight &w) {
  return w.slice.transposed ? w.matrixRows() / w.slice.blocks
                            : w.matrixColumns();
}

/// The row of the checkpoint that row `row` of a weight is; not transposed.
int64_t sourceRow(const plan::Slice &s, int64_t row) {
  return s.firstRow + row / s.blockRows * s.rowStride + row % s.blockRows;
}

/// The shape that the formula of synthetic weights knows: a vector has one
/// dimension.
std::vector<int64_t> checkpointShape(const plan::Weight &w) {
  if (w.shape.size() <= (w.stacked ? 2 : 1))
    return {w.slice.columns};
  return {w.slice.rows, w.slice.columns};
}
} // namespace

Arranger::Arranger(const plan::Plan &plan, const Arrangement &arrangement,
                   Parts parts, const void *context)
    : plan(plan), parts(parts), context(context),
      tailScales(plan.weights.size()) {
  for (const ArrangedItem &item : arrangement.items) {
    const plan::Weight &w = plan.weights[item.weight];
    if (item.tail && synthetic() && w.format == Format::FP8Block)
      tailScales[item.weight].resize(
          w.sources.size() * (item.bytes / sizeof(float)));
  }
}

Status Arranger::make(const ArrangedItem &item, std::span<std::byte> out,
                      Scratch &scratch) const {
  return item.tail ? makeTail(item, out) : makeRows(item, out, scratch);
}

//===----------------------------------------------------------------------===//
// Rows of the checkpoint
//===----------------------------------------------------------------------===//

/// Rows [begin, end) of the checkpoint's tensor, or more.
Status Arranger::readPiece(const ArrangedItem &item, int64_t begin, int64_t end,
                           Scratch::Piece &piece, Scratch &scratch) const {
  if (synthetic()) {
    generatePiece(item, begin, end, piece, scratch);
    return {};
  }
  const plan::Weight &w = plan.weights[item.weight];
  MLA_RETURN_IF_ERROR(checkNumbers(item, begin, end));
  std::span<const std::span<const std::byte>> all =
      parts(context, item.weight);
  size_t count = w.scales.size() + 1, first = item.tensor * count;
  piece.firstRow = piece.firstColumn = 0;
  piece.parts = {w.slice.format, w.slice.rows, w.slice.columns, all[first],
                 {}, {}};
  if (count > 1)
    piece.parts.scales = all[first + 1];
  if (count > 2) {
    MLA_ASSIGN_OR_RETURN(float global, globalScale(w, item.tensor));
    piece.global.resize(sizeof global);
    std::memcpy(piece.global.data(), &global, sizeof global);
    piece.parts.global = piece.global;
  }
  return {};
}

/// In rows and columns that share no scale with others.
void Arranger::generatePiece(const ArrangedItem &item, int64_t begin,
                             int64_t end, Scratch::Piece &piece,
                             Scratch &scratch) const {
  const plan::Weight &w = plan.weights[item.weight];
  const plan::Slice &s = w.slice;
  int64_t group = scaleGroup(s.format);
  int64_t rowGroup = s.format == Format::FP8Block ? tile : 1;
  int64_t firstRow = begin / rowGroup * rowGroup;
  int64_t rows = std::min(roundUp(end, rowGroup), s.rows) - firstRow;
  int64_t firstColumn = s.firstColumn / group * group;
  int64_t columns =
      std::min(roundUp(s.firstColumn + takenColumns(w), group), s.columns) -
      firstColumn;
  SyntheticTensor tensor(w.sources[item.tensor].tensor, checkpointShape(w),
                         plan.checkpoint.seed);
  std::vector<std::byte> *stores[] = {&piece.values, &piece.scales,
                                      &piece.global};
  size_t p = 0;
  for (const StoragePart &part : storageParts(s.format, rows, columns))
    stores[p++]->resize(part.bytes());
  if (s.format == Format::NVFP4) {
    float global = quant::nvfp4GlobalScale(tensor.bound());
    std::memcpy(piece.global.data(), &global, sizeof global);
  }
  // As few rows at a time as there can be: they are still in the cache when they
  // are quantized.
  std::vector<float> &values = scratch.generated;
  for (int64_t row = 0; row < rows; row += rowGroup) {
    int64_t n = std::min(rowGroup, rows - row);
    values.resize(static_cast<size_t>(n * columns));
    for (int64_t r = 0; r < n; ++r)
      tensor.fill(
          static_cast<uint64_t>((firstRow + row + r) * s.columns + firstColumn),
          std::span(values).subspan(static_cast<size_t>(r * columns),
                                    static_cast<size_t>(columns)),
          s.format != Format::F32);
    quant::quantizeRows(values, row,
                        {s.format, rows, columns, piece.values, piece.scales,
                         piece.global});
  }
  piece.firstRow = firstRow;
  piece.firstColumn = firstColumn;
  piece.parts = {s.format, rows, columns, piece.values, piece.scales,
                 piece.global};
}

/// What kernels take for numbers, in rows [begin, end); what does not belong to
/// rows with the first of them.
Status Arranger::checkNumbers(const ArrangedItem &item, int64_t begin,
                              int64_t end) const {
  const plan::Weight &w = plan.weights[item.weight];
  std::span<const std::span<const std::byte>> all =
      parts(context, item.weight);
  size_t count = w.scales.size() + 1;
  for (size_t p = 0; p < count; ++p) {
    CheckedFormat format = checkedFormat(w.slice.format, p);
    if (format == CheckedFormat::None)
      continue;
    std::span<const std::byte> part = all[item.tensor * count + p];
    int64_t rowBytes = p == 0   ? valueBytes(w.slice.format, w.slice.columns)
                       : p == 1 ? scaleBytes(w.slice.format, w.slice.columns)
                                : 0;
    if (rowBytes != 0)
      part = part.subspan(static_cast<size_t>(begin * rowBytes),
                          static_cast<size_t>((end - begin) * rowBytes));
    else if (item.firstRow != 0)
      continue;
    if (!allNumbers(format, part))
      return invalid(
          "tensor " + w.partSources(p)[item.tensor].tensor +
          ": expected numbers, found NaN or infinity (a damaged file?)");
  }
  return {};
}

Result<float> Arranger::globalScale(const plan::Weight &w,
                                    uint32_t tensor) const {
  if (synthetic())
    return quant::nvfp4GlobalScale(
        SyntheticTensor(w.sources[tensor].tensor, checkpointShape(w),
                        plan.checkpoint.seed)
            .bound());
  auto index = static_cast<uint32_t>(&w - plan.weights.data());
  float value = 0;
  std::memcpy(&value, parts(context, index)[tensor * 3 + 2].data(),
              sizeof value);
  if (!w.scales[1].reciprocal)
    return value;
  float inverse = 1.0F / value;
  if (!std::isfinite(inverse) || !(inverse > 0))
    return invalid("tensor " + w.scales[1].sources[tensor].tensor +
                   ": expected a positive scale, found " +
                   std::to_string(value));
  return inverse;
}

//===----------------------------------------------------------------------===//
// Items
//===----------------------------------------------------------------------===//

Status Arranger::makeRows(const ArrangedItem &item, std::span<std::byte> out,
                          Scratch &scratch) const {
  const plan::Weight &w = plan.weights[item.weight];
  const plan::Slice &s = w.slice;
  const int64_t columns = w.matrixColumns(), taken = takenColumns(w);
  const int64_t count = std::min(item.rows, w.matrixRows() - item.firstRow);
  const int64_t runRows = s.transposed ? taken : s.blockRows;
  const bool direct = w.format == s.format && !s.transposed;
  const int64_t rowBytes = valueBytes(w.format, columns);

  // Where each row's values and scales are; of a row beyond, nothing.
  std::vector<quant::PackRow> rows(static_cast<size_t>(item.rows));
  if (!direct) {
    scratch.rows.resize(static_cast<size_t>(count * columns));
    scratch.stored.resize(static_cast<size_t>(count * rowBytes));
  }
  // In pieces: rows of one run. All of them stay until the rows are packed.
  size_t pieces = 0;
  for (int64_t done = 0; done < count; ++pieces) {
    int64_t row = item.firstRow + done, run = row / runRows;
    int64_t n = std::min(count - done, (run + 1) * runRows - row);
    int64_t begin = s.firstRow + run * s.rowStride, end = begin + s.blockRows;
    if (!s.transposed) {
      begin = sourceRow(s, row);
      end = begin + n;
    }
    if (pieces == scratch.pieces.size())
      scratch.pieces.emplace_back();
    Scratch::Piece &piece = scratch.pieces[pieces];
    MLA_RETURN_IF_ERROR(readPiece(item, begin, end, piece, scratch));
    const quant::ConstMatrixParts &from = piece.parts;
    int64_t column = s.firstColumn - piece.firstColumn;
    int64_t local = begin - piece.firstRow;
    if (direct) {
      const int64_t stride = valueBytes(s.format, from.columns);
      const int64_t scaleStride = scaleBytes(s.format, from.columns);
      for (int64_t i = 0; i < n; ++i)
        rows[static_cast<size_t>(done + i)] = {
            from.values.data() + (local + i) * stride +
                valueBytes(s.format, column),
            from.scales.data() + (scaleStride == 0
                                      ? 0
                                      : (local + i) * scaleStride +
                                            scaleBytes(s.format, column))};
      if (std::vector<float> &tails = tailScales[item.weight]; !tails.empty()) {
        // The piece is made of the blocks that the item has.
        int64_t across = roundUp(columns, tile) / tile;
        size_t each = tails.size() / w.sources.size();
        std::memcpy(tails.data() + item.tensor * each +
                        static_cast<size_t>(row / tile * across),
                    from.scales.data(), from.scales.size());
      }
    } else {
      int64_t height = end - begin;
      std::vector<float> &values = scratch.converted;
      values.resize(static_cast<size_t>(height * from.columns));
      quant::dequantizeRows(from, local, values);
      float *to = scratch.rows.data() + done * columns;
      const float *in = values.data() + column;
      if (!s.transposed) {
        for (int64_t i = 0; i < n; ++i)
          std::copy_n(in + i * from.columns, columns, to + i * columns);
      } else {
        // A few columns at a time: more lines of `in`, which are a power of two
        // apart, would drive each other out of the cache.
        constexpr int64_t few = 8;
        in += row % runRows;
        for (int64_t first = 0; first < columns; first += few)
          for (int64_t i = 0; i < n; ++i)
            for (int64_t c = first; c < std::min(first + few, columns); ++c)
              to[i * columns + c] = in[c * from.columns + i];
      }
    }
    done += n;
  }
  if (!direct) {
    quant::quantizeRows(scratch.rows, 0,
                        {w.format, count, columns, scratch.stored, {}, {}});
    for (int64_t i = 0; i < count; ++i)
      rows[static_cast<size_t>(i)].values =
          scratch.stored.data() + i * rowBytes;
  }

  if (w.layout == plan::Layout::Rows) {
    for (int64_t i = 0; i < count; ++i)
      std::memcpy(out.data() + i * rowBytes,
                  rows[static_cast<size_t>(i)].values,
                  static_cast<size_t>(rowBytes));
    return {};
  }
  const int64_t quads = item.rows / quant::quadRows;
  const size_t quadBytes = out.size() / static_cast<size_t>(quads);
  for (int64_t q = 0; q < quads; ++q) {
    std::array<quant::PackRow, 4> four;
    std::copy_n(rows.begin() + q * quant::quadRows, 4, four.begin());
    quant::packQuad(w.format, columns, four,
                    out.data() + static_cast<size_t>(q) * quadBytes);
  }
  return {};
}

Status Arranger::makeTail(const ArrangedItem &item,
                          std::span<std::byte> out) const {
  const plan::Weight &w = plan.weights[item.weight];
  const plan::Slice &s = w.slice;
  std::fill(out.begin(), out.end(), std::byte{});
  if (w.format == Format::NVFP4) {
    MLA_ASSIGN_OR_RETURN(float global, globalScale(w, item.tensor));
    std::memcpy(out.data(), &global, sizeof global);
  }
  if (w.format != Format::FP8Block)
    return {};
  int64_t across = roundUp(w.matrixColumns(), tile) / tile;
  int64_t down = roundUp(w.matrixRows(), tile) / tile;
  if (const std::vector<float> &tails = tailScales[item.weight];
      !tails.empty()) {
    size_t each = tails.size() / w.sources.size();
    std::memcpy(out.data(), tails.data() + item.tensor * each,
                static_cast<size_t>(across * down) * sizeof(float));
    return {};
  }
  std::span<const std::byte> scales =
      parts(context, item.weight)[item.tensor * 2 + 1];
  int64_t stride = roundUp(s.columns, tile) / tile;
  for (int64_t i = 0; i < down; ++i) {
    int64_t from = sourceRow(s, i * tile) / tile * stride + s.firstColumn / tile;
    std::memcpy(out.data() + i * across * 4, scales.data() + from * 4,
                static_cast<size_t>(across) * sizeof(float));
  }
  return {};
}

} // namespace mla::runtime
