//===- InspectTest.cpp - mla-run inspect of model folders -----------------===//
//
// Part of mla. Folders as they are published, and what is wrong with them. The
// last test runs the program itself on the headers of a whole Kimi-K2.6.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/StoredWeight.h"
#include "mla/Support/Json.h"
#include "runtime/cli/Commands.h"
#include "unittests/Config/TestFiles.h"
#include <cstring>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <iomanip>
#include <spawn.h>
#include <sstream>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

using namespace mla;
using namespace mla::test;
using nlohmann::json;
namespace fs = std::filesystem;

extern char **environ;

namespace {

/// A model folder under construction.
class InspectTest : public testing::Test {
protected:
  void SetUp() override { configure(smallConfig()); }

  void configure(const json &text) {
    Result<ModelConfig> config = readConfig(text);
    ASSERT_TRUE(config.ok()) << config.status().message();
    folder.write("config.json", text.dump());
    tensors = plainTensors(*config);
  }

  Status inspect(bool asJson = false) {
    std::ostringstream out;
    Status status = cli::inspect({.folder = folder.path, .json = asJson}, out);
    text = without(out.str(), folder.path.string());
    return status;
  }
  /// The error of a fresh set of files.
  std::string error() {
    writeTensors(folder, tensors);
    return without(inspect().message(), folder.path.string());
  }
  json inspectJson() {
    EXPECT_EQ(error(), "");
    EXPECT_TRUE(inspect(true).ok());
    json out = json::parse(text, nullptr, false);
    EXPECT_FALSE(out.is_discarded()) << text;
    return out;
  }
  bool says(const std::string &part) const {
    return text.find(part) != std::string::npos;
  }

