//===- StoredWeightTest.cpp - weights in every format of a file -----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/StoredWeight.h"
#include "TestFiles.h"
#include <gtest/gtest.h>
#include <set>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

//===----------------------------------------------------------------------===//
// What a model asks for
//===----------------------------------------------------------------------===//

ModelConfig published(const std::string &name) {
  Result<ModelConfig> config = ModelConfig::read(publishedConfig(name));
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *std::move(config) : ModelConfig();
}

// The counts are those of the published files.
TEST(ModelWeights, PublishedCounts) {
  EXPECT_EQ(modelWeights(published("deepseek-ai--DeepSeek-V2-Lite-Chat_config."
                                   "as_printed_by_transformers_5.7.0.json"))
                .size(),
            5291U);
  // DeepSeek-R1: every linear weight has a scale; the drafting layer is a layer
  // with experts, its own embedding and head, two norms and a projection.
  size_t all = 0, lastLayer = 0;
  for (const ModelWeight &weight :
       modelWeights(published("deepseek-ai--DeepSeek-R1_config.json"))) {
    size_t tensors = weight.role == WeightRole::Linear ? 2 : 1;
    all += tensors;
    if (weight.module.starts_with("model.layers.60."))
      lastLayer += tensors;
  }
  EXPECT_EQ(all + lastLayer + 6, 91991U);
}

// Hugging Face wrote these folders; nothing may be missing or left over.
TEST(ModelWeights, GoldensHaveExactlyThese) {
  size_t folders = 0;
  for (const auto &entry : fs::directory_iterator(dataFile("goldens"))) {
    if (!fs::exists(entry.path() / "model.safetensors"))
      continue;
    SCOPED_TRACE(entry.path().filename().string());
    ++folders;
    Result<ModelConfig> config = ModelConfig::read(entry.path());
    ASSERT_TRUE(config.ok()) << config.status().message();
    Result<Checkpoint> checkpoint = Checkpoint::open(entry.path());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    WeightFinder finder(*config, *checkpoint);
    for (const ModelWeight &weight : modelWeights(*config)) {
      StoredWeight stored = finder.find(weight);
      ASSERT_EQ(stored.parts.size(), 1U) << weight.name();
      EXPECT_EQ(checkpoint->find(weight.name()), stored.parts[0].tensor);
    }
    EXPECT_TRUE(finder.status().ok()) << finder.status().message();
    EXPECT_TRUE(finder.contradictions().empty());
    EXPECT_TRUE(finder.unused(false).unknown.empty());
    EXPECT_TRUE(finder.unused(false).skipped.empty());
  }
  EXPECT_EQ(folders, 8U);
}

TEST(ModelWeights, DraftingLayersAreSkipped) {
  Result<ModelConfig> config = ModelConfig::read(MLA_KJV_TINY);
  Result<Checkpoint> checkpoint = Checkpoint::open(MLA_KJV_TINY);
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  WeightFinder finder(*config, *checkpoint);
  for (const ModelWeight &weight : modelWeights(*config))
    finder.find(weight);
  EXPECT_TRUE(finder.status().ok()) << finder.status().message();
  WeightFinder::Unused unused = finder.unused(false);
  EXPECT_TRUE(unused.unknown.empty());
  ASSERT_EQ(unused.skipped.size(), 1U);
  EXPECT_EQ(unused.skipped[0].what, "1 multi-token-prediction layer");
  EXPECT_EQ(unused.skipped[0].tensors, 44U);
  EXPECT_GT(unused.skipped[0].bytes, 0U);
}

