//===- VerifyCollectives.cpp - nothing left to fuse or to overlap ---------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Collectives.h"
#include "mla/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

namespace mla {
#define GEN_PASS_DEF_VERIFYCOLLECTIVESPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
struct VerifyCollectivesPass
    : mla::impl::VerifyCollectivesPassBase<VerifyCollectivesPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    getOperation().walk([&](Operation *op) { check(op); });
    for (auto function : getOperation().getOps<func::FuncOp>())
      for (Block &block : function.getBody())
        checkOrder(block);
  }

private:
  void fail(Operation *op, const Twine &message) {
    op->emitOpError(message);
    signalPassFailure();
  }

  void check(Operation *op) {
    std::string why;
    if (auto reduce = dyn_cast<AllReduceOp>(op)) {
      if (matchSumAndNorm(reduce, why))
        fail(op, "expected mla-fuse-collectives to have fused it with the norm "
                 "of its sum");
    } else if (auto moe = dyn_cast<MoEOp>(op)) {
      if (hidesSharedExpert(moe))
        fail(op, "expected its shared expert apart, to run while its logits are "
                 "gathered");
    } else if (auto gather = dyn_cast<AllGatherOp>(op)) {
      auto first = dyn_cast_or_null<AllGatherOp>(workBefore(op));
      if (first && areJoinable(first, gather))
        fail(op, "expected one collective with the one before");
    }
  }

  /// An exchange stands behind something that it needs, or another exchange.
  void checkOrder(Block &block) {
    if (block.empty() || !block.back().hasTrait<OpTrait::IsTerminator>())
      return;
    Dependences dependences(block);
    ArrayRef<Operation *> ops = dependences.ops();
    for (unsigned i = 1; i < ops.size(); ++i)
      if (isExchange(ops[i]) && !isExchange(ops[i - 1]) &&
          !llvm::is_contained(dependences.before(i), i - 1))
        fail(ops[i], "could come before " +
                         ops[i - 1]->getName().getStringRef() +
                         ", which would run meanwhile");
  }
};
} // namespace
