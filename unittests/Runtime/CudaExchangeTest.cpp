//===- CudaExchangeTest.cpp - a CUDA device whose rank is one of some -----===//
//
// Part of mla. On a driver and an NCCL of the tests' own: in which order the device
// gives back what it has from both. NCCL waits with the end of a communicator, even
// if it is aborted, until no graph has its kernels.
//
//===----------------------------------------------------------------------===//
#include "Fakes.h"
#include "TestPlan.h"
#include "runtime/collectives/host/Threads.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <fstream>
#include <gtest/gtest.h>
#include <thread>

using namespace mla;
using namespace mla::hal;
using namespace std::chrono_literals;

namespace {

class CudaExchangeTest : public testing::Test {
protected:
  void SetUp() override {
    cuda = test::freshCuda();
    nccl = test::freshNccl();
    ASSERT_TRUE(cuda && nccl) << dlerror();
    nccl->graphs = &cuda->execs;
    test::giveKernels(plan, folder);
    plan.kernels.resize(1);
    plan.kernels[0].name = "all_reduce";
    plan.kernels[0].collective = plan::Collective::AllReduce;

    auto group = collectives::createThreadGroup(1);
    ASSERT_TRUE(group.ok()) << group.status().message();
    transport = std::move((*group)[0]);
    transport->setTimeout(10s);
    ranks.emplace(*transport);
    auto opened = CudaDevice::open({.ranks = &*ranks,
                                    .library = MLA_FAKE_CUDA,
                                    .nccl = MLA_FAKE_NCCL});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    device = *std::move(opened);
    auto loaded = device->load(plan, folder.path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    module = *std::move(loaded);
    auto allocated = device->allocate(16, Access::Device, "a test");
    ASSERT_TRUE(allocated.ok()) << allocated.status().message();
    buffer = *std::move(allocated);
    arguments = {buffer->address(), buffer->address(), 1, 4, 4};
    list = {{0, 1, arguments}};
  }

  void TearDown() override {
    buffer.reset();
    module.reset();
    device.reset();
    EXPECT_EQ(nccl->comms, 0);
    EXPECT_EQ(nccl->endedBeforeGraphs, 0);
    EXPECT_EQ(cuda->execs, 0);
    EXPECT_EQ(cuda->contexts, 0);
    nccl->graphs = nullptr;
  }

  /// Another rank is gone, and kernels in the stream wait for it until NCCL's end.
  /// What `body`, which waits for the stream, returns then.
  template <typename Body> Status whileKernelsWait(const Body &body) {
    uint32_t done = 0;
    cuda->waitFor = &done;
    transport->abort(ioError("rank 1 ended"));
    std::thread kernels([&] {
      while (nccl->aborted == 0)
        std::this_thread::sleep_for(1ms);
      std::atomic_ref(done).store(1);
    });
    Status status = body();
    kernels.join();
    cuda->waitFor = nullptr;
    return status;
  }

  FakeCuda *cuda = nullptr;
  FakeNccl *nccl = nullptr;
  test::TempFolder folder;
  plan::Plan plan;
  std::unique_ptr<collectives::Transport> transport;
  std::optional<collectives::Collectives> ranks;
  std::unique_ptr<Device> device;
  std::unique_ptr<Module> module;
  std::unique_ptr<Buffer> buffer;
  std::vector<uint64_t> arguments;
  std::vector<Dispatch> list;
};

TEST_F(CudaExchangeTest, GraphsGoBeforeNccl) {
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(device->run(*module, list, 1).ok());
  ASSERT_TRUE(device->synchronize().ok());
  EXPECT_EQ(cuda->execs, 1);
  ASSERT_TRUE(device->time(*module, list, 2).ok());
  EXPECT_EQ(nccl->comms, 1);
}

TEST_F(CudaExchangeTest, AGraphThatWaitsForARankThatIsGone) {
  for (int i = 0; i < 3; ++i)
    ASSERT_TRUE(device->run(*module, list, 1).ok());
  Status status = whileKernelsWait([&] { return device->synchronize(); });
  EXPECT_NE(status.message().find("rank 1 ended"), std::string::npos)
      << status.message();
  EXPECT_EQ(device->run(*module, list, 1).message(), status.message());
}

TEST_F(CudaExchangeTest, OneThatIsTimed) {
  Status status = whileKernelsWait(
      [&] { return device->time(*module, list, 2).status(); });
  EXPECT_NE(status.message().find("rank 1 ended"), std::string::npos)
      << status.message();
}

/// What NCCL falls back to is said as it is of our kernels.
TEST_F(CudaExchangeTest, NcclWithoutPeers) {
  auto text = [&] {
    auto facts = device->facts();
    return facts.ok() ? facts->exchange : facts.status().message();
  };
  ASSERT_EQ(unsetenv("NCCL_P2P_DISABLE"), 0);
  EXPECT_TRUE(text().starts_with("NCCL ")) << text();
  EXPECT_EQ(text().find("memory of the host"), std::string::npos) << text();
  setenv("NCCL_P2P_DISABLE", "1", 1);
  EXPECT_TRUE(text().ends_with(" in memory of the host (NCCL_P2P_DISABLE=1)"))
      << text();
  unsetenv("NCCL_P2P_DISABLE");
}

} // namespace
