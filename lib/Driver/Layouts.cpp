//===- Layouts.cpp - how several ranks divide a model, by cost ------------===//
//
// Part of mla. Each layout is made by the passes that make it in a compile, asked
// for its lowerings, and costed; none is estimated from formulas of its own.
//
//===----------------------------------------------------------------------===//
#include "Layouts.h"
#include "mla/Pipelines/Pipelines.h"
#include "mla/Transforms/Passes.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringExtras.h"
#include <numeric>

using namespace mlir;
using namespace mla;

double LayoutCost::mean() const {
  return std::accumulate(seconds.begin(), seconds.end(), 0.0) /
         double(std::max<size_t>(seconds.size(), 1));
}

std::string mla::layoutName(const RankLayout &layout, int64_t ranks) {
  SmallVector<std::string> parts;
  if (layout.expertGroups > 1) {
    int64_t in = ranks / layout.expertGroups;
    parts.push_back("experts " + (in > 1 ? "tp" + std::to_string(in) + "x" : "") +
                    "ep" + std::to_string(layout.expertGroups));
  }
  if (layout.shardDown)
    parts.push_back("latent projections sharded");
  if (layout.shardRouter)
    parts.push_back("router sharded");
  if (layout.shardCache)
    parts.push_back("cache sharded");
  return parts.empty() ? "tensor parallel" : llvm::join(parts, ", ");
}

/// Departures from tensor parallelism with everything else replicated.
static int departures(const RankLayout &layout) {
  return (layout.expertGroups > 1) + layout.shardDown + layout.shardRouter +
         layout.shardCache;
}

/// All that the user leaves open, the simplest first.
static std::vector<RankLayout> candidates(const PipelineOptions &pipeline,
                                          const LayoutGiven &given, bool hasExperts) {
  std::vector<RankLayout> list;
  auto choices = [](bool fixed, bool value) {
    return fixed ? std::vector<bool>{value} : std::vector<bool>{false, true};
  };
  const RankLayout &user = pipeline.layout;
  for (int64_t groups = 1; groups <= pipeline.ranks; ++groups) {
    if (given.experts ? groups != user.expertGroups
                      : pipeline.ranks % groups || (groups > 1 && !hasExperts))
      continue;
    for (bool down : choices(given.down, user.shardDown))
      for (bool router : choices(given.router || !hasExperts, user.shardRouter))
        for (bool cache : choices(given.cache, user.shardCache))
          list.push_back({groups, down, router, cache});
  }
  llvm::stable_sort(list, [](const RankLayout &a, const RankLayout &b) {
    return departures(a) < departures(b);
  });
  return list;
}

std::vector<Override> mla::overridesOf(const PipelineOptions &pipeline) {
  std::vector<Override> list;
  for (const std::string &text : pipeline.lower) {
    auto [op, lowering] = StringRef(text).split('=');
    list.push_back({op.str(), lowering.str()});
  }
  return list;
}

void mla::addCostPasses(OpPassManager &pm, const PipelineOptions &pipeline,
                        bool host) {
  SetCacheFormatPassOptions set;
  set.format = std::string(formatName(pipeline.cacheFormat));
  if (pipeline.cacheFormat == Format::FP8E4M3)
    set.scales.push_back(1.0);
  pm.addPass(createSetCacheFormatPass(set));
  if (host)
    return;
  FoldIndexerPassOptions fold;
  fold.maxContext = pipeline.maxContext;
  pm.addPass(createFoldIndexerPass(fold));
}

/// Of all weights, as the checkpoint stores them.
static int64_t weightBytes(ModuleOp module) {
  int64_t sum = 0;
  module.walk([&](WeightOp weight) {
    auto type = cast<WeightType>(weight.getType());
    ArrayRef<int64_t> shape = type.getShape();
    int64_t columns = shape.back();
    int64_t rows = shape.size() > 1 ? shape[shape.size() - 2] : 1;
    int64_t matrices = shape.size() > 2 ? shape[0] : 1;
    for (const StoragePart &part : storageParts(type.getFormat(), rows, columns))
      sum += matrices * int64_t(part.bytes());
  });
  return sum;
}

namespace {
class Judge {
public:
  Judge(ModuleOp fused, const TargetMachine &on, const PipelineOptions &pipeline,
        ArrayRef<int64_t> contexts)
      : fused(fused), on(on), pipeline(pipeline), contexts(contexts),
        programs(programsFor(on.machine(), stepTokens(pipeline),
                             pipeline.maxSequences)) {}

  LayoutCost operator()(const RankLayout &layout) const;

private:
  /// Runs `build`'s passes; what they complain of, "" if nothing.
  std::string run(ModuleOp module,
                  llvm::function_ref<void(OpPassManager &)> build) const;

