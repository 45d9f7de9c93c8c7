//===- ExpertLowerings.cpp - lowerings of experts -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "LargeKernels.h"
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
  if (op->hasAttr("groups"))
    return Refusal{Need::Exchange,
                   "needs all experts on each rank, found groups of ranks that "
                   "have their own",
                   "--experts tpN divides the columns of each"};
  if (site.program.maxTokens != 1)
    return Refusal{Need::StepSize,
                   "needs steps of one token, found up to " +
                       std::to_string(site.program.maxTokens) + " tokens",
                   ""};
  return std::nullopt;
}

/// Tokens of a step and choices for each expert.
static std::string sizes(const ExpertSpec &spec) {
  return "up to " + std::to_string(spec.maxTokens) + " tokens, " +
         std::to_string(spec.maxTokens * spec.topk) + " choices among " +
         std::to_string(spec.experts);
}

static ExpertSpec specOf(Operation *op, const LoweringSite &site) {
  ExpertSpec spec;
  auto moe = dyn_cast<MoEOp>(op);
  Value gate = moe ? moe.getGate() : cast<ExpertsOp>(op).getGate();
  spec.gate = matrix(gate);
  spec.down = matrix(moe ? moe.getDown() : cast<ExpertsOp>(op).getDown());
  spec.experts = weightType(gate).getDim(0);
  spec.topk =
      moe ? int64_t(moe.getRouting().getTopk())
          : cast<RankedTensorType>(cast<ExpertsOp>(op).getIndices().getType())
                .getDimSize(1);
  spec.maxTokens = site.program.maxTokens;
  return spec;
}

static Needed refusesGrouped(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsPackedStacks(op))
    return lacks;
  ExpertSpec spec = specOf(op, site);
  if (spec.maxTokens == 1 && !op->hasAttr("groups"))
    return Refusal{Need::StepSize,
                   "needs steps of more than one token, found one token", ""};
  if (expertsAreLarge(spec))
    return Refusal{Need::StepSize,
                   "needs up to 64 tokens or 12 choices for each expert, found " +
                       sizes(spec),
                   ""};
  return std::nullopt;
}

static Needed refusesLarge(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsPackedStacks(op))
    return lacks;
  ExpertSpec spec = specOf(op, site);
  if (!expertsAreLarge(spec))
    return Refusal{Need::StepSize,
                   "needs more than 64 tokens and 12 choices for each expert, "
                   "found " +
                       sizes(spec),
                   ""};
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

static cost::Estimate experts(Operation *op, const ExpertSpec &spec, bool joins,
                              ValueRange shared, const LoweringSite &site,
                              const cost::Step &step) {
  cost::Experts shape{costMatrix(spec.gate), costMatrix(spec.down),
                      spec.experts, spec.topk};
  if (auto groups = op->getAttrOfType<IntegerAttr>("groups")) {
    shape.groups = groups.getInt();
    shape.experts *= shape.groups;
    if (auto moe = dyn_cast<MoEOp>(op)) {
      shape.routingGroups = moe.getRouting().getGroups();
      shape.routingKept = moe.getRouting().getTopkGroups();
      if (moe.getRouting().getMethod() == TopkKind::Greedy)
        shape.routingGroups = shape.routingKept = 1;
    }
  }
  cost::Estimate sum;
  bool one = spec.maxTokens == 1 && !op->hasAttr("groups");
  if (one && joins) {
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
  ExpertSpec spec = specOf(op, site);
  if (auto moe = dyn_cast<MoEOp>(op)) {
    cost::Estimate sum;
    if (Value router = moe.getRouter())
      sum += linear({router}, false, true, site, step);
    sum += site.model.route(moe.getNumExperts(), step.tokens);
    bool joins = joinsShared(moe.getGate(), moe.getDown(), moe.getShared());
    sum += experts(op, spec, joins, moe.getShared(), site, step);
    return sum;
  }
  return experts(op, spec, false, {}, site, step);
}

ArrayRef<Lowering> nvvm::expertLowerings() {
  static const Lowering list[] = {
      {"moe_stream", "mla.moe", refusesStream, costOf},
      {"moe_grouped", "mla.moe", refusesGrouped, costOf},
      {"moe_large", "mla.moe", refusesLarge, costOf},
      {"experts_stream", "mla.experts", refusesStream, costOf},
      {"experts_grouped", "mla.experts", refusesGrouped, costOf},
      {"experts_large", "mla.experts", refusesLarge, costOf},
  };
  return list;
}
