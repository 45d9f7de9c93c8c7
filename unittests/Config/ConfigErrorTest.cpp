//===- ConfigErrorTest.cpp - what is refused, and in which words ----------===//
//
// Part of mla. Each row spoils one thing of a right configuration.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <functional>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

struct Case {
  std::function<void(json &)> spoil;
  std::string message;
  StatusCode code = StatusCode::Invalid;
};

/// A case that sets (or, with nothing, erases) one key.
Case set(const std::string &key, const json &value, const std::string &message,
         StatusCode code = StatusCode::Invalid) {
  return {[=](json &c) { c[key] = value; },
          "config.json: at /" + key + ": " + message, code};
}

void expectErrors(const json &right, const std::vector<Case> &cases) {
  EXPECT_EQ(configError(right), "");
  for (const Case &c : cases) {
    json config = right;
    c.spoil(config);
    StatusCode code = StatusCode::Ok;
    EXPECT_EQ(configError(config, {}, &code), c.message);
    EXPECT_EQ(code, c.code) << c.message;
  }
}

constexpr StatusCode Unsupported = StatusCode::Unsupported;

TEST(ConfigError, EveryKeyWithoutDefaultIsNamed) {
  const std::pair<const char *, const char *> keys[] = {
      {"hidden_size", "an integer from 1 to 16777216"},
      {"num_hidden_layers", "an integer from 1 to 4096"},
      {"vocab_size", "an integer from 1 to 16777216"},
      {"max_position_embeddings", "an integer from 1 to 1073741824"},
      {"rms_norm_eps", "a number from 1e-12 to 0.1"},
      {"num_attention_heads", "an integer from 1 to 65536"},
      {"q_lora_rank", "an integer or null"},
      {"kv_lora_rank", "an integer from 1 to 1048576"},
      {"qk_nope_head_dim", "an integer from 1 to 65536"},
      {"qk_rope_head_dim", "an integer from 1 to 65536"},
      {"v_head_dim", "an integer from 1 to 65536"},
      {"rope_theta", "a number from 2 to 1e+15"},
      {"intermediate_size", "an integer from 1 to 16777216"},
      {"n_routed_experts", "an integer from 1 to 65536"},
      {"num_experts_per_tok", "an integer from 1 to 65536"},
      {"n_shared_experts", "an integer or null"},
      {"moe_intermediate_size", "an integer from 1 to 16777216"},
      {"n_group", "an integer from 1 to 65536"},
      {"topk_group", "an integer from 1 to 65536"},
      {"norm_topk_prob", "true or false"},
      {"routed_scaling_factor", "a number from 1e-06 to 1e+06"},
      {"first_k_dense_replace", "an integer from 0 to 4096"},
      {"index_n_heads", "an integer from 1 to 65536"},
      {"index_head_dim", "an integer from 1 to 65536"},
      {"index_topk", "an integer from 1 to 1073741824"},
      {"eos_token_id", "a token id, a list of them or null"},
  };
  json none = smallSparseConfig();
  std::string all;
  for (const auto &[key, expected] : keys) {
    json config = smallSparseConfig();
    config.erase(key);
    none.erase(key);
    std::string line = std::string("config.json: at /") + key + ": expected " +
                       expected + ", found nothing";
    EXPECT_EQ(configError(config), line);
    // Without the number of layers, lists of layers are not read.
    if (std::string(key) != "first_k_dense_replace" &&
        std::string(key).rfind("index_", 0) != 0)
      all += (all.empty() ? "" : "\n") + line;
  }
  // All missing keys are reported in one go.
  EXPECT_EQ(configError(none), all);
}

TEST(ConfigError, WrongTypesAndRanges) {
  expectErrors(
      smallConfig(),
      {set("hidden_size", "64",
           "expected an integer from 1 to 16777216, found string \"64\""),
       set("hidden_size", 64.0,
           "expected an integer from 1 to 16777216, found number 64.0"),
       set("hidden_size", nullptr,
           "expected an integer from 1 to 16777216, found null"),
       set("hidden_size", -1,
           "expected an integer from 1 to 16777216, found number -1"),
       set("vocab_size", 1 << 25,
           "expected an integer from 1 to 16777216, found number 33554432"),
       set("num_hidden_layers", 4097,
           "expected an integer from 1 to 4096, found number 4097"),
       set("rms_norm_eps", 0,
           "expected a number from 1e-12 to 0.1, found number 0"),
       set("rms_norm_eps", 1,
           "expected a number from 1e-12 to 0.1, found number 1"),
       set("routed_scaling_factor", "2.5",
           "expected a number from 1e-06 to 1e+06, found string \"2.5\""),
       set("norm_topk_prob", 1, "expected true or false, found number 1"),
       set("tie_word_embeddings", "no",
           "expected true or false, found string \"no\""),
       set("eos_token_id", "end",
           "expected a token id, a list of them or null, found string \"end\""),
       set("num_nextn_predict_layers", -1,
           "expected an integer from 0 to 4096, found number -1"),
       set("text_config", 5, "expected an object, found number 5"),
       set("architectures", "DeepseekV3ForCausalLM",
           "expected a list of one architecture, found string "
           "\"DeepseekV3ForCausalLM\"")});
}

