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

static std::string formatText(Format format) {
  return std::string(formatName(format));
}

static bool standsAlone(Format format) {
  return elementBytes(format).has_value();
}

/// Latent caches in any format, others in f32.
static Refusal needsCacheFormats(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto cache = dyn_cast<CacheType>(type))
      if (cache.getFormat() != Format::F32 &&
          cache.getKind() != CacheKind::Latent)
        return "needs caches that are not latent in f32, found " +
               formatText(cache.getFormat());
  return std::nullopt;
}

/// Weights in f32, bf16 or f16: elements that stand alone.
static Refusal needsPlainWeights(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto weight = dyn_cast<WeightType>(type))
      if (!standsAlone(weight.getFormat()))
        return "needs weights in f32, bf16 or f16, found " +
               formatText(weight.getFormat());
  return needsCacheFormats(op);
}

/// The vector operands are of rank 1, whose type admits only plain formats, and
/// the latent caches may be in any.
static Refusal any(Operation *) { return std::nullopt; }

/// Ranks on the host do not exchange rows.
template <typename Op> static Refusal needsLocal(Operation *op) {
  auto collective = cast<Op>(op);
  if (collective.getLocal())
    return std::nullopt;
  return "needs local collectives, found an exchange among " +
         std::to_string(collective.getRanks()) + " ranks";
}

const Target &mla::hostTarget() {
  static const Lowering lowerings[] = {
      {"embedding", "mla.embedding", needsPlainWeights},
      {"rms_norm", "mla.rms_norm", needsPlainWeights},
      {"layer_norm", "mla.layer_norm", needsPlainWeights},
      {"linear", "mla.linear", any},
      {"joined_linear", "mla.joined_linear", any},
      {"gated_linear", "mla.gated_linear", any},
      {"swiglu", "mla.swiglu", any},
      {"add", "mla.add", any},
      {"split", "mla.split", any},
      {"lm_head", "mla.lm_head", any},
      {"rotary_embedding", "mla.rotary_embedding", any},
      {"rope", "mla.rope", any},
      {"cache_write", "mla.cache_write", needsCacheFormats},
      {"latent_cache_write", "mla.latent_cache_write", needsPlainWeights},
      {"attention", "mla.attention", needsCacheFormats},
      {"absorb_query", "mla.absorb_query", any},
      {"latent_attention", "mla.latent_attention", any},
      {"expand_value", "mla.expand_value", any},
      {"indexer", "mla.indexer", needsCacheFormats},
      {"route", "mla.route", needsPlainWeights},
      {"experts", "mla.experts", any},
      {"moe", "mla.moe", any},
      {"all_reduce_local", "mla.all_reduce", needsLocal<AllReduceOp>},
      {"all_gather_local", "mla.all_gather", needsLocal<AllGatherOp>},
  };
  static const Target host{"host", lowerings};
  return host;
}
