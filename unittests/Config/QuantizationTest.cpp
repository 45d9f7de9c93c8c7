//===- QuantizationTest.cpp - quantization_config and exclude lists -------===//
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

json fp8() {
  return {{"quant_method", "fp8"}, {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"}, {"weight_block_size", {128, 128}}};
}

json int4() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"kv_cache_scheme", nullptr},
          {"ignore", {"lm_head"}},
          {"config_groups",
           {{"group_0",
             {{"input_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights",
               {{"num_bits", 4}, {"type", "int"}, {"group_size", 32},
                {"strategy", "group"}, {"symmetric", true},
                {"actorder", nullptr}}}}}}}};
}

json sidecar() {
  return {{"producer", {{"name", "modelopt"}, {"version", "0.41.0"}}},
          {"quantization",
           {{"quant_algo", "NVFP4"}, {"kv_cache_quant_algo", "FP8"},
            {"group_size", 16}, {"exclude_modules", {"lm_head"}}}}};
}

/// What modelopt writes of the same into config.json.
json mirror() {
  json half = {{"dynamic", false}, {"num_bits", 4}, {"type", "float"},
               {"group_size", 16}};
  return {{"quant_method", "modelopt"},
          {"quant_algo", "NVFP4"},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme",
           {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}},
          {"config_groups",
           {{"group_0",
             {{"input_activations", half}, {"weights", half},
              {"targets", {"Linear"}}}}}}};
}

json with(const json &quantization) {
  json config = smallConfig();
  config["quantization_config"] = quantization;
  return config;
}

QuantizationConfig good(const json &config, const json &side = nullptr) {
  std::vector<std::pair<std::string, json>> more;
  if (!side.is_null())
    more.emplace_back("hf_quant_config.json", side);
  Result<ModelConfig> result = readConfig(config, more);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? result->quantization : QuantizationConfig();
}

std::string error(const json &config, const json &side, StatusCode want) {
  std::vector<std::pair<std::string, json>> more;
  if (!side.is_null())
    more.emplace_back("hf_quant_config.json", side);
  StatusCode code = StatusCode::Ok;
  std::string message = configError(config, more, &code);
  EXPECT_EQ(code, want) << message;
  return message;
}

TEST(Quantization, SidecarAndMirror) {
  for (const auto &[config, side] :
       {std::pair{smallConfig(), sidecar()}, std::pair{with(mirror()), json()},
        std::pair{with(mirror()), sidecar()}}) {
    QuantizationConfig got = good(config, side);
    EXPECT_EQ(got.method, Method::Nvfp4);
    EXPECT_EQ(got.groupSize, 16);
    EXPECT_TRUE(got.fp8KvCache);
    EXPECT_EQ(got.exclude, std::vector<std::string>{"lm_head"});
    EXPECT_EQ(got.source.find("hf_quant_config.json") != std::string::npos,
              !side.is_null());
  }
  // The older mirror: the sidecar's own object inside config.json.
  EXPECT_EQ(good(with(sidecar())).method, Method::Nvfp4);
}

