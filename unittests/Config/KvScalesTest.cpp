//===- KvScalesTest.cpp - scales of an FP8 latent cache -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/KvScales.h"
#include "TestFiles.h"
#include <bit>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>
#include <random>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

TestTensor scalar(float value, const std::vector<int64_t> &shape = {}) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return {"F32", shape, bytes};
}

TestTensor bf16Scalar(float value) {
  TestTensor tensor = scalar(value);
  return {"BF16", {}, tensor.bytes.substr(2)};
}

std::string attention(int layer) {
  return "model.layers." + std::to_string(layer) + ".self_attn.";
}

/// The scales of a model of four layers.
Result<KvScales> scalesOf(const TestTensors &tensors) {
  TempFolder folder;
  writeTensors(folder, tensors);
  Result<ModelConfig> config = readConfig(smallConfig());
  EXPECT_TRUE(config.ok());
  Result<Checkpoint> checkpoint = Checkpoint::open(folder.path);
  if (!checkpoint.ok())
    return checkpoint.status();
  return checkpointKvScales(*config, *checkpoint);
}

TEST(KvScales, OfEveryLayer) {
  TestTensors tensors;
  for (int layer = 0; layer < 4; ++layer) {
    float scale = 0.25F * float(layer + 1);
    tensors[attention(layer) + "k_proj.k_scale"] = scalar(scale);
    tensors[attention(layer) + "v_proj.v_scale"] = scalar(scale, {1});
  }
  // Of a drafting layer, and behind the prefix of multimodal models.
  tensors[attention(4) + "k_proj.k_scale"] = scalar(7);
  tensors["language_model." + attention(3) + "k_proj.k_scale"] =
      tensors[attention(3) + "k_proj.k_scale"];
  tensors.erase(attention(3) + "k_proj.k_scale");
  auto got = scalesOf(tensors);
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->scales, (std::vector<float>{0.25F, 0.5F, 0.75F, 1.0F}));
  EXPECT_TRUE(got->all());
  EXPECT_FALSE(got->none());
  EXPECT_TRUE(got->warnings.empty());
  EXPECT_EQ(got->tensors.size(), 8U);
  EXPECT_EQ(got->tensors[6],
            "language_model." + attention(3) + "k_proj.k_scale");
  EXPECT_EQ(got->source.rfind("the checkpoint in ", 0), 0U);
}

TEST(KvScales, OtherNamesAndDtypes) {
  auto got = scalesOf({{attention(0) + "k_scale", bf16Scalar(0.5F)},
                       {attention(1) + "attn.k_scale", scalar(2)},
                       {attention(2) + "k_proj.k_scale", scalar(3, {1})},
                       {attention(3) + "k_scale", scalar(1e-30F)}});
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->scales, (std::vector<float>{0.5F, 2, 3, 1e-30F}));
  EXPECT_TRUE(got->all());
}

TEST(KvScales, None) {
  auto got = scalesOf({{"x", scalar(1)}});
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_TRUE(got->none());
  EXPECT_FALSE(got->all());
  EXPECT_EQ(got->scales, std::vector<float>(4, 1.0F));
  EXPECT_TRUE(got->warnings.empty());
  EXPECT_TRUE(got->tensors.empty());
}

TEST(KvScales, WhatIsOddIsToldOnce) {
  auto got = scalesOf({{attention(1) + "k_proj.k_scale", scalar(0.5F)},
                       {attention(1) + "v_proj.v_scale", scalar(0.25F)},
                       {attention(2) + "k_proj.k_scale", scalar(0.125F)},
                       {attention(2) + "v_proj.v_scale", scalar(3)},
                       {attention(3) + "v_proj.v_scale", scalar(3)}});
  ASSERT_TRUE(got.ok()) << got.status().message();
  EXPECT_EQ(got->scales, (std::vector<float>{1, 0.5F, 0.125F, 1}));
  EXPECT_EQ(got->known, (std::vector<bool>{false, true, true, false}));
  EXPECT_FALSE(got->all() || got->none());
  EXPECT_EQ(
      got->warnings,
      (std::vector<std::string>{
          "k_scale and v_scale differ in 2 of 4 layers (first layer 1: 0.5 and "
          "0.25); the latent cache has one scale for both and uses k_scale",
          "v_scale without k_scale in 1 of 4 layers (first layer 3); it is not "
          "used",
          "no k_scale in 2 of 4 layers (first layer 0); 1 is used"}));
}

TEST(KvScales, WhatIsWrongIsListed) {
  std::string name = attention(0) + "k_proj.k_scale";
  auto error = [&](const TestTensor &tensor) {
    auto got = scalesOf({{name, tensor}});
    EXPECT_FALSE(got.ok());
    return without(got.status().message(), name);
  };
  std::string expected = ": expected a positive finite scale, found ";
  EXPECT_EQ(error(scalar(0)), expected + "0");
  EXPECT_EQ(error(scalar(-1.5F)), expected + "-1.5");
  EXPECT_EQ(error(scalar(std::numeric_limits<float>::infinity())),
            expected + "inf");
  EXPECT_EQ(error(scalar(std::nanf(""))), expected + "nan");
  EXPECT_EQ(error(bf16Scalar(-2)), expected + "-2");
  EXPECT_EQ(error({"F16", {}}), ": expected F32 or BF16, found F16");
  EXPECT_EQ(error({"F32", {2}}),
            ": expected one value, found 1 dimensions of 8 bytes");
  EXPECT_EQ(error({"F32", {1, 1}}),
            ": expected one value, found 2 dimensions of 4 bytes");
  auto two = scalesOf(
      {{name, scalar(-1)}, {attention(2) + "v_proj.v_scale", scalar(0)}});
  EXPECT_EQ(two.status().message(), name + expected + "-1\n" + attention(2) +
                                        "v_proj.v_scale" + expected + "0");
  EXPECT_EQ(two.status().code(), StatusCode::Invalid);
}

