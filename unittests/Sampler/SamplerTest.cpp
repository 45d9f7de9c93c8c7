//===- SamplerTest.cpp - choosing the next token --------------------------===//
//
// Part of mla. Distributions are computed by hand and compared by chi-square
// over a fixed seed, so that the tests cannot fail by chance.
//
//===----------------------------------------------------------------------===//
#include "runtime/sampler/Sampler.h"
#include <chrono>
#include <cmath>
#include <gtest/gtest.h>
#include <limits>
#include <map>

using namespace mla;

namespace {
constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_ = std::numeric_limits<float>::quiet_NaN();
using Logits = std::vector<float>;
using Ids = std::vector<int32_t>;

/// Logits whose softmax at temperature 1 is `p`.
Logits logitsOf(const std::vector<double> &p) {
  Logits out;
  for (double x : p)
    out.push_back(static_cast<float>(std::log(x)));
  return out;
}

SamplerOptions with(auto... set) {
  SamplerOptions o;
  (set(o), ...);
  return o;
}
auto temperature(float v) {
  return [v](SamplerOptions &o) { o.temperature = v; };
}
auto topK(int32_t v) {
  return [v](SamplerOptions &o) { o.topK = v; };
}
auto topP(float v) {
  return [v](SamplerOptions &o) { o.topP = v; };
}
auto minP(float v) {
  return [v](SamplerOptions &o) { o.minP = v; };
}
auto penalty(float v) {
  return [v](SamplerOptions &o) { o.repetitionPenalty = v; };
}
auto seed(uint64_t v) {
  return [v](SamplerOptions &o) { o.seed = v; };
}

/// Draws many times and compares with `expected`; a probability of 0 must never
/// be drawn.
void expectDistribution(const SamplerOptions &options, const Logits &logits,
                        const std::vector<double> &expected,
                        const Ids &history = {}) {
  constexpr int draws = 20000;
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < draws; ++i) {
    auto id = sampler.sample(logits, history);
    ASSERT_TRUE(id.ok()) << id.status().message();
    ++counts.at(*id);
  }
  double sum = 0.0, chi = 0.0;
  int freedom = -1;
  for (double p : expected)
    sum += p;
  for (size_t i = 0; i < counts.size(); ++i) {
    double want = draws * expected[i] / sum;
    if (expected[i] == 0.0) {
      EXPECT_EQ(counts[i], 0) << "id " << i;
      continue;
    }
    chi += (counts[i] - want) * (counts[i] - want) / want;
    ++freedom;
  }
  // Mean and variance of chi-square are n and 2n.
  EXPECT_LT(chi, freedom + 4 * std::sqrt(2.0 * std::max(freedom, 1)));
}

int32_t one(const SamplerOptions &options, const Logits &logits,
            const Ids &history = {}) {
  auto id = Sampler(options).sample(logits, history);
  EXPECT_TRUE(id.ok()) << id.status().message();
  return id.ok() ? *id : -1;
}

const std::vector<double> five = {0.1, 0.4, 0.2, 0.25, 0.05};

TEST(Sampler, PlainSoftmax) {
  expectDistribution(with(), logitsOf(five), five);
}

TEST(Sampler, Temperature) {
  std::vector<double> squared, rooted;
  for (double p : five) {
    squared.push_back(p * p);
    rooted.push_back(std::sqrt(p));
  }
  expectDistribution(with(temperature(0.5f)), logitsOf(five), squared);
  expectDistribution(with(temperature(2.0f)), logitsOf(five), rooted);
  // So cold that only the largest has weight; no NaN from 0 * inf.
  EXPECT_EQ(one(with(temperature(1e-38f)), {1.0f, 3.0f, 2.0f}), 1);
  EXPECT_EQ(one(with(temperature(1e-45f)), {-1e38f, 1e38f, -inf}), 1);
}

TEST(Sampler, GreedyTakesLowestOfEquals) {
  EXPECT_EQ(one(with(temperature(0)), {1, 5, 5, 2}), 1);
  EXPECT_EQ(one(with(temperature(0)), {-inf, -inf, -3}), 2);
  EXPECT_EQ(one(with(temperature(0)), {7}), 0);
  EXPECT_EQ(one(with(temperature(0)), {-0.0f, 0.0f}), 0);
}

