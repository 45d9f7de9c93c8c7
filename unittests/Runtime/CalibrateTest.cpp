//===- CalibrateTest.cpp - documents, and the range of a cache ------------===//
//
// Part of mla. Documents of text files, `mla-run calibrate` and the warning of
// an FP8 cache, on the little model of TestKernels.cpp.
//
//===----------------------------------------------------------------------===//
#include "TestPlan.h"
#include "mla/Config/KvScales.h"
#include "mla/Support/Json.h"
#include "runtime/cli/Commands.h"
#include "runtime/cli/Documents.h"
#include <cmath>
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

using namespace mla;
using mla::test::TestPlan;

namespace {

// What the tokenizer of the tests knows, and the ends of a document.
constexpr int32_t bos = 0, eos = 1, a = 2, b = 4, newline = 6;
using Documents = std::vector<std::vector<int32_t>>;

class CalibrateTest : public testing::Test {
protected:
  void SetUp() override {
    files.addTokenizer();
    files.addLatentCache(Format::BF16);
    files.write();
  }

  std::filesystem::path textFile(const std::string &text) {
    std::filesystem::path path = files.checkpoint() / "text.txt";
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  Result<Documents> documents(const std::string &text, int64_t limit = 100) {
    return cli::readDocuments(textFile(text), files.folder(), files.plan.model,
                              limit);
  }

  std::filesystem::path output() const {
    return files.checkpoint() / "scales.json";
  }

  Status calibrate(const std::string &text, std::string *said = nullptr,
                   int64_t maxTokens = 0) {
    cli::CalibrateOptions options;
    options.plan = files.folder();
    options.engine.threads = 2;
    options.file = textFile(text);
    options.output = output();
    options.maxTokens = maxTokens;
    std::ostringstream out;
    Status status = cli::calibrate(options, out);
    if (said)
      *said = out.str();
    return status;
  }

  /// The scales that were written, of the model's layers.
  std::vector<float> scales() const {
    auto read = readKvScales(output(), files.plan.model.layers);
    EXPECT_TRUE(read.ok()) << read.status().message();
    return read.ok() ? read->scales : std::vector<float>();
  }

  TestPlan files;
};

TEST_F(CalibrateTest, BlankLinesSeparateDocuments) {
  Documents expected = {{bos, a, b, newline, b, newline, eos},
                        {bos, a, newline, eos}};
  for (const char *text :
       {"ab\nb\n\na\n", "ab\nb\n\na", "\n\nab\nb\n\n\n\na\n\n",
        "ab\nb\n \t\r\na", "\r\nab\nb\n\t\na\n \n"}) {
    auto found = documents(text);
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(*found, expected) << text;
  }
}

TEST_F(CalibrateTest, DocumentsAreCut) {
  auto found = documents("ab\n\nbbbb", 3);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, (Documents{{bos, a, b}, {bos, b, b}}));
  found = documents("ab", 1); // Nothing is left to predict.
  EXPECT_EQ(found.status().code(), StatusCode::Invalid);
}

TEST_F(CalibrateTest, DocumentsOfModelsWithoutEnds) {
  files.plan.model.bosToken.reset();
  files.plan.model.eosTokens.clear();
  auto found = documents("ab\n\nb");
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(*found, (Documents{{a, b, newline}, {b, newline}}));
}

TEST_F(CalibrateTest, DocumentsThatCannotBeRead) {
  for (const char *text : {"", "\n", " \n\t\n\r\n"}) {
    auto found = documents(text);
    EXPECT_EQ(found.status().code(), StatusCode::Invalid);
    EXPECT_NE(found.status().message().find("text.txt: has no tokens"),
              std::string::npos)
        << found.status().message();
  }
  auto found = cli::readDocuments(files.folder() / "absent", files.folder(),
                                  files.plan.model, 9);
  EXPECT_EQ(found.status().code(), StatusCode::NotFound);
  EXPECT_NE(found.status().message().find("absent"), std::string::npos);
  std::filesystem::remove(files.folder() / "tokenizer.json");
  found = documents("a");
  ASSERT_FALSE(found.ok());
  EXPECT_NE(found.status().message().find("tokenizer"), std::string::npos);
}

TEST_F(CalibrateTest, WritesTheScalesOfWhatItSaw) {
  // bos and eos have 5 as their largest value, the letters 4.
  ASSERT_EQ(test::largestEmbedding(std::vector<int32_t>{a, b, newline}), 4);
  ASSERT_EQ(test::largestEmbedding(std::vector<int32_t>{bos}), 5);
  std::string said;
  Status status = calibrate("ab\nb\n\na\n", &said);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(said, "largest magnitudes from 5.000 to 5.000 in 1 layers, over 11 "
                  "tokens of 2 documents\nwrote " +
                      output().string() + "\n");
  ASSERT_EQ(scales().size(), 1U);
  EXPECT_LE(5 / scales()[0], 448.0F);
  EXPECT_NEAR(scales()[0], 5.0F / 448, 1e-8);

  files.plan.model.bosToken.reset();
  files.plan.model.eosTokens.clear();
  files.write();
  status = calibrate("ab\nb\n\naaaaa\n", &said, 3);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(
      said.find("largest magnitudes from 4.000 to 4.000 in 1 layers, over "
                "6 tokens of 2 documents"),
      0U)
      << said;
  EXPECT_NEAR(scales()[0], 4.0F / 448, 1e-8);
}

TEST_F(CalibrateTest, OneScaleALayer) {
  files.addLatentCache(Format::F32);
  files.plan.model.layers = 2;
  files.write();
  Status status = calibrate("ab");
  ASSERT_TRUE(status.ok()) << status.message();
  ASSERT_EQ(scales().size(), 2U);
  EXPECT_EQ(scales()[0], scales()[1]);
}

TEST_F(CalibrateTest, PlansItCannotMeasure) {
  files.plan.model.layers = 2;
  files.write();
  Status status = calibrate("ab");
  EXPECT_EQ(status.code(), StatusCode::Invalid);
  EXPECT_EQ(
      status.message(),
      "expected a plan with a latent cache in each of its 2 layers, found "
      "1 (was it compiled with --plain?)");
  for (plan::Cache &cache : files.plan.caches)
    cache.kind = "expanded";
  files.write();
  EXPECT_NE(calibrate("ab").message().find("found 0 (was it"),
            std::string::npos);

  TestPlan eight;
  std::swap(files.plan, eight.plan);
  files.plan.checkpoint = eight.plan.checkpoint;
  files.addTokenizer();
  files.addLatentCache(Format::FP8E4M3, 0.5F);
  files.write();
  status = calibrate("ab");
  EXPECT_EQ(status.code(), StatusCode::Unsupported);
  EXPECT_NE(status.message().find("latent.1 cannot be measured in fp8_e4m3"),
            std::string::npos)
      << status.message();
  EXPECT_FALSE(std::filesystem::exists(output()));
}

TEST_F(CalibrateTest, NothingIsWrittenAfterAnError) {
  files.plan.model.bosToken = TestPlan::nanToken;
  files.write();
  EXPECT_EQ(calibrate("ab").code(), StatusCode::Numeric);
  EXPECT_EQ(calibrate("").code(), StatusCode::Invalid);
  EXPECT_FALSE(std::filesystem::exists(output()));
  files.plan.model.bosToken = bos;
  files.write();
  std::filesystem::create_directory(output()); // in the way
  EXPECT_FALSE(calibrate("ab").ok());
}

TEST_F(CalibrateTest, ExitCodes) {
  std::string plan = files.folder().string(), text = textFile("ab").string();
  auto run = [](std::vector<const char *> arguments) {
    arguments.insert(arguments.begin(), {"mla-run", "calibrate"});
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    int code = cli::run(static_cast<int>(arguments.size()), arguments.data());
    testing::internal::GetCapturedStdout();
    testing::internal::GetCapturedStderr();
    return code;
  };
  std::string out = output().string();
  EXPECT_EQ(run({plan.c_str(), "-f", text.c_str(), "-o", out.c_str()}), 0);
  EXPECT_TRUE(std::filesystem::exists(output()));
  EXPECT_EQ(run({plan.c_str(), "-f", text.c_str()}), 2);
  EXPECT_EQ(run({plan.c_str(), "-o", out.c_str()}), 2);
  EXPECT_EQ(run({plan.c_str(), "-f", text.c_str(), "-o", out.c_str(),
                 "--max-tokens", "1"}),
            2);
  EXPECT_EQ(run({plan.c_str(), "-f", "/absent", "-o", out.c_str()}), 1);
}

TEST_F(CalibrateTest, CutOffValuesAreWarnedOf) {
  files.addLatentCache(Format::FP8E4M3, 0.005F);
  files.write();
  cli::LogitsOptions options;
  options.plan = files.folder();
  options.engine.threads = 2;
  options.ids = {"2,4", "3"};
  options.output = files.checkpoint() / "out.safetensors";
  int64_t beyond = 0;
  for (int32_t id : {2, 4, 3})
    for (int64_t w = 0; w < TestPlan::width; ++w)
      beyond += std::fabs(test::embedding(id, w)) > 0.005F * 448 ? 1 : 0;
  ASSERT_GT(beyond, 0);
  std::ostringstream err;
  Status status = cli::logits(options, err);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(err.str().find("warning: " + std::to_string(beyond) +
                           " values were beyond the range of the FP8 latent "
                           "cache and were cut off; measure"),
            0U)
      << err.str();

  for (plan::Program &program : files.plan.programs)
    program.launches.back().arguments.back() = {plan::Expr(0x3f800000)}; // 1
  files.write();
  err.str("");
  ASSERT_TRUE(cli::logits(options, err).ok());
  EXPECT_EQ(err.str().find("warning"), std::string::npos) << err.str();
}

} // namespace