TEST(ConfigError, UnsupportedModels) {
  expectErrors(
      smallConfig(),
      {{[](json &c) { c["architectures"] = {"LlamaForCausalLM"}; },
        "config.json: at /architectures/0: unsupported architecture (string "
        "\"LlamaForCausalLM\", supported: DeepseekV2ForCausalLM, "
        "DeepseekV3ForCausalLM, DeepseekV32ForCausalLM, "
        "Glm4MoeLiteForCausalLM, GlmMoeDsaForCausalLM)",
        Unsupported},
       {[](json &c) {
          c = {{"model_type", "llama"}};
        },
        "config.json: at /architectures: expected one of "
        "DeepseekV2ForCausalLM, DeepseekV3ForCausalLM, "
        "DeepseekV32ForCausalLM, Glm4MoeLiteForCausalLM, "
        "GlmMoeDsaForCausalLM, found nothing"},
       set("model_type", "deepseek_v32",
           "contradicts architectures: string \"deepseek_v32\" and string "
           "\"DeepseekV3ForCausalLM\""),
       set("hidden_act", "gelu",
           "unsupported activation (string \"gelu\", supported: silu)",
           Unsupported),
       set("attention_bias", true,
           "unsupported attention_bias (true, supported: false)", Unsupported),
       set("mlp_bias", true, "unsupported mlp_bias (true, supported: false)",
           Unsupported),
       set("moe_layer_freq", 2,
           "unsupported moe_layer_freq (number 2, supported: 1)", Unsupported),
       set("torch_dtype", "float64",
           "unsupported dtype (string \"float64\", supported: bfloat16, "
           "float16, float32)",
           Unsupported),
       set("scoring_func", "softmax",
           "unsupported scoring_func for this architecture (string "
           "\"softmax\", supported: sigmoid)",
           Unsupported),
       set("topk_method", "greedy",
           "unsupported topk_method for this architecture (string \"greedy\", "
           "supported: noaux_tc)",
           Unsupported),
       // A file that is wrong besides is wrong.
       {[](json &c) {
          c["hidden_act"] = "gelu";
          c["vocab_size"] = 0;
        },
        "config.json: at /hidden_act: unsupported activation (string \"gelu\", "
        "supported: silu)\nconfig.json: at /vocab_size: expected an integer "
        "from 1 to 16777216, found number 0"}});
  json v2 = smallConfig();
  v2["architectures"] = {"DeepseekV2ForCausalLM"};
  v2["model_type"] = "deepseek_v2";
  v2["scoring_func"] = "softmax";
  v2["norm_topk_prob"] = false;
  v2["topk_method"] = "greedy";
  expectErrors(v2, {set("norm_topk_prob", true,
                        "unsupported norm_topk_prob for this architecture "
                        "(true, supported: false)",
                        Unsupported),
                    set("topk_method", "noaux_tc",
                        "unsupported topk_method for this architecture (string "
                        "\"noaux_tc\", supported: greedy, "
                        "group_limited_greedy)",
                        Unsupported)});
}