TEST(Quantization, TheCacheIsIndependentOfTheWeights) {
  json side = sidecar();
  side["quantization"]["kv_cache_quant_algo"] = nullptr;
  EXPECT_FALSE(good(smallConfig(), side).fp8KvCache);
  EXPECT_EQ(good(smallConfig(), side).method, Method::Nvfp4);
  side = sidecar();
  side["quantization"]["quant_algo"] = nullptr;
  EXPECT_TRUE(good(smallConfig(), side).fp8KvCache);
  EXPECT_EQ(good(smallConfig(), side).method, Method::None);
  json packed = int4();
  packed["kv_cache_scheme"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_TRUE(good(with(packed)).fp8KvCache);
}

TEST(Quantization, OtherProducers) {
  EXPECT_EQ(good(with(int4())).method, Method::Int4Group);
  json scaled = fp8();
  scaled["scale_fmt"] = "ue8m0";
  EXPECT_TRUE(good(with(scaled)).scaleUe8m0);
  EXPECT_EQ(good(with(nullptr)).method, Method::None);
  json nvfp4 = int4();
  nvfp4["format"] = "nvfp4-pack-quantized";
  json &group = nvfp4["config_groups"]["group_0"];
  group["weights"]["type"] = "float";
  group["weights"]["group_size"] = 16;
  group["input_activations"] = group["weights"];
  EXPECT_EQ(good(with(nvfp4)).method, Method::Nvfp4);
  EXPECT_EQ(good(with(nvfp4)).algorithm, "nvfp4-pack-quantized");
}

TEST(Quantization, Contradictions) {
  std::string at = "config.json: at /quantization_config: contradicts "
                   "hf_quant_config.json: ";
  EXPECT_EQ(error(with(fp8()), sidecar(), StatusCode::Invalid),
            at + "method fp8_block and nvfp4");
  json side = sidecar();
  side["quantization"]["kv_cache_quant_algo"] = nullptr;
  EXPECT_EQ(error(with(mirror()), side, StatusCode::Invalid),
            at + "KV cache FP8 and unquantized");
  side = sidecar();
  side["quantization"]["exclude_modules"] = {"lm_head", "model.layers.0*"};
  EXPECT_EQ(error(with(mirror()), side, StatusCode::Invalid),
            at + "the exclude lists differ in 1 entries, first "
                 "\"model.layers.0*\"");
  json nested = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                 {"text_config", with(int4())},
                 {"quantization_config", fp8()}};
  EXPECT_EQ(error(nested, nullptr, StatusCode::Invalid),
            "config.json: at /text_config/quantization_config: contradicts "
            "config.json at /quantization_config: method int4_g32 and "
            "fp8_block");
}

TEST(Quantization, WhatThisBuildCannotDo) {
  auto refused = [](const json &quantization) {
    std::string message =
        error(with(quantization), nullptr, StatusCode::Unsupported);
    std::string prefix = "config.json: at /quantization_config";
    EXPECT_EQ(message.rfind(prefix, 0), 0u) << message;
    return message.substr(std::min(prefix.size(), message.size()));
  };
  json q = fp8();
  q["quant_method"] = "gptq";
  EXPECT_EQ(refused(q), "/quant_method: unsupported quantization method "
                        "(string \"gptq\", supported: fp8, "
                        "compressed-tensors, modelopt)");
  q = fp8();
  q["weight_block_size"] = {64, 128};
  EXPECT_EQ(refused(q), "/weight_block_size: unsupported weight_block_size "
                        "([64,128], supported: [128,128])");
  q.erase("weight_block_size");
  EXPECT_EQ(refused(q), "/weight_block_size: unsupported weight_block_size "
                        "(nothing, supported: [128,128])");
  q = fp8();
  q["fmt"] = "e5m2";
  EXPECT_EQ(refused(q), "/fmt: unsupported FP8 format (string \"e5m2\", "
                        "supported: e4m3)");
  q = fp8();
  q["activation_scheme"] = "static";
  EXPECT_EQ(refused(q), "/activation_scheme: unsupported activation scheme "
                        "(string \"static\", supported: dynamic)");
  q = fp8();
  q["scale_fmt"] = "ue4m3";
  EXPECT_EQ(refused(q), "/scale_fmt: unsupported scale_fmt (string \"ue4m3\", "
                        "supported: ue8m0)");
  for (const char *algo :
       {"FP8", "FP8_PB_WO", "W4A16_NVFP4", "NVFP4_AWQ", "MIXED_PRECISION"}) {
    q = mirror();
    q["quant_algo"] = algo;
    EXPECT_EQ(refused(q),
              std::string("/quant_algo: unsupported quantization algorithm "
                          "(string \"") +
                  algo + "\", supported: NVFP4)");
  }
  q = mirror();
  q["kv_cache_scheme"]["num_bits"] = 4;
  EXPECT_EQ(refused(q), "/kv_cache_scheme/num_bits: unsupported KV cache "
                        "width (number 4, supported: 8)");
  q = int4();
  q["format"] = "float-quantized";
  EXPECT_EQ(refused(q), "/format: unsupported compressed-tensors format "
                        "(string \"float-quantized\", supported: "
                        "pack-quantized, nvfp4-pack-quantized)");
  q = int4();
  q["config_groups"]["group_0"]["weights"]["group_size"] = 128;
  EXPECT_EQ(refused(q), "/config_groups/group_0/weights/group_size: "
                        "unsupported weight group size (number 128, supported: "
                        "32)");
  q = int4();
  q["config_groups"]["group_0"]["weights"]["symmetric"] = false;
  EXPECT_EQ(refused(q), "/config_groups/group_0/weights/symmetric: "
                        "unsupported asymmetric weights");
  q = int4();
  q["ignore"] = {"re:(a|b)+c"};
  EXPECT_EQ(refused(q), "/ignore/0: unsupported regular expression in an "
                        "exclude list (supported: letters, \\., ., .*, (a|b)), "
                        "found string \"re:(a|b)+c\"");
  json side = sidecar();
  side["quantization"]["kv_cache_quant_algo"] = "NVFP4";
  EXPECT_EQ(error(smallConfig(), side, StatusCode::Unsupported),
            "hf_quant_config.json: at /quantization/kv_cache_quant_algo: "
            "unsupported KV cache algorithm (string \"NVFP4\", supported: "
            "FP8)");
}

