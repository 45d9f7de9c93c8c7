//===- ExplainStep.cpp - how long a step takes, by cause ------------------===//
//
// Part of mla. The cost of the lowerings that would be chosen, the gaps between
// launches, and the collectives, which no lowering does yet.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"
#include "llvm/ADT/StringSwitch.h"
#include <algorithm>
#include <array>

using namespace mlir;
using namespace mla;
using namespace mla::explain;

/// Rows pass between ranks in 16 bits.
static constexpr int64_t exchangedBytes = 2;

/// The part of a step's time that an op belongs to.
static double *partOf(Operation *op, StepTime &time) {
  return llvm::StringSwitch<double *>(op->getName().stripDialect())
      .Cases({"linear", "joined_linear", "gated_linear", "lm_head",
              "absorb_query", "expand_value"},
             &time.weights)
      .Cases({"latent_attention", "indexer"}, &time.attention)
      .Cases({"moe", "experts", "route"}, &time.experts)
      .Cases({"all_reduce", "all_gather", "merge_attention"}, nullptr)
      .Default(&time.small);
}

/// The smallest program for a token each of `batch` sequences, or null.
static const Program *programFor(llvm::ArrayRef<Program> programs,
                                 int64_t batch) {
  for (const Program &program : programs)
    if (!program.prompts && program.maxTokens >= batch &&
        program.maxSequences >= batch)
      return &program;
  return nullptr;
}

static StringRef methodName(cost::Collective method) {
  switch (method) {
  case cost::Collective::Nccl:
    return "nccl";
  case cost::Collective::OneShot:
    return "one_shot";
  case cost::Collective::Fused:
    return "fused";
  }
  return "";
}

/// Moves of rows without a sum: how many, and their bytes for one token.
struct Moves {
  int64_t count = 0;
  double bytes = 0;

  /// Columns of the other ranks: logits and weights of merges in f32.
  void add(Operation *op, int64_t times, int64_t ranks) {
    double all = 0;
    if (auto gather = dyn_cast<AllGatherOp>(op))
      for (Value to : gather.getAlls())
        all += double(rowWidth(to)) *
               double(llvm::any_of(to.getUsers(), llvm::IsaPred<func::ReturnOp>)
                          ? 4
                          : exchangedBytes);
    else if (auto merge = dyn_cast<MergeAttentionOp>(op))
      all = double(rowWidth(merge.getX()) * exchangedBytes +
                   rowWidth(merge.getLse()) * 4);
    else
      return;
    count += times;
    bytes += double(times) * all * double(ranks - 1) / double(ranks);
  }
};

/// What all reductions and moves of a step take; by method, as far as the
/// machine's file has figures.
static void addCollectives(const Graph &graph, const Facts &facts,
                           int64_t reduces, const Moves &moves, StepTime &time) {
  if (graph.ranks == 1)
    return;
  const Link &link = graph.machine().link;
  double gather = 0;
  if (double rate = std::max(link.readBytesPerSecond, link.writeBytesPerSecond);
      rate > 0)
    gather = double(moves.count) * link.latencySeconds +
             double(time.batch) * moves.bytes / rate;
  std::string missing;
  for (cost::Collective method :
       {cost::Collective::Fused, cost::Collective::OneShot,
        cost::Collective::Nccl}) {
    auto one = graph.on->model().allReduce(
        method, graph.ranks, time.batch * facts.hidden * exchangedBytes);
    if (!one.ok()) {
      missing = one.status().message();
      continue;
    }
    double seconds = double(reduces) * one->seconds + gather;
    time.methods[methodName(method).str()] = seconds;
    if (time.method.empty() || seconds < time.collectives) {
      time.method = methodName(method).str();
      time.collectives = seconds;
    }
  }
  if (time.method.empty()) {
    time.collectives = gather;
    time.notes.push_back("reductions are missing here: " + missing);
  }
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
mla::explain::timeOf(const Graph &graph, const Facts &facts, ModuleOp module,
                     const plan::Plan *plan, const Memory *memory,
                     int64_t context, int64_t batch) {
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
  LoweringSite site = siteFor(graph, on, *program);
  cost::Step step{batch, batch, std::max<int64_t>(context, 1)};
  bool sparse = facts.indexer && context >= facts.indexer->topk && on.gpu();
  if (sparse)
    step.context = facts.indexer->topk;
  int64_t reduces = 0;
  Moves moves;
  for (const OpGroup &group : groupOps(module)) {
    reduces += isa<AllReduceOp>(group.op) ? group.count : 0;
    moves.add(group.op, group.count, graph.ranks);
    double *part = partOf(group.op, time);
    if (!part)
      continue;
    Selection selection = selectFor(graph, on, group.op, *program);
    const mla::Candidate *chosen = selection.chosen();
    if (!chosen) {
      time.notes.push_back("without " +
                           group.op->getName().getStringRef().str() +
                           ", which has no lowering");
      continue;
    }
    cost::Estimate each = chosen->lowering->cost(group.op, site, step);
    double count = double(group.count);
    *part += count * each.seconds;
    time.weightBytes += count * each.weightBytes;
    time.cacheBytes += count * each.cacheBytes;
    time.launches += group.count * each.launches;
  }
  if (plan)
    for (const plan::Program &lowered : plan->programs)
      if (lowered.name == program->name)
        time.launches = static_cast<int64_t>(lowered.launches.size());
  time.gaps = double(time.launches) * graph.machine().launchGapSeconds;
  addCollectives(graph, facts, reduces, moves, time);
  if (sparse)
    addIndexer(graph, facts, time);
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
    list.push_back("no plan exchanges rows between ranks yet: times of "
                   "reductions are the machine file's, the fastest method is "
                   "taken; rows pass in 16 bits, logits are gathered in f32");
    list.push_back("every rank has an equal share of each expert, so nobody "
                   "waits for another");
  }
  return list;
}
