//===- AttentionLowerings.cpp - lowerings of latent attention -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "AttentionPrefill.h"
#include "LatentDecode.h"
#include "Lowerings.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

AttentionSpec nvvm::attentionSpec(LatentAttentionOp op,
                                  const LoweringSite &site) {
  auto cache = cast<CacheType>(op.getCache().getType());
  AttentionSpec spec;
  spec.heads = op.getHeads();
  spec.latent = op.getKvLora();
  spec.rope = cache.getWidth() - spec.latent;
  spec.cache = cache.getFormat();
  spec.scale = op.getScale().convertToDouble();
  spec.maxTokens = site.program.maxTokens;
  spec.maxSequences = site.program.maxSequences;
  spec.maxContext = site.maxContext;
  if (auto some = op.getBatch().getDefiningOp<ShardBatchOp>())
    spec.ranks = some.getRanks();
  spec.lse = !!op.getLse();
  return spec;
}

using Needed = std::optional<Refusal>;

Needed nvvm::needsLatentCache(Operation *op, const LoweringSite &) {
  for (Type type : op->getOperandTypes())
    if (auto cache = dyn_cast<CacheType>(type))
      if (cache.getFormat() != Format::BF16 &&
          cache.getFormat() != Format::F16 &&
          cache.getFormat() != Format::FP8E4M3)
        return Refusal{Need::CacheFormat,
                       "needs a latent cache in bf16, f16 or fp8_e4m3, found " +
                           std::string(formatName(cache.getFormat())),
                       "choose one with --kv-cache-dtype"};
  return std::nullopt;
}

/// What every form needs: a cache in 16 or 8 bits, and all positions.
static Needed refusesAny(Operation *op, const LoweringSite &site) {
  if (Needed lacks = needsLatentCache(op, site))
    return lacks;
  if (cast<LatentAttentionOp>(op).getSelected())
    return Refusal{Need::Shape,
                   "needs attention to all positions, found a selection by an "
                   "indexer",
                   "sparse attention has no GPU kernel yet: limit the context "
                   "to index_topk tokens with --max-context"};
  return std::nullopt;
}

static Needed refusesTiles(const AttentionSpec &spec) {
  if (fitsDecodeTiles(spec))
    return std::nullopt;
  return Refusal{Need::Shape,
                 "needs latents of a multiple of 128 values and rows of one of "
                 "64, at most 576, found " +
                     std::to_string(spec.latent) + " and " +
                     std::to_string(spec.latent + spec.rope),
                 ""};
}

template <DecodeForm form>
static Needed refusesSplit(Operation *op, const LoweringSite &site) {
  if (Needed lacks = refusesAny(op, site))
    return lacks;
  AttentionSpec spec = attentionSpec(cast<LatentAttentionOp>(op), site);
  if (Needed lacks = refusesTiles(spec))
    return lacks;
  std::string heads = std::to_string(spec.heads);
  if (form == DecodeForm::Wide) {
    if (spec.heads <= 16 || spec.heads > 24)
      return Refusal{Need::Heads, "needs 17 to 24 heads, found " + heads, ""};
    // Three fragments of heads leave just enough registers for 16-bit rows.
    if (spec.cache == Format::FP8E4M3)
      return Refusal{Need::CacheFormat,
                     "needs a latent cache in bf16 or f16, found fp8_e4m3",
                     "--kv-cache-dtype bf16"};
  }
  if ((form == DecodeForm::Teams || form == DecodeForm::Deep) &&
      spec.heads <= 16)
    return Refusal{Need::Heads,
                   "needs more than 16 heads for its second team, found " +
                       heads,
                   ""};
  return needsSharedMemory(decodeShape(spec, form, *site.gpu).sharedBytes(),
                           *site.gpu);
}

static Needed refusesPrefill(Operation *op, const LoweringSite &site) {
  if (Needed lacks = refusesAny(op, site))
    return lacks;
  AttentionSpec spec = attentionSpec(cast<LatentAttentionOp>(op), site);
  if (!canPrefill(spec))
    return Refusal{Need::Shape,
                   "needs latents and rows of a multiple of 64 values, at most "
                   "512 and 576, found " +
                       std::to_string(spec.latent) + " and " +
                       std::to_string(spec.latent + spec.rope),
                   ""};
  if (!site.program.prompts)
    return Refusal{Need::StepSize,
                   "needs a program of prompts, found " + site.program.name, ""};
  return std::nullopt;
}

static Needed refusesSimple(Operation *op, const LoweringSite &site) {
  return refusesAny(op, site);
}

//===----------------------------------------------------------------------===//
// Costs
//===----------------------------------------------------------------------===//

/// The step as the rank's cache has it: of a cache that is spread over the ranks
/// each has an equal part of the context.
static cost::Step ofRank(const AttentionSpec &spec, cost::Step step) {
  step.context = (step.context + spec.ranks - 1) / spec.ranks;
  return step;
}

static cost::Attention costShape(const AttentionSpec &spec) {
  return {spec.heads, spec.latent, spec.rope, spec.cache};
}

template <DecodeForm form>
static cost::Estimate costSplit(Operation *op, const LoweringSite &site,
                                const cost::Step &step) {
  AttentionSpec spec = attentionSpec(cast<LatentAttentionOp>(op), site);
  cost::Attention shape = costShape(spec);
  shape.blockHeads = decodeShape(spec, form, *site.gpu).blockHeads();
  return site.model.attentionDecode(shape, ofRank(spec, step));
}

static cost::Estimate costPrefill(Operation *op, const LoweringSite &site,
                                  const cost::Step &step) {
  AttentionSpec spec = attentionSpec(cast<LatentAttentionOp>(op), site);
  return site.model.attentionPrefill(costShape(spec), ofRank(spec, step));
}

/// Element by element, each head for itself: bound by instructions, of which it has
/// about 8 for each value of a row.
static cost::Estimate costSimple(Operation *op, const LoweringSite &site,
                                 const cost::Step &given) {
  AttentionSpec spec = attentionSpec(cast<LatentAttentionOp>(op), site);
  cost::Step step = ofRank(spec, given);
  const Machine &m = site.machine();
  double values = double(spec.latent + spec.rope + spec.latent) *
                  double(step.context) * double(spec.heads) *
                  double(step.tokens);
  cost::Estimate e = site.model.attentionDecode(costShape(spec), step);
  double lanes = 128 * double(m.multiprocessors) * std::max(m.clockHz, 1e9);
  e.seconds = std::max(e.seconds, 5e-6 + 8 * values / lanes);
  e.bound = cost::Bound::Decode;
  e.launches = 1;
  return e;
}

ArrayRef<Lowering> nvvm::attentionLowerings() {
  using enum DecodeForm;
  static constexpr StringLiteral op = "mla.latent_attention";
  static const Lowering list[] = {
      {"split_kv", op, refusesSplit<Narrow>, costSplit<Narrow>},
      {"split_kv_wide", op, refusesSplit<Wide>, costSplit<Wide>},
      {"split_kv_teams", op, refusesSplit<Teams>, costSplit<Teams>},
      {"split_kv_deep", op, refusesSplit<Deep>, costSplit<Deep>},
      {"prefill", op, refusesPrefill, costPrefill},
      {"simple", op, refusesSimple, costSimple},
  };
  return list;
}
