//===- Host.cpp - what the host can lower ---------------------------------===//
//
// Part of mla. The host computes in f32 and is the reference for every other
// target, so it lowers every op; it reads the element types that a CPU
// converts directly, and keeps caches in f32.
//
//===----------------------------------------------------------------------===//
#include "Targets.h"
#include "mla/Dialect/MLA.h"

using namespace mlir;
using namespace mla;

static std::string formatText(Format format) {
  return std::string(formatName(format));
}

/// Weights in f32, bf16 or f16; caches in f32.
static Refusal needsPlainFormats(Operation *op) {
  for (Type type : op->getOperandTypes()) {
    if (auto weight = dyn_cast<WeightType>(type)) {
      Format format = weight.getFormat();
      if (format != Format::F32 && format != Format::BF16 &&
          format != Format::F16)
        return "needs weights in f32, bf16 or f16, found " + formatText(format);
    }
    if (auto cache = dyn_cast<CacheType>(type))
      if (cache.getFormat() != Format::F32)
        return "needs caches in f32, found " + formatText(cache.getFormat());
  }
  return std::nullopt;
}

const Target &mla::hostTarget() {
  static const Lowering lowerings[] = {
      {"embedding", "mla.embedding", needsPlainFormats},
      {"rms_norm", "mla.rms_norm", needsPlainFormats},
      {"layer_norm", "mla.layer_norm", needsPlainFormats},
      {"linear", "mla.linear", needsPlainFormats},
      {"joined_linear", "mla.joined_linear", needsPlainFormats},
      {"gated_linear", "mla.gated_linear", needsPlainFormats},
      {"swiglu", "mla.swiglu", needsPlainFormats},
      {"add", "mla.add", needsPlainFormats},
      {"split", "mla.split", needsPlainFormats},
      {"lm_head", "mla.lm_head", needsPlainFormats},
      {"rotary_embedding", "mla.rotary_embedding", needsPlainFormats},
      {"rope", "mla.rope", needsPlainFormats},
      {"cache_write", "mla.cache_write", needsPlainFormats},
      {"latent_cache_write", "mla.latent_cache_write", needsPlainFormats},
      {"attention", "mla.attention", needsPlainFormats},
      {"absorb_query", "mla.absorb_query", needsPlainFormats},
      {"latent_attention", "mla.latent_attention", needsPlainFormats},
      {"expand_value", "mla.expand_value", needsPlainFormats},
      {"indexer", "mla.indexer", needsPlainFormats},
      {"route", "mla.route", needsPlainFormats},
      {"experts", "mla.experts", needsPlainFormats},
      {"moe", "mla.moe", needsPlainFormats},
  };
  static const Target host{"host", lowerings};
  return host;
}
