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

/// Whether the checkpoint's tensor is one of zeros, which no file has.
bool isZero(const plan::Weight &w, uint32_t tensor) {
  return w.sources[tensor].tensor.empty();
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

/// Rows [begin, end) of the checkpoint's tensor, or more; of the columns those
/// that are taken, or more. What lies beyond the tensor is zero.
Status Arranger::readPiece(const ArrangedItem &item, int64_t begin, int64_t end,
                           Scratch::Piece &piece, Scratch &scratch) const {
  const plan::Weight &w = plan.weights[item.weight];
  const plan::Slice &s = w.slice;
  const bool zero = isZero(w, item.tensor);
  const int64_t rows = zero ? 0 : s.rows, columns = zero ? 0 : s.columns;
  const Rectangle wanted = {begin, end - begin, s.firstColumn, takenColumns(w)};
  // In rows and columns that share no scale with others.
  const Rectangle all = wanted.grown(s.format);
  const Rectangle there = all.clipped(rows, columns);
  if (!synthetic() && !zero)
    MLA_RETURN_IF_ERROR(checkNumbers(
        item, {begin, std::min(there.firstRow + there.rows, end) - begin,
               there.firstColumn, there.columns}));
  piece.parts = {s.format, rows, columns, {}, {}, {}};
  piece.firstRow = piece.firstColumn = 0;
  if (s.format == Format::NVFP4) {
    MLA_ASSIGN_OR_RETURN(piece.global, globalScale(w, item.tensor));
    piece.parts.global = std::as_bytes(std::span(&piece.global, 1));
  }
  if (synthetic()) {
    quant::MatrixParts made =
        piece.generated.resize(s.format, there.rows, there.columns);
    std::copy(piece.parts.global.begin(), piece.parts.global.end(),
              made.global.begin());
    if (there.rows != 0)
      generateMatrix(SyntheticTensor(w.sources[item.tensor].tensor,
                                     checkpointShape(w), plan.checkpoint.seed),
                     s.columns, there, made, scratch.generated);
    piece.parts = {s.format,    there.rows,  there.columns,
                   made.values, made.scales, made.global};
    piece.firstRow = there.firstRow;
    piece.firstColumn = there.firstColumn;
  } else if (!zero) {
    std::span<const std::span<const std::byte>> stored =
        parts(context, item.weight);
    size_t count = w.scales.size() + 1, first = item.tensor * count;
    piece.parts.values = stored[first];
    if (count > 1)
      piece.parts.scales = stored[first + 1];
  }
  // Of a long row, only what is taken is to be converted.
  const bool inside = wanted.within(rows, columns);
  const bool narrow = (w.format != s.format || s.transposed) &&
                      there.columns <= piece.parts.columns / 2;
  if (inside && !narrow)
    return {};
  const Rectangle target = inside ? there : all;
  quant::MatrixParts cut =
      piece.cut.resize(s.format, target.rows, target.columns);
  cutMatrix(piece.parts,
            {target.firstRow - piece.firstRow, target.rows,
             target.firstColumn - piece.firstColumn, target.columns},
            cut);
  piece.parts = {s.format,   target.rows, target.columns,
                 cut.values, cut.scales,  piece.parts.global};
  piece.firstRow = target.firstRow;
  piece.firstColumn = target.firstColumn;
  return {};
}

/// What kernels take for numbers, in the rectangle `taken`; what does not
/// belong to rows with the first of them.
Status Arranger::checkNumbers(const ArrangedItem &item,
                              const Rectangle &taken) const {
  const plan::Weight &w = plan.weights[item.weight];
  const plan::Slice &s = w.slice;
  std::span<const std::span<const std::byte>> all =
      parts(context, item.weight);
  size_t count = w.scales.size() + 1;
  std::vector<PartCut> cuts = cutParts(s.format, s.rows, s.columns, taken);
  for (size_t p = 0; p < count; ++p) {
    CheckedFormat format = checkedFormat(s.format, p);
    if (format == CheckedFormat::None)
      continue;
    std::span<const std::byte> part = all[item.tensor * count + p];
    const PartCut &cut = cuts[p];
    bool numbers = true;
    if (p == 2 || (p == 1 && s.format == Format::FP8Block)) {
      numbers = item.firstRow != 0 || allNumbers(format, part);
    } else if (taken.rows > 0 && cut.isRun()) {
      numbers = allNumbers(format, part.subspan(cut.offset(), cut.bytes()));
    } else {
      for (int64_t row = 0; row < taken.rows && numbers; ++row)
        numbers = allNumbers(
            format,
            part.subspan(cut.offset() + static_cast<size_t>(row * cut.rowBytes),
                         static_cast<size_t>(cut.wantedBytes)));
    }
    if (!numbers)
      return invalid(
          "tensor " + w.partSources(p)[item.tensor].tensor +
          ": expected numbers, found NaN or infinity (a damaged file?)");
  }
  return {};
}

Result<float> Arranger::globalScale(const plan::Weight &w,
                                    uint32_t tensor) const {
  if (isZero(w, tensor))
    return 1.0F;
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
  // Each block of the weight lies in one of the tensor, or beyond it.
  const bool zero = isZero(w, item.tensor);
  std::span<const std::byte> scales;
  if (!zero)
    scales = parts(context, item.weight)[item.tensor * 2 + 1];
  int64_t stride = roundUp(s.columns, tile) / tile;
  int64_t blocks = roundUp(s.rows, tile) / tile;
  for (int64_t i = 0; i < down; ++i)
    for (int64_t j = 0; j < across; ++j) {
      int64_t row = sourceRow(s, i * tile) / tile;
      int64_t column = s.firstColumn / tile + j;
      float scale = 1;
      if (!zero && row < blocks && column < stride)
        std::memcpy(&scale, scales.data() + (row * stride + column) * 4,
                    sizeof scale);
      std::memcpy(out.data() + (i * across + j) * 4, &scale, sizeof scale);
    }
  return {};
}

} // namespace mla::runtime
