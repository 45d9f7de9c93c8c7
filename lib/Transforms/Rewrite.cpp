//===- Rewrite.cpp - what the fusions share -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Rewrite.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "llvm/ADT/SetVector.h"

using namespace mlir;
using namespace mla;

LogicalResult mla::decline(RewriterBase &rewriter, Operation *op,
                           const Twine &why) {
  op->emitRemark() << "not fused: " << why;
  return rewriter.notifyMatchFailure(op, why);
}

void mla::eraseDead(RewriterBase &rewriter, ArrayRef<Operation *> ops) {
  // A set, as an op that is queued twice must not be looked at once erased.
  SetVector<Operation *> queue(llvm::from_range, ops);
  while (!queue.empty()) {
    Operation *op = queue.pop_back_val();
    if (!isOpTriviallyDead(op))
      continue;
    for (Value operand : op->getOperands())
      if (Operation *def = operand.getDefiningOp())
        queue.insert(def);
    rewriter.eraseOp(op);
  }
}

std::optional<GatedChain> mla::matchGated(SwiGLUOp activation) {
  GatedChain chain{activation.getGate().getDefiningOp<LinearOp>(),
                   activation.getUp().getDefiningOp<LinearOp>()};
  if (!chain.gate || !chain.up || chain.gate.getX() != chain.up.getX() ||
      !chain.gate->hasOneUse() || !chain.up->hasOneUse())
    return std::nullopt;
  return chain;
}

/// Adds the shared expert to `chain` if the experts' rows meet it in an add.
static void matchShared(MoEChain &chain) {
  Value result = chain.experts.getResult();
  if (!result.hasOneUse())
    return;
  auto add = dyn_cast<AddOp>(*result.getUsers().begin());
  if (!add)
    return;
  Value other = add.getLhs() == result ? add.getRhs() : add.getLhs();
  auto down = other.getDefiningOp<LinearOp>();
  auto gated = down ? down.getX().getDefiningOp<GatedLinearOp>() : nullptr;
  if (!gated || gated.getX() != chain.experts.getX() || !down->hasOneUse() ||
      !gated->hasOneUse())
    return;
  chain.add = add;
  chain.down = down;
  chain.gated = gated;
}

std::optional<MoEChain> mla::matchMoE(ExpertsOp experts, std::string &why) {
  MoEChain chain{};
  chain.experts = experts;
  chain.route = experts.getIndices().getDefiningOp<RouteOp>();
  RouteOp route = chain.route;
  if (!route || experts.getIndices() != route.getIndices() ||
      experts.getWeights() != route.getWeights()) {
    why = "expected indices and weights of one mla.route";
    return std::nullopt;
  }
  chain.router = route.getLogits().getDefiningOp<LinearOp>();
  if (!chain.router || chain.router.getX() != experts.getX()) {
    why = "expected router logits of a mla.linear of the experts' rows";
    return std::nullopt;
  }
  if (!chain.router->hasOneUse() || !route.getIndices().hasOneUse() ||
      !route.getWeights().hasOneUse()) {
    why = "the router's values have other users";
    return std::nullopt;
  }
  int64_t scored = rowWidth(route.getLogits());
  int64_t stacked = cast<WeightType>(experts.getGate().getType()).getDim(0);
  if (scored != stacked) {
    why = ("expected as many experts as the router scores, " + Twine(scored) +
           ", found " + Twine(stacked))
              .str();
    return std::nullopt;
  }
  matchShared(chain);
  return chain;
}
