//===- FitTest.cpp - names of kernels, results, fitting -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "benchmarks/CostFit.h"
#include "unittests/TempFolder.h"
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::cost;

namespace {

double secondsOf(const Model &model, const std::string &name, Step step,
                 const std::string &family, const std::string &op) {
  std::optional<Prediction> p = predict(model, name, step);
  EXPECT_TRUE(p.has_value()) << name;
  if (!p)
    return 0;
  EXPECT_EQ(p->family, family) << name;
  EXPECT_EQ(p->op, op) << name;
  return p->seconds;
}

TEST(CostNames, ShapesOfKernels) {
  Model m(*findMachine("h200x1"));
  Step one{1, 1, 1024}, forty{40, 40, 64}, prompt{2048, 1, 0};
  Matrix joined[] = {{Format::BF16, 1536, 7168}, {Format::BF16, 576, 7168}};
  EXPECT_EQ(secondsOf(m,
                      "linear_stream_bf16_1536_576_7168_1_norm_bf16_3727c5ac",
                      one, "linear_stream", "linear"),
            m.linearStream(joined, {true, false}).seconds);
  Matrix router{Format::BF16, 384, 7168};
  EXPECT_EQ(
      secondsOf(m, "linear_stream_bf16_384_7168_1_norm_bf16_3727c5ac_exact",
                one, "linear_stream", "linear"),
      m.linearStream({&router, 1}, {true, true}).seconds);
  Matrix gated[] = {{Format::FP8Block, 2304, 7168},
                    {Format::FP8Block, 2304, 7168}};
  EXPECT_EQ(secondsOf(m, "linear_tile_fp8_block_2304_2304_7168_64_gated", forty,
                      "linear_tile", "linear_tile"),
            m.linearTile(gated, 40).seconds);
  Matrix down{Format::Int4G32, 7168, 2304};
  EXPECT_NEAR(secondsOf(m, "linear_large_int4_g32_7168_2304_n_112_residual",
                        prompt, "linear_large", "linear_large") +
                  secondsOf(m, "pack_rows_int4_g32_2304", prompt, "pack_rows",
                            "pack_rows"),
              m.linearLarge({&down, 1}, 2048).seconds, 1e-12);
  // A head has one row for each sequence, however many tokens there are.
  Matrix head{Format::BF16, 1024, 7168};
  EXPECT_EQ(secondsOf(m, "linear_tile_bf16_1024_7168_8_outputs", {2048, 4, 0},
                      "linear_tile", "linear_tile"),
            m.linearTile({&head, 1}, 4).seconds);

  Attention a{8, 512, 64, Format::FP8E4M3};
  EXPECT_NEAR(
      secondsOf(m, "latent_attention_fp8_e4m3_8_512_64_3e1426e5_264_one", one,
                "latent_attention", "attention") +
          secondsOf(m,
                    "latent_combine_fp8_e4m3_8_512_64_3e1426e5_264_one_256_32",
                    one, "latent_combine", "attention"),
      m.attentionDecode(a, one).seconds, 1e-12);
  a.cache = Format::BF16;
  EXPECT_EQ(secondsOf(m, "latent_attention_prefill_bf16_8_512_64_3e1426e5",
                      prompt, "latent_attention_prefill",
                      "latent_attention_prefill"),
            m.attentionPrefill(a, prompt).seconds);

  Experts x{{Format::NVFP4, 256, 7168}, {Format::NVFP4, 7168, 256}, 384, 8, 256};
  EXPECT_EQ(
      secondsOf(m,
                "experts_gate_up_one_nvfp4_256_7168_384_8_256_norm_bf16_3727c5ac",
                one, "experts_gate_up_one", "experts"),
      m.expertsGateUpOne(x).seconds);
  x.chooses = true;
  EXPECT_EQ(secondsOf(m,
                      "experts_gate_up_one_nvfp4_256_7168_384_8_256_norm_bf16_"
                      "3727c5ac_sigmoid_noaux_tc_384_8_1_1_1_4034ed91_f32",
                      one, "experts_gate_up_one", "experts"),
            m.expertsGateUpOne(x).seconds);
  a.cache = Format::FP8E4M3;
  EXPECT_EQ(secondsOf(m, "combine_expand_fp8_e4m3_8_512_64_3e1426e5_264_one_128",
                      one, "combine_expand", "attention"),
            m.attentionCombineExpand(a, 128, one).seconds);
  EXPECT_EQ(secondsOf(m, "experts_down_one_nvfp4_7168_256_384_8_256_residual",
                      one, "experts_down_one", "experts"),
            m.expertsDownOne(x).seconds);
  EXPECT_EQ(secondsOf(m, "experts_down_nvfp4_7168_256_384_8_8_few", forty,
                      "experts_down_few", "experts_few"),
            m.expertsDown(x, 40).seconds);
  EXPECT_EQ(secondsOf(m, "moe_group_384_8_16_few", forty, "moe_group",
                      "moe_group"),
            m.expertsGroup(x, 40).seconds);
  EXPECT_EQ(secondsOf(m, "route_sigmoid_noaux_tc_384_8_1_1_1_4034ed91_f32", one,
                      "route", "route"),
            m.route(384, 1).seconds);
  EXPECT_EQ(secondsOf(m, "absorb_query_8_128_64_512_interleaved_2", one,
                      "heads", "heads"),
            m.heads(8, {Format::BF16, 512, 128}, 1).seconds);
  EXPECT_EQ(secondsOf(m, "expand_value_8_128_512_2", one, "heads", "heads"),
            m.heads(8, {Format::BF16, 128, 512}, 1).seconds);
  EXPECT_EQ(secondsOf(m, "add_7168", forty, "add", "add"),
            m.rows(40, 12 * 7168).seconds);
}

TEST(CostNames, UnknownNames) {
  Model m(*findMachine("h200x1"));
  for (const char *name :
       {"", "linear", "linear_stream", "linear_stream_bf16_7168",
        "linear_stream_7168_7168_1", "linear_streams_bf16_1_1_1",
        "latent_attention_bf16", "experts_down_one_nvfp4_1_2", "add",
        "read_ceiling"})
    EXPECT_FALSE(predict(m, name, {}).has_value()) << name;
}

class ResultsTest : public testing::Test {
protected:
  std::string write(const std::string &name, const std::string &text) {
    std::ofstream(folder / name) << text;
    return (folder / name).string();
  }
  test::TempFolder folder;
  std::vector<MeasuredStep> steps;
};

const char *oneStep =
    R"({"architecture": "step function", "sequences": 4, "context": 64,
        "tokens": 8, "step_seconds_device": 1e-3, "kernels": [
        {"name": "add_7168", "launches": 4, "measured": 3, "seconds": 1e-6,
         "bytes": 0}]})";

