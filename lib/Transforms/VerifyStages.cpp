//===- VerifyStages.cpp - what holds between the stages -------------------===//
//
// Part of mla. Each pass turns the promise of a stage into an error at its
// end, where the cause is near. All findings are reported, not only the first.
//
//===----------------------------------------------------------------------===//
#include "Rewrite.h"
#include "mla/Plan/Plan.h"
#include "mla/Target/Lowering.h"
#include "mla/Transforms/Passes.h"

namespace mla {
#define GEN_PASS_DEF_VERIFYIMPORTEDPASS
#define GEN_PASS_DEF_VERIFYFUSEDPASS
#define GEN_PASS_DEF_VERIFYSELECTEDPASS
#define GEN_PASS_DEF_VERIFYLOWEREDPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

//===----------------------------------------------------------------------===//
// After import
//===----------------------------------------------------------------------===//

/// The plain half of the dialect, one op for a Hugging Face module.
static bool isPlain(Operation *op) {
  return isa<WeightOp, GetWeightOp, CacheOp, GetCacheOp, EmbeddingOp, RMSNormOp,
             LayerNormOp, LinearOp, SwiGLUOp, AddOp, SplitOp, LMHeadOp,
             RotaryEmbeddingOp, RopeOp, CacheWriteOp, AttentionOp, IndexerOp,
             RouteOp, ExpertsOp>(op);
}

namespace {
struct VerifyImportedPass
    : mla::impl::VerifyImportedPassBase<VerifyImportedPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    SymbolTableCollection symbols;
    ModuleOp module = getOperation();
    module.walk([&](Operation *op) {
      if (op == module || isa<func::FuncOp, func::ReturnOp>(op))
        return;
      if (!isPlain(op)) {
        op->emitOpError("expected only functions and plain mla ops after "
                        "import");
        signalPassFailure();
      } else if (op->hasAttr(loweringAttr)) {
        op->emitOpError("has a lowering before one is selected");
        signalPassFailure();
      } else if (auto user = dyn_cast<SymbolUserOpInterface>(op)) {
        if (failed(user.verifySymbolUses(symbols)))
          signalPassFailure();
      }
    });
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// After fusion
//===----------------------------------------------------------------------===//

namespace {
struct VerifyFusedPass : mla::impl::VerifyFusedPassBase<VerifyFusedPass> {
  void runOnOperation() override {
    markAllAnalysesPreserved();
    getOperation().walk([&](Operation *op) {
      if (auto cache = dyn_cast<CacheOp>(op)) {
        auto type = cast<CacheType>(cache.getType());
        if (type.getKind() == CacheKind::Expanded)
          return fail(op, "expected a latent cache after mla-fuse-attention, "
                          "found an expanded one");
      } else if (auto activation = dyn_cast<SwiGLUOp>(op)) {
        if (matchGated(activation))
          return fail(op, "expected mla-fuse-mlp to have fused it with its "
                          "linears");
      } else if (auto experts = dyn_cast<ExpertsOp>(op)) {
        std::string why;
        if (matchMoE(experts, why))
          return fail(op, "expected mla-fuse-moe to have fused it with its "
                          "router");
      }
    });
  }

  void fail(Operation *op, StringRef message) {
    op->emitOpError(message);
    signalPassFailure();
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// After selection
//===----------------------------------------------------------------------===//

namespace {
struct VerifySelectedPass
    : mla::impl::VerifySelectedPassBase<VerifySelectedPass> {
  using VerifySelectedPassBase::VerifySelectedPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    auto on = TargetMachine::open(target);
    if (!on.ok()) {
      getOperation().emitError(on.status().message());
      return signalPassFailure();
    }
    std::optional<ExchangeBy> exchange = parseExchangeBy(collectives);
    if (!exchange) {
      getOperation().emitError(
          "expected collectives by exchange, p2p or nccl, found '")
          << collectives << "'";
      return signalPassFailure();
    }
    std::vector<LoweringSite> sites;
    for (const Program &program :
         programsFor((*on)->machine(), stepTokens, maxSequences))
      sites.emplace_back(**on, program, maxContext, activations == "fp4",
                         *exchange);
    getOperation().walk([&](Operation *op) {
      if (!isTensorLevelOp(op))
        return;
      std::optional<std::string> wrong;
      for (const LoweringSite &site : sites)
        if (!wrong)
          wrong = check(op, site);
      if (!wrong)
        return;
      InFlightDiagnostic error = op->emitOpError(*wrong);
      if (Attribute attr = op->getAttr(loweringAttr))
        error << ", found " << attr;
      signalPassFailure();
    });
  }

private:
  /// What is wrong with the lowering of `op`, or nothing.
  static std::optional<std::string> check(Operation *op,
                                          const LoweringSite &site) {
    if (!op->hasAttr(loweringAttr))
      return "has no lowering";
    auto [target, lowering] =
        lookupLowering(loweringOf(op, site.program.name));
    if (!lowering)
      return "has an unknown lowering";
    if (op->getName().getStringRef() != lowering->op)
      return ("has the lowering of another op, " + lowering->op).str();
    if (auto refusal = lowering->refuses(op, site))
      return "has a lowering that refuses it: " + refusal->text;
    return std::nullopt;
  }
};
} // namespace

//===----------------------------------------------------------------------===//
// After lowering
//===----------------------------------------------------------------------===//

/// `op` has its place inside the arena of its program.
static LogicalResult checkPlanned(ProgramOp program) {
  if (!program.getWorkspaceBytes())
    return program.emitOpError("expected workspace_bytes after "
                               "mla-plan-memory");
  bool ok = true;
  for (auto op : program.getBody().getOps<WorkspaceOp>()) {
    std::optional<uint64_t> offset = op.getOffset();
    if (offset && *offset < *program.getWorkspaceBytes())
      continue;
    InFlightDiagnostic error = op.emitOpError("expected an offset inside the ")
                               << *program.getWorkspaceBytes()
                               << " bytes of the program, found ";
    offset ? error << *offset : error << "none";
    ok = false;
  }
  return success(ok);
}

namespace {
struct VerifyLoweredPass : mla::impl::VerifyLoweredPassBase<VerifyLoweredPass> {
  using VerifyLoweredPassBase::VerifyLoweredPassBase;

  void runOnOperation() override {
    markAllAnalysesPreserved();
    for (Operation &op : getOperation().getOps()) {
      if (auto program = dyn_cast<ProgramOp>(op)) {
        if (planned && failed(checkPlanned(program)))
          signalPassFailure();
        continue;
      }
      if (isa<WeightOp, CacheOp>(op))
        continue;
      auto kernels = dyn_cast<ModuleOp>(op);
      if (!kernels || kernels.getSymName() != "kernels") {
        // What the op holds is the finding, where it holds anything.
        if (!reportTensorLevel(&op))
          op.emitOpError("expected only programs, weights, caches and the "
                         "module @kernels after lowering");
        signalPassFailure();
      } else if (reportTensorLevel(kernels)) {
        signalPassFailure();
      }
    }
  }

  /// Reports every mla op inside of `root` and says whether there is one.
  bool reportTensorLevel(Operation *root) {
    bool found = false;
    root->walk([&](Operation *op) {
      if (!isa_and_present<MLADialect>(op->getDialect()))
        return;
      op->emitOpError("expected no mla op outside of programs after lowering");
      found = true;
    });
    return found;
  }
};
} // namespace
