//===- VerifyDistributed.cpp - what a rank has of each value --------------===//
//
// Part of mla. Knows nothing of how mla-distribute decides: it starts from the
// parts of weights and follows them through the ops' formulas.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Transforms/Passes.h"
#include "llvm/ADT/TypeSwitch.h"

namespace mla {
#define GEN_PASS_DEF_VERIFYDISTRIBUTEDPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
/// What a rank has of some rows or of a matrix.
struct Share {
  enum Kind {
    Whole,
    Columns, ///< from `first` on, of `all`
    Rows,    ///< of a matrix, likewise
    Summand,
    Unknown ///< after an error, so that it is told once
  } kind = Whole;
  int64_t first = 0, all = 0;

  bool operator==(const Share &other) const {
    return kind == other.kind && first == other.first && all == other.all;
  }
};

raw_ostream &operator<<(raw_ostream &out, const Share &share) {
  switch (share.kind) {
  case Share::Whole:
    return out << "all";
  case Share::Columns:
  case Share::Rows:
    return out << (share.kind == Share::Rows ? "rows" : "columns") << " from "
               << share.first << " on of " << share.all;
  case Share::Summand:
    return out << "a summand";
  case Share::Unknown:
    break;
  }
  return out << "something unknown";
}

std::string text(const Share &share) {
  std::string out;
  llvm::raw_string_ostream(out) << share;
  return out;
}

struct VerifyDistributedPass
    : mla::impl::VerifyDistributedPassBase<VerifyDistributedPass> {
  void runOnOperation() override;

private:
  Share follow(Operation *op);
  Share followLinear(Operation *op, Value x, Value weight, Share matrix);
  Share followHeads(Operation *op, Share x, int64_t from, int64_t to,
                    std::optional<std::pair<Share, int64_t>> kvB);
  Share followExperts(Operation *op, Value x, ValueRange gatesAndUps,
                      ValueRange downs);
  Share followAdd(AddOp op);
  Share followCollective(Operation *op, Value x, int64_t opRanks, bool gathers);
  Share shareOf(Value value);
  /// The share of gate and up, which must have the same.
  Share pairOf(Operation *op, Value gate, Value up);
  Share fail(Operation *op, const Twine &message);
  /// Fails unless the rank has all of every one of `values`.
  bool needsWhole(Operation *op, ValueRange values);

  DenseMap<StringAttr, WeightOp> declared;
  DenseMap<Value, Share> shares;
  int64_t ranks = 1, rank = 0;
};
} // namespace

Share VerifyDistributedPass::fail(Operation *op, const Twine &message) {
  op->emitOpError(message);
  signalPassFailure();
  return {Share::Unknown};
}

Share VerifyDistributedPass::shareOf(Value value) {
  auto get = value.getDefiningOp<GetWeightOp>();
  if (!get)
    return shares.lookup(value);
  WeightOp weight = declared.lookup(get.getNameAttr().getAttr());
  SliceAttr slice = weight ? weight.getSliceAttr() : SliceAttr();
  if (!slice)
    return {};
  int64_t columns = cast<WeightType>(weight.getType()).getShape().back();
  bool allRows = slice.getBlockRows() == slice.getRows();
  bool allColumns = columns == slice.getColumns();
  if (allRows && allColumns)
    return {};
  if (allColumns && slice.getBlocks() == 1)
    return {Share::Rows, slice.getFirstRow(), slice.getRows()};
  if (allRows)
    return {Share::Columns, slice.getFirstColumn(), slice.getColumns()};
  return fail(weight, "expected a part of rows in one run, or of columns");
}

bool VerifyDistributedPass::needsWhole(Operation *op, ValueRange values) {
  for (Value value : values)
    if (Share share = shareOf(value);
        share.kind != Share::Whole && share.kind != Share::Unknown) {
      fail(op, "needs all of its operands on each rank, found " + text(share));
      return false;
    }
  return true;
}

Share VerifyDistributedPass::followLinear(Operation *op, Value x, Value weight,
                                          Share matrix) {
  Share rows = shareOf(x);
  if (rows.kind == Share::Unknown || matrix.kind == Share::Unknown)
    return {Share::Unknown};
  if (matrix.kind == Share::Columns) {
    if (rows == matrix)
      return {Share::Summand};
    return fail(op, "expected rows of which the rank has what it has of the "
                    "matrix, " +
                        text(matrix) + ", found " + text(rows));
  }
  if (!needsWhole(op, x))
    return {Share::Unknown};
  if (matrix.kind == Share::Rows)
    return {Share::Columns, matrix.first, matrix.all};
  return {};
}