TEST(Quantization, WhatIsWrong) {
  EXPECT_EQ(error(with(json::object()), nullptr, StatusCode::Invalid),
            "config.json: at /quantization_config/quant_method: expected a "
            "string, found nothing");
  EXPECT_EQ(error(with(5), nullptr, StatusCode::Invalid),
            "config.json: at /quantization_config: expected an object or null, "
            "found number 5");
  EXPECT_EQ(error(smallConfig(), json{{"producer", 1}}, StatusCode::Invalid),
            "hf_quant_config.json: at /quantization: expected an object, found "
            "nothing");
  json side = sidecar();
  side["quantization"]["exclude_modules"] = {"lm_head", 3};
  EXPECT_EQ(error(smallConfig(), side, StatusCode::Invalid),
            "hf_quant_config.json: at /quantization/exclude_modules/1: "
            "expected a module name or pattern, found number 3");
}

//===----------------------------------------------------------------------===//
// Exclude lists
//===----------------------------------------------------------------------===//

/// Whether an NVFP4 checkpoint with this exclude list quantizes `module`.
bool quantized(const std::vector<std::string> &exclude,
               const std::string &module) {
  json side = sidecar();
  side["quantization"]["exclude_modules"] = exclude;
  return good(smallConfig(), side).expectedFormat(module, Format::BF16) ==
         Format::NVFP4;
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
  EXPECT_TRUE(quantized({"model.layers.3.self_attn*"},
                        "model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(quantized({"*.[0-2].mlp.?p_proj"}, "model.layers.2.mlp.up_proj"));
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
  EXPECT_TRUE(quantized({"model.layers.0.mlp.gate"},
                        "model.layers.0.mlp.gate_proj"));
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
  std::vector<std::string> kimi = {
      "lm_head", "re:.*self_attn.*", "re:.*shared_experts.*",
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
  EXPECT_TRUE(quantized({"re:.*self_attn$"}, "model.layers.9.self_attn.o_proj"));
  EXPECT_FALSE(quantized({"re:model.layers.+o_proj"},
                         "model.layers.9.self_attn.o_proj"));
}

TEST(Exclude, WhatIsNeverQuantized) {
  QuantizationConfig fp8;
  fp8.method = Method::Fp8Block;
  for (const char *module :
       {"lm_head", "model.embed_tokens", "model.norm", "model.layers.3.mlp.gate",
        "model.layers.3.input_layernorm", "model.layers.61.eh_proj",
        "model.layers.61.shared_head.head",
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

/// What models.md says of each checkpoint's list, for a module of each kind.
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
    folder.write("config.json", readBytes(publishedConfig(name + "_config.json")));
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
