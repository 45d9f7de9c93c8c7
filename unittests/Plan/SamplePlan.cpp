//===- SamplePlan.cpp - a small plan that uses everything -----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <algorithm>
#include <gtest/gtest.h>

namespace mla::plan {

Expr expr(const char *text) {
  Result<Expr> parsed = Expr::parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  return parsed.ok() ? *parsed : Expr();
}

static Parameter buffer(Access access, Format format) {
  return {Parameter::Kind::Buffer, format, access};
}

static Program sampleProgram(const char *name, int64_t tokens) {
  uint64_t bytes = static_cast<uint64_t>(tokens) * 8 * 4;
  Program p;
  p.name = name;
  p.maxTokens = tokens;
  p.maxSequences = 4;
  p.maxOutputs = 4;
  p.workspaces = {
      {"x", Format::F32, {Symbol::Tokens, int64_t(8)}, 0},
      {"moe", Format::F32, {expr("min(tokens * 2, 4)"), int64_t(8)}, bytes},
      {"out", Format::F32, {Symbol::Tokens, int64_t(8)}, 0}};
  p.workspaceBytes = bytes + 128;
  p.launches = {
      {KGather,
       Symbol::Tokens,
       {{Port::Ids}, {WeightRef{WEmbed}}, {WorkspaceRef{XIn}}, {Expr(8)}},
       "model.embed_tokens"},
      {KStore,
       Symbol::Tokens,
       {{WorkspaceRef{XIn}},
        {Port::Positions},
        {Port::Sequence},
        {Port::PageTable},
        {CacheRef{0}},
        {expr("pages * 64")},
        {Port::Saturated},
        {Expr(0x3c23d70a)}}, // the bits of 0.01
       "model.layers.0.self_attn"},
      {KExperts,
       expr("min(tokens * 2, 4)"),
       {{WorkspaceRef{XIn}},
        {WeightRef{WExperts}},
        {WorkspaceRef{XMoe}},
        {WeightRef{WDown}},
        {WeightRef{WStack}}},
       "model.layers.0.mlp.experts"},
      {KNorm,
       expr("ceildiv(tokens, 4)"),
       {{WorkspaceRef{XMoe}}, {WeightRef{WNorm}}},
       "model.norm"},
      {KCopy,
       Symbol::Tokens,
       {{WorkspaceRef{XMoe}}, {WorkspaceRef{XOut}}},
       "copy"},
      {KHead,
       Symbol::Outputs,
       {{WorkspaceRef{XOut}},
        {Port::Outputs},
        {WeightRef{WEmbed}},
        {Port::Logits}},
       "lm_head"},
      {KReduce,
       Expr(1),
       {{WorkspaceRef{XOut}},
        {WorkspaceRef{XOut}},
        {Symbol::Tokens},
        {expr("8 - rank")},
        {expr("8 - rank")}},
       "sum"}};
  return p;
}

Plan samplePlan() {
  constexpr Access r = Access::Read, w = Access::Write, rw = Access::ReadWrite;
  Plan p;
  p.producer = "mla 0.1.0";
  p.target = {"host", "x86-64-v3", {"avx2", "fma"}, hostKernelAbi};
  p.model = {"DeepseekV3ForCausalLM", 32, 1, 8, 512, 0, {1, 2}};
  p.checkpoint.kind = Checkpoint::Kind::Safetensors;
  p.checkpoint.folder = "/models/tiny";
  p.checkpoint.files = {{"model-1.safetensors", 4096, 256, 0xfedcba9876543210u},
                        {"model-2.safetensors", 640, 128, 1}};
  p.library = "kernels.so";
  p.libraryHash = 0xcbf29ce484222325u; // of no bytes
  p.tokenizerFiles = {"tokenizer.json", "tokenizer_config.json"};
  p.maxPages = 8;
  p.weights = {{"embed", Format::BF16, {32, 8}, false, {}},
               {"norm", Format::F32, {8}, false, {}},
               {"experts", Format::BF16, {4, 8, 8}, true, {}},
               {"down", Format::NVFP4, {8, 16}, false, {}, {{}, {}}},
               {"stack", Format::Int4G32, {4, 8, 32}, true, {}, {{}}},
               {"shard", Format::BF16, {3, 8}, false, {{"rows", 0, 3072}}}};
  p.weights[WShard].shard = {{10, 8}, {3, 8}, {{0, 4, 1}}};
  p.weights[WEmbed].sources = {{"model.embed_tokens.weight", 0, 256}};
  p.weights[WNorm].sources = {{"model.norm.weight", 0, 1024}};
  for (uint64_t e = 0; e < 4; ++e) {
    std::string expert = "model.layers.0.mlp.experts." + std::to_string(e);
    p.weights[WExperts].sources.push_back(
        {expert + ".up_proj.weight", 1, 128 + e * 128});
    p.weights[WStack].sources.push_back(
        {expert + ".down_proj.weight_packed", 0, 2304 + e * 128});
    p.weights[WStack].scales[0].sources.push_back(
        {expert + ".down_proj.weight_scale", 0, 2816 + e * 16});
  }
  p.weights[WDown].sources = {{"down.weight_packed", 0, 2048}};
  p.weights[WDown].scales[0].sources = {{"down.weight_scale", 0, 2112}};
  p.weights[WDown].scales[1] = {{{"down.weight_global_scale", 0, 2120}}, true};
  p.caches = {{"latent.0", Format::BF16, 8, "latent"}};
  p.kernels = {
      {"gather",
       {buffer(r, Format::I32),
        buffer(r, Format::BF16),
        buffer(w, Format::F32),
        {Parameter::Kind::Scalar, Format::F32, r}}},
      {"store_latent",
       {buffer(r, Format::F32),
        buffer(r, Format::I32),
        buffer(r, Format::I32),
        buffer(r, Format::I32),
        buffer(rw, Format::BF16),
        {Parameter::Kind::Scalar, Format::F32, r},
        buffer(rw, Format::I32),
        {Parameter::Kind::Scalar, Format::F32, r}}},
      {"experts_4x8x8",
       {buffer(r, Format::F32),
        {Parameter::Kind::Table, Format::BF16, r},
        buffer(w, Format::F32),
        {Parameter::Kind::Table, Format::NVFP4, r},
        {Parameter::Kind::Table, Format::Int4G32, r}}},
      {"rms_norm_8", {buffer(rw, Format::F32), buffer(r, Format::F32)}},
      {"copy_8", {buffer(r, Format::F32), buffer(w, Format::F32)}},
      {"lm_head",
       {buffer(r, Format::F32), buffer(r, Format::I32), buffer(r, Format::BF16),
        buffer(w, Format::F32)}},
      {"sample_32",
       {buffer(r, Format::F32), buffer(r, Format::F32), buffer(r, Format::I32),
        buffer(w, Format::I32), buffer(w, Format::I32)}},
      {"sum",
       {buffer(r, Format::F32),
        buffer(w, Format::F32),
        {Parameter::Kind::Scalar, Format::F32, r},
        {Parameter::Kind::Scalar, Format::F32, r},
        {Parameter::Kind::Scalar, Format::F32, r}}}};
  p.kernels[KReduce].collective = Collective::AllReduce;
  p.ranks = {4, Ranks::Collectives::Local, "rows tp4"};
  p.programs = {sampleProgram("decode", 4), sampleProgram("prefill", 16)};
  Program &sampling = p.sampling.emplace();
  sampling.name = "sample";
  sampling.maxTokens = sampling.maxSequences = sampling.maxOutputs = 4;
  sampling.workspaces = {
      {"best", Format::I32, {Symbol::Outputs, int64_t(2)}, 0}};
  sampling.workspaceBytes = 64;
  sampling.launches = {{KSample,
                        Symbol::Outputs,
                        {{Port::Logits},
                         {Port::Sampling},
                         {Port::TopK},
                         {WorkspaceRef{0}},
                         {Port::Sampled}},
                        "sampling"}};
  return p;
}

void takeOffFiles(Plan &plan, Checkpoint::Kind kind) {
  plan.checkpoint = {};
  plan.checkpoint.kind = kind;
  auto clear = [](std::vector<TensorSource> &sources) {
    for (TensorSource &s : sources)
      s.file = 0, s.offset = 0;
  };
  for (Weight &w : plan.weights) {
    clear(w.sources);
    for (WeightScales &scales : w.scales)
      clear(scales.sources);
  }
}

} // namespace mla::plan