TEST_F(ResultsTest, FilesAndFolders) {
  write("a.json", oneStep);
  write("b.json", std::string("[") + oneStep + "," + oneStep + "]");
  write("c.txt", "no results");
  ASSERT_TRUE(readResults(folder.path.string(), steps).ok());
  ASSERT_EQ(steps.size(), 3u);
  EXPECT_EQ(steps[0].name, "a, 4 x 2 at 64");
  EXPECT_EQ(steps[0].step.tokens, 8);
  EXPECT_FALSE(steps[0].isModel);
  ASSERT_EQ(steps[0].kernels.size(), 1u);
  EXPECT_EQ(steps[0].kernels[0].measured, 3);
}

TEST_F(ResultsTest, Mistakes) {
  EXPECT_FALSE(readResults((folder / "none.json").string(), steps).ok());
  EXPECT_FALSE(readResults(folder.path.string(), steps).ok()) << "empty folder";
  EXPECT_FALSE(readResults(write("a.json", "{}"), steps).ok());
  std::string text = oneStep;
  text.replace(text.find("1e-6"), 4, "0");
  EXPECT_FALSE(readResults(write("b.json", text), steps).ok());
}

TEST(CostFit, WhatCanBeCompared) {
  Machine m = *findMachine("h200x1");
  double l2 = double(m.l2Bytes);
  EXPECT_TRUE(comparable({"", 4, 4, 1e-5, l2}, m));
  EXPECT_FALSE(comparable({"", 1, 1, 1e-3, 4 * l2}, m)) << "once a step";
  EXPECT_FALSE(comparable({"", 4, 4, 2e-6, l2 / 20}, m)) << "from the cache";
  EXPECT_TRUE(comparable({"", 4, 4, 2e-6, 1e4}, m)) << "few bytes";
  EXPECT_TRUE(comparable({"", 4, 4, 2e-6, 0}, m));
}

/// Measurements made by the model with other constants are explained.
TEST(CostFit, FindsConstants) {
  Machine machine = *findMachine("h200x1");
  Calibration truth = Calibration::shipped(), start = truth;
  const char *changed[] = {"stream.latency", "stream.nvfp4.bytes_per_cycle",
                           "attention.fp8_e4m3.cycles_32", "rows.latency"};
  for (const char *name : changed)
    truth.values[name] *= 1.4;
  Model model(machine, truth);
  std::vector<MeasuredStep> steps;
  for (int64_t i = 1; i <= 8; ++i) {
    MeasuredStep s;
    s.step = {40, 40, 1000 * i};
    s.seconds = 1;
    for (const std::string &name :
         {"linear_stream_nvfp4_" + std::to_string(800 * i * i) + "_4096_1",
          std::string("latent_attention_fp8_e4m3_64_512_64_3e060060_66_few"),
          "add_" + std::to_string(512 * i)}) {
      s.kernels.push_back({name, 4, 4,
                           predict(model, name, s.step)->seconds +
                               truth.values.at("bench.start") / 4,
                           1e9});
    }
    steps.push_back(s);
  }
  Fitted fitted = fit(machine, start, steps);
  EXPECT_EQ(fitted.measurements, 24);
  EXPECT_LT(fitted.error, 0.03);
  EXPECT_EQ(fit(machine, start, {}).measurements, 0);
  for (const Constant &c : constants()) {
    double value = fitted.calibration.values.at(std::string(c.name));
    EXPECT_GE(value, c.low) << c.name;
    EXPECT_LE(value, c.high) << c.name;
  }
  EXPECT_EQ(fitted.calibration.values.at("prefill.latency"),
            start.values.at("prefill.latency"));
}

} // namespace