  ModuleOp fused;
  const TargetMachine &on;
  const PipelineOptions &pipeline;
  ArrayRef<int64_t> contexts;
  std::vector<Program> programs;
};
} // namespace

std::string Judge::run(ModuleOp module,
                       llvm::function_ref<void(OpPassManager &)> build) const {
  std::string problem;
  ScopedDiagnosticHandler handler(module.getContext(), [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() == DiagnosticSeverity::Error && problem.empty())
      problem = diagnostic.str();
    return success();
  });
  PassManager pm(module.getContext(), ModuleOp::getOperationName());
  build(pm);
  if (failed(pm.run(module)) && problem.empty())
    problem = "a pass failed and did not say why";
  return problem;
}

LayoutCost Judge::operator()(const RankLayout &layout) const {
  LayoutCost cost;
  cost.layout = layout;
  cost.name = layoutName(layout, pipeline.ranks);
  PipelineOptions with = pipeline;
  with.layout = layout;
  with.localCollectives = false;
  OwningOpRef<ModuleOp> plain = cast<ModuleOp>(fused->clone());
  cost.refusal = run(*plain, [&](OpPassManager &pm) {
    buildDistributePipeline(pm, with);
    addCostPasses(pm, with, on.machine().isHost());
  });
  if (!cost.refusal.empty())
    return cost;
  OwningOpRef<ModuleOp> joined = cast<ModuleOp>((*plain)->clone());
  cost.refusal = run(*joined, buildCollectivesPipeline);
  if (!cost.refusal.empty())
    return cost;

  StepGraph graph(*plain), joinedGraph(*joined);
  StepSite at{on,
              LoweringSite(on, programs.front(), with.maxContext, with.fp4Activations,
                           with.exchange),
              overridesOf(with)};
  cost.refusal = layoutRefusal(graph, at, programs);
  cost.exchanges = joinedGraph.exchanges();
  cost.weightBytes = weightBytes(*plain);
  const Machine &machine = on.machine();
  cost.fits = cost.weightBytes <= machine.memoryBytes - machine.reservedBytes;
  for (int64_t context : contexts) {
    cost::Step step{1, 1, std::max<int64_t>(context, 1)};
    StepCost one = stepCost(graph, &joinedGraph, at, on.model(), step, std::nullopt);
    cost.seconds.push_back(one.total());
    cost.work += (one.work.seconds() + one.gaps) / double(contexts.size());
    cost.exchange += one.exchange.seconds / double(contexts.size());
  }
  return cost;
}

/// The simplest of those that are within the model's error of the fastest; of memory
/// that is too small for all layouts nothing follows.
static std::optional<size_t> choose(ArrayRef<LayoutCost> layouts) {
  auto best = [&](bool fitting) {
    auto allowed = [&](const LayoutCost &cost) {
      return cost.refusal.empty() && (cost.fits || !fitting);
    };
    double least = INFINITY;
    for (const LayoutCost &cost : layouts)
      if (allowed(cost))
        least = std::min(least, cost.mean());
    std::optional<size_t> found;
    for (auto [i, cost] : llvm::enumerate(layouts)) {
      if (!allowed(cost) || cost.mean() > (1 + layoutError) * least)
        continue;
      int of = departures(cost.layout);
      int known = found ? departures(layouts[*found].layout) : 0;
      if (!found || of < known ||
          (of == known && cost.mean() < layouts[*found].mean()))
        found = i;
    }
    return found;
  };
  std::optional<size_t> found = best(true);
  return found ? found : best(false);
}

LayoutDecision
mla::chooseLayout(ModuleOp fused, const TargetMachine &on, PipelineOptions pipeline,
                  const LayoutGiven &given, ArrayRef<int64_t> contexts) {
  LayoutDecision decision;
  for (int64_t context : contexts) {
    int64_t clipped =
        std::min(context, std::max<int64_t>(pipeline.maxContext - 1, 0));
    if (!llvm::is_contained(decision.contexts, clipped))
      decision.contexts.push_back(clipped);
  }
  bool hasExperts = false;
  fused.walk([&](Operation *op) { hasExperts |= isa<MoEOp, ExpertsOp>(op); });
  Judge judge(fused, on, pipeline, decision.contexts);
  for (const RankLayout &layout : candidates(pipeline, given, hasExperts))
    decision.layouts.push_back(judge(layout));
  std::optional<size_t> chosen = choose(decision.layouts);
  decision.chosen = chosen.value_or(0);
  if (!chosen)
    decision.reason = "the simplest, since none can be lowered";
  else if (decision.layouts.size() == 1)
    decision.reason = "as the command line says";
  else
    decision.reason = "least time of a step of one token, the simplest within " +
                      std::to_string(int(layoutError * 100)) + "%";
  return decision;
}
