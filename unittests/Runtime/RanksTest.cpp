//===- RanksTest.cpp - plans that several ranks run -----------------------===//
//
// Part of mla. The tests' little model, divided: whatever the number of ranks, and
// whether they are threads or the engines of several processes, logits are those of
// one rank, exactly. And whatever goes wrong on one rank ends all, with its reason.
//
//===----------------------------------------------------------------------===//
#include "MirrorDevice.h"
#include "TestPlan.h"
#include "runtime/collectives/host/Threads.h"
#include "runtime/executor/Engine.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <atomic>
#include <chrono>
#include <gtest/gtest.h>
#include <thread>

using namespace mla;
using namespace mla::runtime;
using mla::test::expectedLogits;
using mla::test::TestPlan;
using mla::test::text;

namespace {

class RanksTest : public testing::Test {
protected:
  /// Devices are MirrorDevices with a log for each rank.
  void useMirrors(EngineOptions &options) {
    options.open = [this](const plan::Plan &, ThreadPool &pool,
                          collectives::Collectives *exchange)
        -> Result<std::unique_ptr<hal::Device>> {
      size_t rank = exchange ? static_cast<size_t>(exchange->rank()) : 0;
      return std::unique_ptr<hal::Device>(
          std::make_unique<test::MirrorDevice>(pool, logs[rank], exchange));
    };
  }

  std::unique_ptr<Engine> load(EngineOptions options, bool mirrors = false) {
    if (mirrors)
      useMirrors(options);
    auto engine = Engine::load(files.folder(), options);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    return engine.ok() ? *std::move(engine) : nullptr;
  }

  /// Appends `count` tokens to two sequences in chunks and compares every row.
  static Status check(Engine &engine, size_t count, size_t chunk) {
    std::vector<std::vector<int32_t>> texts = {text(count, 1), text(count, 2)};
    Sequence a = engine.newSequence(), b = engine.newSequence();
    for (size_t begin = 0; begin < count; begin += chunk) {
      size_t size = std::min(chunk, count - begin);
      StepSequence step[] = {
          {&a, std::span(texts[0]).subspan(begin, size), LogitsFor::All},
          {&b, std::span(texts[1]).subspan(begin, size), LogitsFor::Last}};
      MLA_ASSIGN_OR_RETURN(Logits logits, engine.step(step));
      for (size_t row = 0; row <= size; ++row) {
        std::span<const int32_t> ids =
            row < size ? std::span(texts[0]).first(begin + row + 1)
                       : std::span(texts[1]).first(begin + size);
        std::vector<float> expected = expectedLogits(ids);
        std::span<const float> found = logits.row(static_cast<int64_t>(row));
        if (!std::equal(found.begin(), found.end(), expected.begin()))
          return internalError("other logits after " +
                               std::to_string(ids.size()) + " tokens");
      }
    }
    return {};
  }

  /// The error of a step of one token.
  static Status stepOf(Engine &engine) {
    Sequence sequence = engine.newSequence();
    int32_t id = 3;
    StepSequence step = {&sequence, {&id, 1}};
    return engine.step({&step, 1}).status();
  }

