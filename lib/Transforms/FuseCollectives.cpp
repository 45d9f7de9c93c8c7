//===- FuseCollectives.cpp - sums over the ranks and what is around them --===//
//
// Part of mla. First the shared experts that an exchange can hide come out of
// their op, then sums take up the norms behind them, then ops are put in order,
// and last what stands side by side is joined.
//
//===----------------------------------------------------------------------===//
#include "Collectives.h"
#include "mla/Transforms/Passes.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/PatternMatch.h"
#include "llvm/ADT/StringExtras.h"

#define DEBUG_TYPE "mla-fuse-collectives"

namespace mla {
#define GEN_PASS_DEF_FUSECOLLECTIVESPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

/// The first of its block that norms `rows`, or null.
static RMSNormOp normOf(Value rows) {
  RMSNormOp first;
  for (Operation *user : rows.getUsers())
    if (auto norm = dyn_cast<RMSNormOp>(user);
        norm && norm->getBlock() == rows.getParentBlock() &&
        (!first || norm->isBeforeInBlock(first)))
      first = norm;
  return first;
}

/// "mla.linear and mla.swiglu": who reads `rows`.
static std::string readers(Value rows) {
  SmallVector<StringRef> names;
  for (Operation *user : rows.getUsers())
    if (StringRef name = user->getName().getStringRef();
        !llvm::is_contained(names, name))
      names.push_back(name);
  if (names.empty())
    return "nobody";
  llvm::sort(names); // Not in the order of uses, which is none.
  return llvm::join(names, " and ");
}

std::optional<SumAndNorm> mla::matchSumAndNorm(AllReduceOp reduce,
                                               std::string &why) {
  SumAndNorm found{reduce, AddOp(), RMSNormOp()};
  Value sum = reduce.getResult();
  if (reduce.getLocal()) {
    why = "nothing is exchanged";
    return std::nullopt;
  }
  if (RMSNormOp norm = normOf(sum)) {
    found.norm = norm;
    return found;
  }
  auto add = sum.hasOneUse() ? dyn_cast<AddOp>(*sum.getUsers().begin()) : AddOp();
  if (!add || add->getBlock() != reduce->getBlock()) {
    why = "expected a mla.rms_norm that reads the sum, or a mla.add as the only "
          "reader, found " +
          readers(sum);
    return std::nullopt;
  }
  found.add = add;
  found.norm = normOf(add.getResult());
  if (found.norm)
    return found;
  why = "expected a mla.rms_norm that reads the sum with its residual, found " +
        readers(add.getResult());
  return std::nullopt;
}

bool mla::hidesSharedExpert(MoEOp moe) {
  if (!moe.getLogits() || moe.getShared().empty())
    return false;
  auto gather = moe.getLogits().getDefiningOp<AllGatherOp>();
  return gather && isExchange(gather);
}

bool mla::areJoinable(AllGatherOp first, AllGatherOp second) {
  if (first.getRanks() != second.getRanks() || !isExchange(first) ||
      !isExchange(second))
    return false;
  return llvm::none_of(second.getXs(), [&](Value x) {
    // The rows of a head are those of the tokens that want logits.
    return x.getDefiningOp() == first || x.getDefiningOp<LMHeadOp>();
  }) && llvm::none_of(first.getXs(), [](Value x) {
           return x.getDefiningOp<LMHeadOp>();
         });
}

//===----------------------------------------------------------------------===//
// Changing the graph
//===----------------------------------------------------------------------===//

namespace {
struct FuseCollectivesPass
    : mla::impl::FuseCollectivesPassBase<FuseCollectivesPass> {
  void runOnOperation() override;

private:
  void takeOutShared(IRRewriter &rewriter, MoEOp moe);
  void fuse(IRRewriter &rewriter, const SumAndNorm &match);
  void join(IRRewriter &rewriter, Block &block);
};
} // namespace

void FuseCollectivesPass::takeOutShared(IRRewriter &rewriter, MoEOp moe) {
  OperandRange shared = moe.getShared();
  Location loc = NameLoc::get(
      rewriter.getStringAttr(originOf(moe) + ".shared_experts"));
  auto inner = RankedTensorType::get(
      {ShapedType::kDynamic, cast<WeightType>(shared[0].getType()).getDim(0)},
      rewriter.getF32Type());
  rewriter.setInsertionPoint(moe);
  Value gated = GatedLinearOp::create(rewriter, loc, inner, moe.getX(),
                                      shared[0], shared[1]);
  Value down =
      LinearOp::create(rewriter, loc, moe.getType(), gated, shared[2]);
  moe.getSharedMutable().clear();
  rewriter.setInsertionPointAfter(moe);
  auto add = AddOp::create(rewriter, moe.getLoc(), moe.getResult(), down);
  rewriter.replaceAllUsesExcept(moe.getResult(), add.getResult(), add);
  ++numTakenOut;
}

void FuseCollectivesPass::fuse(IRRewriter &rewriter, const SumAndNorm &match) {
  AllReduceOp reduce = match.reduce;
  AddOp add = match.add;
  RMSNormOp norm = match.norm;
  Value sum = add ? add.getResult() : reduce.getResult();
  Value residual;
  if (add)
    residual = add.getLhs() == reduce.getResult() ? add.getRhs() : add.getLhs();
  // Where the sum is: the residual is there by then, and the norm's weight can be.
  Operation *at = sum.getDefiningOp();
  if (Operation *weight = norm.getWeight().getDefiningOp();
      weight && weight->getBlock() == at->getBlock() &&
      at->isBeforeInBlock(weight))
    rewriter.moveOpBefore(weight, at);
  rewriter.setInsertionPoint(at);
  auto fused = AllReduceRMSNormOp::create(
      rewriter, replacingLoc(reduce.getOperation(), {sum, norm.getResult()}),
      sum.getType(), norm.getType(), reduce.getX(), norm.getWeight(), residual,
      norm.getEpsAttr(), reduce.getRanksAttr());
  rewriter.replaceOp(norm, fused.getNormed());
  rewriter.replaceOp(at, fused.getSum());
  if (add)
    rewriter.eraseOp(reduce);
  ++numFused;
}

void FuseCollectivesPass::join(IRRewriter &rewriter, Block &block) {
  SmallVector<AllGatherOp> gathers(block.getOps<AllGatherOp>());
  for (AllGatherOp second : gathers) {
    auto first = dyn_cast_or_null<AllGatherOp>(workBefore(second));
    if (!first || !areJoinable(first, second))
      continue;
    SmallVector<Value> xs(first.getXs()), alls(first.getAlls());
    llvm::append_range(xs, second.getXs());
    llvm::append_range(alls, second.getAlls());
    rewriter.setInsertionPoint(second);
    auto both = AllGatherOp::create(
        rewriter, replacingLoc(first.getOperation(), alls),
        TypeRange(ValueRange(alls)), xs, first.getRanksAttr(), UnitAttr());
    ValueRange results = both.getAlls();
    rewriter.replaceOp(second, results.drop_front(first.getXs().size()));
    rewriter.replaceOp(first, results.take_front(first.getXs().size()));
    ++numJoined;
  }
}

void FuseCollectivesPass::runOnOperation() {
  ModuleOp module = getOperation();
  SmallVector<MoEOp> moes;
  SmallVector<AllReduceOp> reductions;
  module.walk([&](Operation *op) {
    if (auto moe = dyn_cast<MoEOp>(op); moe && hidesSharedExpert(moe))
      moes.push_back(moe);
    else if (auto reduce = dyn_cast<AllReduceOp>(op);
             reduce && isExchange(reduce))
      reductions.push_back(reduce);
  });
  IRRewriter rewriter(&getContext());
  for (MoEOp moe : moes)
    takeOutShared(rewriter, moe);
  for (AllReduceOp reduce : reductions) {
    std::string why;
    if (std::optional<SumAndNorm> match = matchSumAndNorm(reduce, why)) {
      fuse(rewriter, *match);
      continue;
    }
    reduce.emitRemark() << "not fused: " << why;
    ++numKept;
  }
  for (auto function : module.getOps<func::FuncOp>())
    for (Block &block : function.getBody()) {
      numMoved += overlapExchanges(block);
      join(rewriter, block);
    }
}