TEST(Sampler, TopK) {
  Logits logits = logitsOf(five);
  expectDistribution(with(topK(0)), logits, five);
  expectDistribution(with(topK(5)), logits, five);
  expectDistribution(with(topK(1000000)), logits, five);
  expectDistribution(with(topK(1)), logits, {0, 1, 0, 0, 0});
  expectDistribution(with(topK(3)), logits, {0, 0.4, 0.2, 0.25, 0});
  // Equals of the k-th stay, as in Hugging Face's.
  expectDistribution(with(topK(2)), {0, 1, 0, -1, 0},
                     {1, std::exp(1.0), 1, 0, 1});
}

TEST(Sampler, TopP) {
  Logits logits = logitsOf(five);
  expectDistribution(with(topP(1)), logits, five);
  expectDistribution(with(topP(0)), logits, {0, 1, 0, 0, 0});
  expectDistribution(with(topP(0.39f)), logits, {0, 1, 0, 0, 0});
  expectDistribution(with(topP(0.6f)), logits, {0, 0.4, 0, 0.25, 0});
  expectDistribution(with(topP(0.66f)), logits, {0, 0.4, 0.2, 0.25, 0});
  expectDistribution(with(topP(0.96f)), logits, five);
  // Among equals the lower ids go first.
  expectDistribution(with(topP(0.5f)), {0, 0, 0, 0}, {1, 1, 0, 0});
  // The temperature comes before: at 0.5 the shares are .035 .561 .140 .219
  // .009.
  expectDistribution(with(topP(0.5f), temperature(0.5f)), logits,
                     {0, 1, 0, 0, 0});
}

TEST(Sampler, MinP) {
  Logits logits = logitsOf(five);
  expectDistribution(with(minP(0)), logits, five);
  expectDistribution(with(minP(0.3f)), logits, {0, 0.4, 0.2, 0.25, 0});
  expectDistribution(with(minP(0.6f)), logits, {0, 0.4, 0, 0.25, 0});
  expectDistribution(with(minP(1)), logits, {0, 1, 0, 0, 0});
  expectDistribution(with(minP(1)), {2, 1, 2}, {1, 0, 1});
}

TEST(Sampler, OptionsTogether) {
  // top-k 4 drops .05; of the rest (sum .95) top-p .9 needs .4 + .25 + .2;
  // min-p .6 of .4 drops .2.
  expectDistribution(with(topK(4), topP(0.89f), minP(0.6f)), logitsOf(five),
                     {0, 0.4, 0, 0.25, 0});
  // Top-p counts only what top-k left: .4 / .85 < .5, so a second is needed;
  // of all five .4 + .25 would have been needed as well for .5, but not for
  // .45.
  expectDistribution(with(topK(3), topP(0.45f)), logitsOf(five),
                     {0, 1, 0, 0, 0});
}

TEST(Sampler, RepetitionPenalty) {
  Logits logits = {2, -1, 1, 0};
  double e = std::exp(1.0);
  expectDistribution(with(penalty(2)), logits,
                     {e, std::exp(-2.0), std::exp(0.5), 1}, {0, 1, 2, 3});
  // Once for each id, however often it occurs.
  expectDistribution(with(penalty(2)), logits, {e, 1 / e, e, 1}, {0, 0, 0, 0});
  expectDistribution(with(penalty(0.5f)), logits, {e * e, std::exp(-0.5), e, 1},
                     {1});
  expectDistribution(with(penalty(1)), logits, {e * e, 1 / e, e, 1}, {0, 1});
  EXPECT_EQ(one(with(temperature(0), penalty(3)), {2, 1}, {0}), 1);
  EXPECT_EQ(one(with(temperature(0), penalty(3)), {-2, -1}, {1}), 0);
  EXPECT_EQ(one(with(temperature(0), penalty(3)), {-inf, -1}, {0, 1}), 1);
}

TEST(Sampler, MaskedTokensAreNeverDrawn) {
  expectDistribution(with(), {-inf, 0, -inf, 0}, {0, 1, 0, 1});
  expectDistribution(with(topK(4)), {-inf, 0, -inf, 0}, {0, 1, 0, 1});
  expectDistribution(with(topP(0.99f)), {-inf, 0, -inf, 0}, {0, 1, 0, 1});
  // The smallest positive uniform number must not choose what has no weight.
  expectDistribution(with(), {-1e30f, 0, -1e30f}, {0, 1, 0});
}

