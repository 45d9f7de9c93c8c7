//===- WeightStore.cpp - the weights of a plan in memory ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/WeightStore.h"
#include "runtime/base/Progress.h"
#include "runtime/weights/CheckpointFiles.h"
#include "runtime/weights/Synthetic.h"
#include <algorithm>
#include <cstring>

namespace mla::runtime {
namespace {

/// Synthetic tensors begin at multiples of this, as a cache line does.
constexpr uint64_t tensorAlignment = 64;
/// Elements or bytes that a thread handles before it looks for more.
constexpr uint64_t sliceElements = uint64_t(1) << 16;
constexpr uint64_t sliceBytes = uint64_t(4) << 20;
constexpr uint64_t pageBytes = 4096;

/// The shape of one tensor of `weight`.
std::span<const int64_t> tensorShape(const plan::Weight &weight) {
  return std::span(weight.shape).subspan(weight.stacked ? 1 : 0);
}

Result<uint64_t> tensorElements(const plan::Weight &weight) {
  uint64_t elements = 1;
  for (int64_t size : tensorShape(weight))
    if (size < 0 || __builtin_mul_overflow(
                        elements, static_cast<uint64_t>(size), &elements))
      return invalid("weight " + weight.name + ": its size overflows");
  return elements;
}

/// Bytes of one tensor of `weight`; also checks that the format can be loaded.
Result<uint64_t> tensorBytes(const plan::Weight &weight) {
  std::optional<uint64_t> element = elementBytes(weight.format);
  if (!element)
    return unsupported("weight " + weight.name + ": format " +
                       std::string(formatName(weight.format)) +
                       " cannot be loaded by this runtime");
  MLA_ASSIGN_OR_RETURN(uint64_t elements, tensorElements(weight));
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(elements, *element, &bytes))
    return invalid("weight " + weight.name + ": its size overflows");
  return bytes;
}

} // namespace

Result<std::unique_ptr<WeightStore>>
WeightStore::load(const plan::Plan &plan, hal::Device &device, ThreadPool &pool,
                  const WeightOptions &options) {
  std::unique_ptr<WeightStore> store(new WeightStore);
  store->weights.resize(plan.weights.size());
  switch (plan.checkpoint.kind) {
  case plan::Checkpoint::Kind::None:
    return unsupported("the plan was compiled without weights "
                       "(--no-weights): it can be inspected, but not run");
  case plan::Checkpoint::Kind::Safetensors:
    MLA_RETURN_IF_ERROR(store->mapCheckpoint(plan, options));
    store->preload(pool, options);
    break;
  case plan::Checkpoint::Kind::Synthetic:
    if (!options.checkpoint.empty())
      return invalid("a checkpoint folder was given, but the plan's weights "
                     "are synthetic");
    MLA_RETURN_IF_ERROR(store->generate(plan, pool, options));
    break;
  }
  MLA_RETURN_IF_ERROR(store->bind(plan, device));
  return store;
}

Status WeightStore::mapCheckpoint(const plan::Plan &plan,
                                  const WeightOptions &options) {
  std::filesystem::path folder = options.checkpoint;
  if (folder.empty())
    folder = plan.checkpoint.folder;
  MLA_ASSIGN_OR_RETURN(files, openCheckpointFiles(plan.checkpoint, folder));
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, tensorBytes(weight));
    for (const plan::TensorSource &source : weight.sources) {
      if (source.file >= files.size())
        return invalid("tensor " + source.tensor + ": the plan has no file " +
                       std::to_string(source.file));
      std::span<const std::byte> file = files[source.file].bytes();
      if (source.offset > file.size() || bytes > file.size() - source.offset)
        return invalid("tensor " + source.tensor + ": lies beyond the end of " +
                       plan.checkpoint.files[source.file].name);
      std::span<const std::byte> tensor = file.subspan(source.offset, bytes);
      if (reinterpret_cast<uintptr_t>(tensor.data()) %
              *elementBytes(weight.format) !=
          0) {
        MLA_ASSIGN_OR_RETURN(HostMemory copy,
                             HostMemory::allocate(bytes, source.tensor));
        std::memcpy(copy.bytes().data(), tensor.data(), bytes);
        tensor = copy.bytes();
        owned.push_back(std::move(copy));
      }
      weights[w].tensors.push_back(tensor);
      total += bytes;
    }
  }
  return {};
}

