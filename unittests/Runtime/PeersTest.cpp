//===- PeersTest.cpp - where ranks on GPUs meet ---------------------------===//
//
// Part of mla. On a driver of the tests' own: how memory is reached, what is done
// where a link refuses or lies, what is launched in which order, and how what waits
// ends. What kernels do with the memory is for GPUs to show (Collectives/).
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/p2p/Peers.h"
#include "Fakes.h"
#include "TestPlan.h"
#include "runtime/collectives/host/Threads.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <atomic>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <thread>

using namespace mla;
using namespace std::chrono_literals;
using collectives::Collectives;
using hal::CudaDevice;
using p2p::Path;

namespace {

class PeersTest : public testing::Test {
protected:
  void SetUp() override {
    cuda = test::freshCuda();
    ASSERT_TRUE(cuda) << dlerror();
    cuda->devices = 8;
  }
  void TearDown() override {
    EXPECT_EQ(cuda->contexts, 0);
    EXPECT_EQ(cuda->buffers, 0);
    EXPECT_EQ(cuda->mirrors, 0);
    EXPECT_EQ(cuda->registered, 0);
    EXPECT_EQ(cuda->opened, 0);
    EXPECT_EQ(cuda->modules, 0);
    EXPECT_EQ(cuda->execs, 0);
  }

