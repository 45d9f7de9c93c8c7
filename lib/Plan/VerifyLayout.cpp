//===- VerifyLayout.cpp - checks of weights that are laid out at load -----===//
//
// Part of mla. What must hold so that the runtime can cut, convert and pack
// without a check of its own: the slice lies inside the checkpoint's matrix,
// and where the scales are kept, it is cut between groups of them.
//
//===----------------------------------------------------------------------===//
#include "Verifier.h"
#include "mla/Quant/Pack.h"
#include <algorithm>

namespace mla::plan::detail {
namespace {

/// Whether values of `format` can be turned to f32.
bool isReadable(Format format) {
  return format != Format::FP8E4M3 && format != Format::I32;
}

/// Whether a part of `size` elements is whole groups of `group`, or lies in one
/// of them, wherever a multiple of `size` moves it.
bool keepsGroups(int64_t size, int64_t group) {
  return size % group == 0 || group % size == 0;
}

/// Whether each combination of the splits' parts is what some rank has.
bool reachAll(const std::vector<Shard::Split> &splits, int64_t ranks) {
  std::vector<bool> seen(static_cast<size_t>(ranks));
  int64_t parts = 1, found = 0;
  for (const Shard::Split &split : splits)
    if (__builtin_mul_overflow(parts, split.count, &parts) || parts > ranks)
      return false;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    int64_t part = 0;
    for (const Shard::Split &split : splits)
      part = part * split.count + rank / split.stride % split.count;
    found += !seen[static_cast<size_t>(part)];
    seen[static_cast<size_t>(part)] = true;
  }
  return found == parts;
}

} // namespace

void Verifier::shard(const Weight &w, const std::string &at) {
  if (!w.shard)
    return;
  const Shard &s = *w.shard;
  constexpr auto most = static_cast<int64_t>(maxInteger);
  if (plan.ranks.isOne())
    return fail(at, "expected none in a plan for one rank, found one");
  if (w.stacked ? s.whole.size() != 3 : s.whole.empty() || s.whole.size() > 2)
    return fail(at + "/whole",
                std::string("expected ") + (w.stacked ? "3" : "1 or 2") +
                    " dimensions, found " + std::to_string(s.whole.size()));
  if (s.part.size() != s.whole.size())
    return fail(at + "/part", "expected as many dimensions as the whole has, "
                              "found " +
                                  std::to_string(s.part.size()));
  int64_t elements = 1;
  size_t before = count;
  for (size_t i = 0; i < s.whole.size(); ++i) {
    range(s.whole[i], 1, most, at + "/whole/" + std::to_string(i));
    range(s.part[i], 1, most, at + "/part/" + std::to_string(i));
    if (__builtin_mul_overflow(elements, std::max<int64_t>(s.whole[i], 1),
                               &elements) ||
        elements > most / 4)
      return fail(at + "/whole", "expected less than 2^53 bytes, found more");
  }
  if (count != before)
    return;
  std::vector<int64_t> counts(s.whole.size(), 1);
  for (size_t i = 0; i < s.splits.size(); ++i) {
    const Shard::Split &split = s.splits[i];
    std::string where = at + "/splits/" + std::to_string(i);
    range(split.dim, 0, int64_t(s.whole.size()) - 1, where + "/dim");
    range(split.count, 2, plan.ranks.count, where + "/count");
    range(split.stride, 1, plan.ranks.count, where + "/stride");
    if (count != before)
      return;
    if (plan.ranks.count % (split.count * split.stride) != 0)
      return fail(where, "expected parts for all of the " +
                             std::to_string(plan.ranks.count) +
                             " ranks, found " + std::to_string(split.count) +
                             " by " + std::to_string(split.stride));
    if (std::exchange(counts[size_t(split.dim)], split.count) != 1)
      return fail(where + "/dim", "expected one split of a dimension, found a "
                                  "second");
  }
  if (!reachAll(s.splits, plan.ranks.count))
    return fail(at + "/splits", "expected a rank for each part, found none for "
                                "some");
  bool matrix = s.whole.size() >= 2;
  int64_t group = scaleGroup(w.storedFormat());
  if (w.storedFormat() != Format::FP8Block && s.whole.back() % group != 0)
    return fail(at + "/whole/" + std::to_string(s.whole.size() - 1),
                "expected columns in groups of " + std::to_string(group) +
                    ", found " + std::to_string(s.whole.back()));
  for (size_t i = 0; i < s.whole.size(); ++i) {
    int64_t whole = s.whole[i], part = s.part[i];
    std::string where = at + "/part/" + std::to_string(i);
    if (counts[i] == 1 ? part != whole : part < (whole - 1) / counts[i] + 1)
      return fail(where, "expected " +
                             std::string(counts[i] == 1 ? "all of " : "parts of ") +
                             std::to_string(whole) + ", found " +
                             std::to_string(counts[i]) + " of " +
                             std::to_string(part));
    bool columns = i + 1 == s.whole.size();
    bool rows = matrix && i + 2 == s.whole.size();
    bool blocks = w.storedFormat() == Format::FP8Block;
    if (counts[i] == 1 || group == 1 || !(columns || (rows && blocks)))
      continue;
    if (blocks ? !keepsGroups(part, group) : part % group != 0)
      return fail(where, "expected whole groups of " + std::to_string(group) +
                             ", which share a scale" +
                             (blocks ? ", or a divisor of that" : "") +
                             ", found " + std::to_string(part));
  }
  // What a rank has is what the weight, or its slice, is taken from.
  if (w.layout == Layout::Checkpoint) {
    if (w.shape != s.part)
      fail(at + "/part", "expected the shape of the weight, found another");
    return;
  }
  if (w.stacked && !w.shape.empty() && w.shape[0] != s.part[0])
    fail(at + "/part/0", "expected the " + std::to_string(w.shape[0]) +
                             " tensors of the weight, found " +
                             std::to_string(s.part[0]));
  int64_t partRows = matrix ? s.part[s.part.size() - 2] : 1;
  if (w.slice.rows != partRows || w.slice.columns != s.part.back())
    fail(at + "/part", "expected the " + std::to_string(w.slice.rows) + " x " +
                           std::to_string(w.slice.columns) +
                           " that the slice is taken from, found " +
                           std::to_string(partRows) + " x " +
                           std::to_string(s.part.back()));
}

