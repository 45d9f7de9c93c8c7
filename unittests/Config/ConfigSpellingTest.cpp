//===- ConfigSpellingTest.cpp - the same model, written differently -------===//
//
// Part of mla. What operators met in real files and what is right there.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

ModelConfig good(const json &config,
                 const std::vector<std::pair<std::string, json>> &more = {}) {
  Result<ModelConfig> result = readConfig(config, more);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *result : ModelConfig();
}

json yarn(const char *typeKey) {
  return {{typeKey, "yarn"},
          {"factor", 4},
          {"original_max_position_embeddings", 128},
          {"mscale", 1.0},
          {"mscale_all_dim", 1.0}};
}

TEST(ConfigSpelling, NoScalingInEveryWayToSayIt) {
  for (json scaling :
       {json(nullptr), json::object(), json{{"type", "none"}},
        json{{"type", "default"}}, json{{"rope_type", "default"}},
        json{{"rope_type", nullptr}, {"factor", 40}}}) {
    json config = smallConfig();
    config["rope_scaling"] = scaling;
    EXPECT_FALSE(good(config).rope.yarn) << scaling;
    config.erase("rope_scaling");
    config.erase("rope_theta");
    if (scaling.is_null())
      scaling = json::object();
    scaling["rope_theta"] = 50000.0;
    config["rope_parameters"] = scaling;
    EXPECT_FALSE(good(config).rope.yarn) << scaling;
    EXPECT_EQ(good(config).rope.theta, 50000.0) << scaling;
  }
}

TEST(ConfigSpelling, YarnUnderBothNamesAndInBothPlaces) {
  for (const char *typeKey : {"type", "rope_type"})
    for (const char *key : {"rope_scaling", "rope_parameters"})
      for (bool inside : {false, true}) {
        json config = smallConfig();
        config.erase("rope_scaling");
        config.erase("rope_theta");
        config[key] = yarn(typeKey);
        (inside ? config[key] : config)["rope_theta"] = 20000;
        ModelConfig got = good(config);
        ASSERT_TRUE(got.rope.yarn) << config;
        EXPECT_EQ(got.rope.theta, 20000);
        EXPECT_EQ(got.rope.yarn->factor, 4);
        EXPECT_EQ(got.rope.yarn->originalMaxPositions, 128);
        EXPECT_EQ(got.rope.yarn->betaFast, 32); // absent: YaRN's own
        EXPECT_EQ(got.rope.yarn->betaSlow, 1);
      }
}

TEST(ConfigSpelling, RepeatedRopeThatAgrees) {
  json config = smallConfig();
  config["rope_scaling"] = config["rope_parameters"] = yarn("rope_type");
  config["rope_parameters"]["rope_theta"] = 10000.0;
  config["rope_parameters"]["type"] = "yarn";
  EXPECT_TRUE(good(config).rope.yarn);
}

TEST(ConfigSpelling, MscaleDefaults) {
  json config = smallConfig();
  config["rope_scaling"] = {{"type", "yarn"},
                            {"factor", 4},
                            {"original_max_position_embeddings", 128}};
  RopeConfig rope = good(config).rope;
  EXPECT_EQ(rope.yarn->mscale, 1.0);
  EXPECT_EQ(rope.yarn->mscaleAllDim, 0.0);
  EXPECT_EQ(rope.softmaxFactor(), 1.0);
}

TEST(ConfigSpelling, InterleavingDependsOnTheArchitecture) {
  json config = smallSparseConfig();
  EXPECT_TRUE(good(config).rope.indexerInterleaved);
  config["indexer_rope_interleave"] = false;
  EXPECT_FALSE(good(config).rope.indexerInterleaved);
  config.erase("indexer_rope_interleave");
  config["architectures"] = {"DeepseekV32ForCausalLM"};
  config["model_type"] = "deepseek_v32";
  EXPECT_FALSE(good(config).rope.indexerInterleaved);
  EXPECT_TRUE(good(config).rope.interleaved);
  config["rope_interleave"] = false;
  EXPECT_FALSE(good(config).rope.interleaved);
}

TEST(ConfigSpelling, NestedTextModel) {
  json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  for (int place = 0; place < 3; ++place) { // inside, outside, both
    json outer = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                  {"model_type", "kimi_k25"},
                  {"bos_token_id", 7},
                  {"dtype", "float16"},
                  {"text_config", smallConfig()}};
    outer["text_config"].erase("bos_token_id");
    outer["text_config"].erase("torch_dtype");
    if (place != 1)
      outer["text_config"]["quantization_config"] = fp8;
    if (place != 0)
      outer["quantization_config"] = fp8;
    ModelConfig got = good(outer);
    EXPECT_EQ(got.architecture, Architecture::DeepseekV3);
    EXPECT_EQ(got.outerArchitecture, "KimiK25ForConditionalGeneration");
    EXPECT_EQ(got.hiddenSize, 64);
    EXPECT_EQ(got.bosToken, 7);
    EXPECT_EQ(got.dtype, Format::F16);
    EXPECT_EQ(got.quantization.method, QuantizationConfig::Method::Fp8Block);
  }
}

TEST(ConfigSpelling, TypeAloneTellsTheArchitecture) {
  json config = smallConfig();
  config["architectures"] = nullptr;
  config["model_type"] = "kimi_k2";
  EXPECT_EQ(good(config).architecture, Architecture::DeepseekV3);
  EXPECT_EQ(good(config).architectureName, "DeepseekV3ForCausalLM");
  config = smallConfig();
  config.erase("model_type"); // or the name alone
  EXPECT_EQ(good(config).architecture, Architecture::DeepseekV3);
}

