//===- ExplainStep.cpp - how long a step takes, by cause ------------------===//
//
// Part of mla. What StepCost says of the chosen layout, and what it does not know:
// sparse attention, and what does not fit.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"
#include <algorithm>
#include <array>

using namespace mlir;
using namespace mla;
using namespace mla::explain;

/// The smallest program for a token each of `batch` sequences, or null.
static const Program *programFor(llvm::ArrayRef<Program> programs,
                                 int64_t batch) {
  for (const Program &program : programs)
    if (!program.prompts && program.maxTokens >= batch &&
        program.maxSequences >= batch)
      return &program;
  return nullptr;
}

/// What sparse attention would take beyond what dense attention to the chosen
/// tokens does: reading all keys of the index.
static void addIndexer(const Graph &graph, const Facts &facts, StepTime &time) {
  double bytes =
      double(facts.indexBytes()) * double(time.context) * double(time.batch);
  double rate = graph.machine().readBytesPerSecond;
  constexpr double start = 3e-6; // of a layer: scores and choice
  time.attention += bytes / rate + start * double(facts.indexer->fullLayers);
  time.cacheBytes += bytes;
  time.notes.push_back(
      "no plan does it: attention is sparse beyond " +
      grouped(facts.indexer->topk) +
      " tokens; time of kernels that do not exist, which read all index keys "
      "and attend to " +
      grouped(facts.indexer->topk) + " tokens");
}

static void addNotes(const Graph &graph, const Memory *memory, StepTime &time) {
  PipelineOptions pipeline = graph.pipeline();
  int64_t needed = pagesFor(pipeline, time.context + 1) *
                   tokensOfPage(pipeline) * time.batch;
  if (memory && needed > memory->tokens)
    time.notes.push_back("does not fit: " + grouped(needed) +
                         " tokens of cache, " + grouped(memory->tokens) +
                         " fit");
}

static void nameBound(StepTime &time) {
  std::array<std::pair<double, const char *>, 6> parts{
      {{time.weights, "weights"},
       {time.attention, "attention"},
       {time.experts, "experts"},
       {time.small, "small kernels"},
       {time.gaps, "gaps"},
       {time.collectives, "collectives"}}};
  time.bound = std::max_element(parts.begin(), parts.end())->second;
}

std::optional<StepTime>
mla::explain::timeOf(const Graph &graph, const Facts &facts, const StepGraph &plain,
                     const StepGraph *fused, const plan::Plan *plan,
                     const Memory *memory, int64_t context, int64_t batch) {
  std::vector<Program> programs = graph.programs();
  const Program *program = programFor(programs, batch);
  if (!program)
    return std::nullopt;
  StepTime time;
  time.context = context;
  time.batch = batch;
  time.program = program->name;
  // Without kernels only what is read is known, and that is the same
  // everywhere.
  const TargetMachine &on = graph.planned();
  StepSite at{on, siteFor(graph, on, *program), graph.overrides()};
  cost::Step step{batch, batch, std::max<int64_t>(context, 1)};
  bool sparse = facts.indexer && context >= facts.indexer->topk && on.gpu();
  if (sparse)
    step.context = facts.indexer->topk;
  std::optional<int64_t> launches;
  if (plan)
    for (const plan::Program &lowered : plan->programs)
      if (lowered.name == program->name)
        launches = static_cast<int64_t>(lowered.launches.size());
  // The exchange is between the machine's own devices, whatever stands in for one.
  StepCost cost = stepCost(plain, fused, at, graph.on->model(), step, launches);
  time.weights = cost.work.weights;
  time.attention = cost.work.attention;
  time.experts = cost.work.experts;
  time.small = cost.work.small;
  time.weightBytes = cost.work.weightBytes;
  time.cacheBytes = cost.work.cacheBytes;
  time.launches = cost.work.launches;
  time.notes = cost.work.notes;
  time.gaps = cost.gaps;
  time.collectives = cost.exchange.seconds;
  time.collectivesFloor = cost.exchange.floor;
  time.method = cost.method;
  time.methods = cost.exchanges;
  time.methodSteps = cost.totals;
  if (fused && cost.method.empty())
    time.notes.push_back("what ranks exchange is missing here: " + cost.missing);
  double before = time.attention;
  if (sparse)
    addIndexer(graph, facts, time);
  for (auto &[method, seconds] : time.methodSteps)
    seconds += time.attention - before;
  addNotes(graph, memory, time);
  time.floor = (time.weightBytes + time.cacheBytes) /
               std::max(graph.machine().readBytesPerSecond, 1.0);
  time.known = graph.hasKernels();
  nameBound(time);
  return time;
}

std::vector<std::string> mla::explain::timeAssumptions(const Graph &graph) {
  std::vector<std::string> list;
  const Machine &machine = graph.machine();
  if (!graph.hasKernels())
    list.push_back(noCodeText(graph) + ": the floor is known, times are not");
  if (machine.architecture == "sm_120a")
    list.push_back("kernels of sm_120a have never been executed: their times "
                   "follow from an H200's by this machine's bandwidth, clock "
                   "and multiprocessors (docs/cost-model.md)");
  if (!graph.isHost())
    list.push_back("weights and cache come from memory, not from L2; a step is "
                   "one CUDA graph; between launches pass " +
                   fixed(machine.launchGapSeconds * 1e6, 2) + " us");
  if (graph.ranks > 1) {
    list.push_back(
        "times of reductions are the machine file's, those of gathers follow from "
        "them, the fastest method is taken; sums and merged attention pass in 16 bits, "
        "what is gathered and what NCCL takes in f32");
    list.push_back(
        graph.layout.expertGroups > 1
            ? "ranks wait for the group with most of the chosen experts, the expected "
              "number if all experts are as likely"
            : "every rank has an equal share of each expert, so nobody waits for "
              "another");
  }
  return list;
}
