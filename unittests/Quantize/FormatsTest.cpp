//===- FormatsTest.cpp - every format, byte by byte -----------------------===//
//
// Part of mla. kjv-tiny is the input: experts, shared experts and a drafting
// layer, all in bf16.
//
//===----------------------------------------------------------------------===//
#include "Folders.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
namespace fs = std::filesystem;

namespace {
const fs::path kjvTiny = MLA_KJV_TINY;

/// The other matrix of an MLP, which shares the global scale; or none.
std::string partnerOf(const std::string &module) {
  for (auto [mine, other] :
       {std::pair{"gate_proj", "up_proj"}, {"up_proj", "gate_proj"}})
    if (module.ends_with(std::string(".") + mine))
      return module.substr(0, module.size() - std::string(mine).size()) + other;
  return "";
}

std::vector<std::string> partNames(const std::string &module, Format format) {
  switch (format) {
  case Format::FP8Block:
    return {module + ".weight", module + ".weight_scale_inv"};
  case Format::NVFP4:
    return {module + ".weight", module + ".weight_scale",
            module + ".weight_scale_2"};
  case Format::Int4G32:
    return {module + ".weight_packed", module + ".weight_scale"};
  default:
    return {module + ".weight"};
  }
}

/// Every byte of `module` in `after` is what quantizing `before` gives.
void expectQuantized(const ModelFolder &before, const ModelFolder &after,
                     const std::string &module, Format format) {
  SCOPED_TRACE(module);
  ASSERT_EQ(after.format(module), format);
  std::vector<float> values = before.values(module);
  float amax = quant::largestMagnitude(values);
  if (std::string partner = partnerOf(module); !partner.empty())
    amax = std::max(amax, quant::largestMagnitude(before.values(partner)));
  std::vector<std::string> expected =
      quantized(values, before.shape(module), format, amax);
  std::vector<std::string> names = partNames(module, format);
  ASSERT_EQ(names.size(), expected.size());
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(after.bytes(names[i]), expected[i]) << names[i];
}

class Formats : public testing::TestWithParam<Format> {};

TEST_P(Formats, WriteAndReadBack) {
  TempFolder folder;
  Format format = GetParam();
  std::string name(formatName(format));
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "out", name), "");
  ModelFolder before(kjvTiny), after(folder / "out");
  EXPECT_EQ(after.contradictions(), 0u);
  EXPECT_EQ(after.linear().size(), 104u);
  for (const ModelWeight &weight : after.linear())
    expectQuantized(before, after, weight.module, format);
  EXPECT_FALSE(after.holds("model.layers.0.mlp.up_proj.input_scale"));

  // All else is the input's: norms, routers, embedding, head, drafting layer.
  size_t same = 0;
  for (const TensorInfo &tensor : before.checkpoint->tensors()) {
    const TensorInfo *now = after.checkpoint->find(tensor.name);
    if (now && now->dtype == tensor.dtype) {
      EXPECT_EQ(now->shape, tensor.shape);
      EXPECT_EQ(after.bytes(tensor.name), before.bytes(tensor.name))
          << tensor.name;
      ++same;
    }
  }
  EXPECT_EQ(same, before.checkpoint->tensors().size() -
                      (format == Format::BF16 ? 0 : 104));
  for (const char *file : {"tokenizer.json", "tokenizer_config.json",
                           "generation_config.json", "heldout.txt"})
    EXPECT_EQ(readBytes(folder / "out" / file), readBytes(kjvTiny / file));
}

INSTANTIATE_TEST_SUITE_P(All, Formats,
                         testing::Values(Format::NVFP4, Format::FP8Block,
                                         Format::Int4G32, Format::BF16),
                         [](const auto &info) {
                           return std::string(formatName(info.param));
                         });

TEST(Quantize, GateAndUpShareTheirGlobalScale) {
  TempFolder folder;
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "out", "nvfp4"), "");
  ModelFolder after(folder / "out");
  size_t different = 0;
  for (const ModelWeight &weight : after.linear()) {
    std::string partner = partnerOf(weight.module);
    if (partner.empty())
      continue;
    EXPECT_EQ(after.bytes(weight.module + ".weight_scale_2"),
              after.bytes(partner + ".weight_scale_2"));
    std::string mlp = weight.module.substr(0, weight.module.rfind('.'));
    different += after.bytes(weight.module + ".weight_scale_2") !=
                 after.bytes(mlp + ".down_proj.weight_scale_2");
  }
  EXPECT_GT(different, 0u);
}