//===----------------------------------------------------------------------===//
// The file of a calibration
//===----------------------------------------------------------------------===//

Result<KvScales> readText(const std::string &text, int64_t layers) {
  TempFolder folder;
  folder.write("kv.json", text);
  Result<KvScales> got = readKvScales(folder / "kv.json", layers);
  if (got.ok())
    return got;
  return invalid(without(got.status().message(), folder.path.string() + "/"));
}

TEST(KvScales, WhatIsPrintedReadsBack) {
  std::vector<float> amax = {5.5F, 0, 448, 1e-3F, 3.4028235e38F, 1e-44F};
  std::string text = printKvScales(amax);
  auto got = readText(text, 6);
  ASSERT_TRUE(got.ok()) << got.status().message() << text;
  EXPECT_EQ(got->scales[1], 1);
  EXPECT_EQ(got->scales[2], 1);
  EXPECT_EQ(got->scales[5], 1);
  for (size_t i = 0; i < amax.size(); ++i)
    EXPECT_NEAR(got->scales[i] / (i == 1 || i == 5 ? 1 : amax[i] / 448), 1,
                1e-6);
  EXPECT_TRUE(got->all());
  EXPECT_TRUE(got->warnings.empty());
  EXPECT_NE(text.find("\"amax\": 5.5"), std::string::npos);
  EXPECT_TRUE(readText(printKvScales({}), 0).ok());
}

/// What was measured is stored without being cut off, by the scale as it is
/// after a file, and by no smaller one.
TEST(KvScales, NothingThatWasMeasuredIsCutOff) {
  std::mt19937_64 random(7);
  std::vector<float> amax;
  while (amax.size() < 20000) {
    auto bits = static_cast<uint32_t>(random()) & 0x7FFFFFFF;
    // Half of them of the size that latents have.
    if (amax.size() % 2)
      bits = 0x3F000000 + bits % 0x04000000;
    float value = std::bit_cast<float>(bits);
    if (std::isfinite(value) && value / 448 > 0)
      amax.push_back(value);
  }
  auto got = readText(printKvScales(amax), static_cast<int64_t>(amax.size()));
  ASSERT_TRUE(got.ok()) << got.status().message();
  size_t tooSmall = 0; // of the quotients
  for (size_t i = 0; i < amax.size(); ++i) {
    float scale = got->scales[i], less = std::nextafter(scale, 0.0F);
    ASSERT_LE(amax[i] / scale, 448.0F) << amax[i] << " " << scale;
    ASSERT_TRUE(less == 0 || amax[i] / less > 448.0F) << amax[i];
    tooSmall += amax[i] / (amax[i] / 448) > 448.0F;
  }
  // Otherwise this test would be about nothing.
  EXPECT_GT(tooSmall, amax.size() / 50);
}

TEST(KvScales, FilesMustFitTheModel) {
  auto error = [](const json &scales, int64_t layers) {
    json file = {{"kv_scales", scales}};
    return readText(file.dump(), layers).status().message();
  };
  json one = {{"model.layers.0.self_attn", {{"k_scale", 0.5}}}};
  EXPECT_EQ(error(one, 1), "");
  EXPECT_EQ(error(one, 2),
            "kv.json: at /kv_scales/model.layers.1.self_attn/k_scale: expected "
            "a positive number of f32, found nothing");
  json more = one;
  more["model.layers.7.self_attn"] = one["model.layers.0.self_attn"];
  EXPECT_EQ(error(more, 1),
            "kv.json: at /kv_scales/model.layers.7.self_attn: expected only "
            "attention modules of the model's 1 layers");
  for (const json &value :
       {json(0), json(-1), json("x"), json(1e-60), json(1e60), json(nullptr)}) {
    json bad = {{"model.layers.0.self_attn", {{"k_scale", value}}}};
    EXPECT_EQ(error(bad, 1).rfind(
                  "kv.json: at /kv_scales/model.layers.0.self_attn/k_scale: "
                  "expected a positive number of f32, found ",
                  0),
              0U)
        << value;
  }
  EXPECT_EQ(error(nullptr, 1),
            "kv.json: at /kv_scales/model.layers.0.self_attn/k_scale: expected "
            "a positive number of f32, found nothing");
  EXPECT_EQ(readText("{", 1).status().message().rfind("kv.json: not valid", 0),
            0U);
  EXPECT_EQ(readKvScales("/nowhere/kv.json", 1).status().code(),
            StatusCode::NotFound);
}

} // namespace
