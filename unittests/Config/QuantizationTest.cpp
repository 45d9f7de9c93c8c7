//===- QuantizationTest.cpp - quantization_config and exclude lists -------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <gtest/gtest.h>
#include <set>
#include <tuple>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
using Method = QuantizationConfig::Method;

namespace {

json fp8() {
  return {{"quant_method", "fp8"},
          {"fmt", "e4m3"},
          {"activation_scheme", "dynamic"},
          {"weight_block_size", {128, 128}}};
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
               {{"num_bits", 4},
                {"type", "int"},
                {"group_size", 32},
                {"strategy", "group"},
                {"symmetric", true},
                {"actorder", nullptr}}}}}}}};
}

json sidecar() {
  return {{"producer", {{"name", "modelopt"}, {"version", "0.41.0"}}},
          {"quantization",
           {{"quant_algo", "NVFP4"},
            {"kv_cache_quant_algo", "FP8"},
            {"group_size", 16},
            {"exclude_modules", {"lm_head"}}}}};
}

/// What modelopt writes of the same into config.json.
json mirror() {
  json half = {{"dynamic", false},
               {"num_bits", 4},
               {"type", "float"},
               {"group_size", 16}};
  return {{"quant_method", "modelopt"},
          {"quant_algo", "NVFP4"},
          {"ignore", {"lm_head"}},
          {"kv_cache_scheme",
           {{"dynamic", false}, {"num_bits", 8}, {"type", "float"}}},
          {"config_groups",
           {{"group_0",
             {{"input_activations", half},
              {"weights", half},
              {"targets", {"Linear"}}}}}}};
}