TEST(ModelWeights, OrderRolesAndNames) {
  json text = smallSparseConfig();
  text["indexer_types"] = {"full", "full", "shared", "full"};
  text["tie_word_embeddings"] = true;
  Result<ModelConfig> config = readConfig(text);
  ASSERT_TRUE(config.ok()) << config.status().message();
  std::vector<ModelWeight> weights = modelWeights(*config);
  EXPECT_EQ(weights.front().name(), "model.embed_tokens.weight");
  EXPECT_EQ(weights.front().role, WeightRole::Plain);
  EXPECT_EQ(weights.back().name(), "model.norm.weight");
  std::map<std::string, const ModelWeight *> byName;
  for (const ModelWeight &weight : weights)
    EXPECT_TRUE(byName.emplace(weight.name(), &weight).second)
        << weight.name() << " twice";
  EXPECT_FALSE(byName.count("lm_head.weight"));
  for (const char *leaf : {"wq_b.weight", "wk.weight", "weights_proj.weight",
                           "k_norm.weight", "k_norm.bias"}) {
    std::string tail = std::string(".self_attn.indexer.") + leaf;
    EXPECT_TRUE(byName.count("model.layers.1" + tail)) << leaf;
    EXPECT_FALSE(byName.count("model.layers.2" + tail)) << leaf;
  }
  auto at = [&](const std::string &name) { return *byName.at(name); };
  EXPECT_EQ(at("model.layers.1.self_attn.indexer.weights_proj.weight").role,
            WeightRole::Exempt);
  EXPECT_EQ(at("model.layers.1.mlp.gate.weight").role, WeightRole::Exempt);
  EXPECT_EQ(at("model.layers.1.mlp.experts.7.down_proj.weight").shape,
            (std::vector<int64_t>{64, 32}));
  EXPECT_EQ(at("model.layers.1.mlp.gate.e_score_correction_bias").shape,
            std::vector<int64_t>{8});
  EXPECT_FALSE(byName.count("model.layers.4.input_layernorm.weight"));
}

//===----------------------------------------------------------------------===//
// Formats
//===----------------------------------------------------------------------===//

/// A small model, and what finding all its weights comes to.
class StoredWeightTest : public testing::Test {
protected:
  void SetUp() override { configure(smallConfig()); }

  void configure(const json &text,
                 const std::vector<std::pair<std::string, json>> &more = {}) {
    Result<ModelConfig> result = readConfig(text, more);
    ASSERT_TRUE(result.ok()) << result.status().message();
    config = *std::move(result);
    tensors = plainTensors(config);
  }

  void find() {
    folder = std::make_unique<TempFolder>();
    writeTensors(*folder, tensors);
    Result<Checkpoint> result = Checkpoint::open(folder->path);
    ASSERT_TRUE(result.ok()) << result.status().message();
    checkpoint = std::make_unique<Checkpoint>(*std::move(result));
    finder = std::make_unique<WeightFinder>(config, *checkpoint);
    found.clear();
    for (const ModelWeight &weight : modelWeights(config)) {
      StoredWeight stored = finder->find(weight);
      if (!stored.parts.empty())
        expectParts(weight, stored);
      found[weight.name()] = std::move(stored);
    }
  }

  /// As many parts, as large as storageParts() says.
  static void expectParts(const ModelWeight &weight,
                          const StoredWeight &stored) {
    int64_t rows = weight.shape.size() == 2 ? weight.shape[0] : 1;
    auto parts = storageParts(stored.format, rows, weight.shape.back());
    ASSERT_EQ(stored.parts.size(), parts.size()) << weight.name();
    for (size_t i = 0; i < parts.size(); ++i)
      EXPECT_EQ(stored.parts[i].tensor->bytes, parts[i].bytes())
          << stored.parts[i].tensor->name;
  }

  /// The error without what every such error says.
  std::string error() {
    find();
    std::string text = finder->status().message();
    std::string head = "the checkpoint in " + folder->path.string() +
                       " does not fit config.json:";
    EXPECT_TRUE(text.empty() || text.starts_with(head)) << text;
    return text.substr(std::min(text.size(), head.size()));
  }

  ModelConfig config;
  TestTensors tensors;
  std::unique_ptr<TempFolder> folder;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<WeightFinder> finder;
  std::map<std::string, StoredWeight> found;
};

