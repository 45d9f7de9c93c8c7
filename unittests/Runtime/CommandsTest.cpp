//===- CommandsTest.cpp - what mla-run does -------------------------------===//
//
// Part of mla. The subcommands on the little model of TestKernels.cpp.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "TestPlan.h"
#include "mla/Support/Json.h"
#include "runtime/cli/Support.h"
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <sstream>

using namespace mla;
using mla::test::expectedLogits;
using mla::test::TestPlan;

namespace {

class CommandsTest : public testing::Test {
protected:
  void SetUp() override { files.write(); }

  template <typename Options> Options options() const {
    Options result;
    result.plan = files.folder();
    result.engine.threads = 2;
    return result;
  }

  /// Takes the token whose embedding is NaN out of the vocabulary.
  void removeNaN() {
    files.plan.model.vocabSize = TestPlan::nanToken;
    for (plan::Program &program : files.plan.programs)
      program.launches[3].arguments[4] = {plan::Expr(TestPlan::nanToken)};
    files.write();
  }

  /// Runs mla-run and returns its exit code.
  static int run(std::vector<std::string> arguments) {
    std::vector<const char *> argv = {"mla-run"};
    for (const std::string &argument : arguments)
      argv.push_back(argument.c_str());
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    int code = cli::run(static_cast<int>(argv.size()), argv.data());
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    return code;
  }

  TestPlan files;
};

/// The f32 values and the shape of a tensor of a safetensors file.
struct Tensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

std::map<std::string, Tensor> readTensors(const std::filesystem::path &path) {
  std::map<std::string, Tensor> tensors;
  Result<std::string> bytes = readFile(path);
  EXPECT_TRUE(bytes.ok());
  if (!bytes.ok())
    return tensors;
  uint64_t size = 0;
  std::memcpy(&size, bytes->data(), 8);
  EXPECT_EQ(size % 8, 0U);
  auto json = JsonDocument::parseText(bytes->substr(8, size), "header");
  EXPECT_TRUE(json.ok());
  if (!json.ok())
    return tensors;
  constexpr int64_t most = int64_t(1) << 40;
  for (const auto &[name, value] : (*json)->root().members()) {
    if (name == "__metadata__")
      continue;
    EXPECT_EQ(value["dtype"].string(), "F32");
    Tensor &tensor = tensors[name];
    for (const JsonValue &dimension : value["shape"].elements())
      tensor.shape.push_back(dimension.integer(0, most));
    auto begin =
        static_cast<size_t>(value["data_offsets"].at(0).integer(0, most));
    auto end =
        static_cast<size_t>(value["data_offsets"].at(1).integer(0, most));
    EXPECT_LE(8 + size + end, bytes->size());
    tensor.values.resize((end - begin) / 4);
    std::memcpy(tensor.values.data(), bytes->data() + 8 + size + begin,
                end - begin);
  }
  EXPECT_TRUE((*json)->status().ok());
  return tensors;
}

TEST_F(CommandsTest, LogitsOfOneSequence) {
  for (int64_t chunk : {0, 1, 3}) {
    auto o = options<cli::LogitsOptions>();
    o.ids = {"1, 2,3,4 ,5"};
    o.chunk = chunk;
    o.output = files.folder() / "out.safetensors";
    std::ostringstream err;
    Status status = cli::logits(o, err);
    ASSERT_TRUE(status.ok()) << status.message();
    auto tensors = readTensors(o.output);
    ASSERT_EQ(tensors.size(), 1U);
    const Tensor &tensor = tensors["logits"];
    EXPECT_EQ(tensor.shape, (std::vector<int64_t>{5, TestPlan::vocab}));
    std::vector<int32_t> ids = {1, 2, 3, 4, 5};
    std::vector<float> expected;
    for (size_t i = 1; i <= ids.size(); ++i)
      for (float value : expectedLogits(std::span(ids).first(i)))
        expected.push_back(value);
    EXPECT_EQ(tensor.values, expected);
  }
}

TEST_F(CommandsTest, LogitsOfSeveralSequences) {
  auto o = options<cli::LogitsOptions>();
  o.ids = {"1,2,3", "4", "5,6,7,8,9"};
  o.chunk = 2;
  o.output = files.folder() / "out.safetensors";
  std::ostringstream err;
  Status status = cli::logits(o, err);
  ASSERT_TRUE(status.ok()) << status.message();
  auto tensors = readTensors(o.output);
  ASSERT_EQ(tensors.size(), 3U);
  std::vector<int32_t> last = {5, 6, 7, 8, 9};
  const Tensor &tensor = tensors["logits.2"];
  EXPECT_EQ(tensor.shape, (std::vector<int64_t>{5, TestPlan::vocab}));
  std::vector<float> expected = expectedLogits(last);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                         tensor.values.end() - TestPlan::vocab));
  EXPECT_EQ(tensors["logits.1"].shape[0], 1);
}

