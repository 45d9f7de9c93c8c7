//===- ChoicesTest.cpp - ties between experts -----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Choices.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::cli;
using Kind = ChoiceDifference::Kind;

namespace {

Routing routing(const char *kernel) {
  std::optional<Routing> found = routingOf(kernel);
  EXPECT_TRUE(found) << kernel;
  return found.value_or(Routing());
}

TEST(Choices, NamesOfKernels) {
  Routing r =
      routing("route_sigmoid_noaux_tc_384_8_8_4_1_4000000000000000_f32");
  EXPECT_FALSE(r.softmax);
  EXPECT_EQ(r.method, Routing::Method::NoauxTc);
  EXPECT_EQ(r.experts, 384);
  EXPECT_EQ(r.topk, 8);
  EXPECT_EQ(r.groups, 8);
  EXPECT_EQ(r.topkGroups, 4);
  r = routing("route_softmax_group_limited_greedy_64_6_8_3_0_1");
  EXPECT_TRUE(r.softmax);
  EXPECT_EQ(r.method, Routing::Method::GroupLimitedGreedy);
  EXPECT_EQ(r.topkGroups, 3);
  r = routing("route_softmax_greedy_64_6_8_3_0_1"); // It knows no groups.
  EXPECT_EQ(r.method, Routing::Method::Greedy);
  EXPECT_EQ(r.groups, 1);
  for (const char *other :
       {"", "route", "router_f32", "route_softmax_greedy_64", "linear_4_4",
        "route_tanh_greedy_64_6_1_1_0_1", "route_softmax_greedy_4_6_1_1_0_1",
        "route_softmax_noaux_tc_64_6_7_3_0_1",
        "route_softmax_greedy_64_6_1_x_0_1"})
    EXPECT_FALSE(routingOf(other)) << other;
}

TEST(Choices, Scores) {
  std::vector<float> logits = {0, 1, -2}, bias = {1, 2, 3};
  std::vector<double> s =
      choiceScores(routing("route_sigmoid_noaux_tc_3_1_1_1_0_1"), logits, bias);
  EXPECT_NEAR(s[1], 1 / (1 + std::exp(-1.0)) + 2, 1e-12);
  s = choiceScores(routing("route_softmax_greedy_3_1_1_1_0_1"), logits, {});
  EXPECT_NEAR(s[0] + s[1] + s[2], 1, 1e-12);
  EXPECT_NEAR(s[1] / s[0], std::exp(1.0), 1e-12);
}

TEST(Choices, ThatScoresCallFor) {
  std::vector<double> s = {0.9, 0.1, 0.5, 0.6, 0.5, 0.2};
  EXPECT_EQ(choiceOf(routing("route_sigmoid_greedy_6_3_1_1_0_1"), s),
            (std::vector<float>{0, 3, 2}));
  // Groups of two by the sum of both: 1.0, 1.1, 0.7.
  EXPECT_EQ(choiceOf(routing("route_sigmoid_noaux_tc_6_2_3_1_0_1"), s),
            (std::vector<float>{3, 2}));
  Choices known;
  known.name = "experts";
  known.routing = routing("route_sigmoid_greedy_3_1_1_1_0_1");
  known.indices = {0, 2};
  known.logits = {2, 1, 0, 0, 1, 2};
  Choices own = choicesFrom(known, {1, 2, 0, 0, 1, 2}, 7);
  EXPECT_EQ(own.indices, (std::vector<float>{1, 2}));
  EXPECT_EQ(own.logitsSpace, 7u);
  EXPECT_FALSE(own.indicesSpace);
}

TEST(Choices, OfScores) {
  Routing plain = routing("route_sigmoid_greedy_6_2_1_1_0_1");
  std::vector<double> s = {0.9, 0.1, 0.5, 0.5000001, 0.3, 0.2};
  auto is = [&](const Routing &r, std::vector<float> chosen) {
    return isChoiceOf(r, s, chosen);
  };
  EXPECT_TRUE(is(plain, {0, 3}));
  EXPECT_TRUE(is(plain, {3, 0})); // The order is nobody's business.
  EXPECT_TRUE(is(plain, {0, 2})); // f32 cannot tell these.
  EXPECT_FALSE(is(plain, {0, 4}));
  EXPECT_FALSE(is(plain, {2, 3}));
  EXPECT_FALSE(is(plain, {0, 0}));
  EXPECT_FALSE(is(plain, {0, 6}));
  EXPECT_FALSE(is(plain, {0, -1}));
  EXPECT_FALSE(is(plain, {0, NAN}));

  // Groups {0, 1}, {2, 3}, {4, 5}: by their best, or by their sums, one is
  // kept.
  Routing best = routing("route_softmax_group_limited_greedy_6_2_3_1_0_1");
  EXPECT_TRUE(is(best, {0, 1}));
  EXPECT_FALSE(is(best, {0, 3}));
  EXPECT_FALSE(is(best, {2, 3}));
  Routing sums = routing("route_sigmoid_noaux_tc_6_2_3_1_0_1");
  EXPECT_TRUE(is(sums, {0, 1})); // 1.0 and 1.0000001
  EXPECT_TRUE(is(sums, {2, 3}));
  EXPECT_FALSE(is(sums, {0, 3}));
  EXPECT_FALSE(is(sums, {4, 5}));
}

/// Two tokens, of which the second has the scores of `logits`.
Choices choices(const char *kernel, std::vector<float> logits,
                std::vector<float> chosen, std::vector<float> bias = {}) {
  Choices c;
  c.name = "layers.0.mlp/moe:0.experts";
  c.routing = routing(kernel);
  c.bias = bias;
  c.logits.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    c.logits[i] = static_cast<float>(i);
  for (int64_t i = 0; i < c.routing.topk; ++i)
    c.indices.push_back(static_cast<float>(c.routing.experts - 1 - i));
  c.logits.insert(c.logits.end(), logits.begin(), logits.end());
  c.indices.insert(c.indices.end(), chosen.begin(), chosen.end());
  c.weights.resize(c.indices.size());
  return c;
}

TEST(Choices, TiesAndMistakes) {
  const char *kernel = "route_softmax_greedy_4_2_1_1_0_1";
  Choices a = choices(kernel, {2, 1, 0.999F, -1}, {0, 1});
  auto one = [&](const Choices &b) {
    std::vector<ChoiceDifference> found = differences(a, b, 1e-2);
    EXPECT_EQ(found.size(), 1U);
    EXPECT_EQ(found.at(0).token, 1);
    return found.at(0);
  };
  EXPECT_TRUE(differences(a, a, 1e-2).empty());
  EXPECT_TRUE(differences(a, choices(kernel, {2, 1.1F, 0.9F, -1}, {1, 0}), 1e-2)
                  .empty()); // The same experts.

  ChoiceDifference tie = one(choices(kernel, {2, 1, 1.001F, -1}, {2, 0}));
  EXPECT_EQ(tie.kind, Kind::Tie);
  EXPECT_EQ(tie.first, std::vector<int32_t>{1});
  EXPECT_EQ(tie.other, std::vector<int32_t>{2});
  EXPECT_NEAR(tie.logitsError, 0.002 / std::sqrt(7), 1e-4);
  EXPECT_GT(tie.gap, 1e-4);
  EXPECT_LT(tie.gap, 1e-3);
  EXPECT_NE(describe(tie).find("tie: layers.0.mlp/moe:0.experts: expert 2 "
                               "instead of 1; scores 2"),
            std::string::npos)
      << describe(tie);

  // The logits say otherwise; they are too far away.
  EXPECT_EQ(one(choices(kernel, {2, 1, 0.999F, -1}, {0, 3})).kind, Kind::Wrong);
  EXPECT_EQ(one(choices(kernel, {2, 1, 0.999F, -1}, {0, 7})).kind, Kind::Wrong);
  EXPECT_EQ(one(choices(kernel, {2, 1, 1.5F, -1}, {2, 0})).kind, Kind::Logits);
  EXPECT_EQ(one(choices(kernel, {2, 1, NAN, -1}, {2, 0})).kind, Kind::Logits);
}

TEST(Choices, TheBiasCounts) {
  const char *kernel = "route_sigmoid_noaux_tc_4_1_1_1_0_1_f32";
  std::vector<float> bias = {0, 5, 5.0001F, 0};
  Choices a = choices(kernel, {9, 0, 0, 0}, {2}, bias);
  Choices b = choices(kernel, {9, 0.001F, 0, 0}, {1}, bias);
  ASSERT_EQ(differences(a, b, 1e-2).size(), 1U);
  EXPECT_EQ(differences(a, b, 1e-2)[0].kind, Kind::Tie);
  EXPECT_NEAR(differences(a, b, 1e-2)[0].gap, 1e-4, 1e-5);
  b.indices.back() = 0; // The largest logit, without its bias.
  EXPECT_EQ(differences(a, b, 1e-2)[0].kind, Kind::Wrong);
  a.bias.clear(); // One of the two will do.
  EXPECT_EQ(differences(a, b, 1e-2)[0].kind, Kind::Wrong);
  b.bias.clear();
  EXPECT_EQ(differences(a, b, 1e-2)[0].kind, Kind::NotJudged);
}

} // namespace