/// Reads every page once, so that the first step is as fast as the next. Not if
/// the weights fill most of the memory: reading the end would drop the start.
void WeightStore::preload(ThreadPool &pool,
                          const WeightOptions &options) const {
  if (total > physicalMemory() / 4 * 3)
    return;
  std::vector<std::span<const std::byte>> slices;
  for (const Loaded &weight : weights)
    for (std::span<const std::byte> rest : weight.tensors)
      while (!rest.empty()) {
        slices.push_back(rest.first(std::min(rest.size(), sliceBytes)));
        rest = rest.subspan(slices.back().size());
      }
  Progress progress("reading weights", total, options.progress);
  auto count = static_cast<int64_t>(slices.size());
  pool.parallelFor(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      std::span<const std::byte> slice = slices[static_cast<size_t>(i)];
      for (size_t at = 0; at < slice.size(); at += pageBytes)
        (void)*static_cast<const volatile std::byte *>(&slice[at]);
      progress.add(slice.size());
    }
  });
}

Status WeightStore::generate(const plan::Plan &plan, ThreadPool &pool,
                             const WeightOptions &options) {
  struct Slice {
    const SyntheticTensor *tensor;
    Format format;
    uint64_t first;
    std::span<std::byte> out;
  };
  struct Planned {
    size_t weight;
    uint64_t offset, bytes;
  };
  std::vector<SyntheticTensor> tensors;
  std::vector<Planned> planned;
  uint64_t size = 0;
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    if (weight.format != Format::F32 && weight.format != Format::BF16)
      return unsupported("weight " + weight.name +
                         ": synthetic weights exist in f32 and bf16, not in " +
                         std::string(formatName(weight.format)));
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, tensorBytes(weight));
    for (const plan::TensorSource &source : weight.sources) {
      tensors.emplace_back(source.tensor, tensorShape(weight),
                           plan.checkpoint.seed);
      planned.push_back({w, size, bytes});
      total += bytes;
      if (__builtin_add_overflow(size, bytes + tensorAlignment - 1, &size))
        return invalid("the size of the synthetic weights overflows");
      size = size / tensorAlignment * tensorAlignment;
    }
  }
  if (size > physicalMemory())
    return exhausted("the synthetic weights need " + formatBytes(size) +
                     "; this machine has " + formatBytes(physicalMemory()));
  MLA_ASSIGN_OR_RETURN(HostMemory memory,
                       HostMemory::allocate(size, "synthetic weights"));

  std::vector<Slice> slices;
  for (size_t t = 0; t < planned.size(); ++t) {
    const Planned &p = planned[t];
    Format format = plan.weights[p.weight].format;
    std::span<std::byte> out = memory.bytes().subspan(p.offset, p.bytes);
    weights[p.weight].tensors.push_back(out);
    for (uint64_t first = 0; !out.empty(); first += sliceElements) {
      uint64_t bytes =
          std::min<uint64_t>(out.size(), sliceElements * *elementBytes(format));
      slices.push_back({&tensors[t], format, first, out.first(bytes)});
      out = out.subspan(bytes);
    }
  }
  owned.push_back(std::move(memory));
  Progress progress("generating weights", total, options.progress);
  auto count = static_cast<int64_t>(slices.size());
  pool.parallelFor(count, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Slice &slice = slices[static_cast<size_t>(i)];
      slice.tensor->fill(slice.format, slice.first, slice.out);
      progress.add(slice.out.size());
    }
  });
  return {};
}

Status WeightStore::bind(const plan::Plan &plan, hal::Device &device) {
  for (size_t w = 0; w < plan.weights.size(); ++w) {
    const plan::Weight &weight = plan.weights[w];
    Loaded &loaded = weights[w];
    for (std::span<const std::byte> tensor : loaded.tensors) {
      MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> buffer,
                           device.import(tensor, weight.name));
      loaded.table.push_back(buffer->address());
      buffers.push_back(std::move(buffer));
    }
    if (!weight.stacked) {
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
