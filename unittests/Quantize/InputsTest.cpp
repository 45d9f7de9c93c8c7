//===- InputsTest.cpp - what inputs may look like -------------------------===//
//
// Part of mla. Small models with random weights: names with a prefix, vision
// tensors, columns that nothing divides, formats of other producers, scales of
// the cache, and inputs that are refused.
//
//===----------------------------------------------------------------------===//
#include "Folders.h"
#include "mla/Config/KvScales.h"
#include "mla/Quant/Codec.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

template <typename T> std::string raw(const T &value) {
  std::string out(sizeof(value), '\0');
  std::memcpy(out.data(), &value, sizeof(value));
  return out;
}

/// A model in which every format fits but where a test says otherwise.
json evenConfig() {
  json config = smallConfig();
  config["q_lora_rank"] = 32;
  return config;
}

const std::string expert = "model.layers.1.mlp.experts.5.down_proj";

TEST(Inputs, ColumnsThatTheFormatDoesNotDivide) {
  TempFolder in, out;
  json config = smallConfig(); // q_lora_rank is 24.
  writeModel(in, config, randomTensors(config));
  std::string summary;
  ASSERT_EQ(quantizeTo(in.path, out / "o", "nvfp4", {}, {}, &summary), "");
  ModelFolder after(out / "o");
  EXPECT_EQ(after.contradictions(), 0u);
  EXPECT_EQ(after.format("model.layers.0.self_attn.q_b_proj"), Format::BF16);
  EXPECT_EQ(after.format("model.layers.0.self_attn.q_a_proj"), Format::NVFP4);
  EXPECT_EQ(after.config->quantization.expectedFormat(
                "model.layers.0.self_attn.q_b_proj", Format::BF16),
            Format::BF16);
  EXPECT_NE(summary.find("24 columns, which are no multiple of 16 (4): "
                         "model.layers.0.self_attn.q_b_proj"),
            std::string::npos)
      << summary;
}

TEST(Inputs, ExcludeAndTheLastRule) {
  TempFolder in, out;
  json config = evenConfig();
  writeModel(in, config, randomTensors(config));
  quantize::Options options;
  options.recipe.exclude = {"*.experts.5.*", "language_model.model.layers.2.*"};
  ASSERT_EQ(quantizeTo(in.path, out / "o", "int4-g32",
                       {"*experts*=nvfp4", "*=fp8-block", "*shared*=keep",
                        "*mlp.experts.*=nvfp4", "lm_head=fp8-block"},
                       options),
            "");
  ModelFolder before(in.path), after(out / "o");
  EXPECT_EQ(after.format("model.layers.0.mlp.up_proj"), Format::FP8Block);
  EXPECT_EQ(after.format("model.layers.1.mlp.experts.4.up_proj"),
            Format::NVFP4);
  EXPECT_EQ(after.format(expert), Format::BF16);
  EXPECT_EQ(after.format("model.layers.1.mlp.shared_experts.up_proj"),
            Format::BF16);
  EXPECT_EQ(after.format("model.layers.2.self_attn.o_proj"), Format::BF16);
  EXPECT_EQ(after.bytes(expert + ".weight"), before.bytes(expert + ".weight"));
  EXPECT_EQ(after.format("lm_head"), Format::FP8Block);
  EXPECT_EQ(after.format("model.layers.1.mlp.gate"), Format::BF16);
  EXPECT_EQ(after.contradictions(), 0u);
}

TEST(Inputs, TheHeadIsOnlyQuantizedByName) {
  TempFolder in, out;
  json config = evenConfig();
  writeModel(in, config, randomTensors(config));
  ASSERT_EQ(quantizeTo(in.path, out / "o", "nvfp4", {"*=fp8-block"}), "");
  EXPECT_EQ(ModelFolder(out / "o").format("lm_head"), Format::BF16);
}