  /// Calls `body` for each of `ranks` ranks, in a thread of its own.
  using Body = std::function<Status(int rank, collectives::Transport &)>;
  static std::vector<Status> onRanks(int ranks, const Body &body) {
    auto group = collectives::createThreadGroup(ranks);
    EXPECT_TRUE(group.ok());
    std::vector<Status> results(static_cast<size_t>(ranks));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        auto own = static_cast<size_t>(r);
        (*group)[own]->setTimeout(10s);
        results[own] = body(r, *(*group)[own]);
        if (!results[own].ok())
          (*group)[own]->abort(results[own]);
      });
    for (std::thread &thread : threads)
      thread.join();
    return results;
  }
  static void expectWell(const std::vector<Status> &results) {
    for (const Status &status : results)
      EXPECT_TRUE(status.ok()) << status.message();
  }

  /// Calls `use` with peers of each rank, on GPU gpuOf(rank).
  using Use = std::function<Status(p2p::Peers &, const p2p::Place &, int rank)>;
  std::vector<Status> connected(int ranks, int gpus, Path path, const Use &use) {
    return onRanks(
        ranks, [&](int rank, collectives::Transport &transport) -> Status {
          MLA_ASSIGN_OR_RETURN(
              std::unique_ptr<hal::cuda::Driver> driver,
              hal::cuda::Driver::load(MLA_FAKE_CUDA));
          hal::cuda::Context context = nullptr;
          driver->primaryCtxRetain(&context, rank % gpus);
          driver->ctxSetCurrent(context);
          p2p::Place place{*driver, rank % gpus, context, nullptr};
          Collectives all(transport);
          auto run = [&]() -> Status {
            MLA_ASSIGN_OR_RETURN(
                std::unique_ptr<p2p::Peers> peers,
                p2p::Peers::connect(place, 100'000, path, all));
            MLA_RETURN_IF_ERROR(use(*peers, place, rank));
            return all.barrier("the end"); // Memory of others was looked at.
          };
          Status status = run();
          driver->primaryCtxRelease(rank % gpus);
          return status;
        });
  }

  FakeCuda *cuda = nullptr;
};

/// The table says who the rank is, for how long to wait, and where all memory is:
/// that of rank r is one for all, and zero.
Status checkTable(const p2p::Peers &peers, int rank, int ranks,
                  std::vector<std::atomic<uint64_t>> &owners) {
  const auto *words = reinterpret_cast<const uint64_t *>(peers.table());
  if (words[plan::peersRank] != static_cast<uint64_t>(rank) ||
      words[plan::peersRanks] != static_cast<uint64_t>(ranks) ||
      words[plan::peersTimeout] != 10'000'000'000)
    return internalError("the table's first words are wrong");
  auto *mine = reinterpret_cast<std::byte *>(words[plan::peersFirst + rank]);
  for (size_t i = 0; i < 100'000; ++i)
    if (mine[i] != std::byte{})
      return internalError("exchange memory is not zero");
  owners[static_cast<size_t>(rank)] = words[plan::peersFirst + rank];
  return {};
}

TEST_F(PeersTest, OnTheDevices) {
  for (int gpus : {1, 2, 4}) {
    std::vector<std::atomic<uint64_t>> owners(4);
    expectWell(connected(
        4, gpus, Path::Any,
        [&](p2p::Peers &peers, const p2p::Place &, int rank) -> Status {
          EXPECT_EQ(peers.path(), gpus == 1 ? "one GPU" : "peer access");
          EXPECT_EQ(peers.sharesDevice(), gpus < 4);
          // Half of 132 multiprocessors, among the ranks of a GPU.
          EXPECT_EQ(peers.mostBlocks(), gpus == 1 ? 16 : gpus == 2 ? 33 : 66);
          return checkTable(peers, rank, 4, owners);
        }));
    // All ranks are here: each other's memory is that memory.
    expectWell(connected(
        4, gpus, Path::Any,
        [&](p2p::Peers &peers, const p2p::Place &, int rank) -> Status {
          const auto *words = reinterpret_cast<const uint64_t *>(peers.table());
          static std::atomic<uint64_t> seen[4];
          uint64_t next = words[plan::peersFirst + (rank + 1) % 4];
          seen[rank] = words[plan::peersFirst + rank];
          for (int i = 0; i < 5000 && seen[(rank + 1) % 4] != next; ++i)
            std::this_thread::sleep_for(1ms);
          return seen[(rank + 1) % 4] == next ? Status()
                                              : internalError("another memory");
        }));
  }
}

/// Writes a value of its own into each rank's memory, and finds those of all in its
/// own.
Status exchangeByHand(p2p::Peers &peers, int rank, int ranks) {
  const auto *words = reinterpret_cast<const uint64_t *>(peers.table());
  for (int to = 0; to < ranks; ++to) {
    auto *memory = reinterpret_cast<uint32_t *>(words[plan::peersFirst + to]);
    std::atomic_ref(memory[rank]).store(uint32_t(100 * rank + to + 1));
  }
  auto *mine = reinterpret_cast<uint32_t *>(words[plan::peersFirst + rank]);
  for (int from = 0; from < ranks; ++from)
    for (int i = 0;
         std::atomic_ref(mine[from]).load() != uint32_t(100 * from + rank + 1);
         ++i) {
      if (i > 5000)
        return internalError("rank " + std::to_string(from) +
                             "'s value has not come");
      std::this_thread::sleep_for(1ms);
    }
  return {};
}

TEST_F(PeersTest, OnTheHostWhereGpusDoNotReachEachOther) {
  auto use = [&](const std::string &why) {
    return [&, why](p2p::Peers &peers, const p2p::Place &, int rank) -> Status {
      EXPECT_NE(peers.path().find("memory of the host (" + why),
                std::string::npos)
          << peers.path();
      EXPECT_FALSE(peers.sharesDevice());
      std::vector<std::atomic<uint64_t>> owners(3);
      MLA_RETURN_IF_ERROR(checkTable(peers, rank, 3, owners));
      return {};
    };
  };
  auto exchange = [](p2p::Peers &peers, const p2p::Place &, int rank) {
    return exchangeByHand(peers, rank, 3);
  };
  expectWell(connected(3, 3, Path::Host, use("peer access is off")));
  expectWell(connected(3, 3, Path::Host, exchange));
  cuda->peerReported = false;
  expectWell(connected(3, 3, Path::Any, use("rank 0: no peer access from GPU")));
  expectWell(connected(3, 3, Path::Any, exchange));
  // A link that reports access and loses what is stored.
  cuda->peerReported = true;
  cuda->peerWorks = false;
  expectWell(connected(3, 3, Path::Any, use("rank 0: what rank 1 stores")));
  expectWell(connected(3, 3, Path::Any, exchange));
}

TEST_F(PeersTest, WhatWaitsEndsWithTheGroup) {
  auto outcomes = connected(
      2, 2, Path::Any,
      [&](p2p::Peers &peers, const p2p::Place &, int rank) -> Status {
        const auto *words = reinterpret_cast<const uint64_t *>(peers.table());
        if (rank == 1)
          return numericError("NaN in layers.7.mlp");
        // Kernels of rank 0 wait until they are told to end.
        cuda->waitFor = reinterpret_cast<uint32_t *>(words[plan::peersAbort]);
        return peers.wait([](uint32_t) { return "nothing"; });
      });
  EXPECT_EQ(outcomes[0].code(), StatusCode::Numeric);
  EXPECT_NE(outcomes[0].message().find("rank 1 gave up: NaN in layers.7.mlp"),
            std::string::npos)
      << outcomes[0].message();
}

TEST_F(PeersTest, AKernelSaysForWhomItHasWaited) {
  expectWell(connected(
      2, 2, Path::Any,
      [&](p2p::Peers &peers, const p2p::Place &, int) -> Status {
        const auto *words = reinterpret_cast<const uint64_t *>(peers.table());
        auto *report =
            reinterpret_cast<plan::PeerReport *>(words[plan::peersReport]);
        EXPECT_TRUE(peers.check({}).ok());
        *report = {1, 5, 3, 17, 2, 2'500'000'000};
        *reinterpret_cast<uint32_t *>(words[plan::peersAbort]) = 1;
        Status status = peers.wait([](uint32_t launch) {
          return "launch " + std::to_string(launch);
        });
        EXPECT_EQ(status.code(), StatusCode::Io);
        EXPECT_EQ(status.message(), "rank 5 waited 2.5 s for rank 3 in launch 17");
        return {};
      }));
}

/// A rank that ends when all is done ends nothing.
TEST_F(PeersTest, WhoHasLeftIsNotWaitedFor) {
  uint32_t done = 0;
  auto outcomes = connected(
      2, 2, Path::Any,
      [&](p2p::Peers &peers, const p2p::Place &, int rank) -> Status {
        if (rank == 1)
          return numericError("over");
        cuda->waitFor = &done;
        std::thread later([&] {
          std::this_thread::sleep_for(300ms);
          std::atomic_ref(done).store(1);
        });
        Status status = peers.wait([](uint32_t) { return "nothing"; });
        later.join();
        EXPECT_TRUE(status.ok()) << status.message();
        return {};
      });
}

class CudaRanksTest : public PeersTest {
protected:
  void SetUp() override {
    PeersTest::SetUp();
    test::giveKernels(plan, folder);
    plan::Parameter buffer{plan::Parameter::Kind::Buffer, Format::I32,
                           plan::Access::ReadWrite};
    plan::Parameter scalar{plan::Parameter::Kind::Scalar, Format::F32,
                           plan::Access::Read};
    plan::Parameter peers{plan::Parameter::Kind::Peers, Format::I32,
                          plan::Access::Read};
    plan.kernels = {{"add", {buffer, scalar}, 64, 0},
                    {"exchange", {peers, scalar}, 64, 0}};
    plan.ranks.count = 2;
    plan.exchangeBytes = 1000;
  }

  using Step = std::function<Status(hal::Device &, hal::Module &, int rank)>;
  std::vector<Status> onDevices(int gpus, const Step &step) {
    return onRanks(
        2, [&](int rank, collectives::Transport &transport) -> Status {
          Collectives all(transport);
          MLA_ASSIGN_OR_RETURN(
              std::unique_ptr<hal::Device> device,
              CudaDevice::open(
                  {rank % gpus, Path::Any, &all, MLA_FAKE_CUDA}));
          MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Module> module,
                               device->load(plan, folder.path));
          MLA_RETURN_IF_ERROR(step(*device, *module, rank));
          return all.barrier("the end");
        });
  }

  test::TempFolder folder;
  plan::Plan plan;
};

TEST_F(CudaRanksTest, NothingBehindAnExchangeBeginsEarlyOnASharedGpu) {
  for (int gpus : {1, 2}) {
    expectWell(onDevices(
        gpus, [&](hal::Device &device, hal::Module &module, int) -> Status {
          MLA_ASSIGN_OR_RETURN(
              auto buffer, device.allocate(8, hal::Access::Device, "a test"));
          const uint64_t add[] = {buffer->address(), 1},
                         exchange[] = {buffer->address(), 10};
          const hal::Dispatch list[] = {{0, 1, add},
                                        {1, 1, exchange},
                                        {0, 1, add},
                                        {0, 1, add}};
          for (int i = 0; i < 3; ++i)
            MLA_RETURN_IF_ERROR(device.run(module, list, 5));
          MLA_RETURN_IF_ERROR(device.synchronize());
          int64_t value = 0;
          MLA_RETURN_IF_ERROR(device.read(
              *buffer, 0, std::as_writable_bytes(std::span(&value, 1))));
          EXPECT_EQ(value, 39);
          EXPECT_NE(module.peers(), 0U);
          return {};
        }));
    // Two ranks launched and recorded, or recorded only, each four launches.
    EXPECT_EQ(cuda->launches, gpus == 1 ? 0 : 8);
    EXPECT_EQ(cuda->recordings, 2);
    EXPECT_EQ(cuda->replays, gpus == 1 ? 6 : 4);
    EXPECT_EQ(cuda->earlyLaunches, gpus == 1 ? 4 : 12);
    cuda->launches = cuda->recordings = cuda->replays = cuda->earlyLaunches = 0;
  }
}

/// Of a GPU with two ranks as of one with a rank, whatever it has itself.
TEST_F(PeersTest, TheFullestGpuBoundsTheBlocksOfAll) {
  expectWell(connected(3, 2, Path::Any,
                       [&](p2p::Peers &peers, const p2p::Place &, int) {
                         EXPECT_EQ(peers.mostBlocks(), 33);
                         return Status();
                       }));
}

TEST_F(CudaRanksTest, ExchangesLeaveHalfOfAGpu) {
  for (int gpus : {1, 2})
    for (int64_t grid : {7, 33, 1000}) {
      expectWell(onDevices(
          gpus, [&](hal::Device &device, hal::Module &module, int) -> Status {
            MLA_ASSIGN_OR_RETURN(
                auto buffer, device.allocate(8, hal::Access::Device, "a test"));
            const uint64_t arguments[] = {buffer->address(), 1};
            const hal::Dispatch list[] = {{1, grid, arguments}};
            for (int i = 0; i < 3; ++i)
              MLA_RETURN_IF_ERROR(device.run(module, list, 5));
            int64_t value = 0;
            MLA_RETURN_IF_ERROR(device.read(
                *buffer, 0, std::as_writable_bytes(std::span(&value, 1))));
            EXPECT_EQ(value, 3 * std::min<int64_t>(grid, gpus == 1 ? 33 : 66));
            return {};
          }));
    }
}

TEST_F(CudaRanksTest, AnErrorBetweenRanksStays) {
  auto outcomes = onDevices(
      2, [&](hal::Device &device, hal::Module &module, int rank) -> Status {
        if (rank == 1)
          return exhausted("no pages");
        const auto *words = reinterpret_cast<const uint64_t *>(module.peers());
        cuda->waitFor = reinterpret_cast<uint32_t *>(words[plan::peersAbort]);
        Status first = device.synchronize();
        cuda->waitFor = nullptr;
        Status second = device.synchronize();
        EXPECT_EQ(first.message(), second.message());
        return first;
      });
  for (const Status &status : outcomes)
    EXPECT_EQ(status.code(), StatusCode::Exhausted) << status.message();
}

TEST_F(CudaRanksTest, ALoneRankOfSeveralIsRefused) {
  auto device = CudaDevice::open({.library = MLA_FAKE_CUDA});
  ASSERT_TRUE(device.ok());
  Status status = (*device)->load(plan, folder.path).status();
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
  EXPECT_EQ(status.message(),
            "the plan's 2 ranks exchange data, and this is one alone");
}

TEST(CudaRanks, QueuesOfASharedGpu) {
  const char *name = "CUDA_DEVICE_MAX_CONNECTIONS";
  unsetenv(name);
  EXPECT_TRUE(CudaDevice::prepareSharedGpu(8).ok());
  EXPECT_STREQ(std::getenv(name), "32");
  setenv(name, "4", 1);
  Status status = CudaDevice::prepareSharedGpu(8);
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_EQ(status.message(), "8 ranks on one GPU need "
                              "CUDA_DEVICE_MAX_CONNECTIONS of 8 to 32, found 4");
  EXPECT_TRUE(CudaDevice::prepareSharedGpu(4).ok());
  EXPECT_STREQ(std::getenv(name), "4");
  unsetenv(name);
  EXPECT_EQ(CudaDevice::prepareSharedGpu(33).code(), StatusCode::Unsupported);
}

} // namespace