  TestPlan files;
  std::array<test::MirrorLog, 8> logs;
};

TEST_F(RanksTest, AnyNumberOfRanksGivesTheSameLogits) {
  plan::Plan one = files.plan;
  for (int64_t ranks : {2, 3, 5, 8}) {
    files.plan = one;
    files.addRanks(ranks);
    files.write();
    for (bool mirrors : {false, true}) {
      auto engine = load({.threads = 3, .compareRanks = true}, mirrors);
      ASSERT_TRUE(engine);
      EXPECT_EQ(engine->localRanks(), static_cast<size_t>(ranks));
      for (size_t chunk : {1, 5, 33}) {
        Status status = check(*engine, 70, chunk);
        ASSERT_TRUE(status.ok()) << status.message();
      }
    }
  }
}

TEST_F(RanksTest, TokensAreChosenOnAllRanks) {
  files.addSampling();
  files.addRanks(3);
  files.write();
  for (bool mirrors : {false, true}) {
    auto engine = load({.threads = 3, .compareRanks = true}, mirrors);
    ASSERT_TRUE(engine);
    std::vector<int32_t> ids = text(20, 1), more = text(3, 2);
    Sequence a = engine->newSequence(), b = engine->newSequence();
    StepSequence step[] = {{&a, ids}, {&b, more}};
    Sampling sampling[2] = {{}, {.temperature = 1, .topK = 2, .uniform = 0.3F}};
    auto chosen = engine->stepAndSample(step, sampling);
    ASSERT_TRUE(chosen.ok()) << chosen.status().message();
    std::vector<float> logits = expectedLogits(ids);
    EXPECT_EQ((*chosen)[0],
              std::max_element(logits.begin(), logits.end()) - logits.begin());
    // As the kernel has it: 30 + 3 * 2 + 10 * 1 of a vocabulary of 12.
    EXPECT_EQ((*chosen)[1], 46 % TestPlan::vocab);
  }
}

TEST_F(RanksTest, SaturationIsCountedOnce) {
  files.addLatentCache(Format::FP8E4M3, 0.005F);
  files.write();
  auto alone = load({.threads = 1});
  ASSERT_TRUE(alone);
  ASSERT_TRUE(check(*alone, 40, 7).ok());
  files.addRanks(4);
  files.write();
  for (bool mirrors : {false, true}) {
    auto engine = load({.threads = 2, .compareRanks = true}, mirrors);
    ASSERT_TRUE(engine);
    ASSERT_TRUE(check(*engine, 40, 7).ok());
    EXPECT_GT(engine->saturatedValues(), 0);
    EXPECT_EQ(engine->saturatedValues(), alone->saturatedValues());
  }
}

// NaN is no error of a rank: the engine goes on.
TEST_F(RanksTest, NaNDoesNotEndTheGroup) {
  files.addRanks(3);
  files.write();
  auto engine = load({.threads = 1});
  ASSERT_TRUE(engine);
  Sequence sequence = engine->newSequence();
  std::vector<int32_t> ids = {1, TestPlan::nanToken};
  StepSequence step = {&sequence, ids};
  EXPECT_EQ(engine->step({&step, 1}).status().code(), StatusCode::Numeric);
  EXPECT_TRUE(check(*engine, 20, 20).ok());
}

TEST_F(RanksTest, AnErrorOfOneRankEndsAll) {
  files.addRanks(4);
  files.write();
  for (size_t bad = 0; bad < 4; ++bad) {
    for (test::MirrorLog &log : logs)
      log = {};
    auto engine = load({.threads = 4}, true);
    ASSERT_TRUE(engine);
    ASSERT_TRUE(check(*engine, 5, 5).ok());
    logs[bad].onRun = [] {
      // The others wait for it by then.
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      return exhausted("it broke");
    };
    auto start = std::chrono::steady_clock::now();
    Status status = stepOf(*engine);
    EXPECT_LT(std::chrono::steady_clock::now() - start,
              std::chrono::seconds(1));
    EXPECT_EQ(status.code(), StatusCode::Exhausted);
    EXPECT_EQ(status.message(),
              "step 2: rank " + std::to_string(bad) + ": it broke");
    // It is over, and says why.
    logs[bad].onRun = {};
    status = stepOf(*engine);
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.message().find("it broke"), std::string::npos)
        << status.message();
  }
}

TEST_F(RanksTest, ARankThatDoesNotCome) {
  files.addRanks(3);
  files.write();
  auto engine =
      load({.threads = 1, .collectiveTimeout = std::chrono::milliseconds(100)},
           true);
  ASSERT_TRUE(engine);
  logs[1].onRun = [] {
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    return Status();
  };
  Status status = stepOf(*engine);
  EXPECT_FALSE(status.ok());
  for (const char *part : {"step 1: rank ", "waited 0.1 s for rank 1", "embed"})
    EXPECT_NE(status.message().find(part), std::string::npos)
        << status.message();
}

TEST_F(RanksTest, ErrorsOfLoadingNameTheRank) {
  files.addRanks(3);
  files.write();
  logs[2].onAllocate = [] { return exhausted("no memory"); };
  EngineOptions options;
  useMirrors(options);
  auto engine = Engine::load(files.folder(), options);
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::Exhausted);
  EXPECT_EQ(engine.status().message(), "rank 2: no memory");
}

