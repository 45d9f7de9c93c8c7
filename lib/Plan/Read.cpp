//===- Read.cpp - from plan.json to a verified plan -----------------------===//
//
// Part of mla. The file may hold anything. Types, keys and references are
// checked here while reading; what then stands in memory is checked by
// verify(), in the same words that a compiler's own plan would be.
//
//===----------------------------------------------------------------------===//
#include "Internal.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <initializer_list>
#include <unordered_map>

namespace mla::plan {
namespace {
using Names = std::unordered_map<std::string, uint32_t>;

constexpr int64_t maxInteger = static_cast<int64_t>(detail::maxInteger);

class Reader {
public:
  explicit Reader(JsonDocument &document) : document(document) {}

  Result<Plan> run() {
    JsonValue root = document.root();
    MLA_RETURN_IF_ERROR(version(root["format"]));
    JsonValue ranks = root["ranks"], sampling = root["sampling"];
    JsonValue exchange = root["exchange_bytes"];
    keys(root, {"format", "producer", "target", "model", "checkpoint",
                "library", "tokenizer", "max_pages", "weights", "caches",
                "kernels", "programs", ranks.absent() ? "format" : "ranks",
                exchange.absent() ? "format" : "exchange_bytes",
                sampling.absent() ? "format" : "sampling"});
    plan.producer = root["producer"].string();
    target(root["target"]);
    model(root["model"]);
    if (!ranks.absent())
      this->ranks(ranks);
    checkpoint(root["checkpoint"]);
    library(root["library"]);
    for (JsonValue v : root["tokenizer"].elements())
      plan.tokenizerFiles.push_back(v.string());
    if (!exchange.absent())
      plan.exchangeBytes = size(exchange);
    plan.maxPages = root["max_pages"].integer(0, maxInteger);
    for (JsonValue v : root["weights"].elements())
      weight(v);
    for (JsonValue v : root["caches"].elements())
      cache(v);
    for (JsonValue v : root["kernels"].elements())
      kernel(v);
    for (JsonValue v : root["programs"].elements())
      plan.programs.push_back(program(v));
    if (!sampling.absent())
      plan.sampling = program(sampling);
    MLA_RETURN_IF_ERROR(document.status());
    MLA_RETURN_IF_ERROR(detail::verify(plan, document.name()));
    return std::move(plan);
  }

private:
  /// First of all, since a file of another version cannot be judged further.
  Status version(JsonValue v) {
    keys(v, {"major", "minor"});
    int64_t major = v["major"].integer(0, maxInteger);
    int64_t minor = v["minor"].integer(0, maxInteger);
    MLA_RETURN_IF_ERROR(document.status());
    auto text = [](int64_t a, int64_t b) {
      return std::to_string(a) + "." + std::to_string(b);
    };
    if (major != formatMajor || minor > formatMinor)
      return unsupported(
          document.name() + ": at /format: expected plan format " +
          text(formatMajor, 0) +
          (formatMinor ? " to " + text(formatMajor, formatMinor)
                       : std::string()) +
          ", found " + text(major, minor) + ": compile the plan anew");
    return {};
  }

  /// Records an error if `v` is no object or has a key that is not known. A key
  /// that is missing is recorded where it is read.
  void keys(JsonValue v, const std::vector<std::string_view> &known) {
    for (const auto &[key, value] : v.members())
      if (std::find(known.begin(), known.end(), key) == known.end())
        value.failWith("expected a key that this version knows, found another");
  }

  uint64_t hash(JsonValue v) {
    std::string text = v.string();
    uint64_t value = 0;
    bool good = text.size() == 16;
    for (char c : text) {
      int digit = c >= '0' && c <= '9'   ? c - '0'
                  : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                         : -1;
      good &= digit >= 0;
      value = value << 4 | static_cast<uint64_t>(digit & 15);
    }
    if (!good && v.isString())
      v.fail("16 hexadecimal digits in lower case");
    return good ? value : 0;
  }

  uint64_t size(JsonValue v) {
    return static_cast<uint64_t>(v.integer(0, maxInteger));
  }

  Format format(JsonValue v) {
    std::optional<Format> format = parseFormat(v.string());
    if (!format && v.isString())
      v.fail("a format");
    return format.value_or(Format::F32);
  }