const std::string gate = "model.layers.0.mlp.gate_proj";           // [96, 64]
const std::string up = "model.layers.0.mlp.up_proj";               // [96, 64]
const std::string expert = "model.layers.2.mlp.experts.5.up_proj"; // [32, 64]
const std::string kv = "model.layers.0.self_attn.kv_a_proj_with_mqa"; // [48,64]

const TestTensors modelopt = {{".weight", {"U8", {96, 32}}},
                              {".weight_scale", {"F8_E4M3", {96, 4}}},
                              {".weight_scale_2", {"F32", {}}},
                              {".input_scale", {"F32", {}}}};
const TestTensors compressed = {{".weight_packed", {"U8", {96, 32}}},
                                {".weight_scale", {"F8_E4M3", {96, 4}}},
                                {".weight_global_scale", {"F32", {1}}},
                                {".input_global_scale", {"F32", {1}}}};
const TestTensors int4 = {{".weight_packed", {"I32", {32, 8}}},
                          {".weight_scale", {"BF16", {32, 2}}},
                          {".weight_shape", {"I64", {2}}}};
const TestTensors fp8 = {{".weight", {"F8_E4M3", {48, 64}}},
                         {".weight_scale_inv", {"F32", {1, 1}}}};

TEST_F(StoredWeightTest, TheFileDecidesTensorByTensor) {
  replaceWeight(tensors, gate, modelopt);
  replaceWeight(tensors, up, compressed);
  replaceWeight(tensors, expert, int4);
  replaceWeight(tensors, kv, fp8);
  tensors["model.norm.weight"].dtype = "F16";
  tensors["model.embed_tokens.weight"].dtype = "F32";
  EXPECT_EQ(error(), "");
  auto names = [&](const std::string &module) {
    std::string text;
    for (const StoredPart &part : found[module + ".weight"].parts)
      text += part.tensor->name.substr(module.size()) +
              (part.reciprocal ? " (reciprocal) " : " ");
    return text;
  };
  EXPECT_EQ(found[gate + ".weight"].format, Format::NVFP4);
  EXPECT_EQ(names(gate), ".weight .weight_scale .weight_scale_2 ");
  EXPECT_EQ(found[up + ".weight"].format, Format::NVFP4);
  EXPECT_EQ(names(up),
            ".weight_packed .weight_scale .weight_global_scale (reciprocal) ");
  EXPECT_EQ(found[expert + ".weight"].format, Format::Int4G32);
  EXPECT_EQ(names(expert), ".weight_packed .weight_scale ");
  EXPECT_EQ(found[kv + ".weight"].format, Format::FP8Block);
  EXPECT_EQ(names(kv), ".weight .weight_scale_inv ");
  EXPECT_EQ(found["model.norm.weight"].format, Format::F16);
  EXPECT_EQ(found["model.embed_tokens.weight"].format, Format::F32);
  EXPECT_EQ(found["lm_head.weight"].format, Format::BF16);
  WeightFinder::Unused unused = finder->unused(false);
  EXPECT_TRUE(unused.unknown.empty());
  ASSERT_EQ(unused.skipped.size(), 1U);
  EXPECT_EQ(unused.skipped[0].what, "activation and cache scales");
  EXPECT_EQ(unused.skipped[0].tensors, 2U);
  EXPECT_EQ(unused.skipped[0].bytes, 8U);
  // Exempt ones too are what the file has.
  TestTensors router = modelopt;
  router[".weight"].shape = {8, 32};
  router[".weight_scale"].shape = {8, 4};
  replaceWeight(tensors, "model.layers.1.mlp.gate", router);
  EXPECT_EQ(error(), "");
  EXPECT_EQ(found["model.layers.1.mlp.gate.weight"].format, Format::NVFP4);
}

