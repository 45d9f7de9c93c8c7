//===- Defaults.cpp - architectures and what an absent key means ----------===//
//
// Part of mla. Source of the table: the configuration classes of transformers
// (DeepseekV2Config, DeepseekV3Config, DeepseekV32Config, Glm4MoeLiteConfig,
// GlmMoeDsaConfig) and, for what they fix in code instead of a key (the
// router's scoring, the rotary layout of the indexer), their modelling files.
//
// A key takes a default only if no model of its architecture differs from it:
//
//   hidden_act                 "silu"      the only activation there is
//   attention_bias, mlp_bias   false       no other value is accepted
//   moe_layer_freq             1           no other value is accepted
//   num_key_value_heads        num_attention_heads
//   tie_word_embeddings        false
//   num_nextn_predict_layers   0
//   torch_dtype / dtype        bfloat16    as all published checkpoints
//   scoring_func, topk_method  the table
//   rope_scaling               none
//   beta_fast, beta_slow       32, 1       of YaRN
//   mscale, mscale_all_dim     1, 0        of YaRN
//   rope_interleave            true
//   indexer_rope_interleave    the table
//   index_topk_freq            1           every layer runs its indexer
//   index_skip_topk_offset     2
//   bos_token_id, pad_token_id none
//
// The classes have defaults for all other keys too, but those are the numbers
// of one model (n_group 8, rms_norm_eps 1e-6, rope_theta 10000, eos 1 of
// DeepSeek-V3) and wrong for others of the same architecture (Kimi-K2): a file
// that lacks them is refused.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"

namespace mla::config {

static constexpr ArchitectureInfo table[] = {
    {Architecture::DeepseekV2,
     "DeepseekV2ForCausalLM",
     {"deepseek_v2", ""},
     false,
     Scoring::Softmax,
     TopkMethod::Greedy,
     true},
    {Architecture::DeepseekV3,
     "DeepseekV3ForCausalLM",
     {"deepseek_v3", "kimi_k2"},
     false,
     Scoring::Sigmoid,
     TopkMethod::NoAuxTc,
     true},
    {Architecture::DeepseekV32,
     "DeepseekV32ForCausalLM",
     {"deepseek_v32", ""},
     true,
     Scoring::Sigmoid,
     TopkMethod::NoAuxTc,
     false},
    {Architecture::Glm4MoeLite,
     "Glm4MoeLiteForCausalLM",
     {"glm4_moe_lite", ""},
     false,
     Scoring::Sigmoid,
     TopkMethod::NoAuxTc,
     true},
    {Architecture::GlmMoeDsa,
     "GlmMoeDsaForCausalLM",
     {"glm_moe_dsa", ""},
     true,
     Scoring::Sigmoid,
     TopkMethod::NoAuxTc,
     true},
};

const ArchitectureInfo *findArchitecture(std::string_view name) {
  for (const ArchitectureInfo &row : table)
    if (row.name == name)
      return &row;
  return nullptr;
}

const ArchitectureInfo *findModelType(std::string_view modelType) {
  if (modelType.empty())
    return nullptr;
  for (const ArchitectureInfo &row : table)
    for (std::string_view type : row.modelTypes)
      if (type == modelType)
        return &row;
  return nullptr;
}

const ArchitectureInfo &architectureInfo(Architecture architecture) {
  for (const ArchitectureInfo &row : table)
    if (row.architecture == architecture)
      return row;
  return table[1]; // Not reached: the table has a row for each enumerator.
}

std::string supportedArchitectures() {
  std::string out;
  for (const ArchitectureInfo &row : table)
    out += (out.empty() ? "" : ", ") + std::string(row.name);
  return out;
}

std::string_view scoringName(Scoring scoring) {
  return scoring == Scoring::Sigmoid ? "sigmoid" : "softmax";
}

std::string_view topkMethodName(TopkMethod method) {
  switch (method) {
  case TopkMethod::NoAuxTc:
    return "noaux_tc";
  case TopkMethod::Greedy:
    return "greedy";
  case TopkMethod::GroupLimitedGreedy:
    return "group_limited_greedy";
  }
  return "unknown";
}

std::string_view methodName(QuantizationConfig::Method method) {
  switch (method) {
  case QuantizationConfig::Method::None:
    return "none";
  case QuantizationConfig::Method::Fp8Block:
    return "fp8_block";
  case QuantizationConfig::Method::Nvfp4:
    return "nvfp4";
  case QuantizationConfig::Method::Int4Group:
    return "int4_g32";
  case QuantizationConfig::Method::Mixed:
    return "mixed";
  }
  return "unknown";
}

} // namespace mla::config
