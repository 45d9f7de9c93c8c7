//===- PublishedConfigTest.cpp - the numbers of published models ----------===//
//
// Part of mla. One row for each file of test/data/configs. The numbers were
// taken from the models' own pages and papers, not from this reader.
//
//===----------------------------------------------------------------------===//
#include "TestFiles.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::test;
using Method = QuantizationConfig::Method;

namespace {

struct Row {
  std::string file;
  Architecture architecture = Architecture::DeepseekV3;
  std::string modelType, outer;
  int64_t hidden = 7168, layers = 61, dense = 3, vocab = 129280;
  int64_t positions = 163840;
  double eps = 1e-6;
  int64_t heads = 128, qLora = 1536, nope = 128, v = 128; // qLora 0: none
  int64_t intermediate = 18432, moeIntermediate = 2048;
  int64_t experts = 256, topk = 8, shared = 1, groups = 8, topkGroups = 4;
  double routedScale = 2.5;
  double theta = 10000, yarnFactor = 40, betaFast = 32, mscaleAllDim = 1;
  int64_t nextn = 1;
  int64_t indexHeads = 0, fullLayers = 0;
  bool indexerInterleaved = true;
  Method method = Method::None;
  bool fp8Cache = false, ue8m0 = false;
  int64_t bos = 0, pad = -1; // -1: none
  std::vector<int64_t> eos = {1};
  bool sidecar = false; // hf_quant_config.json of the same model

