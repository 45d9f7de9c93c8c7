//===- CudaDeviceTest.cpp - the CUDA device -------------------------------===//
//
// Part of mla. On a driver of the tests' own: what is launched and recorded,
// what errors say and what is left after them. Whether kernels compute what they
// should is for plans on a GPU to show; the last test needs one.
//
//===----------------------------------------------------------------------===//
#include "Fakes.h"
#include "TestPlan.h"
#include "runtime/hal/cuda/CudaDevice.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::hal;

namespace {

class CudaDeviceTest : public testing::Test {
protected:
  void SetUp() override {
    cuda = test::freshCuda();
    ASSERT_TRUE(cuda) << dlerror();
    test::giveKernels(plan, folder);
    plan::Parameter buffer{plan::Parameter::Kind::Buffer, Format::I32,
                           plan::Access::ReadWrite};
    plan::Parameter scalar{plan::Parameter::Kind::Scalar, Format::F32,
                           plan::Access::Read};
    plan.kernels = {{"add", {buffer, scalar}, 64, 0}};
  }

  void TearDown() override {
    module.reset();
    device.reset();
    EXPECT_EQ(cuda->contexts, 0);
    EXPECT_EQ(cuda->buffers, 0);
    EXPECT_EQ(cuda->mirrors, 0);
    EXPECT_EQ(cuda->streams, 0);
    EXPECT_EQ(cuda->modules, 0);
    EXPECT_EQ(cuda->graphs, 0);
    EXPECT_EQ(cuda->execs, 0);
    EXPECT_EQ(cuda->events, 0);
  }

  void open() {
    Result<std::unique_ptr<Device>> opened =
        CudaDevice::open({.library = MLA_FAKE_CUDA});
    ASSERT_TRUE(opened.ok()) << opened.status().message();
    device = *std::move(opened);
  }
  void load() {
    open();
    Result<std::unique_ptr<Module>> loaded = device->load(plan, folder.path);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    module = *std::move(loaded);
  }
  void refused(StatusCode code, const std::string &message) {
    open();
    Result<std::unique_ptr<Module>> loaded = device->load(plan, folder.path);
    ASSERT_FALSE(loaded.ok());
    EXPECT_EQ(loaded.status().code(), code);
    EXPECT_NE(loaded.status().message().find(message), std::string::npos)
        << loaded.status().message();
  }

  std::unique_ptr<Buffer> allocate(uint64_t bytes, Access access) {
    Result<std::unique_ptr<Buffer>> buffer =
        device->allocate(bytes, access, "a test");
    EXPECT_TRUE(buffer.ok()) << buffer.status().message();
    return buffer.ok() ? *std::move(buffer) : nullptr;
  }
  int64_t value(const Buffer &buffer) {
    int64_t value = -1;
    Status status =
        device->read(buffer, 0, std::as_writable_bytes(std::span(&value, 1)));
    EXPECT_TRUE(status.ok()) << status.message();
    return value;
  }

  FakeCuda *cuda = nullptr;
  test::TempFolder folder;
  plan::Plan plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<Module> module;
};

TEST_F(CudaDeviceTest, NoDriver) {
  auto opened = CudaDevice::open({.library = "libof-no-driver.so.1"});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::Unsupported);
  EXPECT_NE(opened.status().message().find("libof-no-driver.so.1"),
            std::string::npos);
}

TEST_F(CudaDeviceTest, NoGpu) {
  cuda->devices = 0;
  auto opened = CudaDevice::open({.library = MLA_FAKE_CUDA});
  ASSERT_FALSE(opened.ok());
  EXPECT_EQ(opened.status().code(), StatusCode::Unsupported);
  EXPECT_NE(opened.status().message().find("this machine has none"),
            std::string::npos)
      << opened.status().message();
  cuda->devices = 1;
  opened = CudaDevice::open({.ordinal = 1, .library = MLA_FAKE_CUDA});
  ASSERT_FALSE(opened.ok());
  EXPECT_NE(opened.status().message().find("0 to 1 (exclusive), found 1"),
            std::string::npos)
      << opened.status().message();
}

