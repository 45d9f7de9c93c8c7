//===- DeviceTest.cpp - what every device must do -------------------------===//
//
// Part of mla. One suite for all devices: a device is added to it by a function
// that makes one, and by kernels of the same names for its target.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "runtime/hal/host/HostDevice.h"
#include <algorithm>
#include <array>
#include <gtest/gtest.h>

using namespace mla;
using mla::test::TestPlan;

namespace {

struct DeviceCase {
  const char *name;
  int threads;
};

class DeviceTest : public testing::TestWithParam<DeviceCase> {
protected:
  void SetUp() override {
    files.plan.kernels[0].name = "test_accumulate";
    files.plan.kernels.resize(1);
    // Only kernels are looked at; the rest of the plan is not written.
    auto hash = plan::hashFile(files.folder() / files.plan.library);
    ASSERT_TRUE(hash.ok());
    files.plan.libraryHash = *hash;
    auto made = runtime::ThreadPool::create(GetParam().threads);
    ASSERT_TRUE(made.ok());
    pool = *std::move(made);
    device = std::make_unique<hal::HostDevice>(*pool);
    auto loaded = device->load(files.plan, files.folder());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    module = *std::move(loaded);
  }

  std::unique_ptr<hal::Buffer> allocate(uint64_t bytes) {
    auto buffer = device->allocate(bytes, hal::Access::Shared, "a test");
    EXPECT_TRUE(buffer.ok());
    return *std::move(buffer);
  }

  static std::span<float> floats(hal::Buffer &buffer) {
    return {reinterpret_cast<float *>(buffer.host().data()),
            buffer.host().size() / sizeof(float)};
  }

  TestPlan files;
  std::unique_ptr<runtime::ThreadPool> pool;
  std::unique_ptr<hal::Device> device;
  std::unique_ptr<hal::Module> module;
};

TEST_P(DeviceTest, MemoryIsZeroAndAligned) {
  for (uint64_t bytes : {uint64_t(4), uint64_t(4096), uint64_t(5) << 20}) {
    auto buffer = allocate(bytes);
    EXPECT_EQ(buffer->size(), bytes);
    EXPECT_EQ(buffer->address() % 64, 0U);
    ASSERT_EQ(buffer->host().size(), bytes);
    EXPECT_TRUE(std::all_of(buffer->host().begin(), buffer->host().end(),
                            [](std::byte b) { return b == std::byte(0); }));
  }
  auto own = device->allocate(64, hal::Access::Device, "a test");
  ASSERT_TRUE(own.ok());
  EXPECT_TRUE((*own)->host().empty());
}

TEST_P(DeviceTest, TooMuchMemoryIsAnError) {
  auto buffer =
      device->allocate(uint64_t(1) << 60, hal::Access::Device, "the universe");
  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), StatusCode::Exhausted);
  EXPECT_NE(buffer.status().message().find("1024.0 PiB for the universe"),
            std::string::npos)
      << buffer.status().message();
}

// Tests that a dispatch sees all that those before it wrote, that each item
// runs once, and that imported memory can be read.
TEST_P(DeviceTest, DispatchesRunInOrder) {
  constexpr size_t count = 1000;
  std::vector<float> ones(count, 1.0F);
  auto x = device->import(std::as_bytes(std::span(ones)), "ones");
  ASSERT_TRUE(x.ok());
  auto y = allocate(count * sizeof(float));
  std::vector<uint64_t> twice = {(*x)->address(), y->address(), 2};
  std::vector<uint64_t> once = {(*x)->address(), y->address(), 1};
  // y becomes 2 y + 1 or y + 1; the order decides the result.
  std::vector<hal::Dispatch> list;
  float expected = 0;
  for (int i = 0; i < 200; ++i) {
    bool doubles = i % 17 == 3;
    list.push_back({0, count, doubles ? twice : once});
    expected = (doubles ? 2.0F : 1.0F) * expected + 1.0F;
  }
  ASSERT_TRUE(device->run(*module, list).ok());
  ASSERT_TRUE(device->synchronize().ok());
  for (float value : floats(*y))
    ASSERT_EQ(value, expected);
}

TEST_P(DeviceTest, GridIsRespected) {
  std::vector<float> ones(64, 1.0F);
  auto x = device->import(std::as_bytes(std::span(ones)), "ones");
  ASSERT_TRUE(x.ok());
  for (int64_t grid : {0, 1, 5, 63}) {
    auto y = allocate(64 * sizeof(float));
    std::vector<uint64_t> arguments = {(*x)->address(), y->address(), 1};
    hal::Dispatch dispatch = {0, grid, arguments};
    ASSERT_TRUE(device->run(*module, {&dispatch, 1}).ok());
    ASSERT_TRUE(device->synchronize().ok());
    for (int64_t i = 0; i < 64; ++i)
      ASSERT_EQ(floats(*y)[static_cast<size_t>(i)], i < grid ? 1.0F : 0.0F);
  }
}

// Tests that memory can be looked at that the host does not see, once all that
// was run has ended, and that no byte comes from beyond a buffer.
TEST_P(DeviceTest, ReadsAnyBuffer) {
  constexpr size_t count = 1000;
  std::vector<float> input(count);
  for (size_t i = 0; i < count; ++i)
    input[i] = static_cast<float>(i + 1);
  auto x = device->import(std::as_bytes(std::span(input)), "input");
  ASSERT_TRUE(x.ok());
  for (hal::Access access : {hal::Access::Device, hal::Access::Shared}) {
    auto made = device->allocate(count * sizeof(float), access, "a test");
    ASSERT_TRUE(made.ok());
    hal::Buffer &y = **made;
    std::vector<uint64_t> arguments = {(*x)->address(), y.address(), 1};
    hal::Dispatch dispatch = {0, count, arguments};
    ASSERT_TRUE(device->run(*module, {&dispatch, 1}).ok());
    for (const hal::Buffer *buffer : {(*x).get(), &y}) {
      std::vector<float> all(count);
      Status status =
          device->read(*buffer, 0, std::as_writable_bytes(std::span(all)));
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_EQ(all, input);
      std::array<float, 3> end{};
      auto bytes = std::as_writable_bytes(std::span(end));
      ASSERT_TRUE(device->read(*buffer, 4 * (count - 3), bytes).ok());
      EXPECT_EQ(end, (std::array<float, 3>{998, 999, 1000}));
      EXPECT_TRUE(device->read(*buffer, 4 * count, {}).ok());

      for (uint64_t offset :
           {uint64_t(4 * (count - 3) + 1), uint64_t(4 * count), UINT64_MAX,
            UINT64_MAX - 4}) {
        status = device->read(*buffer, offset, bytes);
        ASSERT_FALSE(status.ok()) << offset;
        EXPECT_EQ(status.code(), StatusCode::Invalid);
        EXPECT_NE(status.message().find("12 bytes from byte " +
                                        std::to_string(offset) +
                                        " of a buffer of 4000"),
                  std::string::npos)
            << status.message();
        EXPECT_EQ(end[0], 998); // Nothing was written.
      }
      EXPECT_FALSE(device->read(*buffer, 4 * count + 1, {}).ok());
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Host, DeviceTest,
                         testing::Values(DeviceCase{"one", 1},
                                         DeviceCase{"four", 4}),
                         [](const auto &info) { return info.param.name; });

} // namespace
