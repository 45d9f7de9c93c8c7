//===- FuseMoE.cpp - router, experts and shared expert as one op ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Rewrite.h"
#include "mla/Transforms/Passes.h"

#define DEBUG_TYPE "mla-fuse-moe"

namespace mla {
#define GEN_PASS_DEF_FUSEMOEPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
struct FuseMoEPass : mla::impl::FuseMoEPassBase<FuseMoEPass> {
  void runOnOperation() override {
    // Collected first: fusing erases experts and what stands around them.
    SmallVector<ExpertsOp> all;
    getOperation().walk([&](ExpertsOp experts) { all.push_back(experts); });
    IRRewriter rewriter(&getContext());
    for (ExpertsOp experts : all) {
      std::string why;
      if (auto chain = matchMoE(experts, why)) {
        fuse(rewriter, *chain);
      } else {
        (void)decline(rewriter, experts, why);
        ++numKept;
      }
    }
  }

  void fuse(IRRewriter &rewriter, MoEChain &chain) {
    ExpertsOp experts = chain.experts;
    SmallVector<Value, 3> shared;
    Operation *last = experts;
    if (chain.add) {
      shared = {chain.gated.getGate(), chain.gated.getUp(),
                chain.down.getWeight()};
      // Everything that the fused op reads is defined before the add, but
      // perhaps not before the experts.
      last = chain.add;
      ++numShared;
    }
    rewriter.setInsertionPoint(last);
    auto moe = MoEOp::create(
        rewriter, experts.getLoc(), experts.getType(), experts.getX(),
        chain.router.getWeight(), /*logits=*/Value(), chain.route.getBias(),
        experts.getGate(), experts.getUp(), experts.getDown(), shared,
        chain.route.getRouting(), experts.getGroupsAttr(),
        experts.getGroupRanksAttr());
    rewriter.replaceOp(last, moe);
    SmallVector<Operation *> dead{chain.route, chain.router};
    if (chain.add)
      dead.append({chain.down, experts});
    eraseDead(rewriter, dead);
    ++numFused;
  }
};
} // namespace
