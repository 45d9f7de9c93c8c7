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
    Columns, ///< `part` of `all`, the next ones on every `stride`-th rank
    Rows,    ///< of a matrix, likewise
    Summand,
    Padded,  ///< all columns, in parts of `part`, of which `all` are no padding
    // With caches whose tokens are spread:
    Reading, ///< a batch: places of the rank's tokens, to attend to
    Writing, ///< a batch: places of the rank's tokens, to write
    Tokens,  ///< a cache with the rank's tokens
    Partial, ///< attention to these of all heads: `part` for each rank, of `all`
    Unknown ///< after an error, so that it is told once
  } kind = Whole;
  int64_t part = 0, all = 0, stride = 1;

  bool operator==(const Share &other) const {
    return kind == other.kind && part == other.part && all == other.all &&
           stride == other.stride;
  }
};

raw_ostream &operator<<(raw_ostream &out, const Share &share) {
  switch (share.kind) {
  case Share::Whole:
    return out << "all";
  case Share::Columns:
  case Share::Rows:
    out << share.part << " of " << share.all
        << (share.kind == Share::Rows ? " rows" : " columns");
    return share.stride == 1 ? out : out << " on every " << share.stride << " ranks";
  case Share::Summand:
    return out << "a summand";
  case Share::Padded:
    return out << share.all << " columns in padded parts of " << share.part;
  case Share::Reading:
    return out << "places to read of some tokens";
  case Share::Writing:
    return out << "places to write of some tokens";
  case Share::Tokens:
    return out << "some tokens";
  case Share::Partial:
    return out << "what some tokens contribute to " << share.all << " heads";
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
  Share followWrite(LatentCacheWriteOp op);
  Share followAttention(LatentAttentionOp op);
  Share followMerge(MergeAttentionOp op);
  void followBatch(ShardBatchOp op);
  /// A sum, or columns that are gathered to `all`.
  Share followCollective(Operation *op, Value x, int64_t opRanks, Value all);
  Share shareOf(Value value);
  /// The share of gate and up, which must have the same.
  Share pairOf(Operation *op, Value gate, Value up);
  Share fail(Operation *op, const Twine &message);
  /// Fails unless the rank has all of every one of `values`.
  bool needsWhole(Operation *op, ValueRange values);

  DenseMap<StringAttr, WeightOp> declared;
  DenseMap<Value, Share> shares;
  int64_t ranks = 1;
  int64_t pageRanks = 1; ///< over which the tokens of caches are spread
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
  ShardAttr shard = weight ? weight.getShardAttr() : ShardAttr();
  if (!shard)
    return {};
  // Which experts a rank has is followExperts()' concern.
  auto type = cast<WeightType>(weight.getType());
  int64_t columns = type.getRank() - 1, rows = columns - 1;
  bool someRows = rows >= 0 && shard.countOf(rows) > 1;
  bool someColumns = shard.countOf(columns) > 1;
  if (someRows && someColumns)
    return fail(weight, "expected a part of rows or of columns, not of both");
  auto part = [&](Share::Kind kind, int64_t dim) {
    return Share{kind, type.getDim(dim), shard.getWhole()[dim],
                 shard.strideOf(dim)};
  };
  return someRows      ? part(Share::Rows, rows)
         : someColumns ? part(Share::Columns, columns)
                       : Share();
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
    return {Share::Columns, matrix.part, matrix.all, matrix.stride};
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
  if (x.kind != Share::Whole && x.kind != Share::Columns)
    return fail(op, "needs heads, found " + text(x));
  if (x.part % from || x.all % from)
    return fail(op, "expected whole heads of " + Twine(from) +
                        " values, found " + text(x));
  if (kvB) {
    auto [matrix, perHead] = *kvB;
    Share heads = matrix;
    // Rows of the matrix are columns of the heads.
    if (heads.kind == Share::Rows && heads.part % perHead == 0)
      heads = {Share::Columns, heads.part / perHead * from,
               heads.all / perHead * from, heads.stride};
    if (!(heads == x))
      return fail(op,
                  "expected the same heads of its rows and of kv_b, found " +
                      text(x) + " and " + text(matrix));
  }
  return {x.kind, x.part / from * to, x.all / from * to, x.stride};
}

Share VerifyDistributedPass::followExperts(Operation *op, Value x,
                                           ValueRange gatesAndUps,
                                           ValueRange downs) {
  if (!needsWhole(op, x))
    return {Share::Unknown};
  std::optional<Share::Kind> result;
  // Groups of ranks with experts of their own: what a rank computes is a summand
  // even if it has all of each.
  auto groups = op->getAttrOfType<IntegerAttr>("groups");
  auto groupRanks = op->getAttrOfType<IntegerAttr>("group_ranks");
  int64_t count = groups ? groups.getInt() : 1;
  if (groups && count * groupRanks.getInt() != ranks)
    return fail(op, "expected groups of all " + Twine(ranks) + " ranks");
  for (Value weight : {gatesAndUps[0], gatesAndUps[1], downs[0]}) {
    auto get = weight.getDefiningOp<GetWeightOp>();
    WeightOp of = get ? declared.lookup(get.getNameAttr().getAttr()) : WeightOp();
    ShardAttr shard = of ? of.getShardAttr() : ShardAttr();
    bool placed = shard && shard.countOf(0) > 1;
    if (placed ? shard.countOf(0) != count ||
                     shard.strideOf(0) != groupRanks.getInt()
               : count > 1)
      return fail(op, "expected experts of " + Twine(count) +
                          " groups of ranks in gate, up and down");
  }
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
    auto kind = inner.kind == Share::Whole && (i > 0 || count == 1)
                    ? Share::Whole
                    : Share::Summand;
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
                                              int64_t opRanks, Value all) {
  if (opRanks != ranks)
    return fail(op, "expected " + Twine(ranks) +
                        " ranks as the module has, "
                        "found " +
                        Twine(opRanks));
  Share share = shareOf(x);
  if (share.kind == Share::Unknown)
    return share;
  // Heads stay whole if the last ranks' padding is gathered, too.
  if (all && share.kind == Share::Columns && share.stride == 1 &&
      share.part == rowWidth(x) && share.all < rowWidth(all))
    return {Share::Padded, share.part, share.all};
  Share expected =
      all ? Share{Share::Columns, rowWidth(x), rowWidth(all)} : Share{Share::Summand};
  if (share == expected)
    return {};
  return fail(op, "expected " + text(expected) + ", found " + text(share));
}

//===----------------------------------------------------------------------===//
// Caches whose tokens are spread over the ranks
//===----------------------------------------------------------------------===//

void VerifyDistributedPass::followBatch(ShardBatchOp op) {
  bool ok = needsWhole(op, op.getBatch());
  if (ok && int64_t(op.getRanks()) != pageRanks) {
    fail(op, "expected " + Twine(pageRanks) + " ranks as the module's caches have, "
             "found " + Twine(op.getRanks()));
    ok = false;
  }
  shares[op.getRead()] = {ok ? Share::Reading : Share::Unknown};
  shares[op.getWrite()] = {ok ? Share::Writing : Share::Unknown};
}

Share VerifyDistributedPass::followWrite(LatentCacheWriteOp op) {
  if (!needsWhole(op, {op.getX(), op.getNorm(), op.getRotary()}))
    return {Share::Unknown};
  Share batch = shareOf(op.getBatch());
  if (batch.kind == Share::Unknown)
    return batch;
  bool spread = pageRanks > 1;
  if (batch.kind != (spread ? Share::Writing : Share::Whole))
    return fail(op, "expected " +
                        text({spread ? Share::Writing : Share::Whole}) +
                        " as its batch, found " + text(batch));
  return {spread ? Share::Tokens : Share::Whole};
}

Share VerifyDistributedPass::followAttention(LatentAttentionOp op) {
  if (op.getSelected() && !needsWhole(op, op.getSelected()))
    return {Share::Unknown};
  int64_t heads = op.getHeads(), width = rowWidth(op.getQ()) / heads;
  Share q = shareOf(op.getQ()), cache = shareOf(op.getCache());
  Share batch = shareOf(op.getBatch());
  for (const Share &share : {q, cache, batch})
    if (share.kind == Share::Unknown)
      return share;
  bool spread = pageRanks > 1;
  if (cache.kind != (spread ? Share::Tokens : Share::Whole) ||
      batch.kind != (spread ? Share::Reading : Share::Whole))
    return fail(op, Twine("expected a cache and a batch of ") +
                        (spread ? "some tokens" : "all tokens") + ", found " +
                        text(cache) + " and " + text(batch));
  if (spread != bool(op.getLse()))
    return fail(op, "expected a second result if and only if its cache has some "
                    "tokens");
  if (!spread)
    return followHeads(op, q, width, rowWidth(op.getResult()) / heads,
                       std::nullopt);
  // Queries of all heads, the same number of them from each rank.
  if (q.kind == Share::Whole)
    q = {Share::Padded, rowWidth(op.getQ()) / ranks, rowWidth(op.getQ())};
  if (q.kind != Share::Padded)
    return fail(op, "needs queries of all heads, found " + text(q));
  if (q.part % width || q.all % width || q.part / width * ranks != heads)
    return fail(op, "expected as many whole heads of each of " + Twine(ranks) +
                        " ranks, found " + text(q));
  return {Share::Partial, q.part / width, q.all / width};
}

Share VerifyDistributedPass::followMerge(MergeAttentionOp op) {
  if (int64_t(op.getRanks()) != ranks)
    return fail(op, "expected " + Twine(ranks) + " ranks as the module has, found " +
                        Twine(op.getRanks()));
  Share x = shareOf(op.getX()), lse = shareOf(op.getLse());
  for (const Share &share : {x, lse})
    if (share.kind == Share::Unknown)
      return share;
  if (x.kind != Share::Partial || !(x == lse) ||
      x.part * ranks != int64_t(op.getHeads()))
    return fail(op, "expected what some tokens contribute to its " +
                        Twine(op.getHeads()) + " heads, found " + text(x) + " and " +
                        text(lse));
  int64_t width = rowWidth(op.getResult()) / x.part;
  return {Share::Columns, x.part * width, x.all * width};
}

//===----------------------------------------------------------------------===//
// All ops
//===----------------------------------------------------------------------===//

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
      .Case([&](LatentAttentionOp o) { return followAttention(o); })
      .Case([&](LatentCacheWriteOp o) { return followWrite(o); })
      .Case([&](MergeAttentionOp o) { return followMerge(o); })
      .Case([&](ExpertsOp o) {
        if (!needsWhole(op, {o.getIndices(), o.getWeights()}))
          return Share{Share::Unknown};
        return followExperts(op, o.getX(), {o.getGate(), o.getUp()},
                             {o.getDown()});
      })
      .Case([&](MoEOp o) {
        for (Value whole : {Value(o.getRouter()), Value(o.getLogits()),
                            Value(o.getBias())})
          if (whole && !needsWhole(op, whole))
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
        return followCollective(op, o.getX(), o.getRanks(), {});
      })
      .Case([&](AllReduceRMSNormOp o) {
        Share sum = followCollective(op, o.getX(), o.getRanks(), {});
        if (o.getResidual() && !needsWhole(op, o.getResidual()))
          return Share{Share::Unknown};
        return needsWhole(op, o.getWeight()) ? sum : Share{Share::Unknown};
      })
      .Case([&](EmbeddingOp o) {
        Share table = shareOf(o.getTable());
        if (table.kind == Share::Rows && o.getRanks() == uint64_t(ranks))
          return Share{Share::Summand};
        if (table.kind == Share::Whole && !o.getRanks())
          return table;
        return fail(op, "expected a part of the vocabulary if and only if it "
                        "has ranks, found " +
                            text(table));
      })
      .Default([&](Operation *) {
        auto isCache = [](Value v) { return isa<CacheType>(v.getType()); };
        if (pageRanks > 1 && llvm::any_of(op->getOperands(), isCache))
          return fail(op, "expected no cache but latent ones in a module whose "
                          "caches' tokens are spread");
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
  if (ranks < 1 || ranks > maxRanks) {
    module.emitError("expected from 1 to ")
        << maxRanks << " ranks, found " << ranks;
    return signalPassFailure();
  }
  pageRanks = number(pageRanksAttr, 1);
  if (pageRanks != 1 && pageRanks != ranks) {
    module.emitError("expected caches whose tokens are spread over all ")
        << ranks << " ranks, found " << pageRanks;
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
      if (auto batch = dyn_cast<ShardBatchOp>(op))
        return followBatch(batch);
      if (auto gather = dyn_cast<AllGatherOp>(op)) {
        for (auto [x, all] : llvm::zip(gather.getXs(), gather.getAlls()))
          shares[all] = followCollective(op, x, gather.getRanks(), all);
        return;
      }
      Share share = follow(op);
      for (Value result : op->getResults())
        shares[result] = share;
    });
}
