//===- Validate.cpp - keys that must fit each other -----------------------===//
//
// Part of mla. Run on a configuration of which every key alone is right.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"

namespace mla::config {

static std::string num(int64_t v) { return std::to_string(v); }

static void validateRouter(ConfigReader &reader, const MoeConfig &moe) {
  if (moe.topk > moe.experts)
    reader["num_experts_per_tok"].failWith(
        "expected at most n_routed_experts (" + num(moe.experts) + "), found " +
        num(moe.topk));
  if (moe.method == TopkMethod::Greedy)
    return;
  if (moe.topkGroups > moe.groups) {
    reader["topk_group"].failWith("expected at most n_group (" +
                                  num(moe.groups) + "), found " +
                                  num(moe.topkGroups));
    return;
  }
  if (moe.experts % moe.groups != 0) {
    reader["n_group"].failWith("expected a divisor of n_routed_experts (" +
                               num(moe.experts) + "), found " +
                               num(moe.groups));
    return;
  }
  int64_t perGroup = moe.experts / moe.groups;
  if (moe.method == TopkMethod::NoAuxTc && moe.groups > 1 && perGroup < 2)
    reader["n_group"].failWith(
        "expected groups of at least 2 experts (a group's score is the sum of "
        "its best two), found " +
        num(moe.experts) + " experts in " + num(moe.groups) + " groups");
  if (moe.topk <= moe.experts && moe.topk > perGroup * moe.topkGroups)
    reader["num_experts_per_tok"].failWith(
        "expected at most " + num(perGroup * moe.topkGroups) + " (topk_group " +
        num(moe.topkGroups) + " times " + num(perGroup) +
        " experts of a group), found " + num(moe.topk));
}

/// Derived dimensions, of which the keys are only factors.
static void validateSizes(ConfigReader &reader, const ModelConfig &c) {
  auto check = [&](std::string_view key, std::string_view product,
                   int64_t value) {
    if (value > maxDim)
      reader[key].failWith("expected " + std::string(product) +
                           " to be at most " + num(maxDim) + ", found " +
                           num(value));
  };
  check("num_attention_heads",
        "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
        c.heads * c.qkHeadDim());
  check("num_attention_heads",
        "num_attention_heads * (qk_nope_head_dim + v_head_dim)",
        c.heads * (c.qkNopeHeadDim + c.vHeadDim));
  check("n_shared_experts", "n_shared_experts * moe_intermediate_size",
        c.moe.sharedExperts * c.moe.intermediateSize);
  if (c.indexer)
    check("index_n_heads", "index_n_heads * index_head_dim",
          c.indexer->heads * c.indexer->headDim);
  // The whole must stay far from 2^63 in bytes too. In doubles, because the sum
  // may be anything here.
  double hidden = double(c.hiddenSize);
  double experts = 3.0 * hidden * double(c.moe.intermediateSize) *
                   double(c.moe.experts + c.moe.sharedExperts);
  double dense = 3.0 * hidden * double(c.intermediateSize);
  double attention = (hidden + double(c.kvLoraRank + c.qLoraRank.value_or(0))) *
                     double(c.heads) * double(c.qkHeadDim() + c.vHeadDim);
  double total = double(c.layers) * (experts + dense + attention) +
                 2.0 * hidden * double(c.vocabSize);
  constexpr int64_t maxParameters = int64_t(1) << 50;
  if (total > double(maxParameters))
    reader.text.failWith("expected a model of at most " + num(maxParameters) +
                         " parameters, found more (" + num(c.layers) +
                         " layers of " + num(c.moe.experts) +
                         " experts of 3 * " + num(c.hiddenSize) + " * " +
                         num(c.moe.intermediateSize) + ")");
}

static void validateTokens(ConfigReader &reader, const ModelConfig &c) {
  std::string expected =
      "a token id below vocab_size (" + num(c.vocabSize) + ")";
  for (int64_t id : c.eosTokens)
    if (id >= c.vocabSize)
      reader.inherited("eos_token_id")
          .failWith("expected " + expected + ", found " + num(id));
  if (c.bosToken && *c.bosToken >= c.vocabSize)
    reader.inherited("bos_token_id").fail(expected);
  if (c.padToken && *c.padToken >= c.vocabSize)
    reader.inherited("pad_token_id").fail(expected);
}

void validate(ConfigReader &reader, const ModelConfig &c) {
  if (JsonValue kv = reader["num_key_value_heads"];
      kv.present() && kv.integer(1, maxDim) != c.heads)
    kv.failWith("expected num_attention_heads (" + num(c.heads) +
                "): the heads of latent attention share one cache, found " +
                kv.describe());
  if (c.qkRopeHeadDim % 2 != 0)
    reader["qk_rope_head_dim"].fail("an even number");
  if (JsonValue qk = reader["qk_head_dim"];
      qk.present() && qk.integer(1, maxDim) != c.qkHeadDim())
    qk.failWith("expected qk_nope_head_dim + qk_rope_head_dim (" +
                num(c.qkHeadDim()) + "), found " + qk.describe());
  if (c.indexer) {
    if (!c.qLoraRank)
      reader["q_lora_rank"].fail("an integer: the sparse indexer reads the "
                                 "compressed query");
    if (c.indexer->headDim < c.qkRopeHeadDim)
      reader["index_head_dim"].fail("at least qk_rope_head_dim (" +
                                    num(c.qkRopeHeadDim) + ")");
  }
  validateRouter(reader, c.moe);
  validateSizes(reader, c);
  validateTokens(reader, c);
}

} // namespace mla::config