TEST(ConfigError, Rope) {
  auto yarn = [](const char *key, const json &value, const std::string &message,
                 StatusCode code = StatusCode::Invalid) {
    return Case{
        [=](json &c) {
          c["rope_scaling"] = {{"type", "yarn"},
                               {"factor", 4},
                               {"original_max_position_embeddings", 128},
                               {"mscale", 1},
                               {"mscale_all_dim", 1}};
          if (value.is_discarded())
            c["rope_scaling"].erase(key);
          else
            c["rope_scaling"][key] = value;
        },
        std::string("config.json: at /rope_scaling/") + key + ": " + message,
        code};
  };
  json erased(json::value_t::discarded);
  expectErrors(
      smallConfig(),
      {yarn("type", "linear",
            "unsupported RoPE scaling \"linear\" (supported: yarn, default, "
            "none)",
            Unsupported),
       {[](json &c) {
          c["rope_scaling"] = {{"type", "yarn"}, {"rope_type", "llama3"}};
        },
        "config.json: at /rope_scaling/type: contradicts rope_type: string "
        "\"yarn\" and string \"llama3\"\nconfig.json: at "
        "/rope_scaling/rope_type: unsupported RoPE scaling \"llama3\" "
        "(supported: yarn, default, none)"},
       yarn("factor", erased,
            "expected a number from 1 to 1e+06, found nothing"),
       yarn("factor", 0.5,
            "expected a number from 1 to 1e+06, found number "
            "0.5"),
       yarn("original_max_position_embeddings", erased,
            "expected an integer from 1 to 1073741824, found nothing"),
       yarn("beta_fast", 0.5,
            "expected a number of at least beta_slow (nothing), found number "
            "0.5"),
       yarn("beta_slow", 0,
            "expected a number from 0.001 to 1e+06, found number 0"),
       yarn("mscale_all_dim", -1,
            "expected a number from 0 to 1e+06, found number -1"),
       yarn("attention_factor", 1.5,
            "unsupported YaRN option attention_factor (number 1.5)",
            Unsupported),
       yarn("truncate", false, "unsupported YaRN option truncate (false)",
            Unsupported),
       yarn("partial_rotary_factor", 0.5,
            "unsupported partial_rotary_factor (number 0.5, supported: 1)",
            Unsupported),
       yarn("rope_theta", 20000,
            "contradicts another rope_theta of this file: 20000 and 10000"),
       set("rope_scaling", "yarn",
           "expected an object or null, found string \"yarn\""),
       set("rope_theta", 1,
           "expected a number from 2 to 1e+15, found number 1"),
       set("partial_rotary_factor", 0.5,
           "unsupported partial_rotary_factor (number 0.5, supported: 1)",
           Unsupported),
       {[](json &c) {
          c["rope_scaling"] = {{"type", "yarn"},
                               {"factor", 4},
                               {"original_max_position_embeddings", 128},
                               {"mscale_all_dim", 0.7}};
        },
        "config.json: at /rope_scaling/mscale_all_dim: unsupported "
        "mscale_all_dim without mscale",
        Unsupported},
       {[](json &c) {
          c["rope_scaling"] = {{"type", "yarn"},
                               {"factor", 4},
                               {"original_max_position_embeddings", 128},
                               {"mscale", 0.7}};
        },
        "config.json: at /rope_scaling/mscale: unsupported mscale without "
        "mscale_all_dim",
        Unsupported},
       {[](json &c) {
          c["rope_scaling"] = {{"type", "yarn"},
                               {"factor", 4},
                               {"original_max_position_embeddings", 128}};
          c["rope_parameters"] = {{"rope_type", "default"},
                                  {"rope_theta", 10000}};
        },
        "config.json: at /rope_scaling: contradicts rope_parameters: "
        "{\"factor\":4,\"original_max_position_embeddings\":128,\"type\":"
        "\"yarn\"} and {\"rope_theta\":10000,\"rope_type\":\"default\"}"},
       {[](json &c) {
          c.erase("rope_theta");
          c["rope_parameters"] = {{"rope_type", "default"}};
        },
        "config.json: at /rope_parameters/rope_theta: expected a number from 2 "
        "to 1e+15, found nothing"},
       set("qk_rope_head_dim", 15,
           "expected an even number, found number 15")});
}

