//===- Summary.cpp - what a quantization has done -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include "runtime/quantize/Layout.h"
#include "runtime/quantize/Quantize.h"
#include <iomanip>
#include <map>
#include <ostream>
#include <sstream>

namespace mla::quantize {
namespace {

struct Row {
  size_t modules = 0;
  uint64_t elements = 0, before = 0, after = 0;
};

std::string fixed(double value) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  out << std::fixed << std::setprecision(2) << value;
  return out.str();
}

void printRow(std::ostream &out, const std::string &name, const Row &row) {
  auto cell = [&](int width, const std::string &text) {
    out << std::setw(width) << std::right << text;
  };
  out << std::left << std::setw(24) << name;
  cell(9, row.modules ? std::to_string(row.modules) : "");
  cell(12, runtime::formatBytes(row.before));
  cell(12, runtime::formatBytes(row.after));
  cell(14, row.elements ? fixed(8.0 * static_cast<double>(row.after) /
                                static_cast<double>(row.elements))
                        : "");
  out << "\n";
}

} // namespace

void printSummary(const Layout &layout, std::ostream &out) {
  std::map<std::string, Row> rows;
  std::map<std::string, std::vector<std::string>> kept;
  Row total, rest;
  bool nvfp4 = false;
  for (const Module &module : layout.modules) {
    if (!module.text)
      continue;
    Row &row = rows[std::string(formatName(module.format)) +
                    (module.changed ? "" : ", as it was")];
    for (Row *r : {&row, &total}) {
      ++r->modules;
      r->elements += module.elements;
      r->before += module.bytesBefore;
      r->after += module.bytesAfter;
    }
    if (!module.whyKept.empty())
      kept[module.whyKept].push_back(module.name);
    nvfp4 |= module.changed && module.format == Format::NVFP4;
  }
  for (const Copy &copy : layout.copies)
    rest.before += copy.tensor->bytes;
  for (const Conversion &c : layout.conversions)
    rest.before += c.bytesBefore();
  for (const TensorSpec &output : layout.outputs)
    rest.after += output.bytes();
  rest.before -= total.before;
  rest.after -= total.after;

  out << std::left << std::setw(24) << "format" << std::right << std::setw(9)
      << "modules" << std::setw(12) << "before" << std::setw(12) << "after"
      << std::setw(14) << "bits/weight"
      << "\n";
  for (const auto &[name, row] : rows)
    printRow(out, name, row);
  printRow(out, "other tensors", rest);
  total.before += rest.before;
  total.after += rest.after;
  printRow(out, "total", {0, 0, total.before, total.after});

  constexpr size_t shown = 3;
  if (!kept.empty())
    out << "stayed as they were:\n";
  for (const auto &[why, names] : kept) {
    out << "  " << why << " (" << names.size() << "): ";
    for (size_t i = 0; i < std::min(shown, names.size()); ++i)
      out << (i == 0 ? "" : ", ") << names[i];
    out << (names.size() > shown ? ", ...\n" : "\n");
  }
  if (nvfp4)
    out << "nvfp4 weights have no input_scale: activations stay in 16 bits\n";
}

} // namespace mla::quantize
