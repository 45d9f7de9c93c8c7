//===- FuseAttention.cpp - attention over latents -------------------------===//
//
// Part of mla. Matches the chain of one layer from its mla.attention upwards,
// all of it before anything changes, then builds the latent form beside it and
// erases what has become dead.
//
//===----------------------------------------------------------------------===//
#include "Rewrite.h"
#include "mla/Transforms/Passes.h"
#include "llvm/ADT/DenseMap.h"

#define DEBUG_TYPE "mla-fuse-attention"

namespace mla {
#define GEN_PASS_DEF_FUSEATTENTIONPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {

/// The plain chain that ends in `attention`, in the order of the model.
struct AttentionChain {
  CacheOp declaration;
  GetCacheOp cache;
  SplitOp split;  ///< of kv_a's rows into the latent and the rotary part
  RMSNormOp norm; ///< of the latent
  LinearOp kvB;   ///< expands the latent
  RopeOp keyRope;
  CacheWriteOp write;
  RopeOp queryRope;
  AttentionOp attention;

  Value latentRows() { return split.getX(); }
  int64_t kvLora() { return rowWidth(norm.getResult()); }
};

struct FuseAttentionPass : mla::impl::FuseAttentionPassBase<FuseAttentionPass> {
  void runOnOperation() override;

private:
  FailureOr<AttentionChain> match(RewriterBase &rewriter,
                                  AttentionOp attention);
  void fuse(RewriterBase &rewriter, AttentionChain &chain);
  void join(RewriterBase &rewriter, AttentionChain &chain);

  DenseMap<StringAttr, unsigned> cacheUses;
};
} // namespace

/// Why the rotations of queries and keys cannot be folded into the latent form,
/// which rotates the last values of each query head and of the latent row.
static StringRef checkRotation(AttentionOp attention, RopeOp query,
                               RopeOp key) {
  int64_t nope = attention.getNope(), rope = attention.getRope();
  if (query.getRotary() != key.getRotary() ||
      query.getInterleaved() != key.getInterleaved())
    return "queries and keys are rotated differently";
  if (rowWidth(key.getRotary()) != rope)
    return "the rotation covers only a part of the rotary values";
  if (int64_t(query.getHeadDim()) != nope + rope ||
      int64_t(query.getOffset()) != nope)
    return "the rotated part of the queries is not the last of each head";
  if (rowWidth(key.getX()) != rope || int64_t(key.getHeadDim()) != rope)
    return "the rotary part of the keys is not one head of rope values";
  return {};
}

FailureOr<AttentionChain> FuseAttentionPass::match(RewriterBase &rewriter,
                                                   AttentionOp attention) {
  auto no = [&](const Twine &why) { return decline(rewriter, attention, why); };
  AttentionChain chain{};
  chain.attention = attention;
  chain.write = attention.getCache().getDefiningOp<CacheWriteOp>();
  if (!chain.write || chain.write.getBatch() != attention.getBatch())
    return no("expected a cache that a mla.cache_write of the same batch "
              "returns");
  chain.cache = chain.write.getCache().getDefiningOp<GetCacheOp>();
  if (!chain.cache)
    return no("expected a cache from a mla.get_cache");
  if (!chain.write->hasOneUse() || !chain.cache->hasOneUse() ||
      cacheUses.lookup(chain.cache.getNameAttr().getAttr()) != 1)
    return no("the cache " + ("@" + chain.cache.getName()) +
              " has other users");
  chain.declaration = SymbolTable::lookupNearestSymbolFrom<CacheOp>(
      chain.cache, chain.cache.getNameAttr());

  OperandRange parts = chain.write.getParts();
  if (parts.size() != 2)
    return no("expected a cache row of two parts, found " +
              Twine(parts.size()));
  chain.kvB = parts[0].getDefiningOp<LinearOp>();
  if (!chain.kvB)
    return no("expected expanded rows of a mla.linear");
  if (!chain.kvB->hasOneUse())
    return no("the expanded rows have other users");
  chain.norm = chain.kvB.getX().getDefiningOp<RMSNormOp>();
  if (!chain.norm)
    return no("expected a latent normed by mla.rms_norm");
  chain.split = chain.norm.getX().getDefiningOp<SplitOp>();
  chain.keyRope = parts[1].getDefiningOp<RopeOp>();
  if (!chain.split || chain.split.getNumResults() != 2 ||
      chain.norm.getX() != chain.split.getResult(0) || !chain.keyRope ||
      chain.keyRope.getX() != chain.split.getResult(1))
    return no("expected latent and rotary part of one mla.split");
  chain.queryRope = attention.getQ().getDefiningOp<RopeOp>();
  if (!chain.queryRope)
    return no("expected queries of a mla.rope");
  StringRef rotation = checkRotation(attention, chain.queryRope, chain.keyRope);
  if (!rotation.empty())
    return no(rotation);
  return chain;
}

