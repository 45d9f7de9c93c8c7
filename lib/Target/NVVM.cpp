//===- NVVM.cpp - what GPU targets can lower ------------------------------===//
//
// Part of mla. One table for sm_120a and sm_90a: kernels are restricted to what
// SM120 has. The plain graph and the indexer's choice of positions have no GPU
// lowering; where the indexer chooses everything, mla-fold-indexer has removed it.
//
//===----------------------------------------------------------------------===//
#include "Targets.h"
#include "mla/Dialect/MLA.h"
#include "mla/Target/Gpu.h"

using namespace mlir;
using namespace mla;

static std::string formatText(Format format) {
  return std::string(formatName(format));
}

static Refusal any(Operation *) { return std::nullopt; }

/// Latent caches in 16 or 8 bits.
static Refusal needsCacheFormat(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto cache = dyn_cast<CacheType>(type))
      if (cache.getFormat() != Format::BF16 &&
          cache.getFormat() != Format::F16 &&
          cache.getFormat() != Format::FP8E4M3)
        return "needs a latent cache in bf16, f16 or fp8_e4m3, found " +
               formatText(cache.getFormat()) +
               " (choose one with --kv-cache-dtype)";
  return std::nullopt;
}

static Refusal refusesCacheWrite(Operation *op) {
  if (Refusal wrong = needsCacheFormat(op))
    return wrong;
  return needsPlainWeights(op);
}

static Refusal refusesAttention(Operation *op) {
  if (Refusal wrong = needsCacheFormat(op))
    return wrong;
  if (cast<LatentAttentionOp>(op).getSelected())
    return std::string("needs attention to all positions, found a selection by "
                       "an indexer (sparse attention has no GPU kernel yet: "
                       "limit the context to index_topk tokens with "
                       "--max-context)");
  return std::nullopt;
}

/// Expert stacks of tensor-core formats.
static Refusal needsPackedStacks(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto weight = dyn_cast<WeightType>(type))
      if (weight.getRank() == 3 && (weight.getFormat() == Format::F32 ||
                                    weight.getFormat() == Format::F16))
        return "needs experts in bf16, fp8_block, nvfp4 or int4_g32, found " +
               formatText(weight.getFormat());
  return std::nullopt;
}

ArrayRef<Lowering> mla::gpuLowerings() {
  static const Lowering lowerings[] = {
      {"embedding", "mla.embedding", needsPlainWeights},
      {"rms_norm", "mla.rms_norm", needsPlainWeights},
      {"linear", "mla.linear", any},
      {"joined_linear", "mla.joined_linear", any},
      {"gated_linear", "mla.gated_linear", any},
      {"swiglu", "mla.swiglu", any},
      {"add", "mla.add", any},
      {"split", "mla.split", any},
      {"lm_head", "mla.lm_head", any},
      {"rotary_embedding", "mla.rotary_embedding", any},
      {"rope", "mla.rope", any},
      {"latent_cache_write", "mla.latent_cache_write", refusesCacheWrite},
      {"absorb_query", "mla.absorb_query", any},
      {"latent_attention", "mla.latent_attention", refusesAttention},
      {"expand_value", "mla.expand_value", any},
      {"route", "mla.route", needsPlainWeights},
      {"experts", "mla.experts", needsPackedStacks},
      {"moe", "mla.moe", needsPackedStacks},
      {"all_reduce_local", "mla.all_reduce", needsLocalCollective},
      {"all_gather_local", "mla.all_gather", needsLocalCollective},
  };
  return lowerings;
}
