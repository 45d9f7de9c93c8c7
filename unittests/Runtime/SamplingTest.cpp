//===- SamplingTest.cpp - tokens that the device chooses ------------------===//
//
// Part of mla. The engine on a device with buffers of two views, and what the
// subcommands make of it.
//
//===----------------------------------------------------------------------===//
#include "MirrorDevice.h"
#include "TestPlan.h"
#include "runtime/cli/Commands.h"
#include "runtime/executor/Engine.h"
#include "runtime/sampler/Sampler.h"
#include <fstream>
#include <functional>
#include <gtest/gtest.h>
#include <sstream>

using namespace mla;
using namespace mla::runtime;
using mla::test::expectedLogits;
using mla::test::TestPlan;
using mla::test::text;

namespace {

class SamplingTest : public testing::Test {
protected:
  EngineOptions engineOptions(bool profile = false) {
    EngineOptions options;
    options.threads = 2;
    options.cacheTokens = 1024;
    options.profile = profile;
    options.open =
        [this](const plan::Plan &, ThreadPool &pool, collectives::Collectives *)
        -> Result<std::unique_ptr<hal::Device>> {
      return std::unique_ptr<hal::Device>(
          std::make_unique<test::MirrorDevice>(pool, log));
    };
    return options;
  }

  std::unique_ptr<Engine> load(bool profile = false) {
    files.write();
    auto engine = Engine::load(files.folder(), engineOptions(profile));
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  /// The token that follows `ids`, of those without NaN.
  static int32_t likeliest(std::span<const int32_t> ids) {
    std::vector<float> logits = expectedLogits(ids);
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                                logits.begin());
  }

