//===- Folders.h - model folders before and after ---------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_QUANTIZE_FOLDERS_H
#define MLA_UNITTESTS_QUANTIZE_FOLDERS_H

#include "mla/Config/StoredWeight.h"
#include "runtime/quantize/Quantize.h"
#include "unittests/Config/TestFiles.h"
#include <memory>

namespace mla::test {

/// A model folder that was read whole. Failures fail the test.
class ModelFolder {
public:
  explicit ModelFolder(const std::filesystem::path &folder);

  /// The bytes of a tensor, by its name without "language_model."; "" and a
  /// failure if there is none.
  std::string bytes(const std::string &name) const;
  bool holds(const std::string &name) const { return checkpoint->find(name); }
  /// The format and the f32 values of a weight.
  Format format(const std::string &module) const;
  std::vector<float> values(const std::string &module) const;
  std::vector<int64_t> shape(const std::string &module) const;
  /// Linear weights, in the order of the model.
  std::vector<ModelWeight> linear() const;
  /// Where config and tensors disagree: nowhere, in what we write.
  size_t contradictions() const;

  std::filesystem::path folder;
  std::unique_ptr<ModelConfig> config;
  std::unique_ptr<Checkpoint> checkpoint;

private:
  StoredWeight find(const std::string &module) const;
};

/// Random weights of that size, in bf16.
std::string randomBF16(int64_t elements, uint32_t seed);

/// All weights of `config`, random, under `prefix`.
TestTensors randomTensors(const nlohmann::json &config,
                          const std::string &prefix = "");

/// Writes config.json and tensors.
void writeModel(const TempFolder &folder, const nlohmann::json &config,
                const TestTensors &tensors);

/// mla-quantize with --weights and rules "GLOB=FORMAT"; the error or "".
std::string quantizeTo(const std::filesystem::path &input,
                       const std::filesystem::path &output,
                       const std::string &weights,
                       const std::vector<std::string> &rules = {},
                       quantize::Options options = {},
                       std::string *summary = nullptr);

/// What `matrix` becomes in `format`: the bytes of each part.
std::vector<std::string> quantized(const std::vector<float> &matrix,
                                   const std::vector<int64_t> &shape,
                                   Format format, float amax);

/// Names of everything in the folder, hidden files too.
std::vector<std::string> entries(const std::filesystem::path &folder);

} // namespace mla::test

#endif // MLA_UNITTESTS_QUANTIZE_FOLDERS_H
