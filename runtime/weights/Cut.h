//===- Cut.h - a rank's part of a matrix ------------------------*- C++ -*-===//
//
// Part of mla. What a rank has of a checkpoint's matrix is a rectangle of it
// (plan::localized()), which may lie beyond its end: what is there is zero. In
// the file each storage part of the matrix is an array of its own, of which the
// rectangle's is a rectangle, too.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_CUT_H
#define MLA_RUNTIME_WEIGHTS_CUT_H

#include "mla/Plan/Plan.h"
#include "mla/Quant/Matrix.h"
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace mla::runtime {

/// fp8_block: rows and columns of a block, which share a scale.
constexpr int64_t tile = 128;

/// Rows [firstRow, firstRow + rows) and columns [firstColumn, firstColumn +
/// columns) of a matrix.
struct Rectangle {
  int64_t firstRow = 0, rows = 0, firstColumn = 0, columns = 0;

  /// Whether all of it is in a matrix of that size.
  bool within(int64_t matrixRows, int64_t matrixColumns) const {
    return firstRow + rows <= matrixRows &&
           firstColumn + columns <= matrixColumns;
  }
  /// The smallest that has all of it and shares no scale of `format` with
  /// elements outside.
  Rectangle grown(Format format) const;
  /// What of it is in a matrix of that size.
  Rectangle clipped(int64_t matrixRows, int64_t matrixColumns) const;
  bool operator==(const Rectangle &) const = default;
};

/// The rectangle of a checkpoint's tensor that a weight has which lies as in
/// the checkpoint, of a plan for one rank or a localized one: also if that is
/// all.
Rectangle rectangleOf(const plan::Weight &weight);

/// One storage part: an array of rows of bytes, and the rectangle that is
/// wanted of it.
struct PartCut {
  int64_t rows = 0, rowBytes = 0; ///< of the array; 0 rows: none is there
  int64_t firstRow = 0, firstByte = 0;
  int64_t wantedRows = 0, wantedBytes = 0; ///< the latter of a row
  /// What stands for zero beyond the end: repeated, from the start of a row on.
  std::array<std::byte, 4> padding{};

  uint64_t bytes() const {
    return static_cast<uint64_t>(wantedRows) *
           static_cast<uint64_t>(wantedBytes);
  }
  /// Whether the wanted bytes are one run of the array, at offset().
  bool isRun() const {
    return firstRow + wantedRows <= rows &&
           firstByte + wantedBytes <= rowBytes &&
           (wantedRows == 1 || wantedBytes == rowBytes);
  }
  uint64_t offset() const {
    return static_cast<uint64_t>(firstRow * rowBytes + firstByte);
  }
  /// Makes the wanted rows [begin, end) at `out`, where row `begin` begins.
  void copy(const std::byte *array, int64_t begin, int64_t end,
            std::byte *out) const;
};

/// The parts of a [rows, columns] matrix in `format`, as storageParts() lists
/// them, cut to `wanted`, in which each run of 128 rows or columns from its
/// start on (or what is left of it at its end) lies in one group of those that
/// share a scale of fp8_block, and whose columns are whole groups in nvfp4 and
/// int4_g32. With 0 rows, all is padding; the scales of that are 1.
std::vector<PartCut> cutParts(Format format, int64_t rows, int64_t columns,
                              const Rectangle &wanted);

/// Makes `out`, which has wanted.rows rows and wanted.columns columns, of `in`;
/// all parts but the global scale.
void cutMatrix(const quant::ConstMatrixParts &in, const Rectangle &wanted,
               const quant::MatrixParts &out);

/// Memory of a matrix that is used again for others.
class MatrixStore {
public:
  /// Gives what was there up; the new content is not defined.
  quant::MatrixParts resize(Format format, int64_t rows, int64_t columns);

private:
  std::array<std::vector<std::byte>, 3> parts;
};

/// Rows [first, first + rows) of `all`, as a matrix; of fp8_block `first` is a
/// multiple of 128.
quant::MatrixParts rowsOf(const quant::MatrixParts &all, int64_t first,
                          int64_t rows);

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_CUT_H
