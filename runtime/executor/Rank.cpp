//===- Rank.cpp - what one rank of a plan does in a step ------------------===//
//
// Part of mla. LoadRank.cpp has what it does before the first.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Rank.h"
#include "mla/Quant/Codec.h"
#include "mla/Quant/Matrix.h"
#include "mla/Support/Hash.h"
#include <algorithm>
#include <chrono>

namespace mla::runtime {
namespace {

/// Bytes that are written to a device at a time.
constexpr uint64_t stagingBytes = uint64_t(16) << 20;

std::string_view textOf(const std::byte *data, size_t size) {
  return {reinterpret_cast<const char *>(data), size};
}

} // namespace

MemoryUse &MemoryUse::operator+=(const MemoryUse &other) {
  weights += other.weights;
  cache += other.cache;
  workspace += other.workspace;
  ports += other.ports;
  return *this;
}

void Rank::giveUp(const Status &why) {
  if (transport)
    transport->abort(why);
}

std::vector<Rank::Input> Rank::inputsOf(const RankStep &step) {
  int64_t tokens = step.symbols[plan::Symbol::Tokens];
  int64_t outputs = step.symbols[plan::Symbol::Outputs];
  std::vector<Input> inputs = {
      {plan::Port::Ids, tokens},
      {plan::Port::Positions, tokens},
      {plan::Port::Sequence, tokens},
      {plan::Port::PageTable, step.symbols[plan::Symbol::Sequences] *
                                  step.symbols[plan::Symbol::Pages]},
      {plan::Port::Outputs, outputs}};
  if (step.sample) {
    inputs.push_back({plan::Port::Sampling, outputs * 4});
    inputs.push_back({plan::Port::TopK, outputs});
  }
  return inputs;
}

Status Rank::send(plan::Port which, int64_t elements) {
  auto p = static_cast<size_t>(which);
  auto bytes = static_cast<size_t>(elements) * sizeof(int32_t);
  if (sent[p].empty())
    return {}; // The device reads the host's view.
  std::span<const std::byte> now = ports[p]->host().first(bytes);
  // Most steps change few ports: a copy costs more than to look.
  if (std::equal(now.begin(), now.end(), sent[p].begin()))
    return {};
  MLA_RETURN_IF_ERROR(ownDevice->toDevice(*ports[p], bytes));
  std::copy(now.begin(), now.end(), sent[p].begin());
  return {};
}

Status Rank::begin(const RankStep &step, Rank &first) {
  current = step;
  current.symbols[plan::Symbol::Rank] = ownNumber;
  list = {};
  MLA_ASSIGN_OR_RETURN(list, programs[step.program].prepare(current.symbols));
  if (step.sample) {
    plan::SymbolValues rows = current.symbols;
    rows[plan::Symbol::Tokens] = current.symbols[plan::Symbol::Outputs];
    rows[plan::Symbol::Sequences] = 1;
    rows[plan::Symbol::Pages] = 1;
    MLA_ASSIGN_OR_RETURN(std::span<const hal::Dispatch> last,
                         sampler->prepare(rows));
    joined.assign(list.begin(), list.end());
    joined.insert(joined.end(), last.begin(), last.end());
    list = joined;
  }
  for (auto [which, elements] : inputsOf(step)) {
    if (this != &first)
      std::copy_n(first.port<const std::byte>(which),
                  static_cast<size_t>(elements) * sizeof(int32_t),
                  port<std::byte>(which));
    MLA_RETURN_IF_ERROR(send(which, elements));
  }
  int64_t tokens = step.symbols[plan::Symbol::Tokens];
  std::fill_n(port<int32_t>(plan::Port::Saturated), tokens, 0);
  MLA_RETURN_IF_ERROR(send(plan::Port::Saturated, tokens));
  // Not known any more, until end() has looked.
  std::vector<std::byte> &counts = sent[size_t(plan::Port::Saturated)];
  std::fill(counts.begin(), counts.end(), std::byte{0xFF});
  return {};
}

Status Rank::run() {
  if (!profiling)
    return ownDevice->run(*module, list, keyOf(current));
  for (size_t l = 0; l < list.size(); ++l)
    MLA_RETURN_IF_ERROR(run(l));
  return {};
}

Status Rank::run(size_t launch) {
  auto start = std::chrono::steady_clock::now();
  MLA_RETURN_IF_ERROR(ownDevice->run(*module, list.subspan(launch, 1)));
  MLA_RETURN_IF_ERROR(ownDevice->synchronize());
  double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  size_t own = plan.programs[current.program].launches.size();
  LaunchCost &cost = launch < own ? costs[current.program][launch]
                                  : costs.back()[launch - own];
  cost.fastest = cost.calls == 0 ? seconds : std::min(cost.fastest, seconds);
  cost.seconds += seconds;
  ++cost.calls;
  return {};
}

Status Rank::end() {
  if (!wantResults)
    return ownDevice->synchronize();
  auto bytesOf = [&](plan::Symbol rows, int64_t columns) {
    return static_cast<uint64_t>(current.symbols[rows] * columns) *
           sizeof(float);
  };
  uint64_t counted = bytesOf(plan::Symbol::Tokens, 1);
  auto saturated = static_cast<size_t>(plan::Port::Saturated);
  MLA_RETURN_IF_ERROR(ownDevice->toHost(*ports[saturated], counted));
  plan::Port result = current.sample ? plan::Port::Sampled : plan::Port::Logits;
  MLA_RETURN_IF_ERROR(
      ownDevice->toHost(*ports[static_cast<size_t>(result)],
                        bytesOf(plan::Symbol::Outputs,
                                current.sample ? 1 : plan.model.vocabSize)));
  MLA_RETURN_IF_ERROR(ownDevice->synchronize());
  if (!sent[saturated].empty()) // What kernels have left there.
    std::copy_n(ports[saturated]->host().begin(), counted,
                sent[saturated].begin());
  return compareRanks ? compareWithOthers() : Status();
}

Status Rank::compareWithOthers() {
  if (!exchange)
    return {};
  bool sample = current.sample;
  auto outputs = static_cast<size_t>(current.symbols[plan::Symbol::Outputs]);
  auto vocab = static_cast<size_t>(plan.model.vocabSize);
  uint64_t mine = fnv1a64(
      textOf(port<std::byte>(sample ? plan::Port::Sampled : plan::Port::Logits),
             outputs * (sample ? 1 : vocab) * sizeof(float)));
  if (plan.ranks.pageRanks == 1) // Else each rank counts its own rows.
    mine = fnv1a64(
        textOf(port<std::byte>(plan::Port::Saturated),
               static_cast<size_t>(current.symbols[plan::Symbol::Tokens]) *
                   sizeof(int32_t)),
        mine);
  MLA_ASSIGN_OR_RETURN(std::vector<uint64_t> all,
                       exchange->gatherEach(mine, "what the ranks computed"));
  return mine == all[0] ? Status()
                        : internalError(std::string("what it computed (") +
                                        (sample ? "tokens" : "logits") +
                                        ") differs from what rank 0 did");
}

uint64_t Rank::keyOf(const RankStep &step) {
  constexpr size_t most = 65536; // Numbers are not used again.
  if (keys.size() >= most)
    keys.clear();
  uint64_t &key = keys[{step.program + (step.sample ? programs.size() : 0),
                        step.symbols.values}];
  if (key == 0)
    key = ++lastKey;
  return key;
}

std::vector<hal::Dispatch>
Rank::sameLaunches(std::span<const hal::Dispatch> launches) const {
  const plan::Launch *first = plan.programs[current.program].launches.data();
  std::vector<hal::Dispatch> same;
  for (const hal::Dispatch &dispatch : launches)
    if (dispatch.launch)
      same.push_back(list[static_cast<size_t>(dispatch.launch - first)]);
  return same;
}

Status Rank::poisonWorkspace() {
  std::vector<std::byte> poison(std::min(stagingBytes, workspace->size()),
                                std::byte{0xFF});
  for (uint64_t at = 0; at < workspace->size(); at += poison.size())
    MLA_RETURN_IF_ERROR(
        ownDevice->write(*workspace, at,
                         std::span(poison).first(std::min<uint64_t>(
                             poison.size(), workspace->size() - at))));
  return {};
}

Status Rank::fillCaches(uint64_t seed) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> staging,
                       ownDevice->allocate(stagingBytes, hal::Access::Shared,
                                           "values for the caches"));
  std::span<std::byte> bytes = staging->host();
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  std::vector<float> values;
  for (size_t c = 0; c < caches.size(); ++c) {
    Format format = plan.caches[c].format;
    uint64_t size = *elementBytes(format);
    values.resize(bytes.size() / size);
    for (float &value : values) {
      state = state * 6364136223846793005 + 1442695040888963407;
      value = static_cast<float>(state >> 40) * 0x1p-23F - 1.0F;
    }
    if (format == Format::FP8E4M3)
      for (size_t i = 0; i < values.size(); ++i)
        bytes[i] = std::byte{quant::encodeE4M3(values[i])};
    else if (format == Format::I32)
      std::fill(bytes.begin(), bytes.end(), std::byte{});
    else
      quant::quantizeRows(
          values, 0,
          {format, 1, static_cast<int64_t>(values.size()), bytes, {}, {}});
    for (uint64_t at = 0; at < caches[c]->size(); at += bytes.size())
      MLA_RETURN_IF_ERROR(
          ownDevice->write(*caches[c], at,
                           bytes.first(std::min<uint64_t>(
                               bytes.size(), caches[c]->size() - at))));
  }
  return {};
}

} // namespace mla::runtime