/// As Kimi-K2.5: the text model is nested, and its tensors have a prefix.
TEST(Inputs, NestedTextModelBesideVision) {
  TempFolder in, out;
  json text = evenConfig();
  json config = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                 {"model_type", "kimi_k25"},
                 {"vision_config", {{"width", 7}}},
                 {"text_config", text}};
  TestTensors tensors = randomTensors(text, "language_model.");
  tensors["vision_tower.blocks.0.fc.weight"] = {
      "BF16", {32, 32}, randomBF16(1024, 99)};
  tensors["vision_tower.blocks.0.norm.weight"] = {"BF16", {32}};
  writeModel(in, config, tensors);
  quantize::Options options;
  options.recipe.exclude = {"language_model.model.layers.0.mlp*"};
  ASSERT_EQ(quantizeTo(in.path, out / "o", "fp8-block",
                       {"model.layers.*.experts.*=nvfp4"}, options),
            "");
  ModelFolder before(in.path), after(out / "o");
  EXPECT_EQ(after.contradictions(), 0u);
  EXPECT_EQ(after.format(expert), Format::NVFP4);
  EXPECT_EQ(after.checkpoint->find(expert + ".weight_scale_2")->name,
            "language_model." + expert + ".weight_scale_2");
  EXPECT_EQ(after.format("model.layers.0.mlp.up_proj"), Format::BF16);
  EXPECT_EQ(after.bytes("vision_tower.blocks.0.fc.weight"),
            before.bytes("vision_tower.blocks.0.fc.weight"));
  json written = json::parse(readBytes(out / "o/config.json"));
  EXPECT_EQ(written["vision_config"], config["vision_config"]);
  json ignore = written["quantization_config"]["ignore"];
  EXPECT_EQ(std::count(ignore.begin(), ignore.end(), "vision_tower*"), 1);
  EXPECT_EQ(std::count(ignore.begin(), ignore.end(),
                       "language_model.model.layers.0.mlp*"),
            1);

  // Where the input's config has it in text_config, the output's has too.
  written["text_config"]["quantization_config"] =
      written["quantization_config"];
  written.erase("quantization_config");
  std::ofstream(out / "o/config.json") << written;
  ASSERT_EQ(quantizeTo(out / "o", out / "p", "keep",
                       {"*self_attn*=bf16", "*shared*=bf16"}),
            "");
  json again = json::parse(readBytes(out / "p/config.json"));
  EXPECT_FALSE(again.contains("quantization_config"));
  EXPECT_EQ(again["text_config"]["quantization_config"]["quant_algo"], "NVFP4");
  EXPECT_EQ(ModelFolder(out / "p").contradictions(), 0u);
}

/// The global scale of compressed-tensors is the reciprocal of ModelOpt's.
TEST(Inputs, Nvfp4OfCompressedTensors) {
  TempFolder modelopt, in, out;
  json config = evenConfig();
  TestTensors tensors = randomTensors(config);
  writeModel(modelopt, config, tensors);
  ASSERT_EQ(quantizeTo(modelopt.path, out / "m", "nvfp4"), "");
  ModelFolder m(out / "m");
  for (const ModelWeight &weight : m.linear()) {
    std::string module = weight.module;
    float global = 0;
    std::memcpy(&global, m.bytes(module + ".weight_scale_2").data(), 4);
    int64_t rows = weight.shape[0], columns = weight.shape[1];
    replaceWeight(
        tensors, module,
        {{".weight_packed",
          {"U8", {rows, columns / 2}, m.bytes(module + ".weight")}},
         {".weight_scale",
          {"F8_E4M3", {rows, columns / 16}, m.bytes(module + ".weight_scale")}},
         {".weight_global_scale", {"F32", {1}, raw(1 / global)}},
         {".input_global_scale", {"F32", {1}, raw(3.F)}}});
  }
  writeModel(in, config, tensors);

  // Kept, they keep their names, and the config its form.
  ASSERT_EQ(quantizeTo(in.path, out / "kept", "keep", {"*self_attn*=bf16"}),
            "");
  ModelFolder before(in.path), kept(out / "kept");
  EXPECT_EQ(kept.contradictions(), 0u);
  EXPECT_EQ(json::parse(readBytes(
                out / "kept/config.json"))["quantization_config"]["format"],
            "nvfp4-pack-quantized");
  EXPECT_EQ(kept.bytes(expert + ".weight_packed"),
            before.bytes(expert + ".weight_packed"));
  EXPECT_EQ(kept.bytes(expert + ".input_global_scale"), raw(3.F));

  // Converted, they are what the reciprocal says.
  ASSERT_EQ(quantizeTo(in.path, out / "bf16", "bf16"), "");
  ModelFolder bf16(out / "bf16");
  EXPECT_FALSE(bf16.holds(expert + ".input_global_scale"));
  std::vector<float> stored = before.values(expert);
  std::vector<float> plain = bf16.values(expert);
  for (size_t i = 0; i < stored.size(); ++i)
    ASSERT_EQ(plain[i], quant::decodeBF16(quant::encodeBF16(stored[i])));
}

