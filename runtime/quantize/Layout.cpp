//===- Layout.cpp - where each tensor of the output comes from ------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/Layout.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>

namespace mla::quantize {
namespace {

/// What may stand beside a weight in any format; goes when the format changes.
constexpr std::array companions = {
    "weight",         "weight_scale",       "weight_scale_inv",
    "weight_scale_2", "weight_packed",      "weight_global_scale",
    "weight_shape",   "weight_zero_point",  "weight_g_idx",
    "input_scale",    "input_global_scale", "pre_quant_scale"};

/// "a.b.weight" as "a.b" and "weight".
std::pair<std::string_view, std::string_view> split(std::string_view name) {
  size_t dot = name.rfind('.');
  if (dot == std::string_view::npos)
    return {name, {}};
  return {name.substr(0, dot), name.substr(dot + 1)};
}

bool isCacheScale(std::string_view name) {
  std::string_view leaf = split(name).second;
  return leaf == "k_scale" || leaf == "v_scale";
}

template <typename T> std::vector<std::byte> bytesOf(const T &value) {
  std::vector<std::byte> out(sizeof(value));
  std::memcpy(out.data(), &value, sizeof(value));
  return out;
}

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The tensors of a matrix in `format`, by the names of its usual producer:
/// DeepSeek's for fp8_block, ModelOpt's for nvfp4, compressed-tensors' for
/// int4_g32.
std::vector<TensorSpec> tensorsOf(const std::string &module, Format format,
                                  int64_t rows, int64_t columns) {
  switch (format) {
  case Format::FP8Block:
    return {{module + ".weight", "F8_E4M3", {rows, columns}},
            {module + ".weight_scale_inv",
             "F32",
             {ceilDiv(rows, 128), ceilDiv(columns, 128)}}};
  case Format::NVFP4:
    return {{module + ".weight", "U8", {rows, columns / 2}},
            {module + ".weight_scale", "F8_E4M3", {rows, columns / 16}},
            {module + ".weight_scale_2", "F32", {}}};
  case Format::Int4G32:
    return {{module + ".weight_packed", "I32", {rows, columns / 8}},
            {module + ".weight_scale", "BF16", {rows, columns / 32}},
            {module + ".weight_shape", "I32", {2}}};
  default:
    return {{module + ".weight", "BF16", {rows, columns}}};
  }
}

class LayoutBuilder {
public:
  LayoutBuilder(const ModelConfig &config, const Checkpoint &checkpoint,
                const Recipe &recipe, const std::vector<float> &cacheScales)
      : config(config), checkpoint(checkpoint), recipe(recipe),
        cacheScales(cacheScales) {}

  Result<Layout> build() {
    std::vector<ModelWeight> weights = modelWeights(config);
    MLA_RETURN_IF_ERROR(recipe.check(weights));
    WeightFinder finder(config, checkpoint);
    for (const ModelWeight &weight : weights)
      add(weight, finder.find(weight));
    MLA_RETURN_IF_ERROR(finder.status());
    for (const TensorInfo &tensor : checkpoint.tensors())
      place(tensor);
    addCacheScales();
    for (const TensorSpec &output : out.outputs) {
      out.hasCacheScales |= isCacheScale(output.name);
      out.hasInputScales |= output.name.ends_with(".input_scale");
    }
    group();
    return std::move(out);
  }

private:
  /// Decides about a weight of the text model.
  void add(const ModelWeight &weight, const StoredWeight &stored) {
    if (weight.role == WeightRole::Plain || stored.parts.empty())
      return;
    const TensorInfo &main = *stored.parts.front().tensor;
    Module module;
    module.name = split(main.name).first;
    module.text = true;
    module.format = stored.format;
    int64_t rows = weight.shape[0], columns = weight.shape[1];
    module.elements = static_cast<uint64_t>(rows * columns);
    for (const StoredPart &part : stored.parts)
      module.bytesBefore += part.tensor->bytes;
    module.bytesAfter = module.bytesBefore;

    auto [choice, whyKept] = recipe.decide(weight);
    module.whyKept = std::move(whyKept);
    if (choice && !quant::fits(*choice, rows, columns)) {
      module.whyKept = std::to_string(columns) +
                       " columns, which are no multiple of " +
                       std::to_string(scaleGroup(*choice));
    } else if (choice && *choice == stored.format) {
      module.whyKept = "is in this format already";
    } else if (choice) {
      module.changed = true;
      module.format = *choice;
      module.bytesAfter = 0;
      for (const StoragePart &part : storageParts(*choice, rows, columns))
        module.bytesAfter += part.bytes();
      changed.emplace(Checkpoint::textName(module.name),
                      out.conversions.size());
      out.conversions.push_back({main.name, stored, *choice, rows, columns, 0});
    }
    module.quantized = isQuantized(module.format);
    if (!module.changed && stored.format == Format::NVFP4)
      out.packedNvfp4 |= main.name.ends_with(".weight_packed");
    known.emplace(Checkpoint::textName(module.name));
    out.modules.push_back(std::move(module));
  }

