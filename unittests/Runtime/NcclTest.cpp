//===- NcclTest.cpp - how ranks meet in NCCL, and part --------------------===//
//
// Part of mla. On an NCCL and a driver of the tests' own. What NCCL itself does is for
// GPUs to show (Collectives/).
//
//===----------------------------------------------------------------------===//
#include "Fakes.h"
#include "runtime/collectives/host/Threads.h"
#include "runtime/collectives/nccl/Group.h"
#include <gtest/gtest.h>
#include <numeric>
#include <thread>

using namespace mla;
using namespace std::chrono_literals;
using hal::cuda::Address;

namespace {

class NcclTest : public testing::Test {
protected:
  void SetUp() override {
    FakeCuda *cuda = test::freshCuda();
    fake = test::freshNccl();
    ASSERT_TRUE(cuda && fake) << dlerror();
    cuda->devices = 4;
    auto loaded = nccl::Library::load(MLA_FAKE_NCCL);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    nccl = *std::move(loaded);
  }
  void TearDown() override {
    // Calls that were left behind end, too.
    fake->release = true;
    while (fake->inside != 0)
      std::this_thread::sleep_for(1ms);
    fake->release = false;
    EXPECT_EQ(fake->comms, 0);
  }

  using Body = std::function<Status(nccl::Group &)>;
  /// Calls `body` for a rank on each of `gpus`, in a thread of its own.
  std::vector<Status> onGpus(const std::vector<int> &gpus, const Body &body,
                             std::chrono::milliseconds timeout = 10s) {
    auto ranks = collectives::createThreadGroup(static_cast<int>(gpus.size()));
    EXPECT_TRUE(ranks.ok());
    std::vector<Status> results(gpus.size());
    std::vector<std::thread> threads;
    for (size_t r = 0; r < gpus.size(); ++r)
      threads.emplace_back([&, r] {
        results[r] = run(gpus[r], *(*ranks)[r], body, timeout);
        if (!results[r].ok())
          (*ranks)[r]->abort(results[r]);
      });
    for (std::thread &thread : threads)
      thread.join();
    return results;
  }

  FakeNccl *fake = nullptr;
  std::shared_ptr<const nccl::Library> nccl;

private:
  Status run(int gpu, collectives::Transport &transport, const Body &body,
             std::chrono::milliseconds timeout) {
    transport.setTimeout(10s);
    collectives::Collectives ranks(transport);
    MLA_ASSIGN_OR_RETURN(auto driver, hal::cuda::Driver::load(MLA_FAKE_CUDA));
    hal::cuda::Context context = nullptr;
    hal::cuda::Stream stream = nullptr;
    driver->primaryCtxRetain(&context, gpu);
    driver->ctxSetCurrent(context);
    driver->streamCreate(&stream, 0);
    Status status;
    {
      p2p::Place place{*driver, gpu, context, stream};
      auto group = nccl::Group::create(nccl, place, ranks, timeout);
      status = group.ok() ? body(**group) : group.status();
    }
    driver->streamDestroy(stream);
    driver->primaryCtxRelease(gpu);
    return status;
  }
};

Address addressOf(std::vector<float> &values) {
  return reinterpret_cast<Address>(values.data());
}

TEST_F(NcclTest, SumsAndMoves) {
  auto results = onGpus({0, 1, 2}, [](nccl::Group &group) -> Status {
    auto rank = static_cast<float>(group.rank());
    // 100 r + 10 p + i for part p.
    std::vector<float> x(6), y(6, -1), part(2, -1);
    for (size_t i = 0; i < 6; ++i)
      x[i] = 100 * rank + float(10 * (i / 2) + i % 2);
    MLA_RETURN_IF_ERROR(group.allToAll(addressOf(x), addressOf(y), 2));
    for (size_t i = 0; i < 6; ++i)
      EXPECT_EQ(y[i], 100 * float(i / 2) + 10 * rank + float(i % 2));
    MLA_RETURN_IF_ERROR(group.reduceScatter(addressOf(x), addressOf(part), 2));
    for (size_t i = 0; i < 2; ++i)
      EXPECT_EQ(part[i], 300 + 3 * (10 * rank + float(i)));
    MLA_RETURN_IF_ERROR(group.allGather(addressOf(part), addressOf(y), 2));
    for (size_t i = 0; i < 6; ++i)
      EXPECT_EQ(y[i], 300 + 3 * float(10 * (i / 2) + i % 2));
    MLA_RETURN_IF_ERROR(group.allReduce(addressOf(x), addressOf(x), 6));
    EXPECT_EQ(x, y);
    return group.check();
  });
  for (const Status &status : results)
    EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fake->aborted, 0);
}