TEST_F(RanksTest, RanksThatDifferAreNoticed) {
  files.addRanks(3);
  for (plan::Program &program : files.plan.programs)
    program.launches.erase(program.launches.begin() + 1); // The sum.
  files.write();
  auto engine = load({.threads = 1});
  ASSERT_TRUE(engine);
  EXPECT_TRUE(stepOf(*engine).ok()); // Gathered, so the same on all.
  for (plan::Program &program : files.plan.programs) {
    program.launches.pop_back();
    plan::Launch &head = program.launches.back();
    head.kernel = 3;
    head.arguments.resize(7);
    head.arguments[3] = {plan::Port::Logits};
    head.arguments[4] = {plan::Expr(TestPlan::vocab)};
  }
  files.write();
  engine = load({.threads = 1, .compareRanks = true});
  ASSERT_TRUE(engine);
  Status status = stepOf(*engine);
  EXPECT_EQ(status.code(), StatusCode::Internal);
  EXPECT_NE(status.message().find(
                "what it computed (logits) differs from what rank 0 did"),
            std::string::npos)
      << status.message();
}

TEST_F(RanksTest, MemoryIsThatOfAllRanks) {
  files.write();
  auto alone = load({.threads = 1, .cacheTokens = 640});
  ASSERT_TRUE(alone);
  files.addRanks(4);
  files.write();
  auto engine = load({.threads = 1, .cacheTokens = 640});
  ASSERT_TRUE(engine);
  MemoryUse one = alone->memory(), all = engine->memory();
  EXPECT_EQ(all.weights, 4 * one.weights); // Nothing of them is divided here.
  EXPECT_EQ(all.cache, 4 * one.cache);
  EXPECT_EQ(all.ports, 4 * one.ports);
  EXPECT_GT(all.workspace, 4 * one.workspace);
  EXPECT_EQ(engine->cacheTokens(), 640);
}

TEST_F(RanksTest, ThreadsAreDivided) {
  files.addRanks(3);
  files.write();
  for (auto [threads, own] : {std::pair(1, 1), {5, 1}, {7, 2}}) {
    auto engine = load({.threads = threads});
    ASSERT_TRUE(engine);
    EXPECT_EQ(engine->threads().size(), own);
  }
}

TEST_F(RanksTest, ObserversSeeEveryRank) {
  files.addRanks(2);
  files.write();
  for (bool mirrors : {false, true}) {
    auto engine = load({.threads = 2}, mirrors);
    ASSERT_TRUE(engine);
    std::vector<size_t> launches;
    std::vector<float> before[2], after[2];
    engine->observe([&](const plan::Program &program,
                        const plan::SymbolValues &symbols,
                        size_t launch) -> Status {
      launches.push_back(launch);
      for (size_t rank = 0; rank < 2 && launch < 2; ++rank) {
        MLA_ASSIGN_OR_RETURN((launch == 0 ? before : after)[rank],
                             engine->readWorkspace(program, 0, symbols, rank));
      }
      return {};
    });
    Sequence sequence = engine->newSequence();
    std::vector<int32_t> ids = {3, 4};
    StepSequence step = {&sequence, ids};
    auto logits = engine->step({&step, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    std::vector<float> expected = expectedLogits(ids);
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), logits->row(0).begin()));
    EXPECT_EQ(launches, (std::vector<size_t>{0, 1, 2, 3, 4, 5}));
    for (size_t w = 0; w < TestPlan::width; ++w) {
      auto at = static_cast<int64_t>(w);
      EXPECT_EQ(before[0][w], 0); // Token 3 is rank 1's.
      EXPECT_EQ(before[1][w], test::embedding(3, at));
      EXPECT_EQ(after[0][w], test::embedding(3, at));
    }
    EXPECT_EQ(after[0], after[1]);
    // What is written reaches all: the token that is stored is another one.
    engine->observe([&](const plan::Program &program,
                        const plan::SymbolValues &, size_t launch) -> Status {
      std::vector<float> other;
      for (int64_t w = 0; w < TestPlan::width; ++w)
        other.push_back(test::embedding(7, w));
      return launch == 1 ? engine->writeWorkspace(
                               program, 0, 0, std::as_bytes(std::span(other)))
                         : Status();
    });
    std::vector<int32_t> last = {0};
    step.ids = last;
    logits = engine->step({&step, 1});
    ASSERT_TRUE(logits.ok()) << logits.status().message();
    expected = expectedLogits(std::vector<int32_t>{3, 4, 7});
    EXPECT_TRUE(
        std::equal(expected.begin(), expected.end(), logits->row(0).begin()));
  }
}

