//===- WeightStore.cpp - the weights of a plan in memory ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/WeightStore.h"
#include "mla/Quant/Matrix.h"
#include "runtime/base/Progress.h"
#include "runtime/weights/CheckpointFiles.h"
#include "runtime/weights/Numbers.h"
#include "runtime/weights/Synthetic.h"
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

namespace mla::runtime {
namespace {

/// Synthetic tensors begin at multiples of this, as a cache line does.
constexpr uint64_t tensorAlignment = 64;
/// Elements or bytes that a thread handles before it looks for more.
constexpr int64_t sliceElements = int64_t(1) << 16;
constexpr uint64_t sliceBytes = uint64_t(4) << 20;

/// The shape of one tensor of `weight`.
std::span<const int64_t> tensorShape(const plan::Weight &weight) {
  return std::span(weight.shape).subspan(weight.stacked ? 1 : 0);
}

bool isArranged(const plan::Weight &weight) {
  return weight.layout != plan::Layout::Checkpoint;
}

uint64_t aligned(uint64_t offset) {
  return (offset + tensorAlignment - 1) / tensorAlignment * tensorAlignment;
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

Result<std::unique_ptr<WeightStore>>
WeightStore::load(const plan::Plan &plan, hal::Device &device, ThreadPool &pool,
                  const WeightOptions &options) {
  std::unique_ptr<WeightStore> store(new WeightStore);
  MLA_ASSIGN_OR_RETURN(Arrangement arrangement, Arrangement::of(plan));
  std::error_code error;
  bool packed = !options.packed.empty() &&
                std::filesystem::exists(options.packed, error);
  MLA_RETURN_IF_ERROR(store->prepare(plan, options, packed));
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

Status WeightStore::mapCheckpoint(const plan::Plan &plan,
                                  const WeightOptions &options) {
  std::filesystem::path folder = options.checkpoint;
  if (folder.empty())
    folder = plan.checkpoint.folder;
  MLA_ASSIGN_OR_RETURN(files, openCheckpointFiles(plan.checkpoint, folder));
  // Parts that cannot be used where they lie: their place in one block of memory.
  struct Copy {
    size_t weight, tensor;
    const plan::TensorSource *source;
    bool reciprocal;
    uint64_t offset;
  };
  std::vector<Copy> copies;
  uint64_t copied = 0;
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    const bool arranged = isArranged(weight);
    std::vector<StoragePart> parts = weight.parts();
    for (size_t t = 0; t < weight.sources.size(); ++t)
      for (size_t p = 0; p < parts.size(); ++p) {
        const plan::TensorSource &source = weight.partSources(p)[t];
        uint64_t bytes = parts[p].bytes();
        if (source.file >= files.size())
          return invalid("tensor " + source.tensor + ": the plan has no file " +
                         std::to_string(source.file));
        std::span<const std::byte> file = files[source.file].bytes();
        if (source.offset > file.size() || bytes > file.size() - source.offset)
          return invalid("tensor " + source.tensor +
                         ": lies beyond the end of " +
                         plan.checkpoint.files[source.file].name);
        std::span<const std::byte> part = file.subspan(source.offset, bytes);
        // What is arranged is copied anyway, whatever its place.
        bool reciprocal =
            !arranged && p > 0 && weight.scales[p - 1].reciprocal;
        if (reciprocal || (!arranged &&
                           reinterpret_cast<uintptr_t>(part.data()) %
                                   parts[p].elementBytes !=
                               0)) {
          copies.push_back({w, weights[w].tensors.size(), &source, reciprocal,
                            copied});
          copied = aligned(copied + bytes);
        }
        weights[w].tensors.push_back(part);
        total += arranged ? 0 : bytes;
      }
  }
  if (copies.empty())
    return {};
  MLA_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::allocate(copied, "copies of weights"));
  for (const Copy &copy : copies) {
    std::span<const std::byte> &part = weights[copy.weight].tensors[copy.tensor];
    std::span<std::byte> to = memory.bytes().subspan(copy.offset, part.size());
    std::memcpy(to.data(), part.data(), part.size());
    if (copy.reciprocal)
      MLA_RETURN_IF_ERROR(invert(to, copy.source->tensor));
    part = to;
  }
  owned.push_back(std::move(memory));
  return {};
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

Status WeightStore::generate(const plan::Plan &plan, ThreadPool &pool,
                             const WeightOptions &options) {
  /// One tensor, and rows of it that a thread makes at a time.
  struct Planned {
    size_t weight;
    SyntheticTensor tensor;
    std::vector<StoragePart> parts;
    int64_t rows, columns;
    quant::MatrixParts out;
  };
  struct Slice {
    const Planned *planned;
    int64_t firstRow, rows;
  };
  std::vector<Planned> all;
  uint64_t size = 0;
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    if (isArranged(weight))
      continue;
    std::span<const int64_t> shape = tensorShape(weight);
    int64_t columns = shape.empty() ? 1 : shape.back(), rows = 1;
    for (int64_t n : shape.first(shape.empty() ? 0 : shape.size() - 1))
      rows *= n;
    for (const plan::TensorSource &source : weight.sources) {
      all.push_back({w, SyntheticTensor(source.tensor, shape,
                                        plan.checkpoint.seed),
                     weight.parts(), rows, columns, {}});
      for (const StoragePart &part : all.back().parts) {
        total += part.bytes();
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

  std::vector<Slice> slices;
  uint64_t offset = 0;
  for (Planned &p : all) {
    Format format = plan.weights[p.weight].format;
    p.out = {format, p.rows, p.columns, {}, {}, {}};
    std::span<std::byte> *spans[] = {&p.out.values, &p.out.scales,
                                     &p.out.global};
    for (size_t i = 0; i < p.parts.size(); ++i) {
      *spans[i] = memory.bytes().subspan(offset, p.parts[i].bytes());
      weights[p.weight].tensors.push_back(*spans[i]);
      offset = aligned(offset + p.parts[i].bytes());
    }
    if (format == Format::NVFP4) {
      float global = quant::nvfp4GlobalScale(p.tensor.bound());
      std::memcpy(p.out.global.data(), &global, sizeof global);
    }
    // A block of fp8 scales is made whole.
    int64_t step = std::max<int64_t>(1, sliceElements / p.columns);
    if (format == Format::FP8Block)
      step = (step + 127) / 128 * 128;
    for (int64_t row = 0; row < p.rows; row += step)
      slices.push_back({&p, row, std::min(step, p.rows - row)});
  }
  owned.push_back(std::move(memory));
  Progress progress("generating weights", total, options.progress);
  auto count = static_cast<int64_t>(slices.size());
  pool.parallelFor(count, [&](int64_t begin, int64_t end) {
    std::vector<float> values;
    for (int64_t i = begin; i < end; ++i) {
      const auto &[p, firstRow, rows] = slices[static_cast<size_t>(i)];
      Format format = plan.weights[p->weight].format;
      values.resize(static_cast<size_t>(rows * p->columns));
      p->tensor.fill(static_cast<uint64_t>(firstRow * p->columns), values,
                     format != Format::F32);
      quant::quantizeRows(values, firstRow, p->out);
      uint64_t bytes = 0;
      for (const StoragePart &part : p->parts)
        bytes += part.bytes() * static_cast<uint64_t>(rows) /
                 static_cast<uint64_t>(p->rows);
      progress.add(bytes);
    }
  });
  return {};
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
