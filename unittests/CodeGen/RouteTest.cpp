//===- RouteTest.cpp - routers --------------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "mlir/IR/Builders.h"

using namespace mla;
using namespace mla::test;

namespace {

struct Case {
  int64_t experts, topk, groups, topkGroups;
  ScoringKind scoring;
  TopkKind method;
  bool normalize;
  double scale;
  std::optional<Format> bias;

  std::string kernel(Kernels &kernels) const {
    mlir::Builder b(&kernels.context());
    return host::route(kernels.site(),
                       RoutingAttr::get(b.getContext(), topk, groups,
                                        topkGroups, scoring, method, normalize,
                                        b.getF64FloatAttr(scale)),
                       experts, bias);
  }
};

using enum ScoringKind;
using enum TopkKind;

const Case cases[] = {
    {16, 4, 1, 1, Sigmoid, NoAuxTc, true, 2.5, Format::F32},
    {32, 8, 8, 4, Sigmoid, NoAuxTc, true, 2.5, Format::F32},
    {12, 3, 3, 2, Sigmoid, NoAuxTc, false, 1.0, Format::BF16},
    {6, 6, 2, 2, Sigmoid, NoAuxTc, true, 1.5, Format::F16}, // all of them
    {8, 2, 1, 1, Softmax, Greedy, false, 1.0, std::nullopt},
    {5, 1, 1, 1, Softmax, Greedy, true, 16.0, std::nullopt},
    {16, 3, 4, 2, Softmax, Greedy, false, 1.0, std::nullopt}, // knows no groups
    {16, 6, 4, 2, Softmax, GroupLimitedGreedy, false, 16.0, std::nullopt},
    {20, 2, 5, 1, Softmax, GroupLimitedGreedy, true, 1.0, std::nullopt},
};

/// Index of the largest value, the first of equals.
int64_t best(const std::vector<double> &values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

/// What the routing attribute's description says, for one token.
void reference(const Case &c, const std::vector<double> &logits,
               const std::vector<double> &bias, std::vector<double> &indices,
               std::vector<Expected> &weights) {
  const double none = -std::numeric_limits<double>::infinity();
  std::vector<double> scores, choice;
  double total = 0, highest = logits[best(logits)];
  for (double l : logits)
    total += std::exp(l - highest);
  for (int64_t e = 0; e < c.experts; ++e) {
    scores.push_back(c.scoring == Sigmoid
                         ? 1 / (1 + std::exp(-logits[e]))
                         : std::exp(logits[e] - highest) / total);
    choice.push_back(scores[e] + (c.bias ? bias[e] : 0));
  }
  if (c.method != Greedy) {
    int64_t width = c.experts / c.groups;
    std::vector<double> groups, masked(c.experts, none);
    for (int64_t g = 0; g < c.groups; ++g) {
      std::vector<double> of(choice.begin() + g * width,
                             choice.begin() + (g + 1) * width);
      std::sort(of.rbegin(), of.rend());
      groups.push_back(c.method == NoAuxTc ? of[0] + of[1] : of[0]);
    }
    for (int64_t i = 0; i < c.topkGroups; ++i) {
      int64_t g = best(groups);
      groups[g] = none;
      std::copy_n(choice.begin() + g * width, width,
                  masked.begin() + g * width);
    }
    choice = masked;
  }
  double sum = 0;
  std::vector<double> chosen;
  for (int64_t j = 0; j < c.topk; ++j) {
    int64_t e = best(choice);
    choice[e] = none;
    indices.push_back(e);
    chosen.push_back(scores[e]);
    sum += scores[e];
  }
  for (double w : chosen) {
    w = (c.normalize ? w / (sum + 1e-20) : w) * c.scale;
    weights.push_back({w, w}); // Scores are positive: errors are relative.
  }
}

/// Runs a few tokens with logits and biases from `logit` and `bias` and
/// compares indices and weights.
void compare(const Kernel &k, const Case &c, llvm::function_ref<double()> logit,
             llvm::function_ref<double()> bias) {
  int64_t tokens = 9;
  Buffer logits = Buffer::output(Format::F32, tokens * c.experts);
  for (int64_t i = 0; i < logits.size(); ++i)
    logits.set(i, logit());
  Buffer biases = Buffer::output(c.bias.value_or(Format::F32), c.experts);
  for (int64_t i = 0; i < c.experts; ++i)
    biases.set(i, bias());
  Buffer indices = Buffer::output(Format::I32, tokens * c.topk);
  Buffer weights = Buffer::output(Format::F32, tokens * c.topk);
  if (c.bias)
    k(tokens, {logits, biases, indices, weights});
  else
    k(tokens, {logits, indices, weights});
  std::vector<double> expectedIndices;
  std::vector<Expected> expectedWeights;
  for (int64_t t = 0; t < tokens; ++t)
    reference(c, logits.values(t * c.experts, c.experts), biases.values(),
              expectedIndices, expectedWeights);
  EXPECT_EQ(indices.values(), expectedIndices);
  expectNear(weights, expectedWeights);
}

double uniform(Random &random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

TEST(Route, EqualsReference) {
  Kernels kernels;
  for (const Case &c : cases)
    kernels.check(c.kernel(kernels), [c](const Kernel &k, Random &random) {
      for (int i = 0; i < 20; ++i)
        compare(
            k, c, [&] { return uniform(random, -4, 4); },
            [&] { return uniform(random, -0.3, 0.3); });
    });
  kernels.run();
}

/// A bias may make every choice negative; experts of other groups must not win
/// by being masked with 0.
TEST(Route, NegativeBias) {
  Kernels kernels;
  for (const Case &c : cases)
    if (c.bias)
      kernels.check(c.kernel(kernels), [c](const Kernel &k, Random &random) {
        compare(
            k, c, [&] { return uniform(random, -4, 4); },
            [&] { return uniform(random, -9, -5); });
      });
  kernels.run();
}

TEST(Route, EqualScoresGoToTheLowerIndex) {
  Kernels kernels;
  for (const Case &c : cases)
    kernels.check(c.kernel(kernels), [c](const Kernel &k, Random &random) {
      for (int64_t range : {0, 1, 2})
        compare(
            k, c, [&] { return randomInt(random, 0, range); },
            [] { return 0.25; });
    });
  kernels.run();
}

/// Later kernels take the indices as places of weights.
TEST(Route, NaNKeepsIndicesInRange) {
  Kernels kernels;
  for (const Case &c : cases)
    kernels.check(c.kernel(kernels), [c](const Kernel &k, Random &random) {
      const double values[] = {NAN, INFINITY, -INFINITY, 0, 1};
      int64_t tokens = 40;
      std::vector<double> drawn;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t e = 0, kinds = t % 5; e < c.experts; ++e)
          drawn.push_back(values[randomInt(random, 0, kinds)]);
      Buffer logits = Buffer::of(Format::F32, drawn);
      Buffer biases =
          Buffer::uniform(c.bias.value_or(Format::F32), c.experts, random);
      Buffer indices = Buffer::output(Format::I32, tokens * c.topk);
      Buffer weights = Buffer::output(Format::F32, tokens * c.topk);
      if (c.bias)
        k(tokens, {logits, biases, indices, weights});
      else
        k(tokens, {logits, indices, weights});
      for (double i : indices.values())
        EXPECT_TRUE(i >= 0 && i < c.experts) << i;
    });
  kernels.run();
}

} // namespace
