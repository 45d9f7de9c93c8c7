//===- MeasureTest.cpp - mla-run compare, pack, bench --context -----------===//
//
// Part of mla. On the little model of TestKernels.cpp.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "mla/Support/Json.h"
#include "runtime/cli/Commands.h"
#include <cmath>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <limits>
#include <sstream>

using namespace mla;
using mla::test::TestPlan;

namespace {

/// Replaces the f32 at `offset` of a checkpoint's file.
void overwrite(const TestPlan &plan, const char *file, int64_t offset,
               float value) {
  std::fstream out(plan.checkpoint() / file,
                   std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(offset);
  out.write(reinterpret_cast<const char *>(&value), sizeof value);
}

std::unique_ptr<JsonDocument> parsed(const std::string &text) {
  auto json = JsonDocument::parseText(text, "output");
  EXPECT_TRUE(json.ok()) << json.status().message() << text;
  return json.ok() ? *std::move(json) : nullptr;
}

class CompareTest : public testing::Test {
protected:
  void SetUp() override {
    a.write();
    b.write();
    options.plan = a.folder();
    options.other = b.folder();
    options.engine.threads = 2;
    options.ids = "1,2,3,4,5";
    options.json = true;
  }
  TestPlan a, b;
  cli::CompareOptions options;
  std::ostringstream out;
};

TEST_F(CompareTest, PlansThatAgree) {
  options.decode = 3;
  options.poison = true;
  options.tolerance = 0;
  // Tokens of a long prompt come in chunks that both plans take.
  options.ids = "1";
  for (int i = 0; i < 40; ++i)
    options.ids += "," + std::to_string(i % 10);
  Status status = cli::compare(options, out);
  ASSERT_TRUE(status.ok()) << status.message();
  auto json = parsed(out.str());
  EXPECT_EQ(json->root()["steps"].integer(0, 100), 6); // 16, 16, 9, and 3.
  EXPECT_EQ(json->root()["values"].size(), 2u);
  JsonValue y = json->root()["values"]["y"];
  EXPECT_EQ(y["relative_error"].number(), 0);
  EXPECT_EQ(y["kernel"].string(), "test_recall");
  EXPECT_EQ(y["launch"].integer(0, 10), 2);
  EXPECT_GT(y["norm"].number(), 0);
}

TEST_F(CompareTest, TheFirstWrongValueIsSeen) {
  overwrite(b, "b.safetensors", 11 + 4, 9.0F); // An expert: only the head.
  Status status = cli::compare(options, out);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("the logits differ by"), std::string::npos);
  auto json = parsed(out.str());
  EXPECT_EQ(json->root()["values"]["x"]["relative_error"].number(), 0);
  EXPECT_EQ(json->root()["values"]["y"]["relative_error"].number(), 0);
  EXPECT_GT(json->root()["logits"]["relative_error"].number(), 0.02);
  out.str("");
  options.tolerance = 100;
  EXPECT_TRUE(cli::compare(options, out).ok());
  overwrite(b, "a.safetensors", 16 + 3 * 16, 50.0F); // Token 3.
  out.str("");
  options.tolerance = 1e9;
  ASSERT_TRUE(cli::compare(options, out).ok());
  json = parsed(out.str());
  // x of five tokens: one of 20 values differs by 50 - (-1).
  double norm = 0;
  for (int64_t id = 1; id <= 5; ++id)
    for (int64_t w = 0; w < TestPlan::width; ++w)
      norm += test::embedding(id, w) * test::embedding(id, w);
  EXPECT_NEAR(json->root()["values"]["x"]["relative_error"].number(),
              std::fabs(50 - test::embedding(3, 0)) / std::sqrt(norm), 1e-6);
}

TEST_F(CompareTest, NaNIsNamedAlsoWhenItEndsTheRun) {
  overwrite(b, "a.safetensors", 16 + 3 * 16,
            std::numeric_limits<float>::quiet_NaN());
  options.json = false;
  Status status = cli::compare(options, out);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::Numeric);
  EXPECT_NE(out.str().find("x: 0 and 1 of 20 (launch 0, test_embed)"),
            std::string::npos)
      << out.str();
}

TEST_F(CompareTest, OtherShapesAreSaid) {
  for (plan::Program &program : b.plan.programs)
    program.workspaces[1].shape[1] = plan::Expr(TestPlan::width - 1);
  for (plan::Program &program : b.plan.programs)
    std::swap(program.workspaces[1].name, program.workspaces[0].name);
  std::swap(b.plan.programs[0].workspaces[0].name,
            b.plan.programs[0].workspaces[1].name);
  b.write();
  options.ids = "1,2,3";
  (void)cli::compare(options, out);
  auto json = parsed(out.str());
  EXPECT_EQ(json->root()["other_sizes"]["y"].string(), "12 and 9 elements");
}

