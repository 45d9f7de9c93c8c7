//===- Distribute.cpp - one model, several ranks --------------------------===//
//
// Part of mla. A chain of ops whose middle is wide is cut through the middle, so
// that each rank computes some of its heads, inner columns or experts, and what
// comes out is a summand that one collective adds up. All ranks get the same
// graph: sizes are those of the largest part, and what a rank has less of is
// zeros. All chains are matched and all parts sized before anything changes.
//
//===----------------------------------------------------------------------===//
#include "DistributeWeights.h"
#include "mla/Dialect/MLA.h"
#include "mla/Transforms/Passes.h"

#define DEBUG_TYPE "mla-distribute"

namespace mla {
#define GEN_PASS_DEF_DISTRIBUTEPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
/// Heads: the query's linear, attention in the latent space, o_proj.
struct AttentionShare {
  OpResult query; ///< of a mla.linear or mla.joined_linear
  AbsorbQueryOp absorb;
  LatentAttentionOp attention;
  ExpandValueOp expand;
  LinearOp out;
  LatentCacheWriteOp write; ///< if the cache is sharded
  int64_t heads = 0;        ///< of a rank
};

/// Inner columns: gate and up, down.
struct MLPShare {
  GatedLinearOp gated;
  LinearOp down;
  int64_t columns = 0; ///< of a rank
};

/// Experts, or their inner columns, or both; the shared expert's columns.
struct ExpertShare {
  Operation *op;
  int64_t group = 0; ///< experts of a group of ranks
};

struct DistributePass : mla::impl::DistributePassBase<DistributePass> {
  using DistributePassBase::DistributePassBase;
  void runOnOperation() override;

private:
  LogicalResult checkOptions();
  LogicalResult match(Operation *op);
  LogicalResult matchAttention(LatentAttentionOp attention);
  void matchMLP(GatedLinearOp gated);
  LogicalResult matchExperts(Operation *op, Value gate, Value up, Value down,
                             ValueRange shared);
  void keep(Operation *op, const Twine &why);
  LogicalResult keepCache(Operation *op, const Twine &why);

  void share(const AttentionShare &chain);
  void shareCache(const AttentionShare &chain);
  void share(const MLPShare &chain);
  void share(const ExpertShare &layer);
  void share(EmbeddingOp embedding);
  void share(LMHeadOp head);
  void shareDown(JoinedLinearOp down);
  void shareRouter(MoEOp moe);
  void reduce(Value rows);
  SmallVector<Value> gather(Operation *after, ValueRange rows,
                            TypeRange wholes, StringRef what);
  void joinReductions();
  std::string layout() const;

  SmallVector<AttentionShare> attentions;
  DenseMap<Value, ShardBatchOp> batches; ///< of a sharded cache
  bool refused = false; ///< an error has been told by keepCache()
  SmallVector<MLPShare> mlps;
  SmallVector<ExpertShare> experts;
  SmallVector<EmbeddingOp> embeddings;
  SmallVector<LMHeadOp> heads;
  SmallVector<JoinedLinearOp> downs;
  SmallVector<MoEOp> routers;
  WeightCuts cuts;
};
} // namespace

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

/// The only user of `rows` if it is an Op that reads them as its `x`.
template <typename Op> static Op onlyReader(Value rows) {
  if (!rows.hasOneUse())
    return {};
  auto op = dyn_cast<Op>(*rows.getUsers().begin());
  return op && op.getX() == rows ? op : Op();
}

static OpOperand &operandOf(Operation *op, Value value) {
  return *llvm::find_if(op->getOpOperands(), [&](OpOperand &operand) {
    return operand.get() == value;
  });
}

void DistributePass::keep(Operation *op, const Twine &why) {
  op->emitRemark() << "not distributed: " << why;
  ++numKept;
}

