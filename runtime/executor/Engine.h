//===- Engine.h - a loaded plan that does steps -----------------*- C++ -*-===//
//
// Part of mla. An engine owns everything that a plan needs in order to run: the
// ranks (Rank.h), one for most plans, with a thread for each, and what they share:
// the pages of the caches and which program runs next. A step takes new tokens of
// some sequences and returns logits; which token comes next is not its business.
//
//   Engine::load(folder) -> newSequence() -> step() -> step() -> ...
//
// Where N processes run a plan of N ranks, each has an engine with one of them, and
// all make the same calls; what step() returns has the same bits everywhere.
//
// Threads: an engine and its sequences belong to one thread at a time; its
// worker threads are its own. Different engines are independent. Memory is
// allocated in load(), a step allocates only its bookkeeping.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_ENGINE_H
#define MLA_RUNTIME_EXECUTOR_ENGINE_H

#include "mla/Plan/Plan.h"
#include "runtime/cache/PageAllocator.h"
#include "runtime/executor/EngineOptions.h"
#include "runtime/executor/Rank.h"
#include "runtime/executor/RankThreads.h"
#include "runtime/executor/Schedule.h"
#include <functional>
#include <memory>
#include <span>
#include <vector>

namespace mla::runtime {

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

class Engine {
public:
  /// Loads a plan's folder. Everything is checked before memory is taken, and
  /// after an error nothing stays loaded.
  static Result<std::unique_ptr<Engine>>
  load(const std::filesystem::path &folder, const EngineOptions &options);

  const plan::Plan &plan() const { return thePlan; }
  /// Ranks in this process: all of the plan's, or one.
  size_t localRanks() const { return ranks.size(); }
  /// Of the first of them.
  const WeightStore &weights() const { return ranks[0]->weights(); }
  /// Likewise. For work between steps, such as a benchmark's.
  ThreadPool &threads() { return ranks[0]->threads(); }

  /// An empty sequence; takes pages as it grows.
  Sequence newSequence() const { return Sequence(pages); }

  /// Appends ids to sequences and computes the logits asked for. The step may
  /// be of any size: it is cut to what the plan's programs take. On an error
  /// every sequence has the length it had before. Fails with Invalid (bad ids,
  /// context full), Exhausted (no cache pages) or Numeric (NaN or infinity
  /// among the logits asked for). An error of one of several ranks, or between
  /// them, names the rank, and the engine is then of no further use.
  Result<Logits> step(std::span<const StepSequence> sequences);

  /// Whether the plan chooses tokens on the device.
  bool canSample() const { return thePlan.sampling.has_value(); }
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
  MemoryUse memory() const; ///< Of all ranks in this process.
  /// Values that were beyond the range of an FP8 latent cache when they were
  /// written, over all layers of all steps, and were cut off there. With caches
  /// whose tokens are spread over the ranks, those of the ranks in this process.
  int64_t saturatedValues() const { return saturated; }
  bool hasFp8Cache() const;

  /// Raises amax[c] to the largest magnitude among the rows of `sequence` in
  /// cache c, for each cache of the plan that is latent. Unsupported if such a
  /// cache is not in f32, bf16 or f16, Numeric if it has NaN or infinity there.
  /// `amax` has an entry for every cache. Unsupported if only some of the ranks that
  /// the cache's tokens are spread over are in this process.
  Status raiseLargest(const Sequence &sequence, std::span<float> amax);

  /// Empty without EngineOptions::profile. Of the first rank in this process.
  std::vector<LaunchCost> profile() const;

  // For reports and measurements; Observe.cpp.

