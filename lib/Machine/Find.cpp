//===- Find.cpp - machines by name ----------------------------------------===//
//
// Part of mla. The files of share/machines are texts in this library, so that
// nothing depends on where it is installed.
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"
#include <algorithm>

namespace mla {
namespace {

struct Shipped {
  std::string_view name, text;
};
constexpr Shipped shipped[] = {
#include "Shipped.inc"
};

struct Default {
  std::string_view architecture, machine;
};
constexpr Default defaults[] = {{"sm_120a", "rtx-pro-6000x8-pcie5"},
                                {"sm_90a", "h200x1"},
                                {"sm_100a", "b200x8"},
                                {"host", "host"}};

std::string list(const std::vector<std::string> &names) {
  std::string out;
  for (const std::string &name : names)
    out += (out.empty() ? "" : ", ") + name;
  return out;
}

} // namespace

std::vector<std::string> shippedMachines() {
  std::vector<std::string> names;
  for (const Shipped &s : shipped)
    names.emplace_back(s.name);
  std::sort(names.begin(), names.end());
  return names;
}

Result<Machine> findMachine(std::string_view nameOrPath) {
  for (const Shipped &s : shipped)
    if (s.name == nameOrPath)
      return Machine::parse(s.text, "share/machines/" + std::string(s.name) +
                                        ".json");
  std::filesystem::path file{std::string(nameOrPath)};
  std::error_code ec;
  if (nameOrPath.empty() || !std::filesystem::exists(file, ec))
    return notFound("machine '" + std::string(nameOrPath) +
                    "': expected a file or one of " + list(shippedMachines()));
  return Machine::read(file);
}

Result<Machine> defaultMachine(std::string_view architecture) {
  std::vector<std::string> names;
  for (const Default &d : defaults) {
    if (d.architecture == architecture)
      return findMachine(d.machine);
    names.emplace_back(d.architecture);
  }
  return notFound("no machine stands for architecture '" +
                  std::string(architecture) + "': expected one of " +
                  list(names));
}

} // namespace mla
