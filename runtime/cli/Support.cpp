//===- Support.cpp - small things that subcommands share ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Support.h"
#include "mla/Config/SafetensorsWriter.h"
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <ostream>

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
  std::vector<TensorSpec> tensors;
  for (const NamedMatrix &m : matrices)
    tensors.push_back({m.name, "F32", {m.rows, m.columns}});
  std::filesystem::path draft = path;
  draft += ".part";
  SafetensorsFile file(draft, tensors);
  Status status;
  for (size_t i = 0; i < matrices.size() && status.ok(); ++i)
    status = file.write(i, 0, std::as_bytes(std::span(matrices[i].values)));
  if (status.ok())
    status = file.finish();
  std::error_code error;
  if (status.ok()) {
    std::filesystem::rename(draft, path, error);
    if (error)
      status =
          ioError("cannot write " + path.string() + ": " + error.message());
  }
  if (!status.ok())
    std::filesystem::remove(draft, error);
  return status;
}

Result<bool> samplesOnDevice(const runtime::Engine &engine, SampleOn where) {
  if (where == SampleOn::Device && !engine.canSample())
    return unsupported("--sample-on device: the plan for " +
                       engine.plan().target.name +
                       " does not choose tokens on its device");
  return where != SampleOn::Host && engine.canSample();
}

Status stepAndChoose(runtime::Engine &engine,
                     std::span<const runtime::StepSequence> sequences,
                     bool onDevice) {
  if (!onDevice)
    return engine.step(sequences).status();
  std::vector<runtime::Sampling> greedy(sequences.size());
  return engine.stepAndSample(sequences, greedy).status();
}

void reportExchange(runtime::Engine &engine, std::ostream &err) {
  Result<hal::DeviceFacts> facts = engine.facts();
  if (facts.ok() &&
      facts->exchange.find("memory of the host") != std::string::npos)
    err << "warning: the ranks exchange rows by " << facts->exchange
        << ", which is slower than peer access\n";
}

void reportSaturation(const runtime::Engine &engine, std::ostream &err) {
  if (int64_t values = engine.saturatedValues())
    err << "warning: " << values
        << " values were beyond the range of the FP8 latent cache and were cut "
           "off; measure its scales with 'mla-run calibrate' and give them to "
           "mla-compile --kv-scales\n";
}

} // namespace mla::cli
