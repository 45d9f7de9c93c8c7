//===- ConfigFormTest.cpp - how a config tells of quantization ------------===//
//
// Part of mla. The forms as other programs expect them, key by key.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/OutputConfig.h"
#include "unittests/Config/TestFiles.h"
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::quantize;
using namespace mla::test;
using nlohmann::json;

namespace {

Module module(const std::string &name, Choice format) {
  Module out;
  out.name = name;
  out.quantized = format.has_value();
  out.format = format.value_or(Format::BF16);
  return out;
}

/// An MLP, two layers of experts with a router and a head.
Layout layoutOf(Choice attention, Choice mlp, Choice experts, Choice head) {
  Layout layout;
  auto add = [&](const std::string &name, Choice format) {
    layout.modules.push_back(module(name, format));
  };
  for (const char *layer : {"model.layers.1", "model.layers.10"}) {
    std::string path = layer;
    add(path + ".self_attn.q_a_proj", attention);
    add(path + ".self_attn.o_proj", attention);
    add(path + ".mlp.gate", {});
    for (const char *e : {"0", "1"})
      for (const char *leaf : {".gate_proj", ".up_proj", ".down_proj"})
        add(path + ".mlp.experts." + e + leaf, experts);
    add(path + ".mlp.shared_experts.up_proj", mlp);
  }
  add("lm_head", head);
  return layout;
}

struct Written {
  json config, sidecar;
};

Written write(const Layout &layout, const json &input = {{"a", 1}},
              bool fp8Cache = false, bool ue8m0 = false) {
  TempFolder folder;
  folder.write("config.json", input.dump());
  auto texts = outputConfig(folder / "config.json", layout, fp8Cache, ue8m0);
  EXPECT_TRUE(texts.ok()) << texts.status().message();
  Written out;
  out.config = json::parse(texts->config);
  if (texts->hfQuantConfig)
    out.sidecar = json::parse(*texts->hfQuantConfig);
  return out;
}

TEST(ConfigForm, Fp8) {
  Written out = write(layoutOf(Format::FP8Block, Format::FP8Block, {}, {}),
                      {{"a", 1}}, true, true);
  EXPECT_EQ(out.config, json::parse(R"({"a": 1, "quantization_config": {
    "quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128],
    "activation_scheme": "dynamic", "scale_fmt": "ue8m0",
    "modules_to_not_convert": ["model.layers.1.mlp.gate",
      "model.layers.1.mlp.experts", "model.layers.10.mlp.gate",
      "model.layers.10.mlp.experts", "lm_head"],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "dynamic": false}}})"));
  EXPECT_TRUE(out.sidecar.is_null());
}

TEST(ConfigForm, Fp8NamesExpertsThatDiffer) {
  Layout layout = layoutOf(Format::FP8Block, {}, Format::FP8Block, {});
  for (Module &m : layout.modules)
    if (m.name == "model.layers.1.mlp.experts.1.up_proj")
      m.quantized = false;
  json list =
      write(layout).config["quantization_config"]["modules_to_not_convert"];
  EXPECT_EQ(list[1], "model.layers.1.mlp.experts.1.up_proj");
  EXPECT_EQ(list[2], "model.layers.1.mlp.shared_experts.up_proj");
}

TEST(ConfigForm, Nvfp4) {
  Written out = write(layoutOf({}, {}, Format::NVFP4, {}), {{"a", 1}}, true);
  json ignore = {"lm_head",
                 "model.layers.1.mlp.gate",
                 "model.layers.1.mlp.shared_experts*",
                 "model.layers.1.self_attn*",
                 "model.layers.10.mlp.gate",
                 "model.layers.10.mlp.shared_experts*",
                 "model.layers.10.self_attn*"};
  json config = out.config["quantization_config"];
  EXPECT_EQ(config["quant_method"], "modelopt");
  EXPECT_EQ(config["quant_algo"], "NVFP4");
  EXPECT_EQ(config["ignore"], ignore);
  EXPECT_EQ(config["config_groups"]["group_0"]["weights"]["group_size"], 16);
  EXPECT_EQ(config["kv_cache_scheme"]["num_bits"], 8);
  EXPECT_EQ(out.sidecar["producer"]["name"], "modelopt");
  EXPECT_EQ(out.sidecar["quantization"], json({{"quant_algo", "NVFP4"},
                                               {"kv_cache_quant_algo", "FP8"},
                                               {"group_size", 16},
                                               {"exclude_modules", ignore}}));
}

