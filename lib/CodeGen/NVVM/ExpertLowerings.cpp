//===- ExpertLowerings.cpp - lowerings of experts -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Lowerings.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

using Needed = std::optional<Refusal>;

/// Stacks of tensor-core formats.
static Needed needsPackedStacks(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto weight = dyn_cast<WeightType>(type))
      if (weight.getRank() == 3 && !isPacked(weight.getFormat()))
        return Refusal{
            Need::WeightFormat,
            "needs experts in bf16, fp8_block, nvfp4 or int4_g32, found " +
                std::string(formatName(weight.getFormat())),
            ""};
  return std::nullopt;
}

static Needed refusesStream(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsPackedStacks(op))
    return lacks;
  if (site.program.maxTokens != 1)
    return Refusal{Need::StepSize,
                   "needs steps of one token, found up to " +
                       std::to_string(site.program.maxTokens) + " tokens",
                   ""};
  return std::nullopt;
}

static Needed refusesGrouped(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsPackedStacks(op))
    return lacks;
  if (site.program.maxTokens == 1)
    return Refusal{Need::StepSize,
                   "needs steps of more than one token, found one token", ""};
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

bool nvvm::joinsShared(Value gate, Value down, ValueRange shared) {
  return !shared.empty() && formatOf(shared[0]) == formatOf(gate) &&
         formatOf(shared[1]) == formatOf(gate) &&
         formatOf(shared[2]) == formatOf(down);
}

static cost::Estimate linear(ArrayRef<Value> weights, bool gated, bool exact,
                             const LoweringSite &site, const cost::Step &step) {
  LinearSpec spec;
  spec.maxTokens = site.program.maxTokens;
  spec.gated = gated;
  spec.exact = exact;
  for (Value weight : weights)
    spec.segments.push_back(matrix(weight));
  return estimate(bestForm(spec, site), spec, site, step);
}

static cost::Estimate experts(Value gate, Value down, ValueRange shared,
                              int64_t topk, const LoweringSite &site,
                              const cost::Step &step) {
  cost::Experts shape{costMatrix(matrix(gate)), costMatrix(matrix(down)),
                      weightType(gate).getDim(0), topk};
  cost::Estimate sum;
  bool one = site.program.maxTokens == 1;
  if (one && joinsShared(gate, down, shared)) {
    shape.sharedRows = matrix(shared[0]).rows;
  } else if (!shared.empty()) {
    sum += linear({shared[0], shared[1]}, true, false, site, step);
    sum += linear({shared[2]}, false, false, site, step);
  }
  sum += one ? site.model.expertsOne(shape)
             : site.model.experts(shape, step.tokens);
  return sum;
}

static cost::Estimate costOf(Operation *op, const LoweringSite &site,
                           const cost::Step &step) {
  if (auto moe = dyn_cast<MoEOp>(op)) {
    int64_t topk = moe.getRouting().getTopk();
    cost::Estimate sum =
        linear({moe.getRouter()}, false, true, site, step);
    sum += site.model.route(weightType(moe.getRouter()).getDim(0), step.tokens);
    sum += experts(moe.getGate(), moe.getDown(), moe.getShared(), topk, site,
                   step);
    return sum;
  }
  auto alone = cast<ExpertsOp>(op);
  auto chosen = cast<RankedTensorType>(alone.getIndices().getType());
  return experts(alone.getGate(), alone.getDown(), {}, chosen.getDimSize(1),
                 site, step);
}

ArrayRef<Lowering> nvvm::expertLowerings() {
  static const Lowering list[] = {
      {"moe_stream", "mla.moe", refusesStream, costOf},
      {"moe_grouped", "mla.moe", refusesGrouped, costOf},
      {"experts_stream", "mla.experts", refusesStream, costOf},
      {"experts_grouped", "mla.experts", refusesGrouped, costOf},
  };
  return list;
}
