//===- Host.cpp - what the host can lower ---------------------------------===//
//
// Part of mla. The host computes in f32 and is the reference for every other
// target, so it lowers every op. Matrices may be in any storage format; norms,
// biases and the embedding are in one whose elements stand alone.
//
//===----------------------------------------------------------------------===//
#include "Targets.h"
#include "mla/Dialect/MLA.h"

using namespace mlir;
using namespace mla;

using Needed = std::optional<Refusal>;

/// Latent caches in any format, others in f32.
static Needed needsCacheFormats(Operation *op, const LoweringSite &) {
  for (Type type : op->getOperandTypes())
    if (auto cache = dyn_cast<CacheType>(type))
      if (cache.getFormat() != Format::F32 &&
          cache.getKind() != CacheKind::Latent)
        return Refusal{Need::CacheFormat,
                       "needs caches that are not latent in f32, found " +
                           std::string(formatName(cache.getFormat())),
                       ""};
  return std::nullopt;
}

static Needed needsPlainWeightsAndCaches(Operation *op,
                                         const LoweringSite &site) {
  if (Needed wrong = needsPlainWeights(op, site))
    return wrong;
  return needsCacheFormats(op, site);
}

/// The vector operands are of rank 1, whose type admits only plain formats, and
/// the latent caches may be in any.
static constexpr auto nothing = needsNothing;

/// Experts that a token is sent to.
static double topk(Operation *op) {
  if (auto moe = dyn_cast<MoEOp>(op))
    return double(moe.getRouting().getTopk());
  if (auto experts = dyn_cast<ExpertsOp>(op))
    return double(cast<RankedTensorType>(experts.getIndices().getType()).getDimSize(1));
  return 1;
}

/// Reading the weights once, of stacks those that tokens choose, and the caches
/// once a sequence. Bound by memory or by arithmetic in f32.
static cost::Estimate reading(Operation *op, const LoweringSite &site,
                              const cost::Step &step) {
  cost::Estimate e;
  double rows = 0; // times columns
  double context = double(step.context);
  if (auto attention = dyn_cast<LatentAttentionOp>(op))
    if (auto some = attention.getBatch().getDefiningOp<ShardBatchOp>())
      context /= double(some.getRanks());
  for (Type type : op->getOperandTypes()) {
    if (auto weight = dyn_cast<WeightType>(type)) {
      if (weight.getRank() < 2)
        continue;
      unsigned rank = weight.getRank();
      int64_t m = weight.getDim(rank - 2), n = weight.getDim(rank - 1);
      double bytes = 0, matrices = 1;
      for (const StoragePart &part : storageParts(weight.getFormat(), m, n))
        bytes += double(part.bytes());
      double products = 1; ///< a token
      if (rank == 3) {
        products = topk(op);
        matrices = std::min(double(weight.getDim(0)),
                            products * double(step.tokens));
      }
      rows += products * double(m) * double(n);
      e.weightBytes += matrices * bytes;
    } else if (auto cache = dyn_cast<CacheType>(type)) {
      double elements = double(cache.getWidth()) * context;
      e.cacheBytes += elements * double(step.sequences) *
                      double(elementBytes(cache.getFormat()).value_or(1));
      rows += elements;
    }
  }
  e.flops = 2 * rows * double(step.tokens);
  e.launches = 1;
  e.floorSeconds = (e.weightBytes + e.cacheBytes) /
                   std::max(site.machine().readBytesPerSecond, 1.0);
  e.seconds = e.floorSeconds + site.machine().launchGapSeconds;
  e.bound = cost::Bound::Memory;
  return e;
}

const Target &mla::hostTarget() {
  static const Lowering lowerings[] = {
      {"embedding", "mla.embedding", needsPlainWeightsAndCaches, reading},
      {"rms_norm", "mla.rms_norm", needsPlainWeightsAndCaches, reading},
      {"layer_norm", "mla.layer_norm", needsPlainWeightsAndCaches, reading},
      {"linear", "mla.linear", nothing, reading},
      {"joined_linear", "mla.joined_linear", nothing, reading},
      {"gated_linear", "mla.gated_linear", nothing, reading},
      {"swiglu", "mla.swiglu", nothing, reading},
      {"add", "mla.add", nothing, reading},
      {"split", "mla.split", nothing, reading},
      {"lm_head", "mla.lm_head", nothing, reading},
      {"rotary_embedding", "mla.rotary_embedding", nothing, reading},
      {"rope", "mla.rope", nothing, reading},
      {"cache_write", "mla.cache_write", needsCacheFormats, reading},
      {"latent_cache_write", "mla.latent_cache_write", needsPlainWeightsAndCaches, reading},
      {"attention", "mla.attention", needsCacheFormats, reading},
      {"absorb_query", "mla.absorb_query", nothing, reading},
      {"latent_attention", "mla.latent_attention", nothing, reading},
      {"expand_value", "mla.expand_value", nothing, reading},
      {"shard_batch", "mla.shard_batch", nothing, reading},
      {"merge_attention", "mla.merge_attention", nothing, reading},
      {"indexer", "mla.indexer", needsCacheFormats, reading},
      {"route", "mla.route", needsPlainWeightsAndCaches, reading},
      {"experts", "mla.experts", nothing, reading},
      {"moe", "mla.moe", nothing, reading},
      {"all_reduce", "mla.all_reduce", nothing, reading},
      {"all_reduce_rms_norm", "mla.all_reduce_rms_norm", needsPlainWeights, reading},
      {"all_gather", "mla.all_gather", nothing, reading},
  };
  static const Target host{"host", lowerings};
  return host;
}