Share VerifyDistributedPass::pairOf(Operation *op, Value gate, Value up) {
  Share share = shareOf(gate), other = shareOf(up);
  if (share == other)
    return share;
  return fail(op, "expected the same part of gate and up, found " +
                      text(share) + " and " + text(other));
}

/// An op on heads, `from` values wide before and `to` after. `kvB` is the part
/// of its matrix and the rows of a head in it.
Share VerifyDistributedPass::followHeads(
    Operation *op, Share x, int64_t from, int64_t to,
    std::optional<std::pair<Share, int64_t>> kvB) {
  if (x.kind == Share::Unknown || (kvB && kvB->first.kind == Share::Unknown))
    return {Share::Unknown};
  if (x.kind == Share::Summand)
    return fail(op, "needs heads, found a summand");
  if (x.first % from || x.all % from)
    return fail(op, "expected whole heads of " + Twine(from) +
                        " values, found " + text(x));
  if (kvB) {
    auto [matrix, perHead] = *kvB;
    Share heads = matrix;
    // Rows of the matrix are columns of the heads.
    if (heads.kind == Share::Rows && heads.first % perHead == 0)
      heads = {Share::Columns, heads.first / perHead * from,
               heads.all / perHead * from};
    if (!(heads == x))
      return fail(op,
                  "expected the same heads of its rows and of kv_b, found " +
                      text(x) + " and " + text(matrix));
  }
  return {x.kind, x.first / from * to, x.all / from * to};
}

Share VerifyDistributedPass::followExperts(Operation *op, Value x,
                                           ValueRange gatesAndUps,
                                           ValueRange downs) {
  if (!needsWhole(op, x))
    return {Share::Unknown};
  std::optional<Share::Kind> result;
  for (auto [i, down] : llvm::enumerate(downs)) {
    Share inner = pairOf(op, gatesAndUps[2 * i], gatesAndUps[2 * i + 1]);
    Share outer = shareOf(down);
    if (inner.kind == Share::Unknown || outer.kind == Share::Unknown)
      return {Share::Unknown};
    Share expected = inner;
    if (inner.kind == Share::Rows)
      expected.kind = Share::Columns;
    if (!(outer == expected) || inner.kind == Share::Columns)
      return fail(op, "expected a part of down that gate and up make, found " +
                          text(outer) + " for " + text(inner));
    auto kind = inner.kind == Share::Whole ? Share::Whole : Share::Summand;
    if (result && *result != kind)
      return fail(op, "expected parts of all experts or of none, the shared "
                      "one included");
    result = kind;
  }
  return {*result};
}

Share VerifyDistributedPass::followAdd(AddOp op) {
  Share lhs = shareOf(op.getLhs()), rhs = shareOf(op.getRhs());
  if (lhs.kind == Share::Unknown || rhs.kind == Share::Unknown)
    return {Share::Unknown};
  if (!(lhs == rhs))
    return fail(op, "adds " + text(lhs) + " and " + text(rhs));
  auto sumOf = [](Value v) {
    auto sum = v.getDefiningOp<AllReduceOp>();
    return sum && sum->hasOneUse();
  };
  if (sumOf(op.getLhs()) && sumOf(op.getRhs()))
    return fail(op, "adds two sums over the ranks, where one collective after "
                    "it would do");
  return lhs;
}

Share VerifyDistributedPass::followCollective(Operation *op, Value x,
                                              int64_t opRanks, bool gathers) {
  if (opRanks != ranks)
    return fail(op, "expected " + Twine(ranks) +
                        " ranks as the module has, "
                        "found " +
                        Twine(opRanks));
  Share share = shareOf(x);
  if (share.kind == Share::Unknown)
    return share;
  int64_t width = rowWidth(x);
  Share expected = gathers ? Share{Share::Columns, rank * width, ranks * width}
                           : Share{Share::Summand};
  if (share == expected)
    return {};
  return fail(op, "expected " + text(expected) + ", found " + text(share));
}