  TestPlan files;
  test::MirrorLog log;
};

TEST_F(SamplingTest, GreedyIsTheHostsChoice) {
  files.addSampling();
  auto engine = load();
  ASSERT_TRUE(engine);
  EXPECT_TRUE(engine->canSample());
  // More sequences and tokens than a program takes: several runs, of which only
  // those that end a sequence choose something.
  std::vector<std::vector<int32_t>> texts;
  std::vector<Sequence> sequences;
  for (int32_t s = 0; s < 6; ++s) {
    texts.push_back(text(static_cast<size_t>(1 + 9 * s), s));
    sequences.push_back(engine->newSequence());
  }
  for (int round = 0; round < 4; ++round) {
    std::vector<StepSequence> step;
    for (size_t s = 0; s < texts.size(); ++s)
      step.push_back(
          {&sequences[s], std::span(texts[s]).subspan(
                              static_cast<size_t>(sequences[s].length()))});
    std::vector<Sampling> greedy(texts.size());
    auto chosen = engine->stepAndSample(step, greedy);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    ASSERT_EQ(chosen->size(), texts.size());
    for (size_t s = 0; s < texts.size(); ++s) {
      EXPECT_EQ((*chosen)[s], likeliest(texts[s])) << s;
      // Not always the choice: the NaN token ends everything.
      texts[s].push_back(static_cast<int32_t>((7 * s + 3) % 11));
    }
  }
}

TEST_F(SamplingTest, EachSequenceHasItsParameters) {
  files.addSampling();
  auto engine = load();
  ASSERT_TRUE(engine);
  std::vector<int32_t> ids = {3};
  std::vector<Sequence> sequences;
  std::vector<StepSequence> step;
  for (int s = 0; s < 3; ++s)
    sequences.push_back(engine->newSequence());
  for (Sequence &sequence : sequences)
    step.push_back({&sequence, ids});
  for (int32_t round = 0; round < 3; ++round) {
    // 100 u + 3 k + 10 p + 4 m, modulo 12.
    std::vector<Sampling> sampling = {
        {1, 0, 1, 0, 0.07F + 0.01F * float(round)},
        {0, 9, 0.5F, 1, 0.9F},
        {0.5F, 2 + round, 0.5F, 0.5F, 0.25F}};
    auto chosen = engine->stepAndSample(step, sampling);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    std::vector<int32_t> all(static_cast<size_t>(round + 1), 3);
    EXPECT_EQ(
        *chosen,
        (std::vector<int32_t>{
            (static_cast<int32_t>((0.07F + 0.01F * float(round)) * 100) + 10) %
                12,
            likeliest(all), (25 + 3 * (2 + round) + 5 + 2) % 12}));
  }
}

TEST_F(SamplingTest, LogitsStayOnTheDevice) {
  files.addSampling();
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = {3};
  StepSequence step = {&sequence, ids};
  Sampling greedy;
  auto sample = [&] {
    auto chosen = engine->stepAndSample({&step, 1}, {&greedy, 1});
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  };
  sample();
  auto logits = engine->step({&step, 1});
  ASSERT_TRUE(logits.ok());
  sample();
  // One launch more, under another key than the step without it.
  EXPECT_EQ(log.launches, (std::vector<size_t>{5, 4, 5}));
  EXPECT_EQ(log.keys[0], log.keys[2]);
  EXPECT_NE(log.keys[0], log.keys[1]);
  // What does not change is not sent: now only the position.
  int before = log.toDevice;
  sample();
  EXPECT_EQ(log.toDevice, before + 1);
  greedy.uniform = 0.5F;
  before = log.toDevice;
  sample();
  EXPECT_EQ(log.toDevice, before + 2);
}

TEST_F(SamplingTest, NaNEndsTheStep) {
  files.addSampling();
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence good = engine->newSequence(), bad = engine->newSequence();
  std::vector<int32_t> ids = {1, 2}, wrong = {4, TestPlan::nanToken};
  std::vector<StepSequence> step = {{&good, ids}, {&bad, wrong}};
  std::vector<Sampling> sampling(2);
  auto chosen = engine->stepAndSample(step, sampling);
  ASSERT_FALSE(chosen.ok());
  EXPECT_EQ(chosen.status().code(), StatusCode::Numeric);
  EXPECT_EQ(
      chosen.status().message(),
      "step 1: the logits of sequence 1 at position 1 have NaN or infinite "
      "values");
  EXPECT_EQ(good.length(), 0);
  EXPECT_EQ(bad.length(), 0);
}

TEST_F(SamplingTest, MisuseIsRefused) {
  auto without = load();
  ASSERT_TRUE(without);
  Sequence sequence = without->newSequence();
  std::vector<int32_t> ids = {1};
  StepSequence step = {&sequence, ids};
  Sampling greedy;
  EXPECT_FALSE(without->canSample());
  EXPECT_EQ(without->stepAndSample({&step, 1}, {&greedy, 1}).status().code(),
            StatusCode::Unsupported);

  files.addSampling();
  auto engine = load();
  ASSERT_TRUE(engine);
  Sequence other = engine->newSequence();
  step = {&other, ids};
  EXPECT_EQ(engine->stepAndSample({&step, 1}, {}).status().code(),
            StatusCode::Invalid);
  for (LogitsFor rows : {LogitsFor::All, LogitsFor::None}) {
    step.logits = rows;
    EXPECT_EQ(engine->stepAndSample({&step, 1}, {&greedy, 1}).status().code(),
              StatusCode::Invalid);
  }
  EXPECT_EQ(other.length(), 0);
}

TEST_F(SamplingTest, ProfileCountsIt) {
  files.addSampling();
  auto engine = load(/*profile=*/true);
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = {3, 4};
  StepSequence step = {&sequence, ids};
  Sampling greedy;
  auto chosen = engine->stepAndSample({&step, 1}, {&greedy, 1});
  ASSERT_TRUE(chosen.ok()) << chosen.status().message();
  EXPECT_EQ(chosen->front(), likeliest(ids));
  std::vector<LaunchCost> costs = engine->profile();
  ASSERT_EQ(costs.size(), 5U);
  EXPECT_EQ(costs.back().program, "sample");
  EXPECT_EQ(costs.back().kernel, "test_sample");
  EXPECT_EQ(costs.back().calls, 1);
}

/// What generate prints.
class GenerateTest : public SamplingTest {
protected:
  using Change = std::function<void(cli::GenerateOptions &)>;
  std::string generate(const Change &change = {}) {
    cli::GenerateOptions options;
    if (change)
      change(options);
    options.plan = files.folder();
    options.engine = engineOptions();
    options.ids = "3,4";
    options.maxTokens = 6;
    options.printIds = true;
    options.ignoreEos = true;
    log = {};
    std::ostringstream out, err;
    status = cli::generate(options, out, err);
    return status.ok() ? out.str() : "";
  }
  static Change on(cli::SampleOn where, float penalty = 1) {
    return [=](cli::GenerateOptions &options) {
      options.sampleOn = where;
      options.repetitionPenalty = penalty;
    };
  }
  /// Takes the token whose embedding is NaN out of the vocabulary.
  void removeNaN() {
    int64_t vocab = files.plan.model.vocabSize = TestPlan::nanToken;
    for (plan::Program &program : files.plan.programs)
      program.launches[3].arguments[4] = {plan::Expr(vocab)};
    if (files.plan.sampling)
      files.plan.sampling->launches[0].arguments[5] = {plan::Expr(vocab)};
    files.write();
  }
  bool onDevice() const {
    return !log.launches.empty() && log.launches[0] == 5;
  }
  Status status;
};

TEST_F(GenerateTest, DeviceAndHostAgree) {
  files.addSampling();
  removeNaN();
  std::string host = generate(on(cli::SampleOn::Host));
  EXPECT_NE(host, "") << status.message();
  EXPECT_FALSE(onDevice());
  for (cli::SampleOn where : {cli::SampleOn::Auto, cli::SampleOn::Device}) {
    EXPECT_EQ(generate(on(where)), host);
    EXPECT_TRUE(onDevice());
  }
  // A penalty is the host's.
  EXPECT_NE(generate(on(cli::SampleOn::Auto, 2)), "") << status.message();
  EXPECT_FALSE(onDevice());
  EXPECT_EQ(generate(on(cli::SampleOn::Device, 2)), "");
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
}

TEST_F(GenerateTest, TheSeedsNumbersReachTheDevice) {
  files.addSampling();
  removeNaN();
  std::string text = generate([](cli::GenerateOptions &options) {
    options.temperature = 0.5F;
    options.seed = 77;
  });
  EXPECT_TRUE(onDevice());
  SamplerOptions options;
  options.seed = 77;
  Sampler sampler(options);
  std::string expected;
  for (int i = 0; i < 6; ++i)
    expected +=
        (i ? "," : "") +
        std::to_string(
            (static_cast<int64_t>(static_cast<float>(sampler.uniform()) * 100) +
             10) %
            TestPlan::nanToken);
  EXPECT_EQ(text, expected + "\n");
}

TEST_F(GenerateTest, WithoutKernelsTheHostChooses) {
  removeNaN();
  EXPECT_NE(generate(), "") << status.message();
  EXPECT_EQ(generate(on(cli::SampleOn::Device)), "");
  EXPECT_EQ(status.message(), "--sample-on device: the plan for host does not "
                              "choose tokens on its device");
}

TEST_F(GenerateTest, BenchTakesEither) {
  files.addSampling();
  removeNaN();
  cli::BenchOptions options;
  options.plan = files.folder();
  options.engine = engineOptions();
  options.promptTokens = 4;
  options.decodeTokens = 2;
  options.repeat = 1;
  for (int64_t context : {0, 10})
    for (cli::SampleOn where : {cli::SampleOn::Auto, cli::SampleOn::Host}) {
      if (context)
        options.steps = {{1, context, 1}};
      else
        options.steps.clear();
      options.sampleOn = where;
      log = {};
      std::ostringstream out;
      status = cli::bench(options, out);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(onDevice(), where == cli::SampleOn::Auto);
    }
}

TEST_F(GenerateTest, RanksThatExchangeNothingAreBenchedAndNotRun) {
  files.addTokenizer();
  removeNaN();
  files.plan.ranks = {8, plan::Ranks::Collectives::Local, "attention tp8"};
  files.write();
  EXPECT_EQ(generate(), "");
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
  EXPECT_EQ(status.message(), "the plan's 8 ranks exchange nothing: it can be "
                              "benched, not run");
  cli::BenchOptions options;
  options.plan = files.folder();
  options.engine = engineOptions();
  options.promptTokens = 4;
  options.decodeTokens = 2;
  options.repeat = 1;
  for (int64_t context : {0, 10})
    for (std::optional<int64_t> rank : {std::optional<int64_t>(), {7}}) {
      options.steps.clear();
      if (context)
        options.steps = {{1, context, 1}};
      options.engine.rank = rank;
      std::ostringstream out;
      status = cli::bench(options, out);
      EXPECT_TRUE(status.ok()) << status.message();
    }
  options.engine.rank = 8;
  std::ostringstream none;
  EXPECT_EQ(cli::bench(options, none).message(),
            "expected a rank from 0 to 7, found 8");
  std::ostringstream text;
  ASSERT_TRUE(cli::inspect({files.folder(), false, false}, text).ok());
  EXPECT_NE(text.str().find("ranks        8: attention tp8; nothing is exchanged"),
            std::string::npos)
      << text.str();

  std::string plan = files.folder().string();
  std::string output = (files.folder() / "out").string();
  std::ofstream(files.folder() / "text") << "a";
  for (std::vector<std::string> arguments :
       {std::vector<std::string>{"logits", plan, "--ids", "1", "-o", output},
        {"perplexity", plan, "--file", plan + "/text"},
        {"calibrate", plan, "--file", plan + "/text", "-o", output},
        {"compare", plan, plan, "--ids", "1"}}) {
    std::vector<const char *> argv = {"mla-run"};
    for (const std::string &argument : arguments)
      argv.push_back(argument.c_str());
    testing::internal::CaptureStderr();
    EXPECT_EQ(cli::run(static_cast<int>(argv.size()), argv.data()), 1);
    EXPECT_NE(testing::internal::GetCapturedStderr().find(
                  "8 ranks exchange nothing"),
              std::string::npos)
        << arguments[0];
  }

  files.plan.ranks = {};
  files.write();
  std::ostringstream out;
  options.engine.rank = 0;
  EXPECT_EQ(cli::bench(options, out).message(),
            "expected a plan whose ranks exchange nothing (mla-compile "
            "--collectives=local), to measure one alone, found one of 1 rank");
}

} // namespace
