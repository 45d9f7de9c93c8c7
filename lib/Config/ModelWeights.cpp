//===- ModelWeights.cpp - every weight that a model needs -----------------===//
//
// Part of mla. Names as Hugging Face has them, shapes [outputs, inputs]. The
// front end builds its graph from the same keys of the config and asks for the
// same weights, which test/Import checks on every architecture.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/StoredWeight.h"

namespace mla {
namespace {

class WeightList {
public:
  explicit WeightList(const ModelConfig &config) : config(config) {}
  std::vector<ModelWeight> list;

  void vector(std::string module, int64_t size,
              std::string suffix = ".weight") {
    list.push_back(
        {std::move(module), std::move(suffix), {size}, WeightRole::Plain});
  }
  void matrix(std::string module, int64_t outputs, int64_t inputs,
              WeightRole role = WeightRole::Linear) {
    list.push_back({std::move(module), ".weight", {outputs, inputs}, role});
  }

  void attention(int64_t layer, const std::string &path) {
    int64_t queryWidth = config.heads * config.qkHeadDim();
    if (config.qLoraRank) {
      matrix(path + ".q_a_proj", *config.qLoraRank, config.hiddenSize);
      vector(path + ".q_a_layernorm", *config.qLoraRank);
      matrix(path + ".q_b_proj", queryWidth, *config.qLoraRank);
    } else {
      matrix(path + ".q_proj", queryWidth, config.hiddenSize);
    }
    matrix(path + ".kv_a_proj_with_mqa", config.latentWidth(),
           config.hiddenSize);
    vector(path + ".kv_a_layernorm", config.kvLoraRank);
    matrix(path + ".kv_b_proj",
           config.heads * (config.qkNopeHeadDim + config.vHeadDim),
           config.kvLoraRank);
    // A layer that shares an earlier layer's indices has no indexer.
    if (config.indexer && config.indexer->full[static_cast<size_t>(layer)])
      indexer(path + ".indexer");
    matrix(path + ".o_proj", config.hiddenSize, config.heads * config.vHeadDim);
  }

  void indexer(const std::string &path) {
    const IndexerConfig &indexer = *config.indexer;
    // ModelConfig refuses an indexer without a compressed query to read.
    matrix(path + ".wq_b", indexer.heads * indexer.headDim,
           config.qLoraRank.value_or(0));
    matrix(path + ".wk", indexer.headDim, config.hiddenSize);
    vector(path + ".k_norm", indexer.headDim);
    vector(path + ".k_norm", indexer.headDim, ".bias");
    matrix(path + ".weights_proj", indexer.heads, config.hiddenSize,
           WeightRole::Exempt);
  }

  void mlp(const std::string &path, int64_t width) {
    matrix(path + ".gate_proj", width, config.hiddenSize);
    matrix(path + ".up_proj", width, config.hiddenSize);
    matrix(path + ".down_proj", config.hiddenSize, width);
  }

  void feedForward(int64_t layer, const std::string &path) {
    if (!config.moeLayer[static_cast<size_t>(layer)])
      return mlp(path, config.intermediateSize);
    const MoeConfig &moe = config.moe;
    matrix(path + ".gate", moe.experts, config.hiddenSize, WeightRole::Exempt);
    if (moe.method == TopkMethod::NoAuxTc)
      vector(path + ".gate", moe.experts, ".e_score_correction_bias");
    auto stack = [&](const char *leaf, int64_t outputs, int64_t inputs) {
      for (int64_t e = 0; e < moe.experts; ++e)
        matrix(path + ".experts." + std::to_string(e) + leaf, outputs, inputs);
    };
    stack(".gate_proj", moe.intermediateSize, config.hiddenSize);
    stack(".up_proj", moe.intermediateSize, config.hiddenSize);
    stack(".down_proj", config.hiddenSize, moe.intermediateSize);
    // The shared experts of a model are stored as one wider MLP.
    if (moe.sharedExperts)
      mlp(path + ".shared_experts", moe.intermediateSize * moe.sharedExperts);
  }

private:
  const ModelConfig &config;
};
} // namespace

std::vector<ModelWeight> modelWeights(const ModelConfig &config) {
  WeightList out(config);
  out.matrix("model.embed_tokens", config.vocabSize, config.hiddenSize,
             WeightRole::Plain);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    std::string path = "model.layers." + std::to_string(layer);
    out.vector(path + ".input_layernorm", config.hiddenSize);
    out.attention(layer, path + ".self_attn");
    out.vector(path + ".post_attention_layernorm", config.hiddenSize);
    out.feedForward(layer, path + ".mlp");
  }
  out.vector("model.norm", config.hiddenSize);
  if (!config.tieWordEmbeddings)
    out.matrix("lm_head", config.vocabSize, config.hiddenSize,
               WeightRole::Exempt);
  return std::move(out.list);
}

} // namespace mla