  /// Called after launch `launch` of a program has ended.
  using Observer =
      std::function<Status(const plan::Program &program,
                           const plan::SymbolValues &symbols, size_t launch)>;
  /// With an observer, launches run one at a time, each on all ranks; with none, as
  /// usual.
  void observe(Observer observer) { this->observer = std::move(observer); }
  /// The values of workspace `index` as the last launch left them in rank `rank`,
  /// counted from the first in this process, turned to f32. Of use inside an
  /// observer: later launches write over it.
  Result<std::vector<float>> readWorkspace(const plan::Program &program,
                                           size_t index,
                                           const plan::SymbolValues &symbols,
                                           size_t rank = 0);
  /// Overwrites bytes of workspace `index` from `offset` on, on all ranks; also
  /// inside of an observer.
  Status writeWorkspace(const plan::Program &program, size_t index,
                        uint64_t offset, std::span<const std::byte> bytes);
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
    std::span<const hal::Dispatch> launches; ///< As the first rank has them.
  };
  Result<PreparedStep> prepareStep(std::span<const StepSequence> sequences);
  /// Seconds of each of `repeats` runs of launches of a prepared step, or of others
  /// that have no plan::Launch: these run on the first rank alone. Several ranks run
  /// at once, and the slowest counts.
  Result<std::vector<double>> time(std::span<const hal::Dispatch> launches,
                                   int repeats);
  /// Runs launches of a prepared step on all ranks and waits for them.
  Status run(std::span<const hal::Dispatch> launches);
  /// Device memory that reads as zero, of the first rank; to be gone before the
  /// engine is.
  Result<std::unique_ptr<hal::Buffer>> allocate(uint64_t bytes,
                                                const std::string &what) {
    return ranks[0]->device().allocate(bytes, hal::Access::Device, what);
  }
  /// Of the first rank's device.
  Result<hal::DeviceFacts> facts() { return ranks[0]->device().facts(); }

private:
  Engine() = default;
  /// Loads the ranks that run here.
  Status loadRanks(const std::filesystem::path &folder,
                   const EngineOptions &options, int64_t capacity);
  /// Does `body` for all ranks here at once. The first error in time, with the
  /// rank's number if the plan has several and all are here.
  Status onAll(const std::function<Status(Rank &)> &body);
  Status checkStep(std::span<const StepSequence> sequences) const;
  /// Whether all processes of the group do this step: an error unless they were
  /// given the same tokens.
  Status checkSameStep(std::span<const StepSequence> sequences,
                       const Sampling *sampling);
  /// What step() and stepAndSample() have in common. With `sampling` the ids go
  /// to `sampled`, and there are no rows.
  Result<Logits> doStep(std::span<const StepSequence> sequences,
                        const Sampling *sampling,
                        std::vector<int32_t> &sampled);
  Result<Logits> runStep(std::span<const StepSequence> sequences,
                         std::span<const int64_t> lengths,
                         const Sampling *sampling,
                         std::vector<int32_t> &sampled);
  // The inputs go to the first rank's ports; the other ranks take them from there.
  plan::SymbolValues fillPorts(const ProgramRun &run,
                               std::span<const StepSequence> sequences,
                               std::span<const int64_t> lengths);
  void fillSampling(const ProgramRun &run, const Sampling *sampling);
  Status runProgram(const RankStep &step);
  void countSaturated(int64_t tokens);
  Status checkFinite(const ProgramRun &run, const Logits &logits,
                     std::span<const int64_t> lengths) const;
  /// Appends the ids that a run has chosen.
  Status takeSampled(const ProgramRun &run, std::span<const int64_t> lengths,
                     std::vector<int32_t> &sampled);
  template <typename T> T *port(plan::Port p) { return ranks[0]->port<T>(p); }

  // In the order of destruction reversed: what borrows comes last.
  plan::Plan thePlan;
  /// Between ranks that are threads of this process.
  std::vector<std::unique_ptr<collectives::Transport>> transports;
  collectives::Transport *group = nullptr; ///< EngineOptions::group.
  std::shared_ptr<PageAllocator> pages;
  std::vector<std::unique_ptr<Rank>> ranks; ///< In this process.
  std::unique_ptr<RankThreads> threadsOfRanks;
  std::vector<float> gathered; ///< Logits of a step of several runs.
  Observer observer;
  int64_t saturated = 0;
  int64_t steps = 0;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_ENGINE_H