LogicalResult DistributePass::match(Operation *op) {
  if (auto attention = dyn_cast<LatentAttentionOp>(op)) {
    return matchAttention(attention);
  } else if (auto gated = dyn_cast<GatedLinearOp>(op)) {
    matchMLP(gated);
  } else if (auto moe = dyn_cast<MoEOp>(op)) {
    if (failed(matchExperts(op, moe.getGate(), moe.getUp(), moe.getDown(),
                            moe.getShared())))
      return failure();
    if (shardRouter && moe.getRouter() && areDeclared(moe.getRouter())) {
      OpOperand &router = operandOf(op, moe.getRouter());
      cuts.add(router, {Axis::Rows, ranks, 1}, dimOf(router, Axis::Rows));
      routers.push_back(moe);
    }
  } else if (auto all = dyn_cast<ExpertsOp>(op)) {
    return matchExperts(op, all.getGate(), all.getUp(), all.getDown(), {});
  } else if (auto head = dyn_cast<LMHeadOp>(op)) {
    if (!areDeclared(head.getWeight()))
      return keep(op, "expected declared weights"), success();
    cuts.add(head.getWeightMutable(), {Axis::Rows, ranks, 1},
             dimOf(head.getWeightMutable(), Axis::Rows));
    heads.push_back(head);
  } else if (auto embedding = dyn_cast<EmbeddingOp>(op)) {
    if (!areDeclared(embedding.getTable()))
      return keep(op, "expected declared weights"), success();
    cuts.add(embedding.getTableMutable(), {Axis::Rows, ranks, 1},
             dimOf(embedding.getTableMutable(), Axis::Rows));
    embeddings.push_back(embedding);
  } else if (isa<AttentionOp>(op)) {
    return keepCache(
        op, "only attention over latents is, which mla-fuse-attention makes");
  } else if (shardCache && isa<IndexerOp, CacheWriteOp>(op)) {
    return keepCache(op, "only latent caches can");
  }
  return success();
}

/// A chain of attention that is left alone, or, as all caches have the same pages,
/// cannot be if they are sharded.
LogicalResult DistributePass::keepCache(Operation *op, const Twine &why) {
  if (!shardCache)
    return keep(op, why), success();
  // Told once, not for every layer.
  if (std::exchange(refused, true))
    return failure();
  return op->emitOpError("cannot have its cache sharded: ")
         << why << " (--cache replicated works)";
}

LogicalResult DistributePass::matchAttention(LatentAttentionOp attention) {
  auto no = [&](const Twine &why) { return keepCache(attention, why); };
  AttentionShare chain{};
  chain.attention = attention;
  chain.absorb = attention.getQ().getDefiningOp<AbsorbQueryOp>();
  if (!chain.absorb || !chain.absorb->hasOneUse())
    return no("expected queries of a mla.absorb_query with no other user");
  chain.query = dyn_cast<OpResult>(chain.absorb.getQ());
  if (!chain.query || !isa<LinearOp, JoinedLinearOp>(chain.query.getOwner()) ||
      !chain.query.hasOneUse())
    return no("expected queries of a linear with no other user");
  chain.expand = onlyReader<ExpandValueOp>(attention.getResult());
  if (!chain.expand)
    return no("expected a mla.expand_value as the only user");
  if (chain.absorb.getHeads() != attention.getHeads() ||
      chain.expand.getHeads() != attention.getHeads() ||
      chain.absorb.getNope() != chain.expand.getNope() ||
      chain.absorb.getV() != chain.expand.getV())
    return no("its mla.absorb_query and mla.expand_value have other heads");
  chain.out = onlyReader<LinearOp>(chain.expand.getResult());
  if (!chain.out)
    return no("expected a mla.linear as the only user of its values");

  // Operand 0 is x, then there is a weight for each result.
  OpOperand &queryWeight =
      chain.query.getOwner()->getOpOperand(1 + chain.query.getResultNumber());
  if (!areDeclared({queryWeight.get(), chain.absorb.getKvB(),
                    chain.expand.getKvB(), chain.out.getWeight()}))
    return no("expected declared weights");

  int64_t count = attention.getHeads(), v = chain.expand.getV();
  int64_t kv = chain.absorb.getNope() + v, q = rowWidth(chain.query) / count;
  chain.heads = cuts.addTogether(
      attention, "heads", {{&queryWeight, Axis::Rows, q},
                           {&chain.absorb.getKvBMutable(), Axis::Rows, kv},
                           {&chain.expand.getKvBMutable(), Axis::Rows, kv},
                           {&chain.out.getWeightMutable(), Axis::Columns, v}},
      count, {ranks, 1});
  if (!shardCache) {
    attentions.push_back(chain);
    return success();
  }
  if (attention.getSelected())
    return no("it attends to positions that an indexer selects");
  chain.write = attention.getCache().getDefiningOp<LatentCacheWriteOp>();
  if (!chain.write || chain.write.getBatch() != attention.getBatch())
    return no("expected the cache that a mla.latent_cache_write of the same batch "
              "leaves");
  attentions.push_back(chain);
  return success();
}

