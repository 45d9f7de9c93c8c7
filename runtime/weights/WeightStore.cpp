//===- WeightStore.cpp - the weights of a plan in memory ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/WeightStore.h"
#include "runtime/base/Progress.h"
#include "runtime/weights/Numbers.h"
#include <algorithm>
#include <atomic>

namespace mla::runtime {
namespace {

/// Bytes that a thread handles before it looks for more.
constexpr uint64_t sliceBytes = uint64_t(4) << 20;

bool isArranged(const plan::Weight &weight) {
  return weight.layout != plan::Layout::Checkpoint;
}

} // namespace

Result<std::unique_ptr<WeightStore>>
WeightStore::load(const plan::Plan &plan, hal::Device &device, ThreadPool &pool,
                  const WeightOptions &options) {
  std::unique_ptr<WeightStore> store(new WeightStore);
  MLA_ASSIGN_OR_RETURN(Arrangement arrangement, Arrangement::of(plan));
  std::error_code error;
  bool packed = !options.packed.empty() &&
                std::filesystem::exists(options.packed, error);
  MLA_RETURN_IF_ERROR(store->prepare(plan, pool, options, packed));
  if (plan.checkpoint.kind == plan::Checkpoint::Kind::Safetensors)
    MLA_RETURN_IF_ERROR(store->readAll(plan, pool, options));
  else
    MLA_RETURN_IF_ERROR(store->generate(plan, pool, options));
  MLA_RETURN_IF_ERROR(store->bind(plan, device));
  if (!arrangement.items.empty())
    MLA_RETURN_IF_ERROR(
        store->upload(plan, arrangement, device, pool, options));
  else if (!options.packed.empty())
    return invalid("the plan has no weights that could be in a packed file; "
                   "only a plan for a GPU does");
  return store;
}

/// Reads every page once, so that the first step is as fast as the next; not if
/// the weights fill most of the memory, when reading the end would drop the
/// start. What kernels take for numbers, e4m3 codes and scales, is read in any
/// case: they do not look for NaN.
Status WeightStore::readAll(const plan::Plan &plan, ThreadPool &pool,
                            const WeightOptions &options) const {
  struct Slice {
    std::span<const std::byte> bytes;
    CheckedFormat format;
    const plan::TensorSource *source;
  };
  bool preload = total <= physicalMemory() / 4 * 3;
  std::vector<Slice> slices;
  uint64_t size = 0;
  for (size_t w = 0; w < weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    if (isArranged(weight))
      continue; // Read once, when it is arranged.
    size_t parts = weight.parts().size();
    for (size_t i = 0; i < weights[w].tensors.size(); ++i) {
      std::span<const std::byte> rest = weights[w].tensors[i];
      CheckedFormat format = checkedFormat(weight.format, i % parts);
      if (!preload && format == CheckedFormat::None)
        continue;
      size += rest.size();
      for (; !rest.empty(); rest = rest.subspan(slices.back().bytes.size()))
        slices.push_back({rest.first(std::min(rest.size(), sliceBytes)), format,
                          &weight.partSources(i % parts)[i / parts]});
    }
  }
  Progress progress("reading weights", size, options.progress);
  auto count = static_cast<int64_t>(slices.size());
  std::atomic<int64_t> firstBad{count};
  pool.parallelFor(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Slice &slice = slices[static_cast<size_t>(i)];
      if (!allNumbers(slice.format, slice.bytes)) {
        int64_t known = firstBad.load();
        while (i < known && !firstBad.compare_exchange_weak(known, i)) {
        }
      }
      progress.add(slice.bytes.size());
    }
  });
  if (firstBad == count)
    return {};
  const Slice &bad = slices[static_cast<size_t>(firstBad.load())];
  return invalid("tensor " + bad.source->tensor +
                 ": expected numbers, found NaN or infinity (a damaged file?)");
}

Status WeightStore::bind(const plan::Plan &plan, hal::Device &device) {
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    Loaded &loaded = weights[w];
    if (isArranged(weight))
      continue;
    for (std::span<const std::byte> tensor : loaded.tensors) {
      MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> buffer,
                           device.import(tensor, weight.name));
      loaded.table.push_back(buffer->address());
      buffers.push_back(std::move(buffer));
    }
    if (!weight.isTable()) {
      if (loaded.table.size() != 1)
        return invalid("weight " + weight.name + ": has " +
                       std::to_string(loaded.table.size()) +
                       " tensors instead of one");
      loaded.argument = loaded.table.front();
      continue;
    }
    MLA_ASSIGN_OR_RETURN(
        std::unique_ptr<hal::Buffer> table,
        device.import(std::as_bytes(std::span(loaded.table)), weight.name));
    loaded.argument = table->address();
    buffers.push_back(std::move(table));
  }
  return {};
}

} // namespace mla::runtime
