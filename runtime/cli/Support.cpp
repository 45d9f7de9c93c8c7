//===- Support.cpp - small things that subcommands share ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Support.h"
#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

namespace mla::cli {

std::string formatNumber(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

double median(std::vector<double> values) {
  if (values.empty())
    return 0;
  std::sort(values.begin(), values.end());
  size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

std::vector<int32_t> spreadIds(int64_t count, int64_t vocab, uint64_t seed) {
  std::vector<int32_t> ids;
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  for (int64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    ids.push_back(
        static_cast<int32_t>((state >> 33) % static_cast<uint64_t>(vocab)));
  }
  return ids;
}

Result<std::vector<int32_t>> parseIds(const std::string &text) {
  std::vector<int32_t> ids;
  const char *at = text.data();
  const char *end = at + text.size();
  auto skipSpaces = [&] {
    while (at != end && *at == ' ')
      ++at;
  };
  while (true) {
    int32_t id = 0;
    skipSpaces();
    auto [rest, error] = std::from_chars(at, end, id);
    if (error != std::errc())
      return invalid("expected numbers with commas between them, found "
                     "'" +
                     std::string(at, end) + "'");
    ids.push_back(id);
    at = rest;
    skipSpaces();
    if (at == end)
      return ids;
    if (*at++ != ',')
      return invalid("expected a comma before '" + std::string(at - 1, end) +
                     "'");
  }
}

Status writeSafetensors(const std::filesystem::path &path,
                        std::span<const NamedMatrix> matrices) {
  auto json = nlohmann::ordered_json::object();
  uint64_t offset = 0;
  for (const NamedMatrix &m : matrices) {
    uint64_t end = offset + m.values.size() * sizeof(float);
    json[m.name] = {{"dtype", "F32"},
                    {"shape", {m.rows, m.columns}},
                    {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string header = json.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  auto size = static_cast<uint64_t>(header.size());
  std::array<char, 8> prefix{};
  for (size_t i = 0; i < prefix.size(); ++i)
    prefix[i] = static_cast<char>(size >> (8 * i) & 0xFF); // Little-endian.

  std::filesystem::path draft = path;
  draft += ".part";
  std::ofstream file(draft, std::ios::binary);
  file.write(prefix.data(), prefix.size());
  file << header;
  for (const NamedMatrix &m : matrices)
    file.write(reinterpret_cast<const char *>(m.values.data()),
               static_cast<std::streamsize>(m.values.size() * sizeof(float)));
  file.close();
  std::error_code error;
  if (!file) {
    std::string why = std::strerror(errno);
    std::filesystem::remove(draft, error);
    return ioError("cannot write " + path.string() + ": " + why);
  }
  std::filesystem::rename(draft, path, error);
  if (error)
    return ioError("cannot write " + path.string() + ": " + error.message());
  return {};
}

} // namespace mla::cli
