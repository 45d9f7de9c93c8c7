//===- LoadRank.cpp - from a plan to one of its ranks ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Rank.h"
#include "runtime/hal/Open.h"
#include <algorithm>

namespace mla::runtime {

std::filesystem::path packedFile(const std::filesystem::path &file,
                                 const plan::Ranks &ranks, int64_t rank) {
  std::filesystem::path own = file;
  if (!file.empty() && !ranks.isOne())
    own += ".rank" + std::to_string(rank);
  return own;
}

Result<std::unique_ptr<Rank>> Rank::load(const Setup &setup,
                                         const EngineOptions &options) {
  std::unique_ptr<Rank> rank(new Rank(setup.plan, setup.number));
  rank->profiling = options.profile;
  rank->compareRanks = options.compareRanks && setup.transport;
  rank->wantResults = setup.results || rank->compareRanks;
  rank->transport = setup.transport;
  if (setup.transport)
    rank->exchange.emplace(*setup.transport);
  collectives::Collectives *exchange =
      rank->exchange ? &*rank->exchange : nullptr;
  MLA_ASSIGN_OR_RETURN(rank->pool, ThreadPool::create(setup.threads));
  MLA_ASSIGN_OR_RETURN(
      rank->ownDevice,
      options.open
          ? options.open(setup.plan, *rank->pool, exchange)
          : hal::openDevice(setup.plan, *rank->pool, exchange,
                            {setup.gpu, options.path}));
  MLA_ASSIGN_OR_RETURN(rank->module,
                       rank->ownDevice->load(setup.plan, setup.folder));
  // Nothing of the rank's own plan is needed once the weights are there.
  std::optional<plan::Plan> local;
  if (!setup.plan.ranks.isOne())
    local = plan::localized(setup.plan, setup.number);
  MLA_ASSIGN_OR_RETURN(
      rank->weightStore,
      WeightStore::load(
          local ? *local : setup.plan, *rank->ownDevice, *rank->pool,
          {options.checkpoint, setup.progress,
           packedFile(options.packed, setup.plan.ranks, setup.number)}));
  MLA_RETURN_IF_ERROR(rank->allocate(setup.capacity));
  return rank;
}

Status Rank::allocate(int64_t capacity) {
  Addresses addresses;
  addresses.peers = module->peers();
  for (size_t w = 0; w < plan.weights.size(); ++w)
    addresses.weights.push_back(
        weightStore->argument(static_cast<uint32_t>(w)));
  for (const plan::Cache &cache : plan.caches) {
    MLA_ASSIGN_OR_RETURN(
        uint64_t bytes,
        plan::bufferBytes(cache.format,
                          {capacity, plan::pageTokens, cache.width}, {}));
    MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> buffer,
                         ownDevice->allocate(bytes, hal::Access::Device,
                                             "the cache " + cache.name));
    addresses.caches.push_back(buffer->address());
    caches.push_back(std::move(buffer));
  }
  for (size_t p = 0; p < plan::portCount; ++p) {
    auto port = static_cast<plan::Port>(p);
    MLA_ASSIGN_OR_RETURN(uint64_t bytes, plan::portBytes(plan, port));
    MLA_ASSIGN_OR_RETURN(
        ports[p], ownDevice->allocate(bytes, hal::Access::Shared,
                                      std::string(plan::portName(port))));
    addresses.ports[p] = ports[p]->address();
    if (addresses.ports[p] !=
        reinterpret_cast<uintptr_t>(ports[p]->host().data()))
      sent[p].resize(bytes); // Zeros, as allocated.
  }
  uint64_t arena = plan.sampling ? plan.sampling->workspaceBytes : 0;
  for (const plan::Program &program : plan.programs)
    arena = std::max(arena, program.workspaceBytes);
  MLA_ASSIGN_OR_RETURN(
      workspace,
      ownDevice->allocate(arena, hal::Access::Device, "the workspace"));
  addresses.workspace = workspace->address();

  auto bind = [&](const plan::Program &program) {
    std::vector<LaunchCost> &list = costs.emplace_back();
    for (const plan::Launch &launch : program.launches)
      list.push_back({.program = program.name,
                      .kernel = plan.kernels[launch.kernel].name,
                      .origin = launch.origin});
    return BoundProgram(plan, program, addresses);
  };
  for (const plan::Program &program : plan.programs)
    programs.push_back(bind(program));
  if (plan.sampling)
    sampler.emplace(bind(*plan.sampling));
  return {};
}

MemoryUse Rank::memory() const {
  MemoryUse use;
  use.weights = weightStore->bytes();
  for (const auto &cache : caches)
    use.cache += cache->size();
  use.workspace = workspace->size();
  for (const auto &buffer : ports)
    use.ports += buffer->size();
  return use;
}

} // namespace mla::runtime
