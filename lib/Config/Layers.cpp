//===- Layers.cpp - what differs from layer to layer ----------------------===//
//
// Part of mla. Which layers hold experts, and which run their own indexer.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"
#include <algorithm>

namespace mla::config {

/// Reads a list of `layers` words, each one of `yes` (true) or `no` (false).
static std::vector<bool> readWords(const JsonValue &list, int64_t layers,
                                   std::string_view yes, std::string_view no) {
  std::vector<bool> out(static_cast<size_t>(layers), true);
  std::vector<JsonValue> elements = list.elements();
  if (!list.isArray())
    return out;
  if (elements.size() != out.size()) {
    list.fail("one entry for each of " + std::to_string(layers) + " layers");
    return out;
  }
  std::string expected;
  expected.append("\"").append(yes).append("\" or \"").append(no).append("\"");
  for (size_t i = 0; i < elements.size(); ++i) {
    std::string word = elements[i].isString() ? elements[i].string() : "";
    if (word != yes && word != no)
      elements[i].fail(expected);
    out[i] = word != no;
  }
  return out;
}

std::vector<bool> readMoeLayers(ConfigReader &reader, int64_t layers) {
  // transformers writes both keys and lets the list win, with a
  // first_k_dense_replace that may be no more than its class's default.
  if (JsonValue types = reader["mlp_layer_types"]; types.present())
    return readWords(types, layers, "sparse", "dense");
  int64_t dense = reader["first_k_dense_replace"].integer(0, maxLayers);
  std::vector<bool> out(static_cast<size_t>(layers), true);
  std::fill(out.begin(), out.begin() + std::min(dense, layers), false);
  return out;
}

/// The pattern of "FSSF", of a list of words, or nothing if there is no
/// index_topk_pattern.
static std::optional<std::vector<bool>> readPattern(const JsonValue &v,
                                                    int64_t layers) {
  if (!v.present())
    return std::nullopt;
  if (!v.isString())
    return readWords(v, layers, "full", "shared");
  std::string letters = v.string();
  if (letters.size() != static_cast<size_t>(layers) ||
      letters.find_first_not_of("FS") != std::string::npos) {
    v.fail("one letter F or S for each of " + std::to_string(layers) +
           " layers");
    return std::nullopt;
  }
  std::vector<bool> out;
  for (char c : letters)
    out.push_back(c == 'F');
  return out;
}

static std::vector<bool> readIndexerLayers(ConfigReader &reader,
                                           int64_t layers) {
  JsonValue types = reader["indexer_types"];
  JsonValue freqKey = reader["index_topk_freq"];
  JsonValue offsetKey = reader["index_skip_topk_offset"];
  int64_t freq = freqKey.present() ? freqKey.integer(1, maxLayers) : 1;
  int64_t offset = offsetKey.present() ? offsetKey.integer(0, maxLayers) : 2;
  std::optional<std::vector<bool>> pattern =
      readPattern(reader["index_topk_pattern"], layers);

  std::vector<bool> derived;
  if (pattern) {
    derived = *pattern;
  } else {
    for (int64_t i = 0; i < layers; ++i)
      derived.push_back(std::max<int64_t>(i - offset + 1, 0) % freq == 0);
  }
  if (!types.present())
    return derived;
  std::vector<bool> listed = readWords(types, layers, "full", "shared");
  // Only a schedule that the file states can contradict the list.
  if ((pattern || freqKey.present()) && types.isArray() &&
      types.size() == listed.size() && listed != derived) {
    size_t at = static_cast<size_t>(
        std::mismatch(listed.begin(), listed.end(), derived.begin()).first -
        listed.begin());
    types.at(at).failWith(std::string("contradicts ") +
                          (pattern
                               ? "index_topk_pattern"
                               : "index_topk_freq and index_skip_topk_offset") +
                          ": expected \"" + (derived[at] ? "full" : "shared") +
                          "\", found " + types.at(at).describe());
  }
  return listed;
}

std::optional<IndexerConfig> readIndexer(ConfigReader &reader,
                                         const ArchitectureInfo &info,
                                         int64_t layers) {
  if (!info.sparse) {
    for (std::string_view key : {"index_topk", "index_n_heads"})
      if (reader[key].present())
        reader[key].fail("no sparse indexer in a model of architecture " +
                         std::string(info.name));
    return std::nullopt;
  }
  IndexerConfig indexer;
  indexer.heads = reader.dim("index_n_heads", 1 << 16);
  indexer.headDim = reader.dim("index_head_dim", 1 << 16);
  indexer.topk = reader.dim("index_topk", maxPositionCount);
  indexer.full = readIndexerLayers(reader, layers);
  if (!indexer.full.empty() && !indexer.full.front())
    reader["indexer_types"].failWith(
        "expected layer 0 to be \"full\", found \"shared\": there is no "
        "earlier layer to take indices from");
  return indexer;
}

} // namespace mla::config
