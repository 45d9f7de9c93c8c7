//===- Layouts.h - how several ranks divide a model, by cost ----*- C++ -*-===//
//
// Part of mla. Where the user does not say how experts, latent projections, routers
// and caches are divided, the layout with the least time of a step is taken;
// docs/cost-model.md has the rule.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_LAYOUTS_H
#define MLA_LIB_DRIVER_LAYOUTS_H

#include "StepCost.h"
#include "mla/Driver/Compile.h"

namespace mla {

/// One way of dividing the model.
struct LayoutCost {
  RankLayout layout;
  std::string name;    ///< "experts tp4xep2, router sharded"; "tensor parallel"
  std::string refusal; ///< why it cannot be chosen, or ""
  /// Of steps of one token, at the contexts of the decision; none if the model cannot
  /// be divided so.
  std::vector<double> seconds;
  double work = 0, exchange = 0; ///< of the mean step
  ExchangeCounts exchanges;
  int64_t weightBytes = 0; ///< of the rank with most, as the checkpoint stores them
  bool fits = true;        ///< weights alone, beside the machine's reserve

  double mean() const;
};

struct LayoutDecision {
  std::vector<int64_t> contexts;
  std::vector<LayoutCost> layouts; ///< the simplest first
  size_t chosen = 0;
  std::string reason; ///< of the choice, in words

  const LayoutCost &choice() const { return layouts[chosen]; }
};

/// Tokens behind the new one, of steps by which layouts are chosen.
constexpr int64_t defaultContexts[] = {0, 32768, 131072};

/// Layouts whose mean step is within this share of the least are no worse: the mean
/// error of a step of one token (docs/cost-model.md).
constexpr double layoutError = 0.03;

/// "experts tp4xep2, cache sharded": what is not the simplest of `layout`;
/// "tensor parallel" if nothing is.
std::string layoutName(const RankLayout &layout, int64_t ranks);

/// Judges each layout of `pipeline.ranks` ranks that agrees with what the user gave:
/// `pipeline.layout` where `given` says so. `fused` is the graph after the stage fuse;
/// `on` is the machine whose lowerings are asked. Those of `contexts` beyond the
/// pipeline's `maxContext` - 1 count as that. Where no layout can be lowered the simplest is chosen,
/// which later stages refuse with their reasons.
LayoutDecision
chooseLayout(mlir::ModuleOp fused, const TargetMachine &on, PipelineOptions pipeline,
             const LayoutGiven &given, llvm::ArrayRef<int64_t> contexts);

/// The passes after mla-distribute that costs depend on: the caches' format and, for
/// contexts that an indexer does not limit, no indexer.
void addCostPasses(mlir::OpPassManager &pm, const PipelineOptions &pipeline,
                   bool host);

/// OP=LOWERING of the command line; what is malformed is refused elsewhere.
std::vector<Override> overridesOf(const PipelineOptions &pipeline);

} // namespace mla

#endif // MLA_LIB_DRIVER_LAYOUTS_H
