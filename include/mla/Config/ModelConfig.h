//===- ModelConfig.h - one description of every model -----------*- C++ -*-===//
//
// Part of mla. What config.json and its sidecars say about a model of the
// DeepSeek-V3 family, in one structure. Nothing is inferred from the model's
// name: a key that is absent takes its architecture's published default (the
// table in Defaults.cpp), and a key that has none is an error.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CONFIG_MODELCONFIG_H
#define MLA_CONFIG_MODELCONFIG_H

#include "mla/Support/Format.h"
#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace mla {

enum class Architecture {
  DeepseekV2,  ///< DeepseekV2ForCausalLM
  DeepseekV3,  ///< DeepseekV3ForCausalLM; also Kimi-K2 and the text of K2.5
  DeepseekV32, ///< DeepseekV32ForCausalLM: V3 with the sparse indexer
  Glm4MoeLite, ///< Glm4MoeLiteForCausalLM
  GlmMoeDsa    ///< GlmMoeDsaForCausalLM: GLM-5, sparse indexer
};

/// Rotary position embedding. `yarn` is set only if the config asks for a
/// scaling other than "default" or "none".
struct RopeConfig {
  double theta = 10000.0;
  struct Yarn {
    double factor = 1.0;
    int64_t originalMaxPositions = 4096;
    double betaFast = 32.0;
    double betaSlow = 1.0;
    double mscale = 1.0;
    double mscaleAllDim = 0.0;
  };
  std::optional<Yarn> yarn;
  bool interleaved = true;        ///< main attention: pairs (0,1),(2,3),...
  bool indexerInterleaved = true; ///< V3.2: false; GLM: true

  /// Inverse frequencies for `dim` rotary dimensions (dim / 2 values), YaRN
  /// applied. Source: transformers modeling_rope_utils.
  std::vector<float> inverseFrequencies(int64_t dim) const;
  /// The factor on cos and sin: m(mscale) / m(mscale_all_dim).
  double attentionFactor() const;
  /// The factor on the softmax scale: m(mscale_all_dim)^2, 1 without YaRN.
  double softmaxFactor() const;
};

enum class Scoring { Sigmoid, Softmax };
enum class TopkMethod {
  NoAuxTc,           ///< biased scores; a group's score is its best two
  Greedy,            ///< plain top-k
  GroupLimitedGreedy ///< a group's score is its best one
};

struct MoeConfig {
  int64_t experts = 0;
  int64_t topk = 0;
  int64_t sharedExperts = 0;
  int64_t intermediateSize = 0; ///< of one routed expert
  int64_t groups = 1;
  int64_t topkGroups = 1;
  Scoring scoring = Scoring::Sigmoid;
  TopkMethod method = TopkMethod::NoAuxTc;
  bool normalizeTopk = true;
  double routedScale = 1.0;
};

/// The sparse-attention indexer (DSA) of DeepSeek-V3.2 and GLM-5.
struct IndexerConfig {
  int64_t heads = 0;
  int64_t headDim = 0;
  int64_t topk = 0;
  /// Per layer: true if the layer runs its own indexer, false if it takes the
  /// indices of the last layer that did.
  std::vector<bool> full;
};

/// What the checkpoint says of quantization. What a tensor's file holds decides
/// where the two differ; see Checkpoint.
struct QuantizationConfig {
  enum class Method { None, Fp8Block, Nvfp4, Int4Group, Mixed };
  Method method = Method::None;
  std::string algorithm;            ///< as spelt in the file, for messages
  std::string source;               ///< file (and pointer) it came from
  int64_t groupSize = 0;            ///< 16 for NVFP4, 32 for int4, 128 for
                                    ///< fp8, 0 for several formats
  bool scaleUe8m0 = false;          ///< scale_fmt "ue8m0"
  std::vector<std::string> exclude; ///< fnmatch globs, without any
                                    ///< "language_model." prefix
  bool fp8KvCache = false;          ///< the checkpoint asks for an FP8 cache

  /// Only for Mixed ("quantized_layers"). A module's own name decides before
  /// any glob. The members of a JSON object have no order, so of the globs that
  /// match it is the longest one that decides; they are sorted that way.
  std::unordered_map<std::string, Format> modules;
  std::vector<std::pair<std::string, Format>> globs;

  /// The format that the config expects for the linear module `module`, e.g.
  /// "model.layers.3.mlp.experts.0.up_proj"; `base` if it is not quantized.
  /// ExpectedFormats answers the same for many modules.
  Format expectedFormat(const std::string &module, Format base) const;
};

/// QuantizationConfig::expectedFormat for modules that come layer by layer. The
/// lists have hundreds of patterns, most of them for one layer; only those that
/// can match in the layer of the last question are tried.
class ExpectedFormats {
public:
  /// Keeps a reference to `config`.
  explicit ExpectedFormats(const QuantizationConfig &config) : config(config) {}
  Format of(std::string_view module, Format base);

private:
  void narrow(std::string_view layerPrefix);
  const QuantizationConfig &config;
  std::optional<std::string> layer; ///< "model.layers.12.", "" outside layers
  std::vector<const std::string *> exclude;
  std::vector<const std::pair<std::string, Format> *> globs;
};

struct ModelConfig {
  Architecture architecture = Architecture::DeepseekV3;
  std::string architectureName; ///< as spelt in the file
  std::string modelType;
  std::string outerArchitecture; ///< of the wrapper, "" if the text model is
                                 ///< not nested
  std::filesystem::path file;    ///< the config.json that was read

  int64_t hiddenSize = 0;
  int64_t layers = 0;
  int64_t vocabSize = 0;
  int64_t maxPositions = 0;
  double rmsNormEps = 1e-6;
  bool tieWordEmbeddings = false;
  Format dtype = Format::BF16; ///< torch_dtype / dtype

  int64_t heads = 0;
  std::optional<int64_t> qLoraRank; ///< none: q_proj instead of q_a, q_b
  int64_t kvLoraRank = 0;
  int64_t qkNopeHeadDim = 0;
  int64_t qkRopeHeadDim = 0;
  int64_t vHeadDim = 0;
  RopeConfig rope;

  int64_t intermediateSize = 0; ///< of a dense MLP
  std::vector<bool> moeLayer;   ///< per layer: experts (true) or dense MLP
  MoeConfig moe;
  std::optional<IndexerConfig> indexer;
  int64_t nextnLayers = 0; ///< multi-token-prediction layers

  std::optional<int64_t> bosToken;
  std::vector<int64_t> eosTokens;
  std::optional<int64_t> padToken;

  QuantizationConfig quantization;

  int64_t qkHeadDim() const { return qkNopeHeadDim + qkRopeHeadDim; }
  /// (nope + rope)^-0.5 times the YaRN factor.
  double softmaxScale() const;
  /// Values of one token in the latent cache: kv_lora_rank + rope.
  int64_t latentWidth() const { return kvLoraRank + qkRopeHeadDim; }

  /// `path` is a model folder or a lone config.json. hf_quant_config.json and
  /// generation_config.json are folded in if they stand in the same folder.
  static Result<ModelConfig> read(const std::filesystem::path &path);

  /// The same from texts: config.json (of `file`, for messages) and, where
  /// there are any, the two files beside it.
  static Result<ModelConfig>
  parse(std::string_view config, const std::filesystem::path &file,
        std::optional<std::string_view> hfQuantConfig = std::nullopt,
        std::optional<std::string_view> generationConfig = std::nullopt);

  /// The text of `mla-compile --print-config`: one "name: value" a line.
  std::string print() const;
};

} // namespace mla

#endif // MLA_CONFIG_MODELCONFIG_H
