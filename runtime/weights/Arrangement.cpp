//===- Arrangement.cpp - where arranged weights lie -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Pack.h"
#include "mla/Support/Hash.h"
#include "runtime/weights/Arrange.h"
#include <algorithm>

namespace mla::runtime {
namespace {
/// Elements of an item: enough to hide its cost, few enough to share the work.
constexpr int64_t itemElements = int64_t(1) << 17;

/// Rows of an item: whole groups of what shares a row of scales, and a whole run
/// of a transposed weight, which is converted as a whole.
int64_t itemRows(const plan::Weight &w) {
  int64_t rows = std::max<int64_t>(1, itemElements / w.matrixColumns());
  if (w.slice.transposed)
    rows = std::max(rows, w.matrixRows() / w.slice.blocks);
  bool blocks =
      w.format == Format::FP8Block || w.slice.format == Format::FP8Block;
  return roundUp(rows, blocks ? 128 : quant::packedRowGroup);
}
} // namespace

Result<Arrangement> Arrangement::of(const plan::Plan &plan) {
  Arrangement all;
  for (uint32_t index = 0; index < plan.weights.size(); ++index) {
    const plan::Weight &w = plan.weights[index];
    all.offsets.push_back(all.bytes);
    if (w.layout == plan::Layout::Checkpoint)
      continue;
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, w.deviceBytes());
    bool packed = w.layout == plan::Layout::Packed;
    int64_t rows = w.matrixRows(), columns = w.matrixColumns();
    int64_t padded =
        packed ? quant::packedQuads(rows) * quant::quadRows : rows;
    uint64_t each = bytes / w.sources.size();
    uint64_t tail =
        packed ? each - static_cast<uint64_t>(
                            quant::packedTail(w.format, rows, columns))
               : 0;
    uint64_t rowBytes = (each - tail) / static_cast<uint64_t>(padded);
    int64_t step = itemRows(w);
    for (uint32_t t = 0; t < w.sources.size(); ++t) {
      uint64_t at = all.bytes + t * each;
      for (int64_t row = 0; row < padded; row += step) {
        int64_t n = std::min(step, padded - row);
        all.items.push_back({index, t, row, n, false,
                             at + static_cast<uint64_t>(row) * rowBytes,
                             static_cast<uint64_t>(n) * rowBytes});
      }
      if (tail != 0)
        all.items.push_back({index, t, 0, 0, true, at + each - tail, tail});
    }
    all.contentBytes += bytes;
    uint64_t end = all.bytes + bytes;
    if (end < bytes || end > (uint64_t(1) << 53))
      return invalid("the weights of the plan overflow 2^53 bytes");
    all.bytes = (end + plan::weightAlignment - 1) / plan::weightAlignment *
                plan::weightAlignment;
  }
  return all;
}

uint64_t arrangementFingerprint(const plan::Plan &plan) {
  std::string text = "mla arrangement 1";
  auto add = [&](auto value) { text += " " + std::to_string(value); };
  const plan::Checkpoint &c = plan.checkpoint;
  add(static_cast<int>(c.kind));
  add(c.seed);
  for (const plan::CheckpointFile &file : c.files) {
    text += "\n" + file.name;
    add(file.size);
    add(file.headerHash);
  }
  for (const plan::Weight &w : plan.weights) {
    if (w.layout == plan::Layout::Checkpoint)
      continue;
    const plan::Slice &s = w.slice;
    text += "\n" + std::string(formatName(w.format)) + " " +
            std::string(formatName(s.format));
    add(static_cast<int>(w.layout));
    for (int64_t n : w.shape)
      add(n);
    text += ";";
    for (int64_t n : {s.rows, s.columns, s.firstRow, s.firstColumn, s.blocks,
                      s.blockRows, s.rowStride, int64_t(s.transposed)})
      add(n);
    for (size_t p = 0; p <= w.scales.size(); ++p) {
      add(p != 0 && w.scales[p - 1].reciprocal);
      for (const plan::TensorSource &source : w.partSources(p)) {
        text += " " + source.tensor;
        add(source.file);
        add(source.offset);
      }
    }
  }
  return fnv1a64(text);
}

} // namespace mla::runtime
