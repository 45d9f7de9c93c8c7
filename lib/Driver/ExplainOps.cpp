//===- ExplainOps.cpp - candidates, choices, reasons ----------------------===//
//
// Part of mla. Asks the tables of lib/Target what mla-select-lowering asks
// them, and keeps every answer.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"
#include "mla/Dialect/MLA.h"

using namespace mlir;
using namespace mla;
using namespace mla::explain;

LoweringSite mla::explain::siteFor(const Graph &graph, const TargetMachine &on,
                                   const Program &program) {
  const PipelineOptions &pipeline = graph.options.compile.pipeline;
  return {on, program, graph.planContext, pipeline.fp4Activations,
          pipeline.exchange};
}

Selection mla::explain::selectFor(const Graph &graph, const TargetMachine &on,
                                  Operation *op, const Program &program) {
  return mla::select(on.target(), op, siteFor(graph, on, program),
                     graph.overrides());
}

std::string mla::explain::noCodeText(const Graph &graph) {
  std::string text = "no code is generated for " +
                     graph.machine().architecture + ", only for ";
  for (const Gpu &gpu : gpus())
    if (gpu.canLower)
      text += gpu.name.str() + ", ";
  return text + "host";
}

/// Weights, caches and what else tells ops of a kind apart: "1536x7168 bf16 +
/// 576x7168 bf16", "8 heads, 576 fp8_e4m3".
static std::string shapeOf(Operation *op) {
  std::string text;
  auto add = [&](const std::string &part, const char *separator) {
    text += (text.empty() ? "" : separator) + part;
  };
  if (auto heads = op->getAttrOfType<IntegerAttr>("heads"))
    add(std::to_string(heads.getInt()) + " heads", ", ");
  if (auto moe = dyn_cast<MoEOp>(op))
    add("top " + std::to_string(moe.getRouting().getTopk()), ", ");
  bool first = true;
  for (Type type : op->getOperandTypes()) {
    if (auto weight = dyn_cast<WeightType>(type)) {
      std::string part;
      for (int64_t n : weight.getShape())
        part += (part.empty() ? "" : "x") + std::to_string(n);
      add(part + " " + std::string(formatName(weight.getFormat())),
          first ? ", " : " + ");
      first = false;
    } else if (auto cache = dyn_cast<CacheType>(type)) {
      add("rows of " + std::to_string(cache.getWidth()) + " " +
              std::string(formatName(cache.getFormat())),
          ", ");
    }
  }
  if (text.empty() && op->getNumOperands())
    if (auto rows = dyn_cast<RankedTensorType>(op->getOperand(0).getType()))
      if (rows.getRank() == 2)
        text = "rows of " + std::to_string(rows.getDimSize(1));
  return text;
}

static Choice choiceOf(const Graph &graph, Operation *op,
                       const Program &program) {
  Choice choice{program.name, {}};
  Selection selection = selectFor(graph, *graph.on, op, program);
  for (const mla::Candidate &candidate : selection.candidates) {
    Judged judged;
    judged.lowering = graph.on->target().fullName(*candidate.lowering);
    judged.chosen = &candidate == selection.chosen();
    if (candidate.estimate)
      judged.seconds = candidate.estimate->seconds;
    if (candidate.refusal) {
      judged.refusalKind = needName(candidate.refusal->need).str();
      judged.reason = candidate.refusal->full();
    }
    choice.candidates.push_back(std::move(judged));
  }
  return choice;
}

/// Whether two programs differ in nothing but times.
static bool sameChoices(const Choice &a, const Choice &b) {
  return llvm::equal(
      a.candidates, b.candidates, [](const Judged &x, const Judged &y) {
        return x.lowering == y.lowering && x.chosen == y.chosen &&
               x.refusalKind == y.refusalKind &&
               (x.refusalKind == "cost" || x.reason == y.reason);
      });
}

std::vector<OpChoices> mla::explain::judgeOps(const Graph &graph,
                                              ModuleOp module) {
  std::vector<OpChoices> list;
  std::map<std::string, size_t> known;
  StepGraph graphOfStep(module);
  for (const OpGroup &group : graphOfStep.groups()) {
    OpChoices op;
    op.op = group.op->getName().getStringRef().str();
    op.shape = shapeOf(group.op);
    op.first = originOf(group.op);
    op.count = group.count;
    for (const Program &program : graph.programs())
      op.choices.push_back(choiceOf(graph, group.op, program));
    // Groups that differ in their neighbours alone are one to a reader.
    auto [it, isNew] = known.try_emplace(op.op + " " + op.shape, list.size());
    if (isNew)
      list.push_back(std::move(op));
    else
      list[it->second].count += op.count;
  }
  // Programs alike are told once, under the first one's times.
  for (OpChoices &op : list) {
    std::vector<Choice> merged;
    for (Choice &choice : op.choices) {
      if (!merged.empty() && sameChoices(merged.back(), choice))
        merged.back().program += ", " + choice.program;
      else
        merged.push_back(std::move(choice));
    }
    op.choices = std::move(merged);
  }
  return list;
}
