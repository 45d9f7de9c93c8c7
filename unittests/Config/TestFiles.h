//===- TestFiles.h - files that the tests of lib/Config write ---*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_CONFIG_TESTFILES_H
#define MLA_UNITTESTS_CONFIG_TESTFILES_H

#include "mla/Config/ModelConfig.h"
#include "unittests/TempFolder.h"
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace mla::test {

std::string readBytes(const std::filesystem::path &path);

/// A file of test/data.
std::filesystem::path dataFile(const std::string &name);
std::filesystem::path publishedConfig(const std::string &name);

/// A small, right DeepSeek-V3 configuration to spoil.
nlohmann::json smallConfig();
/// The same for GLM-5 (with an indexer).
nlohmann::json smallSparseConfig();

/// Parses `config` as a config.json. `more` may hold what stands beside it:
/// hf_quant_config.json and generation_config.json.
Result<ModelConfig> readConfig(
    const nlohmann::json &config,
    const std::vector<std::pair<std::string, nlohmann::json>> &more = {});

/// The error of parsing `config`; "" if there is none.
std::string configError(
    const nlohmann::json &config,
    const std::vector<std::pair<std::string, nlohmann::json>> &more = {},
    StatusCode *code = nullptr);

/// A safetensors file: length, header, `dataBytes` zeros.
std::string safetensors(const std::string &header, size_t dataBytes);

/// The tensors of a checkpoint to spoil, by name; zeros unless `bytes` is
/// given.
struct TestTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes = {};
  std::string shard = "model.safetensors";
};
using TestTensors = std::map<std::string, TestTensor>;

/// Every weight of `config`, unquantized, in BF16; correction biases in F32.
TestTensors plainTensors(const ModelConfig &config);
/// Replaces `module`.weight by the tensors that it has in another format.
/// `parts` are suffixes with their tensors.
void replaceWeight(TestTensors &tensors, const std::string &module,
                   const TestTensors &parts);
/// Writes the shards that the tensors name. Zeros become holes.
void writeTensors(const TempFolder &folder, const TestTensors &tensors);

/// `text` without any occurrence of `part`.
std::string without(std::string text, const std::string &part);

} // namespace mla::test

#endif // MLA_UNITTESTS_CONFIG_TESTFILES_H