void DistributePass::matchMLP(GatedLinearOp gated) {
  LinearOp down = onlyReader<LinearOp>(gated.getResult());
  if (!down)
    return keep(gated, "expected a mla.linear as the only user");
  if (!areDeclared({gated.getGate(), gated.getUp(), down.getWeight()}))
    return keep(gated, "expected declared weights");
  int64_t columns =
      cuts.addTogether(gated, "inner columns",
                       {{&gated.getGateMutable(), Axis::Rows},
                        {&gated.getUpMutable(), Axis::Rows},
                        {&down.getWeightMutable(), Axis::Columns}},
                       rowWidth(gated.getResult()), {ranks, 1}, lanes);
  mlps.push_back({gated, down, columns});
}

LogicalResult DistributePass::matchExperts(Operation *op, Value gate, Value up,
                                           Value down, ValueRange shared) {
  SmallVector<Value> all{gate, up, down};
  llvm::append_range(all, shared);
  if (!areDeclared(all))
    return keep(op, "expected declared weights"), success();
  int64_t count = cast<WeightType>(gate.getType()).getDim(0);
  if (count < expertGroups) {
    std::string fitting;
    for (int64_t n = 1; n <= count; ++n)
      if (ranks % n == 0)
        fitting += (fitting.empty() ? "" : ", ") + std::to_string(n);
    return op->emitOpError("its ")
           << count << " experts cannot be placed on " << int64_t(expertGroups)
           << " groups of ranks: expected one of " << fitting;
  }
  // A group has whole experts, its ranks parts of each.
  ExpertShare layer{op, 0};
  int64_t inGroup = ranks / expertGroups;
  Operands experts{{&operandOf(op, gate), Axis::Experts},
                   {&operandOf(op, up), Axis::Experts},
                   {&operandOf(op, down), Axis::Experts}};
  if (expertGroups > 1)
    layer.group = cuts.addTogether(op, "experts", experts, count,
                                   {expertGroups, inGroup});
  auto columns = [&](Value gate, Value up, Value down, Division division) {
    auto type = cast<WeightType>(gate.getType());
    if (division.count > 1)
      cuts.addTogether(op, "inner columns",
                       {{&operandOf(op, gate), Axis::Rows},
                        {&operandOf(op, up), Axis::Rows},
                        {&operandOf(op, down), Axis::Columns}},
                       type.getDim(type.getRank() - 2), division, lanes);
  };
  columns(gate, up, down, {inGroup, 1});
  if (!shared.empty())
    columns(shared[0], shared[1], shared[2], {ranks, 1});
  this->experts.push_back(layer);
  return success();
}

//===----------------------------------------------------------------------===//
// Changing the graph
//===----------------------------------------------------------------------===//

/// Makes `rows` as wide as what one rank has.
static void narrow(Value rows, int64_t width) {
  auto type = cast<RankedTensorType>(rows.getType());
  rows.setType(
      RankedTensorType::get({ShapedType::kDynamic, width}, type.getElementType()));
}

/// "<path>.<what>" if `loc` is a path, so that each launch has its own name.
static Location under(Location loc, StringRef what) {
  auto name = dyn_cast<NameLoc>(loc);
  if (!name)
    return loc;
  return NameLoc::get(StringAttr::get(loc.getContext(),
                                      name.getName().getValue() + "." + what));
}

/// The users of `rows`, a summand, get the sum.
void DistributePass::reduce(Value rows) {
  OpBuilder b(&getContext());
  b.setInsertionPointAfterValue(rows);
  auto sum = AllReduceOp::create(
      b, under(rows.getLoc(), "all_reduce"), rows.getType(), rows,
      b.getI64IntegerAttr(ranks), local ? b.getUnitAttr() : UnitAttr());
  rows.replaceAllUsesExcept(sum.getResult(), sum);
  ++numReductions;
}

/// All columns of `rows`, of which a rank has a part.
SmallVector<Value> DistributePass::gather(Operation *after, ValueRange rows,
                                          TypeRange wholes, StringRef what) {
  OpBuilder b(&getContext());
  b.setInsertionPointAfter(after);
  auto all = AllGatherOp::create(b, under(after->getLoc(), what), wholes, rows,
                                 b.getI64IntegerAttr(ranks),
                                 local ? b.getUnitAttr() : UnitAttr());
  ++numGathers;
  return llvm::to_vector_of<Value>(all.getResults());
}