  TempFolder folder;
  TestTensors tensors;
  std::string text; ///< what was printed last, without the folder's name
};

TestTensor scalar(float value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return {"F32", {}, bytes};
}

std::string layer(int number) {
  return "model.layers." + std::to_string(number);
}

/// The weight of a linear module in NVFP4, as ModelOpt writes it.
void toNvfp4(TestTensors &tensors, const std::string &module) {
  std::vector<int64_t> shape = tensors.at(module + ".weight").shape;
  replaceWeight(tensors, module,
                {{".weight", {"U8", {shape[0], shape[1] / 2}}},
                 {".weight_scale", {"F8_E4M3", {shape[0], shape[1] / 16}}},
                 {".weight_scale_2", scalar(0.5F)},
                 {".input_scale", scalar(1.0F)}});
}

//===----------------------------------------------------------------------===//
// What is told
//===----------------------------------------------------------------------===//

TEST_F(InspectTest, ModelInSeveralFormats) {
  json text = smallConfig();
  text["num_nextn_predict_layers"] = 1;
  text["quantization_config"] = {
      {"quant_method", "modelopt"},
      {"quant_algo", "NVFP4"},
      {"ignore", {"lm_head", "*self_attn*", "model.layers.0*"}},
      {"kv_cache_scheme", {{"num_bits", 8}, {"type", "float"}}}};
  configure(text);
  TestTensors all = tensors;
  for (const auto &[name, tensor] : all)
    if (name.find(".mlp.experts.") != name.npos)
      toNvfp4(tensors, name.substr(0, name.size() - 7));
  for (int i = 0; i < 4; ++i) {
    tensors[layer(i) + ".self_attn.k_proj.k_scale"] =
        scalar(0.25F * float(i + 1));
    tensors[layer(i) + ".self_attn.v_proj.v_scale"] =
        scalar(i == 2 ? 3 : 0.25F * float(i + 1));
    replaceWeight(tensors, layer(i) + ".self_attn.o_proj",
                  {{".weight", {"F8_E4M3", {64, 64}}},
                   {".weight_scale_inv", {"F32", {1, 1}}}});
  }
  tensors["model.layers.4.enorm.weight"] = {"BF16", {64}};
  tensors["vision_tower.patch.weight"] = {"BF16", {8, 8}};
  tensors["stray"] = {"U8", {3}};
  EXPECT_EQ(error(), "");
  uint64_t bytes = fs::file_size(folder / "model.safetensors");
  ASSERT_LT(bytes, 1048576U);
  std::ostringstream kib;
  kib << std::fixed << std::setprecision(1) << double(bytes) / 1024;
  EXPECT_EQ(
      this->text,
      "model        DeepseekV3ForCausalLM, 4 layers (3 with 8 experts, 3 a "
      "token, 1 shared), hidden size 64, vocabulary 256, context 512\n"
      "announced    NVFP4, by /config.json at /quantization_config\n"
      "checkpoint   , 1 shard, " +
          std::to_string(tensors.size()) + " tensors, " + kib.str() +
          " KiB\n\n"
          "  modules         format      weights   tensors       bytes    "
          "bits\n"
          "  embedding       bf16              1         1    32.0 KiB   "
          "16.00\n"
          "  norms           bf16             17        17     1.6 KiB   "
          "16.00\n"
          "  attention       bf16             16        16    92.0 KiB   "
          "16.00\n"
          "  attention       fp8_block         4         8    16.0 KiB    "
          "8.01\n"
          "  dense MLP       bf16              3         3    36.0 KiB   "
          "16.00\n"
          "  routed experts  nvfp4            72       216    81.3 KiB    "
          "4.52\n"
          "  router          f32               3         3        96 B   "
          "32.00\n"
          "  router          bf16              3         3     3.0 KiB   "
          "16.00\n"
          "  shared experts  bf16              9         9    36.0 KiB   "
          "16.00\n"
          "  head            bf16              1         1    32.0 KiB   "
          "16.00\n"
          "  all                             129       277   330.0 KiB    "
          "9.55\n"
          "\n"
          "cache        48 values a token and layer; the checkpoint asks for "
          "fp8_e4m3; k_scale in 4 of 4 layers, 0.25 to 1\n"
          "skipped      1 tensor of 1 multi-token-prediction layer, 128 B\n"
          "skipped      1 tensor of the vision model, 128 B\n"
          "skipped      72 tensors of activation and cache scales, 288 B\n"
          "note         /config.json at /quantization_config says bf16 of 4 "
          "weights that are fp8_block in the files (first "
          "model.layers.0.self_attn.o_proj.weight); the files decide\n"
          "note         /config.json at /quantization_config says nvfp4 of 9 "
          "weights that are bf16 in the files (first "
          "model.layers.1.mlp.shared_experts.gate_proj.weight); the files "
          "decide\n"
          "WARNING      k_scale and v_scale differ in 1 of 4 layers (first "
          "layer 2: 0.75 and 3); the latent cache has one scale for both and "
          "uses k_scale\n"
          "WARNING      no use for 1 tensor: stray\n");
}

// Every byte of a checkpoint is in a row, skipped, or named.
TEST_F(InspectTest, JsonAddsUp) {
  TestTensors all = tensors;
  for (const auto &[name, tensor] : all)
    if (name.find(".mlp.experts.") != name.npos)
      toNvfp4(tensors, name.substr(0, name.size() - 7));
  tensors["vision_tower.patch.weight"] = {"BF16", {8, 8}};
  json got = inspectJson();
  EXPECT_EQ(got["model"]["layers"], 4);
  EXPECT_EQ(got["model"]["experts"], 8);
  EXPECT_EQ(got["checkpoint"]["shards"], 1);
  EXPECT_EQ(got["checkpoint"]["tensors"], tensors.size());
  uint64_t sum = 0, count = 0;
  for (const char *list : {"weights", "skipped"})
    for (const json &row : got[list]) {
      sum += row["bytes"].get<uint64_t>();
      count += row["tensors"].get<uint64_t>();
    }
  EXPECT_EQ(count, tensors.size());
  std::string file = readBytes(folder / "model.safetensors");
  uint64_t header = 0;
  std::memcpy(&header, file.data(), 8);
  EXPECT_EQ(sum, file.size() - 8 - header);
  EXPECT_EQ(got["cache"]["layers_with_scale"], 0);
  EXPECT_EQ(got["cache"]["fp8"], false);
  EXPECT_TRUE(got["missing"].empty() && got["misfits"].empty());
  EXPECT_TRUE(got["warnings"].empty());
  ASSERT_EQ(got["notes"].size(), 1U); // the config says nothing of NVFP4
  for (const json &row : got["weights"]) {
    if (row["format"] == "nvfp4") {
      EXPECT_NEAR(row["bits_per_weight"].get<double>(), 4.5, 0.02);
    }
  }
}

TEST_F(InspectTest, CoarseRouterBiasesAreToldOnce) {
  for (int i = 1; i < 4; ++i)
    tensors[layer(i) + ".mlp.gate.e_score_correction_bias"].dtype = "BF16";
  EXPECT_EQ(error(), "");
  std::string line =
      "WARNING      e_score_correction_bias is stored in bf16, not in f32, in "
      "3 "
      "layers (first model.layers.1.mlp.gate.e_score_correction_bias): ";
  EXPECT_TRUE(says(line)) << text;
  EXPECT_EQ(text.find("WARNING", text.find(line) + 1), text.npos);
}

TEST_F(InspectTest, HeadThatIsAbsentOrTied) {
  tensors.erase("lm_head.weight");
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(says("WARNING      no lm_head.weight; the embedding is used"));
  json tied = smallConfig();
  tied["tie_word_embeddings"] = true;
  configure(tied);
  EXPECT_EQ(error(), "");
  EXPECT_FALSE(says("lm_head"));
  tensors["lm_head.weight"] = {"BF16", {256, 64}};
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(says("skipped      1 tensor of lm_head, which the config ties"));
}

TEST_F(InspectTest, DraftingLayerThatIsAbsent) {
  json text = smallConfig();
  text["num_nextn_predict_layers"] = 1;
  configure(text);
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(
      says("note         config.json announces 1 multi-token-prediction "
           "layer, the files have none"));
}

//===----------------------------------------------------------------------===//
// What is wrong
//===----------------------------------------------------------------------===//

TEST_F(InspectTest, WhatIsMissingComesAfterTheTable) {
  std::string expert = layer(2) + ".mlp.experts.5.up_proj";
  toNvfp4(tensors, expert);
  tensors.erase(expert + ".weight_scale");
  tensors[layer(0) + ".self_attn.o_proj.weight"].shape = {64, 63};
  tensors[layer(0) + ".self_attn.k_proj.k_scale"] = scalar(-1);
  EXPECT_EQ(error(),
            "the checkpoint in  does not fit config.json:\n"
            "  missing: " +
                expert +
                ".weight_scale\n"
                "  model.layers.0.self_attn.o_proj.weight: expected [64, 64], "
                "found [64, 63]\n"
                "model.layers.0.self_attn.k_proj.k_scale: expected a positive "
                "finite scale, found -1");
  EXPECT_TRUE(says("  routed experts  bf16             71        71")) << text;
  // As JSON too.
  EXPECT_FALSE(inspect(true).ok());
  json got = json::parse(text);
  EXPECT_EQ(got["missing"], json::array({expert + ".weight_scale"}));
  EXPECT_EQ(got["misfits"].size(), 2U);
}

TEST_F(InspectTest, ShardsAndIndex) {
  json map = json::object();
  for (auto &[name, tensor] : tensors) {
    tensor.shard = name.find("layers.0") != name.npos
                       ? "model-00001-of-00002.safetensors"
                       : "model-00002-of-00002.safetensors";
    map[name] = tensor.shard;
  }
  auto index = [&](const json &weights) {
    folder.write("model.safetensors.index.json",
                 json{{"weight_map", weights}}.dump());
  };
  EXPECT_EQ(error(), "");
  index(json::object());
  EXPECT_EQ(error(), "");
  EXPECT_TRUE(says("2 shards"));
  index(map);
  EXPECT_EQ(error(), "");

  fs::path second = folder / "model-00002-of-00002.safetensors";
  uint64_t size = fs::file_size(second);
  fs::resize_file(second, size - 1);
  EXPECT_EQ(without(inspect().message(), folder.path.string()),
            "/model-00002-of-00002.safetensors: expected a file of " +
                std::to_string(size) + " bytes, as its header says, found " +
                std::to_string(size - 1) + " (cut off?)");
  fs::remove(second);
  EXPECT_EQ(without(inspect().message(), folder.path.string()),
            ": 1 shard is missing: model-00002-of-00002.safetensors");
  fs::remove(folder / "model.safetensors.index.json");
  EXPECT_EQ(without(inspect().message(), folder.path.string()),
            ": 1 shard is missing: model-00002-of-00002.safetensors");
  EXPECT_EQ(text, "");
}

TEST_F(InspectTest, FoldersOfOtherKinds) {
  EXPECT_EQ(error(), "");
  std::ostringstream out;
  EXPECT_EQ(without(cli::inspect({.folder = folder.path, .launches = true}, out)
                        .message(),
                    folder.path.string()),
            ": --launches is for a plan, found a model");
  fs::remove(folder / "config.json");
  EXPECT_EQ(without(inspect().message(), folder.path.string()),
            ": expected a folder with plan.json (a plan) or config.json (a "
            "model), found neither");
  folder.write("plan.json", "{}");
  EXPECT_EQ(without(inspect(true).message(), folder.path.string()),
            ": --json is for a model, found a plan");
  EXPECT_FALSE(inspect().ok());
  EXPECT_EQ(text, "");
}

//===----------------------------------------------------------------------===//
// A whole model
//===----------------------------------------------------------------------===//

/// Writes all of nvidia/Kimi-K2.6-NVFP4 but its numbers, in 119 shards of
/// holes.
void writeWholeModel(const TempFolder &folder, const ModelConfig &config) {
  TestTensors tensors = plainTensors(config), prefixed;
  for (const ModelWeight &weight : modelWeights(config))
    if (config.quantization.expectedFormat(weight.module, Format::BF16) ==
        Format::NVFP4)
      toNvfp4(tensors, weight.module);
  json map = json::object();
  size_t number = 0;
  for (const auto &[key, tensor] : tensors) {
    std::string digits = std::to_string(number++ * 119 / tensors.size() + 1);
    std::string shard = "model-" + std::string(5 - digits.size(), '0') +
                        digits + "-of-00119.safetensors";
    TestTensor &copy = prefixed["language_model." + key] = tensor;
    copy.shard = shard;
    map["language_model." + key] = shard;
  }
  writeTensors(folder, prefixed);
  folder.write("model.safetensors.index.json",
               json{{"weight_map", map}}.dump());
}

TEST(InspectLarge, WholeModelQuicklyAndInLittleMemory) {
  TempFolder folder;
  std::string name = "nvidia--Kimi-K2.6-NVFP4";
  folder.write("config.json",
               readBytes(publishedConfig(name + "_config.json")));
  folder.write("hf_quant_config.json",
               readBytes(publishedConfig(name + "_hf_quant_config.json")));
  Result<ModelConfig> config = ModelConfig::read(folder.path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  // In a child, since the peak memory of this process is handed on to what it
  // starts.
  pid_t writer = fork();
  ASSERT_GE(writer, 0);
  if (writer == 0) {
    writeWholeModel(folder, *config);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(writer, &status, 0), writer);
  ASSERT_EQ(status, 0);

  std::string output = (folder / "out.json").string();
  std::string path = folder.path.string();
  std::string program = MLA_RUN;
  char *argv[] = {program.data(), const_cast<char *>("inspect"), path.data(),
                  const_cast<char *>("--json"), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, output.c_str(),
                                   O_WRONLY | O_CREAT, 0600);
  pid_t child = 0;
  ASSERT_EQ(posix_spawn(&child, argv[0], &actions, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  struct rusage usage = {};
  ASSERT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  json got = json::parse(readBytes(output), nullptr, false);
  ASSERT_FALSE(got.is_discarded());
  EXPECT_EQ(got["checkpoint"]["shards"], 119);
  // 61 layers: 60 * 384 experts of 3 matrices in 4 tensors each, and 855 more.
  EXPECT_EQ(got["checkpoint"]["tensors"], 60 * 384 * 3 * 4 + 855);
  EXPECT_TRUE(got["notes"].empty()) << got["notes"];
  EXPECT_TRUE(got["warnings"].empty()) << got["warnings"];

  // Processor time, since other programs may keep this one waiting.
  auto seconds = [](const timeval &t) { return t.tv_sec + 1e-6 * t.tv_usec; };
  double time = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  RecordProperty("seconds", std::to_string(time));
  RecordProperty("kilobytes", std::to_string(usage.ru_maxrss));
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr double allowance = 5; // for the sanitizer's own work and memory
#else
  constexpr double allowance = 1;
#endif
  EXPECT_LT(time, 5 * allowance);
  EXPECT_LT(double(usage.ru_maxrss), 500e3 * allowance);
}

} // namespace