  /// Puts what becomes of one tensor of the input into the output, so that
  /// tensors keep their order.
  void place(const TensorInfo &tensor) {
    std::string_view name = Checkpoint::textName(tensor.name);
    auto [module, leaf] = split(name);
    auto conversion = changed.find(std::string(module));
    if (conversion != changed.end() &&
        std::find(companions.begin(), companions.end(), leaf) !=
            companions.end()) {
      Conversion &c = out.conversions[conversion->second];
      if (c.from.parts.front().tensor == &tensor)
        placeConversion(c);
      return;
    }
    int64_t layer = Checkpoint::layerOf(name);
    if (!cacheScales.empty() && isCacheScale(name) && layer >= 0 &&
        layer < config.layers)
      return;
    out.copies.push_back({&tensor, out.outputs.size()});
    out.outputs.push_back({tensor.name, tensor.dtype, tensor.shape});
    addOther(tensor, std::string(module), leaf);
  }

  void placeConversion(Conversion &c) {
    c.firstOutput = out.outputs.size();
    std::string module(split(c.tensor).first);
    for (TensorSpec &spec : tensorsOf(module, c.to, c.rows, c.columns))
      out.outputs.push_back(std::move(spec));
    if (c.to == Format::Int4G32)
      out.literals.push_back(
          {out.outputs.size() - 1,
           bytesOf(std::array{static_cast<int32_t>(c.rows),
                              static_cast<int32_t>(c.columns)})});
  }

  /// Notes the linear modules that are no part of the text model.
  void addOther(const TensorInfo &tensor, const std::string &module,
                std::string_view leaf) {
    if (tensor.shape.size() != 2 || known.count(module) ||
        (leaf != "weight" && leaf != "weight_packed") ||
        module.ends_with("norm") || module.ends_with("embed_tokens"))
      return;
    Module other;
    other.name = split(tensor.name).first;
    other.quantized = true;
    if (tensor.dtype == "U8")
      other.format = Format::NVFP4;
    else if (tensor.dtype == "F8_E4M3")
      other.format = Format::FP8Block;
    else if (leaf == "weight_packed")
      other.format = Format::Int4G32;
    else
      other.quantized = false;
    out.modules.push_back(std::move(other));
  }

  void addCacheScales() {
    const TensorInfo *embedding = checkpoint.find("model.embed_tokens.weight");
    std::string prefix =
        embedding && embedding->name != Checkpoint::textName(embedding->name)
            ? "language_model."
            : "";
    for (size_t layer = 0; layer < cacheScales.size(); ++layer)
      for (const char *leaf : {"k_proj.k_scale", "v_proj.v_scale"}) {
        out.literals.push_back(
            {out.outputs.size(), bytesOf(cacheScales[layer])});
        out.outputs.push_back({prefix + "model.layers." +
                                   std::to_string(layer) + ".self_attn." + leaf,
                               "F32",
                               {}});
      }
  }

  void group() {
    std::unordered_map<std::string, size_t> groupOfMlp;
    for (size_t i = 0; i < out.conversions.size(); ++i) {
      const Conversion &c = out.conversions[i];
      auto [mlp, leaf] = split(split(c.tensor).first);
      size_t at = out.groups.size();
      if (c.to == Format::NVFP4 && (leaf == "gate_proj" || leaf == "up_proj"))
        at = groupOfMlp.emplace(mlp, at).first->second;
      if (at == out.groups.size())
        out.groups.emplace_back();
      out.groups[at].push_back(i);
    }
  }

  const ModelConfig &config;
  const Checkpoint &checkpoint;
  const Recipe &recipe;
  const std::vector<float> &cacheScales;
  Layout out;
  /// By names without "language_model.": conversions, modules of the model.
  std::unordered_map<std::string, size_t> changed;
  std::unordered_set<std::string> known;
};
} // namespace

uint64_t Conversion::bytesBefore() const {
  uint64_t sum = 0;
  for (const StoredPart &part : from.parts)
    sum += part.tensor->bytes;
  return sum;
}

Result<Layout> makeLayout(const ModelConfig &config,
                          const Checkpoint &checkpoint, const Recipe &recipe,
                          const std::vector<float> &cacheScales) {
  return LayoutBuilder(config, checkpoint, recipe, cacheScales).build();
}

} // namespace mla::quantize