/// Several formats in one folder.
json mixed() {
  return {{"quant_method", "modelopt"},
          {"quant_algo", "MIXED_PRECISION"},
          {"ignore", {"lm_head", "*.kv_b_proj"}},
          {"quantized_layers",
           {{"model.layers.0.mlp.up_proj",
             {{"quant_algo", "W4A16_INT4"}, {"group_size", 32}}},
            {"language_model.model.layers.0.mlp.down_proj",
             {{"quant_algo", "W4A16_NVFP4"}, {"group_size", 16}}},
            {"*", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
            {"model.layers.0.mlp.*",
             {{"quant_algo", "FP8_PB_WO"}, {"group_size", 128}}},
            {"*.self_attn.*",
             {{"quant_algo", "FP8_PB_WO"}, {"group_size", 128}}}}}};
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

TEST(Quantization, SeveralFormatsInOneFolder) {
  json side = {{"producer", {{"name", "modelopt"}}}, {"quantization", mixed()}};
  side["quantization"]["exclude_modules"] = side["quantization"]["ignore"];
  side["quantization"].erase("ignore");
  for (const QuantizationConfig &got :
       {good(with(mixed())), good(smallConfig(), side),
        good(with(mixed()), side)}) {
    EXPECT_EQ(got.method, Method::Mixed);
    auto format = [&](const std::string &module) {
      return got.expectedFormat(module, Format::BF16);
    };
    // A name before a glob, a longer glob before a shorter one.
    EXPECT_EQ(format("model.layers.0.mlp.up_proj"), Format::Int4G32);
    EXPECT_EQ(format("model.layers.0.mlp.down_proj"), Format::NVFP4);
    EXPECT_EQ(format("model.layers.0.mlp.gate_proj"), Format::FP8Block);
    EXPECT_EQ(format("model.layers.1.mlp.experts.3.up_proj"), Format::NVFP4);
    EXPECT_EQ(format("model.layers.1.self_attn.o_proj"), Format::FP8Block);
    // Exclude lists come first of all.
    EXPECT_EQ(format("model.layers.1.self_attn.kv_b_proj"), Format::BF16);
    EXPECT_EQ(format("lm_head"), Format::BF16);
    EXPECT_EQ(format("model.layers.1.mlp.gate"), Format::BF16);
  }
  json fewer = mixed();
  fewer["quantized_layers"].erase("*");
  EXPECT_EQ(good(with(fewer))
                .expectedFormat("model.layers.1.mlp.up_proj", Format::F32),
            Format::F32);
  EXPECT_EQ(error(with(fewer), side, StatusCode::Invalid),
            "config.json: at /quantization_config: contradicts "
            "hf_quant_config.json: the quantized_layers differ");
  fewer.erase("quantized_layers");
  EXPECT_EQ(error(with(fewer), nullptr, StatusCode::Invalid),
            "config.json: at /quantization_config/quantized_layers: expected "
            "an object, found nothing");
  fewer["quantized_layers"] = {{"*", "NVFP4"}};
  EXPECT_EQ(error(with(fewer), nullptr, StatusCode::Invalid),
            "config.json: at /quantization_config/quantized_layers/*: expected "
            "an object, found string \"NVFP4\"");
  fewer["quantized_layers"] = {{"*", {{"group_size", 16}}}};
  EXPECT_EQ(error(with(fewer), nullptr, StatusCode::Invalid),
            "config.json: at /quantization_config/quantized_layers/*/"
            "quant_algo: expected a string, found nothing");
}

TEST(Quantization, OtherAlgorithmsOfModelopt) {
  for (const auto &[algo, group, method] :
       {std::tuple{"W4A16_NVFP4", 16, Method::Nvfp4},
        std::tuple{"FP8_PB_WO", 128, Method::Fp8Block},
        std::tuple{"W4A16_INT4", 32, Method::Int4Group}}) {
    json side = sidecar();
    side["quantization"]["quant_algo"] = algo;
    side["quantization"]["group_size"] = group;
    QuantizationConfig got = good(smallConfig(), side);
    EXPECT_EQ(got.method, method);
    EXPECT_EQ(got.groupSize, group);
    EXPECT_EQ(got.algorithm, algo);
  }
}

// Narrowing the lists to a layer must not change an answer.
TEST(Quantization, ManyModulesAreAskedQuickly) {
  QuantizationConfig q;
  q.method = Method::Mixed;
  q.exclude = {"gate_proj",         "model.layers.1*",       "model.layers.2",
               "*[4-5].self_attn*", "model.layers.3?.mlp.*", "lm_head"};
  q.globs = {{"model.layers.7.*", Format::FP8Block}, {"*", Format::NVFP4}};
  q.modules = {{"model.layers.20.mlp.up_proj", Format::Int4G32}};
  ExpectedFormats many(q);
  std::set<Format> seen;
  for (int layer = 0; layer < 40; ++layer)
    for (const char *leaf : {"self_attn.o_proj", "mlp.up_proj", "mlp.gate_proj",
                             "mlp.experts.1.up_proj"}) {
      std::string module = "model.layers." + std::to_string(layer) + "." + leaf;
      Format got = many.of(module, Format::F16);
      EXPECT_EQ(got, q.expectedFormat(module, Format::F16)) << module;
      seen.insert(got);
      bool excluded = module.ends_with("gate_proj") || layer == 1 ||
                      (layer >= 10 && layer <= 19) || layer == 2 ||
                      (module.ends_with("o_proj") &&
                       (layer % 10 == 4 || layer % 10 == 5)) ||
                      (layer >= 30 && module.find(".mlp.") != module.npos);
      EXPECT_EQ(got == Format::F16, excluded) << module;
    }
  EXPECT_EQ(seen.size(), 4U);
  EXPECT_EQ(many.of("lm_head", Format::F16), Format::F16);
  EXPECT_EQ(many.of("other", Format::F16), Format::NVFP4);
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
  for (const char *algo : {"FP8", "NVFP4_AWQ", "NVFP4_SVD", "W4A8_AWQ"}) {
    q = mirror();
    q["quant_algo"] = algo;
    EXPECT_EQ(refused(q),
              std::string("/quant_algo: unsupported quantization algorithm "
                          "(string \"") +
                  algo +
                  "\", supported: NVFP4, W4A16_NVFP4, FP8_PB_WO, W4A16_INT4, "
                  "MIXED_PRECISION)");
  }
  q = mixed();
  q["quantized_layers"]["model.layers.1.mlp.up_proj"] = {{"quant_algo", "FP8"}};
  EXPECT_EQ(refused(q),
            "/quantized_layers/model.layers.1.mlp.up_proj/quant_algo: "
            "unsupported quantization algorithm (string \"FP8\", supported: "
            "NVFP4, W4A16_NVFP4, FP8_PB_WO, W4A16_INT4)");
  q = mixed();
  q["quantized_layers"]["*.self_attn.*"]["group_size"] = 64;
  EXPECT_EQ(refused(q), "/quantized_layers/*.self_attn.*/group_size: "
                        "unsupported weight group size (number 64, supported: "
                        "128)");
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

} // namespace