TEST_F(CommandsTest, GenerateIds) {
  removeNaN();
  auto o = options<cli::GenerateOptions>();
  o.ids = "3,4";
  o.maxTokens = 5;
  o.printIds = true;
  o.ignoreEos = true;
  std::vector<int32_t> ids = {3, 4};
  std::string expected;
  for (int i = 0; i < 5; ++i) {
    std::vector<float> logits = expectedLogits(ids);
    auto best = std::max_element(logits.begin(), logits.end() - 1);
    ids.push_back(static_cast<int32_t>(best - logits.begin()));
    expected += (i == 0 ? "" : ",") + std::to_string(ids.back());
  }
  std::ostringstream out, err;
  Status status = cli::generate(o, out, err);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(out.str(), expected + "\n");
  EXPECT_NE(err.str().find("prompt: 2 tokens"), std::string::npos);
}

TEST_F(CommandsTest, GenerateEndsWithTheContext) {
  removeNaN();
  auto o = options<cli::GenerateOptions>();
  o.ids = "3";
  for (int64_t i = 2; i < TestPlan::maxPositions; ++i)
    o.ids += ",3";
  o.printIds = true;
  o.ignoreEos = true;
  std::ostringstream out, err;
  Status status = cli::generate(o, out, err);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_NE(err.str().find("context of 200 tokens is full"), std::string::npos)
      << err.str();
}

TEST_F(CommandsTest, GenerateTextNeedsATokenizer) {
  auto o = options<cli::GenerateOptions>();
  o.prompt = "text";
  std::ostringstream out, err;
  Status status = cli::generate(o, out, err);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("tokenizer"), std::string::npos)
      << status.message();
}

TEST_F(CommandsTest, BenchPrintsJson) {
  auto o = options<cli::BenchOptions>();
  o.promptTokens = 10;
  o.decodeTokens = 3;
  o.sequences = 2;
  o.repeat = 2;
  o.json = true;
  std::ostringstream out;
  // Ids are spread over the vocabulary, so they meet the NaN sooner or later.
  Status status = cli::bench(o, out);
  EXPECT_EQ(status.code(), StatusCode::Numeric);

  removeNaN();
  status = cli::bench(o, out);
  ASSERT_TRUE(status.ok()) << status.message();
  auto json = JsonDocument::parseText(out.str(), "bench");
  ASSERT_TRUE(json.ok()) << json.status().message();
  EXPECT_EQ((*json)->root()["threads"].integer(0, 99), 2);
  EXPECT_GT((*json)->root()["decode_seconds"].number(), 0);
  EXPECT_GT((*json)->root()["prefill_tokens_per_second"].number(), 0);
}

TEST_F(CommandsTest, Inspect) {
  plan::Weight parts{"q", Format::NVFP4, {8, 16}, false, {{"q", 0, 16}}};
  parts.scales = {{{{"q_scale", 0, 80}}}, {{{"q_scale_2", 0, 88}}}};
  files.plan.weights.push_back(parts);
  files.write();
  std::ostringstream out;
  Status status = cli::inspect({files.folder(), true}, out);
  ASSERT_TRUE(status.ok()) << status.message();
  for (const char *part :
       {"TestModel", "4 tensors of f32, 240 B", "1 tensors of nvfp4, 76 B",
        "16 B a token",
        "prefill: up to 16 tokens, 3 sequences, 5 rows of logits; 4 launches",
        "test_head[outputs](%y, @outputs, experts, @logits, 12, 4, 3)  head"})
    EXPECT_NE(out.str().find(part), std::string::npos)
        << "'" << part << "' is not in:\n"
        << out.str();
}

TEST_F(CommandsTest, ExitCodes) {
  std::string plan = files.folder().string();
  std::string out = (files.folder() / "out.safetensors").string();
  EXPECT_EQ(run({"--help"}), 0);
  EXPECT_EQ(run({"generate", "--help"}), 0);
  EXPECT_EQ(run({}), 2);
  EXPECT_EQ(run({"dance"}), 2);
  EXPECT_EQ(run({"inspect"}), 2);
  EXPECT_EQ(run({"inspect", plan}), 0);
  EXPECT_EQ(run({"inspect", plan + "/absent"}), 1);
  EXPECT_EQ(run({"logits", plan, "--ids", "1,2", "--ids", "3", "-o", out}), 0);
  EXPECT_EQ(run({"logits", plan, "--ids", "1,x", "-o", out}), 1);
  EXPECT_EQ(run({"logits", plan, "--ids", "1,11", "-o", out}), 3);
  EXPECT_EQ(run({"logits", plan, "--ids", "1", "-o", plan + "/no/file"}), 1);
  EXPECT_EQ(run({"generate", plan}), 2);
  EXPECT_EQ(run({"generate", plan, "--ids", "1", "--prompt", "x"}), 2);
  EXPECT_EQ(run({"generate", plan, "--ids", "1", "--greedy", "--top-k", "3"}),
            2);
  EXPECT_EQ(run({"generate", plan, "--ids", "1", "--print-ids", "-n", "2",
                 "--temperature", "-1"}),
            1);
}

TEST(Support, ParseIds) {
  EXPECT_EQ(*cli::parseIds(" 1 , 22,3 "), (std::vector<int32_t>{1, 22, 3}));
  for (const char *bad : {"", ",", "1,", "1 2", "x", "1,,2", "99999999999"})
    EXPECT_FALSE(cli::parseIds(bad).ok()) << bad;
}

TEST(Support, Median) {
  EXPECT_EQ(cli::median({}), 0);
  EXPECT_EQ(cli::median({3, 1, 2}), 2);
  EXPECT_EQ(cli::median({4, 1, 2, 3}), 2.5);
}

} // namespace
