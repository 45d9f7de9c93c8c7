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

static Refusal needsPlainWeightsAndCaches(Operation *op) {
  if (Refusal wrong = needsPlainWeights(op))
    return wrong;
  return needsCacheFormats(op);
}

/// The vector operands are of rank 1, whose type admits only plain formats, and
/// the latent caches may be in any.
static Refusal any(Operation *) { return std::nullopt; }

const Target &mla::hostTarget() {
  static const Lowering lowerings[] = {
      {"embedding", "mla.embedding", needsPlainWeightsAndCaches},
      {"rms_norm", "mla.rms_norm", needsPlainWeightsAndCaches},
      {"layer_norm", "mla.layer_norm", needsPlainWeightsAndCaches},
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
      {"latent_cache_write", "mla.latent_cache_write", needsPlainWeightsAndCaches},
      {"attention", "mla.attention", needsCacheFormats},
      {"absorb_query", "mla.absorb_query", any},
      {"latent_attention", "mla.latent_attention", any},
      {"expand_value", "mla.expand_value", any},
      {"indexer", "mla.indexer", needsCacheFormats},
      {"route", "mla.route", needsPlainWeightsAndCaches},
      {"experts", "mla.experts", any},
      {"moe", "mla.moe", any},
      {"all_reduce_local", "mla.all_reduce", needsLocalCollective},
      {"all_gather_local", "mla.all_gather", needsLocalCollective},
  };
  static const Target host{"host", lowerings};
  return host;
}
