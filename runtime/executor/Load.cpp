//===- Load.cpp - from a plan's folder to an engine -----------------------===//
//
// Part of mla. The half of Engine that runs once.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Engine.h"
#include "runtime/hal/Open.h"
#include <algorithm>
#include <limits>

namespace mla::runtime {
namespace {

/// Pages of the whole cache.
Result<int64_t> cachePages(const EngineOptions &options, int64_t context) {
  if (options.cacheTokens < 0)
    return invalid("the cache cannot hold " +
                   std::to_string(options.cacheTokens) + " tokens");
  int64_t tokens = options.cacheTokens != 0
                       ? options.cacheTokens
                       : std::min(context, defaultCacheTokens);
  int64_t count = tokens / plan::pageTokens + (tokens % plan::pageTokens != 0);
  if (count > std::numeric_limits<int32_t>::max())
    return invalid("a cache of " + std::to_string(tokens) +
                   " tokens has more pages than can be numbered");
  return std::max<int64_t>(count, 1);
}

/// Refuses a rank's share, unless its time is all that is asked for.
Status checkShare(const plan::Share &share, bool measureOnly) {
  std::string text = "this plan is rank " + std::to_string(share.rank) +
                     " of " + std::to_string(share.ranks);
  if (share.isWhole())
    return {};
  if (share.collectives == plan::Share::Collectives::Exchange)
    return unsupported(text + " and exchanges rows with the others, which this "
                              "runtime cannot do");
  return measureOnly ? Status()
                     : unsupported(text + " and exchanges nothing: it can be "
                                          "benched, not run");
}

} // namespace

Result<std::unique_ptr<Engine>>
Engine::load(const std::filesystem::path &folder,
             const EngineOptions &options) {
  std::unique_ptr<Engine> engine(new Engine);
  MLA_ASSIGN_OR_RETURN(engine->thePlan, plan::read(folder));
  const plan::Plan &plan = engine->thePlan;
  MLA_RETURN_IF_ERROR(checkShare(plan.share, options.measureOnly));
  MLA_ASSIGN_OR_RETURN(int64_t capacity,
                       cachePages(options, engine->contextLength()));
  MLA_ASSIGN_OR_RETURN(engine->pool, ThreadPool::create(options.threads));
  MLA_ASSIGN_OR_RETURN(engine->device,
                       options.open
                           ? options.open(plan, *engine->pool)
                           : hal::openDevice(plan, *engine->pool, options.gpu));
  MLA_ASSIGN_OR_RETURN(engine->module, engine->device->load(plan, folder));
  MLA_ASSIGN_OR_RETURN(
      engine->weightStore,
      WeightStore::load(plan, *engine->device, *engine->pool,
                        {options.checkpoint, options.progress, options.packed}));
  MLA_RETURN_IF_ERROR(engine->allocate(capacity));
  engine->profiling = options.profile;
  return engine;
}

Status Engine::allocate(int64_t capacity) {
  pages = std::make_shared<PageAllocator>(capacity);

  Addresses addresses;
  for (size_t w = 0; w < thePlan.weights.size(); ++w)
    addresses.weights.push_back(
        weightStore->argument(static_cast<uint32_t>(w)));
  for (const plan::Cache &cache : thePlan.caches) {
    MLA_ASSIGN_OR_RETURN(
        uint64_t bytes,
        plan::bufferBytes(cache.format,
                          {capacity, plan::pageTokens, cache.width}, {}));
    MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> buffer,
                         device->allocate(bytes, hal::Access::Device,
                                          "the cache " + cache.name));
    addresses.caches.push_back(buffer->address());
    caches.push_back(std::move(buffer));
  }
  for (size_t p = 0; p < plan::portCount; ++p) {
    auto port = static_cast<plan::Port>(p);
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, plan::portBytes(thePlan, port));
    MLA_ASSIGN_OR_RETURN(ports[p],
                         device->allocate(bytes, hal::Access::Shared,
                                          std::string(plan::portName(port))));
    addresses.ports[p] = ports[p]->address();
    if (addresses.ports[p] !=
        reinterpret_cast<uintptr_t>(ports[p]->host().data()))
      sent[p].resize(bytes); // Zeros, as allocated.
  }
  uint64_t arena = thePlan.sampling ? thePlan.sampling->workspaceBytes : 0;
  for (const plan::Program &program : thePlan.programs)
    arena = std::max(arena, program.workspaceBytes);
  MLA_ASSIGN_OR_RETURN(
      workspace, device->allocate(arena, hal::Access::Device, "the workspace"));
  addresses.workspace = workspace->address();

  for (const plan::Program &program : thePlan.programs)
    programs.emplace_back(thePlan, program, addresses);
  if (thePlan.sampling)
    sampler.emplace(thePlan, *thePlan.sampling, addresses);
  auto addCosts = [&](const plan::Program &program) {
    std::vector<LaunchCost> &list = costs.emplace_back();
    for (const plan::Launch &launch : program.launches)
      list.push_back({.program = program.name,
                      .kernel = thePlan.kernels[launch.kernel].name,
                      .origin = launch.origin});
  };
  for (const plan::Program &program : thePlan.programs)
    addCosts(program);
  if (thePlan.sampling)
    addCosts(*thePlan.sampling);
  return {};
}

int64_t Engine::contextLength() const {
  return std::min(thePlan.model.maxPositions,
                  thePlan.maxPages * plan::pageTokens);
}

int64_t Engine::cacheTokens() const {
  return pages->capacity() * plan::pageTokens;
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
  use.weights = weightStore->bytes();
  for (const auto &cache : caches)
    use.cache += cache->size();
  use.workspace = workspace->size();
  for (const auto &buffer : ports)
    use.ports += buffer->size();
  return use;
}

std::vector<LaunchCost> Engine::profile() const {
  std::vector<LaunchCost> used;
  for (const std::vector<LaunchCost> &list : costs)
    for (const LaunchCost &cost : list)
      if (cost.calls != 0)
        used.push_back(cost);
  return used;
}

} // namespace mla::runtime
