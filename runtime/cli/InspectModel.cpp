//===- InspectModel.cpp - mla-run inspect of a model folder ---------------===//
//
// Part of mla. What config.json and the headers of the shards say: which
// modules are stored how, what is skipped, what contradicts what, and what is
// missing. No tensor is read but the scales of the cache.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/KvScales.h"
#include "mla/Config/StoredWeight.h"
#include "runtime/base/Memory.h"
#include "runtime/cli/Commands.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <array>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

namespace mla::cli {
namespace {

using runtime::formatBytes;

/// Kinds of modules, in the order of the table.
constexpr std::array kindNames = {
    "embedding",      "norms",  "attention",      "indexer", "dense MLP",
    "routed experts", "router", "shared experts", "head"};
enum Kind : size_t {
  Embedding,
  Norms,
  Attention,
  Indexer,
  DenseMlp,
  RoutedExperts,
  Router,
  SharedExperts,
  Head
};

Kind kindOf(std::string_view module) {
  auto has = [&](std::string_view part) {
    return module.find(part) != std::string_view::npos;
  };
  if (module == "lm_head")
    return Head;
  if (module == "model.embed_tokens")
    return Embedding;
  if (has(".indexer."))
    return Indexer;
  if (module.ends_with("norm"))
    return Norms;
  if (has(".self_attn."))
    return Attention;
  if (has(".mlp.experts."))
    return RoutedExperts;
  if (has(".mlp.shared_experts."))
    return SharedExperts;
  return module.ends_with(".mlp.gate") ? Router : DenseMlp;
}

std::string count(size_t n, const std::string &what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

/// One row of the table.
struct Sum {
  size_t weights = 0;
  size_t tensors = 0;
  uint64_t bytes = 0;
  uint64_t elements = 0;
  double bitsPerWeight() const {
    return elements ? 8.0 * double(bytes) / double(elements) : 0;
  }
  void add(const Sum &other) {
    weights += other.weights;
    tensors += other.tensors;
    bytes += other.bytes;
    elements += other.elements;
  }
};

/// Everything that is told of a model.
struct ModelReport {
  const ModelConfig &config;
  const Checkpoint &checkpoint;
  std::map<std::pair<Kind, Format>, Sum> sums = {};
  KvScales kvScales = {};
  std::vector<WeightFinder::Skipped> skipped = {};
  std::vector<std::string> notes = {};
  std::vector<std::string> warnings = {};
  std::vector<std::string> missing = {};
  std::vector<std::string> misfits = {};
  /// What is missing or wrong, as one error.
  Status status = {};

  uint64_t bytes() const {
    uint64_t sum = 0;
    for (const CheckpointFile &file : checkpoint.files())
      sum += file.size;
    return sum;
  }
};

//===----------------------------------------------------------------------===//
// Collecting
//===----------------------------------------------------------------------===//

void addWeight(const ModelWeight &weight, const StoredWeight &stored,
               ModelReport &report) {
  if (stored.parts.empty())
    return;
  Sum one = {1, stored.parts.size(), 0, 1};
  for (const StoredPart &part : stored.parts)
    one.bytes += part.tensor->bytes;
  for (int64_t dim : weight.shape)
    one.elements *= static_cast<uint64_t>(dim);
  report.sums[{kindOf(weight.module), stored.format}].add(one);
}

/// Router biases that lost the digits by which experts are told apart.
struct CoarseBiases {
  size_t layers = 0;
  Format format = Format::F32;
  std::string first;

  void look(const ModelWeight &weight, const StoredWeight &stored) {
    if (weight.suffix != ".e_score_correction_bias" || stored.parts.empty() ||
        stored.format == Format::F32)
      return;
    if (layers++ == 0) {
      format = stored.format;
      first = weight.name();
    }
  }
  void tell(ModelReport &report) const {
    if (layers)
      report.warnings.push_back(
          "e_score_correction_bias is stored in " +
          std::string(formatName(format)) + ", not in f32, in " +
          count(layers, "layer") + " (first " + first +
          "): values near 7 or 11 lose the digits that tell experts apart, and "
          "most tokens go to other experts than the model was trained with");
  }
};

void tellContradictions(const WeightFinder &finder, ModelReport &report) {
  const std::string &source = report.config.quantization.source;
  for (const FormatContradiction &c : finder.contradictions())
    report.notes.push_back(
        (source.empty() ? report.config.file.string() : source) + " says " +
        std::string(formatName(c.expected)) + " of " +
        count(c.weights, "weight") +
        (c.weights == 1 ? " that is " : " that are ") +
        std::string(formatName(c.found)) + " in the files (first " + c.example +
        "); the files decide");
}

void tellUnused(WeightFinder &finder, ModelReport &report) {
  // The scales of the cache are not skipped.
  for (const std::string &name : report.kvScales.tensors)
    finder.markUsed(name);
  WeightFinder::Unused unused = finder.unused(report.config.tieWordEmbeddings);
  bool drafting = false;
  for (const WeightFinder::Skipped &group : unused.skipped)
    drafting |= group.what.find("multi-token") != std::string::npos;
  if (report.config.nextnLayers > 0 && !drafting)
    report.notes.push_back("config.json announces " +
                           count(static_cast<size_t>(report.config.nextnLayers),
                                 "multi-token-prediction layer") +
                           ", the files have none; it would not be used");
  report.skipped = std::move(unused.skipped);
  if (unused.unknown.empty())
    return;
  constexpr size_t shown = 5;
  std::string text =
      "no use for " + count(unused.unknown.size(), "tensor") + ": ";
  for (size_t i = 0; i < std::min(shown, unused.unknown.size()); ++i)
    text += (i ? ", " : "") + unused.unknown[i]->name;
  report.warnings.push_back(text +
                            (unused.unknown.size() > shown ? ", ..." : ""));
}

ModelReport collect(const ModelConfig &config, const Checkpoint &checkpoint) {
  ModelReport report{config, checkpoint};
  WeightFinder finder(config, checkpoint);
  CoarseBiases biases;
  bool headless = !config.tieWordEmbeddings && !finder.holds("lm_head");
  for (const ModelWeight &weight : modelWeights(config)) {
    if (headless && weight.module == "lm_head")
      continue;
    StoredWeight stored = finder.find(weight);
    addWeight(weight, stored, report);
    biases.look(weight, stored);
  }
  biases.tell(report);
  if (headless)
    report.warnings.push_back("no lm_head.weight; the embedding is used, "
                              "although the config does not tie them");
  tellContradictions(finder, report);

  std::string problems = finder.status().message();
  Result<KvScales> scales = checkpointKvScales(config, checkpoint);
  report.misfits = finder.misfits();
  if (scales.ok()) {
    report.kvScales = *std::move(scales);
    for (const std::string &warning : report.kvScales.warnings)
      report.warnings.push_back(warning);
  } else {
    report.misfits.push_back(scales.status().message());
    problems += (problems.empty() ? "" : "\n") + scales.status().message();
  }
  tellUnused(finder, report);
  report.missing = finder.missing();
  if (!problems.empty())
    report.status = invalid(std::move(problems));
  return report;
}

//===----------------------------------------------------------------------===//
// Printing
//===----------------------------------------------------------------------===//

size_t moeLayers(const ModelConfig &config) {
  return static_cast<size_t>(
      std::count(config.moeLayer.begin(), config.moeLayer.end(), true));
}

void printModel(const ModelConfig &config, std::ostream &out) {
  const MoeConfig &moe = config.moe;
  out << "model        " << config.architectureName << ", " << config.layers
      << " layers (" << moeLayers(config) << " with " << moe.experts
      << " experts, " << moe.topk << " a token, " << moe.sharedExperts
      << " shared), hidden size " << config.hiddenSize << ", vocabulary "
      << config.vocabSize << ", context " << config.maxPositions << "\n";
  const QuantizationConfig &q = config.quantization;
  out << "announced    ";
  if (q.source.empty())
    out << formatName(config.dtype) << "\n";
  else
    out << (q.algorithm.empty() ? std::string(formatName(config.dtype))
                                : q.algorithm)
        << ", by " << q.source << "\n";
}

void printRow(std::ostream &out, std::string_view kind, std::string_view format,
              const Sum &sum) {
  out << "  " << std::left << std::setw(16) << kind << std::setw(10) << format
      << std::right << std::setw(9) << sum.weights << std::setw(10)
      << sum.tensors << std::setw(12) << formatBytes(sum.bytes) << std::setw(8)
      << formatNumber(sum.bitsPerWeight(), 2) << "\n";
}

void printTable(const ModelReport &report, std::ostream &out) {
  out << "\n  " << std::left << std::setw(16) << "modules" << std::setw(10)
      << "format" << std::right << std::setw(9) << "weights" << std::setw(10)
      << "tensors" << std::setw(12) << "bytes" << std::setw(8) << "bits"
      << "\n";
  Sum all;
  for (const auto &[key, sum] : report.sums) {
    printRow(out, kindNames[key.first], formatName(key.second), sum);
    all.add(sum);
  }
  printRow(out, "all", "", all);
  out << "\n";
}

/// Layers with a scale, the smallest and the largest.
struct ScaleRange {
  size_t layers = 0;
  float low = 0, high = 0;
};

ScaleRange scaleRange(const KvScales &kv) {
  ScaleRange range;
  for (size_t i = 0; i < kv.scales.size(); ++i) {
    if (!kv.known[i])
      continue;
    range.low = range.layers ? std::min(range.low, kv.scales[i]) : kv.scales[i];
    range.high = std::max(range.high, kv.scales[i]);
    ++range.layers;
  }
  return range;
}

void printCache(const ModelReport &report, std::ostream &out) {
  const ModelConfig &config = report.config;
  out << "cache        " << config.latentWidth()
      << " values a token and layer; "
      << (config.quantization.fp8KvCache ? "the checkpoint asks for fp8_e4m3"
                                         : "the checkpoint asks for no format");
  ScaleRange range = scaleRange(report.kvScales);
  if (range.layers)
    out << "; k_scale in " << range.layers << " of " << config.layers
        << " layers, " << range.low << " to " << range.high;
  else
    out << "; no scales";
  out << "\n";
}

void printText(const ModelReport &report, std::ostream &out) {
  printModel(report.config, out);
  out << "checkpoint   " << report.checkpoint.folder().string() << ", "
      << count(report.checkpoint.files().size(), "shard") << ", "
      << count(report.checkpoint.tensors().size(), "tensor") << ", "
      << formatBytes(report.bytes()) << "\n";
  printTable(report, out);
  printCache(report, out);
  for (const WeightFinder::Skipped &group : report.skipped)
    out << "skipped      " << count(group.tensors, "tensor") << " of "
        << group.what << ", " << formatBytes(group.bytes) << "\n";
  for (const std::string &note : report.notes)
    out << "note         " << note << "\n";
  for (const std::string &warning : report.warnings)
    out << "WARNING      " << warning << "\n";
}

void printJson(const ModelReport &report, std::ostream &out) {
  using nlohmann::ordered_json;
  const ModelConfig &config = report.config;
  ordered_json json;
  json["model"] = {{"architecture", config.architectureName},
                   {"layers", config.layers},
                   {"moe_layers", moeLayers(config)},
                   {"experts", config.moe.experts},
                   {"experts_per_token", config.moe.topk},
                   {"shared_experts", config.moe.sharedExperts},
                   {"hidden_size", config.hiddenSize},
                   {"vocab_size", config.vocabSize},
                   {"max_positions", config.maxPositions}};
  json["announced"] = {{"algorithm", config.quantization.algorithm},
                       {"source", config.quantization.source}};
  json["checkpoint"] = {{"folder", report.checkpoint.folder().string()},
                        {"shards", report.checkpoint.files().size()},
                        {"tensors", report.checkpoint.tensors().size()},
                        {"bytes", report.bytes()}};
  json["weights"] = ordered_json::array();
  for (const auto &[key, sum] : report.sums)
    json["weights"].push_back({{"modules", kindNames[key.first]},
                               {"format", formatName(key.second)},
                               {"weights", sum.weights},
                               {"tensors", sum.tensors},
                               {"bytes", sum.bytes},
                               {"bits_per_weight", sum.bitsPerWeight()}});
  ScaleRange range = scaleRange(report.kvScales);
  json["cache"] = {{"values_per_token_and_layer", config.latentWidth()},
                   {"fp8", config.quantization.fp8KvCache},
                   {"layers_with_scale", range.layers}};
  if (range.layers) {
    json["cache"]["smallest_scale"] = range.low;
    json["cache"]["largest_scale"] = range.high;
  }
  json["skipped"] = ordered_json::array();
  for (const WeightFinder::Skipped &group : report.skipped)
    json["skipped"].push_back({{"what", group.what},
                               {"tensors", group.tensors},
                               {"bytes", group.bytes}});
  json["notes"] = report.notes;
  json["warnings"] = report.warnings;
  json["missing"] = report.missing;
  json["misfits"] = report.misfits;
  // Names in the files are any bytes that JSON let through.
  out << json.dump(2, ' ', false, ordered_json::error_handler_t::replace)
      << "\n";
}

} // namespace

Status inspectModel(const std::filesystem::path &folder, bool json,
                    std::ostream &out) {
  MLA_ASSIGN_OR_RETURN(ModelConfig config, ModelConfig::read(folder));
  MLA_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(folder));
  ModelReport report = collect(config, checkpoint);
  if (json)
    printJson(report, out);
  else
    printText(report, out);
  return report.status;
}

} // namespace mla::cli
