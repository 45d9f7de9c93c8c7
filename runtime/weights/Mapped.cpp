//===- Mapped.cpp - weights where the checkpoint has them -----------------===//
//
// Part of mla. The half of WeightStore for weights that lie as in the
// checkpoint's files.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Progress.h"
#include "runtime/weights/CheckpointFiles.h"
#include "runtime/weights/Cut.h"
#include "runtime/weights/WeightStore.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

namespace mla::runtime {
namespace {

/// Copies begin at multiples of this, as a cache line does.
constexpr uint64_t copyAlignment = 64;
/// Bytes that a thread copies before it looks for more.
constexpr int64_t copyBytes = int64_t(4) << 20;

/// A part that cannot be used where it lies, and its place in the copies'
/// memory.
struct Copy {
  const plan::TensorSource *source;
  const std::byte *array; ///< null if the cut needs none
  PartCut cut;
  bool reciprocal;
  uint64_t offset;
};
/// Who uses a copy.
struct Use {
  size_t weight, part, copy;
};
/// Rows of a copy.
struct CopiedRows {
  size_t copy;
  int64_t begin, end;
};

/// The bytes of one part of a tensor.
Result<std::span<const std::byte>> find(const plan::Plan &plan,
                                        const std::vector<MappedFile> &files,
                                        const plan::TensorSource &source,
                                        uint64_t bytes) {
  if (source.file >= files.size())
    return invalid("tensor " + source.tensor + ": the plan has no file " +
                   std::to_string(source.file));
  std::span<const std::byte> file = files[source.file].bytes();
  if (source.offset > file.size() || bytes > file.size() - source.offset)
    return invalid("tensor " + source.tensor + ": lies beyond the end of " +
                   plan.checkpoint.files[source.file].name);
  return file.subspan(source.offset, bytes);
}

bool isAligned(std::span<const std::byte> bytes, uint64_t to) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % to == 0;
}

/// Replaces the f32 values of `part` by their reciprocals.
Status invert(std::span<std::byte> part, const std::string &tensor) {
  for (; !part.empty(); part = part.subspan(sizeof(float))) {
    float value = 0;
    std::memcpy(&value, part.data(), sizeof value);
    float inverse = 1.0F / value;
    if (!std::isfinite(inverse) || !(inverse > 0))
      return invalid("tensor " + tensor +
                     ": expected a positive scale, found " +
                     std::to_string(value));
    std::memcpy(part.data(), &inverse, sizeof inverse);
  }
  return {};
}

} // namespace

Status WeightStore::mapCheckpoint(const plan::Plan &plan, ThreadPool &pool,
                                  const WeightOptions &options) {
  std::filesystem::path folder = options.checkpoint;
  if (folder.empty())
    folder = plan.checkpoint.folder;
  MLA_ASSIGN_OR_RETURN(files, openCheckpointFiles(plan.checkpoint, folder));
  std::vector<Copy> copies;
  std::vector<Use> uses;
  uint64_t copied = 0;
  auto copy = [&](const plan::TensorSource &source, const std::byte *array,
                  const PartCut &cut, bool reciprocal) {
    copies.push_back({&source, array, cut, reciprocal, copied});
    copied = (copied + cut.bytes() + copyAlignment - 1) / copyAlignment *
             copyAlignment;
    return copies.size() - 1;
  };
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    const bool arranged = weight.layout != plan::Layout::Checkpoint;
    std::vector<std::span<const std::byte>> &tensors = weights[w].tensors;
    std::vector<StoragePart> parts = weight.parts();
    std::vector<PartCut> cuts, zeros;
    if (!arranged) {
      cuts = cutParts(weight.format, weight.storedRows(),
                      weight.storedColumns(), rectangleOf(weight));
      zeros = cutParts(weight.format, 0, 0, rectangleOf(weight));
    }
    // All tensors of zeros of a weight are one.
    std::vector<std::optional<size_t>> zero(parts.size());
    for (size_t t = 0; t < weight.sources.size(); ++t)
      for (size_t p = 0; p < parts.size(); ++p) {
        const plan::TensorSource &source = weight.partSources(p)[t];
        total += arranged ? 0 : cuts[p].bytes();
        if (weight.sources[t].tensor.empty()) {
          if (!arranged && !zero[p])
            zero[p] = copy(source, nullptr, zeros[p], false);
          if (!arranged)
            uses.push_back({w, tensors.size(), *zero[p]});
          tensors.emplace_back();
          continue;
        }
        MLA_ASSIGN_OR_RETURN(std::span<const std::byte> part,
                             find(plan, files, source, parts[p].bytes()));
        tensors.push_back(part);
        if (arranged)
          continue; // It is copied anyway, whatever its place.
        bool reciprocal = p > 0 && weight.scales[p - 1].reciprocal;
        if (cuts[p].isRun() && !reciprocal) {
          tensors.back() = part.subspan(cuts[p].offset(), cuts[p].bytes());
          if (isAligned(tensors.back(), parts[p].elementBytes))
            continue;
        }
        uses.push_back({w, tensors.size() - 1,
                        copy(source, part.data(), cuts[p], reciprocal)});
      }
  }
  if (copies.empty())
    return {};
  if (copied > physicalMemory())
    return exhausted("the weights that are copied need " + formatBytes(copied) +
                     "; this machine has " + formatBytes(physicalMemory()));
  MLA_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::allocate(copied, "copies of weights"));
  std::span<std::byte> to = memory.bytes();
  std::vector<CopiedRows> slices;
  for (size_t i = 0; i < copies.size(); ++i) {
    const PartCut &cut = copies[i].cut;
    int64_t rows = std::max<int64_t>(1, copyBytes / cut.wantedBytes);
    for (int64_t row = 0; row < cut.wantedRows; row += rows)
      slices.push_back({i, row, std::min(row + rows, cut.wantedRows)});
  }
  Progress progress("cutting weights", copied, options.progress);
  pool.parallelFor(static_cast<int64_t>(slices.size()), [&](int64_t begin,
                                                            int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const CopiedRows &slice = slices[static_cast<size_t>(i)];
      const Copy &c = copies[slice.copy];
      auto first = static_cast<uint64_t>(slice.begin * c.cut.wantedBytes);
      c.cut.copy(c.array, slice.begin, slice.end, to.data() + c.offset + first);
      progress.add(static_cast<uint64_t>(slice.end - slice.begin) *
                   static_cast<uint64_t>(c.cut.wantedBytes));
    }
  });
  for (const Copy &c : copies)
    if (c.reciprocal)
      MLA_RETURN_IF_ERROR(
          invert(to.subspan(c.offset, c.cut.bytes()), c.source->tensor));
  for (const Use &use : uses) {
    const Copy &c = copies[use.copy];
    weights[use.weight].tensors[use.part] = to.subspan(c.offset, c.cut.bytes());
  }
  owned.push_back(std::move(memory));
  return {};
}

} // namespace mla::runtime