void DistributePass::share(LMHeadOp head) {
  Type whole = head.getType();
  Value part = head.getResult();
  narrow(part, weightRows(head.getWeight()));
  Value all = gather(head, part, whole, "all_gather").front();
  part.replaceAllUsesExcept(all, all.getDefiningOp());
}

void DistributePass::share(EmbeddingOp embedding) {
  embedding.setRanks(ranks);
  reduce(embedding.getResult());
}

void DistributePass::share(const AttentionShare &chain) {
  AttentionShare c = chain;
  uint64_t all = c.attention.getHeads(), part = c.heads;
  for (Value rows : {Value(c.query), Value(c.absorb.getResult()),
                     Value(c.attention.getResult()),
                     Value(c.expand.getResult())})
    narrow(rows, rowWidth(rows) / all * part);
  c.absorb.setHeads(part);
  c.attention.setHeads(part);
  c.expand.setHeads(part);
  if (shardCache)
    shareCache(c);
  reduce(c.out.getResult());
  ++numAttentions;
}

/// Attention of all heads over the tokens that the rank has, from and back to the
/// rank's heads over all tokens.
void DistributePass::shareCache(const AttentionShare &chain) {
  AttentionShare c = chain;
  int64_t all = c.heads * ranks;
  OpBuilder b(&getContext());
  auto rows = [&](int64_t width) {
    return RankedTensorType::get({ShapedType::kDynamic, width}, b.getF32Type());
  };
  ShardBatchOp &batch = batches[c.attention.getBatch()];
  if (!batch) {
    b.setInsertionPointAfterValue(c.attention.getBatch());
    batch = ShardBatchOp::create(b, c.attention.getBatch().getLoc(),
                                 c.attention.getBatch(), int64_t(ranks));
  }
  c.write.getBatchMutable().assign(batch.getWrite());

  Value part = c.absorb.getResult();
  Value queries =
      gather(c.absorb, part, rows(rowWidth(part) * ranks), "all_gather").front();
  b.setInsertionPoint(c.attention);
  auto partial = LatentAttentionOp::create(
      b, under(c.attention.getLoc(), "partial"),
      rows(all * c.attention.getKvLora()), rows(all),
      queries, c.attention.getCache(), batch.getRead(), Value(), all,
      c.attention.getKvLora(), c.attention.getScale());
  auto merged = MergeAttentionOp::create(
      b, under(c.attention.getLoc(), "merge"), c.attention.getResult().getType(),
      partial.getResult(), partial.getLse(), int64_t(ranks), all, bool(local));
  c.attention.getResult().replaceAllUsesWith(merged.getResult());
  c.attention.erase();
  ++numMerges;
}

void DistributePass::share(const MLPShare &chain) {
  MLPShare c = chain;
  narrow(c.gated.getResult(), c.columns);
  reduce(c.down.getResult());
  ++numMLPs;
}

void DistributePass::share(const ExpertShare &layer) {
  if (layer.group != 0) {
    Builder b(&getContext());
    layer.op->setAttr("groups", b.getI64IntegerAttr(expertGroups));
    layer.op->setAttr("group_ranks", b.getI64IntegerAttr(ranks / expertGroups));
  }
  reduce(layer.op->getResult(0));
  ++numExperts;
}

/// The results that are no rank's heads are gathered.
void DistributePass::shareDown(JoinedLinearOp down) {
  SmallVector<Value> parts;
  SmallVector<Type> wholes;
  for (auto [weight, result] :
       llvm::zip(down.getWeights(), down.getResults())) {
    if (weightRows(weight) == rowWidth(result))
      continue; // A query, of which the rank has its heads.
    parts.push_back(result);
    wholes.push_back(result.getType());
    narrow(result, weightRows(weight));
  }
  if (parts.empty())
    return;
  SmallVector<Value> alls = gather(down, parts, wholes, "all_gather");
  for (auto [part, all] : llvm::zip(parts, alls))
    part.replaceAllUsesExcept(all, all.getDefiningOp());
  ++numDowns;
}

void DistributePass::shareRouter(MoEOp moe) {
  OpBuilder b(moe);
  Value router = moe.getRouter();
  auto rows = [&](int64_t width) {
    return RankedTensorType::get({ShapedType::kDynamic, width}, b.getF32Type());
  };
  auto part = LinearOp::create(b, under(moe.getLoc(), "router"),
                               rows(weightRows(router)), moe.getX(), router);
  Value logits = gather(part, part.getResult(),
                        rows(cuts.wholeRows(router)), "all_gather")
                     .front();
  moe.getRouterMutable().clear();
  moe.getLogitsMutable().assign(logits);
  ++numRouters;
}