TEST_F(StoredWeightTest, GlobalScalesOfBothShapesAndOfEachWeight) {
  TestTensors one = modelopt, none = compressed;
  one[".weight_scale_2"].shape = {1};
  none[".weight_global_scale"].shape = {};
  none[".weight_global_scale"].bytes = std::string("\0\0\x80\x3f", 4);
  replaceWeight(tensors, gate, one);
  replaceWeight(tensors, up, none);
  EXPECT_EQ(error(), "");
  // gate and up keep scales of their own, which may differ.
  EXPECT_NE(found[gate + ".weight"].parts[2].tensor,
            found[up + ".weight"].parts[2].tensor);
}

TEST_F(StoredWeightTest, BlocksThatAreCutAtTheEdges) {
  json text = smallConfig();
  text["intermediate_size"] = 200;
  text["hidden_size"] = 136;
  configure(text);
  replaceWeight(tensors, gate,
                {{".weight", {"F8_E4M3", {200, 136}}},
                 {".weight_scale_inv", {"F32", {2, 2}}}});
  EXPECT_EQ(error(), "");
  tensors[gate + ".weight_scale_inv"].shape = {2, 1};
  EXPECT_EQ(error(),
            "\n  " + gate + ".weight_scale_inv: expected [2, 2], found [2, 1]");
  EXPECT_TRUE(found[gate + ".weight"].parts.empty());
  EXPECT_EQ(found[gate + ".weight"].format, Format::FP8Block);
}

TEST_F(StoredWeightTest, PartsInDifferentShards) {
  replaceWeight(tensors, gate, modelopt);
  tensors[gate + ".weight_scale"].shard = "b.safetensors";
  tensors[gate + ".weight_scale_2"].shard = "c.safetensors";
  EXPECT_EQ(error(), "");
  std::set<uint32_t> files;
  for (const StoredPart &part : found[gate + ".weight"].parts)
    files.insert(part.tensor->file);
  EXPECT_EQ(files.size(), 3U);
  // An index that lists nothing, as when a producer forgot the new tensors.
  folder->write("model.safetensors.index.json", R"({"weight_map": {}})");
  Result<Checkpoint> again = Checkpoint::open(folder->path);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->tensors().size(), tensors.size());
}

TEST_F(StoredWeightTest, PrefixOfMultimodalModels) {
  replaceWeight(tensors, gate, modelopt);
  TestTensors prefixed = {{"vision_tower.x.weight", {"BF16", {4, 4}}},
                          {"mm_projector.y.weight", {"BF16", {4, 4}}}};
  for (const auto &[name, tensor] : tensors)
    prefixed["language_model." + name] = tensor;
  tensors = prefixed;
  EXPECT_EQ(error(), "");
  EXPECT_EQ(found[gate + ".weight"].parts[0].tensor->name,
            "language_model." + gate + ".weight");
  EXPECT_TRUE(finder->holds("lm_head"));
  WeightFinder::Unused unused = finder->unused(false);
  EXPECT_TRUE(unused.unknown.empty());
  ASSERT_EQ(unused.skipped.size(), 2U);
  EXPECT_EQ(unused.skipped[0].what, "the vision model");
  EXPECT_EQ(unused.skipped[0].bytes, 64U);
}

//===----------------------------------------------------------------------===//
// What does not fit
//===----------------------------------------------------------------------===//

TEST_F(StoredWeightTest, EveryPartIsNeeded) {
  struct Case {
    std::string module;
    TestTensors parts;
  };
  for (const auto &[module, parts] :
       {Case{gate, modelopt}, Case{up, compressed}, Case{expert, int4},
        Case{kv, fp8}})
    for (const auto &[suffix, tensor] : parts) {
      SCOPED_TRACE(module + suffix);
      configure(smallConfig());
      replaceWeight(tensors, module, parts);
      tensors.erase(module + suffix);
      if (suffix == ".input_scale" || suffix == ".input_global_scale") {
        EXPECT_EQ(error(), "");
        continue;
      }
      bool main = suffix == ".weight" || suffix == ".weight_packed";
      EXPECT_EQ(error(),
                "\n  missing: " + module + (main ? ".weight" : suffix));
      EXPECT_TRUE(found[module + ".weight"].parts.empty());
      // The parts of what is missing are no riddle.
      EXPECT_EQ(finder->missing(),
                std::vector<std::string>{module + (main ? ".weight" : suffix)});
    }
}

