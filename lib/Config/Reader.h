//===- Reader.h - what the readers of config.json share ---------*- C++ -*-===//
//
// Part of mla. Private to lib/Config. ConfigReader walks one config.json: it
// knows the object of the text model and the object around it, and tells what
// is wrong with a file from what this build cannot do.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CONFIG_READER_H
#define MLA_LIB_CONFIG_READER_H

#include "mla/Config/ModelConfig.h"
#include "mla/Support/Json.h"
#include <array>
#include <string>
#include <string_view>

namespace mla::config {

// Bounds that keep every product of a compiler pass within 64 bits. Published
// models are at least a hundred times below each of them.
constexpr int64_t maxDim = int64_t(1) << 24;
constexpr int64_t maxLayers = 4096;
constexpr int64_t maxExperts = int64_t(1) << 16;
constexpr int64_t maxPositionCount = int64_t(1) << 30;

/// One row of the table of architectures in Defaults.cpp.
struct ArchitectureInfo {
  Architecture architecture;
  std::string_view name;
  std::array<std::string_view, 2> modelTypes; ///< "" where there is no second
  bool sparse;                                ///< has the indexer
  Scoring scoring;                            ///< of the router, fixed
  TopkMethod method;                          ///< if topk_method is absent
  bool indexerInterleaved; ///< if indexer_rope_interleave is absent
};

const ArchitectureInfo *findArchitecture(std::string_view name);
const ArchitectureInfo *findModelType(std::string_view modelType);
const ArchitectureInfo &architectureInfo(Architecture architecture);
/// "A, B, C" for messages.
std::string supportedArchitectures();

std::string_view scoringName(Scoring scoring);
std::string_view topkMethodName(TopkMethod method);
std::string_view methodName(QuantizationConfig::Method method);

class ConfigReader {
public:
  /// `text` is `outer` itself unless the text model is nested in text_config.
  ConfigReader(JsonValue outer, JsonValue text)
      : outer(std::move(outer)), text(std::move(text)) {}

  JsonValue outer;
  JsonValue text;

  JsonValue operator[](std::string_view key) const { return text[key]; }
  /// The key of the text model or, failing that, of the object around it.
  JsonValue inherited(std::string_view key) const {
    JsonValue inner = text[key];
    if (!inner.absent() || outer[key].absent())
      return inner;
    return outer[key];
  }

  /// Records a fault that is no mistake of the file: this build cannot do it.
  void refuse(const JsonValue &at, std::string_view message) {
    at.failWith(message);
    ++refusals;
  }
  size_t refusals = 0;

  /// A dimension: an integer from 1 to `high`, required.
  int64_t dim(std::string_view key, int64_t high = maxDim) const {
    return text[key].integer(1, high);
  }
  /// A number from `low` to `high`, required; `neutral` if there is none.
  double number(const JsonValue &v, double low, double high,
                double neutral) const;
};

/// rope_scaling, rope_theta and rope_parameters in all their spellings.
RopeConfig readRope(ConfigReader &reader, const ArchitectureInfo &info);

/// The experts and their router.
MoeConfig readExperts(ConfigReader &reader, const ArchitectureInfo &info);

/// mlp_layer_types or first_k_dense_replace.
std::vector<bool> readMoeLayers(ConfigReader &reader, int64_t layers);
/// The index_* keys; an error if they are present without an indexer.
std::optional<IndexerConfig>
readIndexer(ConfigReader &reader, const ArchitectureInfo &info, int64_t layers);

/// One quantization_config object (of config.json or of the sidecar).
QuantizationConfig readQuantization(ConfigReader &reader, const JsonValue &v);
/// The "quantization" object of a hf_quant_config.json.
QuantizationConfig readSidecar(ConfigReader &reader, const JsonValue &root);
/// What two sources say differently, "" if they agree.
std::string quantizationDifference(const QuantizationConfig &a,
                                   const QuantizationConfig &b);

/// Appends the globs that one entry of an exclude list stands for. False if the
/// entry is a regular expression that has no such globs.
bool appendExclude(const std::string &entry, std::vector<std::string> &out);
/// fnmatch without its flags: *, ?, [abc], [a-c], [!a].
bool globMatch(std::string_view pattern, std::string_view text);

/// Checks what only several keys together can get wrong.
void validate(ConfigReader &reader, const ModelConfig &config);

} // namespace mla::config

#endif // MLA_LIB_CONFIG_READER_H