TEST(ConfigSpelling, AbsentKeysWithDefaults) {
  json config = smallConfig();
  for (const char *key :
       {"hidden_act", "num_key_value_heads", "scoring_func", "topk_method",
        "bos_token_id", "torch_dtype", "rope_scaling"})
    config.erase(key);
  ModelConfig got = good(config);
  EXPECT_EQ(got.moe.scoring, Scoring::Sigmoid);
  EXPECT_EQ(got.moe.method, TopkMethod::NoAuxTc);
  EXPECT_EQ(got.bosToken, std::nullopt);
  EXPECT_EQ(got.dtype, Format::BF16);
  EXPECT_EQ(got.nextnLayers, 0);
  EXPECT_FALSE(got.tieWordEmbeddings);
}

TEST(ConfigSpelling, DeepseekV2Routers) {
  json config = smallConfig();
  config["architectures"] = {"DeepseekV2ForCausalLM"};
  config["model_type"] = "deepseek_v2";
  config["scoring_func"] = "softmax";
  config["norm_topk_prob"] = false;
  config["topk_method"] = "group_limited_greedy";
  ModelConfig got = good(config);
  EXPECT_EQ(got.moe.method, TopkMethod::GroupLimitedGreedy);
  EXPECT_EQ(got.moe.groups, 4);
  EXPECT_EQ(got.moe.topkGroups, 2);
  config["topk_method"] = "greedy";
  config["n_group"] = config["topk_group"] = nullptr;
  got = good(config);
  EXPECT_EQ(got.moe.method, TopkMethod::Greedy);
  EXPECT_EQ(got.moe.groups, 1);
  EXPECT_EQ(got.moe.scoring, Scoring::Softmax);
}

TEST(ConfigSpelling, ExpertCountUnderItsOtherNames) {
  json config = smallConfig();
  config["num_experts"] = 8;
  EXPECT_EQ(good(config).moe.experts, 8);
  config.erase("n_routed_experts");
  EXPECT_EQ(good(config).moe.experts, 8);
}

TEST(ConfigSpelling, DenseLayers) {
  json config = smallConfig();
  config["first_k_dense_replace"] = 9; // more than there are layers
  EXPECT_EQ(good(config).moeLayer, std::vector<bool>(4, false));
  config["mlp_layer_types"] = {"sparse", "dense", "sparse", "sparse"};
  EXPECT_EQ(good(config).moeLayer,
            (std::vector<bool>{true, false, true, true}));
  config.erase("first_k_dense_replace");
  EXPECT_EQ(good(config).moeLayer,
            (std::vector<bool>{true, false, true, true}));
}

TEST(ConfigSpelling, IndexerPatterns) {
  using Full = std::vector<bool>;
  auto full = [](const json &config) { return good(config).indexer->full; };
  json config = smallSparseConfig();
  config["num_hidden_layers"] = 8;
  EXPECT_EQ(full(config), Full(8, true));
  config["index_topk_freq"] = 4; // with transformers' offset of 2
  EXPECT_EQ(full(config), (Full{1, 1, 0, 0, 0, 1, 0, 0}));
  config["index_skip_topk_offset"] = 3;
  EXPECT_EQ(full(config), (Full{1, 1, 1, 0, 0, 0, 1, 0}));
  config["index_topk_pattern"] = "FSFSFSFS";
  EXPECT_EQ(full(config), (Full{1, 0, 1, 0, 1, 0, 1, 0}));
  config["index_topk_pattern"] = nullptr;
  config["indexer_types"] = {"full",   "full",   "full", "shared",
                             "shared", "shared", "full", "shared"};
  EXPECT_EQ(full(config), (Full{1, 1, 1, 0, 0, 0, 1, 0}));
}

TEST(ConfigSpelling, StopTokens) {
  using Ids = std::vector<int64_t>;
  json config = smallConfig();
  config["eos_token_id"] = {5, 3, 5};
  EXPECT_EQ(good(config).eosTokens, (Ids{5, 3}));
  // generation_config.json adds what it has, behind the config's own.
  EXPECT_EQ(
      good(config, {{"generation_config.json", {{"eos_token_id", {9, 3}}}}})
          .eosTokens,
      (Ids{5, 3, 9}));
  EXPECT_EQ(good(config, {{"generation_config.json", {{"eos_token_id", 2}}}})
                .eosTokens,
            (Ids{5, 3, 2}));
  EXPECT_EQ(
      good(config, {{"generation_config.json", json::object()}}).eosTokens,
      (Ids{5, 3}));
  config["eos_token_id"] = nullptr;
  EXPECT_EQ(good(config).eosTokens, Ids{});
  config.erase("eos_token_id");
  EXPECT_EQ(good(config, {{"generation_config.json", {{"eos_token_id", 4}}}})
                .eosTokens,
            (Ids{4}));
  config["eos_token_id"] = 1;
  config["pad_token_id"] = -1;
  EXPECT_EQ(good(config).padToken, std::nullopt);
}

TEST(ConfigSpelling, AFolderOrALoneFile) {
  TempFolder folder;
  folder.write("config.json", smallConfig().dump());
  folder.write("other.json", smallConfig().dump());
  EXPECT_EQ(ModelConfig::read(folder.path)->file, folder / "config.json");
  EXPECT_EQ(ModelConfig::read(folder / "other.json")->file,
            folder / "other.json");
}

} // namespace
