//===- RopeTest.cpp - YaRN's numbers --------------------------------------===//
//
// Part of mla. Expected values: DeepSeek's and Moonshot's published settings
// put through the formulas of transformers' modeling_rope_utils by hand.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;

namespace {

RopeConfig yarnRope(double theta, double factor, double fast, double slow) {
  RopeConfig rope;
  rope.theta = theta;
  rope.yarn = RopeConfig::Yarn{factor, 4096, fast, slow, 1.0, 1.0};
  return rope;
}

/// Checks that the ramp runs from `low` to `high`: before it the plain
/// frequencies, behind it those divided by the factor, between them a mixture.
void expectRamp(const RopeConfig &rope, double low, double high) {
  std::vector<float> got = rope.inverseFrequencies(64);
  ASSERT_EQ(got.size(), 32u);
  for (int i = 0; i < 32; ++i) {
    double plain = std::pow(rope.theta, -i / 32.0);
    double ramp = std::min(1.0, std::max(0.0, (i - low) / (high - low)));
    double want = plain / rope.yarn->factor * ramp + plain * (1.0 - ramp);
    EXPECT_NEAR(got[i] / want, 1.0, 1e-6) << "frequency " << i;
  }
}

TEST(Rope, PlainFrequencies) {
  RopeConfig rope;
  std::vector<float> got = rope.inverseFrequencies(8);
  ASSERT_EQ(got.size(), 4u);
  EXPECT_FLOAT_EQ(got[0], 1.0f);
  EXPECT_FLOAT_EQ(got[1], 0.1f);
  EXPECT_FLOAT_EQ(got[2], 0.01f);
  EXPECT_FLOAT_EQ(got[3], 0.001f);
  EXPECT_EQ(rope.attentionFactor(), 1.0);
  EXPECT_EQ(rope.softmaxFactor(), 1.0);
}

TEST(Rope, YarnRamps) {
  expectRamp(yarnRope(10000, 40, 32, 1), 10, 23); // DeepSeek-V3
  expectRamp(yarnRope(50000, 32, 1, 1), 19, 20);  // Kimi-K2
  expectRamp(yarnRope(50000, 64, 32, 1), 8, 20);  // Kimi-K2.5
}

TEST(Rope, YarnEndsWhereTheDimensionsEnd) {
  // A context so short that both corrections are 0 or less: low == high.
  RopeConfig rope = yarnRope(10000, 4, 32, 1);
  rope.yarn->originalMaxPositions = 1;
  for (float f : rope.inverseFrequencies(16))
    EXPECT_TRUE(std::isfinite(f) && f > 0.0f);
  // No dimension at all, and one pair.
  EXPECT_TRUE(rope.inverseFrequencies(0).empty());
  EXPECT_EQ(rope.inverseFrequencies(2).size(), 1u);
}

TEST(Rope, Factors) {
  RopeConfig rope = yarnRope(10000, 40, 32, 1);
  double m = 0.1 * std::log(40.0) + 1.0;
  EXPECT_DOUBLE_EQ(rope.attentionFactor(), 1.0);
  EXPECT_DOUBLE_EQ(rope.softmaxFactor(), m * m);
  rope.yarn->mscaleAllDim = 0.0;
  EXPECT_DOUBLE_EQ(rope.attentionFactor(), m);
  EXPECT_DOUBLE_EQ(rope.softmaxFactor(), 1.0);
  rope.yarn->factor = 1.0;
  EXPECT_DOUBLE_EQ(rope.attentionFactor(), 1.0);
}

TEST(Rope, SoftmaxScalesOfPublishedModels) {
  const std::pair<const char *, double> cases[] = {
      {"deepseek-ai--DeepSeek-V3_config.json", .1352337789},
      {"deepseek-ai--DeepSeek-V3.2_config.json", .1352337789},
      {"moonshotai--Kimi-K2-Instruct_config.json", .1308608000},
      {"moonshotai--Kimi-K2.5_config.json", .1446796258},
      {"zai-org--GLM-5_config.json", .0625},
      {"deepseek-ai--DeepSeek-V2-Lite-Chat_config.as_printed_by_transformers_"
       "5.7.0.json",
       .1147213868},
  };
  for (const auto &[name, scale] : cases) {
    Result<ModelConfig> config = ModelConfig::read(publishedConfig(name));
    ASSERT_TRUE(config.ok()) << config.status().message();
    EXPECT_NEAR(config->softmaxScale(), scale, 5e-11) << name;
    EXPECT_DOUBLE_EQ(config->rope.attentionFactor(), 1.0) << name;
  }
}

} // namespace
