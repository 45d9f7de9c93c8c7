//===- MutationTest.cpp - thousands of spoilt files -----------------------===//
//
// Part of mla. Whatever a file holds, reading it ends in a value or an error.
// The mutations are random but the same in every run; build with
// -DMLA_SANITIZE=address,undefined to see what only a sanitizer sees.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include "mla/Config/Checkpoint.h"
#include <gtest/gtest.h>
#include <random>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

/// The same numbers with every standard library, unlike its distributions.
class Random {
public:
  explicit Random(uint32_t seed) : engine(seed) {}
  size_t below(size_t n) { return n ? engine() % n : 0; }

private:
  std::mt19937 engine;
};

/// What is done with a configuration that was read: all of it, so that a value
/// no one should have accepted shows here.
void use(const ModelConfig &config) {
  EXPECT_FALSE(config.print().empty());
  EXPECT_EQ(config.moeLayer.size(), size_t(config.layers));
  if (config.indexer) {
    EXPECT_EQ(config.indexer->full.size(), size_t(config.layers));
  }
  EXPECT_GT(config.softmaxScale(), 0.0);
  EXPECT_GT(config.moe.topk, 0);
  EXPECT_LE(config.moe.topk, config.moe.experts);
  EXPECT_GT(config.moe.groups, 0);
  for (float f : config.rope.inverseFrequencies(config.qkRopeHeadDim))
    EXPECT_TRUE(f > 0.0f && f <= 1.0f) << f;
  (void)config.quantization.expectedFormat("model.layers.0.mlp.up_proj",
                                           Format::BF16);
  (void)config.quantization.expectedFormat("", Format::BF16);
}

/// Counts outcomes, so that a test sees that it tests both.
struct Outcomes {
  size_t values = 0, errors = 0;
};

void readAndUse(std::string_view text, Outcomes &outcomes,
                std::optional<std::string> sidecar = std::nullopt) {
  Result<ModelConfig> config = ModelConfig::parse(text, "config.json", sidecar);
  if (config.ok()) {
    ++outcomes.values;
    use(*config);
  } else {
    ++outcomes.errors;
    EXPECT_FALSE(config.status().message().empty());
    EXPECT_NE(config.status().code(), StatusCode::Internal);
  }
}

/// One of the ways in which files get damaged.
std::string spoilBytes(std::string text, Random &random) {
  switch (random.below(5)) {
  case 0: // a bit flips
    text[random.below(text.size())] ^= char(1 << random.below(8));
    break;
  case 1: // the end is lost
    text.resize(random.below(text.size()));
    break;
  case 2: // a piece is lost
    text.erase(random.below(text.size()), 1 + random.below(40));
    break;
  case 3: { // a piece comes twice
    size_t at = random.below(text.size());
    text.insert(at, text.substr(at, 1 + random.below(40)));
    break;
  }
  default: // a byte is another
    text[random.below(text.size())] = char(random.below(256));
    break;
  }
  return text;
}

json oddValue(Random &random) {
  static const std::vector<json> values = {nullptr,
                                           true,
                                           false,
                                           0,
                                           1,
                                           -1,
                                           2,
                                           3,
                                           7,
                                           64,
                                           4096,
                                           65536,
                                           1 << 24,
                                           int64_t(1) << 31,
                                           int64_t(1) << 53,
                                           -(int64_t(1) << 53),
                                           0.5,
                                           -0.0,
                                           1e308,
                                           1e-308,
                                           "",
                                           "x",
                                           "yarn",
                                           "re:(",
                                           "re:.*(a|b)",
                                           "[",
                                           "FS",
                                           json::array(),
                                           json::object(),
                                           {1, 2, 3},
                                           {"a"},
                                           {json::array()},
                                           {{"type", "yarn"}},
                                           {{"quant_method", "fp8"}},
                                           std::string(300, '*')};
  return values[random.below(values.size())];
}

/// All places of a document.
void collect(json &value, std::vector<json *> &out) {
  out.push_back(&value);
  if (value.is_structured())
    for (json &child : value)
      collect(child, out);
}