TEST_F(CudaDeviceTest, Facts) {
  open();
  Result<DeviceFacts> facts = device->facts();
  ASSERT_TRUE(facts.ok());
  EXPECT_EQ(facts->name, "Fake GPU");
  EXPECT_EQ(facts->architecture, "sm_90");
  EXPECT_EQ(facts->driver, "CUDA 13.0");
  EXPECT_EQ(facts->units, 132);
  EXPECT_EQ(facts->totalMemory, uint64_t(1) << 30);
}

TEST_F(CudaDeviceTest, MemoryIsZeroAndShared) {
  open();
  auto buffer = allocate(64, Access::Shared);
  ASSERT_EQ(buffer->host().size(), 64u);
  EXPECT_NE(buffer->address(),
            reinterpret_cast<uint64_t>(buffer->host().data()));
  EXPECT_EQ(value(*buffer), 0);
  int64_t seven = 7;
  std::memcpy(buffer->host().data(), &seven, 8);
  EXPECT_EQ(value(*buffer), 0) << "not copied yet";
  ASSERT_TRUE(device->toDevice(*buffer, 8).ok());
  EXPECT_EQ(value(*buffer), 7);
  std::memset(buffer->host().data(), 0, 64);
  ASSERT_TRUE(device->toHost(*buffer, 4).ok());
  ASSERT_TRUE(device->synchronize().ok());
  EXPECT_EQ(int(buffer->host()[0]), 7);
  EXPECT_FALSE(device->toHost(*buffer, 65).ok());
  EXPECT_FALSE(device->toDevice(*buffer, 65).ok());
  std::byte bytes[8] = {};
  EXPECT_FALSE(device->write(*buffer, 60, bytes).ok());
  EXPECT_FALSE(device->read(*buffer, 57, bytes).ok());
  EXPECT_TRUE(device->write(*buffer, 56, bytes).ok());
  EXPECT_TRUE(allocate(0, Access::Shared)->host().empty());
}

TEST_F(CudaDeviceTest, MemoryRunsOut) {
  open();
  auto buffer = device->allocate(uint64_t(1) << 31, Access::Device, "the cache");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::Exhausted);
  EXPECT_EQ(buffer.status().message(),
            "cannot allocate 2.0 GiB for the cache: 1.0 GiB of 1.0 GiB are "
            "free on Fake GPU");
}

TEST_F(CudaDeviceTest, LaunchesThenRecordsThenReplays) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t once[] = {buffer->address(), 1}, ten[] = {buffer->address(), 10};
  const Dispatch list[] = {{0, 1, once}, {0, 0, ten}, {0, 3, ten}, {0, 1, once}};
  ASSERT_TRUE(device->run(*module, list, 5).ok());
  EXPECT_EQ(value(*buffer), 32);
  EXPECT_EQ(cuda->launches, 3); // None for a grid of 0.
  EXPECT_EQ(cuda->earlyLaunches, 2); // All but the first.
  EXPECT_EQ(cuda->recordings, 0);
  ASSERT_TRUE(device->run(*module, list, 5).ok());
  EXPECT_EQ(value(*buffer), 64);
  EXPECT_EQ(cuda->launches, 3);
  EXPECT_EQ(cuda->recordings, 1);
  EXPECT_EQ(cuda->earlyLaunches, 4);
  ASSERT_TRUE(device->run(*module, list, 5).ok());
  EXPECT_EQ(value(*buffer), 96);
  EXPECT_EQ(cuda->recordings, 1);
  EXPECT_EQ(cuda->replays, 2);
  for (int i = 0; i < 3; ++i) // Without a key nothing is recorded.
    ASSERT_TRUE(device->run(*module, list).ok());
  EXPECT_EQ(cuda->recordings, 1);
  EXPECT_EQ(cuda->launches, 12);
}

