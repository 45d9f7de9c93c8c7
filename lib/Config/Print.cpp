//===- Print.cpp - the text of --print-config -----------------------------===//
//
// Part of mla. One "name: value" a line, for people and for FileCheck.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"
#include <algorithm>
#include <cstdio>

namespace mla {
using namespace config;

namespace {
class Lines {
public:
  void add(std::string_view name, std::string value) {
    text += std::string(name) + ": " + value + "\n";
  }
  void add(std::string_view name, std::string_view value) {
    add(name, std::string(value));
  }
  void add(std::string_view name, const char *value) {
    add(name, std::string(value));
  }
  void add(std::string_view name, int64_t value) {
    add(name, std::to_string(value));
  }
  void add(std::string_view name, bool value) {
    add(name, value ? "yes" : "no");
  }
  void add(std::string_view name, double value) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.10g", value);
    add(name, std::string(buffer));
  }
  void add(std::string_view name, const std::optional<int64_t> &value) {
    add(name, value ? std::to_string(*value) : "none");
  }
  std::string text;
};

/// The layers of which `flags` is true, as "3-60" or "0-2, 6, 10"; "none".
std::string layerRanges(const std::vector<bool> &flags, bool wanted) {
  std::string out;
  for (size_t i = 0; i < flags.size();) {
    size_t end = i;
    while (end < flags.size() && flags[end] == wanted)
      ++end;
    if (end == i) {
      ++i;
      continue;
    }
    out += (out.empty() ? "" : ", ") + std::to_string(i);
    if (end - i > 1)
      out.append("-").append(std::to_string(end - 1));
    i = end;
  }
  return out.empty() ? "none" : out;
}

void printRope(const ModelConfig &c, Lines &lines) {
  lines.add("rope theta", c.rope.theta);
  lines.add("rope interleaved", c.rope.interleaved);
  if (!c.rope.yarn) {
    lines.add("rope scaling", "none");
  } else {
    const RopeConfig::Yarn &yarn = *c.rope.yarn;
    lines.add("rope scaling", "yarn");
    lines.add("yarn factor", yarn.factor);
    lines.add("yarn original positions", yarn.originalMaxPositions);
    lines.add("yarn beta fast", yarn.betaFast);
    lines.add("yarn beta slow", yarn.betaSlow);
    lines.add("yarn mscale", yarn.mscale);
    lines.add("yarn mscale all dim", yarn.mscaleAllDim);
    lines.add("rope cos and sin factor", c.rope.attentionFactor());
  }
  lines.add("softmax scale", c.softmaxScale());
}

void printExperts(const ModelConfig &c, Lines &lines) {
  lines.add("dense layers", layerRanges(c.moeLayer, false));
  lines.add("expert layers", layerRanges(c.moeLayer, true));
  lines.add("dense intermediate size", c.intermediateSize);
  lines.add("experts", c.moe.experts);
  lines.add("experts per token", c.moe.topk);
  lines.add("shared experts", c.moe.sharedExperts);
  lines.add("expert intermediate size", c.moe.intermediateSize);
  lines.add("router scoring", scoringName(c.moe.scoring));
  lines.add("router method", topkMethodName(c.moe.method));
  lines.add("router groups", c.moe.groups);
  lines.add("router groups per token", c.moe.topkGroups);
  lines.add("router normalizes weights", c.moe.normalizeTopk);
  lines.add("router scale", c.moe.routedScale);
}

void printIndexer(const ModelConfig &c, Lines &lines) {
  if (!c.indexer) {
    lines.add("indexer", "none");
    return;
  }
  lines.add("indexer heads", c.indexer->heads);
  lines.add("indexer head dim", c.indexer->headDim);
  lines.add("indexer tokens", c.indexer->topk);
  lines.add("indexer rope interleaved", c.rope.indexerInterleaved);
  lines.add("indexer full layers", layerRanges(c.indexer->full, true));
  lines.add("indexer shared layers", layerRanges(c.indexer->full, false));
}

void printQuantization(const QuantizationConfig &q, Lines &lines) {
  lines.add("quantization", methodName(q.method));
  if (!q.source.empty())
    lines.add("quantization source", q.source);
  if (q.method != QuantizationConfig::Method::None) {
    lines.add("quantization algorithm", q.algorithm);
    if (q.method == QuantizationConfig::Method::Mixed)
      lines.add("quantization formats by module",
                std::to_string(q.modules.size()) + " names, " +
                    std::to_string(q.globs.size()) + " patterns");
    else
      lines.add("quantization group size", q.groupSize);
    if (q.method == QuantizationConfig::Method::Fp8Block)
      lines.add("quantization scales are powers of two", q.scaleUe8m0);
    lines.add("quantization excludes",
              std::to_string(q.exclude.size()) + " patterns");
  }
  lines.add("checkpoint asks for fp8 cache", q.fp8KvCache);
}
} // namespace

std::string ModelConfig::print() const {
  Lines lines;
  lines.add("file", file.string());
  lines.add("architecture", architectureName);
  if (!outerArchitecture.empty())
    lines.add("inside", outerArchitecture);
  lines.add("model type", modelType.empty() ? "none" : modelType);
  lines.add("hidden size", hiddenSize);
  lines.add("layers", layers);
  lines.add("prediction layers", nextnLayers);
  lines.add("vocabulary", vocabSize);
  lines.add("positions", maxPositions);
  lines.add("norm epsilon", rmsNormEps);
  lines.add("tied embeddings", tieWordEmbeddings);
  lines.add("dtype", formatName(dtype));
  lines.add("heads", heads);
  lines.add("q lora rank", qLoraRank);
  lines.add("kv lora rank", kvLoraRank);
  lines.add("qk nope head dim", qkNopeHeadDim);
  lines.add("qk rope head dim", qkRopeHeadDim);
  lines.add("v head dim", vHeadDim);
  printRope(*this, lines);
  printExperts(*this, lines);
  printIndexer(*this, lines);
  // The indexer keeps one key a token in each layer that runs it.
  lines.add("cache values per token and layer", latentWidth());
  lines.add("cache values per token", latentWidth() * layers);
  if (indexer)
    lines.add("indexer cache values per token",
              indexer->headDim *
                  int64_t(std::count(indexer->full.begin(), indexer->full.end(),
                                     true)));
  printQuantization(quantization, lines);
  lines.add("bos token", bosToken);
  std::string eos;
  for (int64_t id : eosTokens)
    eos += (eos.empty() ? "" : ", ") + std::to_string(id);
  lines.add("eos tokens", eos.empty() ? "none" : eos);
  lines.add("pad token", padToken);
  return std::move(lines.text);
}

} // namespace mla
