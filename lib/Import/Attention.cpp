//===- Attention.cpp - latent attention as Hugging Face writes it ---------===//
//
// Part of mla. Queries and keys go through low-rank projections; keys and
// values are expanded before they are cached. Fusing turns this into attention
// over the latent cache. Sparse models choose positions with an indexer first.
//
//===----------------------------------------------------------------------===//
#include "GraphBuilder.h"
#include <cassert>
#include <cmath>

using namespace mlir;
using namespace mla;

/// The norms between the two halves of a low-rank projection are built without
/// the config's eps.
static constexpr double latentNormEps = 1e-6;
/// Likewise the indexer's key norm.
static constexpr double indexerNormEps = 1e-6;

Value GraphBuilder::attention(int64_t layer, Value x) {
  std::string path = "layers." + std::to_string(layer) + ".self_attn";
  int64_t queryWidth = config.heads * config.qkHeadDim();

  Value queryLatent, q;
  if (config.qLoraRank) {
    Value down = linear(path + ".q_a_proj", x, *config.qLoraRank);
    queryLatent = rmsNorm(path + ".q_a_layernorm", down, latentNormEps);
    q = linear(path + ".q_b_proj", queryLatent, queryWidth);
  } else {
    q = linear(path + ".q_proj", x, queryWidth);
  }
  q = rope(path + ".q_rope", q, config.qkHeadDim(), config.qkNopeHeadDim,
           config.rope.interleaved);

  Value cache = expandedCache(path, x);
  Value positions = selection(layer, path, x, queryLatent);
  Value o = AttentionOp::create(
      builder, at(path), rows(config.heads * config.vHeadDim), q, cache, batch,
      positions, builder.getI64IntegerAttr(config.heads),
      builder.getI64IntegerAttr(config.qkNopeHeadDim),
      builder.getI64IntegerAttr(config.qkRopeHeadDim),
      builder.getI64IntegerAttr(config.vHeadDim),
      builder.getF64FloatAttr(config.softmaxScale()));
  return linear(path + ".o_proj", o, config.hiddenSize);
}

Value GraphBuilder::expandedCache(const std::string &path, Value x) {
  Value joined = linear(path + ".kv_a_proj_with_mqa", x, config.latentWidth());
  auto split = SplitOp::create(
      builder, at(path + ".kv_a_proj_with_mqa"),
      TypeRange{rows(config.kvLoraRank), rows(config.qkRopeHeadDim)}, joined);
  Value latent =
      rmsNorm(path + ".kv_a_layernorm", split.getResult(0), latentNormEps);
  Value keysValues =
      linear(path + ".kv_b_proj", latent,
             config.heads * (config.qkNopeHeadDim + config.vHeadDim));
  // One rotated key part serves all heads.
  Value rotated = rope(path + ".k_rope", split.getResult(1),
                       config.qkRopeHeadDim, 0, config.rope.interleaved);
  return writeCache(path + ".kv", CacheKind::Expanded, {keysValues, rotated});
}

Value GraphBuilder::selection(int64_t layer, const std::string &path, Value x,
                              Value queryLatent) {
  if (!config.indexer)
    return {};
  // ModelConfig refuses an indexer whose queries have no latent to come from,
  // and a first layer without one.
  assert(queryLatent && (selected || config.indexer->full[layer]));
  const IndexerConfig &indexer = *config.indexer;
  // A layer without an indexer of its own looks where the last one looked.
  if (!indexer.full[layer])
    return selected;

  std::string name = path + ".indexer";
  bool interleaved = config.rope.indexerInterleaved;
  // Unlike in the attention itself, the rotated part comes first in a head.
  Value q =
      linear(name + ".wq_b", queryLatent, indexer.heads * indexer.headDim);
  q = rope(name + ".q_rope", q, indexer.headDim, 0, interleaved);

  Value k = linear(name + ".wk", x, indexer.headDim);
  Value normWeight = vector(name + ".k_norm", indexer.headDim);
  Value normBias = vector(name + ".k_norm", indexer.headDim, ".bias");
  k = LayerNormOp::create(builder, at(name + ".k_norm"), k.getType(), k,
                          normWeight, normBias,
                          builder.getF64FloatAttr(indexerNormEps));
  k = rope(name + ".k_rope", k, indexer.headDim, 0, interleaved);
  Value cache = writeCache(name + ".k", CacheKind::Index, {k});

  Value headWeights =
      linear(name + ".weights_proj", x, indexer.heads, WeightRole::Exempt);
  double scale = 1.0 / std::sqrt(double(indexer.headDim) * indexer.heads);
  auto type = RankedTensorType::get({ShapedType::kDynamic, indexer.topk},
                                    builder.getI32Type());
  selected = IndexerOp::create(builder, at(name), type, q, headWeights, cache,
                               batch, builder.getI64IntegerAttr(indexer.heads),
                               builder.getI64IntegerAttr(indexer.topk),
                               builder.getF64FloatAttr(scale));
  return selected;
}