TEST_F(StoredWeightTest, EveryPartHasADtypeAndAShape) {
  auto spoilt = [&](const std::string &module, const TestTensors &parts,
                    const std::string &suffix, const TestTensor &tensor) {
    configure(smallConfig());
    replaceWeight(tensors, module, parts);
    tensors[module + suffix] = tensor;
    std::string text = error();
    EXPECT_TRUE(found[module + ".weight"].parts.empty()) << text;
    return without(text, "\n  " + module);
  };
  EXPECT_EQ(spoilt(gate, modelopt, ".weight", {"U8", {96, 64}}),
            ".weight: expected [96, 32], found [96, 64]");
  EXPECT_EQ(spoilt(gate, modelopt, ".weight_scale", {"F32", {96, 4}}),
            ".weight_scale: expected F8_E4M3, found F32");
  EXPECT_EQ(spoilt(gate, modelopt, ".weight_scale_2", {"F32", {2}}),
            ".weight_scale_2: expected [], found [2]");
  EXPECT_EQ(spoilt(gate, modelopt, ".weight_scale_2", {"BF16", {}}),
            ".weight_scale_2: expected F32, found BF16");
  EXPECT_EQ(spoilt(up, compressed, ".weight_packed", {"U8", {95, 32}}),
            ".weight_packed: expected [96, 32], found [95, 32]");
  EXPECT_EQ(spoilt(up, compressed, ".weight_global_scale", {"F32", {1, 1}}),
            ".weight_global_scale: expected [], found [1, 1]");
  EXPECT_EQ(spoilt(expert, int4, ".weight_packed", {"F16", {32, 8}}),
            ".weight_packed: expected I32, found F16");
  EXPECT_EQ(spoilt(expert, int4, ".weight_scale", {"BF16", {32, 4}}),
            ".weight_scale: expected [32, 2], found [32, 4]");
  EXPECT_EQ(spoilt(expert, int4, ".weight_shape", {"I64", {3}}),
            ".weight_shape: expected [2], found [3]");
  EXPECT_EQ(spoilt(kv, fp8, ".weight", {"F8_E4M3", {64, 48}}),
            ".weight: expected [48, 64], found [64, 48]");
  EXPECT_EQ(spoilt(kv, fp8, ".weight_scale_inv", {"BF16", {1, 1}}),
            ".weight_scale_inv: expected F32, found BF16");
  TestTensors perTensor = fp8;
  perTensor.erase(".weight_scale_inv");
  EXPECT_EQ(spoilt(kv, perTensor, ".weight_scale", {"F32", {}}),
            ".weight_scale_inv: expected one scale for each block of 128 x "
            "128, found only " +
                kv + ".weight_scale []");
  EXPECT_EQ(spoilt(kv, {}, ".weight", {"I8", {48, 64}}),
            ".weight: expected F32 or BF16 or F16 or F8_E4M3 or U8, found I8");
  EXPECT_EQ(spoilt("model.norm", {}, ".weight", {"F8_E4M3", {64}}),
            ".weight: expected F32 or BF16 or F16, found F8_E4M3");
}

TEST_F(StoredWeightTest, GroupsMustDivideTheColumns) {
  json text = smallConfig();
  text["hidden_size"] = 72; // neither by 16 nor by 32
  configure(text);
  replaceWeight(tensors, gate, modelopt);
  replaceWeight(tensors, expert, int4);
  EXPECT_EQ(error(), "\n  " + gate +
                         ".weight: groups of 16 columns do not divide its 72 "
                         "columns\n  " +
                         expert +
                         ".weight_packed: groups of 32 columns do not divide "
                         "its 72 columns");
}

