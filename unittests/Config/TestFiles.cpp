//===- TestFiles.cpp - files that the tests of lib/Config write -----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include "mla/Config/StoredWeight.h"
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace mla::test {
namespace fs = std::filesystem;
using nlohmann::json;

std::string readBytes(const fs::path &path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

fs::path dataFile(const std::string &name) {
  return fs::path(MLA_TEST_DATA) / name;
}

fs::path publishedConfig(const std::string &name) {
  return dataFile("configs") / name;
}

json smallConfig() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "hidden_act": "silu",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 256,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 16,
    "rope_theta": 10000,
    "rope_scaling": null,
    "intermediate_size": 96,
    "first_k_dense_replace": 1,
    "n_routed_experts": 8,
    "num_experts_per_tok": 3,
    "n_shared_experts": 1,
    "moe_intermediate_size": 32,
    "n_group": 4,
    "topk_group": 2,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "norm_topk_prob": true,
    "routed_scaling_factor": 2.5,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "torch_dtype": "bfloat16"
  })");
}

json smallSparseConfig() {
  json config = smallConfig();
  config["architectures"] = {"GlmMoeDsaForCausalLM"};
  config["model_type"] = "glm_moe_dsa";
  config["index_n_heads"] = 16;
  config["index_head_dim"] = 32;
  config["index_topk"] = 24;
  return config;
}

Result<ModelConfig>
readConfig(const json &config,
           const std::vector<std::pair<std::string, json>> &more) {
  std::optional<std::string> sidecar, generation;
  for (const auto &[name, content] : more)
    (name == "hf_quant_config.json" ? sidecar : generation) = content.dump();
  return ModelConfig::parse(config.dump(), "config.json", sidecar, generation);
}

std::string configError(const json &config,
                        const std::vector<std::pair<std::string, json>> &more,
                        StatusCode *code) {
  Result<ModelConfig> result = readConfig(config, more);
  if (code)
    *code = result.status().code();
  return result.status().message();
}

std::string safetensors(const std::string &header, size_t dataBytes) {
  std::string out;
  for (int i = 0; i < 8; ++i)
    out += static_cast<char>(header.size() >> (8 * i));
  return out + header + std::string(dataBytes, '\0');
}

TestTensors plainTensors(const ModelConfig &config) {
  TestTensors out;
  for (const ModelWeight &weight : modelWeights(config))
    out[weight.name()] = {weight.suffix == ".e_score_correction_bias" ? "F32"
                                                                      : "BF16",
                          weight.shape};
  return out;
}

void replaceWeight(TestTensors &tensors, const std::string &module,
                   const TestTensors &parts) {
  tensors.erase(module + ".weight");
  for (const auto &[suffix, tensor] : parts)
    tensors[module + suffix] = tensor;
}

void writeTensors(const TempFolder &folder, const TestTensors &tensors) {
  struct Shard {
    json header = json::object();
    uint64_t end = 0;
    std::vector<std::pair<uint64_t, std::string_view>> content;
  };
  std::map<std::string, Shard> shards;
  for (const auto &[name, tensor] : tensors) {
    Shard &shard = shards[tensor.shard];
    uint64_t bytes = safetensorsElementBytes(tensor.dtype);
    for (int64_t dim : tensor.shape)
      bytes *= static_cast<uint64_t>(dim);
    shard.header[name] = {{"dtype", tensor.dtype},
                          {"shape", tensor.shape},
                          {"data_offsets", {shard.end, shard.end + bytes}}};
    if (!tensor.bytes.empty())
      shard.content.emplace_back(shard.end, tensor.bytes);
    shard.end += bytes;
  }
  for (const auto &[name, shard] : shards) {
    std::string head = safetensors(shard.header.dump(), 0);
    folder.write(name, head);
    fs::resize_file(folder / name, head.size() + shard.end);
    std::fstream file(folder / name,
                      std::ios::binary | std::ios::in | std::ios::out);
    for (const auto &[at, bytes] : shard.content) {
      file.seekp(static_cast<std::streamoff>(head.size() + at));
      file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    }
  }
}

std::string without(std::string text, const std::string &part) {
  for (size_t at; (at = text.find(part)) != std::string::npos;)
    text.erase(at, part.size());
  return text;
}

} // namespace mla::test
