//===- Write.cpp - plan.json ----------------------------------------------===//
//
// Part of mla. The text is meant to be read by people too: keys in a fixed
// order, references by name, what fits on a line on one line. The experts of a
// layer are one pattern and a list of places, or the names of 70,000 tensors
// would be most of the file.
//
//===----------------------------------------------------------------------===//
#include "Internal.h"
#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>

namespace mla::plan {
using Json = nlohmann::ordered_json;
namespace {

//===----------------------------------------------------------------------===//
// Layout
//===----------------------------------------------------------------------===//

constexpr size_t lineWidth = 120;

/// Never throws on invalid UTF-8, which only an unverified plan can hold.
std::string dumpFlat(const Json &v) {
  return v.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Appends `v` on one line; false, with rubbish in `out`, once it would exceed
/// `limit` characters.
bool tryLine(const Json &v, size_t limit, std::string &out) {
  if (!v.is_structured()) {
    out += dumpFlat(v);
    return out.size() <= limit;
  }
  out += v.is_object() ? '{' : '[';
  bool first = true;
  for (auto it = v.begin(); it != v.end(); ++it) {
    if (!first)
      out += ", ";
    first = false;
    if (v.is_object())
      out += dumpFlat(it.key()) + ": ";
    if (!tryLine(*it, limit, out))
      return false;
  }
  out += v.is_object() ? '}' : ']';
  return out.size() <= limit;
}

void emit(const Json &v, size_t indent, size_t column, std::string &out) {
  std::string line;
  if (tryLine(v, lineWidth - std::min(lineWidth, column), line)) {
    out += line;
    return;
  }
  if (!v.is_structured()) {
    out += dumpFlat(v);
    return;
  }
  std::string pad(indent + 1, ' ');
  if (v.is_object()) {
    out += "{";
    for (auto it = v.begin(); it != v.end(); ++it) {
      std::string key = dumpFlat(it.key()) + ": ";
      out += (it == v.begin() ? "\n" : ",\n") + pad + key;
      emit(*it, indent + 1, indent + 1 + key.size(), out);
    }
    out.append("\n").append(indent, ' ').append("}");
    return;
  }
  // Elements that are no objects share lines; objects get one each.
  out += "[";
  size_t used = lineWidth;
  for (const Json &e : v) {
    std::string text;
    if (e.is_object() || !tryLine(e, lineWidth - indent, text)) {
      text.clear();
      emit(e, indent + 1, indent + 1, text);
      used = lineWidth; // This one and the next begin a line.
    }
    if (&e != &v.front())
      out += ",";
    if (used + text.size() + 2 > lineWidth) {
      out.append("\n").append(pad).append(text);
      used = e.is_object() ? lineWidth : indent + 1 + text.size();
    } else {
      out.append(" ").append(text);
      used += text.size() + 2;
    }
  }
  out.append("\n").append(indent, ' ').append("]");
}

//===----------------------------------------------------------------------===//
// Values
//===----------------------------------------------------------------------===//

std::string hex(uint64_t value) {
  constexpr char digits[] = "0123456789abcdef";
  std::string out(16, '0');
  for (size_t i = 16; i-- > 0; value >>= 4)
    out[i] = digits[value & 15];
  return out;
}

/// An integer where that is exact, else the canonical text.
Json toJson(const Expr &expr) {
  if (expr.isConstant()) {
    Result<int64_t> value = expr.evaluate({});
    constexpr int64_t limit = static_cast<int64_t>(detail::maxInteger);
    if (value.ok() && Expr(*value) == expr && *value >= -limit &&
        *value <= limit)
      return *value;
  }
  return expr.str();
}

Json toJson(const std::vector<Expr> &shape) {
  Json out = Json::array();
  for (const Expr &e : shape)
    out.push_back(toJson(e));
  return out;
}

/// The pattern whose "{}" counts up from `first` through all names, if any.
struct Pattern {
  std::string text;
  uint64_t first = 0;
};
std::optional<Pattern> findPattern(const std::vector<TensorSource> &sources) {
  if (sources.size() < 2)
    return std::nullopt;
  const std::string &name = sources[0].tensor;
  if (name.find(detail::placeholder) != std::string::npos)
    return std::nullopt;
  auto isDigit = [&](size_t i) {
    return i < name.size() && name[i] >= '0' && name[i] <= '9';
  };
  for (size_t begin = 0; begin < name.size(); ++begin) {
    if (!isDigit(begin))
      continue;
    size_t end = begin;
    while (isDigit(end))
      ++end;
    // Leading zeros would not come back; nine digits cannot overflow.
    if (end - begin <= 9 && (name[begin] != '0' || end - begin == 1)) {
      std::string prefix = name.substr(0, begin), suffix = name.substr(end);
      uint64_t first = std::stoull(name.substr(begin, end - begin));
      size_t i = 1;
      while (i < sources.size() &&
             sources[i].tensor == prefix + std::to_string(first + i) + suffix)
        ++i;
      if (i == sources.size())
        return Pattern{prefix + std::string(detail::placeholder) + suffix,
                       first};
    }
    begin = end;
  }
  return std::nullopt;
}

/// Adds where the tensors of one part of a weight come from.
void addSources(Json &out, const std::vector<TensorSource> &sources,
                bool stacked, bool placed) {
  if (!stacked) {
    TensorSource source = sources.empty() ? TensorSource() : sources[0];
    out["tensor"] = source.tensor;
    if (placed) {
      out["file"] = source.file;
      out["offset"] = source.offset;
    }
    return;
  }
  Json &stack = out["stacked"] = Json::object();
  if (std::optional<Pattern> pattern = findPattern(sources)) {
    stack["pattern"] = pattern->text;
    stack["first"] = pattern->first;
    stack["count"] = sources.size();
  } else {
    Json &names = stack["tensors"] = Json::array();
    for (const TensorSource &s : sources)
      names.push_back(s.tensor);
  }
  if (placed) {
    Json &at = stack["at"] = Json::array();
    for (const TensorSource &s : sources)
      at.push_back(Json::array({s.file, s.offset}));
  }
}

/// Keys at their defaults are left out.
Json toJson(const Slice &s) {
  Json out;
  out["format"] = formatName(s.format);
  out["rows"] = s.rows;
  out["columns"] = s.columns;
  if (s.firstRow != 0)
    out["first_row"] = s.firstRow;
  if (s.firstColumn != 0)
    out["first_column"] = s.firstColumn;
  if (s.blocks != 1)
    out["blocks"] = s.blocks;
  out["block_rows"] = s.blockRows;
  if (s.rowStride != 0)
    out["row_stride"] = s.rowStride;
  if (s.transposed)
    out["transposed"] = true;
  return out;
}

Json toJson(const Shard &s) {
  Json out;
  out["whole"] = s.whole;
  out["part"] = s.part;
  Json &splits = out["splits"] = Json::array();
  for (const Shard::Split &split : s.splits)
    splits.push_back({{"dim", split.dim},
                      {"count", split.count},
                      {"stride", split.stride}});
  return out;
}

Json toJson(const Weight &w, bool placed) {
  Json out;
  out["name"] = w.name;
  out["format"] = formatName(w.format);
  out["shape"] = w.shape;
  if (w.layout != Layout::Checkpoint) {
    out["layout"] = detail::layoutName(w.layout);
    out["slice"] = toJson(w.slice);
  }
  if (w.shard)
    out["shard"] = toJson(*w.shard);
  addSources(out, w.sources, w.stacked, placed);
  std::vector<StoragePart> parts = storageParts(w.storedFormat(), 1, 1);
  for (size_t i = 1; i < parts.size() && i <= w.scales.size(); ++i) {
    const WeightScales &scales = w.scales[i - 1];
    Json &part = out[std::string(parts[i].name)] = Json::object();
    addSources(part, scales.sources, w.stacked, placed);
    if (scales.reciprocal)
      part["reciprocal"] = true;
  }
  return out;
}

/// The name of element `index`, or, so that print() works on plans that
/// verify() refuses, something that no reader accepts.
template <typename T>
std::string nameOf(const std::vector<T> &all, uint32_t index) {
  return index < all.size() ? all[index].name
                            : std::to_string(index) + " (out of range)";
}

Json toJson(const Plan &plan, const Program &program,
            const Argument &argument) {
  return std::visit(
      [&](const auto &v) -> Json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, WeightRef>)
          return {{"weight", nameOf(plan.weights, v.index)}};
        else if constexpr (std::is_same_v<T, CacheRef>)
          return {{"cache", nameOf(plan.caches, v.index)}};
        else if constexpr (std::is_same_v<T, WorkspaceRef>)
          return {{"workspace", nameOf(program.workspaces, v.index)}};
        else if constexpr (std::is_same_v<T, Port>)
          return {{"port", portName(v)}};
        else if constexpr (std::is_same_v<T, PeersRef>)
          return {{"peers", true}};
        else
          return {{"scalar", toJson(v)}};
      },
      argument.value);
}

Json toJson(const Plan &plan, const Program &p) {
  Json out;
  out["name"] = p.name;
  out["max_tokens"] = p.maxTokens;
  out["max_sequences"] = p.maxSequences;
  out["max_outputs"] = p.maxOutputs;
  out["workspace_bytes"] = p.workspaceBytes;
  Json &workspaces = out["workspaces"] = Json::array();
  for (const Workspace &w : p.workspaces)
    workspaces.push_back({{"name", w.name},
                          {"format", formatName(w.format)},
                          {"shape", toJson(w.shape)},
                          {"offset", w.offset}});
  Json &launches = out["launches"] = Json::array();
  for (const Launch &l : p.launches) {
    Json arguments = Json::array();
    for (const Argument &a : l.arguments)
      arguments.push_back(toJson(plan, p, a));
    Json launch = {{"origin", l.origin},
                   {"kernel", nameOf(plan.kernels, l.kernel)},
                   {"grid", toJson(l.grid)}};
    if (!(l.weightBytes == Expr(0)))
      launch["weight_bytes"] = toJson(l.weightBytes);
    launch["arguments"] = std::move(arguments);
    launches.push_back(std::move(launch));
  }
  return out;
}

Json toJson(const Checkpoint &c) {
  Json out;
  out["kind"] = detail::checkpointKindName(c.kind);
  if (c.kind == Checkpoint::Kind::Synthetic)
    out["seed"] = c.seed;
  if (c.kind != Checkpoint::Kind::Safetensors)
    return out;
  out["folder"] = c.folder;
  Json &files = out["files"] = Json::array();
  for (const CheckpointFile &f : c.files)
    files.push_back({{"name", f.name},
                     {"size", f.size},
                     {"header_bytes", f.headerBytes},
                     {"header_hash", hex(f.headerHash)}});
  return out;
}

Json toJson(const Model &m) {
  Json out;
  out["architecture"] = m.architecture;
  out["vocab_size"] = m.vocabSize;
  out["layers"] = m.layers;
  out["hidden_size"] = m.hiddenSize;
  out["max_positions"] = m.maxPositions;
  out["bos_token"] = m.bosToken ? Json(*m.bosToken) : Json();
  out["eos_tokens"] = m.eosTokens;
  return out;
}

Json toJson(const Plan &plan) {
  Json out;
  out["format"] = {{"major", formatMajor}, {"minor", formatMinor}};
  out["producer"] = plan.producer;
  out["target"] = {{"name", plan.target.name},
                   {"cpu", plan.target.cpu},
                   {"features", plan.target.features},
                   {"kernel_abi", plan.target.kernelAbi}};
  out["model"] = toJson(plan.model);
  if (!plan.ranks.isOne())
    out["ranks"] = {{"count", plan.ranks.count},
                    {"collectives",
                     detail::collectivesName(plan.ranks.collectives)},
                    {"layout", plan.ranks.layout}};
  if (plan.ranks.pageRanks != 1)
    out["ranks"]["page_ranks"] = plan.ranks.pageRanks;
  out["checkpoint"] = toJson(plan.checkpoint);
  out["library"] = {{"file", plan.library}, {"hash", hex(plan.libraryHash)}};
  if (!plan.binary.empty()) {
    out["library"]["binary"] = plan.binary;
    out["library"]["binary_hash"] = hex(plan.binaryHash);
  }
  out["tokenizer"] = plan.tokenizerFiles;
  if (plan.exchangeBytes != 0)
    out["exchange_bytes"] = plan.exchangeBytes;
  out["max_pages"] = plan.maxPages;
  Json &weights = out["weights"] = Json::array();
  bool placed = plan.checkpoint.kind == Checkpoint::Kind::Safetensors;
  for (const Weight &w : plan.weights)
    weights.push_back(toJson(w, placed));
  Json &caches = out["caches"] = Json::array();
  for (const Cache &c : plan.caches) {
    Json cache = {{"name", c.name},
                  {"format", formatName(c.format)},
                  {"width", c.width}};
    if (!c.kind.empty())
      cache["kind"] = c.kind;
    caches.push_back(std::move(cache));
  }
  Json &kernels = out["kernels"] = Json::array();
  for (const Kernel &k : plan.kernels) {
    Json parameters = Json::array();
    for (const Parameter &p : k.parameters)
      parameters.push_back(detail::parameterText(p));
    Json kernel;
    kernel["name"] = k.name;
    if (k.threads != 0)
      kernel["threads"] = k.threads;
    if (k.sharedBytes != 0)
      kernel["shared_bytes"] = k.sharedBytes;
    if (k.collective != Collective::None)
      kernel["collective"] = collectiveName(k.collective);
    kernel["parameters"] = std::move(parameters);
    kernels.push_back(std::move(kernel));
  }
  Json &programs = out["programs"] = Json::array();
  for (const Program &p : plan.programs)
    programs.push_back(toJson(plan, p));
  if (plan.sampling)
    out["sampling"] = toJson(plan, *plan.sampling);
  return out;
}

} // namespace

std::string print(const Plan &plan) {
  std::string out;
  emit(toJson(plan), 0, 0, out);
  out += "\n";
  return out;
}

} // namespace mla::plan
