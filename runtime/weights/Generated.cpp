//===- Generated.cpp - synthetic weights in memory ------------------------===//
//
// Part of mla. The half of WeightStore for synthetic weights that lie as a
// checkpoint's would.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Progress.h"
#include "runtime/weights/Cut.h"
#include "runtime/weights/Synthetic.h"
#include "runtime/weights/WeightStore.h"
#include <algorithm>
#include <cstring>
#include <optional>

namespace mla::runtime {
namespace {

/// Tensors begin at multiples of this, as a cache line does.
constexpr uint64_t tensorAlignment = 64;
/// Elements that a thread makes before it looks for more.
constexpr int64_t sliceElements = int64_t(1) << 16;

uint64_t aligned(uint64_t offset) {
  return (offset + tensorAlignment - 1) / tensorAlignment * tensorAlignment;
}

/// What is wanted of one tensor.
struct PlannedTensor {
  SyntheticTensor tensor;
  int64_t rows, columns; ///< of the whole tensor; 0 of one of zeros
  Rectangle wanted;
  std::vector<StoragePart> parts; ///< of what is wanted
  quant::MatrixParts out;
};
/// Rows of it that a thread makes at a time.
struct MadeRows {
  const PlannedTensor *planned;
  int64_t firstRow, rows;
};
/// Memory that a thread uses again.
struct MakeScratch {
  std::vector<float> values;
  MatrixStore whole;
};

/// A rank's part is the cut of what the tensor is as a whole: scales belong to
/// groups that it may have in part.
void make(const MadeRows &slice, MakeScratch &scratch) {
  const PlannedTensor &p = *slice.planned;
  quant::MatrixParts out = rowsOf(p.out, slice.firstRow, slice.rows);
  Rectangle wanted = p.wanted;
  wanted.firstRow += slice.firstRow;
  wanted.rows = slice.rows;
  Rectangle there = wanted.grown(out.format).clipped(p.rows, p.columns);
  if (there == wanted)
    return generateMatrix(p.tensor, p.columns, there, out, scratch.values);
  quant::MatrixParts whole =
      scratch.whole.resize(out.format, there.rows, there.columns);
  std::copy(out.global.begin(), out.global.end(), whole.global.begin());
  if (there.rows != 0)
    generateMatrix(p.tensor, p.columns, there, whole, scratch.values);
  wanted.firstRow -= there.firstRow;
  wanted.firstColumn -= there.firstColumn;
  cutMatrix({whole.format, whole.rows, whole.columns, whole.values,
             whole.scales, whole.global},
            wanted, out);
}

} // namespace

Status WeightStore::generate(const plan::Plan &plan, ThreadPool &pool,
                             const WeightOptions &options) {
  std::vector<PlannedTensor> all;
  /// Which of them the tensors of each weight are, in order.
  std::vector<std::vector<size_t>> uses(plan.weights.size());
  uint64_t size = 0, work = 0;
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    if (weight.layout != plan::Layout::Checkpoint)
      continue;
    std::vector<StoragePart> parts = storageParts(
        weight.format, weight.matrixRows(), weight.matrixColumns());
    std::vector<int64_t> shape = checkpointShape(weight);
    std::optional<size_t> zero; // All tensors of zeros are one.
    for (const plan::TensorSource &source : weight.sources) {
      for (const StoragePart &part : parts)
        total += part.bytes();
      const bool isZero = source.tensor.empty();
      if (isZero && zero) {
        uses[w].push_back(*zero);
        continue;
      }
      if (isZero)
        zero = all.size();
      uses[w].push_back(all.size());
      all.push_back(
          {SyntheticTensor(source.tensor, shape, plan.checkpoint.seed),
           isZero ? 0 : weight.storedRows(),
           isZero ? 0 : weight.storedColumns(),
           rectangleOf(weight),
           parts,
           {weight.format,
            weight.matrixRows(),
            weight.matrixColumns(),
            {},
            {},
            {}}});
      for (const StoragePart &part : parts) {
        work += part.bytes();
        if (__builtin_add_overflow(size, part.bytes() + tensorAlignment, &size))
          return invalid("the size of the synthetic weights overflows");
      }
    }
  }
  if (size > physicalMemory())
    return exhausted("the synthetic weights need " + formatBytes(size) +
                     "; this machine has " + formatBytes(physicalMemory()));
  MLA_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::allocate(size, "synthetic weights"));

  std::vector<MadeRows> slices;
  uint64_t offset = 0;
  for (PlannedTensor &p : all) {
    std::span<std::byte> *spans[] = {&p.out.values, &p.out.scales,
                                     &p.out.global};
    for (size_t i = 0; i < p.parts.size(); ++i) {
      *spans[i] = memory.bytes().subspan(offset, p.parts[i].bytes());
      offset = aligned(offset + p.parts[i].bytes());
    }
    if (p.out.format == Format::NVFP4) {
      float global =
          p.rows == 0 ? 1 : quant::nvfp4GlobalScale(p.tensor.bound());
      std::memcpy(p.out.global.data(), &global, sizeof global);
    }
    // A block of fp8 scales is made whole.
    int64_t step = std::max<int64_t>(1, sliceElements / p.out.columns);
    if (p.out.format == Format::FP8Block)
      step = (step + 127) / 128 * 128;
    for (int64_t row = 0; row < p.out.rows; row += step)
      slices.push_back({&p, row, std::min(step, p.out.rows - row)});
  }
  for (size_t w = 0; w < uses.size(); ++w)
    for (size_t use : uses[w]) {
      const quant::MatrixParts &out = all[use].out;
      const std::span<std::byte> spans[] = {out.values, out.scales, out.global};
      for (size_t i = 0; i < all[use].parts.size(); ++i)
        weights[w].tensors.push_back(spans[i]);
    }
  owned.push_back(std::move(memory));
  Progress progress("generating weights", work, options.progress);
  auto count = static_cast<int64_t>(slices.size());
  pool.parallelFor(count, [&](int64_t begin, int64_t end) {
    MakeScratch scratch;
    for (int64_t i = begin; i < end; ++i) {
      const MadeRows &slice = slices[static_cast<size_t>(i)];
      make(slice, scratch);
      uint64_t bytes = 0;
      for (const StoragePart &part : slice.planned->parts)
        bytes += part.bytes() * static_cast<uint64_t>(slice.rows) /
                 static_cast<uint64_t>(slice.planned->out.rows);
      progress.add(bytes);
    }
  });
  return {};
}

} // namespace mla::runtime
