//===- MoE.cpp - routers and experts --------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

/// The constraints on routing over `experts` experts; `labels` are those of
/// groups, top-k, bias and two experts a group.
static LogicalResult verifyRouting(Operation *op, RoutingAttr routing,
                                   int64_t experts, Value bias,
                                   std::array<StringRef, 4> labels) {
  int64_t groups = routing.getGroups(), kept = routing.getTopkGroups();
  if (groups < 1 || experts % groups)
    return op->emitOpError()
           << labels[0] << ": expected a number of groups that divides "
           << experts << " experts, found " << groups;
  int64_t perGroup = experts / groups;
  if (kept < 1 || kept > groups)
    return op->emitOpError() << labels[1] << ": expected topk_groups from 1 to "
                             << groups << ", found " << kept;
  if (routing.getTopk() < 1 || routing.getTopk() > kept * perGroup)
    return op->emitOpError()
           << labels[1] << ": expected topk from 1 to " << kept * perGroup
           << " (experts in the kept groups), found " << routing.getTopk();
  bool biased = routing.getMethod() == TopkKind::NoAuxTc;
  if (biased != static_cast<bool>(bias))
    return op->emitOpError()
           << labels[2] << ": expected " << (biased ? "a" : "no")
           << " bias with method " << stringifyTopkKind(routing.getMethod())
           << ", found " << (bias ? "one" : "none");
  if (bias && (failed(expectRank(op, labels[2], "bias", bias, 1)) ||
               failed(expectSize(op, labels[2], "a bias length", experts,
                                 dim(bias, 0)))))
    return failure();
  if (biased && groups > 1 && perGroup < 2)
    return op->emitOpError()
           << labels[3] << ": expected at least two experts in a group, found "
           << perGroup;
  return success();
}

/// The shapes of stacked expert weights between rows of `x`.
static LogicalResult verifyStacks(Operation *op, StringRef upLabel,
                                  StringRef downLabel, Value x, Value gate,
                                  Value up, Value down) {
  if (failed(expectRank(op, upLabel, "gate", gate, 3)) ||
      failed(expectRank(op, upLabel, "up", up, 3)) ||
      failed(
          expectSize(op, upLabel, "gate columns", rowWidth(x), dim(gate, 2))))
    return failure();
  for (unsigned i = 0; i < 3; ++i)
    if (failed(expectSize(op, upLabel, ("up dimension " + Twine(i)).str(),
                          dim(gate, i), dim(up, i))))
      return failure();
  if (failed(expectRank(op, downLabel, "down", down, 3)) ||
      failed(expectSize(op, downLabel, "down matrices", dim(gate, 0),
                        dim(down, 0))) ||
      failed(expectSize(op, downLabel, "down rows", rowWidth(x), dim(down, 1))))
    return failure();
  return expectSize(op, downLabel, "down columns", dim(gate, 1), dim(down, 2));
}

/// `groups` and `group_ranks` of ops on experts.
template <typename Op> static LogicalResult verifyGroups(Op op, StringRef label) {
  std::optional<uint64_t> groups = op.getGroups(), ranks = op.getGroupRanks();
  if (groups.has_value() != ranks.has_value())
    return op.emitOpError() << label
                            << ": expected groups and group_ranks, found one";
  if (!groups)
    return success();
  if (failed(expectAtLeast(op, label, "a number of groups", 2, *groups)))
    return failure();
  return expectAtLeast(op, label, "a number of ranks of a group", 1, *ranks);
}

LogicalResult RouteOp::verify() {
  RoutingAttr routing = getRouting();
  if (failed(expectSize(*this, "C1", "an indices row", routing.getTopk(),
                        rowWidth(getIndices()))) ||
      failed(expectSize(*this, "C1", "a weights row", routing.getTopk(),
                        rowWidth(getWeights()))))
    return failure();
  return verifyRouting(*this, routing, rowWidth(getLogits()), getBias(),
                       {"C2", "C3", "C4", "C5"});
}

LogicalResult ExpertsOp::verify() {
  if (failed(verifyStacks(*this, "C1", "C2", getX(), getGate(), getUp(),
                          getDown())) ||
      failed(expectSize(*this, "C3", "a weights row", rowWidth(getIndices()),
                        rowWidth(getWeights()))))
    return failure();
  if (failed(verifyGroups(*this, "C5")))
    return failure();
  return expectSameType(*this, "C4", "a result", getX().getType(),
                        getResult().getType());
}

int64_t MoEOp::getNumExperts() {
  return getRouter() ? dim(getRouter(), 0) : rowWidth(getLogits());
}

LogicalResult MoEOp::verify() {
  if (bool(getRouter()) == bool(getLogits()))
    return emitOpError("C1: expected a router or its logits, found ")
           << (getRouter() ? "both" : "neither");
  if (failed(expectRank(*this, "C3", "gate", getGate(), 3)) ||
      failed(verifyGroups(*this, "C6")))
    return failure();
  if (getRouter() &&
      (failed(expectRank(*this, "C1", "router", getRouter(), 2)) ||
       failed(expectSize(*this, "C1", "router columns", rowWidth(getX()),
                         dim(getRouter(), 1)))))
    return failure();
  int64_t experts = getNumExperts(), own = dim(getGate(), 0);
  int64_t groups = getGroups().value_or(1);
  if (own != (experts + groups - 1) / groups)
    return emitOpError("C1: expected ")
           << (experts + groups - 1) / groups << " experts of " << experts
           << ", found " << own;
  if (failed(verifyRouting(*this, getRouting(), experts, getBias(),
                           {"C2", "C2", "C2", "C2"})) ||
      failed(verifyStacks(*this, "C3", "C3", getX(), getGate(), getUp(),
                          getDown())))
    return failure();
  auto shared = getShared();
  if (!shared.empty()) {
    if (failed(expectSize(*this, "C4", "a number of shared weights", 3,
                          shared.size())))
      return failure();
    for (Value w : shared)
      if (failed(expectRank(*this, "C4", "shared", w, 2)))
        return failure();
    int64_t width = rowWidth(getX()), inner = dim(shared[0], 0);
    if (failed(expectSize(*this, "C4", "shared gate columns", width,
                          dim(shared[0], 1))) ||
        failed(expectSize(*this, "C4", "shared up rows", inner,
                          dim(shared[1], 0))) ||
        failed(expectSize(*this, "C4", "shared up columns", width,
                          dim(shared[1], 1))) ||
        failed(expectSize(*this, "C4", "shared down rows", width,
                          dim(shared[2], 0))) ||
        failed(expectSize(*this, "C4", "shared down columns", inner,
                          dim(shared[2], 1))))
      return failure();
  }
  return expectSameType(*this, "C5", "a result", getX().getType(),
                        getResult().getType());
}