TEST_F(CudaDeviceTest, KeepsTheGraphsUsedLast) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, 1, arguments}};
  constexpr uint64_t most = CudaDevice::maxGraphs;
  for (int round = 0; round < 2; ++round)
    for (uint64_t key = 1; key <= most; ++key)
      ASSERT_TRUE(device->run(*module, list, key).ok());
  EXPECT_EQ(cuda->execs, int(most));
  ASSERT_TRUE(device->run(*module, list, 1).ok()); // Key 2 is now the oldest.
  for (int round = 0; round < 2; ++round)
    ASSERT_TRUE(device->run(*module, list, most + 1).ok());
  EXPECT_EQ(cuda->execs, int(most));
  int recordings = cuda->recordings;
  ASSERT_TRUE(device->run(*module, list, 1).ok());
  EXPECT_EQ(cuda->recordings, recordings);
  int launches = cuda->launches;
  ASSERT_TRUE(device->run(*module, list, 2).ok()); // Forgotten: from the start.
  EXPECT_EQ(cuda->launches, launches + 1);
  EXPECT_EQ(value(*buffer), int64_t(2 * most + 1 + 2 + 1 + 1));
}

TEST_F(CudaDeviceTest, ManyKeysAreForgotten) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, 1, arguments}};
  for (uint64_t key = 1; key <= 10000; ++key)
    ASSERT_TRUE(device->run(*module, list, key).ok());
  EXPECT_EQ(cuda->execs, 0);
  EXPECT_EQ(value(*buffer), 10000);
}

TEST_F(CudaDeviceTest, Times) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, 1, arguments}, {0, 1, arguments}};
  Result<std::vector<double>> seconds = device->time(*module, list, 5);
  ASSERT_TRUE(seconds.ok());
  ASSERT_EQ(seconds->size(), 5u);
  EXPECT_NEAR((*seconds)[0], 0.5e-3, 1e-9);
  EXPECT_EQ(value(*buffer), 12); // The first does not count, but runs.
}

TEST_F(CudaDeviceTest, ALostGpuIsReportedAndStaysLost) {
  load();
  auto buffer = allocate(8, Access::Shared);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, 1, arguments}};
  cuda->failNextLaunch = cuda::IllegalAddress;
  Status status = device->run(*module, list, 1);
  ASSERT_FALSE(status.ok());
  for (const char *part :
       {"cuLaunchKernelEx", "kernel add", "CUDA_ERROR_ILLEGAL_ADDRESS",
        "as the test asked", "Fake GPU", "no further use"})
    EXPECT_NE(status.message().find(part), std::string::npos)
        << status.message();
  std::byte bytes[8];
  EXPECT_EQ(device->run(*module, list, 1).message(), status.message());
  EXPECT_EQ(device->synchronize().message(), status.message());
  EXPECT_EQ(device->toDevice(*buffer, 8).message(), status.message());
  EXPECT_EQ(device->toHost(*buffer, 8).message(), status.message());
  EXPECT_EQ(device->read(*buffer, 0, bytes).message(), status.message());
  EXPECT_EQ(device->write(*buffer, 0, bytes).message(), status.message());
  EXPECT_EQ(device->time(*module, list, 1).status().message(),
            status.message());
  EXPECT_EQ(device->allocate(8, Access::Device, "x").status().message(),
            status.message());
  EXPECT_EQ(device->facts().status().message(), status.message());
}

TEST_F(CudaDeviceTest, ErrorsOfKernelsShowWhenWaiting) {
  load();
  cuda->failNextSynchronize = cuda::LaunchFailed;
  Status status = device->synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("cuStreamSynchronize"), std::string::npos);
  EXPECT_FALSE(device->synchronize().ok());
}

TEST_F(CudaDeviceTest, AFailedRecordingLeavesTheDeviceUsable) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, 1, arguments}};
  ASSERT_TRUE(device->run(*module, list, 1).ok());
  cuda->failNextLaunch = 1; // CUDA_ERROR_INVALID_VALUE
  EXPECT_FALSE(device->run(*module, list, 1).ok());
  ASSERT_TRUE(device->run(*module, list, 1).ok());
  EXPECT_EQ(value(*buffer), 2);
}