  Expr expr(JsonValue v) {
    if (v.isInteger())
      return Expr(v.integer(-maxInteger, maxInteger));
    if (!v.isString()) {
      v.fail("an integer or an expression");
      return {};
    }
    Result<Expr> parsed = Expr::parse(v.string());
    if (!parsed.ok()) {
      v.failWith(parsed.status().message());
      return {};
    }
    return *std::move(parsed);
  }

  void target(JsonValue v) {
    keys(v, {"name", "cpu", "features", "kernel_abi"});
    plan.target.name = v["name"].string();
    plan.target.cpu = v["cpu"].string();
    for (JsonValue f : v["features"].elements())
      plan.target.features.push_back(f.string());
    plan.target.kernelAbi = v["kernel_abi"].integer(0, maxInteger);
  }

  void library(JsonValue v) {
    plan.library = v["file"].string();
    plan.libraryHash = hash(v["hash"]);
    if (v["binary"].absent())
      return keys(v, {"file", "hash"});
    keys(v, {"file", "hash", "binary", "binary_hash"});
    plan.binary = v["binary"].string();
    if (plan.binary.empty() && v["binary"].isString())
      v["binary"].fail("a file name");
    plan.binaryHash = hash(v["binary_hash"]);
  }

  void model(JsonValue v) {
    keys(v, {"architecture", "vocab_size", "layers", "hidden_size",
             "max_positions", "bos_token", "eos_tokens"});
    Model &m = plan.model;
    m.architecture = v["architecture"].string();
    m.vocabSize = v["vocab_size"].integer(0, maxInteger);
    m.layers = v["layers"].integer(0, maxInteger);
    m.hiddenSize = v["hidden_size"].integer(0, maxInteger);
    m.maxPositions = v["max_positions"].integer(0, maxInteger);
    JsonValue bos = v["bos_token"];
    if (bos.absent() || bos.present()) // null: the model has none
      m.bosToken = bos.integer(0, maxInteger);
    for (JsonValue e : v["eos_tokens"].elements())
      m.eosTokens.push_back(e.integer(0, maxInteger));
  }

  void checkpoint(JsonValue v) {
    Checkpoint &c = plan.checkpoint;
    std::string kind = v["kind"].string();
    if (kind == "none") {
      c.kind = Checkpoint::Kind::None;
      return keys(v, {"kind"});
    }
    if (kind == "synthetic") {
      c.kind = Checkpoint::Kind::Synthetic;
      keys(v, {"kind", "seed"});
      c.seed = v["seed"].integer(0, maxInteger);
      return;
    }
    if (kind != "safetensors") {
      if (v["kind"].isString())
        v["kind"].fail("\"none\", \"safetensors\" or \"synthetic\"");
      return;
    }
    c.kind = Checkpoint::Kind::Safetensors;
    keys(v, {"kind", "folder", "files"});
    c.folder = v["folder"].string();
    for (JsonValue f : v["files"].elements()) {
      keys(f, {"name", "size", "header_bytes", "header_hash"});
      c.files.push_back({f["name"].string(), size(f["size"]),
                         size(f["header_bytes"]), hash(f["header_hash"])});
    }
  }

  void ranks(JsonValue v) {
    JsonValue pages = v["page_ranks"];
    keys(v, {"count", "collectives", "layout",
             pages.absent() ? "count" : "page_ranks"});
    // A plan for one rank has none.
    plan.ranks.count = v["count"].integer(2, maxInteger);
    plan.ranks.layout = v["layout"].string();
    if (!pages.absent()) // 1 is left out.
      plan.ranks.pageRanks = pages.integer(2, maxInteger);
    std::string collectives = v["collectives"].string();
    if (collectives == "local")
      plan.ranks.collectives = Ranks::Collectives::Local;
    else if (collectives != "exchange" && v["collectives"].isString())
      v["collectives"].fail("\"exchange\" or \"local\"");
  }

  bool placed() const {
    return plan.checkpoint.kind == Checkpoint::Kind::Safetensors;
  }