TEST(Inputs, ScalesStayPowersOfTwo) {
  TempFolder in, out;
  json config = evenConfig();
  config["quantization_config"] = {{"quant_method", "fp8"},
                                   {"fmt", "e4m3"},
                                   {"scale_fmt", "ue8m0"},
                                   {"weight_block_size", {128, 128}},
                                   {"activation_scheme", "dynamic"}};
  writeModel(in, config, randomTensors(evenConfig())); // Still in bf16.
  ASSERT_EQ(quantizeTo(in.path, out / "o", "fp8-block"), "");
  ModelFolder after(out / "o");
  EXPECT_TRUE(after.config->quantization.scaleUe8m0);
  float scale = 0;
  std::memcpy(&scale, after.bytes(expert + ".weight_scale_inv").data(), 4);
  int exponent = 0;
  EXPECT_EQ(std::frexp(scale, &exponent), .5F);
}

//===----------------------------------------------------------------------===//
// Scales of the cache
//===----------------------------------------------------------------------===//

TEST(Inputs, CacheScalesAreWrittenAndReplaced) {
  TempFolder in, out;
  json config = evenConfig();
  writeModel(in, config, randomTensors(config));
  in.write("first.json", printKvScales({448, 896, 1792, 224}));
  in.write("second.json", printKvScales({44.8F, 448, 448, 448}));
  quantize::Options options;
  options.cacheScales = in / "first.json";
  EXPECT_NE(quantizeTo(in.path, out / "a", "nvfp4", {}, options)
                .find("--kv-scales needs --kv fp8"),
            std::string::npos);
  options.fp8Cache = true;
  ASSERT_EQ(quantizeTo(in.path, out / "a", "nvfp4", {}, options), "");
  ModelFolder a(out / "a");
  EXPECT_TRUE(a.config->quantization.fp8KvCache);
  EXPECT_EQ(a.bytes("model.layers.2.self_attn.k_proj.k_scale"), raw(4.F));
  EXPECT_EQ(a.bytes("model.layers.2.self_attn.v_proj.v_scale"), raw(4.F));
  auto scales = checkpointKvScales(*a.config, *a.checkpoint);
  ASSERT_TRUE(scales.ok()) << scales.status().message();
  EXPECT_EQ(scales->scales, (std::vector<float>{1, 2, 4, .5F}));

  // They stay, and so does the format, when only weights change.
  ASSERT_EQ(quantizeTo(out / "a", out / "b", "fp8-block"), "");
  ModelFolder b(out / "b");
  EXPECT_TRUE(b.config->quantization.fp8KvCache);
  EXPECT_EQ(b.bytes("model.layers.3.self_attn.k_proj.k_scale"), raw(.5F));

  // Newer ones replace them, with the weights as they are.
  options = {};
  options.cacheScales = in / "second.json";
  ASSERT_EQ(quantizeTo(out / "b", out / "c", "keep", {}, options), "");
  ModelFolder c(out / "c");
  scales = checkpointKvScales(*c.config, *c.checkpoint);
  ASSERT_TRUE(scales.ok());
  EXPECT_EQ(scales->scales, (std::vector<float>{.1F, 1, 1, 1}));
  EXPECT_EQ(c.contradictions(), 0u);
  EXPECT_EQ(readBytes(out / "c/config.json"), readBytes(out / "b/config.json"));
}

TEST(Inputs, CacheAloneInEveryForm) {
  TempFolder in, out;
  json config = evenConfig();
  writeModel(in, config, randomTensors(config));
  quantize::Options options;
  options.fp8Cache = true;
  for (const char *format : {"keep", "fp8-block", "int4-g32", "nvfp4"}) {
    ASSERT_EQ(quantizeTo(in.path, out / format, format, {}, options), "");
    ModelFolder after(out / format);
    EXPECT_TRUE(after.config->quantization.fp8KvCache) << format;
    EXPECT_EQ(after.contradictions(), 0u) << format;
  }
}

//===----------------------------------------------------------------------===//
// Files
//===----------------------------------------------------------------------===//

TEST(Inputs, OtherFilesAreCopiedAndOldWeightsAreNot) {
  TempFolder in, out;
  json config = evenConfig();
  writeModel(in, config, randomTensors(config));
  in.write("chat_template.jinja", "hello");
  fs::create_directories(in / "inference");
  in.write("inference/model.py", "pass");
  in.write("inference/mtp.safetensors", "old");
  in.write("pytorch_model.bin", "old");
  fs::create_directories(in / ".git");
  in.write(".git/HEAD", "ref");
  fs::create_symlink(in / "chat_template.jinja", in / "link.jinja");
  ASSERT_EQ(quantizeTo(in.path, out / "o", "fp8-block"), "");
  EXPECT_EQ(entries(out / "o"),
            (std::vector<std::string>{"chat_template.jinja", "config.json",
                                      "inference", "inference/model.py",
                                      "link.jinja", "model.safetensors",
                                      "model.safetensors.index.json"}));
  EXPECT_EQ(readBytes(out / "o/link.jinja"), "hello");
  EXPECT_FALSE(fs::is_symlink(out / "o/link.jinja"));
}