TEST_F(CudaDeviceTest, OtherMachines) {
  plan.target.name = "sm_120a";
  refused(StatusCode::Unsupported,
          "compiled for sm_120a, compute capability 12.0; Fake GPU has 9.0");
  plan.target.name = "sm_100a";
  refused(StatusCode::Unsupported, "10.0; Fake GPU has 9.0");
  plan.target.name = "host";
  refused(StatusCode::Unsupported, "for the host");
  plan.target.name = "sm_90a";
  plan.target.kernelAbi = 2;
  refused(StatusCode::Unsupported, "ABI 2");
  plan.target.kernelAbi = 1;
  cuda->major = 12;
  plan.target.name = "sm_120a";
  load();
}

TEST_F(CudaDeviceTest, Libraries) {
  plan.kernels[0].name = "absent";
  refused(StatusCode::Invalid, "kernels.ptx: has no kernel 'absent'");
  plan.kernels[0].name = "add";
  plan.kernels[0].threads = 65;
  refused(StatusCode::Unsupported, "needs blocks of 65 threads");
  plan.kernels[0].threads = 64;
  plan.kernels[0].parameters.pop_back();
  refused(StatusCode::Invalid, "more parameters than the 1 of the plan");
  plan.kernels[0].parameters.resize(3);
  refused(StatusCode::Invalid, "fewer parameters than the 3 of the plan");
  plan.kernels[0].parameters.resize(2);
  plan.libraryHash ^= 1;
  refused(StatusCode::Invalid, "its hash differs");
  test::giveKernels(plan, folder, "bad ptx");
  refused(StatusCode::Invalid, "CUDA_ERROR_INVALID_PTX");
  refused(StatusCode::Invalid, "line 1: what is this");
}

TEST_F(CudaDeviceTest, TheBinaryGoesFirst) {
  test::giveKernels(plan, folder, "bad ptx");
  plan.binary = "kernels.cubin";
  std::ofstream(folder.path / "kernels.cubin") << "cubin";
  plan.binaryHash = *plan::hashFile(folder.path / "kernels.cubin");
  load();
  module.reset();
  plan.binaryHash ^= 1;
  refused(StatusCode::Invalid, "kernels.cubin: not the file");
}

TEST_F(CudaDeviceTest, SharedMemory) {
  plan.kernels = {{"large", {}, 64, 200000}};
  load();
  EXPECT_EQ(cuda->sharedBytes, 200000);
  module.reset();
  cuda->sharedLimit = 101376;
  refused(StatusCode::Unsupported,
          "kernel 'large' needs 200016 bytes of shared memory a block; Fake GPU "
          "has 101376");
}

TEST_F(CudaDeviceTest, AGridHasALimit) {
  load();
  auto buffer = allocate(8, Access::Device);
  const uint64_t arguments[] = {buffer->address(), 1};
  const Dispatch list[] = {{0, int64_t(1) << 31, arguments}};
  EXPECT_EQ(device->run(*module, list).code(), StatusCode::Invalid);
}

/// What can be seen of the real driver without kernels.
TEST(CudaDriver, MemoryOfARealGpu) {
  auto opened = CudaDevice::open({});
  if (!opened.ok())
    GTEST_SKIP() << opened.status().message();
  Device &device = **opened;
  auto buffer = device.allocate(1 << 20, Access::Shared, "a test");
  ASSERT_TRUE(buffer.ok()) << buffer.status().message();
  std::vector<std::byte> bytes(1 << 20, std::byte{1});
  ASSERT_TRUE(device.read(**buffer, 0, bytes).ok());
  EXPECT_EQ(bytes, std::vector<std::byte>(1 << 20));
  (*buffer)->host()[5] = std::byte{9};
  ASSERT_TRUE(device.toDevice(**buffer, 1 << 20).ok());
  ASSERT_TRUE(device.read(**buffer, 0, bytes).ok());
  EXPECT_EQ(bytes[5], std::byte{9});
}

} // namespace
