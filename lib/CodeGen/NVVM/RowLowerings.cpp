//===- RowLowerings.cpp - lowerings of what moves rows --------------------===//
//
// Part of mla. Norms, sums, caches, heads, the choice of experts: one kernel for
// each op, or a part of the kernel before or behind it.
//
//===----------------------------------------------------------------------===//
#include "Lowerings.h"
#include "llvm/ADT/STLExtras.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

using Needed = std::optional<Refusal>;

static Needed refusesCacheWrite(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsLatentCache(op, site))
    return lacks;
  return needsPlainWeights(op, site);
}

/// Rows of f32 that are read and written.
static int64_t bytesOfRows(Operation *op) {
  int64_t bytes = 0;
  auto add = [&](Type type) {
    if (auto tensor = dyn_cast<RankedTensorType>(type))
      if (tensor.getRank() == 2)
        bytes += tensor.getDimSize(1) * 4;
  };
  llvm::for_each(op->getOperandTypes(), add);
  llvm::for_each(op->getResultTypes(), add);
  return bytes;
}

static cost::Estimate rows(Operation *op, const LoweringSite &site,
                           const cost::Step &step) {
  return site.model.rows(step.tokens, bytesOfRows(op));
}

/// Done by the linears and experts that read the rows, by what packs rows for them,
/// or by a launch of its own.
static cost::Estimate norm(Operation *op, const LoweringSite &site,
                           const cost::Step &step) {
  if (site.program.maxTokens == 1)
    return {};
  return rows(op, site, step);
}

/// Done by the linear, the experts or the reduction whose result it adds.
static cost::Estimate sum(Operation *op, const LoweringSite &site,
                          const cost::Step &step) {
  for (Value v : op->getOperands()) {
    Operation *producer = v.getDefiningOp();
    if (v.hasOneUse() && isa_and_present<LinearOp, MoEOp, AllReduceOp>(producer))
      return {};
  }
  return rows(op, site, step);
}

/// Beside absorb_query in a program of one token.
static cost::Estimate cacheWrite(Operation *op, const LoweringSite &site,
                                 const cost::Step &step) {
  if (site.program.maxTokens == 1)
    return {};
  return rows(op, site, step);
}

/// Places of a rank's tokens: what reads positions computes them.
static cost::Estimate shares(Operation *, const LoweringSite &, const cost::Step &) {
  return {};
}

static cost::Estimate absorb(Operation *op, const LoweringSite &site,
                             const cost::Step &step) {
  auto o = cast<AbsorbQueryOp>(op);
  int64_t latent = weightType(o.getKvB()).getDim(1);
  return site.model.heads(o.getHeads(),
                          {Format::BF16, latent, int64_t(o.getNope())},
                          step.tokens);
}

static cost::Estimate expand(Operation *op, const LoweringSite &site,
                             const cost::Step &step) {
  auto o = cast<ExpandValueOp>(op);
  int64_t latent = weightType(o.getKvB()).getDim(1);
  return site.model.heads(o.getHeads(),
                          {Format::BF16, int64_t(o.getV()), latent},
                          step.tokens);
}

static cost::Estimate choice(Operation *op, const LoweringSite &site,
                             const cost::Step &step) {
  auto logits = cast<RankedTensorType>(cast<RouteOp>(op).getLogits().getType());
  return site.model.route(logits.getDimSize(1), step.tokens);
}

ArrayRef<Lowering> nvvm::rowLowerings() {
  constexpr auto nothing = needsNothing;
  static const Lowering list[] = {
      {"embedding", "mla.embedding", needsPlainWeights, rows},
      {"rms_norm", "mla.rms_norm", needsPlainWeights, norm},
      {"swiglu", "mla.swiglu", nothing, rows},
      {"add", "mla.add", nothing, sum},
      {"split", "mla.split", nothing, rows},
      {"rotary_embedding", "mla.rotary_embedding", nothing, rows},
      {"rope", "mla.rope", nothing, rows},
      {"shard_batch", "mla.shard_batch", nothing, shares},
      {"latent_cache_write", "mla.latent_cache_write", refusesCacheWrite,
       cacheWrite},
      {"absorb_query", "mla.absorb_query", nothing, absorb},
      {"expand_value", "mla.expand_value", nothing, expand},
      {"route", "mla.route", needsPlainWeights, choice},
  };
  return list;
}

//===----------------------------------------------------------------------===//
// The whole table
//===----------------------------------------------------------------------===//

ArrayRef<Lowering> nvvm::lowerings() {
  static const SmallVector<Lowering> all = [] {
    SmallVector<Lowering> list;
    for (ArrayRef<Lowering> part : {linearLowerings(), attentionLowerings(),
                                    expertLowerings(), rowLowerings(),
                                    collectiveLowerings()})
      llvm::append_range(list, part);
    return list;
  }();
  return all;
}
