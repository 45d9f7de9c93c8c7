//===- EngineOptions.h - how a plan is loaded and run -----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_EXECUTOR_ENGINEOPTIONS_H
#define MLA_RUNTIME_EXECUTOR_ENGINEOPTIONS_H

#include "mla/Plan/Plan.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/p2p/Peers.h"
#include "runtime/hal/Device.h"
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace mla::runtime {

struct EngineOptions {
  /// Of this process; its ranks divide them. 0: one for each hardware thread, or,
  /// with `group`, this process' share of them if all are on this machine.
  int threads = 0;
  /// Tokens that the cache holds, over all sequences; rounded up to pages.
  /// 0: the model's context, but defaultCacheTokens at the most.
  int64_t cacheTokens = 0;
  /// Page numbers beyond those, for sequences whose last page is filled in part.
  int64_t extraPages = 0;
  /// Replaces the folder that the plan names, if not empty.
  std::filesystem::path checkpoint = {};
  /// For a plan of a GPU: which. One for all ranks of this process, or one for each
  /// rank of the machine; none: rank r of a machine has GPU r.
  std::vector<int> gpus = {};
  /// How ranks on GPUs reach each other's memory.
  p2p::Path path = p2p::Path::Any;
  /// File of weights as a GPU has them: used if it exists, or else written. Each of
  /// several ranks has its own: packedFile().
  std::filesystem::path packed = {};
  bool progress = false; ///< Show a bar on a terminal while loading.
  bool profile = false;  ///< Measure every launch; slows steps.
  /// Takes a plan whose ranks exchange nothing too: what it computes means nothing,
  /// how long that takes does. One rank is loaded.
  bool measureOnly = false;
  /// Which; only of such a plan. Not set: the first.
  std::optional<int64_t> rank = {};

  /// This process runs rank group->rank() alone, and each of group->size() processes
  /// does the same with this plan. Null: all ranks run in this process, each in a
  /// thread of its own. Outlives the engine.
  collectives::Transport *group = nullptr;
  /// With `group`: this process' number among those of the machine; -1: not known.
  int localRank = -1;
  /// How long a rank waits for another in a step before it gives up.
  std::chrono::milliseconds collectiveTimeout =
      collectives::Transport::defaultTimeout;
  /// After each run of a program, compares what the ranks computed: an Internal
  /// error unless all have the same bits. One more exchange a run.
  bool compareRanks = false;

  /// Opens another device than hal::openDevice() does; for tests.
  std::function<Result<std::unique_ptr<hal::Device>>(
      const plan::Plan &, ThreadPool &, collectives::Collectives *)>
      open = {};
};
constexpr int64_t defaultCacheTokens = 32768;

/// The file of rank `rank`'s packed weights, if `file` is what was asked for:
/// `file`.rank3, or just `file` for a plan of one rank.
std::filesystem::path packedFile(const std::filesystem::path &file,
                                 const plan::Ranks &ranks, int64_t rank);

} // namespace mla::runtime

#endif // MLA_RUNTIME_EXECUTOR_ENGINEOPTIONS_H