/// Replaces, erases, swaps or renames at one to three places.
void spoilValues(json &document, Random &random) {
  for (size_t n = 1 + random.below(3); n > 0; --n) {
    std::vector<json *> places;
    collect(document, places);
    json &place = *places[random.below(places.size())];
    switch (random.below(4)) {
    case 0:
      place = oddValue(random);
      break;
    case 1:
      if (place.is_object() && !place.empty())
        place.erase(std::next(place.begin(), random.below(place.size())).key());
      else if (place.is_array() && !place.empty())
        place.erase(random.below(place.size()));
      break;
    case 2: { // copies, so that no tree comes to hold itself
      json a = place, b = *places[random.below(places.size())];
      if (!b.is_structured())
        place = b;
      else if (place.is_array())
        place.push_back(a);
      break;
    }
    default:
      if (place.is_number_integer())
        place = place.get<int64_t>() + int64_t(random.below(3)) - 1;
      else if (place.is_boolean())
        place = !place.get<bool>();
      else
        place = oddValue(random);
      break;
    }
  }
}

const char *const sources[] = {
    "configs/deepseek-ai--DeepSeek-V3.1_config.json",
    "configs/deepseek-ai--DeepSeek-V2-Lite-Chat_config.as_printed_by_"
    "transformers_5.7.0.json",
    "configs/moonshotai--Kimi-K2.5_config.json",
    "configs/nvidia--Kimi-K2.7-Code-NVFP4_config.json",
    "configs/zai-org--GLM-5.2_config.json",
    "goldens/glm52_shared_indexer/config.json",
    "goldens/v3_kimi_like/config.json",
};

TEST(Mutation, BytesOfConfigs) {
  Random random(1);
  Outcomes outcomes;
  for (const char *source : sources) {
    std::string text = readBytes(dataFile(source));
    for (int i = 0; i < 300; ++i) {
      readAndUse(spoilBytes(text, random), outcomes);
    }
  }
  EXPECT_GT(outcomes.values, 100u);
  EXPECT_GT(outcomes.errors, 100u);
}

TEST(Mutation, ValuesOfConfigs) {
  Random random(2);
  Outcomes outcomes;
  for (const char *source : sources) {
    json original = json::parse(readBytes(dataFile(source)));
    for (int i = 0; i < 300; ++i) {
      json document = original;
      spoilValues(document, random);
      readAndUse(document.dump(), outcomes);
    }
  }
  EXPECT_GT(outcomes.values, 100u);
  EXPECT_GT(outcomes.errors, 100u);
}

// In long lists most places are list entries; a small file with every key
// spoils each of them more often.
TEST(Mutation, EveryKeyWithEveryOddValue) {
  Random random(3);
  Outcomes outcomes;
  json original = smallSparseConfig();
  original["rope_scaling"] = {{"type", "yarn"},
                              {"factor", 4},
                              {"original_max_position_embeddings", 128},
                              {"beta_fast", 32},
                              {"beta_slow", 1},
                              {"mscale", 1.0},
                              {"mscale_all_dim", 1.0}};
  original["mlp_layer_types"] = {"dense", "sparse", "sparse", "sparse"};
  original["indexer_types"] = {"full", "full", "shared", "full"};
  original["quantization_config"] = {{"quant_method", "modelopt"},
                                     {"quant_algo", "NVFP4"},
                                     {"ignore", {"lm_head", "model.layers.0*"}},
                                     {"kv_cache_scheme", nullptr}};
  original["text_config"] = nullptr;
  for (int i = 0; i < 2500; ++i) {
    json document = original;
    spoilValues(document, random);
    readAndUse(document.dump(), outcomes);
  }
  EXPECT_GT(outcomes.values, 50u);
  EXPECT_GT(outcomes.errors, 500u);
}

TEST(Mutation, Sidecars) {
  Random random(4);
  Outcomes outcomes;
  std::string config =
      readBytes(publishedConfig("nvidia--GLM-5.1-NVFP4_config.json"));
  std::string text =
      readBytes(publishedConfig("nvidia--GLM-5.1-NVFP4_hf_quant_config.json"));
  for (int i = 0; i < 300; ++i) {
    readAndUse(config, outcomes, spoilBytes(text, random));
    json document = json::parse(text);
    spoilValues(document, random);
    readAndUse(config, outcomes, document.dump());
  }
  EXPECT_GT(outcomes.errors, 100u);
  json several = {{"quantization",
                   {{"quant_algo", "MIXED_PRECISION"},
                    {"kv_cache_quant_algo", "FP8"},
                    {"exclude_modules", {"lm_head"}},
                    {"quantized_layers",
                     {{"*", {{"quant_algo", "NVFP4"}, {"group_size", 16}}},
                      {"model.layers.0.mlp.up_proj",
                       {{"quant_algo", "FP8_PB_WO"}, {"group_size", 128}}}}}}}};
  std::string plain = smallConfig().dump();
  Outcomes mixed;
  for (int i = 0; i < 600; ++i) {
    json document = several;
    spoilValues(document, random);
    readAndUse(plain, mixed, document.dump());
    readAndUse(plain, mixed, spoilBytes(several.dump(), random));
  }
  EXPECT_GT(mixed.values, 50u);
  EXPECT_GT(mixed.errors, 300u);
}

