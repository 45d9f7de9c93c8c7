//===- ExcludeTest.cpp - exclude lists and the formats they leave ---------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
using Method = QuantizationConfig::Method;

namespace {

/// Whether an NVFP4 checkpoint with this exclude list quantizes `module`.
bool quantized(const std::vector<std::string> &exclude,
               const std::string &module) {
  json side = {{"quantization",
                {{"quant_algo", "NVFP4"}, {"exclude_modules", exclude}}}};
  Result<ModelConfig> config =
      readConfig(smallConfig(), {{"hf_quant_config.json", side}});
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() && config->quantization.expectedFormat(
                            module, Format::BF16) == Format::NVFP4;
}

TEST(Exclude, Globs) {
  EXPECT_FALSE(quantized({"model.layers.0*"}, "model.layers.0.mlp.up_proj"));
  EXPECT_TRUE(quantized({"model.layers.0*"}, "model.layers.10.mlp.up_proj"));
  // modelopt writes a star after a bare number only if it covers the others.
  EXPECT_FALSE(quantized({"model.layers.1*"}, "model.layers.10.mlp.up_proj"));
  EXPECT_TRUE(quantized({"model.layers.1.*"}, "model.layers.10.mlp.up_proj"));
  EXPECT_FALSE(quantized({"model.layers.1.*"}, "model.layers.1.mlp.up_proj"));
  EXPECT_FALSE(quantized({"model.layers.3.self_attn*"},
                         "model.layers.3.self_attn.o_proj"));
  EXPECT_TRUE(
      quantized({"model.layers.3.self_attn*"}, "model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(
      quantized({"*.[0-2].mlp.?p_proj"}, "model.layers.2.mlp.up_proj"));
  EXPECT_TRUE(quantized({"*.[!0-2].mlp.*"}, "model.layers.2.mlp.up_proj"));
  EXPECT_TRUE(quantized({"[", "*[", "model.[z-a]*", "[]"}, "model.x"));
  EXPECT_FALSE(quantized({"*a*b*c*"}, "xxaxxbxxc"));
  EXPECT_TRUE(quantized({"*a*b*c"}, std::string(2000, 'a')));
}

TEST(Exclude, Names) {
  std::vector<std::string> attention = {"model.layers.0.self_attn"};
  EXPECT_FALSE(quantized(attention, "model.layers.0.self_attn"));
  EXPECT_FALSE(quantized(attention, "model.layers.0.self_attn.o_proj"));
  EXPECT_TRUE(quantized(attention, "model.layers.0.self_attn2.o_proj"));
  EXPECT_TRUE(
      quantized({"model.layers.0.mlp.gate"}, "model.layers.0.mlp.gate_proj"));
  EXPECT_FALSE(quantized({"self_attn"}, "model.layers.7.self_attn.o_proj"));
  EXPECT_TRUE(quantized({"up"}, "model.layers.7.mlp.up_proj"));
  EXPECT_TRUE(quantized({}, "lm_head"));
  EXPECT_FALSE(quantized({"lm_head"}, "lm_head"));
}

TEST(Exclude, Prefixes) {
  for (const char *prefix : {"language_model.", "model.language_model."}) {
    std::string entry = std::string(prefix) +
                        (prefix[0] == 'l' ? "model." : "") +
                        "layers.0.self_attn*";
    EXPECT_FALSE(quantized({entry}, "model.layers.0.self_attn.o_proj"));
    EXPECT_FALSE(
        quantized({entry}, "language_model.model.layers.0.self_attn.o_proj"));
    EXPECT_TRUE(quantized({entry}, "model.layers.1.self_attn.o_proj"));
  }
  EXPECT_FALSE(quantized({"language_model.lm_head"}, "lm_head"));
  EXPECT_FALSE(quantized({"language_model*"}, "model.layers.1.mlp.up_proj"));
  EXPECT_TRUE(quantized({"vision_tower*", "mm_projector*"},
                        "model.layers.1.mlp.up_proj"));
}

TEST(Exclude, FusedNames) {
  EXPECT_FALSE(quantized({"model.layers.0.mlp.gate_up_proj"},
                         "model.layers.0.mlp.up_proj"));
  EXPECT_FALSE(quantized({"model.layers.0.mlp.experts.gate_up_proj"},
                         "model.layers.0.mlp.experts.5.gate_proj"));
  EXPECT_TRUE(quantized({"model.layers.0.mlp.experts.gate_up_proj"},
                        "model.layers.0.mlp.experts.5.down_proj"));
  EXPECT_FALSE(quantized({"model.layers.0.self_attn.fused_qkv_a_proj*"},
                         "model.layers.0.self_attn.kv_a_proj_with_mqa"));
}

TEST(Exclude, RegularExpressions) {
  std::vector<std::string> kimi = {"lm_head", "re:.*self_attn.*",
                                   "re:.*shared_experts.*",
                                   "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"};
  EXPECT_FALSE(quantized(kimi, "model.layers.9.self_attn.o_proj"));
  EXPECT_FALSE(quantized(kimi, "model.layers.0.mlp.down_proj"));
  EXPECT_FALSE(quantized(kimi, "model.layers.3.mlp.shared_experts.up_proj"));
  EXPECT_TRUE(quantized(kimi, "model.layers.3.mlp.experts.0.up_proj"));
  // Anchored at the start, as the producer's own matching is.
  EXPECT_TRUE(quantized({"re:self_attn"}, "model.layers.9.self_attn.o_proj"));
  EXPECT_FALSE(quantized({"re:^model\\.layers\\.9\\."},
                         "model.layers.9.self_attn.o_proj"));
  EXPECT_FALSE(quantized({"re:.*o_proj$"}, "model.layers.9.self_attn.o_proj"));
  EXPECT_TRUE(
      quantized({"re:.*self_attn$"}, "model.layers.9.self_attn.o_proj"));
  EXPECT_FALSE(quantized({"re:model.layers.+o_proj"},
                         "model.layers.9.self_attn.o_proj"));
}

TEST(Exclude, WhatIsNeverQuantized) {
  QuantizationConfig fp8;
  fp8.method = Method::Fp8Block;
  for (const char *module :
       {"lm_head", "model.embed_tokens", "model.norm",
        "model.layers.3.mlp.gate", "model.layers.3.input_layernorm",
        "model.layers.61.eh_proj", "model.layers.61.shared_head.head",
        "model.layers.3.self_attn.indexer.weights_proj"})
    EXPECT_EQ(fp8.expectedFormat(module, Format::BF16), Format::BF16) << module;
  for (const char *module :
       {"model.layers.3.self_attn.kv_b_proj", "model.layers.0.mlp.gate_proj",
        "model.layers.3.self_attn.indexer.wq_b",
        "model.layers.3.mlp.experts.0.up_proj"})
    EXPECT_EQ(fp8.expectedFormat(module, Format::BF16), Format::FP8Block)
        << module;
  EXPECT_EQ(QuantizationConfig().expectedFormat("x", Format::F32), Format::F32);
}

/// What each published checkpoint quantizes, by a module of each kind.
TEST(Exclude, PublishedLists) {
  struct Want {
    const char *name;
    bool attention, output, dense, shared, expert, mtpExpert;
  };
  const Want wants[] = {
      {"nvidia--DeepSeek-V3-0324-NVFP4", false, false, true, true, true, false},
      {"nvidia--DeepSeek-V3.1-NVFP4", false, true, true, true, true, false},
      {"nvidia--DeepSeek-V3.2-NVFP4", false, true, true, true, true, false},
      {"nvidia--GLM-5-NVFP4", false, false, true, true, true, false},
      {"nvidia--GLM-5.1-NVFP4", false, false, false, false, true, false},
      {"nvidia--GLM-5.2-NVFP4", false, false, false, false, true, false},
      {"nvidia--GLM-5.3-NVFP4", false, false, false, false, true, false},
      {"nvidia--Kimi-K2.5-NVFP4", false, false, true, true, true, true},
      {"nvidia--Kimi-K2.6-NVFP4", false, false, false, false, true, true},
      {"nvidia--Kimi-K2.7-Code-NVFP4", false, false, false, false, true, true},
      {"moonshotai--Kimi-K2.5", false, false, false, false, true, true},
      {"zai-org--GLM-5-FP8", true, true, true, true, true, true},
      {"zai-org--GLM-5.2-FP8", true, true, true, true, true, true},
      {"deepseek-ai--DeepSeek-V3", true, true, true, true, true, true},
  };
  for (const Want &want : wants) {
    SCOPED_TRACE(want.name);
    TempFolder folder;
    std::string name(want.name);
    folder.write("config.json",
                 readBytes(publishedConfig(name + "_config.json")));
    auto side = publishedConfig(name + "_hf_quant_config.json");
    if (std::filesystem::exists(side))
      folder.write("hf_quant_config.json", readBytes(side));
    Result<ModelConfig> config = ModelConfig::read(folder.path);
    ASSERT_TRUE(config.ok()) << config.status().message();
    auto is = [&](const std::string &module) {
      return config->quantization.expectedFormat(module, Format::BF16) !=
             Format::BF16;
    };
    std::string last = "model.layers." + std::to_string(config->layers - 1);
    std::string mtp = "model.layers." + std::to_string(config->layers);
    EXPECT_EQ(is(last + ".self_attn.q_b_proj"), want.attention);
    EXPECT_EQ(is(last + ".self_attn.kv_b_proj"), want.attention);
    EXPECT_EQ(is("model.layers.0.self_attn.kv_a_proj_with_mqa"),
              want.attention);
    EXPECT_EQ(is(last + ".self_attn.o_proj"), want.output);
    EXPECT_EQ(is("model.layers.0.mlp.up_proj"), want.dense);
    EXPECT_EQ(is(last + ".mlp.shared_experts.down_proj"), want.shared);
    EXPECT_EQ(is(last + ".mlp.experts.7.gate_proj"), want.expert);
    EXPECT_EQ(is("model.layers.10.mlp.experts.7.gate_proj"), want.expert);
    EXPECT_EQ(is(mtp + ".mlp.experts.7.gate_proj"), want.mtpExpert);
    EXPECT_FALSE(is("lm_head"));
    EXPECT_FALSE(is(last + ".mlp.gate"));
  }
}

} // namespace
