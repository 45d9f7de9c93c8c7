//===- ExplainGraph.cpp - the graph that a report is about ----------------===//
//
// Part of mla. The stages of a compile up to lowering, with one difference: a failure
// is something to tell, not an end.
//
//===----------------------------------------------------------------------===//
#include "ExplainGraph.h"
#include "Diagnostics.h"
#include "mla/CodeGen/PlanBuilder.h"
#include "mla/Import/Import.h"
#include "mla/Pipelines/Pipelines.h"
#include "mla/Support/LLVMError.h"
#include "mla/Transforms/Passes.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mla;
using namespace mla::explain;

/// Has the layout of weights that every GPU has.
static constexpr const char *standInTarget = "sm_90a";

Graph::Graph(const Options &options)
    : options(options), layout(options.compile.pipeline.layout) {}

bool Graph::run(ModuleOp module,
                llvm::function_ref<void(OpPassManager &)> build,
                std::vector<std::string> &problems) {
  ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
    if (diagnostic.getSeverity() != DiagnosticSeverity::Error)
      return success();
    std::string text = locationText(diagnostic.getLocation());
    text += (text.empty() ? "" : ": ") + diagnostic.str();
    problems.push_back(text);
    return success();
  });
  PassManager pm(&context, ModuleOp::getOperationName());
  build(pm);
  if (succeeded(pm.run(module)))
    return true;
  if (problems.empty())
    problems.push_back("a pass failed and did not say why");
  return false;
}

llvm::Error Graph::readModel() {
  const CompileOptions &compile = options.compile;
  if (compile.model.extension() == ".mlir")
    return llvm::createStringError("--explain and --compare take models, and " +
                                   compile.model.string() +
                                   " is a step function");
  auto read = ModelConfig::read(compile.model);
  if (!read.ok())
    return toError(read.status());
  config = *std::move(read);
  if (compile.maxContext > config.maxPositions)
    return llvm::createStringError(
        "--max-context: the model has " + std::to_string(config.maxPositions) +
        " positions, found " + std::to_string(compile.maxContext));

  // Headers say what each tensor is; without them the config has to do.
  std::error_code ec;
  bool hasWeights = false;
  if (std::filesystem::is_directory(compile.model, ec) && !compile.noWeights)
    for (const auto &entry :
         std::filesystem::directory_iterator(compile.model, ec))
      hasWeights |= entry.path().extension() == ".safetensors";
  if (hasWeights) {
    auto opened = Checkpoint::open(compile.model);
    if (!opened.ok())
      return toError(opened.status());
    checkpoint.emplace(*std::move(opened));
  }

  CacheRequest request{compile.cacheFormat, compile.cacheScales, false,
                       isHost() ? Format::F32 : Format::BF16};
  auto choice =
      chooseCacheFormat(request, config, checkpoint ? &*checkpoint : nullptr);
  if (!choice.ok())
    return toError(choice.status());
  cache = *std::move(choice);
  return llvm::Error::success();
}

llvm::Error Graph::shareAmongRanks() {
  int64_t devices = options.ranks.value_or(machine().devices);
  std::string whyFewer;
  for (ranks = devices; ranks >= 1; --ranks) {
    module = cast<ModuleOp>((*fused)->clone());
    std::vector<std::string> problems;
    if (run(
            *module,
            [&](OpPassManager &pm) { buildDistributePipeline(pm, pipeline()); },
            problems))
      break;
    if (options.ranks || ranks == 1)
      return llvm::createStringError(llvm::join(problems, "\n"));
    if (whyFewer.empty())
      whyFewer = problems.front();
  }
  if (ranks < devices)
    ranksReason = whyFewer;
  if (ranks == 1 || isHost() || !hasKernels())
    return llvm::Error::success();
  decision = chooseLayout(*fused, *on, pipeline(), options.compile.given,
                          options.contexts);
  layout = decision->choice().layout;
  module = cast<ModuleOp>((*fused)->clone());
  std::vector<std::string> problems;
  if (!run(
          *module,
          [&](OpPassManager &pm) { buildDistributePipeline(pm, pipeline()); },
          problems))
    return llvm::createStringError(llvm::join(problems, "\n"));
  return llvm::Error::success();
}