TEST(ConfigError, KeysThatContradictEachOther) {
  expectErrors(
      smallConfig(),
      {set("num_key_value_heads", 2,
           "expected num_attention_heads (4): the heads of latent attention "
           "share one cache, found number 2"),
       set("qk_head_dim", 48,
           "expected qk_nope_head_dim + qk_rope_head_dim (32), found number "
           "48"),
       set("n_group", 3, "expected a divisor of n_routed_experts (8), found 3"),
       set("topk_group", 5, "expected at most n_group (4), found 5"),
       set("n_group", 8,
           "expected groups of at least 2 experts (a group's score is the sum "
           "of its best two), found 8 experts in 8 groups\nconfig.json: at "
           "/num_experts_per_tok: expected at most 2 (topk_group 2 times 1 "
           "experts of a group), found 3"),
       set("num_experts_per_tok", 5,
           "expected at most 4 (topk_group 2 times 2 experts of a group), "
           "found 5"),
       set("num_experts_per_tok", 9,
           "expected at most n_routed_experts (8), found 9"),
       set("num_experts", 16,
           "contradicts /n_routed_experts: number 16 and number 8"),
       set("index_topk", 2048,
           "expected no sparse indexer in a model of architecture "
           "DeepseekV3ForCausalLM, found number 2048"),
       set("mlp_layer_types", {"dense", "sparse"},
           "expected one entry for each of 4 layers, found an array of 2"),
       {[](json &c) {
          c["mlp_layer_types"] = {"dense", "sparse", "moe", "sparse"};
        },
        "config.json: at /mlp_layer_types/2: expected \"sparse\" or \"dense\", "
        "found string \"moe\""},
       set("eos_token_id", {1, 256},
           "expected a token id below vocab_size (256), found 256"),
       set("bos_token_id", 300,
           "expected a token id below vocab_size (256), found number 300"),
       {[](json &c) {
          c["num_attention_heads"] = c["num_key_value_heads"] = 65536;
          c["qk_nope_head_dim"] = 1024;
        },
        "config.json: at /num_attention_heads: expected num_attention_heads * "
        "(qk_nope_head_dim + qk_rope_head_dim) to be at most 16777216, found "
        "68157440\nconfig.json: at /num_attention_heads: expected "
        "num_attention_heads * (qk_nope_head_dim + v_head_dim) to be at most "
        "16777216, found 68157440"},
       {[](json &c) {
          c["hidden_size"] = c["moe_intermediate_size"] = 1 << 24;
        },
        "config.json: at the root: expected a model of at most "
        "1125899906842624 parameters, found more (4 layers of 8 experts of 3 * "
        "16777216 * 16777216)"}});
  expectErrors(
      smallSparseConfig(),
      {set("q_lora_rank", nullptr,
           "expected an integer: the sparse indexer reads the compressed "
           "query, found null"),
       set("index_head_dim", 8,
           "expected at least qk_rope_head_dim (16), found number 8"),
       set("indexer_types", {"shared", "full", "full", "full"},
           "expected layer 0 to be \"full\", found \"shared\": there is no "
           "earlier layer to take indices from"),
       set("index_topk_pattern", "FSX",
           "expected one letter F or S for each of 4 layers, found string "
           "\"FSX\""),
       {[](json &c) {
          c["indexer_types"] = {"full", "shared", "full", "full"};
          c["index_topk_freq"] = 2;
        },
        "config.json: at /indexer_types/1: contradicts index_topk_freq and "
        "index_skip_topk_offset: expected \"full\", found string \"shared\""}});
}

TEST(ConfigError, FilesThatCannotBeRead) {
  TempFolder folder;
  std::string root = folder.path.string();
  EXPECT_EQ(ModelConfig::read(folder.path).status().message(),
            root + "/config.json: no such file");
  EXPECT_EQ(ModelConfig::read(folder.path).status().code(),
            StatusCode::NotFound);
  EXPECT_EQ(ModelConfig::read(folder / "x").status().message(),
            root + "/x: no such file");
  folder.write("config.json", "[]");
  EXPECT_EQ(ModelConfig::read(folder.path).status().message(),
            root + "/config.json: at the root: expected an object, found an "
                   "array of 0");
  folder.write("config.json", "{\"a\": 1, \"a\": 2}");
  EXPECT_EQ(ModelConfig::read(folder.path).status().message(),
            root + "/config.json: found the key \"a\" twice, which is refused");
  folder.write("config.json", smallConfig().dump());
  folder.write("generation_config.json", "{\"eos_token_id\": \"x\"}");
  EXPECT_EQ(ModelConfig::read(folder.path).status().message(),
            root + "/generation_config.json: at /eos_token_id: expected a "
                   "token id, a list of them or null, found string \"x\"");
  folder.write("generation_config.json", "{");
  EXPECT_FALSE(ModelConfig::read(folder.path).ok());
  std::filesystem::remove(folder / "generation_config.json");
  folder.write("hf_quant_config.json", "7");
  EXPECT_EQ(ModelConfig::read(folder.path).status().message(),
            root + "/hf_quant_config.json: at the root: expected an object, "
                   "found number 7");
}

} // namespace