TEST_F(NcclTest, RanksOnOneGpuAreRefusedByAll) {
  for (const Status &status :
       onGpus({0, 1, 2, 1}, [](nccl::Group &) { return Status(); })) {
    EXPECT_EQ(status.code(), StatusCode::Unsupported);
    // One that was told by another rank says so before.
    EXPECT_NE(status.message().find("ranks 1 and 3 share GPU 0000:"),
              std::string::npos)
        << status.message();
  }
}

TEST_F(NcclTest, NoAddressIsAnErrorOfAll) {
  fake->idError = 2;
  for (const Status &status :
       onGpus({0, 1}, [](nccl::Group &) { return Status(); }))
    EXPECT_TRUE(status.message().ends_with(
        "ncclGetUniqueId failed on rank 0: a system call failed"))
        << status.message();
}

TEST_F(NcclTest, ARankThatIsRefusedEndsTheOthers) {
  fake->refused = 1;
  auto begin = std::chrono::steady_clock::now();
  auto results =
      onGpus({0, 1, 2}, [](nccl::Group &) { return Status(); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 6s);
  std::string why =
      "ncclCommInitRank failed on rank 1 of 3: a system call failed";
  EXPECT_EQ(results[1].message(), why);
  for (size_t r : {0, 2})
    EXPECT_EQ(results[r].message(), "rank 1 gave up: " + why);
}

TEST_F(NcclTest, ARankThatDoesNotComeIsATimeOut) {
  fake->missing = 2;
  auto begin = std::chrono::steady_clock::now();
  auto results =
      onGpus({0, 1, 2}, [](nccl::Group &) { return Status(); }, 300ms);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 6s);
  for (const Status &status : results) {
    EXPECT_EQ(status.code(), StatusCode::Io);
    EXPECT_NE(status.message().find(
                  "waited 0.3 s for NCCL to connect 3 ranks"),
              std::string::npos)
        << status.message();
  }
}

TEST_F(NcclTest, WhatNcclFindsLater) {
  auto results = onGpus({0, 1}, [this](nccl::Group &group) {
    fake->asyncError = nccl::InProgress;
    EXPECT_TRUE(group.check().ok());
    fake->asyncError = nccl::RemoteError;
    return group.check();
  });
  for (const Status &status : results) {
    EXPECT_EQ(status.code(), StatusCode::Io);
    EXPECT_NE(status.message().find("of 2: a system call failed"),
              std::string::npos)
        << status.message();
  }
  // Destroying them would wait for the rank that is gone.
  EXPECT_EQ(fake->aborted, 2);
}

TEST_F(NcclTest, OneThatTheHostKnowsIsGoneIsNotWaitedFor) {
  onGpus({0, 1}, [](nccl::Group &group) -> Status {
    if (group.rank() == 1)
      return ioError("killed");
    std::this_thread::sleep_for(300ms); // Until it has said so.
    EXPECT_TRUE(group.check().ok());
    return {};
  });
  EXPECT_EQ(fake->aborted, 1);
}

TEST_F(NcclTest, AfterAnAbortNothingIsDone) {
  auto results = onGpus({0, 1}, [](nccl::Group &group) -> Status {
    group.abort(ioError("first"));
    group.abort(ioError("second"));
    std::vector<float> x(2, 1);
    for (const Status &status :
         {group.check(), group.allGather(addressOf(x), addressOf(x), 1),
          group.reduceScatter(addressOf(x), addressOf(x), 1),
          group.allReduce(addressOf(x), addressOf(x), 2),
          group.allToAll(addressOf(x), addressOf(x), 1)})
      EXPECT_EQ(status.message(), "first");
    return {};
  });
  for (const Status &status : results)
    EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(fake->aborted, 2);
}

} // namespace