TEST(Sampler, SameSeedSameTokens) {
  Logits logits(1000);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = static_cast<float>((i * 37) % 11);
  auto run = [&](Sampler &s) {
    Ids out;
    for (int i = 0; i < 50; ++i)
      out.push_back(*s.sample(logits));
    return out;
  };
  for (auto &options : {with(seed(5)), with(seed(5), topK(50)),
                        with(seed(5), topP(0.5f)), with(seed(5), minP(0.1f))}) {
    Sampler a(options), b(options);
    Ids first = run(a);
    EXPECT_EQ(first, run(b));
    EXPECT_NE(first, run(a)); // It went on.
    a.reseed(5);
    EXPECT_EQ(first, run(a));
    a.reseed(6);
    EXPECT_NE(first, run(a));
  }
}

TEST(Sampler, TokensOfASeedAreFixed) {
  // Equal logits: the token is floor(4096 * u), that is the generator's upper
  // 12 bits. The standard fixes the 10000th number of seed 5489.
  Logits logits(4096, 0.0f);
  Sampler sampler(with(seed(5489)));
  int32_t last = -1;
  for (int i = 0; i < 10000; ++i)
    last = *sampler.sample(logits);
  EXPECT_EQ(last, static_cast<int32_t>(9981545732273789042ull >> 52));
}

TEST(Sampler, WrongLogitsAreNumericErrors) {
  for (const auto &options : {with(), with(temperature(0)), with(topK(1)),
                              with(topP(0.5f)), with(penalty(2))}) {
    for (const Logits &logits : {Logits{0, nan_, 1}, Logits{-inf, -inf},
                                 Logits{0, inf}, Logits{nan_}}) {
      auto id = Sampler(options).sample(logits, Ids{0}, 41);
      ASSERT_FALSE(id.ok());
      EXPECT_EQ(id.status().code(), StatusCode::Numeric);
      EXPECT_NE(id.status().message().find("step 41"), std::string::npos);
    }
  }
  auto id = Sampler(with()).sample(Logits{0, nan_, 1});
  EXPECT_NE(id.status().message().find("token 1 is NaN"), std::string::npos);
  EXPECT_EQ(Sampler(with()).sample({}).status().code(), StatusCode::Invalid);
  // A penalty that overflows is found too.
  auto over = Sampler(with(penalty(1e-30f))).sample(Logits{1e20f, 0}, Ids{0});
  EXPECT_EQ(over.status().code(), StatusCode::Numeric);
  EXPECT_NE(over.status().message().find("repetition penalty"),
            std::string::npos);
}

TEST(Sampler, HistoryMustBeIds) {
  for (int32_t bad : {-1, 2, INT32_MAX}) {
    auto id = Sampler(with(penalty(2))).sample(Logits{0, 1}, Ids{bad});
    EXPECT_EQ(id.status().code(), StatusCode::Invalid);
  }
  // It is not read without a penalty.
  EXPECT_TRUE(Sampler(with()).sample(Logits{0, 1}, Ids{99}).ok());
}

TEST(Sampler, RefusesOptionsOutOfRange) {
  EXPECT_TRUE(with().validate().ok());
  std::map<std::string, std::vector<SamplerOptions>> bad = {
      {"temperature",
       {with(temperature(-1)), with(temperature(nan_)),
        with(temperature(inf))}},
      {"top-k", {with(topK(-1))}},
      {"top-p", {with(topP(-0.1f)), with(topP(1.1f)), with(topP(nan_))}},
      {"min-p", {with(minP(-0.1f)), with(minP(1.1f)), with(minP(nan_))}},
      {"repetition penalty",
       {with(penalty(0)), with(penalty(-1)), with(penalty(nan_)),
        with(penalty(inf))}}};
  for (const auto &[name, all] : bad) {
    for (const SamplerOptions &options : all) {
      Status s = options.validate();
      EXPECT_EQ(s.code(), StatusCode::Invalid);
      EXPECT_EQ(s.message().find(name), 0u) << s.message();
      EXPECT_EQ(Sampler(options).sample(Logits{0}).status().code(),
                StatusCode::Invalid);
    }
  }
}

TEST(Sampler, LargeVocabularyIsFast) {
  Logits logits(163840);
  uint32_t state = 1;
  for (float &v : logits) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state >> 8) / float(1 << 20);
  }
  auto start = std::chrono::steady_clock::now();
  for (auto &options : {with(), with(topK(50)), with(topP(0.9f)),
                        with(topK(50), topP(0.95f), minP(0.05f))}) {
    Sampler sampler(options);
    for (int i = 0; i < 20; ++i)
      ASSERT_TRUE(sampler.sample(logits).ok());
  }
  // Some milliseconds a token; the bound leaves room for sanitizers.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

} // namespace
