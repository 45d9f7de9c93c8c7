//===- SelectLowering.cpp - one lowering for each op ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Lowering.h"
#include "mla/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"

#define DEBUG_TYPE "mla-select-lowering"

namespace mla {
#define GEN_PASS_DEF_SELECTLOWERINGPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

/// The first lowering of `target` that takes `op`, or an error with every
/// candidate's reason.
static const Lowering *select(const Target &target, Operation *op) {
  SmallVector<std::string> reasons;
  for (const Lowering &lowering : target.lowerings) {
    if (op->getName().getStringRef() != lowering.op)
      continue;
    Refusal refusal = lowering.refuses(op);
    if (!refusal)
      return &lowering;
    reasons.push_back(target.fullName(lowering) + ": " + *refusal);
  }
  if (reasons.empty())
    reasons.push_back("none is made for this op");
  op->emitOpError("has no lowering on target '")
      << target.name << "': " << llvm::join(reasons, "; ");
  return nullptr;
}

namespace {
struct SelectLoweringPass
    : mla::impl::SelectLoweringPassBase<SelectLoweringPass> {
  using SelectLoweringPassBase::SelectLoweringPassBase;

  void runOnOperation() override {
    const Target *chosen = lookupTarget(target);
    if (!chosen) {
      InFlightDiagnostic error = getOperation().emitError("unknown target '")
                                 << target << "', expected one of";
      for (const Target *known : targets())
        error << " '" << known->name << "'";
      return signalPassFailure();
    }
    getOperation().walk([&](Operation *op) {
      if (!isTensorLevelOp(op))
        return;
      const Lowering *lowering = select(*chosen, op);
      if (!lowering)
        return signalPassFailure();
      op->setAttr(loweringAttr,
                  StringAttr::get(&getContext(), chosen->fullName(*lowering)));
      ++numSelected;
    });
  }
};
} // namespace
