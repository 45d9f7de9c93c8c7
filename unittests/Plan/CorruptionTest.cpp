//===- CorruptionTest.cpp - broken plan.json, class by class --------------===//
//
// Part of mla. A row is a JSON patch (RFC 6902) of the sample's plan.json and
// what the reader must say. Damage below the level of JSON follows after.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

using namespace mla;
using namespace mla::plan;
using nlohmann::json;

namespace {

struct Corruption {
  const char *name;
  const char *patch;
  const char *message; // after "plan.json: "
};

#define REPLACE(path, value)                                                   \
  R"([{"op":"replace","path":")" path R"(","value":)" value "}]"
#define ADD(path, value)                                                       \
  R"([{"op":"add","path":")" path R"(","value":)" value "}]"
#define REMOVE(path) R"([{"op":"remove","path":")" path R"("}])"

const Corruption corruptions[] = {
    // Version.
    {"majorAbove", REPLACE("/format/major", "3"),
     "at /format: expected plan format 2.0, found 3.0"},
    {"majorBelow", REPLACE("/format/major", "1"),
     "at /format: expected plan format 2.0, found 1.0"},
    {"minorAbove", REPLACE("/format/minor", "1"),
     "at /format: expected plan format 2.0, found 2.1"},
    {"formatMissing", REMOVE("/format"),
     "at /format: expected an object, found nothing"},
    {"formatType", REPLACE("/format", "\"1.0\""),
     "at /format: expected an object, found string \"1.0\""},
    {"majorType", REPLACE("/format/major", "1.0"),
     "at /format/major: expected an integer from 0"},
    {"kernelAbi", REPLACE("/target/kernel_abi", "2"),
     "at /target/kernel_abi: expected kernel ABI 1, found 2"},

    // Keys.
    {"rootArray", R"([{"op":"replace","path":"","value":[]}])",
     "at /format: expected an object, found nothing"},
    {"unknownKey", ADD("/comment", "1"),
     "at /comment: expected a key that this version knows, found another"},
    {"unknownKeyDeep", ADD("/programs/0/launches/0/stream", "1"),
     "at /programs/0/launches/0/stream: expected a key"},
    {"unknownKeyWeight", ADD("/weights/0/scale", "1"),
     "at /weights/0/scale: expected a key"},
    {"missingKey", REMOVE("/producer"),
     "at /producer: expected a string, found nothing"},
    {"missingPrograms", REMOVE("/programs"),
     "at /programs: expected an array, found nothing"},
    {"ranksKey", ADD("/ranks/rank", "1"), "at /ranks/rank: expected a key"},
    {"ranksOne", REPLACE("/ranks/count", "1"),
     "at /ranks/count: expected an integer from 2"},
    {"ranksCollectives", REPLACE("/ranks/collectives", "\"none\""),
     "at /ranks/collectives: expected \"exchange\" or \"local\", found string "
     "\"none\""},
    {"ranksLayoutMissing", REMOVE("/ranks/layout"),
     "at /ranks/layout: expected a string, found nothing"},
    {"ranksPages", ADD("/ranks/page_ranks", "2"),
     "at /ranks/page_ranks: expected 1 or all 4 ranks, found 2"},
    {"ranksPagesOne", ADD("/ranks/page_ranks", "1"),
     "at /ranks/page_ranks: expected an integer from 2"},
    {"ranksType", REPLACE("/ranks", "4"), "at /ranks"},
    {"shardKey", ADD("/weights/5/shard/rank", "1"),
     "at /weights/5/shard/rank: expected a key"},
    {"shardType", REPLACE("/weights/5/shard", "[]"), "at /weights/5/shard"},
    {"shardWhole", REPLACE("/weights/5/shard/whole/0", "0"),
     "at /weights/5/shard/whole/0: expected an integer from 1"},
    {"shardPart", REPLACE("/weights/5/shard/part/1", "\"8\""),
     "at /weights/5/shard/part/1: expected an integer from 1"},
    {"shardSplits", REMOVE("/weights/5/shard/splits"),
     "at /weights/5/shard/splits: expected an array, found nothing"},
    {"shardSplitKey", ADD("/weights/5/shard/splits/0/rank", "1"),
     "at /weights/5/shard/splits/0/rank: expected a key"},
    {"shardSplitDim", REPLACE("/weights/5/shard/splits/0/dim", "-1"),
     "at /weights/5/shard/splits/0/dim: expected an integer from 0"},
    {"shardSplitCount", REPLACE("/weights/5/shard/splits/0/count", "0"),
     "at /weights/5/shard/splits/0/count: expected an integer from 1"},
    {"shardSplitStride", REMOVE("/weights/5/shard/splits/0/stride"),
     "at /weights/5/shard/splits/0/stride: expected an integer from 1"},
    {"collectiveName", REPLACE("/kernels/7/collective", "\"none\""),
     "at /kernels/7/collective: expected a collective, found string \"none\""},
    {"collectiveType", REPLACE("/kernels/7/collective", "1"),
     "at /kernels/7/collective: expected a string"},
    {"samplingKey", ADD("/sampling/temperature", "1"),
     "at /sampling/temperature: expected a key"},
    {"samplingType", REPLACE("/sampling", "[]"), "at /sampling"},
    {"missingBos", REMOVE("/model/bos_token"),
     "at /model/bos_token: expected an integer"},
    {"missingGrid", REMOVE("/programs/0/launches/0/grid"),
     "at /programs/0/launches/0/grid: expected an integer or an expression"},

    // Types.
    {"targetType", REPLACE("/target", "[]"),
     "at /target: expected an object, found an array of 0"},
    {"nameType", REPLACE("/weights/0/name", "5"),
     "at /weights/0/name: expected a string, found number 5"},
    {"shapeFloat", REPLACE("/weights/0/shape/0", "32.5"),
     "at /weights/0/shape/0: expected an integer from 1 to 9007199254740991, "
     "found number 32.5"},
    {"shapeNegative", REPLACE("/weights/0/shape/0", "-32"),
     "at /weights/0/shape/0: expected an integer from 1"},
    {"offsetString", REPLACE("/weights/0/offset", "\"256\""),
     "at /weights/0/offset: expected an integer from 0"},
    {"hashNumber", REPLACE("/library/hash", "5"),
     "at /library/hash: expected a string, found number 5"},
    {"hashShort", REPLACE("/library/hash", "\"0\""),
     "at /library/hash: expected 16 hexadecimal digits in lower case"},
    {"hashUpper", REPLACE("/library/hash", "\"CBF29CE484222325\""),
     "at /library/hash: expected 16 hexadecimal digits in lower case"},
    {"format", REPLACE("/weights/0/format", "\"int4\""),
     "at /weights/0/format: expected a format, found string \"int4\""},
    {"kind", REPLACE("/checkpoint/kind", "\"gguf\""),
     "at /checkpoint/kind: expected \"none\", \"safetensors\" or"},
    {"parameterWord", REPLACE("/kernels/0/parameters/0", "\"append i32\""),
     "at /kernels/0/parameters/0: expected \"scalar\", \"peers\", or"},
    {"parameterFormat", REPLACE("/kernels/0/parameters/0", "\"read\""),
     "at /kernels/0/parameters/0: expected \"scalar\", \"peers\", or"},
    {"parameterScalarFormat",
     REPLACE("/kernels/0/parameters/3", "\"scalar f32\""),
     "at /kernels/0/parameters/3: expected \"scalar\", \"peers\", or"},
    {"gridText", REPLACE("/programs/0/launches/0/grid", "\"tokens /\""),
     "at /programs/0/launches/0/grid: expression \"tokens /\": expected an "
     "operator or the end"},
    {"gridType", REPLACE("/programs/0/launches/0/grid", "true"),
     "at /programs/0/launches/0/grid: expected an integer or an expression, "
     "found true"},
    {"argumentType", REPLACE("/programs/0/launches/0/arguments/0", "\"ids\""),
     "at /programs/0/launches/0/arguments/0: expected an object with one key"},
    {"argumentTwoKeys", ADD("/programs/0/launches/0/arguments/0/x", "1"),
     "at /programs/0/launches/0/arguments/0: expected an object with one key"},
    {"argumentKey",
     REPLACE("/programs/0/launches/0/arguments/0", R"({"buffer":"x"})"),
     "at /programs/0/launches/0/arguments/0: expected \"weight\", \"cache\""},

    // References.
    {"kernelReference", REPLACE("/programs/0/launches/0/kernel", "\"system\""),
     "at /programs/0/launches/0/kernel: expected the name of a kernel, found "
     "string \"system\""},
    {"weightReference",
     REPLACE("/programs/0/launches/0/arguments/1/weight", "\"latent.0\""),
     "at /programs/0/launches/0/arguments/1/weight: expected the name of a "
     "weight"},
    {"cacheReference", REPLACE("/programs/0/launches/1/arguments/4/cache", "0"),
     "at /programs/0/launches/1/arguments/4/cache: expected the name of a "
     "cache, found number 0"},
    {"workspaceReference",
     REPLACE("/programs/0/launches/1/arguments/0/workspace", "\"y\""),
     "at /programs/0/launches/1/arguments/0/workspace: expected the name of a "
     "workspace of the program, found string \"y\""},
    {"portReference",
     REPLACE("/programs/0/launches/0/arguments/0/port", "\"lengths\""),
     "at /programs/0/launches/0/arguments/0/port: expected the name of a port"},

    // Sizes.
    {"shapeOverflow",
     REPLACE("/weights/0/shape", "[9007199254740991, 9007199254740991]"),
     "at /weights/0/shape: expected less than 2^53 bytes"},
    {"tensorPastEnd", REPLACE("/weights/0/shape/0", "100000"),
     "at /weights/0: expected tensor \"model.embed_tokens.weight\""},
    {"offsetPastEnd", REPLACE("/weights/0/offset", "9007199254740991"),
     "at /weights/0: expected tensor \"model.embed_tokens.weight\""},
    {"fileIndex", REPLACE("/weights/0/file", "2"),
     "at /weights/0/file: expected a file from 0 to 2 (exclusive), found "
     "number 2"},
    {"stackFileIndex", REPLACE("/weights/2/stacked/at/3/0", "4294967295"),
     "at /weights/2/stacked/at/3/0: expected a file from 0 to 2"},
    {"stackFileIndexWide", REPLACE("/weights/2/stacked/at/3/0", "4294967296"),
     "at /weights/2/stacked/at/3/0: expected an integer from 0 to 4294967295"},
    {"stackCountHuge", REPLACE("/weights/2/stacked/count", "9007199254740991"),
     "at /weights/2/stacked: expected at most 524288 checkpoint tensors"},
    {"stackCountAndShape",
     R"([{"op":"replace","path":"/weights/2/stacked/count","value":500000},
         {"op":"replace","path":"/weights/2/shape/0","value":500000}])",
     "at /weights/2/stacked/at: expected an array of 500000, found an array of "
     "4"},
    {"stackCount", REPLACE("/weights/2/stacked/count", "3"),
     "at /weights/2/stacked: expected as many tensors as the first dimension "
     "says, found 3"},
    {"stackPair", REPLACE("/weights/2/stacked/at/1", "[1]"),
     "at /weights/2/stacked/at/1: expected an array of file and offset"},
    {"stackPattern", REPLACE("/weights/2/stacked/pattern", "\"experts\""),
     "at /weights/2/stacked/pattern: expected at most 255 bytes with \"{}\" "
     "once"},
    {"stackPatternTwice", REPLACE("/weights/2/stacked/pattern", "\"{}{}\""),
     "at /weights/2/stacked/pattern: expected at most 255 bytes"},
    {"stackNull", REPLACE("/weights/2/stacked", "null"),
     "at /weights/2/stacked: expected an object, found null"},
    {"stackBoth", ADD("/weights/2/stacked/tensors", "[]"),
     "at /weights/2/stacked/count: expected a key"},
    {"tokensHuge", REPLACE("/programs/1/max_tokens", "2147483649"),
     "at /programs/1/max_tokens: expected an integer from 1 to 2147483648"},
    {"arenaSmall", REPLACE("/programs/0/workspace_bytes", "0"),
     "at /programs/0/workspaces/0/offset: expected \"x\" to end within"},
    {"overlap", REPLACE("/programs/0/workspaces/1/offset", "64"),
     "at /programs/0/workspaces/1: expected no overlap of live workspaces"},

    // Scales.
    {"scalesMissing", REMOVE("/weights/3/scales"),
     "at /weights/3/scales: expected an object, found nothing"},
    {"scalesNull", REPLACE("/weights/3/scales", "null"),
     "at /weights/3/scales: expected an object, found null"},
    {"scalesArray", REPLACE("/weights/4/scales", "[]"),
     "at /weights/4/scales: expected an object, found an array of 0"},
    {"globalMissing", REMOVE("/weights/3/global"),
     "at /weights/3/global: expected an object, found nothing"},
    {"scalesOfNewFormat", REPLACE("/weights/0/format", "\"fp8_block\""),
     "at /weights/0/scales: expected an object, found nothing"},
    {"scalesOfBF16", ADD("/weights/0/scales", "{}"),
     "at /weights/0/scales: expected a key"},
    {"globalOfInt4", ADD("/weights/4/global", "{}"),
     "at /weights/4/global: expected a key"},
    {"scalesKey", ADD("/weights/3/scales/format", "\"f32\""),
     "at /weights/3/scales/format: expected a key"},
    {"scalesTensorMissing", REMOVE("/weights/3/scales/tensor"),
     "at /weights/3/scales/tensor: expected a string, found nothing"},
    {"scalesOffset", REPLACE("/weights/3/scales/offset", "-1"),
     "at /weights/3/scales/offset: expected an integer from 0"},
    {"scalesFile", REPLACE("/weights/3/scales/file", "2"),
     "at /weights/3/scales/file: expected a file from 0 to 2 (exclusive)"},
    {"scalesPastEnd", REPLACE("/weights/3/scales/offset", "4089"),
     "at /weights/3/scales: expected tensor \"down.weight_scale\""},
    {"scalesNotStacked",
     REPLACE("/weights/4/scales", R"({"tensor":"a","file":0,"offset":256})"),
     "at /weights/4/scales/tensor: expected a key"},
    {"scalesStacked",
     REPLACE("/weights/3/scales",
             R"({"stacked":{"tensors":["a"],"at":[[0,256]]}})"),
     "at /weights/3/scales/stacked: expected a key"},
    {"scalesCount", REPLACE("/weights/4/scales/stacked/count", "3"),
     "at /weights/4/scales/stacked: expected as many tensors as the first "
     "dimension says, found 3"},
    {"scalesCountHuge",
     REPLACE("/weights/4/scales/stacked/count", "9007199254740991"),
     "at /weights/4/scales/stacked: expected at most 524288 checkpoint"},
    {"scalesPattern", REPLACE("/weights/4/scales/stacked/pattern", "\"s\""),
     "at /weights/4/scales/stacked/pattern: expected at most 255 bytes with "
     "\"{}\" once"},
    {"scalesAt", REMOVE("/weights/4/scales/stacked/at"),
     "at /weights/4/scales/stacked/at: expected an array of 4"},
    {"reciprocalType", REPLACE("/weights/3/global/reciprocal", "1"),
     "at /weights/3/global/reciprocal: expected true or false, found number "
     "1"},
    {"reciprocalOfScales", ADD("/weights/3/scales/reciprocal", "true"),
     "at /weights/3/scales/reciprocal: expected none but of a global scale"},
    {"reciprocalOfWeight", ADD("/weights/3/reciprocal", "true"),
     "at /weights/3/reciprocal: expected a key"},
    {"cacheKind", REPLACE("/caches/0/kind", "\"paged\""),
     "at /caches/0/kind: expected \"expanded\", \"latent\" or \"index\", "
     "found \"paged\""},
    {"cacheKindType", REPLACE("/caches/0/kind", "null"),
     "at /caches/0/kind: expected a string, found null"},
    {"saturatedRead", REPLACE("/kernels/1/parameters/6", "\"read i32\""),
     "at /programs/0/launches/1/arguments/6: expected port saturated to be "
     "read and written"},

    // Names and paths.
    {"duplicateWeight",
     R"([{"op":"copy","from":"/weights/1","path":"/weights/-"}])",
     "at /weights/6/name: expected a name that is not taken, found \"norm\" a "
     "second time"},
    {"duplicateProgram", REPLACE("/programs/1/name", "\"decode\""),
     "at /programs/1/name: expected a name that is not taken"},
    {"kernelSymbol", REPLACE("/kernels/4/name", "\"copy 8\""),
     "at /programs/0/launches/4/kernel: expected the name of a kernel"},
    {"libraryUp", REPLACE("/library/file", "\"../kernels.so\""),
     "at /library/file: expected a plain file name, found \"../kernels.so\""},
    {"libraryAbsolute", REPLACE("/library/file", "\"/tmp/kernels.so\""),
     "at /library/file: expected a plain file name"},
    {"libraryNul", REPLACE("/library/file", "\"a\\u0000b\""),
     "at /library/file: expected a plain file name"},
    {"tokenizerFolder", REPLACE("/tokenizer/0", "\"sub/tokenizer.json\""),
     "at /tokenizer/0: expected a plain file name"},
    {"checkpointFileUp", REPLACE("/checkpoint/files/0/name", "\"..\""),
     "at /checkpoint/files/0/name: expected a plain file name"},
    {"checkpointFolder", REPLACE("/checkpoint/folder", "\"models/tiny\""),
     "at /checkpoint/folder: expected an absolute path"},
};

