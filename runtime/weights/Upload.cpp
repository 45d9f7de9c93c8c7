//===- Upload.cpp - arranged weights to a device or a file ----------------===//
//
// Part of mla. The half of WeightStore for the layouts of a GPU.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/PackFile.h"
#include "runtime/weights/Stripes.h"
#include "runtime/weights/WeightStore.h"
#include <algorithm>
#include <optional>

namespace mla::runtime {

Status WeightStore::prepare(const plan::Plan &plan, ThreadPool &pool,
                            const WeightOptions &options, bool packed) {
  weights.resize(plan.weights.size());
  for (const plan::Weight &w : plan.weights)
    if (w.shard)
      return internalError("weight " + w.name +
                           " is loaded for no rank in particular");
  switch (plan.checkpoint.kind) {
  case plan::Checkpoint::Kind::None:
    return unsupported("the plan was compiled without weights "
                       "(--no-weights): it can be inspected, but not run");
  case plan::Checkpoint::Kind::Safetensors: {
    bool needed = std::any_of(plan.weights.begin(), plan.weights.end(),
                              [&](const plan::Weight &w) {
                                return !packed ||
                                       w.layout == plan::Layout::Checkpoint;
                              });
    return needed ? mapCheckpoint(plan, pool, options) : Status();
  }
  case plan::Checkpoint::Kind::Synthetic:
    if (!options.checkpoint.empty())
      return invalid("a checkpoint folder was given, but the plan's weights "
                     "are synthetic");
    return {};
  }
  return internalError("a kind of checkpoint that is not known");
}

Arranger WeightStore::arranger(const plan::Plan &plan,
                               const Arrangement &arrangement) const {
  auto parts = [](const void *context, uint32_t weight) {
    return static_cast<const WeightStore *>(context)->tensors(weight);
  };
  return Arranger(plan, arrangement, parts, this);
}

Status WeightStore::upload(const plan::Plan &plan,
                           const Arrangement &arrangement, hal::Device &device,
                           ThreadPool &pool, const WeightOptions &options) {
  uint64_t fingerprint = arrangementFingerprint(plan);
  std::optional<PackFile> file;
  std::unique_ptr<PackWriter> writer;
  std::error_code error;
  if (std::filesystem::exists(options.packed, error)) {
    MLA_ASSIGN_OR_RETURN(
        file, PackFile::open(options.packed, fingerprint, arrangement.bytes));
  } else if (!options.packed.empty()) {
    MLA_ASSIGN_OR_RETURN(writer, PackWriter::create(options.packed, fingerprint,
                                                    arrangement.bytes));
  }
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<hal::Buffer> block,
      device.allocate(arrangement.bytes, hal::Access::Device, "the weights"));
  std::array<std::unique_ptr<hal::Buffer>, 2> stagings;
  for (std::unique_ptr<hal::Buffer> &staging : stagings) {
    MLA_ASSIGN_OR_RETURN(staging,
                         device.allocate(stripeBytes(arrangement),
                                         hal::Access::Shared,
                                         "weights on their way"));
  }
  bool synthetic =
      plan.checkpoint.kind == plan::Checkpoint::Kind::Synthetic;
  Progress progress(file        ? "uploading weights"
                    : synthetic ? "generating weights"
                                : "packing weights",
                    arrangement.contentBytes, options.progress);
  // Only one thread uses the device at a time: this one waits, or packs.
  MLA_RETURN_IF_ERROR(makeStripes(
      arrangement, arranger(plan, arrangement),
      file ? file->block() : std::span<const std::byte>(), pool, progress,
      {stagings[0]->host(), stagings[1]->host()},
      [&](uint64_t offset, std::span<const std::byte> bytes) -> Status {
        MLA_RETURN_IF_ERROR(device.write(*block, offset, bytes));
        return writer ? writer->write(offset, bytes) : Status();
      }));
  if (writer)
    MLA_RETURN_IF_ERROR(writer->finish());
  for (size_t w = 0; w < plan.weights.size(); ++w)
    if (plan.weights[w].layout != plan::Layout::Checkpoint)
      weights[w].argument = block->address() + arrangement.offsets[w];
  buffers.push_back(std::move(block));
  total += arrangement.contentBytes;
  return {};
}

Status WeightStore::pack(const plan::Plan &plan, ThreadPool &pool,
                         const WeightOptions &options,
                         const std::filesystem::path &file) {
  MLA_ASSIGN_OR_RETURN(Arrangement arrangement, Arrangement::of(plan));
  if (arrangement.items.empty())
    return invalid("the plan has no weights that are packed; only a plan for a "
                   "GPU does");
  WeightStore store;
  MLA_RETURN_IF_ERROR(store.prepare(plan, pool, options, false));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<PackWriter> writer,
                       PackWriter::create(file, arrangementFingerprint(plan),
                                          arrangement.bytes));
  uint64_t longest = stripeBytes(arrangement);
  MLA_ASSIGN_OR_RETURN(
      HostMemory memory,
      HostMemory::allocate(2 * longest, "weights on their way"));
  Progress progress("packing weights", arrangement.contentBytes,
                    options.progress);
  MLA_RETURN_IF_ERROR(makeStripes(
      arrangement, store.arranger(plan, arrangement), {}, pool, progress,
      {memory.bytes().first(longest), memory.bytes().subspan(longest)},
      [&](uint64_t offset, std::span<const std::byte> bytes) {
        return writer->write(offset, bytes);
      }));
  return writer->finish();
}

} // namespace mla::runtime
