//===- LoadTest.cpp - what is refused when a plan is loaded ---------------===//
//
// Part of mla. Every mistake ends in an error that names the file or the thing,
// and nothing is loaded.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "runtime/executor/Engine.h"
#include "runtime/hal/host/CpuFeatures.h"
#include "runtime/weights/Synthetic.h"
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::runtime;
using mla::test::TestPlan;

namespace {

class LoadTest : public testing::Test {
protected:
  /// Loads, expects `code`, and that the message has all of `parts`.
  void expectError(StatusCode code, const std::vector<std::string> &parts,
                   const std::filesystem::path &checkpoint = {}) {
    auto engine =
        Engine::load(files.folder(), {.threads = 2, .checkpoint = checkpoint});
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.status().code(), code) << engine.status().message();
    for (const std::string &part : parts)
      EXPECT_NE(engine.status().message().find(part), std::string::npos)
          << "'" << part << "' is not in: " << engine.status().message();
  }

  static void append(const std::filesystem::path &path, const char *text) {
    std::ofstream(path, std::ios::binary | std::ios::app) << text;
  }

  TestPlan files;
};

TEST_F(LoadTest, ListsEveryBadShard) {
  files.write();
  std::filesystem::remove(files.checkpoint() / "a.safetensors");
  std::filesystem::resize_file(files.checkpoint() / "b.safetensors", 20);
  expectError(StatusCode::Invalid,
              {files.checkpoint().string(), "2 of 2 files",
               "a.safetensors is missing",
               "b.safetensors is too short: 20 bytes instead of 59"});
}

TEST_F(LoadTest, LongShard) {
  files.write();
  append(files.checkpoint() / "b.safetensors", "x");
  expectError(StatusCode::Invalid, {"b.safetensors is too long: 60"});
}

TEST_F(LoadTest, ForeignHeader) {
  files.write();
  std::fstream file(files.checkpoint() / "a.safetensors",
                    std::ios::in | std::ios::out | std::ios::binary);
  file << "Header";
  file.close();
  expectError(StatusCode::Invalid, {"1 of 2 files", "a.safetensors has another "
                                                    "header"});
}

TEST_F(LoadTest, CheckpointElsewhere) {
  files.write();
  std::filesystem::path moved = files.checkpoint();
  moved += "-moved";
  std::filesystem::rename(files.checkpoint(), moved);
  expectError(StatusCode::NotFound,
              {files.checkpoint().string(), "--checkpoint"});
  auto engine =
      Engine::load(files.folder(), {.threads = 1, .checkpoint = moved});
  EXPECT_TRUE(engine.ok()) << engine.status().message();
}

TEST_F(LoadTest, WithoutWeights) {
  files.plan.checkpoint = {};
  for (plan::Weight &weight : files.plan.weights)
    for (plan::TensorSource &source : weight.sources)
      source = {source.tensor, 0, 0};
  files.write();
  expectError(StatusCode::Unsupported, {"--no-weights", "not run"});
}

TEST_F(LoadTest, ForeignLibrary) {
  files.write();
  append(files.folder() / "kernels.so", "x");
  expectError(StatusCode::Invalid, {"kernels.so", "hash differs"});
}

TEST_F(LoadTest, LibraryIsNoLibrary) {
  std::ofstream(files.folder() / "kernels.so") << "not an ELF file";
  files.write();
  expectError(StatusCode::Invalid, {"cannot load", "kernels.so"});
}

TEST_F(LoadTest, MissingKernel) {
  files.plan.kernels[2].name = "test_absent";
  files.write();
  expectError(StatusCode::Invalid, {"no kernel 'test_absent'"});
}

TEST_F(LoadTest, MissingLibrary) {
  files.write();
  std::filesystem::remove(files.folder() / "kernels.so");
  auto engine = Engine::load(files.folder(), {.threads = 1});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("kernels.so"), std::string::npos)
      << engine.status().message();
}

TEST_F(LoadTest, ForeignTarget) {
  files.plan.target.name = "sm_10a"; // No such GPU, so whatever this machine has.
  for (plan::Kernel &kernel : files.plan.kernels)
    kernel.threads = 32;
  files.write();
  auto engine = Engine::load(files.folder(), {.threads = 1});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::Unsupported);
}

TEST_F(LoadTest, MissingFeature) {
  files.plan.target.features = {"a-feature-of-the-future"};
  files.write();
  expectError(StatusCode::Unsupported, {"a-feature-of-the-future"});
}

TEST_F(LoadTest, BadOptions) {
  files.write();
  auto engine = Engine::load(files.folder(), {.threads = -1});
  EXPECT_FALSE(engine.ok());
  engine = Engine::load(files.folder(), {.threads = 1, .cacheTokens = -1});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), StatusCode::Invalid);
  engine = Engine::load(files.folder(),
                        {.threads = 1, .cacheTokens = int64_t(1) << 62});
  ASSERT_FALSE(engine.ok());
}

TEST_F(LoadTest, NoPlan) {
  auto engine = Engine::load(files.folder() / "absent", {});
  ASSERT_FALSE(engine.ok());
  EXPECT_NE(engine.status().message().find("absent"), std::string::npos);
}

TEST_F(LoadTest, SyntheticWeights) {
  files.plan.checkpoint = {};
  files.plan.checkpoint.kind = plan::Checkpoint::Kind::Synthetic;
  files.plan.checkpoint.seed = 7;
  for (plan::Weight &weight : files.plan.weights)
    for (plan::TensorSource &source : weight.sources)
      source = {source.tensor, 0, 0};
  files.write();
  auto engine = Engine::load(files.folder(), {.threads = 3});
  ASSERT_TRUE(engine.ok()) << engine.status().message();
  const WeightStore &weights = (*engine)->weights();
  for (uint32_t w = 0; w < 2; ++w) {
    const plan::Weight &weight = files.plan.weights[w];
    std::vector<int64_t> shape = weight.shape;
    if (weight.stacked)
      shape.erase(shape.begin());
    ASSERT_EQ(weights.tensors(w).size(), weight.sources.size());
    for (size_t t = 0; t < weight.sources.size(); ++t) {
      SyntheticTensor expected(weight.sources[t].tensor, shape, 7);
      std::span<const std::byte> bytes = weights.tensors(w)[t];
      for (size_t i = 0; i < bytes.size() / 4; ++i) {
        float value = 0;
        std::memcpy(&value, bytes.data() + 4 * i, 4);
        ASSERT_EQ(value, expected.value(i));
      }
    }
  }
  expectError(StatusCode::Invalid, {"synthetic"}, files.checkpoint());
}

TEST(CpuFeatures, KnowsThisMachine) {
#if defined(__x86_64__)
  EXPECT_TRUE(hal::checkCpuFeatures({"sse2"}).ok());
  Status status = hal::checkCpuFeatures({"sse2", "nonsense", "bogus"});
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
  EXPECT_NE(status.message().find("nonsense, bogus"), std::string::npos);
#endif
  EXPECT_TRUE(hal::checkCpuFeatures({}).ok());
}

} // namespace
