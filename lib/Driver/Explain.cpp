//===- Explain.cpp - the report of --explain ------------------------------===//
//
// Part of mla. What a compile would do, section by section; a lone config.json
// is enough.
//
//===----------------------------------------------------------------------===//
#include "Explain.h"
#include "ExplainParts.h"
#include "ExplainText.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mla;
using namespace mla::explain;

/// One of each, in order: layers are alike, and so are their problems.
static void addProblems(std::vector<std::string> found,
                        std::vector<std::string> &problems) {
  for (std::string &text : found) {
    // Without the module path, which is what tells layers apart.
    std::string what = text.substr(std::min(text.find(": ") + 2, text.size()));
    auto isKnown = [&](const std::string &known) {
      return StringRef(known).ends_with(what);
    };
    if (llvm::none_of(problems, isKnown))
      problems.push_back(std::move(text));
  }
}

/// What ranks exchange, and whether a plan of the target does it.
static void countExchanges(const Graph &graph, const StepGraph &step,
                           Report &report) {
  report.exchanges = step.exchanges();
  report.layoutName = layoutName(graph.layout, graph.ranks);
  report.exchangeBy = graph.options.compile.pipeline.exchange;
  std::vector<Program> programs = graph.programs();
  for (const OpGroup &group : step.groups())
    if (isCollective(group.op))
      report.canExchange &= selectFor(graph, *graph.on, group.op, programs.front())
                              .chosen() != nullptr;
}

llvm::Expected<Report> mla::explain::explainModel(const Options &options,
                                                  raw_ostream &err) {
  Graph graph(options);
  if (llvm::Error error = graph.build())
    return error;
  for (const std::string &warning : graph.cache.warnings)
    err << "mla-compile: warning: " << warning << "\n";
  Report report;
  report.model = factsOf(graph.config);
  report.machine = graph.machine();
  report.target = graph.machine().architecture;
  report.hasKernels = graph.hasKernels();
  report.ranks = graph.ranks;
  report.ranksReason = graph.ranksReason;
  report.cache = decideCache(graph, report.model);
  if (!graph.hasKernels())
    report.problems.push_back(noCodeText(graph));

  std::vector<std::string> problems;
  OwningOpRef<ModuleOp> module = graph.withCache(graph.cache.format, problems);
  OwningOpRef<ModuleOp> joined =
      graph.withCache(graph.cache.format, problems, /*join=*/true);
  if (!module || !joined)
    return llvm::createStringError(llvm::join(problems, "\n"));
  report.ops = judgeOps(graph, *joined);
  StepGraph plain(*module);
  std::optional<StepGraph> fused;
  if (graph.ranks > 1) {
    fused.emplace(*joined);
    countExchanges(graph, *fused, report);
  }

  std::optional<plan::Plan> plan = graph.lower(problems);
  addProblems(std::move(problems), report.problems);
  if (plan) {
    auto memory = layOut(graph, report.model, *plan);
    if (!memory)
      return memory.takeError();
    report.memory = *std::move(memory);
    for (CacheFormatOption &option : report.cache.options) {
      int64_t perToken = report.memory->planPerToken -
                         report.memory->latentPerToken + option.bytesPerToken;
      option.tokensThatFit =
          tokensIn(report.memory->free, perToken) * report.memory->pageRanks;
    }
  }

  report.layouts = reportLayouts(graph, report.model,
                                 report.memory ? &*report.memory : nullptr);
  report.assumptions = timeAssumptions(graph);
  for (int64_t context : options.contexts) {
    if (context >= graph.config.maxPositions) {
      report.assumptions.push_back(
          "a context of " + grouped(context) + " is left out: the model has " +
          grouped(graph.config.maxPositions) + " positions");
      continue;
    }
    for (int64_t batch : options.batches) {
      auto time =
          timeOf(graph, report.model, plain, fused ? &*fused : nullptr,
                 plan ? &*plan : nullptr,
                 report.memory ? &*report.memory : nullptr, context, batch);
      if (time)
        report.steps.push_back(*std::move(time));
      else
        report.assumptions.push_back(
            grouped(batch) + " sequences at " + grouped(context) +
            " are left out: no program is for so many (--max-sequences, "
            "--max-step-tokens)");
    }
  }
  return report;
}
