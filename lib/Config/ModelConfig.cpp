//===- ModelConfig.cpp - from config.json to ModelConfig ------------------===//
//
// Part of mla. Reads the keys in the order in which the structure holds them.
// All mistakes of all files are collected; nothing is returned if there is one.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/ModelConfig.h"
#include "Reader.h"
#include <algorithm>
#include <cmath>
#include <cstdio>

namespace mla {
using namespace config;

double ConfigReader::number(const JsonValue &v, double low, double high,
                            double neutral) const {
  if (v.isNumber())
    if (double x = v.number(); x >= low && x <= high)
      return x;
  char expected[80];
  std::snprintf(expected, sizeof expected, "a number from %g to %g", low, high);
  v.fail(expected);
  return neutral;
}

double ModelConfig::softmaxScale() const {
  return rope.softmaxFactor() / std::sqrt(double(qkHeadDim()));
}

namespace {
constexpr uint64_t maxConfigBytes = uint64_t(64) << 20;
constexpr const char *sidecarName = "hf_quant_config.json";
constexpr const char *generationName = "generation_config.json";

//===----------------------------------------------------------------------===//
// Architecture
//===----------------------------------------------------------------------===//

/// The one name in "architectures", "" if the key is absent or null.
std::string readArchitectureName(const JsonValue &owner) {
  JsonValue list = owner["architectures"];
  if (!list.present())
    return "";
  if (!list.isArray() || list.size() != 1) {
    list.fail("a list of one architecture");
    return "";
  }
  return list.at(0).string();
}

/// Null if the architecture is none of ours; the error is recorded.
const ArchitectureInfo *readArchitecture(ConfigReader &reader,
                                         ModelConfig &config) {
  config.architectureName = readArchitectureName(reader.text);
  if (JsonValue type = reader["model_type"]; type.present())
    config.modelType = type.string();
  const ArchitectureInfo *byType = findModelType(config.modelType);
  if (config.architectureName.empty()) {
    // A nested text model may leave it to its type.
    if (byType)
      config.architectureName = byType->name;
    else if (reader["architectures"].present())
      reader["architectures"].fail("an architecture");
    else
      reader["architectures"].fail("one of " + supportedArchitectures());
    return byType;
  }
  const ArchitectureInfo *info = findArchitecture(config.architectureName);
  JsonValue name = reader["architectures"].at(0);
  if (!info)
    reader.refuse(name, "unsupported architecture (" + name.describe() +
                            ", supported: " + supportedArchitectures() + ")");
  else if (byType && byType != info)
    reader["model_type"].failWith(
        "contradicts architectures: " + reader["model_type"].describe() +
        " and " + name.describe());
  return info;
}

/// What differs in meaning from what this build computes must not be there.
void readFixedKeys(ConfigReader &reader) {
  if (JsonValue act = reader["hidden_act"];
      act.present() && act.string() != "silu")
    reader.refuse(act, "unsupported activation (" + act.describe() +
                           ", supported: silu)");
  for (std::string_view key : {"attention_bias", "mlp_bias"})
    if (JsonValue bias = reader[key]; bias.present() && bias.boolean())
      reader.refuse(bias, "unsupported " + std::string(key) +
                              " (true, supported: false)");
  if (JsonValue freq = reader["moe_layer_freq"];
      freq.present() && freq.integer(1, maxLayers) != 1)
    reader.refuse(freq, "unsupported moe_layer_freq (" + freq.describe() +
                            ", supported: 1)");
}

Format readDtype(ConfigReader &reader) {
  JsonValue v = reader.inherited("dtype");
  if (!v.present())
    v = reader.inherited("torch_dtype");
  if (!v.present())
    return Format::BF16;
  std::string name = v.string();
  if (name.rfind("torch.", 0) == 0)
    name.erase(0, 6);
  if (name == "bfloat16")
    return Format::BF16;
  if (name == "float16")
    return Format::F16;
  if (name == "float32")
    return Format::F32;
  if (v.isString())
    reader.refuse(v, "unsupported dtype (" + v.describe() +
                         ", supported: bfloat16, float16, float32)");
  return Format::BF16;
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

void readAttention(ConfigReader &reader, ModelConfig &config) {
  config.heads = reader.dim("num_attention_heads", 1 << 16);
  // Null means a plain q_proj; absent means that the file is incomplete.
  JsonValue qLora = reader["q_lora_rank"];
  if (qLora.absent())
    qLora.fail("an integer or null");
  else if (qLora.present())
    config.qLoraRank = qLora.integer(1, maxDim);
  config.kvLoraRank = reader.dim("kv_lora_rank", 1 << 20);
  config.qkNopeHeadDim = reader.dim("qk_nope_head_dim", 1 << 16);
  config.qkRopeHeadDim = reader.dim("qk_rope_head_dim", 1 << 16);
  config.vHeadDim = reader.dim("v_head_dim", 1 << 16);
}

//===----------------------------------------------------------------------===//
// Tokens
//===----------------------------------------------------------------------===//

/// Appends the ids of an eos_token_id (one, a list, or null) not yet in `out`.
void appendTokens(const JsonValue &v, std::vector<int64_t> &out) {
  auto append = [&](const JsonValue &id) {
    int64_t token = id.integer(0, maxDim);
    if (std::find(out.begin(), out.end(), token) == out.end())
      out.push_back(token);
  };
  if (!v.present())
    return;
  if (v.isArray()) {
    for (const JsonValue &id : v.elements())
      append(id);
  } else if (v.isInteger()) {
    append(v);
  } else {
    v.fail("a token id, a list of them or null");
  }
}

/// -1 is an old way to say none.
std::optional<int64_t> readToken(const JsonValue &v) {
  if (!v.present() || (v.isInteger() && v.integer(-1, maxDim) == -1))
    return std::nullopt;
  return v.integer(0, maxDim);
}

void readTokens(ConfigReader &reader, JsonDocument *generation,
                ModelConfig &config) {
  config.bosToken = readToken(reader.inherited("bos_token_id"));
  config.padToken = readToken(reader.inherited("pad_token_id"));
  JsonValue inner = reader.text["eos_token_id"];
  JsonValue outer = reader.outer["eos_token_id"];
  appendTokens(inner, config.eosTokens);
  if (reader.outer.pointer() != reader.text.pointer())
    appendTokens(outer, config.eosTokens);
  bool stated = !inner.absent() || !outer.absent();
  if (generation) {
    JsonValue more = generation->root()["eos_token_id"];
    appendTokens(more, config.eosTokens);
    stated |= !more.absent();
  }
  // A model that never stops is not what an incomplete file asks for.
  if (!stated)
    inner.fail("a token id, a list of them or null");
}

//===----------------------------------------------------------------------===//
// Quantization
//===----------------------------------------------------------------------===//

/// Two places that describe the quantization must agree.
QuantizationConfig merge(QuantizationConfig a, QuantizationConfig b,
                         const JsonValue &at) {
  if (a.source.empty())
    return b;
  if (b.source.empty())
    return a;
  std::string difference = quantizationDifference(a, b);
  if (!difference.empty())
    at.failWith("contradicts " + b.source + ": " + difference);
  a.source += " and " + b.source;
  return a;
}

QuantizationConfig readAllQuantization(ConfigReader &reader,
                                       JsonDocument *sidecar) {
  JsonValue inner = reader.text["quantization_config"];
  QuantizationConfig out = readQuantization(reader, inner);
  if (reader.outer.pointer() != reader.text.pointer()) {
    JsonValue outer = reader.outer["quantization_config"];
    out = merge(out, readQuantization(reader, outer), inner);
    if (!inner.present())
      inner = outer;
  }
  if (sidecar && !sidecar->failed())
    out = merge(out, readSidecar(reader, sidecar->root()), inner);
  return out;
}

/// Parses the file `name` beside config.json; null if there is none.
Result<std::unique_ptr<JsonDocument>>
parseBeside(std::optional<std::string_view> text,
            const std::filesystem::path &config, const char *name) {
  if (!text)
    return std::unique_ptr<JsonDocument>();
  MLA_ASSIGN_OR_RETURN(
      std::unique_ptr<JsonDocument> document,
      JsonDocument::parseText(*text, (config.parent_path() / name).string()));
  if (!document->root().isObject())
    document->root().fail("an object");
  return document;
}

/// The text of the file `name` beside config.json, or nothing.
Result<std::optional<std::string>>
readBeside(const std::filesystem::path &config, const char *name) {
  std::filesystem::path path = config.parent_path() / name;
  std::error_code ec;
  if (!std::filesystem::exists(path, ec))
    return std::optional<std::string>();
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(path, maxConfigBytes));
  return std::optional<std::string>(std::move(text));
}

//===----------------------------------------------------------------------===//
// The whole
//===----------------------------------------------------------------------===//

void readKeys(ConfigReader &reader, const ArchitectureInfo &info,
              ModelConfig &config) {
  config.architecture = info.architecture;
  readFixedKeys(reader);
  config.hiddenSize = reader.dim("hidden_size");
  config.layers = reader.dim("num_hidden_layers", maxLayers);
  config.vocabSize = reader.dim("vocab_size");
  config.maxPositions = reader.dim("max_position_embeddings", maxPositionCount);
  config.rmsNormEps = reader.number(reader["rms_norm_eps"], 1e-12, 0.1, 1e-6);
  if (JsonValue tie = reader.inherited("tie_word_embeddings"); tie.present())
    config.tieWordEmbeddings = tie.boolean();
  config.dtype = readDtype(reader);

  readAttention(reader, config);
  config.rope = readRope(reader, info);
  config.intermediateSize = reader.dim("intermediate_size");
  config.moe = readExperts(reader, info);
  // Without a number of layers, lists of one entry a layer tell nothing.
  if (reader["num_hidden_layers"].isInteger()) {
    config.moeLayer = readMoeLayers(reader, config.layers);
    config.indexer = readIndexer(reader, info, config.layers);
  }
  if (JsonValue nextn = reader["num_nextn_predict_layers"]; nextn.present())
    config.nextnLayers = nextn.integer(0, maxLayers);
}

/// The errors of all documents in one Status.
Status combine(const ConfigReader &reader,
               std::initializer_list<const JsonDocument *> documents) {
  std::string text;
  for (const JsonDocument *document : documents)
    if (document && document->failed())
      text += (text.empty() ? "" : "\n") + document->status().message();
  if (text.empty())
    return {};
  size_t errors =
      1 + static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  // Only if nothing else is wrong is the file right and this build at fault.
  return Status(reader.refusals >= errors ? StatusCode::Unsupported
                                          : StatusCode::Invalid,
                std::move(text));
}
} // namespace

Result<ModelConfig> ModelConfig::read(const std::filesystem::path &path) {
  std::error_code ec;
  std::filesystem::path file =
      std::filesystem::is_directory(path, ec) ? path / "config.json" : path;
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(file, maxConfigBytes));
  MLA_ASSIGN_OR_RETURN(std::optional<std::string> sidecar,
                       readBeside(file, sidecarName));
  MLA_ASSIGN_OR_RETURN(std::optional<std::string> generation,
                       readBeside(file, generationName));
  return parse(text, file, sidecar, generation);
}

