//===- SyntheticTest.cpp - weights as a function of name and seed ---------===//
//
// Part of mla. The values are those of docs/synthetic.md.
//
//===----------------------------------------------------------------------===//
#include "runtime/weights/Synthetic.h"
#include <array>
#include <bit>
#include <gtest/gtest.h>

using mla::Format;
using namespace mla::runtime;

namespace {

float fromBF16(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

TEST(Synthetic, Matrix) {
  std::array<int64_t, 2> shape = {1536, 7168};
  SyntheticTensor tensor("model.layers.0.self_attn.q_a_proj.weight", shape, 1);
  std::array<uint16_t, 4> values{};
  tensor.fill(Format::BF16, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_NEAR(fromBF16(values[0]), 0.00598145, 5e-9);
  EXPECT_NEAR(fromBF16(values[1]), 0.00836182, 5e-9);
  EXPECT_NEAR(fromBF16(values[2]), 0.0144043, 5e-8);
  EXPECT_NEAR(fromBF16(values[3]), -0.00921631, 5e-9);

  // Any part is the same as that part of the whole.
  std::array<uint16_t, 2> part{};
  tensor.fill(Format::BF16, 2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part[0], values[2]);
  EXPECT_EQ(part[1], values[3]);
}

TEST(Synthetic, Embedding) {
  std::array<int64_t, 2> shape = {100, 7168};
  SyntheticTensor tensor("model.embed_tokens.weight", shape, 1);
  bool large = false;
  for (uint64_t i = 0; i < 100; ++i)
    large |= tensor.value(i) > 0.5F;
  EXPECT_TRUE(large);
}

TEST(Synthetic, CorrectionBias) {
  std::array<int64_t, 1> shape = {256};
  SyntheticTensor tensor("model.layers.1.mlp.gate.e_score_correction_bias",
                         shape, 1);
  std::array<float, 3> values{};
  tensor.fill(Format::F32, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_NEAR(values[0], 0.08693948, 5e-9);
  EXPECT_NEAR(values[1], -0.03760264, 5e-9);
  EXPECT_NEAR(values[2], 0.02616143, 5e-9);
}

TEST(Synthetic, Norm) {
  std::array<int64_t, 1> shape = {7168};
  SyntheticTensor tensor("model.norm.weight", shape, 1);
  std::array<uint16_t, 3> values{};
  tensor.fill(Format::BF16, 0, std::as_writable_bytes(std::span(values)));
  EXPECT_EQ(fromBF16(values[0]), 0.92578125F);
  EXPECT_EQ(fromBF16(values[1]), 1.0234375F);
  EXPECT_EQ(fromBF16(values[2]), 1.0546875F);
  EXPECT_LT(std::abs(SyntheticTensor("indexer.k_norm.bias", shape, 1).value(5)),
            0.1F);
}

TEST(Synthetic, RoundsTiesToEven) {
  EXPECT_EQ(roundToBF16(std::bit_cast<float>(0x3F808000U)), 0x3F80);
  EXPECT_EQ(roundToBF16(std::bit_cast<float>(0x3F818000U)), 0x3F82);
  EXPECT_EQ(roundToBF16(std::bit_cast<float>(0x3F808001U)), 0x3F81);
  EXPECT_EQ(roundToBF16(-0.0F), 0x8000);
}

} // namespace