void FuseAttentionPass::fuse(RewriterBase &rewriter, AttentionChain &chain) {
  AttentionOp attention = chain.attention;
  int64_t heads = attention.getHeads(), nope = attention.getNope();
  int64_t v = attention.getV(), kvLora = chain.kvLora();
  Value rotary = chain.keyRope.getRotary(), kvB = chain.kvB.getWeight();
  bool interleaved = chain.keyRope.getInterleaved();
  auto rows = [&](int64_t width) {
    return RankedTensorType::get({ShapedType::kDynamic, width},
                                 rewriter.getF32Type());
  };

  auto type = CacheType::get(
      &getContext(), CacheKind::Latent, kvLora + attention.getRope(),
      cast<CacheType>(chain.cache.getType()).getFormat());
  rewriter.modifyOpInPlace(chain.declaration,
                           [&] { chain.declaration.setType(type); });
  rewriter.modifyOpInPlace(chain.cache,
                           [&] { chain.cache.getResult().setType(type); });

  rewriter.setInsertionPoint(chain.write);
  Value written = LatentCacheWriteOp::create(
      rewriter, chain.write.getLoc(), type, chain.latentRows(),
      chain.norm.getWeight(), rotary, chain.cache, chain.write.getBatch(),
      chain.norm.getEpsAttr(), rewriter.getBoolAttr(interleaved));

  Location loc = attention.getLoc();
  rewriter.setInsertionPoint(attention);
  Value query = AbsorbQueryOp::create(
      rewriter, loc, rows(heads * type.getWidth()), chain.queryRope.getX(), kvB,
      rotary, heads, nope, v, interleaved);
  Value latent =
      LatentAttentionOp::create(rewriter, loc, rows(heads * kvLora), Type(), query,
                                written, attention.getBatch(),
                                attention.getSelected(), heads, kvLora,
                                attention.getScale())
          .getResult();
  rewriter.replaceOpWithNewOp<ExpandValueOp>(attention, attention.getType(),
                                             latent, kvB, heads, nope, v);
  // Not by eraseDead: it leaves ops with effects alone.
  rewriter.eraseOp(chain.write);
}

/// The linear of `x` that `value` is computed from by norms, rotations and
/// further linears, or null.
static LinearOp downProjection(Value value, Value x) {
  while (Operation *def = value ? value.getDefiningOp() : nullptr) {
    if (auto linear = dyn_cast<LinearOp>(def))
      if (linear.getX() == x)
        return linear;
    if (!isa<LinearOp, RMSNormOp, LayerNormOp, RopeOp>(def))
      return {};
    value = def->getOperand(0); // x of each of them
  }
  return {};
}

/// Joins the layer's linears that read the same rows as kv_a into one.
void FuseAttentionPass::join(RewriterBase &rewriter, AttentionChain &chain) {
  auto kvA = chain.latentRows().getDefiningOp<LinearOp>();
  if (!kvA)
    return;
  SmallVector<LinearOp> linears{kvA};
  auto add = [&](Value value) {
    LinearOp linear = downProjection(value, kvA.getX());
    if (linear && linear->getBlock() == kvA->getBlock() &&
        !llvm::is_contained(linears, linear))
      linears.push_back(linear);
  };
  add(chain.queryRope.getX());
  // An indexer of another layer reads other rows: nothing of it is found.
  if (Value selected = chain.attention.getSelected())
    if (auto indexer = selected.getDefiningOp<IndexerOp>()) {
      add(indexer.getWeights());
      add(indexer.getQ());
      if (auto write = indexer.getCache().getDefiningOp<CacheWriteOp>())
        for (Value part : write.getParts())
          add(part);
    }
  llvm::sort(linears,
             [](LinearOp a, LinearOp b) { return a->isBeforeInBlock(b); });

  // The joined op stands where the first linear stood; the weights of the
  // others have to be there.
  LinearOp first = linears.front();
  llvm::erase_if(linears, [&](LinearOp linear) {
    Operation *def = linear.getWeight().getDefiningOp();
    if (def && def->getBlock() == first->getBlock() &&
        first->isBeforeInBlock(def)) {
      if (!isa<GetWeightOp>(def))
        return true;
      rewriter.moveOpBefore(def, first);
    }
    return false;
  });
  if (linears.size() < 2)
    return;

  SmallVector<Value> weights;
  SmallVector<Type> types;
  for (LinearOp linear : linears) {
    weights.push_back(linear.getWeight());
    types.push_back(linear.getType());
  }
  rewriter.setInsertionPoint(first);
  auto joined = JoinedLinearOp::create(rewriter, kvA.getLoc(), types,
                                       kvA.getX(), weights);
  for (auto [linear, result] : llvm::zip(linears, joined.getResults()))
    rewriter.replaceOp(linear, result);
  numJoined += linears.size();
}

void FuseAttentionPass::runOnOperation() {
  cacheUses.clear();
  SmallVector<AttentionOp> attentions;
  getOperation().walk([&](Operation *op) {
    if (auto cache = dyn_cast<GetCacheOp>(op))
      ++cacheUses[cache.getNameAttr().getAttr()];
    else if (auto attention = dyn_cast<AttentionOp>(op))
      attentions.push_back(attention);
  });
  IRRewriter rewriter(&getContext());
  for (AttentionOp attention : attentions) {
    FailureOr<AttentionChain> chain = match(rewriter, attention);
    if (failed(chain)) {
      ++numKept;
      continue;
    }
    // Joined first, while the attention still leads to the indexer.
    join(rewriter, *chain);
    fuse(rewriter, *chain);
    eraseDead(rewriter, {chain->queryRope, chain->keyRope, chain->kvB});
    ++numFused;
  }
}
