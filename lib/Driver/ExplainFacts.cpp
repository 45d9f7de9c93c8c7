//===- ExplainFacts.cpp - what a model's shape says -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Explain.h"
#include <algorithm>

using namespace mla;
using namespace mla::explain;

/// What the config says of weights, in a word.
static std::string weightsText(const ModelConfig &config) {
  const QuantizationConfig &quantization = config.quantization;
  switch (quantization.method) {
  case QuantizationConfig::Method::None:
    return std::string(formatName(config.dtype));
  case QuantizationConfig::Method::Fp8Block:
    return "fp8_block";
  case QuantizationConfig::Method::Nvfp4:
    return "nvfp4";
  case QuantizationConfig::Method::Int4Group:
    return "int4_g32";
  case QuantizationConfig::Method::Mixed:
    return "mixed";
  }
  return "";
}

Facts mla::explain::factsOf(const ModelConfig &config) {
  Facts facts;
  facts.file = config.file.filename().string();
  // Every folder's is called config.json; the folder's name says more.
  if (facts.file == "config.json" && config.file.has_parent_path())
    facts.file = config.file.parent_path().filename().string();
  facts.architecture = config.architectureName;
  facts.weights = weightsText(config);
  facts.layers = config.layers;
  facts.moeLayers =
      std::count(config.moeLayer.begin(), config.moeLayer.end(), true);
  facts.denseLayers = config.layers - facts.moeLayers;
  facts.predictionLayers = config.nextnLayers;
  facts.hidden = config.hiddenSize;
  facts.vocabulary = config.vocabSize;
  facts.positions = config.maxPositions;
  facts.heads = config.heads;
  facts.latent = config.kvLoraRank;
  facts.rope = config.qkRopeHeadDim;
  facts.nope = config.qkNopeHeadDim;
  facts.value = config.vHeadDim;
  facts.queryRank = config.qLoraRank;
  facts.denseWidth = config.intermediateSize;
  if (facts.moeLayers) {
    facts.experts = config.moe.experts;
    facts.topk = config.moe.topk;
    facts.sharedExperts = config.moe.sharedExperts;
    facts.expertWidth = config.moe.intermediateSize;
    facts.groups = config.moe.groups;
    facts.topkGroups = config.moe.topkGroups;
  }
  if (config.indexer)
    facts.indexer = Facts::Indexer{
        config.indexer->heads, config.indexer->headDim, config.indexer->topk,
        std::count(config.indexer->full.begin(), config.indexer->full.end(),
                   true)};
  return facts;
}

int64_t Facts::cacheBytes(Format format) const {
  return layers * (latent + rope) *
         static_cast<int64_t>(elementBytes(format).value_or(0));
}

int64_t Facts::indexBytes() const {
  constexpr int64_t scale = 4; // one f32 a token
  return indexer ? indexer->fullLayers * (indexer->headDim + scale) : 0;
}
