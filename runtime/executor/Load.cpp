//===- Load.cpp - from a plan's folder to an engine -----------------------===//
//
// Part of mla. The half of Engine that runs once.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/host/Threads.h"
#include "runtime/executor/Engine.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <algorithm>
#include <limits>
#include <map>
#include <thread>

namespace mla::runtime {
namespace {

/// Pages of the whole cache.
Result<int64_t> cachePages(const EngineOptions &options, const plan::Plan &plan,
                           int64_t context) {
  if (options.cacheTokens < 0)
    return invalid("the cache cannot hold " +
                   std::to_string(options.cacheTokens) + " tokens");
  int64_t tokens = options.cacheTokens != 0
                       ? options.cacheTokens
                       : std::min(context, defaultCacheTokens);
  int64_t page = plan.tokensOfPage();
  int64_t count = tokens / page + (tokens % page != 0) + options.extraPages;
  if (count > std::numeric_limits<int32_t>::max())
    return invalid("a cache of " + std::to_string(tokens) +
                   " tokens has more pages than can be numbered");
  return std::max<int64_t>(count, 1);
}

/// Which ranks of the plan this process runs: `count` from `first` on.
struct Local {
  int64_t first = 0, count = 1;
};

Result<Local> findLocal(const plan::Ranks &ranks,
                        const EngineOptions &options) {
  std::string of =
      std::to_string(ranks.count) + (ranks.isOne() ? " rank" : " ranks");
  bool local = ranks.collectives == plan::Ranks::Collectives::Local;
  if (local && !options.measureOnly)
    return unsupported("the plan's " + of +
                       " exchange nothing: it can be "
                       "benched, not run");
  if (options.rank && !local)
    return invalid("expected a plan whose ranks exchange nothing (mla-compile "
                   "--collectives=local), to measure one alone, found one of " +
                   of + (ranks.isOne() ? "" : " that do"));
  int64_t rank = options.rank.value_or(0);
  if (rank < 0 || rank >= ranks.count)
    return invalid("expected a rank from 0 to " +
                   std::to_string(ranks.count - 1) + ", found " +
                   std::to_string(rank));
  if (!options.group)
    return local ? Local{rank, 1} : Local{0, ranks.count};
  std::string found = std::to_string(options.group->size()) + " processes";
  if (local)
    return invalid("the plan's " + of +
                   " exchange nothing: expected one "
                   "process, found " +
                   found);
  if (options.group->size() != ranks.count)
    return invalid("the plan has " + of +
                   ": expected one process, or one for each rank, found " +
                   found);
  return Local{options.group->rank(), 1};
}

/// Threads for each of the `local` ranks here.
int threadsOfRank(const EngineOptions &options, int64_t local) {
  auto threads = static_cast<int64_t>(options.threads);
  if (threads == 0) {
    threads = std::max(1U, std::thread::hardware_concurrency());
    if (options.group)
      threads /= options.group->size();
  }
  return static_cast<int>(std::max<int64_t>(1, threads / local));
}

/// The GPU of each of the ranks here.
Result<std::vector<int>> gpusOf(const plan::Plan &plan, Local local,
                                const EngineOptions &options) {
  const std::vector<int> &given = options.gpus;
  std::vector<int> gpus(static_cast<size_t>(local.count));
  if (plan.target.isHost())
    return gpus;
  // Of the ranks of this machine, those here are [first, first + local.count).
  int64_t first = 0, ranks = local.count;
  if (options.group) {
    ranks = plan.ranks.count;
    first = options.localRank >= 0 ? options.localRank : local.first;
  }
  if (given.size() > 1 &&
      (options.group ? static_cast<int64_t>(given.size()) <= first
                     : static_cast<int64_t>(given.size()) != ranks))
    return invalid("expected one GPU for all, or one for each of " +
                   std::to_string(ranks) + (ranks == 1 ? " rank" : " ranks") +
                   ", found " + std::to_string(given.size()));
  for (size_t i = 0; i < gpus.size(); ++i) {
    size_t rank = static_cast<size_t>(first) + i;
    gpus[i] = given.empty()       ? static_cast<int>(rank)
              : given.size() == 1 ? given[0]
                                  : given[rank];
  }
  std::map<int, int64_t> ranksOn;
  for (int gpu : gpus)
    if (++ranksOn[gpu] > 1)
      MLA_RETURN_IF_ERROR(hal::CudaDevice::prepareSharedGpu(ranksOn[gpu]));
  return gpus;
}

/// How long a process waits for others that still load: what ends without having
/// said so is noticed at once.
constexpr std::chrono::hours loadTimeout(24);

} // namespace

Status ofRank(int64_t rank, const Status &status) {
  // Errors of collectives name their rank.
  return status.message().starts_with("rank ")
             ? status
             : status.withContext("rank " + std::to_string(rank));
}

Result<std::unique_ptr<Engine>>
Engine::load(const std::filesystem::path &folder,
             const EngineOptions &options) {
  std::unique_ptr<Engine> engine(new Engine);
  MLA_ASSIGN_OR_RETURN(engine->thePlan, plan::read(folder));
  MLA_ASSIGN_OR_RETURN(int64_t capacity,
                       cachePages(options, engine->thePlan,
                                  engine->contextLength()));
  MLA_RETURN_IF_ERROR(engine->loadRanks(folder, options, capacity));
  engine->pages = std::make_shared<PageAllocator>(
      capacity, engine->thePlan.tokensOfPage());
  return engine;
}

Status Engine::loadRanks(const std::filesystem::path &folder,
                         const EngineOptions &options, int64_t capacity) {
  if (options.threads < 0)
    return invalid("the number of threads must be 1 to " +
                   std::to_string(ThreadPool::maxThreads) + ", not " +
                   std::to_string(options.threads));
  MLA_ASSIGN_OR_RETURN(Local local, findLocal(thePlan.ranks, options));
  if (local.count > 1) {
    if (local.count > collectives::Transport::maxRanks)
      return unsupported("the plan has " + std::to_string(local.count) +
                         " ranks; one process runs at most " +
                         std::to_string(collectives::Transport::maxRanks));
    MLA_ASSIGN_OR_RETURN(transports, collectives::createThreadGroup(
                                         static_cast<int>(local.count)));
    for (const auto &transport : transports)
      transport->setTimeout(options.collectiveTimeout);
  }
  MLA_ASSIGN_OR_RETURN(std::vector<int> gpus, gpusOf(thePlan, local, options));
  MLA_ASSIGN_OR_RETURN(threadsOfRanks,
                       RankThreads::create(static_cast<size_t>(local.count)));
  ranks.resize(static_cast<size_t>(local.count));
  RankThreads::Outcome outcome = threadsOfRanks->onAll(
      [&](size_t i) -> Status {
        int64_t number = local.first + static_cast<int64_t>(i);
        bool first = i == 0;
        // Each rank counts what is cut off in its own rows of an FP8 cache.
        bool results = first || thePlan.ranks.pageRanks > 1;
        MLA_ASSIGN_OR_RETURN(
            ranks[i],
            Rank::load({thePlan, folder, number,
                        threadsOfRank(options, local.count), gpus[i], capacity,
                        results,
                        options.progress && first &&
                            (!options.group || options.group->rank() == 0),
                        options.group        ? options.group
                        : transports.empty() ? nullptr
                                             : transports[i].get()},
                       options));
        return {};
      },
      [&](size_t i, const Status &why) {
        // Others may wait for it.
        if (options.group)
          options.group->abort(why);
        else if (!transports.empty())
          transports[i]->abort(why);
      });
  if (!outcome.status.ok())
    return local.count == 1
               ? outcome.status
               : ofRank(local.first + static_cast<int64_t>(outcome.rank),
                        outcome.status);
  if (!options.group)
    return {};
  group = options.group;
  options.group->setTimeout(loadTimeout);
  MLA_RETURN_IF_ERROR(
      collectives::Collectives(*options.group).barrier("loading the plan"));
  options.group->setTimeout(options.collectiveTimeout);
  return {};
}

int64_t Engine::contextLength() const {
  return std::min(thePlan.model.maxPositions,
                  thePlan.maxPages * thePlan.tokensOfPage());
}

int64_t Engine::cacheTokens() const {
  return pages->capacity() * pages->tokensOfPage();
}

int64_t Engine::largestStepWithLogits() const {
  int64_t largest = 1;
  for (const plan::Program &program : thePlan.programs)
    largest =
        std::max(largest, std::min(program.maxTokens, program.maxOutputs));
  return largest;
}

MemoryUse Engine::memory() const {
  MemoryUse use;
  for (const auto &rank : ranks)
    use += rank->memory();
  return use;
}

std::vector<LaunchCost> Engine::profile() const {
  std::vector<LaunchCost> used;
  for (const std::vector<LaunchCost> &list : ranks[0]->profile())
    for (const LaunchCost &cost : list)
      if (cost.calls != 0)
        used.push_back(cost);
  return used;
}

} // namespace mla::runtime
