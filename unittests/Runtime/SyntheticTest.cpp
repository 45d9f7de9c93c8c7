//===- SyntheticTest.cpp - weights as a function of name and seed ---------===//
//
// Part of mla. The values are those of docs/synthetic.md.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Codec.h"
#include "runtime/weights/Synthetic.h"
#include <array>
#include <gtest/gtest.h>

using namespace mla::runtime;

namespace {

float inBF16(float value) {
  return mla::quant::decodeBF16(mla::quant::encodeBF16(value));
}

TEST(Synthetic, Matrix) {
  std::array<int64_t, 2> shape = {1536, 7168};
  SyntheticTensor tensor("model.layers.0.self_attn.q_a_proj.weight", shape, 1);
  std::array<float, 4> values{};
  tensor.fill(0, values);
  EXPECT_NEAR(inBF16(values[0]), 0.00598145, 5e-9);
  EXPECT_NEAR(inBF16(values[1]), 0.00836182, 5e-9);
  EXPECT_NEAR(inBF16(values[2]), 0.0144043, 5e-8);
  EXPECT_NEAR(inBF16(values[3]), -0.00921631, 5e-9);

  // Any part is the same as that part of the whole.
  std::array<float, 2> part{};
  tensor.fill(2, part);
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
  tensor.fill(0, values);
  EXPECT_NEAR(values[0], 0.08693948, 5e-9);
  EXPECT_NEAR(values[1], -0.03760264, 5e-9);
  EXPECT_NEAR(values[2], 0.02616143, 5e-9);
}

TEST(Synthetic, Norm) {
  std::array<int64_t, 1> shape = {7168};
  SyntheticTensor tensor("model.norm.weight", shape, 1);
  std::array<float, 3> values{};
  tensor.fill(0, values);
  EXPECT_EQ(inBF16(values[0]), 0.92578125F);
  EXPECT_EQ(inBF16(values[1]), 1.0234375F);
  EXPECT_EQ(inBF16(values[2]), 1.0546875F);
  EXPECT_LT(std::abs(SyntheticTensor("indexer.k_norm.bias", shape, 1).value(5)),
            0.1F);
}

TEST(Synthetic, Bound) {
  std::array<int64_t, 2> matrix = {4, 300};
  std::array<int64_t, 1> vector = {1000};
  for (const SyntheticTensor &tensor :
       {SyntheticTensor("x.up_proj.weight", matrix, 3),
        SyntheticTensor("x.norm.weight", vector, 3)})
    for (uint64_t i = 0; i < 1000; ++i)
      EXPECT_LE(std::abs(tensor.value(i)), tensor.bound());
}

/// The words of int4 go by the name of the weight that they hold.
TEST(Synthetic, PackedNames) {
  std::array<int64_t, 2> shape = {4, 32};
  EXPECT_EQ(SyntheticTensor("x.up_proj.weight_packed", shape, 3).value(5),
            SyntheticTensor("x.up_proj.weight", shape, 3).value(5));
}

} // namespace
