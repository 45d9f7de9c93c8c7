//===- ExplainMemory.cpp - what fits a device -----------------------------===//
//
// Part of mla. Weights, workspace and ports are those of the lowered plan, by
// the functions that the runtime allocates by. The rest is named with its
// assumption.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"
#include "mla/Support/LLVMError.h"
#include <algorithm>

using namespace mla;
using namespace mla::explain;

/// What the driver keeps on the device of each launch of a captured graph, and
/// how many graphs the runtime keeps. The bytes are an assumption.
static constexpr int64_t graphNodeBytes = 2048, keptGraphs = 64;
int64_t mla::explain::tokensIn(int64_t bytes, int64_t perToken) {
  if (bytes <= 0 || perToken <= 0)
    return 0;
  return bytes / (perToken * plan::pageTokens) * plan::pageTokens;
}

llvm::Expected<Memory> mla::explain::layOut(const Graph &graph,
                                            const Facts &facts,
                                            const plan::Plan &plan) {
  auto bytes = plan::memoryBytes(plan);
  if (!bytes.ok())
    return toError(bytes.status());
  Memory memory;
  const Machine &machine = graph.machine();
  memory.total = machine.memoryBytes;
  memory.reserved = machine.reservedBytes;
  std::map<Format, int64_t> formats;
  for (const plan::Weight &weight : plan.weights)
    if (auto size = weight.deviceBytes(); size.ok())
      formats[weight.format] += static_cast<int64_t>(*size);
  memory.weightsByFormat.assign(formats.begin(), formats.end());
  memory.weights = static_cast<int64_t>(bytes->weights);
  int64_t launches = 0;
  for (const plan::Program &program : plan.programs) {
    memory.workspaces.push_back(
        {program.name, static_cast<int64_t>(program.workspaceBytes)});
    launches = std::max<int64_t>(launches, program.launches.size());
  }
  memory.workspace = static_cast<int64_t>(bytes->workspace);
  memory.ports = static_cast<int64_t>(bytes->ports);
  if (!graph.isHost())
    memory.graphs = launches * graphNodeBytes * keptGraphs;
  memory.collectives = static_cast<int64_t>(plan.exchangeBytes);

  memory.latentPerToken = facts.cacheBytes(graph.cache.format);
  memory.indexPerToken = facts.indexBytes();
  memory.planPerToken = static_cast<int64_t>(bytes->cachePerToken);
  memory.free = memory.total - memory.reserved - memory.weights -
                memory.workspace - memory.ports - memory.graphs -
                memory.collectives;
  int64_t onEach = tokensIn(memory.free, memory.planPerToken);
  memory.shardedTokens = onEach * graph.ranks;
  memory.pageRanks = plan.ranks.pageRanks;
  memory.tokens = onEach * memory.pageRanks;
  memory.contextLimit = graph.contextLimit;
  for (int64_t requests : {1, 8, 64}) {
    int64_t each =
        memory.tokens / requests / plan.tokensOfPage() * plan.tokensOfPage();
    memory.contexts.push_back({requests, std::min(each, graph.planContext)});
  }

  if (!graph.hasKernels())
    memory.notes.push_back(
        "laid out as the kernels of " + graph.planned().target().name.str() +
        " would have it, since there are none for " + machine.architecture);
  if (!graph.isHost())
    memory.notes.push_back(
        "assumed: " + grouped(graphNodeBytes) +
        " bytes of the driver for each launch of a CUDA graph, " +
        std::to_string(keptGraphs) + " graphs of at most " +
        std::to_string(launches) + " launches");
  if (graph.ranks > 1 && !graph.isHost())
    memory.notes.push_back("NCCL's own buffers are in the reserve");
  if (facts.indexer && !graph.isHost())
    memory.notes.push_back(
        "beyond " + grouped(facts.indexer->topk) +
        " tokens attention is sparse and needs " +
        grouped(memory.indexPerToken) + " bytes a token more for index keys (" +
        std::to_string(facts.indexer->fullLayers) + " layers of " +
        std::to_string(facts.indexer->headDim) +
        " in FP8 and one f32 scale): then " +
        grouped(
            tokensIn(memory.free, memory.planPerToken + memory.indexPerToken)) +
        " tokens fit");
  if (memory.free < 0)
    memory.notes.push_back("does not fit: " + bytesText(-memory.free) +
                           " are missing on each device before the first "
                           "token of a cache");
  return memory;
}