TEST(Inputs, NothingToDoIsACopy) {
  TempFolder out;
  fs::path kjvTiny = MLA_KJV_TINY;
  ASSERT_EQ(quantizeTo(kjvTiny, out / "a", "nvfp4"), "");
  ASSERT_EQ(quantizeTo(out / "a", out / "b", "nvfp4"), "");
  for (const char *file : {"config.json", "hf_quant_config.json"})
    EXPECT_EQ(readBytes(out / "a" / file), readBytes(out / "b" / file));
}

//===----------------------------------------------------------------------===//
// Refusals
//===----------------------------------------------------------------------===//

void expectRefused(const TempFolder &in, const std::string &weights,
                   const std::string &message,
                   const std::vector<std::string> &rules = {}) {
  TempFolder out;
  std::string error = quantizeTo(in.path, out / "o", weights, rules);
  EXPECT_NE(error.find(message), std::string::npos) << error;
  EXPECT_EQ(entries(out.path), std::vector<std::string>());
}

TEST(Inputs, NotFiniteWeights) {
  json config = evenConfig();
  for (auto [code, what] : {std::pair<uint16_t, const char *>{0x7FC0, "NaN"},
                            {0xFF80, "an infinity"}}) {
    TempFolder in;
    TestTensors tensors = randomTensors(config);
    tensors[expert + ".weight"].bytes.replace(100, 2, raw(code));
    writeModel(in, config, tensors);
    for (const char *format : {"nvfp4", "fp8-block", "int4-g32"})
      expectRefused(in, format,
                    "tensor " + expert + ".weight holds " + what +
                        " in rows 0 to 63");
    // What is only copied is not looked at.
    TempFolder out;
    EXPECT_EQ(quantizeTo(in.path, out / "o", "nvfp4", {expert + "=keep"}), "");
  }
}

TEST(Inputs, IncompleteCheckpoints) {
  json config = evenConfig();
  TempFolder in;
  TestTensors tensors = randomTensors(config);
  tensors.erase(expert + ".weight");
  writeModel(in, config, tensors);
  expectRefused(in, "nvfp4", "missing: " + expert + ".weight");

  TempFolder sharded;
  tensors = randomTensors(config);
  for (auto &[name, tensor] : tensors)
    tensor.shard = name < "model.layers.2" ? "model-00001-of-00002.safetensors"
                                           : "model-00002-of-00002.safetensors";
  writeModel(sharded, config, tensors);
  fs::remove(sharded / "model-00002-of-00002.safetensors");
  expectRefused(sharded, "nvfp4",
                "1 shard is missing: model-00002-of-00002.safetensors");
}

TEST(Inputs, RulesThatMatchNothing) {
  json config = evenConfig();
  TempFolder in;
  writeModel(in, config, randomTensors(config));
  expectRefused(in, "nvfp4", "--weights-for *.gat_proj: matches no module",
                {"*.gat_proj=bf16"});
  expectRefused(in, "nvfp4", "--weights-for *.mlp.gate: matches no module",
                {"*.mlp.gate=bf16"});
}

TEST(Recipe, Choices) {
  using namespace quantize;
  EXPECT_EQ(*parseChoice("fp8-block"), Format::FP8Block);
  EXPECT_EQ(*parseChoice("fp8_block"), Format::FP8Block);
  EXPECT_EQ(*parseChoice("keep"), std::nullopt);
  for (const char *bad : {"", "f32", "i32", "NVFP4", "fp8"})
    EXPECT_EQ(parseChoice(bad).status().message(),
              "expected nvfp4, fp8-block, int4-g32, bf16 or keep, found '" +
                  std::string(bad) + "'");
  auto rule = parseRule("*a=b*=int4-g32");
  ASSERT_TRUE(rule.ok());
  EXPECT_EQ(rule->glob, "*a=b*");
  EXPECT_EQ(rule->choice, Format::Int4G32);
  EXPECT_FALSE(parseRule("nvfp4").ok());
  EXPECT_FALSE(parseRule("=nvfp4").ok());
  EXPECT_FALSE(parseRule("*=").ok());
}

} // namespace