/// Whatever is accepted lies inside the file, in order, without overlap.
void expectSound(const std::vector<TensorInfo> &tensors, uint64_t headerBytes,
                 uint64_t fileSize) {
  uint64_t at = headerBytes;
  for (const TensorInfo &tensor : tensors) {
    EXPECT_EQ(tensor.offset, at);
    uint64_t bytes = safetensorsElementBytes(tensor.dtype);
    for (int64_t dim : tensor.shape)
      bytes *= uint64_t(dim);
    EXPECT_EQ(tensor.bytes, bytes);
    at += tensor.bytes;
  }
  EXPECT_EQ(at, fileSize);
}

TEST(Mutation, SafetensorsHeaders) {
  Random random(5);
  json original = {{"__metadata__", {{"format", "pt"}}}};
  int64_t end = 0;
  for (int i = 0; i < 12; ++i) {
    int64_t rows = 1 + i % 3, bytes = rows * 8;
    original["model.layers." + std::to_string(i) + ".weight"] = {
        {"dtype", i % 2 ? "BF16" : "F32"},
        {"shape", {rows, i % 2 ? 4 : 2}},
        {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  Outcomes outcomes;
  auto check = [&](const std::string &header) {
    uint64_t headerBytes = 8 + header.size();
    auto got = parseSafetensorsHeader(header, headerBytes, headerBytes + end,
                                      "model.safetensors");
    if (got.ok()) {
      ++outcomes.values;
      expectSound(*got, headerBytes, headerBytes + end);
    } else {
      ++outcomes.errors;
      EXPECT_FALSE(got.status().message().empty());
    }
  };
  std::string text = original.dump();
  check(text);
  ASSERT_EQ(outcomes.values, 1u);
  for (int i = 0; i < 4000; ++i) {
    check(spoilBytes(text, random));
    json document = original;
    spoilValues(document, random);
    check(document.dump());
  }
  EXPECT_GT(outcomes.values, 100u);
  EXPECT_GT(outcomes.errors, 1000u);
}

TEST(Mutation, SafetensorsFiles) {
  Random random(6);
  TempFolder folder;
  std::string bytes = readBytes(dataFile("goldens/v3_yarn/model.safetensors"));
  // Keep the header and few data: most of the file is numbers.
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i)
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  Outcomes outcomes;
  for (int i = 0; i < 150; ++i) {
    std::string head = bytes.substr(0, 8 + length);
    if (i % 4 == 0)
      head[random.below(8)] = char(random.below(256));
    else
      head = spoilBytes(head, random);
    folder.write("model.safetensors", head);
    // The same header over a file of the right size, by a hole.
    if (i % 2 == 0)
      std::filesystem::resize_file(folder / "model.safetensors", bytes.size());
    Result<Checkpoint> got = Checkpoint::open(folder.path);
    got.ok() ? ++outcomes.values : ++outcomes.errors;
    EXPECT_EQ(got.ok(), got.status().message().empty());
  }
  EXPECT_GT(outcomes.errors, 100u);
}

TEST(Mutation, Indexes) {
  Random random(7);
  TempFolder folder;
  folder.write("a.safetensors", safetensors("{}", 0));
  json original = {{"metadata", {{"total_size", 12}}},
                   {"weight_map", json::object()}};
  std::string text = original.dump();
  Outcomes outcomes;
  for (int i = 0; i < 150; ++i) {
    json document = original;
    spoilValues(document, random);
    folder.write("model.safetensors.index.json",
                 i % 2 ? document.dump() : spoilBytes(text, random));
    Checkpoint::open(folder.path).ok() ? ++outcomes.values : ++outcomes.errors;
  }
  EXPECT_GT(outcomes.values, 10u);
  EXPECT_GT(outcomes.errors, 10u);
}

} // namespace