TEST_F(RanksTest, ProfileAndPoison) {
  files.addRanks(3);
  files.write();
  auto engine = load({.threads = 1, .profile = true});
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->poisonWorkspace().ok());
  Status status = check(*engine, 9, 3);
  EXPECT_TRUE(status.ok()) << status.message();
  std::vector<LaunchCost> costs = engine->profile();
  ASSERT_FALSE(costs.empty());
  EXPECT_EQ(costs[1].kernel, "all_reduce");
  EXPECT_GT(costs[1].calls, 0);
}

TEST_F(RanksTest, PreparedStepsAreTimedOnAllRanks) {
  files.addRanks(3);
  files.write();
  auto engine = load({.threads = 1}, true);
  ASSERT_TRUE(engine);
  ASSERT_TRUE(engine->fillCaches(3).ok());
  Sequence sequence = engine->newSequence();
  ASSERT_TRUE(sequence.extend(100).ok());
  int32_t id = 3;
  StepSequence step = {&sequence, {&id, 1}};
  auto prepared = engine->prepareStep({&step, 1});
  ASSERT_TRUE(prepared.ok()) << prepared.status().message();
  ASSERT_EQ(prepared->launches.size(), 6U);
  // As a whole, and the collectives alone.
  for (auto list : {prepared->launches, prepared->launches.subspan(1, 1)}) {
    auto seconds = engine->time(list, 5);
    ASSERT_TRUE(seconds.ok()) << seconds.status().message();
    ASSERT_EQ(seconds->size(), 5U);
    for (double s : *seconds)
      EXPECT_GT(s, 0);
    ASSERT_TRUE(engine->run(list).ok());
  }
  for (size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(logs[rank].keys.size(), 2U); // Those of run().
  // What is no launch of the plan runs on the first rank.
  std::vector<uint64_t> arguments(prepared->launches[2].arguments.begin(),
                                  prepared->launches[2].arguments.end());
  hal::Dispatch other = {prepared->launches[2].kernel, 1, arguments};
  ASSERT_TRUE(engine->run({&other, 1}).ok());
  EXPECT_EQ(logs[0].launches.back(), 1U);
  EXPECT_EQ(logs[1].launches.back(), 0U);
  auto seconds = engine->time({&other, 1}, 3);
  ASSERT_TRUE(seconds.ok());
  EXPECT_EQ(seconds->size(), 3U);
}

/// Several processes: each has an engine with one rank. Here they are threads.
class ProcessRanksTest : public RanksTest {
protected:
  /// Does `body` for each of `ranks` engines; the statuses, in their order.
  std::vector<Status>
  onEngines(int ranks, const std::function<Status(Engine &)> &body,
            const std::function<void(int, EngineOptions &)> &set = {}) {
    auto transports = collectives::createThreadGroup(ranks);
    EXPECT_TRUE(transports.ok());
    std::vector<Status> statuses(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        auto i = static_cast<size_t>(rank);
        EngineOptions options;
        options.threads = 1;
        options.group = (*transports)[i].get();
        options.compareRanks = true;
        if (set)
          set(rank, options);
        auto run = [&]() -> Status {
          MLA_ASSIGN_OR_RETURN(std::unique_ptr<Engine> engine,
                               Engine::load(files.folder(), options));
          if (engine->localRanks() != 1)
            return internalError("several ranks in one process");
          return body(*engine);
        };
        statuses[i] = run();
      });
    for (std::thread &thread : threads)
      thread.join();
    return statuses;
  }
};

TEST_F(ProcessRanksTest, EveryProcessHasTheLogits) {
  files.addRanks(3);
  files.write();
  for (const Status &status :
       onEngines(3, [](Engine &engine) { return check(engine, 70, 9); }))
    EXPECT_TRUE(status.ok()) << status.message();
}