TEST_F(CompareTest, RefusesWhatCannotBeCompared) {
  options.ids = "";
  EXPECT_FALSE(cli::compare(options, out).ok());
  options.ids = "1";
  b.plan.model.vocabSize = 11;
  for (plan::Program &program : b.plan.programs)
    program.launches[3].arguments[4] = {plan::Expr(11)};
  b.write();
  Status status = cli::compare(options, out);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("vocabularies of 12 and 11"),
            std::string::npos);
}

/// Token 3 has nearly equal logits for experts 0 and 1, the other way round in the
/// second plan.
TEST_F(CompareTest, ATieIsFollowed) {
  for (TestPlan *plan : {&a, &b}) {
    plan->addRouter("route_softmax_greedy_4_1_1_1_0_right");
    plan->write();
    for (int64_t w = 0; w < 4; ++w)
      overwrite(*plan, "a.safetensors", 16 + 3 * 16 + w * 4,
                w > 1                            ? 0.0F
                : (w == 0) == (plan == &a) ? 5.001F
                                                 : 5.0F);
  }
  options.ids = "3";
  options.tolerance = 1e-3;
  Status status = cli::compare(options, out);
  EXPECT_TRUE(status.ok()) << status.message();
  auto json = parsed(out.str());
  JsonValue choices = json->root()["choices"], differ = choices["differ"];
  EXPECT_EQ(choices["compared"].integer(0, 100), 1);
  EXPECT_EQ(choices["ties"].integer(0, 100), 1);
  ASSERT_EQ(differ.size(), 1U);
  EXPECT_EQ(differ.at(0)["router"].string(), "experts");
  EXPECT_EQ(differ.at(0)["kind"].string(), "tie");
  EXPECT_EQ(differ.at(0)["first"].at(0).integer(0, 9), 0);
  EXPECT_EQ(differ.at(0)["other"].at(0).integer(0, 9), 1);
  EXPECT_NEAR(differ.at(0)["logits_error"].number(), 2e-4, 1e-5);
  EXPECT_GT(differ.at(0)["gap"].number(), 0);
  // What follows is compared as strictly as ever.
  EXPECT_EQ(json->root()["logits"]["relative_error"].number(), 0);
  options.json = false;
  out.str("");
  EXPECT_TRUE(cli::compare(options, out).ok());
  EXPECT_NE(out.str().find("1 of 1 choices of experts differ, 1 of them ties"),
            std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("token 0     tie: experts: expert 1 instead of 0"),
            std::string::npos)
      << out.str();
  options.tolerance = 1e-4; // Then it is the logits that are wrong.
  status = cli::compare(options, out);
  EXPECT_NE(status.message().find("1 choices of experts differ: their logits"),
            std::string::npos)
      << status.message();
}

TEST_F(CompareTest, AWrongChoiceIsNoTie) {
  a.addRouter("route_softmax_greedy_4_1_1_1_0_right");
  b.addRouter("route_softmax_greedy_4_1_1_1_0_wrong");
  a.write();
  b.write();
  options.tolerance = 1e9;
  Status status = cli::compare(options, out);
  EXPECT_EQ(status.message(), "5 choices of experts differ: they are not what "
                              "their logits call for");
  auto json = parsed(out.str());
  EXPECT_EQ(json->root()["choices"]["ties"].integer(0, 100), 0);
}

TEST_F(CompareTest, IdsFromAFile) {
  std::filesystem::path file = a.folder() / "ids";
  std::ofstream(file) << "1,2,\n3\n";
  options.ids = file.string();
  ASSERT_TRUE(cli::compare(options, out).ok());
  EXPECT_EQ(parsed(out.str())->root()["values"]["x"]["elements"].integer(0, 99),
            3 * TestPlan::width);
}

