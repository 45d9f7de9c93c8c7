//===- ObserveTest.cpp - an engine on a device with its own memory --------===//
//
// Part of mla. What is copied and with which keys lists are run, and what
// reports see of a step.
//
//===----------------------------------------------------------------------===//
#include "MirrorDevice.h"
#include "TestPlan.h"
#include "runtime/executor/Engine.h"
#include <cmath>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::runtime;
using mla::test::expectedLogits;
using mla::test::TestPlan;

namespace {

class ObserveTest : public testing::Test {
protected:
  std::unique_ptr<Engine> load(bool gpu, bool profile = false) {
    if (gpu) {
      files.plan.target.name = "sm_90a";
      for (plan::Kernel &kernel : files.plan.kernels)
        kernel.threads = 32;
    }
    files.write();
    EngineOptions options;
    options.threads = 2;
    options.profile = profile;
    options.open = [this](const plan::Plan &, ThreadPool &pool,
                          collectives::Collectives *)
        -> Result<std::unique_ptr<hal::Device>> {
      return std::unique_ptr<hal::Device>(
          std::make_unique<test::MirrorDevice>(pool, log));
    };
    auto engine = Engine::load(files.folder(), options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  static void expectStep(Engine &engine, Sequence &sequence,
                         std::vector<int32_t> &text, size_t count) {
    for (size_t i = 0; i < count; ++i)
      text.push_back(static_cast<int32_t>((text.size() * 5 + 1) % 11));
    StepSequence step = {&sequence, std::span(text).last(count)};
    Result<Logits> logits = engine.step({&step, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    std::vector<float> expected = expectedLogits(text);
    for (size_t v = 0; v < expected.size(); ++v)
      ASSERT_EQ(logits->row(0)[v], expected[v]) << "token " << v;
  }

  TestPlan files;
  test::MirrorLog log;
};

TEST_F(ObserveTest, StepsAreCopiedWhole) {
  auto engine = load(true);
  ASSERT_TRUE(engine);
  Sequence a = engine->newSequence(), b = engine->newSequence();
  std::vector<int32_t> textA, textB;
  expectStep(*engine, a, textA, 7);
  expectStep(*engine, b, textB, 3);
  for (int i = 0; i < 140; ++i)
    expectStep(*engine, a, textA, 1);
  expectStep(*engine, b, textB, 9);
  expectStep(*engine, a, textA, 20);
}

TEST_F(ObserveTest, SaturationIsCountedFromTheDevice) {
  files.addLatentCache(Format::FP8E4M3, 1e-4F);
  auto engine = load(true);
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> text;
  expectStep(*engine, sequence, text, 5);
  int64_t first = engine->saturatedValues();
  EXPECT_GT(first, 0);
  sequence = engine->newSequence();
  text.clear();
  expectStep(*engine, sequence, text, 5);
  EXPECT_EQ(engine->saturatedValues(), 2 * first);
}

TEST_F(ObserveTest, KeysStandForListsOfTheSameArguments) {
  auto engine = load(true);
  ASSERT_TRUE(engine);
  std::vector<int32_t> text;
  Sequence sequence = engine->newSequence();
  for (int i = 0; i < 64; ++i)
    expectStep(*engine, sequence, text, 1);
  ASSERT_EQ(log.keys.size(), 64u);
  EXPECT_NE(log.keys[0], 0u);
  for (uint64_t key : log.keys)
    EXPECT_EQ(key, log.keys[0]); // One page: the same symbols.
  for (int i = 0; i < 128; ++i)
    expectStep(*engine, sequence, text, 1);
  // Two pages, and then three, which count as four, or as many as there are.
  EXPECT_NE(log.keys[64], log.keys[0]);
  EXPECT_EQ(log.keys[127], log.keys[64]);
  EXPECT_NE(log.keys[128], log.keys[64]);
  EXPECT_EQ(log.keys[191], log.keys[128]);
  log.keys.clear();
  Sequence other = engine->newSequence();
  text.clear();
  expectStep(*engine, other, text, 1);
  expectStep(*engine, other, text, 2);
  EXPECT_NE(log.keys[0], log.keys[1]); // Other tokens.
}

TEST_F(ObserveTest, PagesOfAGpuArePowersOfTwo) {
  auto engine = load(true);
  ASSERT_TRUE(engine);
  ASSERT_EQ(engine->plan().maxPages, 4);
  std::vector<int64_t> pages;
  engine->observe([&](const plan::Program &, const plan::SymbolValues &symbols,
                      size_t launch) -> Status {
    if (launch == 0)
      pages.push_back(symbols[plan::Symbol::Pages]);
    return {};
  });
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> text;
  expectStep(*engine, sequence, text, 1);
  pages.clear();
  for (int i = 0; i < 150; ++i)
    expectStep(*engine, sequence, text, 1);
  EXPECT_EQ(pages.front(), 1);
  EXPECT_EQ(pages[100], 2);
  EXPECT_EQ(pages.back(), 4);
}

TEST_F(ObserveTest, WhatStaysTheSameIsNotCopiedAgain) {
  auto engine = load(true);
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> text;
  expectStep(*engine, sequence, text, 1);
  expectStep(*engine, sequence, text, 1);
  int before = log.toDevice;
  expectStep(*engine, sequence, text, 1);
  EXPECT_EQ(log.toDevice - before, 2); // The id and its position.
}

TEST_F(ObserveTest, ProfileRunsLaunchesOneAtATime) {
  auto engine = load(true, true);
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> text;
  expectStep(*engine, sequence, text, 2);
  for (size_t i = 0; i < log.keys.size(); ++i) {
    EXPECT_EQ(log.keys[i], 0u);
    EXPECT_EQ(log.launches[i], 1u);
  }
  EXPECT_EQ(engine->profile().size(), 4u);
}

TEST_F(ObserveTest, ObserverSeesWorkspaces) {
  for (bool gpu : {false, true}) {
    auto engine = load(gpu);
    ASSERT_TRUE(engine);
    std::vector<float> x;
    size_t calls = 0;
    engine->observe([&](const plan::Program &program,
                        const plan::SymbolValues &symbols,
                        size_t launch) -> Status {
      ++calls;
      if (launch != 0)
        return {};
      MLA_ASSIGN_OR_RETURN(x, engine->readWorkspace(program, 0, symbols));
      return {};
    });
    Sequence sequence = engine->newSequence();
    std::vector<int32_t> text;
    expectStep(*engine, sequence, text, 2);
    EXPECT_EQ(calls, 4u);
    ASSERT_EQ(x.size(), size_t(2 * TestPlan::width));
    for (int64_t w = 0; w < TestPlan::width; ++w) {
      EXPECT_EQ(x[static_cast<size_t>(w)], test::embedding(text[0], w));
      EXPECT_EQ(x[static_cast<size_t>(w + TestPlan::width)],
                test::embedding(text[1], w));
    }
    engine->observe([](const plan::Program &, const plan::SymbolValues &,
                       size_t) { return invalid("seen enough"); });
    StepSequence step = {&sequence, std::span(text).first(1)};
    Result<Logits> logits = engine->step({&step, 1});
    ASSERT_FALSE(logits.ok());
    EXPECT_EQ(sequence.length(), 2);
  }
}

TEST_F(ObserveTest, PoisonDoesNotReachResults) {
  auto engine = load(true);
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> text;
  for (int i = 0; i < 3; ++i) {
    Status status = engine->poisonWorkspace();
    ASSERT_TRUE(status.ok()) << status.message();
    expectStep(*engine, sequence, text, 3);
  }
}

TEST_F(ObserveTest, PreparedStepsRunAgain) {
  for (bool gpu : {false, true}) {
    auto engine = load(gpu);
    ASSERT_TRUE(engine);
    Status status = engine->fillCaches(3);
    ASSERT_TRUE(status.ok()) << status.message();
    Sequence sequence = engine->newSequence();
    ASSERT_TRUE(sequence.extend(100).ok());
    int32_t id = 3;
    StepSequence step = {&sequence, {&id, 1}};
    Result<Engine::PreparedStep> prepared = engine->prepareStep({&step, 1});
    ASSERT_TRUE(prepared.ok()) << prepared.status().message();
    EXPECT_EQ(prepared->symbols[plan::Symbol::Tokens], 1);
    EXPECT_EQ(prepared->symbols[plan::Symbol::Pages], 2);
    EXPECT_EQ(prepared->launches.size(), 4u);
    Result<std::vector<double>> seconds = engine->time(prepared->launches, 3);
    ASSERT_TRUE(seconds.ok());
    EXPECT_EQ(seconds->size(), 3u);
    EXPECT_EQ(sequence.length(), 100);
    Sequence empty = engine->newSequence();
    step.sequence = &empty;
    EXPECT_FALSE(engine->prepareStep({&step, 1}).ok());
  }
}

} // namespace
