//===- KvScales.cpp - scales of an FP8 latent cache -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/KvScales.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

namespace mla {
namespace {

/// The shortest text that reads back as `value`.
std::string numberText(float value) {
  std::array<char, 32> text{};
  return {text.data(),
          std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

bool isScale(float value) { return std::isfinite(value) && value > 0; }

std::string moduleOf(size_t layer) {
  return "model.layers." + std::to_string(layer) + ".self_attn";
}

/// Reads the scales of one checkpoint and lists what is wrong with them.
class ScaleReader {
public:
  explicit ScaleReader(const Checkpoint &checkpoint) : checkpoint(checkpoint) {}

  /// The first of `leaves` below `module` that the checkpoint has.
  std::optional<float> read(const std::string &module,
                            std::initializer_list<const char *> leaves) {
    for (const char *leaf : leaves)
      if (const TensorInfo *tensor = checkpoint.find(module + leaf)) {
        names.push_back(tensor->name);
        return value(*tensor);
      }
    return std::nullopt;
  }

  std::vector<std::string> names;
  std::string faults;

private:
  std::optional<float> value(const TensorInfo &tensor) {
    auto fail = [&](const std::string &message) -> std::optional<float> {
      faults += (faults.empty() ? "" : "\n") + tensor.name + ": " + message;
      return std::nullopt;
    };
    if (tensor.dtype != "F32" && tensor.dtype != "BF16")
      return fail("expected F32 or BF16, found " + tensor.dtype);
    if (tensor.shape.size() > 1 ||
        (tensor.shape.size() == 1 && tensor.shape[0] != 1))
      return fail("expected one value, found " +
                  std::to_string(tensor.shape.size()) + " dimensions of " +
                  std::to_string(tensor.bytes) + " bytes");
    Result<std::string> bytes = checkpoint.read(tensor);
    if (!bytes.ok())
      return fail(bytes.status().message());
    // Little-endian; bf16 is the upper half of an f32.
    uint32_t bits = 0;
    for (size_t i = bytes->size(); i-- > 0;)
      bits = bits << 8 | static_cast<unsigned char>((*bytes)[i]);
    if (tensor.dtype == "BF16")
      bits <<= 16;
    float number = 0;
    std::memcpy(&number, &bits, sizeof number);
    if (!isScale(number))
      return fail("expected a positive finite scale, found " +
                  numberText(number));
    return number;
  }

  const Checkpoint &checkpoint;
};

/// Counts layers for a warning and remembers the first.
struct LayerCount {
  size_t layers = 0;
  std::string first;
  void add(size_t layer, const std::string &detail = "") {
    if (layers++ == 0)
      first = "first layer " + std::to_string(layer) + detail;
  }
};
} // namespace

bool KvScales::all() const {
  return std::find(known.begin(), known.end(), false) == known.end();
}

bool KvScales::none() const {
  return std::find(known.begin(), known.end(), true) == known.end();
}

Result<KvScales> checkpointKvScales(const ModelConfig &config,
                                    const Checkpoint &checkpoint) {
  KvScales out;
  out.source = "the checkpoint in " + checkpoint.folder().string();
  ScaleReader reader(checkpoint);
  LayerCount differ, absent, onlyV;
  for (size_t layer = 0; layer < static_cast<size_t>(config.layers); ++layer) {
    std::string module = moduleOf(layer);
    std::optional<float> k =
        reader.read(module, {".k_proj.k_scale", ".k_scale", ".attn.k_scale"});
    std::optional<float> v =
        reader.read(module, {".v_proj.v_scale", ".v_scale", ".attn.v_scale"});
    if (k && v && *k != *v)
      differ.add(layer, ": " + numberText(*k) + " and " + numberText(*v));
    if (v && !k)
      onlyV.add(layer);
    if (!k)
      absent.add(layer);
    out.scales.push_back(k.value_or(1.0F));
    out.known.push_back(k.has_value());
  }
  if (!reader.faults.empty())
    return invalid(reader.faults);

  auto warn = [&](const LayerCount &count, const std::string &what,
                  const std::string &consequence) {
    if (count.layers)
      out.warnings.push_back(what + " in " + std::to_string(count.layers) +
                             " of " + std::to_string(config.layers) +
                             " layers (" + count.first + "); " + consequence);
  };
  warn(differ, "k_scale and v_scale differ",
       "the latent cache has one scale for both and uses k_scale");
  warn(onlyV, "v_scale without k_scale", "it is not used");
  if (!out.none())
    warn(absent, "no k_scale", "1 is used");
  out.tensors = std::move(reader.names);
  return out;
}

Result<KvScales> readKvScales(const std::filesystem::path &file,
                              int64_t layers) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseFile(file));
  KvScales out;
  out.source = file.string();
  JsonValue scales = document->root()["kv_scales"];
  size_t count = static_cast<size_t>(layers);
  for (size_t layer = 0; layer < count; ++layer) {
    JsonValue v = scales[moduleOf(layer)]["k_scale"];
    double number = v.isNumber() ? v.number() : 0.0;
    if (number > std::numeric_limits<float>::max())
      number = 0.0;
    float scale = static_cast<float>(number);
    if (!isScale(scale))
      v.fail("a positive number of f32");
    out.scales.push_back(scale);
    out.known.push_back(true);
  }
  // More members than layers: name those that are no layer's.
  if (scales.isObject() && scales.size() > count) {
    std::vector<std::string> modules;
    for (size_t layer = 0; layer < count; ++layer)
      modules.push_back(moduleOf(layer));
    std::sort(modules.begin(), modules.end());
    for (const auto &[name, value] : scales.members())
      if (!std::binary_search(modules.begin(), modules.end(), name))
        value.failWith("expected only attention modules of the model's " +
                       std::to_string(layers) + " layers");
  }
  MLA_RETURN_IF_ERROR(document->status());
  return out;
}

/// The smallest scale under which `amax` is stored without being cut off: the
/// quotient rounds, so amax / 448 itself may be just too small.
static float scaleFor(float amax) {
  constexpr float largestE4M3 = 448.0F;
  float scale = amax / largestE4M3;
  // Zero, or so little that the quotient is.
  if (scale == 0)
    return 1.0F;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  while (amax / scale > largestE4M3)
    scale = std::nextafter(scale, infinity);
  for (float less = std::nextafter(scale, 0.0F);
       less > 0 && amax / less <= largestE4M3;
       less = std::nextafter(scale, 0.0F))
    scale = less;
  return scale;
}

std::string printKvScales(const std::vector<float> &amax) {
  std::string text = "{\n  \"kv_scales\": {";
  for (size_t layer = 0; layer < amax.size(); ++layer)
    text += (layer ? ",\n    \"" : "\n    \"") + moduleOf(layer) +
            "\": {\"k_scale\": " + numberText(scaleFor(amax[layer])) +
            ", \"amax\": " + numberText(amax[layer]) + "}";
  return text + "\n  }\n}\n";
}

} // namespace mla