Result<ModelConfig>
ModelConfig::parse(std::string_view text, const std::filesystem::path &file,
                   std::optional<std::string_view> sidecarText,
                   std::optional<std::string_view> generationText) {
  ModelConfig config;
  config.file = file;
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> main,
                       JsonDocument::parseText(text, file.string()));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> sidecar,
                       parseBeside(sidecarText, file, sidecarName));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> generation,
                       parseBeside(generationText, file, generationName));

  JsonValue outer = main->root();
  if (!outer.isObject())
    outer.fail("an object");
  JsonValue nested = outer["text_config"];
  if (nested.present() && !nested.isObject())
    nested.fail("an object");
  bool isNested = nested.isObject();
  ConfigReader reader(outer, isNested ? nested : outer);
  if (isNested)
    config.outerArchitecture = readArchitectureName(outer);

  const ArchitectureInfo *info = nullptr;
  if (outer.isObject())
    info = readArchitecture(reader, config);
  // The keys of another architecture mean nothing to us.
  if (info) {
    readKeys(reader, *info, config);
    readTokens(reader, generation.get(), config);
    config.quantization = readAllQuantization(reader, sidecar.get());
    // Values that were replaced by neutral ones would give false alarms.
    if (!main->failed())
      validate(reader, config);
  }
  MLA_RETURN_IF_ERROR(
      combine(reader, {main.get(), sidecar.get(), generation.get()}));
  return config;
}

} // namespace mla