TEST_F(ProcessRanksTest, OtherTokensAreNoticed) {
  files.addRanks(3);
  files.write();
  std::atomic<int32_t> next{1};
  for (const Status &status : onEngines(3, [&](Engine &engine) -> Status {
         Sequence sequence = engine.newSequence();
         int32_t ids[] = {5, next.fetch_add(1)};
         StepSequence step = {&sequence, {ids, 1}};
         MLA_RETURN_IF_ERROR(engine.step({&step, 1}).status());
         step.ids = {ids + 1, 1};
         return engine.step({&step, 1}).status();
       })) {
    EXPECT_EQ(status.code(), StatusCode::Invalid);
    EXPECT_TRUE(
        status.message().starts_with("step 2: rank ") &&
        status.message().ends_with(
            "was given other tokens than rank 0: every process must run "
            "the same command"))
        << status.message();
  }
}

TEST_F(ProcessRanksTest, AProcessThatCannotLoadEndsTheOthers) {
  files.addRanks(3);
  files.write();
  std::vector<Status> statuses = onEngines(
      3, [](Engine &engine) { return stepOf(engine); },
      [](int rank, EngineOptions &options) {
        if (rank == 1)
          options.checkpoint = "/absent";
      });
  EXPECT_EQ(statuses[1].code(), StatusCode::NotFound);
  for (int rank : {0, 2})
    EXPECT_TRUE(statuses[size_t(rank)].message().starts_with("rank 1 gave up"))
        << statuses[size_t(rank)].message();
}

TEST_F(ProcessRanksTest, AsManyProcessesAsRanks) {
  plan::Plan one = files.plan;
  for (auto [ranks, expected] :
       {std::pair(int64_t(1),
                  "the plan has 1 rank: expected one process, or one "
                  "for each rank, found 2 processes"),
        {3, "the plan has 3 ranks: expected one process, or one for each rank, "
            "found 2 processes"}}) {
    files.plan = one;
    if (ranks > 1)
      files.addRanks(ranks);
    files.write();
    for (const Status &status :
         onEngines(2, [](Engine &) { return Status(); })) {
      EXPECT_EQ(status.code(), StatusCode::Invalid);
      EXPECT_EQ(status.message(), expected);
    }
  }
}

TEST(Ranks, WhatGpusExchangeInKernelsOnly) {
  TestPlan files;
  files.plan.target.name = "sm_90a";
  files.addRanks(2);
  EXPECT_TRUE(hal::CudaDevice::checkCollectives(files.plan).ok());
  for (plan::Kernel &kernel : files.plan.kernels)
    if (kernel.collective == plan::Collective::None)
      kernel.threads = 32;
    else if (kernel.collective == plan::Collective::AllReduce)
      kernel.collective = plan::Collective::ReduceScatter;
  EXPECT_EQ(hal::CudaDevice::checkCollectives(files.plan).code(),
            StatusCode::Unsupported);
  files.write();
  // Said before a GPU is looked for.
  std::string message = Engine::load(files.folder(), {}).status().message();
  EXPECT_TRUE(message.ends_with("the plan's 2 ranks exchange data by "
                                "reduce_scatter, which GPUs do in kernels only"))
      << message;
}

TEST(Ranks, AsManyGpusAsRanks) {
  TestPlan files;
  files.plan.target.name = "sm_90a";
  files.addRanks(3);
  for (plan::Kernel &kernel : files.plan.kernels)
    if (kernel.collective == plan::Collective::None)
      kernel.threads = 32;
  files.write();
  EngineOptions options;
  options.gpus = {0, 1};
  Status status = Engine::load(files.folder(), options).status();
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_EQ(status.message(),
            "expected one GPU for all, or one for each of 3 ranks, found 2");
}

TEST(Ranks, FilesOfPackedWeights) {
  plan::Ranks one, eight;
  eight.count = 8;
  EXPECT_EQ(packedFile("a/b", one, 0), "a/b");
  EXPECT_EQ(packedFile("a/b", eight, 3), "a/b.rank3");
  EXPECT_EQ(packedFile("", eight, 3), "");
}

} // namespace