TEST_F(StoredWeightTest, EverythingIsListedAtOnceButNotWithoutEnd) {
  tensors.erase("model.norm.weight");
  tensors["lm_head.weight"].shape = {256, 65};
  tensors.erase(kv + ".weight");
  EXPECT_EQ(error(), "\n  missing: " + kv +
                         ".weight\n  missing: model.norm.weight\n  "
                         "lm_head.weight: expected [256, 64], found [256, 65]");
  tensors.clear();
  tensors["x"] = {"F32", {1}};
  std::string text = error();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 41);
  EXPECT_TRUE(text.ends_with(" more"));
  EXPECT_FALSE(finder->holds("lm_head"));
  ASSERT_EQ(finder->unused(false).unknown.size(), 1U);
  EXPECT_EQ(finder->unused(false).unknown[0]->name, "x");
}

//===----------------------------------------------------------------------===//
// Config and file
//===----------------------------------------------------------------------===//

TEST_F(StoredWeightTest, ContradictionsAreCounted) {
  json text = smallConfig();
  text["quantization_config"] = {{"quant_method", "modelopt"},
                                 {"quant_algo", "NVFP4"},
                                 {"ignore", {"lm_head", "*self_attn*"}}};
  configure(text);
  replaceWeight(tensors, gate, modelopt);
  replaceWeight(tensors, kv, fp8);
  EXPECT_EQ(error(), "");
  ASSERT_EQ(finder->contradictions().size(), 2U);
  const FormatContradiction &first = finder->contradictions()[0];
  EXPECT_EQ(first.expected, Format::BF16);
  EXPECT_EQ(first.found, Format::FP8Block);
  EXPECT_EQ(first.weights, 1U);
  EXPECT_EQ(first.example, kv + ".weight");
  const FormatContradiction &second = finder->contradictions()[1];
  EXPECT_EQ(second.expected, Format::NVFP4);
  EXPECT_EQ(second.found, Format::BF16);
  // Two of layer 0; in three layers eight experts and a shared one of three
  // each. The routers, which no list excludes, are none.
  EXPECT_EQ(second.weights, 2U + 3 * (8 + 1) * 3);
  EXPECT_EQ(second.example, up + ".weight");
}

TEST_F(StoredWeightTest, HeadThatIsTied) {
  json text = smallConfig();
  text["tie_word_embeddings"] = true;
  configure(text);
  tensors["lm_head.weight"] = {"BF16", {256, 64}};
  EXPECT_EQ(error(), "");
  WeightFinder::Unused unused = finder->unused(true);
  EXPECT_TRUE(unused.unknown.empty());
  ASSERT_EQ(unused.skipped.size(), 1U);
  EXPECT_EQ(unused.skipped[0].what,
            "lm_head, which the config ties to the embedding");
  EXPECT_EQ(finder->unused(false).unknown.size(), 1U);
}

TEST_F(StoredWeightTest, DraftingLayers) {
  auto skipped = [&](int64_t announced) {
    json text = smallConfig();
    text["num_nextn_predict_layers"] = announced;
    TestTensors before = tensors;
    configure(text);
    tensors = before;
    EXPECT_EQ(error(), "");
    std::string out;
    for (const auto &group : finder->unused(false).skipped)
      out += group.what + "; ";
    return out + std::to_string(finder->unused(false).unknown.size());
  };
  EXPECT_EQ(skipped(1), "0");
  // Present: quantized or not, with a head or without, is all the same.
  tensors["model.layers.4.eh_proj.weight"] = {"BF16", {64, 128}};
  TestTensors packed = modelopt;
  packed.erase(".input_scale");
  replaceWeight(tensors, "model.layers.4.mlp.experts.0.up_proj", packed);
  EXPECT_EQ(skipped(1), "1 multi-token-prediction layer; 0");
  tensors["model.layers.5.eh_proj.weight"] = {"BF16", {64, 128}};
  EXPECT_EQ(skipped(2), "2 multi-token-prediction layers; 0");
  EXPECT_EQ(skipped(1), "1 multi-token-prediction layer; 1");
  EXPECT_EQ(skipped(0), "5");
}

} // namespace