TEST(ConfigForm, ActivationsOfNvfp4OnlyWithTheirScales) {
  Layout layout = layoutOf({}, {}, Format::NVFP4, {});
  auto group = [&] {
    return write(layout)
        .config["quantization_config"]["config_groups"]["group_0"];
  };
  EXPECT_FALSE(group().contains("input_activations"));
  layout.hasInputScales = true;
  EXPECT_EQ(group()["input_activations"], group()["weights"]);
}

/// "model.layers.1*" would also mean layer 10.
TEST(ConfigForm, WholeLayersAreNamedWithADot) {
  Layout layout;
  for (const char *name :
       {"model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"})
    layout.modules.push_back(module(name, {}));
  layout.modules.push_back(
      module("model.layers.10.mlp.up_proj", Format::NVFP4));
  layout.modules.push_back(module("vision_tower.a.b", {}));
  layout.modules.push_back(module("vision_tower.c", {}));
  EXPECT_EQ(write(layout).config["quantization_config"]["ignore"],
            json({"model.layers.1.*", "vision_tower*"}));
}

TEST(ConfigForm, Int4) {
  Written out = write(layoutOf({}, {}, Format::Int4G32, {}));
  json config = out.config["quantization_config"];
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "pack-quantized");
  EXPECT_EQ(
      config["ignore"],
      json({"lm_head", "model.layers.1.mlp.gate",
            "re:model\\.layers\\.1\\.mlp\\.shared_experts.*",
            "re:model\\.layers\\.1\\.self_attn.*", "model.layers.10.mlp.gate",
            "re:model\\.layers\\.10\\.mlp\\.shared_experts.*",
            "re:model\\.layers\\.10\\.self_attn.*"}));
  json weights = config["config_groups"]["group_0"]["weights"];
  EXPECT_EQ(weights["num_bits"], 4);
  EXPECT_EQ(weights["group_size"], 32);
  EXPECT_EQ(weights["type"], "int");
  EXPECT_EQ(weights["symmetric"], true);
  EXPECT_TRUE(out.sidecar.is_null());
}

TEST(ConfigForm, SeveralFormats) {
  Written out =
      write(layoutOf(Format::FP8Block, Format::Int4G32, Format::NVFP4, {}));
  json config = out.config["quantization_config"];
  EXPECT_EQ(config["quant_algo"], "MIXED_PRECISION");
  json layers;
  for (const char *layer : {"model.layers.1", "model.layers.10"}) {
    std::string path = layer;
    layers[path + ".self_attn*"] = {{"quant_algo", "FP8_PB_WO"},
                                    {"group_size", 128}};
    layers[path + ".mlp.experts*"] = {{"quant_algo", "NVFP4"},
                                      {"group_size", 16}};
    layers[path + ".mlp.shared_experts*"] = {{"quant_algo", "W4A16_INT4"},
                                             {"group_size", 32}};
  }
  json ignore = {"lm_head", "model.layers.1.mlp.gate",
                 "model.layers.10.mlp.gate"};
  EXPECT_EQ(config["quantized_layers"], layers);
  EXPECT_EQ(config["ignore"], ignore);
  json side = out.sidecar["quantization"];
  EXPECT_EQ(side["quant_algo"], "MIXED_PRECISION");
  EXPECT_EQ(side["quantized_layers"], layers);
  EXPECT_EQ(side["exclude_modules"], ignore);
}

TEST(ConfigForm, PlaceAndRemoval) {
  Layout fp8 = layoutOf(Format::FP8Block, {}, {}, {});
  Layout plain = layoutOf({}, {}, {}, {});
  json old = {{"quant_method", "old"}};
  json nested = {{"text_config", {{"quantization_config", old}, {"b", 2}}}};
  Written out = write(fp8, nested);
  EXPECT_FALSE(out.config.contains("quantization_config"));
  EXPECT_EQ(out.config["text_config"]["quantization_config"]["quant_method"],
            "fp8");
  EXPECT_EQ(write(plain, nested).config, json({{"text_config", {{"b", 2}}}}));

  json both = nested;
  both["quantization_config"] = old;
  out = write(fp8, both);
  EXPECT_EQ(out.config["quantization_config"]["quant_method"], "fp8");
  EXPECT_EQ(out.config["text_config"], json({{"b", 2}}));

  // Numbers stay what they were.
  json numbers = json::parse(R"({"x": 1e-06, "y": 0.1, "z": 10000.0, "n": 7,
                                 "s": "\u00e9", "l": [1, null, true]})");
  EXPECT_EQ(write(plain, numbers).config, numbers);
}

} // namespace