class PlanCorruption : public testing::TestWithParam<Corruption> {};

TEST_P(PlanCorruption, IsRefused) {
  json document = json::parse(print(samplePlan()));
  json broken = document.patch(json::parse(GetParam().patch));
  ASSERT_NE(broken.dump(), document.dump());
  Result<Plan> plan = parse(broken.dump(), "plan.json");
  ASSERT_FALSE(plan.ok());
  std::string wanted = std::string("plan.json: ") + GetParam().message;
  EXPECT_NE(plan.status().message().find(wanted), std::string::npos)
      << plan.status().message();
}

INSTANTIATE_TEST_SUITE_P(Plan, PlanCorruption, testing::ValuesIn(corruptions),
                         [](const auto &info) {
                           return std::string(info.param.name);
                         });

TEST(PlanCorruptionText, VersionsAreUnsupportedNotInvalid) {
  json document = json::parse(print(samplePlan()));
  document["format"]["major"] = 9;
  document["anything"] = "of that version";
  Result<Plan> plan = parse(document.dump(), "plan.json");
  EXPECT_EQ(plan.status().code(), StatusCode::Unsupported);
  EXPECT_EQ(plan.status().message().find("anything"), std::string::npos);
}

TEST(PlanCorruptionText, EveryTruncation) {
  std::string text = print(samplePlan());
  for (size_t n = 0; n + 2 < text.size(); ++n) // "}\n" ends it.
    ASSERT_FALSE(parse(std::string_view(text).substr(0, n), "plan.json").ok())
        << n;
}