TEST(Quantize, WeightShapeOfInt4) {
  TempFolder folder;
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "out", "int4-g32"), "");
  ModelFolder after(folder / "out");
  std::string module = "model.layers.1.mlp.experts.3.up_proj";
  std::string expected("\x80\0\0\0\0\1\0\0", 8);
  EXPECT_EQ(after.bytes(module + ".weight_shape"), expected);
}

TEST(Quantize, AttentionInFp8BesideKeptExperts) {
  TempFolder folder;
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "fp4", "nvfp4", {"*self_attn*=keep"}),
            "");
  ASSERT_EQ(quantizeTo(folder / "fp4", folder / "mixed", "keep",
                       {"*self_attn*=fp8-block"}),
            "");
  ModelFolder plain(kjvTiny), fp4(folder / "fp4"), mixed(folder / "mixed");
  EXPECT_EQ(fp4.contradictions(), 0u);
  EXPECT_EQ(mixed.contradictions(), 0u);
  EXPECT_EQ(mixed.config->quantization.method,
            QuantizationConfig::Method::Mixed);
  for (const ModelWeight &weight : mixed.linear()) {
    if (weight.module.find("self_attn") != std::string::npos) {
      EXPECT_EQ(fp4.format(weight.module), Format::BF16);
      expectQuantized(plain, mixed, weight.module, Format::FP8Block);
      continue;
    }
    ASSERT_EQ(mixed.format(weight.module), Format::NVFP4);
    for (const std::string &name : partNames(weight.module, Format::NVFP4))
      EXPECT_EQ(mixed.bytes(name), fp4.bytes(name)) << name;
  }
}

TEST(Quantize, ThreadsAndShardsChangeNoByte) {
  TempFolder folder;
  quantize::Options one, four;
  one.threads = 1;
  four.threads = 4;
  four.shardBytes = 300'000;
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "one", "nvfp4", {}, one), "");
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "four", "nvfp4", {}, four), "");
  ModelFolder a(folder / "one"), b(folder / "four");
  EXPECT_EQ(a.checkpoint->files().size(), 1u);
  EXPECT_GT(b.checkpoint->files().size(), 10u);
  ASSERT_EQ(a.checkpoint->tensors().size(), b.checkpoint->tensors().size());
  for (const TensorInfo &tensor : a.checkpoint->tensors())
    EXPECT_EQ(a.bytes(tensor.name), b.bytes(tensor.name)) << tensor.name;
  // Only a tensor that is larger by itself makes a shard larger.
  for (size_t f = 0; f < b.checkpoint->files().size(); ++f) {
    const CheckpointFile &file = b.checkpoint->files()[f];
    auto inFile = std::count_if(
        b.checkpoint->tensors().begin(), b.checkpoint->tensors().end(),
        [&](const TensorInfo &t) { return t.file == f; });
    EXPECT_TRUE(inFile == 1 || file.size - file.headerBytes <= 300'000)
        << file.name;
  }
}

TEST(Quantize, BackToBF16DropsTheQuantization) {
  TempFolder folder;
  ASSERT_EQ(quantizeTo(kjvTiny, folder / "fp8", "fp8-block"), "");
  ASSERT_EQ(quantizeTo(folder / "fp8", folder / "out", "bf16"), "");
  ModelFolder fp8(folder / "fp8"), out(folder / "out");
  EXPECT_EQ(out.config->quantization.method, QuantizationConfig::Method::None);
  nlohmann::json config =
      nlohmann::json::parse(readBytes(folder / "out/config.json"));
  EXPECT_EQ(config, nlohmann::json::parse(readBytes(kjvTiny / "config.json")));
  EXPECT_FALSE(fs::exists(folder / "out/hf_quant_config.json"));
  for (const ModelWeight &weight : out.linear()) {
    expectQuantized(fp8, out, weight.module, Format::BF16);
    EXPECT_FALSE(out.holds(weight.module + ".weight_scale_inv"));
  }
}

} // namespace