  void weight(JsonValue v) {
    Weight w;
    w.name = v["name"].string();
    w.format = format(v["format"]);
    for (JsonValue d : v["shape"].elements())
      w.shape.push_back(d.integer(1, maxInteger));
    w.stacked = !v["stacked"].absent();
    std::vector<std::string_view> own = {"name", "format", "shape"};
    if (!v["layout"].absent()) {
      own.insert(own.end(), {"layout", "slice"});
      layout(v, w);
    }
    if (!v["shard"].absent()) {
      own.push_back("shard");
      shard(v["shard"], w);
    }
    std::vector<StoragePart> parts = storageParts(w.storedFormat(), 1, 1);
    for (size_t i = 1; i < parts.size(); ++i)
      own.push_back(parts[i].name);
    sourcesOf(v, own, w, w.sources);
    for (size_t i = 1; i < parts.size(); ++i) {
      JsonValue part = v[parts[i].name];
      WeightScales &scales = w.scales.emplace_back();
      if (!part.isObject()) {
        part.fail("an object");
        continue;
      }
      bool reciprocal = !part["reciprocal"].absent();
      if (reciprocal)
        scales.reciprocal = part["reciprocal"].boolean();
      sourcesOf(part,
                reciprocal ? std::vector<std::string_view>{"reciprocal"}
                           : std::vector<std::string_view>{},
                w, scales.sources);
    }
    add(weights, w.name, plan.weights.size());
    plan.weights.push_back(std::move(w));
  }

  void shard(JsonValue v, Weight &w) {
    keys(v, {"whole", "part", "splits"});
    Shard &s = w.shard.emplace();
    for (JsonValue d : v["whole"].elements())
      s.whole.push_back(d.integer(1, maxInteger));
    for (JsonValue d : v["part"].elements())
      s.part.push_back(d.integer(1, maxInteger));
    for (JsonValue split : v["splits"].elements()) {
      keys(split, {"dim", "count", "stride"});
      s.splits.push_back({split["dim"].integer(0, maxInteger),
                          split["count"].integer(1, maxInteger),
                          split["stride"].integer(1, maxInteger)});
    }
  }

  void layout(JsonValue v, Weight &w) {
    std::string name = v["layout"].string();
    w.layout = name == "rows" ? Layout::Rows : Layout::Packed;
    if (name != "rows" && name != "packed" && v["layout"].isString())
      v["layout"].fail("\"rows\" or \"packed\"");
    JsonValue slice = v["slice"];
    keys(slice, {"format", "rows", "columns", "first_row", "first_column",
                 "blocks", "block_rows", "row_stride", "transposed"});
    Slice &s = w.slice;
    s.format = format(slice["format"]);
    s.rows = slice["rows"].integer(1, maxInteger);
    s.columns = slice["columns"].integer(1, maxInteger);
    s.blockRows = slice["block_rows"].integer(1, maxInteger);
    auto optional = [&](const char *key, int64_t least, int64_t &to) {
      if (!slice[key].absent())
        to = slice[key].integer(least, maxInteger);
    };
    optional("first_row", 0, s.firstRow);
    optional("first_column", 0, s.firstColumn);
    optional("blocks", 1, s.blocks);
    optional("row_stride", 0, s.rowStride);
    if (!slice["transposed"].absent())
      s.transposed = slice["transposed"].boolean();
  }

  /// Where one part of `w` comes from: the keys of `v` beside `own`.
  void sourcesOf(JsonValue v, std::vector<std::string_view> own,
                 const Weight &w, std::vector<TensorSource> &out) {
    auto also = [&](std::initializer_list<std::string_view> names) {
      own.insert(own.end(), names);
      keys(v, own);
    };
    if (w.stacked) {
      also({"stacked"});
      stack(v["stacked"], w, out);
    } else if (placed()) {
      also({"tensor", "file", "offset"});
      out.push_back(
          {v["tensor"].string(), fileIndex(v["file"]), size(v["offset"])});
    } else {
      also({"tensor"});
      out.push_back({v["tensor"].string(), 0, 0});
    }
  }

  uint32_t fileIndex(JsonValue v) {
    size_t files = plan.checkpoint.files.size();
    int64_t index = v.integer(0, int64_t(UINT32_MAX));
    if (v.isInteger() && index >= static_cast<int64_t>(files))
      v.fail("a file from 0 to " + std::to_string(files) + " (exclusive)");
    return static_cast<uint32_t>(index);
  }