  Row with(std::string name) const {
    Row row = *this;
    row.file = std::move(name);
    return row;
  }
};

std::vector<Row> rows() {
  std::vector<Row> out;
  Row v3;
  v3.modelType = "deepseek_v3";
  v3.method = Method::Fp8Block;
  out.push_back(v3.with("deepseek-ai--DeepSeek-V3_config.json"));
  out.push_back(v3.with("deepseek-ai--DeepSeek-R1_config.json"));
  out.push_back(v3.with("deepseek-ai--DeepSeek-V3.1_config.json"));
  out.back().ue8m0 = true;

  Row v3Nvfp4 = v3;
  v3Nvfp4.method = Method::Nvfp4;
  v3Nvfp4.sidecar = true;
  out.push_back(v3Nvfp4.with("nvidia--DeepSeek-V3-0324-NVFP4_config.json"));
  v3Nvfp4.fp8Cache = true;
  out.push_back(v3Nvfp4.with("nvidia--DeepSeek-V3.1-NVFP4_config.json"));

  Row v32 = v3;
  v32.architecture = Architecture::DeepseekV32;
  v32.modelType = "deepseek_v32";
  v32.ue8m0 = true;
  v32.indexHeads = 64;
  v32.fullLayers = 61;
  v32.indexerInterleaved = false;
  out.push_back(v32.with("deepseek-ai--DeepSeek-V3.2_config.json"));
  v32.ue8m0 = false;
  v32.method = Method::Nvfp4;
  v32.fp8Cache = v32.sidecar = true;
  out.push_back(v32.with("nvidia--DeepSeek-V3.2-NVFP4_config.json"));

  Row v2;
  v2.architecture = Architecture::DeepseekV2;
  v2.modelType = "deepseek_v2";
  v2.hidden = 2048, v2.layers = 27, v2.dense = 1, v2.vocab = 102400;
  v2.heads = 16, v2.qLora = 0;
  v2.intermediate = 10944, v2.moeIntermediate = 1408;
  v2.experts = 64, v2.topk = 6, v2.shared = 2;
  v2.groups = v2.topkGroups = 1, v2.routedScale = 1.0;
  v2.mscaleAllDim = .707, v2.nextn = 0;
  v2.bos = 100000, v2.eos = {100001};
  out.push_back(v2.with("deepseek-ai--DeepSeek-V2-Lite-Chat_config.as_printed_"
                        "by_transformers_5.7.0.json"));

  Row k2 = v3;
  k2.modelType = "kimi_k2";
  k2.dense = 1, k2.vocab = 163840, k2.positions = 131072, k2.heads = 64;
  k2.experts = 384, k2.groups = k2.topkGroups = 1, k2.routedScale = 2.827;
  k2.theta = 50000, k2.yarnFactor = 32, k2.betaFast = 1, k2.nextn = 0;
  k2.bos = 163584, k2.eos = {163585};
  out.push_back(k2.with("moonshotai--Kimi-K2-Instruct_config.json"));

  Row k25 = k2;
  k25.outer = "KimiK25ForConditionalGeneration";
  k25.positions = 262144, k25.eps = 1e-5, k25.yarnFactor = 64;
  k25.betaFast = 32, k25.pad = 163839;
  k25.method = Method::Int4Group;
  out.push_back(k25.with("moonshotai--Kimi-K2.5_config.json"));
  k25.modelType = "deepseek_v3";
  k25.method = Method::Nvfp4;
  k25.fp8Cache = true;
  out.push_back(k25.with("nvidia--Kimi-K2.5-NVFP4_config.json"));
  k25.eos = {163586};
  k25.sidecar = true;
  out.push_back(k25.with("nvidia--Kimi-K2.6-NVFP4_config.json"));
  out.push_back(k25.with("nvidia--Kimi-K2.7-Code-NVFP4_config.json"));

  Row glm;
  glm.architecture = Architecture::GlmMoeDsa;
  glm.modelType = "glm_moe_dsa";
  glm.hidden = 6144, glm.layers = 78, glm.vocab = 154880;
  glm.positions = 202752, glm.eps = 1e-5;
  glm.heads = 64, glm.qLora = 2048, glm.nope = 192, glm.v = 256;
  glm.intermediate = 12288, glm.groups = glm.topkGroups = 1;
  glm.theta = 1e6, glm.yarnFactor = 0;
  glm.indexHeads = 32, glm.fullLayers = 78;
  glm.bos = -1, glm.pad = 154820, glm.eos = {154820, 154827, 154829};
  out.push_back(glm.with("zai-org--GLM-5_config.json"));
  out.push_back(glm.with("zai-org--GLM-5.1_config.json"));
  Row glm52 = glm;
  glm52.theta = 8e6, glm52.positions = 1048576, glm52.fullLayers = 21;
  out.push_back(glm52.with("zai-org--GLM-5.2_config.json"));
  out.push_back(glm52.with("zai-org--GLM-5.3_config.json"));
  for (Row *row : {&glm, &glm52})
    row->method = Method::Fp8Block;
  out.push_back(glm.with("zai-org--GLM-5-FP8_config.json"));
  out.push_back(glm.with("zai-org--GLM-5.1-FP8_config.json"));
  out.push_back(glm52.with("zai-org--GLM-5.2-FP8_config.json"));
  out.push_back(glm52.with("zai-org--GLM-5.3-FP8_config.json"));
  for (Row *row : {&glm, &glm52}) {
    row->method = Method::Nvfp4;
    row->fp8Cache = row->sidecar = true;
  }
  out.push_back(glm.with("nvidia--GLM-5-NVFP4_config.json"));
  glm.bos = glm52.bos = 0;
  out.push_back(glm.with("nvidia--GLM-5.1-NVFP4_config.json"));
  out.push_back(glm52.with("nvidia--GLM-5.2-NVFP4_config.json"));
  out.push_back(glm52.with("nvidia--GLM-5.3-NVFP4_config.json"));
  return out;
}

void expectNumbers(const Row &want, const ModelConfig &got) {
  EXPECT_EQ(got.architecture, want.architecture);
  EXPECT_EQ(got.modelType, want.modelType);
  EXPECT_EQ(got.outerArchitecture, want.outer);
  EXPECT_EQ(got.hiddenSize, want.hidden);
  EXPECT_EQ(got.layers, want.layers);
  EXPECT_EQ(got.vocabSize, want.vocab);
  EXPECT_EQ(got.maxPositions, want.positions);
  EXPECT_EQ(got.rmsNormEps, want.eps);
  EXPECT_FALSE(got.tieWordEmbeddings);
  EXPECT_EQ(got.dtype, Format::BF16);
  EXPECT_EQ(got.heads, want.heads);
  EXPECT_EQ(got.qLoraRank.value_or(0), want.qLora);
  EXPECT_EQ(got.kvLoraRank, 512);
  EXPECT_EQ(got.qkNopeHeadDim, want.nope);
  EXPECT_EQ(got.qkRopeHeadDim, 64);
  EXPECT_EQ(got.vHeadDim, want.v);
  EXPECT_EQ(got.latentWidth(), 576);
  EXPECT_EQ(got.intermediateSize, want.intermediate);
  EXPECT_EQ(got.nextnLayers, want.nextn);
  EXPECT_EQ(got.bosToken.value_or(-1), want.bos);
  EXPECT_EQ(got.padToken.value_or(-1), want.pad);
  EXPECT_EQ(got.eosTokens, want.eos);

  ASSERT_EQ(got.moeLayer.size(), size_t(want.layers));
  for (int64_t i = 0; i < want.layers; ++i)
    EXPECT_EQ(got.moeLayer[i], i >= want.dense) << "layer " << i;
}

void expectRouter(const Row &want, const MoeConfig &got) {
  bool v2 = want.architecture == Architecture::DeepseekV2;
  EXPECT_EQ(got.experts, want.experts);
  EXPECT_EQ(got.topk, want.topk);
  EXPECT_EQ(got.sharedExperts, want.shared);
  EXPECT_EQ(got.intermediateSize, want.moeIntermediate);
  EXPECT_EQ(got.groups, want.groups);
  EXPECT_EQ(got.topkGroups, want.topkGroups);
  EXPECT_EQ(got.scoring, v2 ? Scoring::Softmax : Scoring::Sigmoid);
  EXPECT_EQ(got.method, v2 ? TopkMethod::Greedy : TopkMethod::NoAuxTc);
  EXPECT_EQ(got.normalizeTopk, !v2);
  EXPECT_EQ(got.routedScale, want.routedScale);
}

void expectRope(const Row &want, const RopeConfig &got) {
  EXPECT_EQ(got.theta, want.theta);
  EXPECT_TRUE(got.interleaved);
  EXPECT_EQ(got.indexerInterleaved, want.indexerInterleaved);
  ASSERT_EQ(got.yarn.has_value(), want.yarnFactor != 0);
  if (!got.yarn)
    return;
  EXPECT_EQ(got.yarn->factor, want.yarnFactor);
  EXPECT_EQ(got.yarn->originalMaxPositions, 4096);
  EXPECT_EQ(got.yarn->betaFast, want.betaFast);
  EXPECT_EQ(got.yarn->betaSlow, 1);
  EXPECT_EQ(got.yarn->mscale, want.mscaleAllDim);
  EXPECT_EQ(got.yarn->mscaleAllDim, want.mscaleAllDim);
}

void expectIndexer(const Row &want, const std::optional<IndexerConfig> &got) {
  ASSERT_EQ(got.has_value(), want.indexHeads != 0);
  if (!got)
    return;
  EXPECT_EQ(got->heads, want.indexHeads);
  EXPECT_EQ(got->headDim, 128);
  EXPECT_EQ(got->topk, 2048);
  ASSERT_EQ(got->full.size(), size_t(want.layers));
  EXPECT_EQ(std::count(got->full.begin(), got->full.end(), true),
            want.fullLayers);
  bool all = want.fullLayers == want.layers;
  for (size_t i = 0; i < got->full.size(); ++i)
    EXPECT_EQ(got->full[i], all || i < 3 || i % 4 == 2) << "layer " << i;
}

void expectQuantization(const Row &want, const QuantizationConfig &got) {
  EXPECT_EQ(got.method, want.method);
  EXPECT_EQ(got.fp8KvCache, want.fp8Cache);
  EXPECT_EQ(got.scaleUe8m0, want.ue8m0);
  switch (want.method) {
  case Method::None:
    EXPECT_TRUE(got.source.empty());
    break;
  case Method::Fp8Block:
    EXPECT_EQ(got.groupSize, 128);
    break;
  case Method::Nvfp4:
    EXPECT_EQ(got.groupSize, 16);
    EXPECT_EQ(got.algorithm, "NVFP4");
    break;
  case Method::Int4Group:
    EXPECT_EQ(got.groupSize, 32);
    EXPECT_EQ(got.algorithm, "pack-quantized");
    break;
  case Method::Mixed:
    FAIL() << "no published file has several formats yet";
  }
}

TEST(PublishedConfig, EveryFileHasItsNumbers) {
  for (const Row &row : rows()) {
    SCOPED_TRACE(row.file);
    // A sidecar belongs to the model whose name it has here; in a model's
    // folder it has a name of its own.
    TempFolder folder;
    folder.write("config.json", readBytes(publishedConfig(row.file)));
    if (row.sidecar) {
      std::string name = row.file;
      name.replace(name.find("_config.json"), 12, "_hf_quant_config.json");
      folder.write("hf_quant_config.json", readBytes(publishedConfig(name)));
    }
    Result<ModelConfig> config = ModelConfig::read(folder.path);
    ASSERT_TRUE(config.ok()) << config.status().message();
    expectNumbers(row, *config);
    expectRouter(row, config->moe);
    expectRope(row, config->rope);
    expectIndexer(row, config->indexer);
    expectQuantization(row, config->quantization);
  }
}

TEST(PublishedConfig, NoFileIsForgotten) {
  std::vector<std::string> want;
  for (const Row &row : rows())
    want.push_back(row.file);
  want.push_back("moonshotai--Kimi-K2-Thinking_config.REDUCED_by_"
                 "aiconfigurator.json");
  want.push_back("zai-org--GLM-4.7-Flash_config.REDUCED_by_"
                 "aiconfigurator.json");
  std::vector<std::string> have;
  for (const auto &entry :
       std::filesystem::directory_iterator(dataFile("configs"))) {
    std::string name = entry.path().filename().string();
    if (name.find("_config.") != std::string::npos &&
        name.find("hf_quant") == std::string::npos &&
        name.find("tokenizer") == std::string::npos)
      have.push_back(name);
  }
  std::sort(want.begin(), want.end());
  std::sort(have.begin(), have.end());
  EXPECT_EQ(want, have);
}

TEST(PublishedConfig, LoneFilesHaveNoSidecar) {
  Result<ModelConfig> config = ModelConfig::read(
      publishedConfig("nvidia--DeepSeek-V3.1-NVFP4_config.json"));
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->quantization.method, Method::None);
  EXPECT_FALSE(config->quantization.fp8KvCache);
}