/// What a rank has of the results of `op`; of an mla.joined_linear, whose
/// results differ, it is noted here.
Share VerifyDistributedPass::follow(Operation *op) {
  return TypeSwitch<Operation *, Share>(op)
      .Case([&](LinearOp o) {
        return followLinear(op, o.getX(), o.getWeight(),
                            shareOf(o.getWeight()));
      })
      .Case([&](LMHeadOp o) {
        return followLinear(op, o.getX(), o.getWeight(),
                            shareOf(o.getWeight()));
      })
      .Case([&](GatedLinearOp o) {
        Share matrix = pairOf(op, o.getGate(), o.getUp());
        // silu of a summand is no summand.
        if (matrix.kind == Share::Columns)
          return fail(op, "needs all columns of gate and up");
        return followLinear(op, o.getX(), o.getGate(), matrix);
      })
      .Case([&](SwiGLUOp o) {
        Share share = pairOf(op, o.getGate(), o.getUp());
        if (share.kind == Share::Summand)
          return fail(op, "needs gate and up, found summands");
        return share;
      })
      .Case([&](AddOp o) { return followAdd(o); })
      .Case([&](AbsorbQueryOp o) {
        if (!needsWhole(op, o.getRotary()))
          return Share{Share::Unknown};
        int64_t heads = o.getHeads();
        return followHeads(
            op, shareOf(o.getQ()), rowWidth(o.getQ()) / heads,
            rowWidth(o.getResult()) / heads,
            std::pair(shareOf(o.getKvB()), int64_t(o.getNope() + o.getV())));
      })
      .Case([&](ExpandValueOp o) {
        int64_t heads = o.getHeads();
        return followHeads(
            op, shareOf(o.getX()), rowWidth(o.getX()) / heads,
            rowWidth(o.getResult()) / heads,
            std::pair(shareOf(o.getKvB()), int64_t(o.getNope() + o.getV())));
      })
      .Case([&](LatentAttentionOp o) {
        if (o.getSelected() && !needsWhole(op, o.getSelected()))
          return Share{Share::Unknown};
        int64_t heads = o.getHeads();
        return followHeads(op, shareOf(o.getQ()), rowWidth(o.getQ()) / heads,
                           rowWidth(o.getResult()) / heads, std::nullopt);
      })
      .Case([&](ExpertsOp o) {
        if (!needsWhole(op, {o.getIndices(), o.getWeights()}))
          return Share{Share::Unknown};
        return followExperts(op, o.getX(), {o.getGate(), o.getUp()},
                             {o.getDown()});
      })
      .Case([&](MoEOp o) {
        if (!needsWhole(op, o.getRouter()) ||
            (o.getBias() && !needsWhole(op, o.getBias())))
          return Share{Share::Unknown};
        SmallVector<Value> gatesAndUps{o.getGate(), o.getUp()};
        SmallVector<Value> downs{o.getDown()};
        if (auto shared = o.getShared(); !shared.empty()) {
          gatesAndUps.append({shared[0], shared[1]});
          downs.push_back(shared[2]);
        }
        return followExperts(op, o.getX(), gatesAndUps, downs);
      })
      .Case([&](AllReduceOp o) {
        return followCollective(op, o.getX(), o.getRanks(), false);
      })
      .Case([&](AllGatherOp o) {
        return followCollective(op, o.getX(), o.getRanks(), true);
      })
      .Default([&](Operation *) {
        return Share{needsWhole(op, op->getOperands()) ? Share::Whole
                                                       : Share::Unknown};
      });
}

void VerifyDistributedPass::runOnOperation() {
  markAllAnalysesPreserved();
  declared.clear();
  shares.clear();
  ModuleOp module = getOperation();
  for (auto weight : module.getOps<WeightOp>())
    declared[weight.getSymNameAttr()] = weight;
  auto number = [&](StringRef name, int64_t otherwise) {
    auto attr = module->getAttrOfType<IntegerAttr>(name);
    return attr ? attr.getInt() : otherwise;
  };
  ranks = number(ranksAttr, 1);
  rank = number(rankAttr, 0);
  if (ranks < 1 || ranks > maxRanks || rank < 0 || rank >= ranks) {
    module.emitError("expected a rank below the number of ranks, found rank ")
        << rank << " of " << ranks;
    return signalPassFailure();
  }
  for (auto function : module.getOps<func::FuncOp>())
    function.walk([&](Operation *op) {
      if (isa<func::FuncOp, GetWeightOp, GetCacheOp>(op))
        return;
      if (auto joined = dyn_cast<JoinedLinearOp>(op)) {
        for (auto [weight, result] :
             llvm::zip(joined.getWeights(), joined.getResults()))
          shares[result] =
              followLinear(op, joined.getX(), weight, shareOf(weight));
        return;
      }
      Share share = follow(op);
      for (Value result : op->getResults())
        shares[result] = share;
    });
}