  void stack(JsonValue v, const Weight &w, std::vector<TensorSource> &out) {
    bool listed = !v["tensors"].absent();
    JsonValue at = v["at"];
    if (listed)
      keys(v, {"tensors", placed() ? "at" : "tensors"});
    else
      keys(v, {"pattern", "first", "count", placed() ? "at" : "count"});
    uint64_t count = listed ? v["tensors"].size() : size(v["count"]);
    // All counts are compared before anything of that size is made.
    if (sources += count;
        count > detail::maxSources || sources > detail::maxSources)
      return v.failWith("expected at most " +
                        std::to_string(detail::maxSources) +
                        " checkpoint tensors in the plan, found more");
    const std::vector<int64_t> &whole = w.shard ? w.shard->whole : w.shape;
    if (whole.empty() || static_cast<uint64_t>(whole[0]) != count)
      return v.failWith("expected as many tensors as the first dimension "
                        "says, found " +
                        std::to_string(count));
    if (placed() && (!at.isArray() || at.size() != count))
      return at.fail("an array of " + std::to_string(count));

    out.resize(count);
    if (listed) {
      std::vector<JsonValue> names = v["tensors"].elements();
      for (size_t i = 0; i < names.size(); ++i)
        out[i].tensor = names[i].string();
    } else {
      pattern(v, out);
    }
    if (!placed())
      return;
    std::vector<JsonValue> places = at.elements();
    for (size_t i = 0; i < places.size(); ++i) {
      if (!places[i].isArray() || places[i].size() != 2)
        return places[i].fail("an array of file and offset");
      out[i].file = fileIndex(places[i].at(0));
      out[i].offset = size(places[i].at(1));
    }
  }

  void pattern(JsonValue v, std::vector<TensorSource> &out) {
    std::string text = v["pattern"].string();
    int64_t first = v["first"].integer(0, 999'999'999);
    size_t hole = text.find(detail::placeholder);
    if (text.size() > detail::maxNameBytes || hole == std::string::npos ||
        text.find(detail::placeholder, hole + 1) != std::string::npos) {
      if (v["pattern"].isString())
        v["pattern"].fail("at most " + std::to_string(detail::maxNameBytes) +
                          " bytes with \"{}\" once");
      return;
    }
    std::string prefix = text.substr(0, hole);
    std::string suffix = text.substr(hole + detail::placeholder.size());
    for (TensorSource &s : out)
      s.tensor = prefix + std::to_string(first++) + suffix;
  }

  void cache(JsonValue v) {
    JsonValue kind = v["kind"];
    keys(v, {"name", "format", "width", kind.absent() ? "width" : "kind"});
    Cache c{v["name"].string(), format(v["format"]),
            v["width"].integer(0, maxInteger),
            kind.absent() ? "" : kind.string()};
    add(caches, c.name, plan.caches.size());
    plan.caches.push_back(std::move(c));
  }

  void kernel(JsonValue v) {
    JsonValue threads = v["threads"], shared = v["shared_bytes"];
    JsonValue collective = v["collective"];
    keys(v, {"name", "parameters", threads.absent() ? "name" : "threads",
             shared.absent() ? "name" : "shared_bytes",
             collective.absent() ? "name" : "collective"});
    Kernel k;
    k.name = v["name"].string();
    if (!threads.absent())
      k.threads = threads.integer(0, maxInteger);
    if (!shared.absent())
      k.sharedBytes = shared.integer(0, maxInteger);
    if (!collective.absent())
      k.collective = this->collective(collective);
    for (JsonValue p : v["parameters"].elements())
      k.parameters.push_back(parameter(p));
    add(kernels, k.name, plan.kernels.size());
    plan.kernels.push_back(std::move(k));
  }

  Collective collective(JsonValue v) {
    std::optional<Collective> collective = parseCollective(v.string());
    if (!collective && v.isString())
      v.fail("a collective");
    return collective.value_or(Collective::None);
  }

  Parameter parameter(JsonValue v) {
    std::string text = v.string();
    size_t space = std::min(text.find(' '), text.size());
    std::string kind = text.substr(0, space);
    Parameter p;
    if (text == "scalar" || text == "peers") {
      p.kind = text == "scalar" ? Parameter::Kind::Scalar
                                : Parameter::Kind::Peers;
      return p;
    }
    std::optional<Format> format = parseFormat(
        std::string_view(text).substr(std::min(space + 1, text.size())));
    bool known = true;
    if (kind == "table")
      p.kind = Parameter::Kind::Table;
    else if (kind == "write")
      p.access = Access::Write;
    else if (kind == "readwrite")
      p.access = Access::ReadWrite;
    else
      known = kind == "read";
    if ((!known || !format) && v.isString())
      v.fail("\"scalar\", \"peers\", or \"read\", \"write\", \"readwrite\" or \"table\" "
             "and a format");
    p.format = format.value_or(Format::F32);
    return p;
  }