TEST(PlanCorruptionText, BelowJson) {
  std::string text = print(samplePlan());
  auto refused = [&](const std::string &from, const std::string &to,
                     const char *message) {
    std::string broken = text;
    size_t at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    broken.replace(at, from.size(), to);
    Result<Plan> plan = parse(broken, "plan.json");
    ASSERT_FALSE(plan.ok());
    EXPECT_NE(plan.status().message().find(message), std::string::npos)
        << plan.status().message();
  };
  refused("\"major\": 2", "\"major\": 2, \"major\": 2", "twice");
  refused("\"size\": 4096", "\"size\": 18446744073709551615", "beyond 2^53");
  refused("\"size\": 4096", "\"size\": 99999999999999999999999", "beyond 2^53");
  refused("\"size\": 4096", "\"size\": 1e999", "plan.json: ");
  refused("mla 0.1.0", "\xff", "plan.json: not valid JSON");
  refused("\"eos_tokens\": [1, 2]",
          "\"eos_tokens\": " + std::string(100000, '['), "nesting deeper");
  EXPECT_FALSE(parse(text + "{}", "plan.json").ok());
  EXPECT_FALSE(parse("", "plan.json").ok());
  EXPECT_FALSE(parse("null", "plan.json").ok());
  EXPECT_FALSE(parse(std::string(1000, '\0'), "plan.json").ok());
}

/// A pattern makes names out of nothing, so several must not add up.
TEST(PlanCorruptionText, CountsAddUp) {
  Plan p = samplePlan();
  takeOffFiles(p, Checkpoint::Kind::None);
  json document = json::parse(print(p));
  document["weights"][2]["stacked"]["count"] = 500000;
  document["weights"][2]["shape"][0] = 500000;
  json second = document["weights"][2];
  second["name"] = "experts2";
  ASSERT_TRUE(parse(document.dump(), "plan.json").ok());
  document["weights"].push_back(second);
  Result<Plan> plan = parse(document.dump(), "plan.json");
  ASSERT_FALSE(plan.ok());
  EXPECT_NE(plan.status().message().find("at /weights/6/stacked: expected at "
                                         "most 524288"),
            std::string::npos)
      << plan.status().message();
}

} // namespace