void Verifier::layout(const Weight &w, const std::string &at) {
  const Slice &s = w.slice;
  std::string name(formatName(w.format));
  if (w.layout == Layout::Checkpoint) {
    if (s.rows != 0 || s.columns != 0 || s.blockRows != 0)
      fail(at + "/slice", "expected no slice of a weight that lies as in the "
                          "checkpoint");
    return;
  }
  if (plan.target.isHost())
    return fail(at + "/layout", "expected the checkpoint's layout for the "
                                "host, found " +
                                    std::string(layoutName(w.layout)));
  if (w.layout == Layout::Rows && (!elementBytes(w.format) ||
                                   !isReadable(w.format)))
    return fail(at + "/format",
                "expected f32, bf16 or f16 in rows, found " + name);
  if (w.layout == Layout::Packed) {
    if (!quant::canPack(w.format))
      return fail(at + "/format", "expected a format that can be packed (bf16, "
                                  "fp8_block, nvfp4, int4_g32), found " +
                                      name);
    if (w.shape.size() < (w.stacked ? 3 : 2) || w.shape.size() > 3)
      return fail(at + "/shape",
                  "expected packed matrices in two or three dimensions, found " +
                      std::to_string(w.shape.size()));
  }
  if (!isReadable(s.format))
    return fail(at + "/slice/format", "expected the format of a weight, found " +
                                          std::string(formatName(s.format)));
  if (w.format != s.format && w.format != Format::BF16 &&
      w.format != Format::F32)
    return fail(at + "/format", "expected the checkpoint's " +
                                    std::string(formatName(s.format)) +
                                    ", or bf16 or f32, found " + name);
  size_t before = count;
  slice(w, at + "/slice");
  if (count != before)
    return;
  if (Result<uint64_t> bytes = w.deviceBytes();
      !bytes.ok() || *bytes > maxInteger)
    fail(at + "/shape", "expected less than 2^53 bytes, found more");
}