llvm::Error Graph::build() {
  auto opened = TargetMachine::open(options.compile.pipeline.target);
  if (!opened.ok())
    return toError(opened.status());
  on = std::move(*opened);
  if (on->gpu() && !on->gpu()->canLower) {
    auto other = TargetMachine::open(standInTarget);
    if (!other.ok())
      return toError(other.status());
    standIn = std::move(*other);
  }
  if (llvm::Error error = readModel())
    return error;

  planContext = options.compile.maxContext ? options.compile.maxContext
                                           : config.maxPositions;
  contextLimit =
      options.compile.maxContext ? "--max-context" : "the model's positions";
  if (on->gpu() && config.indexer && config.indexer->topk < planContext) {
    planContext = config.indexer->topk;
    contextLimit = "index_topk: beyond it attention is sparse, for which there "
                   "is no GPU kernel yet";
  }

  ImportOptions importOptions;
  importOptions.syntheticWeights = options.compile.syntheticSeed.has_value();
  std::vector<std::string> problems;
  {
    ScopedDiagnosticHandler handler(&context, [&](Diagnostic &diagnostic) {
      if (diagnostic.getSeverity() == DiagnosticSeverity::Error)
        problems.push_back(diagnostic.str());
      return success();
    });
    auto imported = importModel(
        context, config, checkpoint ? &*checkpoint : nullptr, importOptions);
    if (!imported) {
      std::string text = llvm::toString(imported.takeError());
      if (!text.empty())
        problems.push_back(text);
      return llvm::createStringError(llvm::join(problems, "\n"));
    }
    module = std::move(*imported);
  }
  if (!run(
          *module,
          [&](OpPassManager &pm) {
            buildImportPipeline(pm);
            buildFusePipeline(pm, pipeline());
          },
          problems))
    return llvm::createStringError(llvm::join(problems, "\n"));
  fused = std::move(module);
  return shareAmongRanks();
}

PipelineOptions Graph::pipeline() const {
  PipelineOptions pipeline = options.compile.pipeline;
  pipeline.fuse = true;
  pipeline.ranks = ranks;
  pipeline.layout = layout;
  pipeline.localCollectives = false;
  pipeline.maxContext = planContext;
  pipeline.maxPages = pagesFor(pipeline, planContext);
  pipeline.cacheFormat = cache.format;
  pipeline.cacheScales = cache.scales;
  if (standIn)
    pipeline.target = standInTarget;
  return pipeline;
}

OwningOpRef<ModuleOp> Graph::withCache(Format format,
                                       std::vector<std::string> &problems,
                                       bool join) {
  OwningOpRef<ModuleOp> copy = cast<ModuleOp>((*module)->clone());
  bool ok = run(
      *copy,
      [&](OpPassManager &pm) {
        PipelineOptions with = pipeline();
        with.cacheFormat = format;
        addCostPasses(pm, with, isHost());
        if (join)
          buildCollectivesPipeline(pm);
      },
      problems);
  return ok ? std::move(copy) : OwningOpRef<ModuleOp>();
}

std::optional<plan::Plan> Graph::lower(std::vector<std::string> &problems) {
  OwningOpRef<ModuleOp> copy = cast<ModuleOp>((*module)->clone());
  if (!run(
          *copy,
          [&](OpPassManager &pm) {
            buildCollectivesPipeline(pm);
            buildSelectPipeline(pm, pipeline());
            buildLowerPipeline(pm, pipeline());
          },
          problems))
    return std::nullopt;
  PlanOptions planOptions;
  planOptions.weights = plan::Checkpoint::Kind::None;
  ModelConfig limited = config;
  limited.maxPositions = planContext;
  plan::Target planTarget;
  planTarget.name = planned().target().name.str();
  auto plan = buildPlan(*copy, limited, nullptr, planOptions, planTarget);
  if (!plan) {
    problems.push_back(llvm::toString(plan.takeError()));
    return std::nullopt;
  }
  return *std::move(plan);
}

std::vector<Program> Graph::programs() const {
  return programsFor(machine(), stepTokens(pipeline()),
                     options.compile.pipeline.maxSequences);
}

std::vector<Override> Graph::overrides() const {
  return overridesOf(options.compile.pipeline);
}
