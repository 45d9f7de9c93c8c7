//===- Hints.cpp - what Linux says of the links ---------------------------===//
//
// Part of mla. An IOMMU that translates and bridges with ACS redirection send
// traffic between devices through the root complex, or nowhere. What cannot be
// read is not told: a hint is no error, and a container shows little of this.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Probe.h"
#include <algorithm>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>

namespace mla::probe {
namespace fs = std::filesystem;

namespace {

std::string readText(const fs::path &file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool isPciAddress(const std::string &name) {
  return name.size() == 12 && name[4] == ':' && name[7] == ':' &&
         name[10] == '.';
}

/// PCI addresses of the bridges above a device, from the device upwards.
std::vector<std::string> bridgesAbove(const std::string &address,
                                      const fs::path &sysfs) {
  std::error_code ec;
  fs::path place = fs::canonical(sysfs / "bus/pci/devices" / address, ec);
  std::vector<std::string> bridges;
  if (ec)
    return bridges;
  for (place = place.parent_path(); isPciAddress(place.filename().string());
       place = place.parent_path())
    bridges.push_back(place.filename().string());
  return bridges;
}

/// The ACS control register in a device's configuration space, or 0: none, or
/// not to be read (the extended space is for root only).
unsigned acsControl(const std::string &config) {
  auto byte = [&](size_t at) {
    return at < config.size() ? static_cast<unsigned char>(config[at]) : 0U;
  };
  auto word = [&](size_t at) { return byte(at) | byte(at + 1) << 8; };
  // A list of capabilities: id, then version and place of the next.
  size_t at = 0x100;
  for (int i = 0; i < 64 && at >= 0x100 && at + 8 <= config.size(); ++i) {
    if (word(at) == 0x000D)
      return word(at + 6);
    at = word(at + 2) >> 4;
  }
  return 0;
}

} // namespace

std::vector<std::string> linkHints(const std::vector<std::string> &addresses,
                                   const std::string &sysfsFolder) {
  const fs::path sysfs = sysfsFolder;
  std::vector<std::string> hints;
  std::error_code ec;

  // Groups of devices exist only where an IOMMU is in use; "identity" ones are
  // passed through untranslated.
  std::set<std::string> types;
  for (const std::string &address : addresses) {
    fs::path group = sysfs / "bus/pci/devices" / address / "iommu_group";
    if (!fs::exists(group, ec))
      continue;
    std::string type = readText(group / "type");
    type.erase(std::remove(type.begin(), type.end(), '\n'), type.end());
    types.insert(type.empty() ? "unknown" : type);
  }
  for (const std::string &type : types)
    if (type != "identity")
      hints.push_back("an IOMMU stands before the GPUs (domain type " + type +
                      "): traffic between them may be translated in the root "
                      "complex or fail; iommu=pt on the kernel's command line, or "
                      "no IOMMU in the firmware, lets it pass");

  std::set<std::string> redirecting;
  for (const std::string &address : addresses)
    for (const std::string &bridge : bridgesAbove(address, sysfs)) {
      // Request redirect, completion redirect, upstream forwarding.
      constexpr unsigned redirect = 1U << 2 | 1U << 3 | 1U << 4;
      if (acsControl(readText(sysfs / "bus/pci/devices" / bridge / "config")) &
          redirect)
        redirecting.insert(bridge);
    }
  if (!redirecting.empty()) {
    std::string list;
    for (const std::string &bridge : redirecting)
      list += (list.empty() ? "" : ", ") + bridge;
    hints.push_back("PCIe bridges redirect traffic between devices to the root "
                    "complex (ACS on " +
                    list + "); setpci can clear it, as root");
  }
  return hints;
}

std::string pcieKind(const std::string &address, const std::string &sysfs) {
  // "32.0 GT/s PCIe"; the current speed is lower while a GPU is idle.
  std::string text = readText(fs::path(sysfs) / "bus/pci/devices" / address /
                              "max_link_speed");
  const std::pair<const char *, const char *> kinds[] = {{"8.0 GT/s", "pcie3"},
                                                         {"16.0 GT/s", "pcie4"},
                                                         {"32.0 GT/s", "pcie5"},
                                                         {"64.0 GT/s", "pcie6"}};
  for (auto [speed, kind] : kinds)
    if (text.rfind(speed, 0) == 0)
      return kind;
  return "";
}

std::string machineName(const std::string &device, int64_t devices) {
  std::string name;
  for (char c : device) {
    bool letter = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9');
    if (c >= 'A' && c <= 'Z')
      name += static_cast<char>(c - 'A' + 'a');
    else if (letter || c == '.' || c == '_')
      name += c;
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (!name.empty() && name.back() == '-')
    name.pop_back();
  if (name.empty())
    name = "gpu";
  return name + "x" + std::to_string(devices);
}

} // namespace mla::probe
