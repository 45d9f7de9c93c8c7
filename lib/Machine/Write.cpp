//===- Write.cpp - from a Machine to its file -----------------------------===//
//
// Part of mla. The form of the shipped files: keys in the order of
// docs/machines.md, one figure a line, numbers as short as they can be.
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"
#include <charconv>
#include <nlohmann/json.hpp>

namespace mla {
namespace {

std::string quoted(const std::string &text) {
  using Json = nlohmann::json;
  return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The shortest text that is read as the same number: "1.63e12", "5.1e-7".
std::string number(double v) {
  char buffer[40];
  std::string text(buffer, std::to_chars(buffer, std::end(buffer), v).ptr);
  // Not "e+12" and "e-07", as nobody writes them.
  if (size_t e = text.find('e'); e != std::string::npos) {
    size_t digits = e + 1;
    if (text[digits] == '+')
      text.erase(digits, 1);
    else if (text[digits] == '-')
      ++digits;
    while (text[digits] == '0')
      text.erase(digits, 1);
  }
  return text;
}
std::string number(int64_t v) { return std::to_string(v); }

class Writer {
public:
  std::string text = "{\n";
  /// "key": value at a depth, with a comma unless it is the last one there.
  void member(int depth, const std::string &key, const std::string &value,
              bool last = false) {
    text += std::string(static_cast<size_t>(depth) * 2, ' ') + quoted(key) +
            ": " + value + (last ? "\n" : ",\n");
  }
  void open(const std::string &key, char bracket) {
    text += "  " + quoted(key) + ": " + bracket + "\n";
  }
  void close(char bracket, bool last = false) {
    text += std::string("  ") + bracket + (last ? "\n" : ",\n");
  }
};

} // namespace

std::string Machine::json() const {
  Writer w;
  w.member(1, "version", "1");
  w.member(1, "name", quoted(name));
  w.member(1, "description", quoted(description));
  w.member(1, "architecture", quoted(architecture));
  w.member(1, "devices", number(devices));
  w.open("device", '{');
  w.member(2, "multiprocessors", number(multiprocessors));
  w.member(2, "clock_hz", number(clockHz));
  w.member(2, "memory_bytes", number(memoryBytes));
  w.member(2, "reserved_bytes", number(reservedBytes));
  w.member(2, "l2_bytes", number(l2Bytes));
  w.member(2, "read_bytes_per_second", number(readBytesPerSecond));
  w.member(2, "bf16_flops_per_second", number(bf16FlopsPerSecond));
  w.member(2, "fp8_flops_per_second", number(fp8FlopsPerSecond));
  w.member(2, "fp4_flops_per_second", number(fp4FlopsPerSecond));
  w.member(2, "launch_gap_seconds", number(launchGapSeconds), true);
  w.close('}');
  w.open("link", '{');
  w.member(2, "kind", quoted(link.kind));
  if (link.peerAccess)
    w.member(2, "peer_access", *link.peerAccess ? "true" : "false");
  w.member(2, "write_bytes_per_second", number(link.writeBytesPerSecond));
  w.member(2, "read_bytes_per_second", number(link.readBytesPerSecond));
  w.member(2, "latency_seconds", number(link.latencySeconds), true);
  w.close('}');
  if (collectives.empty()) {
    w.member(1, "collectives", "[]");
  } else {
    w.open("collectives", '[');
    for (const CollectiveTime &t : collectives)
      w.text += "    {\"method\": " + quoted(t.method) +
                ", \"ranks\": " + number(t.ranks) +
                ", \"bytes\": " + number(t.bytes) +
                ", \"seconds\": " + number(t.seconds) +
                (&t == &collectives.back() ? "}\n" : "},\n");
    w.close(']');
  }
  w.open("sources", '{');
  size_t left = sources.size();
  for (const auto &[pointer, source] : sources)
    w.member(2, pointer, quoted(source), --left == 0);
  w.close('}', true);
  return w.text + "}\n";
}

} // namespace mla
