//===- Engine.h - a loaded plan that does steps -----------------*- C++ -*-===//
//
// Part of mla. An engine owns everything that a plan needs in order to run:
// device, kernels, weights, cache, workspace. A step takes new tokens of some
// sequences and returns logits; which token comes next is not its business.
//
//   Engine::load(folder) -> newSequence() -> step() -> step() -> ...
//
// Threads: an engine and its sequences belong to one thread at a time; its
// worker threads are its own. Different engines are independent. Memory is
// allocated in load(), a step allocates only its bookkeeping.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_ENGINE_H
#define MLA_RUNTIME_EXECUTOR_ENGINE_H

#include "mla/Plan/Plan.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/cache/PageAllocator.h"
#include "runtime/executor/BoundProgram.h"
#include "runtime/executor/Schedule.h"
#include "runtime/hal/Device.h"
#include "runtime/weights/WeightStore.h"
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace mla::runtime {

struct EngineOptions {
  int threads = 0; ///< 0: one for each hardware thread.
  /// Tokens that the cache holds, over all sequences; rounded up to pages.
  /// 0: the model's context, but defaultCacheTokens at the most.
  int64_t cacheTokens = 0;
  /// Replaces the folder that the plan names, if not empty.
  std::filesystem::path checkpoint = {};
  int gpu = 0; ///< Which, for a plan of a GPU.
  /// File of weights as a GPU has them: used if it exists, or else written.
  std::filesystem::path packed = {};
  bool progress = false; ///< Show a bar on a terminal while loading.
  bool profile = false;  ///< Measure every launch; slows steps.
  /// Takes a rank's share of which nothing is exchanged too: what it computes
  /// means nothing, how long that takes does.
  bool measureOnly = false;
  /// Opens another device than hal::openDevice() does; for tests.
  std::function<Result<std::unique_ptr<hal::Device>>(const plan::Plan &,
                                                     ThreadPool &)>
      open = {};
};
constexpr int64_t defaultCacheTokens = 32768;

/// The new tokens of one sequence.
struct StepSequence {
  Sequence *sequence = nullptr;
  std::span<const int32_t> ids;
  LogitsFor logits = LogitsFor::Last;
};

/// How the token that follows a sequence is chosen on the device. As
/// SamplerOptions has them, and in their ranges; without a repetition penalty.
struct Sampling {
  float temperature = 0; ///< 0: the largest logit, the lower id among equals.
  int32_t topK = 0;
  float topP = 1;
  float minP = 0;
  float uniform = 0; ///< A random number from 0 to below 1.
};

/// Rows of logits, in the order of sequences and tokens. A view of the engine's
/// memory, valid until its next step.
class Logits {
public:
  Logits(const float *data, int64_t rows, int64_t vocab)
      : data(data), rowCount(rows), vocab(vocab) {}
  int64_t rows() const { return rowCount; }
  std::span<const float> row(int64_t index) const {
    return {data + index * vocab, static_cast<size_t>(vocab)};
  }

private:
  const float *data;
  int64_t rowCount;
  int64_t vocab;
};

/// Bytes, as reserved; cache and workspace fill physical memory once used.
struct MemoryUse {
  uint64_t weights = 0;
  uint64_t cache = 0;
  uint64_t workspace = 0;
  uint64_t ports = 0; ///< Inputs and outputs of a step.
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

class Engine {
public:
  /// Loads a plan's folder. Everything is checked before memory is taken, and
  /// after an error nothing stays loaded.
  static Result<std::unique_ptr<Engine>>
  load(const std::filesystem::path &folder, const EngineOptions &options);

  const plan::Plan &plan() const { return thePlan; }
  const WeightStore &weights() const { return *weightStore; }
  /// For work between steps, such as a benchmark's.
  ThreadPool &threads() { return *pool; }

  /// An empty sequence; takes pages as it grows.
  Sequence newSequence() const { return Sequence(pages); }

  /// Appends ids to sequences and computes the logits asked for. The step may
  /// be of any size: it is cut to what the plan's programs take. On an error
  /// every sequence has the length it had before. Fails with Invalid (bad ids,
  /// context full), Exhausted (no cache pages) or Numeric (NaN or infinity
  /// among the logits asked for).
  Result<Logits> step(std::span<const StepSequence> sequences);

  /// Whether the plan chooses tokens on the device.
  bool canSample() const { return sampler.has_value(); }
  /// As step(), but instead of logits the token that sampling[i] chooses after the
  /// last of sequence i, all of which want LogitsFor::Last. Logits stay on the
  /// device; NaN, +inf, or nothing above -inf among them is the Numeric error.
  /// Needs canSample().
  Result<std::vector<int32_t>>
  stepAndSample(std::span<const StepSequence> sequences,
                std::span<const Sampling> sampling);

  /// Tokens that one program takes at most when each is followed by logits.
  int64_t largestStepWithLogits() const;
  /// Tokens that one sequence can have, by the model and by the plan.
  int64_t contextLength() const;
  int64_t cacheTokens() const;
  MemoryUse memory() const;
  /// Values that were beyond the range of an FP8 latent cache when they were
  /// written, over all layers of all steps, and were cut off there.
  int64_t saturatedValues() const { return saturated; }
  bool hasFp8Cache() const;

  /// Raises amax[c] to the largest magnitude among the rows of `sequence` in
  /// cache c, for each cache of the plan that is latent. Unsupported if such a
  /// cache is not in f32, bf16 or f16, Numeric if it has NaN or infinity there.
  /// `amax` has an entry for every cache.
  Status raiseLargest(const Sequence &sequence, std::span<float> amax);

  /// Empty without EngineOptions::profile.
  std::vector<LaunchCost> profile() const;

  // For reports and measurements; Observe.cpp.

  /// Called after launch `launch` of a program has ended.
  using Observer =
      std::function<Status(const plan::Program &program,
                           const plan::SymbolValues &symbols, size_t launch)>;
  /// With an observer, launches run one at a time; with none, as usual.
  void observe(Observer observer) { this->observer = std::move(observer); }
  /// The values of workspace `index` as the last launch left them, turned to
  /// f32. Of use inside an observer: later launches write over it.
  Result<std::vector<float>> readWorkspace(const plan::Program &program,
                                           size_t index,
                                           const plan::SymbolValues &symbols);
  /// Overwrites bytes of workspace `index` from `offset` on; also inside of an
  /// observer.
  Status writeWorkspace(const plan::Program &program, size_t index,
                        uint64_t offset, std::span<const std::byte> bytes) {
    return device->write(*workspace, program.workspaces[index].offset + offset,
                         bytes);
  }
  /// Fills the scratch memory with bytes 0xFF, which are NaN in every format, so
  /// that what nothing has written shows in what is computed from it.
  Status poisonWorkspace();
  /// Fills all caches with random values in [-1, 1) times the scale of an FP8
  /// cache, whatever it is; to measure steps at a context that was not computed.
  Status fillCaches(uint64_t seed);
  /// A step that is one run of a program: fills its inputs and gives its
  /// launches, valid until the next step, without running them. The ids are the
  /// last tokens of their sequences, which are that long already.
  struct PreparedStep {
    const plan::Program *program = nullptr;
    plan::SymbolValues symbols;
    std::span<const hal::Dispatch> launches;
  };
  Result<PreparedStep> prepareStep(std::span<const StepSequence> sequences);
  /// Seconds of each of `repeats` runs of launches of a prepared step.
  Result<std::vector<double>> time(std::span<const hal::Dispatch> launches,
                                   int repeats) {
    return device->time(*module, launches, repeats);
  }
  /// Runs launches of a prepared step and waits for them.
  Status run(std::span<const hal::Dispatch> launches) {
    MLA_RETURN_IF_ERROR(device->run(*module, launches));
    return device->synchronize();
  }
  /// Device memory that reads as zero; to be gone before the engine is.
  Result<std::unique_ptr<hal::Buffer>> allocate(uint64_t bytes,
                                                const std::string &what) {
    return device->allocate(bytes, hal::Access::Device, what);
  }
  Result<hal::DeviceFacts> facts() { return device->facts(); }

private:
  Engine() = default;
  Status allocate(int64_t capacity);
  Status checkStep(std::span<const StepSequence> sequences) const;
  /// What step() and stepAndSample() have in common. With `sampling` the ids go
  /// to `sampled`, and there are no rows.
  Result<Logits> doStep(std::span<const StepSequence> sequences,
                        const Sampling *sampling,
                        std::vector<int32_t> &sampled);
  Result<Logits> runStep(std::span<const StepSequence> sequences,
                         std::span<const int64_t> lengths,
                         const Sampling *sampling,
                         std::vector<int32_t> &sampled);
  plan::SymbolValues fillPorts(const ProgramRun &run,
                               std::span<const StepSequence> sequences,
                               std::span<const int64_t> lengths);
  void fillSampling(const ProgramRun &run, const Sampling *sampling);
  /// With `sample`, followed by the plan's program for that.
  Status runProgram(size_t program, const plan::SymbolValues &symbols,
                    bool sample);
  /// The launches of a program, and those that sample behind them.
  Result<std::span<const hal::Dispatch>>
  prepare(size_t program, const plan::SymbolValues &symbols, bool sample);
  /// Makes a port what the device reads, if it is not already.
  Status send(plan::Port port, int64_t elements);
  Status sendInputs(const plan::SymbolValues &symbols, bool sample = false);
  uint64_t keyOf(size_t program, const plan::SymbolValues &symbols,
                 bool sample);
  void countSaturated(int64_t tokens);
  Status checkFinite(const ProgramRun &run, const Logits &logits,
                     std::span<const int64_t> lengths) const;
  /// Appends the ids that a run has chosen.
  Status takeSampled(const ProgramRun &run, std::span<const int64_t> lengths,
                     std::vector<int32_t> &sampled);
  template <typename T> T *port(plan::Port p) {
    return reinterpret_cast<T *>(ports[static_cast<size_t>(p)]->host().data());
  }

  // In the order of destruction reversed: what borrows comes last.
  plan::Plan thePlan;
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Module> module;
  std::unique_ptr<WeightStore> weightStore;
  std::shared_ptr<PageAllocator> pages;
  std::vector<std::unique_ptr<hal::Buffer>> caches;
  std::unique_ptr<hal::Buffer> workspace;
  std::array<std::unique_ptr<hal::Buffer>, plan::portCount> ports;
  std::vector<BoundProgram> programs;
  std::optional<BoundProgram> sampler; ///< Of Plan::sampling.
  std::vector<hal::Dispatch> joined;   ///< A program's launches, and its.
  std::vector<float> gathered; ///< Logits of a step of several runs.
  /// By program, the plan's sampling last; profile only.
  std::vector<std::vector<LaunchCost>> costs;
  /// What the device has in each port, where that is memory of its own.
  std::array<std::vector<std::byte>, plan::portCount> sent;
  /// Numbers of the lists that were run: program and symbols.
  std::map<std::pair<size_t, std::array<int64_t, plan::symbolCount>>, uint64_t>
      keys;
  uint64_t lastKey = 0;
  Observer observer;
  bool profiling = false;
  int64_t saturated = 0;
  int64_t steps = 0;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_ENGINE_H
