//===- Rank.h - what one rank of a plan owns and does -----------*- C++ -*-===//
//
// Part of mla. A rank is a device with its part of the weights, its caches and its
// scratch memory, on which the plan's programs run. All ranks run the same programs
// with the same inputs; they differ in their weights and in the value of the symbol
// `rank`, and wait for each other in the collectives of a program. The engine fills
// the inputs of its first rank, the others take them from there.
//
// Threads: a rank belongs to one thread at a time. begin() only reads the inputs of
// the rank that it takes them from, so all ranks may do it at once.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_RANK_H
#define MLA_RUNTIME_EXECUTOR_RANK_H

#include "mla/Plan/Plan.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/executor/BoundProgram.h"
#include "runtime/executor/EngineOptions.h"
#include "runtime/hal/Device.h"
#include "runtime/weights/WeightStore.h"
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace mla::runtime {

/// Bytes, as reserved; cache and workspace fill physical memory once used.
struct MemoryUse {
  uint64_t weights = 0;
  uint64_t cache = 0;
  uint64_t workspace = 0;
  uint64_t ports = 0; ///< Inputs and outputs of a step.

  MemoryUse &operator+=(const MemoryUse &other);
};

/// What a launch of the plan has cost so far, with EngineOptions::profile.
struct LaunchCost {
  std::string program;
  std::string kernel;
  std::string origin;
  int64_t calls = 0;
  double seconds = 0; ///< Of all calls.
  double fastest = 0; ///< Seconds of the fastest call.
};

/// One run of a program, the same for all ranks.
struct RankStep {
  size_t program = 0;         ///< Of the plan.
  plan::SymbolValues symbols; ///< But for `rank`.
  bool sample = false;        ///< The plan's sampling runs behind it.
};

/// `status`, with the rank that it is of.
Status ofRank(int64_t rank, const Status &status);

class Rank {
public:
  struct Setup {
    const plan::Plan &plan; ///< Of all ranks; outlives the rank.
    const std::filesystem::path &folder;
    int64_t number;   ///< From 0 to below the plan's number of ranks.
    int threads;      ///< Its own, at least 1.
    int gpu;          ///< For a plan of a GPU.
    int64_t capacity; ///< Pages of the cache.
    bool results;     ///< Somebody wants to see what it computes.
    bool progress;    ///< Shows that it is loading.
    /// To the other ranks; null if nothing is exchanged. Outlives the rank.
    collectives::Transport *transport;
  };
  /// Takes device, weights and memory; after an error nothing stays loaded.
  static Result<std::unique_ptr<Rank>> load(const Setup &setup,
                                            const EngineOptions &options);

  int64_t number() const { return ownNumber; }
  const WeightStore &weights() const { return *weightStore; }
  ThreadPool &threads() { return *pool; }
  MemoryUse memory() const;
  /// Of all launches, the plan's sampling last.
  const std::vector<std::vector<LaunchCost>> &profile() const { return costs; }

  /// The host's view of a port.
  template <typename T> T *port(plan::Port p) {
    return reinterpret_cast<T *>(ports[size_t(p)]->host().data());
  }

  /// Tells the ranks that wait for this one that it gives up.
  void giveUp(const Status &why);

  // A step: begin(), then run(), or run(launch) for all launches in their order,
  // then end().

  /// Makes the launches of `step` and brings the inputs, as `first` has them, to
  /// the device. Until the next call, launches() has them.
  Status begin(const RankStep &step, Rank &first);
  std::span<const hal::Dispatch> launches() const { return list; }
  /// Runs all launches; with EngineOptions::profile one at a time. May return
  /// before the work is done.
  Status run();
  /// Runs one launch and waits for it.
  Status run(size_t launch);
  /// Waits for what was run. The ports then have the results, if anybody wants to
  /// see them.
  Status end();

  // For reports and measurements.

  /// The launches of the step that was begun that are those of `launches`, which
  /// another rank has begun too. Launches of no program are left out.
  std::vector<hal::Dispatch>
  sameLaunches(std::span<const hal::Dispatch> launches) const;
  hal::Device &device() { return *ownDevice; }
  const hal::Module &kernels() const { return *module; }
  hal::Buffer &arena() { return *workspace; }
  hal::Buffer &cache(size_t index) { return *caches[index]; }
  Status poisonWorkspace();
  /// As Engine::fillCaches().
  Status fillCaches(uint64_t seed);

private:
  Rank(const plan::Plan &plan, int64_t number)
      : plan(plan), ownNumber(number) {}
  Status allocate(int64_t capacity);
  /// Input ports of a step, but for `saturated`, and the 4-byte elements used.
  struct Input {
    plan::Port port;
    int64_t elements;
  };
  static std::vector<Input> inputsOf(const RankStep &step);
  /// Makes a port what the device reads, if it is not already.
  Status send(plan::Port port, int64_t elements);
  uint64_t keyOf(const RankStep &step);
  Status compareWithOthers();

  const plan::Plan &plan;
  const int64_t ownNumber;
  // In the order of destruction reversed: what borrows comes last.
  collectives::Transport *transport = nullptr;
  std::optional<collectives::Collectives> exchange; ///< Over `transport`.
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<hal::Device> ownDevice;
  std::unique_ptr<hal::Module> module;
  std::unique_ptr<WeightStore> weightStore;
  std::vector<std::unique_ptr<hal::Buffer>> caches;
  std::unique_ptr<hal::Buffer> workspace;
  std::array<std::unique_ptr<hal::Buffer>, plan::portCount> ports;
  std::vector<BoundProgram> programs;
  std::optional<BoundProgram> sampler; ///< Of Plan::sampling.
  std::vector<hal::Dispatch> joined;   ///< A program's launches, and its.
  RankStep current;                    ///< What was begun, with `rank`.
  std::span<const hal::Dispatch> list; ///< Its launches.
  /// By program, the plan's sampling last; profile only.
  std::vector<std::vector<LaunchCost>> costs;
  /// What the device has in each port, where that is memory of its own.
  std::array<std::vector<std::byte>, plan::portCount> sent;
  /// Numbers of the lists that were run: program and symbols.
  std::map<std::pair<size_t, std::array<int64_t, plan::symbolCount>>, uint64_t>
      keys;
  uint64_t lastKey = 0;
  bool profiling = false, wantResults = true, compareRanks = false;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_RANK_H