/// Where two sums meet, as those of experts and of a shared expert beside them,
/// the summands are added and one collective is left.
void DistributePass::joinReductions() {
  SmallVector<AddOp> adds;
  getOperation().walk([&](AddOp add) { adds.push_back(add); });
  for (AddOp add : adds) {
    auto lhs = add.getLhs().getDefiningOp<AllReduceOp>();
    auto rhs = add.getRhs().getDefiningOp<AllReduceOp>();
    if (!lhs || !rhs || lhs == rhs || !lhs->hasOneUse() || !rhs->hasOneUse())
      continue;
    add->setOperands({lhs.getX(), rhs.getX()});
    lhs.erase();
    rhs.erase();
    reduce(add.getResult());
    numReductions -= 2;
  }
}

/// "attention tp8, experts tp4xep2, ...".
std::string DistributePass::layout() const {
  std::string n = std::to_string(ranks), text = "attention tp" + n;
  if (!experts.empty()) {
    text += ", experts ";
    if (expertGroups < ranks)
      text += "tp" + std::to_string(ranks / expertGroups);
    if (expertGroups > 1)
      text += (expertGroups < ranks ? "xep" : "ep") +
              std::to_string(expertGroups);
  }
  auto word = [](bool sharded) { return sharded ? " sharded" : " replicated"; };
  text += std::string(", latent projections") + word(!downs.empty());
  if (!experts.empty())
    text += std::string(", router") + word(!routers.empty());
  return text + ", cache" + word(!batches.empty());
}

LogicalResult DistributePass::checkOptions() {
  ModuleOp module = getOperation();
  if (ranks < 1 || ranks > maxRanks)
    return module.emitError("expected from 1 to ")
           << maxRanks << " ranks, found " << int64_t(ranks);
  if (expertGroups < 1 || ranks % expertGroups != 0)
    return module.emitError("expected a number of groups of ranks that divides ")
           << int64_t(ranks) << ", found " << int64_t(expertGroups);
  if (module->hasAttr(ranksAttr))
    return module.emitError("is distributed already");
  for (auto weight : module.getOps<WeightOp>())
    if (weight.getShard())
      return weight.emitOpError("is a part already, where a whole weight is "
                                "expected");
  return success();
}

void DistributePass::runOnOperation() {
  attentions.clear();
  batches.clear();
  refused = false;
  mlps.clear();
  experts.clear();
  embeddings.clear();
  heads.clear();
  downs.clear();
  routers.clear();
  cuts = {};
  if (failed(checkOptions()))
    return signalPassFailure();
  if (ranks == 1)
    return markAllAnalysesPreserved();
  ModuleOp module = getOperation();
  bool ok = true;
  module.walk([&](Operation *op) { ok = succeeded(match(op)) && ok; });
  if (shardCache)
    module.walk([&](LatentCacheWriteOp write) {
      if (llvm::none_of(attentions, [&](const AttentionShare &chain) {
            return chain.write == write;
          }))
        ok = succeeded(keepCache(write, "no attention reads it")) && ok;
    });
  if (!ok)
    return signalPassFailure();
  if (shardDown)
    module.walk([&](JoinedLinearOp down) {
      if (!areDeclared(down.getWeights()))
        return keep(down, "expected declared weights");
      bool any = false;
      for (OpOperand &weight : down.getWeightsMutable())
        if (!cuts.has(weight)) {
          cuts.add(weight, {Axis::Rows, ranks, 1}, dimOf(weight, Axis::Rows));
          any = true;
        }
      if (any)
        downs.push_back(down);
    });
  numUneven += cuts.remarkUneven();

  cuts.apply(module);
  for (const AttentionShare &chain : attentions)
    share(chain);
  for (const MLPShare &chain : mlps)
    share(chain);
  for (const ExpertShare &layer : experts)
    share(layer);
  for (EmbeddingOp embedding : embeddings)
    share(embedding);
  for (LMHeadOp head : heads)
    share(head);
  for (JoinedLinearOp down : downs)
    shareDown(down);
  for (MoEOp moe : routers)
    shareRouter(moe);
  joinReductions();
  Builder b(&getContext());
  module->setAttr(ranksAttr, b.getI64IntegerAttr(ranks));
  module->setAttr(layoutAttr, b.getStringAttr(layout()));
  if (!batches.empty())
    module->setAttr(pageRanksAttr, b.getI64IntegerAttr(ranks));
}
