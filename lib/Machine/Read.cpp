//===- Read.cpp - from a machine file to a Machine ------------------------===//
//
// Part of mla. Reads the keys in the order of docs/machines.md. All mistakes are
// collected; nothing is returned if there is one.
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <initializer_list>
#include <tuple>

namespace mla {
namespace {

constexpr int64_t maxBytes = int64_t(1) << 50;
constexpr int64_t maxDevices = 1024;
constexpr std::string_view linkKinds[] = {"none",  "pcie3", "pcie4",
                                          "pcie5", "pcie6", "nvlink"};
constexpr std::string_view collectiveMethods[] = {"fused", "nccl", "one_shot",
                                                  "two_shot"};
constexpr std::string_view sourceKinds[] = {"measured: ", "reported: ",
                                            "published: ", "assumed: "};

/// "a", "b" or "c"
template <typename Names> std::string quotedList(const Names &names) {
  std::string out;
  size_t n = std::size(names), i = 0;
  for (std::string_view name : names) {
    out += i == 0 ? "" : i + 1 == n ? " or " : ", ";
    out += '"' + std::string(name) + '"';
    ++i;
  }
  return out;
}

template <typename Names> bool among(const Names &names, std::string_view v) {
  return std::find(std::begin(names), std::end(names), v) != std::end(names);
}

class Reader {
public:
  explicit Reader(JsonDocument &document) : document(document) {}

  Result<Machine> run() {
    JsonValue root = document.root();
    // First of all: a file of another version cannot be judged further.
    root["version"].integer(1, 1);
    MLA_RETURN_IF_ERROR(document.status());
    keys(root, {"version", "name", "description", "architecture", "devices",
                "device", "link", "collectives", "sources"});
    m.name = root["name"].string();
    if (root["name"].isString() && !isName(m.name))
      root["name"].fail("a name of letters, digits, '.', '_' and '-'");
    m.description = root["description"].string();
    if (m.description.find('\n') != std::string::npos)
      root["description"].fail("one line");
    architecture(root["architecture"]);
    m.devices = root["devices"].integer(1, m.isHost() ? 1 : maxDevices);
    device(root["device"]);
    link(root["link"]);
    collectives(root["collectives"]);
    sources(root["sources"]);
    MLA_RETURN_IF_ERROR(document.status());
    return std::move(m);
  }

private:
  static bool isName(std::string_view text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
             (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
    });
  }

  /// Refuses what is no key of `v`. A missing key is refused where it is read.
  static void keys(const JsonValue &v,
                   std::initializer_list<std::string_view> known) {
    if (!v.isObject()) {
      v.fail("an object");
      return;
    }
    for (const auto &[key, value] : v.members())
      if (!among(known, key))
        value.failWith("unknown key; expected " + quotedList(known));
  }

  double number(const JsonValue &v, double low, double high) {
    note(v);
    if (v.isNumber())
      if (double x = v.number(); x >= low && x <= high)
        return x;
    char expected[80];
    std::snprintf(expected, sizeof expected, "a number from %g to %g", low,
                  high);
    v.fail(expected);
    return low;
  }
  int64_t integer(const JsonValue &v, int64_t low, int64_t high) {
    note(v);
    return v.integer(low, high);
  }
  /// `v` is a figure, which must have a source.
  void note(const JsonValue &v) {
    if (v.present())
      figures.push_back(v);
  }
  std::string choice(const JsonValue &v, auto &names) {
    std::string text = v.isString() ? v.string() : "";
    if (!among(names, text))
      v.fail(quotedList(names));
    return text;
  }

  void architecture(const JsonValue &v) {
    std::vector<std::string_view> names;
    for (const Capability &capability : capabilities())
      names.push_back(capability.name);
    names.push_back("host");
    m.architecture = choice(v, names);
  }

  void device(const JsonValue &v) {
    keys(v, {"multiprocessors", "clock_hz", "memory_bytes", "reserved_bytes",
             "l2_bytes", "read_bytes_per_second", "bf16_flops_per_second",
             "fp8_flops_per_second", "fp4_flops_per_second",
             "launch_gap_seconds"});
    if (!v.isObject())
      return;
    m.multiprocessors = integer(v["multiprocessors"], 1, 4096);
    m.clockHz = number(v["clock_hz"], 1e8, 1e10);
    m.memoryBytes = integer(v["memory_bytes"], 1 << 20, maxBytes);
    m.reservedBytes = integer(v["reserved_bytes"], 0, m.memoryBytes - 1);
    m.l2Bytes = integer(v["l2_bytes"], 0, int64_t(1) << 40);
    m.readBytesPerSecond = number(v["read_bytes_per_second"], 1e6, 1e15);
    m.bf16FlopsPerSecond = number(v["bf16_flops_per_second"], 0, 1e18);
    m.fp8FlopsPerSecond = number(v["fp8_flops_per_second"], 0, 1e18);
    m.fp4FlopsPerSecond = number(v["fp4_flops_per_second"], 0, 1e18);
    m.launchGapSeconds = number(v["launch_gap_seconds"], 0, 0.01);
  }