// Somebody shortened these two files. What they lack differs between models of
// the same architecture, so nothing may be made up.
TEST(PublishedConfig, ShortenedFilesAreRefusedWithEveryMissingKey) {
  for (const char *name :
       {"moonshotai--Kimi-K2-Thinking_config.REDUCED_by_aiconfigurator.json",
        "zai-org--GLM-4.7-Flash_config.REDUCED_by_aiconfigurator.json"}) {
    std::string path = publishedConfig(name).string();
    Result<ModelConfig> config = ModelConfig::read(path);
    ASSERT_FALSE(config.ok());
    EXPECT_EQ(config.status().code(), StatusCode::Invalid);
    EXPECT_EQ(
        without(config.status().message(), path + ": "),
        "at /rms_norm_eps: expected a number from 1e-12 to 0.1, found nothing\n"
        "at /rope_theta: expected a number from 2 to 1e+15, found nothing\n"
        "at /n_group: expected an integer from 1 to 65536, found nothing\n"
        "at /topk_group: expected an integer from 1 to 65536, found "
        "nothing\n"
        "at /norm_topk_prob: expected true or false, found nothing\n"
        "at /eos_token_id: expected a token id, a list of them or null, "
        "found nothing");
  }
}

TEST(PublishedConfig, FoldersOfTheGoldens) {
  size_t count = 0;
  for (const auto &entry :
       std::filesystem::directory_iterator(dataFile("goldens"))) {
    if (!std::filesystem::exists(entry.path() / "config.json"))
      continue;
    SCOPED_TRACE(entry.path().filename().string());
    Result<ModelConfig> config = ModelConfig::read(entry.path());
    ASSERT_TRUE(config.ok()) << config.status().message();
    auto raw = nlohmann::json::parse(readBytes(entry.path() / "config.json"));
    EXPECT_EQ(config->eosTokens, std::vector<int64_t>{1});
    EXPECT_EQ(config->hiddenSize, raw["hidden_size"]);
    EXPECT_EQ(config->moe.experts, raw["n_routed_experts"]);
    for (int64_t i = 0; i < config->layers; ++i)
      EXPECT_EQ(config->moeLayer[i],
                raw.contains("mlp_layer_types")
                    ? raw["mlp_layer_types"][i] == "sparse"
                    : i >= raw["first_k_dense_replace"].get<int64_t>());
    EXPECT_EQ(config->quantization.method, Method::None);
    ++count;
  }
  EXPECT_GE(count, 11u);

  auto shared = ModelConfig::read(dataFile("goldens/glm52_shared_indexer"));
  ASSERT_TRUE(shared.ok());
  EXPECT_EQ(shared->indexer->full,
            (std::vector<bool>{true, true, false, false}));
  EXPECT_TRUE(shared->rope.indexerInterleaved);
  auto lite = ModelConfig::read(dataFile("goldens/glm4_moe_lite"));
  ASSERT_TRUE(lite.ok());
  EXPECT_EQ(lite->moe.scoring, Scoring::Sigmoid);
  EXPECT_EQ(lite->moe.method, TopkMethod::NoAuxTc);
  EXPECT_EQ(lite->dtype, Format::F32);
  auto plain = ModelConfig::read(dataFile("goldens/v3_no_q_lora"));
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->qLoraRank, std::nullopt);
}

TEST(PublishedConfig, Print) {
  auto config =
      ModelConfig::read(publishedConfig("nvidia--GLM-5.2-NVFP4_config.json"));
  ASSERT_TRUE(config.ok());
  std::string text = config->print();
  for (const char *line :
       {"architecture: GlmMoeDsaForCausalLM\n", "hidden size: 6144\n",
        "rope scaling: none\n", "softmax scale: 0.0625\n",
        "dense layers: 0-2\n", "expert layers: 3-77\n", "experts: 256\n",
        "indexer full layers: 0-2, 6, 10, 14, 18,",
        "cache values per token and layer: 576\n",
        "cache values per token: 44928\n",
        "indexer cache values per token: 2688\n", "quantization: nvfp4\n",
        " at /quantization_config\n", "checkpoint asks for fp8 cache: yes\n",
        "eos tokens: 154820, 154827, 154829\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line << "\nin\n" << text;
}

} // namespace
