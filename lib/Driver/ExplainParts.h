//===- ExplainParts.h - the sections of a report ----------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAINPARTS_H
#define MLA_LIB_DRIVER_EXPLAINPARTS_H

#include "ExplainGraph.h"
#include "StepCost.h"

namespace mla::explain {

/// Where an op of `graph` is judged, on its machine or, for what is only laid
/// out, on the one that stands in for it.
LoweringSite siteFor(const Graph &graph, const TargetMachine &on,
                     const Program &program);
/// Asks the table of `on` as mla-select-lowering does.
Selection selectFor(const Graph &graph, const TargetMachine &on,
                    mlir::Operation *op, const Program &program);

/// Why nothing is possible on the machine, without a full stop.
std::string noCodeText(const Graph &graph);

CacheDecision decideCache(Graph &graph, const Facts &facts);

/// The choices of each op of `module`, equal ops together, in the order of the
/// graph.
std::vector<OpChoices> judgeOps(const Graph &graph, mlir::ModuleOp module);

/// Tokens of whole pages in `bytes`; 0 if there are none.
int64_t tokensIn(int64_t bytes, int64_t perToken);

/// Memory of one device under `plan`, and what fits beside it.
llvm::Expected<Memory> layOut(const Graph &graph, const Facts &facts,
                              const plan::Plan &plan);

/// The time of a step, from the cost of the ops' chosen lowerings; none if no
/// program is for so many sequences. `plain` is the step without fused collectives,
/// `fused` with them, null for one rank. `plan` and `memory` may be null.
std::optional<StepTime> timeOf(const Graph &graph, const Facts &facts,
                               const StepGraph &plain, const StepGraph *fused,
                               const plan::Plan *plan, const Memory *memory,
                               int64_t context, int64_t batch);

/// The layouts, with what of each fits beside the chosen one's plan.
LayoutReport reportLayouts(const Graph &graph, const Facts &facts,
                           const Memory *memory);

/// What timeOf() takes for granted.
std::vector<std::string> timeAssumptions(const Graph &graph);

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAINPARTS_H
