//===- Folders.cpp - model folders before and after -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Folders.h"
#include "mla/Quant/Codec.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <cstring>
#include <fstream>
#include <gtest/gtest.h>
#include <random>
#include <sstream>

namespace mla::test {
namespace fs = std::filesystem;

ModelFolder::ModelFolder(const fs::path &folder) : folder(folder) {
  auto readConfig = ModelConfig::read(folder);
  EXPECT_TRUE(readConfig.ok()) << readConfig.status().message();
  auto opened = Checkpoint::open(folder);
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  if (!readConfig.ok() || !opened.ok())
    std::abort(); // Nothing of the test makes sense then.
  config = std::make_unique<ModelConfig>(*std::move(readConfig));
  checkpoint = std::make_unique<Checkpoint>(*std::move(opened));
}

std::string ModelFolder::bytes(const std::string &name) const {
  const TensorInfo *tensor = checkpoint->find(name);
  EXPECT_TRUE(tensor) << name;
  if (!tensor)
    return "";
  std::ifstream file(folder / checkpoint->files()[tensor->file].name,
                     std::ios::binary);
  file.seekg(static_cast<std::streamoff>(tensor->offset));
  std::string out(tensor->bytes, '\0');
  file.read(out.data(), static_cast<std::streamsize>(out.size()));
  return out;
}

std::vector<ModelWeight> ModelFolder::linear() const {
  std::vector<ModelWeight> out;
  for (ModelWeight &weight : modelWeights(*config))
    if (weight.role == WeightRole::Linear)
      out.push_back(std::move(weight));
  return out;
}

StoredWeight ModelFolder::find(const std::string &module) const {
  WeightFinder finder(*config, *checkpoint);
  for (const ModelWeight &weight : modelWeights(*config))
    if (weight.name() == module + ".weight") {
      StoredWeight out = finder.find(weight);
      EXPECT_TRUE(finder.status().ok()) << finder.status().message();
      return out;
    }
  ADD_FAILURE() << "no module " << module;
  return {};
}

std::vector<int64_t> ModelFolder::shape(const std::string &module) const {
  for (const ModelWeight &weight : modelWeights(*config))
    if (weight.module == module && weight.suffix == ".weight")
      return weight.shape;
  return {};
}

Format ModelFolder::format(const std::string &module) const {
  return find(module).format;
}

std::vector<float> ModelFolder::values(const std::string &module) const {
  StoredWeight stored = find(module);
  std::vector<std::string> parts;
  for (const StoredPart &part : stored.parts) {
    parts.push_back(
        bytes(std::string(Checkpoint::textName(part.tensor->name))));
    if (part.reciprocal) {
      float value = 0;
      std::memcpy(&value, parts.back().data(), 4);
      value = 1 / value;
      std::memcpy(parts.back().data(), &value, 4);
    }
  }
  parts.resize(3);
  auto view = [&](size_t i) {
    return std::as_bytes(std::span<const char>(parts[i]));
  };
  std::vector<int64_t> dims = shape(module);
  std::vector<float> out(static_cast<size_t>(dims[0] * dims[1]));
  quant::dequantizeRows(
      {stored.format, dims[0], dims[1], view(0), view(1), view(2)}, 0, out);
  return out;
}

size_t ModelFolder::contradictions() const {
  WeightFinder finder(*config, *checkpoint);
  for (const ModelWeight &weight : modelWeights(*config))
    finder.find(weight);
  EXPECT_TRUE(finder.status().ok()) << finder.status().message();
  EXPECT_TRUE(finder.unused(config->tieWordEmbeddings).unknown.empty());
  return finder.contradictions().size();
}

std::string randomBF16(int64_t elements, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, .02F);
  std::string out(static_cast<size_t>(elements) * 2, '\0');
  for (size_t i = 0; i < out.size(); i += 2) {
    uint16_t code = quant::encodeBF16(normal(random));
    std::memcpy(&out[i], &code, 2);
  }
  return out;
}

TestTensors randomTensors(const nlohmann::json &config,
                          const std::string &prefix) {
  auto parsed = readConfig(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  TestTensors out;
  uint32_t seed = 1;
  for (auto &[name, tensor] : plainTensors(*parsed)) {
    int64_t elements = 1;
    for (int64_t dim : tensor.shape)
      elements *= dim;
    if (tensor.dtype == "BF16")
      tensor.bytes = randomBF16(elements, seed++);
    out[prefix + name] = tensor;
  }
  return out;
}

void writeModel(const TempFolder &folder, const nlohmann::json &config,
                const TestTensors &tensors) {
  folder.write("config.json", config.dump(2));
  writeTensors(folder, tensors);
}

std::string quantizeTo(const fs::path &input, const fs::path &output,
                       const std::string &weights,
                       const std::vector<std::string> &rules,
                       quantize::Options options, std::string *summary) {
  options.input = input;
  options.output = output;
  options.recipe.weights = *quantize::parseChoice(weights);
  for (const std::string &rule : rules)
    options.recipe.rules.push_back(*quantize::parseRule(rule));
  options.progress = false;
  std::ostringstream out;
  Status status = quantize::quantize(options, out);
  if (summary)
    *summary = out.str();
  return status.message();
}

std::vector<std::string> quantized(const std::vector<float> &matrix,
                                   const std::vector<int64_t> &shape,
                                   Format format, float amax) {
  std::vector<std::string> parts;
  for (const StoragePart &part : storageParts(format, shape[0], shape[1]))
    parts.emplace_back(part.bytes(), '\0');
  size_t count = parts.size();
  parts.resize(3);
  if (format == Format::NVFP4) {
    float global = quant::nvfp4GlobalScale(amax);
    std::memcpy(parts[2].data(), &global, 4);
  }
  auto view = [&](size_t i) {
    return std::as_writable_bytes(std::span<char>(parts[i]));
  };
  quant::quantizeRows(matrix, 0,
                      {format, shape[0], shape[1], view(0), view(1), view(2)});
  parts.resize(count);
  return parts;
}

std::vector<std::string> entries(const fs::path &folder) {
  std::vector<std::string> out;
  for (const auto &entry : fs::recursive_directory_iterator(folder))
    out.push_back(entry.path().lexically_relative(folder).string());
  std::sort(out.begin(), out.end());
  return out;
}

} // namespace mla::test