  void link(const JsonValue &v) {
    keys(v, {"kind", "peer_access", "write_bytes_per_second",
             "read_bytes_per_second", "latency_seconds"});
    if (!v.isObject())
      return;
    m.link.kind = choice(v["kind"], linkKinds);
    note(v["kind"]);
    // One device has no link, and without a link there is nothing to tell.
    if (m.devices == 1 && m.link.kind != "none")
      v["kind"].fail("\"none\" for one device");
    if (m.devices > 1 && m.link.kind == "none")
      v["kind"].fail("the link of " + std::to_string(m.devices) + " devices");
    double high = m.link.kind == "none" ? 0 : 1e14;
    if (v["peer_access"].present()) {
      note(v["peer_access"]);
      m.link.peerAccess = v["peer_access"].boolean();
      if (m.link.kind == "none")
        v["peer_access"].fail("no such key without a link");
    }
    m.link.writeBytesPerSecond = number(v["write_bytes_per_second"], 0, high);
    m.link.readBytesPerSecond = number(v["read_bytes_per_second"], 0, high);
    m.link.latencySeconds =
        number(v["latency_seconds"], 0, m.link.kind == "none" ? 0 : 0.01);
  }

  void collectives(const JsonValue &v) {
    auto order = [](const CollectiveTime &t) {
      return std::tuple(std::string_view(t.method), t.ranks, t.bytes);
    };
    for (const JsonValue &entry : v.elements()) {
      keys(entry, {"method", "ranks", "bytes", "seconds"});
      if (!entry.isObject())
        continue;
      CollectiveTime time;
      time.method = choice(entry["method"], collectiveMethods);
      if (m.devices < 2)
        entry["ranks"].fail("no collectives of one device");
      else
        time.ranks = entry["ranks"].integer(2, m.devices);
      time.bytes = entry["bytes"].integer(1, maxBytes);
      time.seconds = number(entry["seconds"], 1e-9, 100);
      // Interpolation counts on it, and no time is there twice.
      if (!m.collectives.empty() && order(time) <= order(m.collectives.back()))
        entry.failWith("expected an entry behind the one before it by method, "
                       "ranks and bytes");
      m.collectives.push_back(std::move(time));
    }
  }

  /// Every figure has a source, every source a place.
  void sources(const JsonValue &v) {
    for (const auto &[pointer, value] : v.members()) {
      std::string text = value.string();
      if (value.isString() &&
          std::none_of(std::begin(sourceKinds), std::end(sourceKinds),
                       [&](std::string_view kind) {
                         return text.starts_with(kind) &&
                                text.size() > kind.size();
                       }))
        value.fail("a text that begins with " + quotedList(sourceKinds));
      if (!exists(pointer))
        value.failWith("there is no " + pointer + " in this file");
      m.sources[pointer] = std::move(text);
    }
    if (!v.isObject())
      return;
    for (const JsonValue &figure : figures)
      if (m.sourceOf(figure.pointer()).empty())
        figure.failWith("no source: expected \"" + figure.pointer() +
                        "\" or what holds it among /sources");
  }

  bool exists(std::string_view pointer) const {
    JsonValue v = document.root();
    while (!pointer.empty()) {
      if (pointer[0] != '/')
        return false;
      pointer.remove_prefix(1);
      std::string_view key = pointer.substr(0, pointer.find('/'));
      pointer.remove_prefix(key.size());
      size_t index = 0;
      if (v.isArray()) {
        auto [end, error] =
            std::from_chars(key.data(), key.data() + key.size(), index);
        if (error != std::errc() || end != key.data() + key.size() ||
            std::to_string(index) != key)
          return false;
        v = v.at(index);
      } else {
        v = v[key];
      }
      if (!v.present())
        return false;
    }
    return true;
  }

  JsonDocument &document;
  Machine m;
  std::vector<JsonValue> figures;
};

} // namespace

std::string_view Machine::sourceOf(std::string_view pointer) const {
  for (;;) {
    if (auto it = sources.find(std::string(pointer)); it != sources.end())
      return it->second;
    if (pointer.empty())
      return {};
    size_t slash = pointer.rfind('/');
    pointer = pointer.substr(0, slash == pointer.npos ? 0 : slash);
  }
}

Result<Machine> Machine::parse(std::string_view text, std::string name) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseText(text, std::move(name)));
  return Reader(*document).run();
}

Result<Machine> Machine::read(const std::filesystem::path &file) {
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(file, 1 << 20));
  return parse(text, file.string());
}

} // namespace mla
