//===- WeightStore.h - the weights of a plan in memory ----------*- C++ -*-===//
//
// Part of mla. Brings every weight of a plan to a device. Weights of a
// safetensors checkpoint are mapped and used where they lie; only what is not
// aligned to its element, scales that the file holds as reciprocals, and what a
// rank has of a tensor if it is not one run of the file's bytes, are copied.
// Synthetic weights are generated into memory of their own. Weights of a GPU's
// layouts are cut, converted and packed on their way to the device (Arrange.h,
// Stripes.h), or come from a file that holds them so. Nothing is handed out
// before everything is checked.
//
// Threads: immutable once loaded.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_WEIGHTS_WEIGHTSTORE_H
#define MLA_RUNTIME_WEIGHTS_WEIGHTSTORE_H

#include "mla/Plan/Plan.h"
#include "runtime/base/Memory.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/hal/Device.h"
#include "runtime/weights/Arrange.h"
#include <memory>
#include <span>
#include <vector>

namespace mla::runtime {

struct WeightOptions {
  /// Replaces the folder that the plan names, if not empty.
  std::filesystem::path checkpoint = {};
  bool progress = false; ///< Show a bar while loading.
  /// File of arranged weights, if not empty: used if it exists, or else written.
  std::filesystem::path packed = {};
};

class WeightStore {
public:
  /// `plan` must have passed plan::verify(), and for several ranks be
  /// plan::localized(); `device` must outlive the store.
  static Result<std::unique_ptr<WeightStore>>
  load(const plan::Plan &plan, hal::Device &device, ThreadPool &pool,
       const WeightOptions &options);

  /// Writes the arranged weights of `plan` to `file`, without a device: those
  /// of the rank that it is localized for, of which load() takes no other file.
  /// Invalid if it has none.
  static Status pack(const plan::Plan &plan, ThreadPool &pool,
                     const WeightOptions &options,
                     const std::filesystem::path &file);

  /// What a kernel receives for weight `index`: the address of its only tensor,
  /// or of the table of addresses (plan::Weight::isTable()).
  uint64_t argument(uint32_t index) const { return weights[index].argument; }

  /// The tensors of weight `index` as the host sees them: all parts of the first,
  /// then of the next. None of an arranged weight that came from a packed file.
  std::span<const std::span<const std::byte>> tensors(uint32_t index) const {
    return weights[index].tensors;
  }

  /// Bytes of all weights.
  uint64_t bytes() const { return total; }

private:
  struct Loaded {
    uint64_t argument = 0;
    std::vector<std::span<const std::byte>> tensors;
    std::vector<uint64_t> table;
  };

  WeightStore() = default;
  Status mapCheckpoint(const plan::Plan &plan, ThreadPool &pool,
                       const WeightOptions &options);
  Status generate(const plan::Plan &plan, ThreadPool &pool,
                  const WeightOptions &options);
  Status readAll(const plan::Plan &plan, ThreadPool &pool,
                 const WeightOptions &options) const;
  Status bind(const plan::Plan &plan, hal::Device &device);
  /// Maps the checkpoint, unless nothing needs it or `packed` holds all.
  Status prepare(const plan::Plan &plan, ThreadPool &pool,
                 const WeightOptions &options, bool packed);
  Status upload(const plan::Plan &plan, const Arrangement &arrangement,
                hal::Device &device, ThreadPool &pool,
                const WeightOptions &options);
  Arranger arranger(const plan::Plan &plan,
                    const Arrangement &arrangement) const;

  std::vector<MappedFile> files;
  std::vector<HostMemory> owned; ///< Copies, or synthetic weights.
  std::vector<Loaded> weights;
  std::vector<std::unique_ptr<hal::Buffer>> buffers; ///< Borrow the above.
  uint64_t total = 0;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_WEIGHTS_WEIGHTSTORE_H