  Program program(JsonValue v) {
    keys(v, {"name", "max_tokens", "max_sequences", "max_outputs",
             "workspace_bytes", "workspaces", "launches"});
    Program p;
    p.name = v["name"].string();
    p.maxTokens = v["max_tokens"].integer(0, maxInteger);
    p.maxSequences = v["max_sequences"].integer(0, maxInteger);
    p.maxOutputs = v["max_outputs"].integer(0, maxInteger);
    p.workspaceBytes = size(v["workspace_bytes"]);
    Names workspaces;
    for (JsonValue w : v["workspaces"].elements()) {
      keys(w, {"name", "format", "shape", "offset"});
      Workspace space{
          w["name"].string(), format(w["format"]), {}, size(w["offset"])};
      for (JsonValue d : w["shape"].elements())
        space.shape.push_back(expr(d));
      add(workspaces, space.name, p.workspaces.size());
      p.workspaces.push_back(std::move(space));
    }
    for (JsonValue l : v["launches"].elements()) {
      JsonValue bytes = l["weight_bytes"];
      keys(l, {"origin", "kernel", "grid", "arguments",
               bytes.absent() ? "grid" : "weight_bytes"});
      Launch launch;
      launch.origin = l["origin"].string();
      launch.kernel = find(kernels, l["kernel"], "the name of a kernel");
      launch.grid = expr(l["grid"]);
      if (!bytes.absent())
        launch.weightBytes = expr(bytes);
      for (JsonValue a : l["arguments"].elements())
        launch.arguments.push_back(argument(a, workspaces));
      p.launches.push_back(std::move(launch));
    }
    return p;
  }

  Argument argument(JsonValue v, const Names &workspaces) {
    if (!v.isObject() || v.size() != 1) {
      v.fail("an object with one key");
      return {Expr()};
    }
    const auto [kind, value] = v.members()[0];
    if (kind == "weight")
      return {WeightRef{find(weights, value, "the name of a weight")}};
    if (kind == "cache")
      return {CacheRef{find(caches, value, "the name of a cache")}};
    if (kind == "workspace")
      return {WorkspaceRef{
          find(workspaces, value, "the name of a workspace of the program")}};
    if (kind == "scalar")
      return {expr(value)};
    if (kind == "peers") {
      if (!value.boolean() && value.isBoolean())
        value.fail("true");
      return {PeersRef{}};
    }
    if (kind == "port") {
      std::string name = value.string();
      for (size_t i = 0; i < portCount; ++i)
        if (name == portName(static_cast<Port>(i)))
          return {static_cast<Port>(i)};
      value.fail("the name of a port");
      return {Expr()};
    }
    v.failWith("expected \"weight\", \"cache\", \"workspace\", \"port\", "
               "\"peers\" or \"scalar\", found another key");
    return {Expr()};
  }

  /// The first of two equal names wins here; verify() reports the second.
  void add(Names &names, const std::string &name, size_t index) {
    names.emplace(name, static_cast<uint32_t>(index));
  }
  uint32_t find(const Names &names, JsonValue v, std::string_view expected) {
    if (v.isString())
      if (auto it = names.find(v.string()); it != names.end())
        return it->second;
    v.fail(expected);
    return 0;
  }

  JsonDocument &document;
  Plan plan;
  Names weights, caches, kernels;
  uint64_t sources = 0; // checkpoint tensors so far
};

} // namespace

Result<Plan> parse(std::string_view json, const std::string &name) {
  try {
    if (json.size() > detail::maxPlanBytes)
      return invalid(name + ": expected at most " +
                     std::to_string(detail::maxPlanBytes) + " bytes, found " +
                     std::to_string(json.size()));
    MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                         JsonDocument::parseText(json, name));
    return Reader(*document).run();
  } catch (const std::exception &e) { // Memory ran out.
    return exhausted(name + ": the plan cannot be read: " + e.what());
  }
}

} // namespace mla::plan