void Verifier::slice(const Weight &w, const std::string &at) {
  const Slice &s = w.slice;
  constexpr auto most = static_cast<int64_t>(maxInteger);
  size_t before = count;
  range(s.rows, 1, most, at + "/rows");
  range(s.columns, 1, most, at + "/columns");
  range(s.firstRow, 0, most, at + "/first_row");
  range(s.firstColumn, 0, most, at + "/first_column");
  range(s.blocks, 1, most, at + "/blocks");
  range(s.blockRows, 1, most, at + "/block_rows");
  range(s.rowStride, 0, most, at + "/row_stride");
  if (count != before)
    return;
  // Four bytes an element at most, and so storageParts() cannot overflow.
  int64_t elements = 0;
  if (__builtin_mul_overflow(s.rows, s.columns, &elements) ||
      elements > most / 4)
    return fail(at, "expected less than 2^53 bytes, found more");
  int64_t group = scaleGroup(s.format);
  bool rowGroups = s.format == Format::FP8Block;
  if (group > 1 && !rowGroups && s.columns % group != 0)
    return fail(at + "/columns", "expected columns in groups of " +
                                     std::to_string(group) + ", found " +
                                     std::to_string(s.columns));

  // The rows: all runs lie inside, and none on another.
  int64_t last = 0, end = 0;
  if (__builtin_mul_overflow(s.blocks - 1, s.rowStride, &last) ||
      __builtin_add_overflow(last, s.firstRow, &last) ||
      __builtin_add_overflow(last, s.blockRows, &end) || end > s.rows)
    return fail(at, "expected " + std::to_string(s.blocks) + " runs of " +
                        std::to_string(s.blockRows) +
                        " rows within the matrix of " + std::to_string(s.rows) +
                        ", found more");
  if (s.blocks > 1 && s.rowStride < s.blockRows)
    return fail(at + "/row_stride",
                "expected at least the " + std::to_string(s.blockRows) +
                    " rows of a run, found " + std::to_string(s.rowStride));

  // The shape, and the columns that it takes.
  int64_t rows = w.matrixRows(), columns = w.matrixColumns(), taken = columns;
  int64_t ownRows = 0;
  std::string found = ", found [" + std::to_string(rows) + ", " +
                      std::to_string(columns) + "]";
  if (s.transposed) {
    if (columns != s.blockRows || rows % s.blocks != 0)
      return fail(at, "expected a transposed weight of " +
                          std::to_string(s.blockRows) + " columns and rows in " +
                          std::to_string(s.blocks) + " equal runs" + found);
    taken = rows / s.blocks;
  } else if (__builtin_mul_overflow(s.blocks, s.blockRows, &ownRows) ||
             rows != ownRows) {
    return fail(at, "expected as many rows as the runs have (" +
                        std::to_string(s.blocks) + " of " +
                        std::to_string(s.blockRows) + ")" + found);
  }
  if (s.firstColumn > s.columns || taken > s.columns - s.firstColumn)
    return fail(at, "expected " + std::to_string(taken) + " columns from " +
                        std::to_string(s.firstColumn) + " on within " +
                        std::to_string(s.columns));

  // Scales that stay: cut between their groups.
  if (w.format != s.format || group == 1)
    return;
  if (s.transposed)
    return fail(at + "/transposed",
                "expected a conversion to bf16 or f32, or no transposition, of "
                "a weight with scales");
  bool whole = s.firstColumn % group == 0 &&
               (taken % group == 0 || s.firstColumn + taken == s.columns);
  if (rowGroups) {
    whole = whole && s.firstRow % group == 0 &&
            (s.blockRows % group == 0 || (s.blocks == 1 && end == s.rows));
    if (s.blocks > 1)
      whole = whole && s.rowStride % group == 0;
  }
  if (!whole)
    fail(at, "expected a slice between groups of " + std::to_string(group) +
                 (rowGroups ? " rows and columns" : " columns") +
                 ", which share a scale, or a conversion");
}

} // namespace mla::plan::detail
