//===- FoldIndexer.cpp - indexers that choose everything ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/StringSet.h"

namespace mla {
#define GEN_PASS_DEF_FOLDINDEXERPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

/// Erases from the end what nothing uses: pure ops, and writes into an index
/// cache that nothing reads afterwards.
static void eraseUnused(func::FuncOp step) {
  for (Operation &op :
       llvm::make_early_inc_range(llvm::reverse(step.getBody().front()))) {
    if (op.hasTrait<OpTrait::IsTerminator>() || !op.use_empty())
      continue;
    auto write = dyn_cast<CacheWriteOp>(op);
    bool indexWrite = write && cast<CacheType>(write.getCache().getType())
                                       .getKind() == CacheKind::Index;
    if (indexWrite || isMemoryEffectFree(&op))
      op.erase();
  }
}

namespace {
struct FoldIndexerPass : mla::impl::FoldIndexerPassBase<FoldIndexerPass> {
  using FoldIndexerPassBase::FoldIndexerPassBase;

  template <typename Op> void fold(Op op) {
    if (!op.getSelected())
      return;
    auto indexer = op.getSelected().template getDefiningOp<IndexerOp>();
    if (!indexer)
      return;
    if (int64_t(indexer.getTopk()) < maxContext) {
      op.emitRemark("keeps its selection: the indexer chooses ")
          << indexer.getTopk() << " of up to " << int64_t(maxContext)
          << " positions";
      return;
    }
    op.getSelectedMutable().clear();
    ++numFolded;
  }

  void runOnOperation() override {
    ModuleOp module = getOperation();
    module.walk([&](LatentAttentionOp op) { fold(op); });
    module.walk([&](AttentionOp op) { fold(op); });
    if (numFolded == 0)
      return;
    for (auto step : module.getOps<func::FuncOp>())
      if (!step.isExternal())
        eraseUnused(step);
    llvm::StringSet<> named;
    module.walk([&](GetWeightOp op) { named.insert(op.getName()); });
    module.walk([&](GetCacheOp op) { named.insert(op.getName()); });
    for (Operation &op : llvm::make_early_inc_range(module.getOps()))
      if (isa<WeightOp, CacheOp>(op) &&
          !named.contains(SymbolTable::getSymbolName(&op)))
        op.erase();
  }
};
} // namespace
