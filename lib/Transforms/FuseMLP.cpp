//===- FuseMLP.cpp - gate, up and activation as one op --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Rewrite.h"
#include "mla/Transforms/Passes.h"

#define DEBUG_TYPE "mla-fuse-mlp"

namespace mla {
#define GEN_PASS_DEF_FUSEMLPPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
struct FuseMLPPass : mla::impl::FuseMLPPassBase<FuseMLPPass> {
  void runOnOperation() override {
    IRRewriter rewriter(&getContext());
    getOperation().walk([&](SwiGLUOp activation) {
      std::optional<GatedChain> chain = matchGated(activation);
      if (!chain)
        return;
      rewriter.setInsertionPoint(activation);
      rewriter.replaceOpWithNewOp<GatedLinearOp>(
          activation, activation.getType(), chain->gate.getX(),
          chain->gate.getWeight(), chain->up.getWeight());
      eraseDead(rewriter, {chain->gate, chain->up});
      ++numFused;
    });
  }
};
} // namespace
