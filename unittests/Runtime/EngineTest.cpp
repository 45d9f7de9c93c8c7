//===- EngineTest.cpp - steps of a loaded plan ----------------------------===//
//
// Part of mla. Whatever way tokens are given to the engine, the logits are
// those of expectedLogits(), exactly.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Engine.h"
#include "TestPlan.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::runtime;
using mla::test::expectedLogits;
using mla::test::TestPlan;
using mla::test::text;

namespace {

class EngineTest : public testing::Test {
protected:
  void SetUp() override { files.write(); }

  std::unique_ptr<Engine> load(EngineOptions options = {}) {
    if (options.threads == 0)
      options.threads = 3;
    auto engine = Engine::load(files.folder(), options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static void expectRow(const Logits &logits, int64_t row,
                        std::span<const int32_t> ids) {
    std::vector<float> expected = expectedLogits(ids);
    ASSERT_LT(row, logits.rows());
    for (size_t v = 0; v < expected.size(); ++v)
      ASSERT_EQ(logits.row(row)[v], expected[v]) << "token " << v;
  }

  TestPlan files;
};

TEST_F(EngineTest, AnyChunkingGivesTheSameLogits) {
  auto engine = load();
  ASSERT_TRUE(engine);
  std::vector<int32_t> ids = text(150, 1);
  for (size_t chunk : {1, 2, 3, 5, 16, 17, 64, 100, 150}) {
    Sequence sequence = engine->newSequence();
    for (size_t begin = 0; begin < ids.size(); begin += chunk) {
      size_t count = std::min(chunk, ids.size() - begin);
      StepSequence step = {&sequence, std::span(ids).subspan(begin, count),
                           LogitsFor::All};
      auto logits = engine->step({&step, 1});
      ASSERT_TRUE(logits.ok()) << logits.status().message();
      ASSERT_EQ(logits->rows(), static_cast<int64_t>(count));
      for (size_t i = 0; i < count; ++i)
        expectRow(*logits, static_cast<int64_t>(i),
                  std::span(ids).first(begin + i + 1));
    }
    EXPECT_EQ(sequence.length(), 150);
  }
}

TEST_F(EngineTest, SequencesDoNotMix) {
  auto engine = load({.cacheTokens = 1024});
  ASSERT_TRUE(engine);
  std::vector<std::vector<int32_t>> texts;
  std::vector<Sequence> sequences;
  for (int32_t s = 0; s < 7; ++s) {
    texts.push_back(text(static_cast<size_t>(20 + 13 * s), s));
    sequences.push_back(engine->newSequence());
  }
  // Each step gives sequence s its next s + 1 tokens, if it has any left.
  std::vector<size_t> done(texts.size(), 0);
  bool more = true;
  while (more) {
    more = false;
    std::vector<StepSequence> step;
    std::vector<size_t> which;
    for (size_t s = 0; s < texts.size(); ++s) {
      size_t count = std::min(s + 1, texts[s].size() - done[s]);
      if (count == 0)
        continue;
      step.push_back({&sequences[s],
                      std::span(texts[s]).subspan(done[s], count),
                      s == 2 ? LogitsFor::None : LogitsFor::Last});
      if (s != 2)
        which.push_back(s);
      done[s] += count;
      more = true;
    }
    if (!more)
      break;
    auto logits = engine->step(step);
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    ASSERT_EQ(logits->rows(), static_cast<int64_t>(which.size()));
    for (size_t i = 0; i < which.size(); ++i)
      expectRow(*logits, static_cast<int64_t>(i),
                std::span(texts[which[i]]).first(done[which[i]]));
  }
}

TEST_F(EngineTest, PagesAreReused) {
  auto engine = load({.cacheTokens = 130}); // Three pages.
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->cacheTokens(), 192);
  for (int32_t round = 0; round < 4; ++round) {
    std::vector<int32_t> ids = text(140, round);
    Sequence sequence = engine->newSequence();
    StepSequence step = {&sequence, ids};
    auto logits = engine->step({&step, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    expectRow(*logits, 0, ids);
  }
}

TEST_F(EngineTest, CacheExhausted) {
  auto engine = load({.cacheTokens = 128});
  ASSERT_TRUE(engine);
  Sequence a = engine->newSequence(), b = engine->newSequence();
  std::vector<int32_t> ids = text(65, 0);
  StepSequence both[] = {{&a, std::span(ids).first(64)}, {&b, ids}};
  auto logits = engine->step(both);
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.status().code(), StatusCode::Exhausted);
  EXPECT_NE(logits.status().message().find("step 1: the cache is full"),
            std::string::npos)
      << logits.status().message();
  EXPECT_EQ(a.length(), 0);
  EXPECT_EQ(b.length(), 0);
  // Nothing is lost: the same sequences go on.
  StepSequence one = {&b, ids};
  logits = engine->step({&one, 1});
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  expectRow(*logits, 0, ids);
}

TEST_F(EngineTest, ContextFull) {
  auto engine = load();
  ASSERT_TRUE(engine);
  EXPECT_EQ(engine->contextLength(), 200);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = text(201, 0);
  StepSequence step = {&sequence, std::span(ids).first(199)};
  ASSERT_TRUE(engine->step({&step, 1}).ok());
  step.ids = std::span(ids).first(2);
  auto logits = engine->step({&step, 1});
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.status().code(), StatusCode::Invalid);
  EXPECT_NE(
      logits.status().message().find("context of 200 tokens is full: 199"),
      std::string::npos)
      << logits.status().message();
  EXPECT_EQ(sequence.length(), 199);
}

TEST_F(EngineTest, NaNIsReportedAndRolledBack) {
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence good = engine->newSequence(), bad = engine->newSequence();
  std::vector<int32_t> ids = text(40, 0);
  StepSequence start[] = {{&good, ids}, {&bad, ids}};
  ASSERT_TRUE(engine->step(start).ok());
  std::vector<int32_t> poison(70, TestPlan::nanToken);
  StepSequence step[] = {{&good, std::span(ids).first(1)}, {&bad, poison}};
  auto logits = engine->step(step);
  ASSERT_FALSE(logits.ok());
  EXPECT_EQ(logits.status().code(), StatusCode::Numeric);
  EXPECT_NE(logits.status().message().find(
                "step 2: the logits of sequence 1 at position 109"),
            std::string::npos)
      << logits.status().message();
  EXPECT_EQ(good.length(), 40);
  EXPECT_EQ(bad.length(), 40);
  // What the failed step wrote is out of reach.
  StepSequence again = {&bad, std::span(ids).first(1)};
  logits = engine->step({&again, 1});
  ASSERT_TRUE(logits.ok()) << logits.status().message();
  std::vector<int32_t> whole = ids;
  whole.push_back(ids[0]);
  expectRow(*logits, 0, whole);
}

TEST_F(EngineTest, RefusesBadSteps) {
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> good = {1}, low = {-1}, high = {TestPlan::vocab};
  std::vector<std::vector<StepSequence>> steps = {
      {},
      {{&sequence, {}}},
      {{nullptr, good}},
      {{&sequence, low}},
      {{&sequence, high}},
      {{&sequence, good}, {&sequence, good}}};
  for (const auto &step : steps) {
    auto logits = engine->step(step);
    ASSERT_FALSE(logits.ok());
    EXPECT_EQ(logits.status().code(), StatusCode::Invalid);
    EXPECT_EQ(sequence.length(), 0);
  }
}

TEST_F(EngineTest, ReportsMemory) {
  auto engine = load({.cacheTokens = 640});
  ASSERT_TRUE(engine);
  MemoryUse use = engine->memory();
  EXPECT_EQ(use.weights,
            4U * TestPlan::width * (TestPlan::vocab + TestPlan::expertCount));
  EXPECT_EQ(use.cache, 640U * TestPlan::width * 4);
  EXPECT_EQ(use.workspace, 512U);
  EXPECT_GT(use.ports, 0U);
}

TEST_F(EngineTest, Profile) {
  auto engine = load({.profile = true});
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = text(3, 0);
  StepSequence step = {&sequence, ids};
  ASSERT_TRUE(engine->step({&step, 1}).ok());
  std::vector<LaunchCost> costs = engine->profile();
  ASSERT_EQ(costs.size(), 4U);
  EXPECT_EQ(costs[0].kernel, "test_embed");
  EXPECT_EQ(costs[3].origin, "head");
  EXPECT_EQ(costs[3].calls, 1);
}

/// How many values of these tokens 448 * scale does not hold.
int64_t valuesBeyond(std::span<const int32_t> ids, float scale) {
  int64_t count = 0;
  for (int32_t id : ids)
    for (int64_t w = 0; w < TestPlan::width; ++w)
      count += std::fabs(test::embedding(id, w) / scale) > 448 ? 1 : 0;
  return count;
}

TEST_F(EngineTest, CountsWhatAnFp8CacheCutsOff) {
  constexpr float scale = 0.005F; // 2.24 at the most; values go to 5.
  files.addLatentCache(Format::FP8E4M3, scale);
  files.addLatentCache(Format::FP8E4M3, 1);
  files.write();
  for (bool profile : {false, true}) {
    auto engine = load({.profile = profile});
    ASSERT_TRUE(engine);
    EXPECT_TRUE(engine->hasFp8Cache());
    EXPECT_EQ(engine->saturatedValues(), 0);
    Sequence a = engine->newSequence(), b = engine->newSequence();
    int64_t expected = 0;
    // Steps of one run, of several, and small ones after large ones.
    for (size_t size : {1, 3, 40, 2, 1}) {
      std::vector<int32_t> ids = text(size, 2), more = text(size + 7, 3);
      StepSequence step[] = {{&a, ids}, {&b, more, LogitsFor::None}};
      ASSERT_TRUE(engine->step(step).ok());
      expected += valuesBeyond(ids, scale) + valuesBeyond(more, scale);
      EXPECT_EQ(engine->saturatedValues(), expected);
    }
    EXPECT_GT(expected, 100);
  }
}

TEST_F(EngineTest, NothingIsCutOffWithoutAnFp8Cache) {
  files.addLatentCache(Format::BF16);
  files.write();
  auto engine = load();
  ASSERT_TRUE(engine);
  EXPECT_FALSE(engine->hasFp8Cache());
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = text(30, 0);
  StepSequence step = {&sequence, ids};
  ASSERT_TRUE(engine->step({&step, 1}).ok());
  EXPECT_EQ(engine->saturatedValues(), 0);
}

TEST_F(EngineTest, RaisesToTheLargestOfASequence) {
  for (Format format : {Format::F32, Format::BF16, Format::F16})
    files.addLatentCache(format);
  files.plan.caches[0].kind = "index";
  files.write();
  auto engine = load({.cacheTokens = 256});
  ASSERT_TRUE(engine);
  std::vector<int32_t> small(100, 2), large(100, 0);
  ASSERT_EQ(test::largestEmbedding(small), 4);
  ASSERT_EQ(test::largestEmbedding(large), 5);
  auto run = [&](Sequence &sequence, std::span<const int32_t> ids) {
    StepSequence step = {&sequence, ids};
    auto logits = engine->step({&step, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().message();
  };
  {
    // Every page has held large values, and half of the pages still do.
    Sequence old = engine->newSequence();
    run(old, std::vector<int32_t>(128, 0));
    Sequence other = engine->newSequence();
    run(other, std::vector<int32_t>(128, 0));
  }
  Sequence other = engine->newSequence(), sequence = engine->newSequence();
  run(other, large);
  run(sequence, small);
  using Values = std::vector<float>;
  Values amax = {-1, 0, 0, 0};
  Status status = engine->raiseLargest(sequence, amax);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(amax, (Values{-1, 4, 4, 4})); // The first is no latent cache.
  amax[2] = 4.5F;
  ASSERT_TRUE(engine->raiseLargest(sequence, amax).ok());
  EXPECT_EQ(amax, (Values{-1, 4, 4.5F, 4}));
  ASSERT_TRUE(engine->raiseLargest(other, amax).ok());
  EXPECT_EQ(amax, (Values{-1, 5, 5, 5}));
  ASSERT_TRUE(engine->raiseLargest(engine->newSequence(), amax).ok());
  EXPECT_EQ(amax, (Values{-1, 5, 5, 5}));
  // The last row counts too.
  Values again(4, 0);
  run(sequence, std::vector<int32_t>{0});
  ASSERT_TRUE(engine->raiseLargest(sequence, again).ok());
  EXPECT_EQ(again, (Values{0, 5, 5, 5}));
}

TEST_F(EngineTest, RangesThatCannotBeMeasured) {
  files.addLatentCache(Format::F32);
  files.write();
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = {1, 2, TestPlan::nanToken, 3};
  StepSequence step = {&sequence, ids, LogitsFor::None};
  ASSERT_TRUE(engine->step({&step, 1}).ok());
  std::vector<float> amax(3, 0);
  Status status = engine->raiseLargest(sequence, std::span(amax).first(2));
  EXPECT_EQ(status.code(), StatusCode::Numeric);
  EXPECT_EQ(status.message(), "cache latent.1 has NaN or infinite values among "
                              "positions 0 to 3");

  files.addLatentCache(Format::FP8E4M3);
  files.write();
  engine = load();
  ASSERT_TRUE(engine);
  status = engine->raiseLargest(engine->newSequence(), amax);
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
  EXPECT_EQ(status.message(),
            "the range of cache latent.2 cannot be measured in fp8_e4m3; "
            "compile the plan with --kv-cache-dtype f32");
}

// Tests that a step may leave the engine before its sequences do.
TEST_F(EngineTest, SequenceMayOutliveEngine) {
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = text(3, 0);
  StepSequence step = {&sequence, ids};
  ASSERT_TRUE(engine->step({&step, 1}).ok());
  engine.reset();
  EXPECT_EQ(sequence.length(), 3);
}

} // namespace