TEST(BenchContext, StepAndKernels) {
  TestPlan files;
  plan::Parameter bytes{plan::Parameter::Kind::Buffer, Format::F32,
                        plan::Access::Read};
  plan::Parameter scalar{plan::Parameter::Kind::Scalar, Format::F32,
                         plan::Access::Read};
  files.plan.kernels.push_back({"read_ceiling", {bytes, bytes, scalar}});
  files.plan.model.vocabSize = TestPlan::nanToken; // Without that one.
  for (plan::Program &program : files.plan.programs) {
    program.launches[3].arguments[4] = {plan::Expr(TestPlan::nanToken)};
    program.launches[3].weightBytes =
        plan::Expr(TestPlan::expertCount * TestPlan::width * 4);
  }
  files.write();
  cli::BenchOptions options;
  options.plan = files.folder();
  options.engine.threads = 2;
  options.steps = {{3, 100, 1}};
  options.decodeTokens = 4;
  options.kernelRepeats = 3;
  options.json = true;
  options.jsonFile = files.folder() / "bench.json";
  std::ostringstream out;
  Status status = cli::bench(options, out);
  ASSERT_TRUE(status.ok()) << status.message();
  auto json = parsed(out.str());
  JsonValue root = json->root();
  EXPECT_EQ(root["context"].integer(0, 1000), 100);
  EXPECT_GT(root["step_seconds_wall"].number(), 0);
  EXPECT_GT(root["step_seconds_device"].number(), 0);
  EXPECT_GT(root["read_ceiling_bytes_per_second"].number(), 0);
  constexpr int64_t row = TestPlan::width * 4;
  int64_t cache = 3 * 101 * row, weights = TestPlan::expertCount * row;
  EXPECT_EQ(root["step_bytes"].number(), double(cache + weights));
  ASSERT_EQ(root["kernels"].size(), 4u);
  for (JsonValue kernel : root["kernels"].elements()) {
    std::string name = kernel["name"].string();
    EXPECT_EQ(kernel["launches"].integer(0, 9), 1);
    EXPECT_EQ(kernel["bytes"].number(), double(name == "test_recall" ? cache
                                               : name == "test_head" ? weights
                                                                     : 0))
        << name;
  }
  Result<std::string> file = readFile(options.jsonFile);
  ASSERT_TRUE(file.ok());
  EXPECT_EQ(*file, out.str());
  options.json = false;
  out.str("");
  ASSERT_TRUE(cli::bench(options, out).ok());
  EXPECT_NE(out.str().find("test_recall"), std::string::npos) << out.str();
  options.steps = {{1, 100, 2}, {2, 50, 1}};
  options.json = true;
  out.str("");
  ASSERT_TRUE(cli::bench(options, out).ok());
  json = parsed(out.str());
  root = json->root();
  ASSERT_EQ(root.size(), 2u);
  EXPECT_EQ(root.at(0)["tokens"].integer(0, 9), 2);
  EXPECT_EQ(root.at(0)["step_bytes"].number(), double(102 * row + weights));
  EXPECT_EQ(root.at(1)["step_bytes"].number(), double(102 * row + weights));
  EXPECT_FALSE(root.at(0)["bytes_at_most"].boolean());
  EXPECT_FALSE(root.at(0)["floor_seconds"].absent());
  options.steps = {{1, 1000, 1}}; // Beyond the model's context.
  EXPECT_FALSE(cli::bench(options, out).ok());
}

/// Experts that several tokens choose may be the same.
TEST(BenchContext, BytesThatMayBeFewer) {
  TestPlan files;
  files.plan.model.vocabSize = TestPlan::nanToken;
  for (plan::Program &program : files.plan.programs) {
    program.launches[3].arguments[4] = {plan::Expr(TestPlan::nanToken)};
    program.launches[3].weightBytes =
        *plan::Expr::parse("min(tokens * 2, 8) * 1000");
  }
  files.write();
  cli::BenchOptions options;
  options.plan = files.folder();
  options.engine.threads = 2;
  options.steps = {{1, 10, 1}, {3, 10, 1}};
  options.decodeTokens = options.kernelRepeats = 2;
  options.json = true;
  std::ostringstream out;
  Status status = cli::bench(options, out);
  ASSERT_TRUE(status.ok()) << status.message();
  auto json = parsed(out.str());
  for (size_t s : {0, 1}) {
    JsonValue step = json->root().at(s);
    EXPECT_EQ(step["bytes_at_most"].boolean(), s == 1);
    EXPECT_TRUE(step["floor_seconds"].absent() || s == 0);
    for (JsonValue kernel : step["kernels"].elements()) {
      bool head = kernel["name"].string() == "test_head";
      EXPECT_EQ(kernel["bytes_at_most"].boolean(), s == 1 && head);
      if (head) {
        EXPECT_EQ(kernel["bytes"].number(), s == 0 ? 2000 : 6000);
      }
    }
  }
  options.json = false;
  out.str("");
  ASSERT_TRUE(cli::bench(options, out).ok());
  EXPECT_NE(out.str().find(" in all, at most 0.000"), std::string::npos)
      << out.str();
  EXPECT_NE(out.str().find("marked <"), std::string::npos) << out.str();
}

TEST(PackCommand, WritesAFile) {
  TestPlan files;
  files.plan.target.name = "sm_90a";
  for (plan::Kernel &kernel : files.plan.kernels)
    kernel.threads = 32;
  files.plan.weights[0].layout = plan::Layout::Rows;
  files.plan.weights[0].slice = {.format = Format::F32,
                                 .rows = TestPlan::vocab,
                                 .columns = TestPlan::width,
                                 .blockRows = TestPlan::vocab};
  files.write();
  cli::PackOptions options;
  options.plan = files.folder();
  options.output = files.folder() / "weights.pack";
  std::ostringstream err;
  Status status = cli::pack(options, err);
  ASSERT_TRUE(status.ok()) << status.message();
  constexpr uint64_t bytes = TestPlan::vocab * TestPlan::width * 4;
  EXPECT_EQ(std::filesystem::file_size(options.output),
            4096 + (bytes + 255) / 256 * 256);
  options.checkpoint = files.folder(); // Holds no such files.
  options.output = files.folder() / "other.pack";
  EXPECT_FALSE(cli::pack(options, err).ok());
  EXPECT_FALSE(std::filesystem::exists(options.output));
}

} // namespace
