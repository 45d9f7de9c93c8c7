//===- Engine.cpp - a loaded plan that does steps -------------------------===//
//
// Part of mla. The half of Engine that runs in every step; see Load.cpp for the
// other.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Engine.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>

namespace mla::runtime {
namespace {

/// True if no value is NaN or infinite: no exponent is all ones.
bool allFinite(std::span<const float> values) {
  uint32_t bad = 0;
  for (const float &value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    bad |= (bits & 0x7F800000) == 0x7F800000 ? 1U : 0U;
  }
  return bad == 0;
}

/// Of the logits after token `i` of a piece.
Status notFinite(const Piece &piece, int64_t i,
                 std::span<const int64_t> lengths) {
  return numericError(
      "the logits of sequence " + std::to_string(piece.sequence) +
      " at position " +
      std::to_string(lengths[piece.sequence] + piece.begin + i) +
      " have NaN or infinite values");
}

} // namespace

Result<Logits> Engine::step(std::span<const StepSequence> sequences) {
  std::vector<int32_t> none;
  return doStep(sequences, nullptr, none);
}

Result<std::vector<int32_t>>
Engine::stepAndSample(std::span<const StepSequence> sequences,
                      std::span<const Sampling> sampling) {
  if (!canSample())
    return unsupported("the plan does not choose tokens on its device");
  if (sampling.size() != sequences.size() ||
      std::any_of(sequences.begin(), sequences.end(), [](const auto &s) {
        return s.logits != LogitsFor::Last;
      }))
    return invalid("a token can be chosen after the last one of each sequence, "
                   "and only there");
  std::vector<int32_t> sampled;
  MLA_ASSIGN_OR_RETURN([[maybe_unused]] Logits logits,
                       doStep(sequences, sampling.data(), sampled));
  return sampled;
}

Result<Logits> Engine::doStep(std::span<const StepSequence> sequences,
                              const Sampling *sampling,
                              std::vector<int32_t> &sampled) {
  ++steps;
  std::string context = "step " + std::to_string(steps);
  if (Status status = checkStep(sequences); !status.ok())
    return status.withContext(context);
  std::vector<int64_t> lengths;
  for (const StepSequence &s : sequences)
    lengths.push_back(s.sequence->length());
  Result<Logits> result = runStep(sequences, lengths, sampling, sampled);
  if (result.ok())
    return result;
  for (size_t i = 0; i < sequences.size(); ++i)
    sequences[i].sequence->truncate(lengths[i]);
  return result.status().withContext(context);
}

Status Engine::checkStep(std::span<const StepSequence> sequences) const {
  if (sequences.empty())
    return invalid("a step needs at least one sequence");
  std::vector<const Sequence *> seen;
  for (const StepSequence &s : sequences) {
    if (!s.sequence || s.ids.empty())
      return invalid("every sequence of a step needs at least one token");
    seen.push_back(s.sequence);
    for (int32_t id : s.ids)
      if (id < 0 || id >= thePlan.model.vocabSize)
        return invalid("token id " + std::to_string(id) +
                       " is not in the vocabulary of " +
                       std::to_string(thePlan.model.vocabSize));
    auto count = static_cast<int64_t>(s.ids.size());
    if (count > contextLength() - s.sequence->length())
      return invalid(
          "the model's context of " + std::to_string(contextLength()) +
          " tokens is full: " + std::to_string(s.sequence->length()) +
          " are used, " + std::to_string(count) + " more do not fit");
  }
  std::sort(seen.begin(), seen.end());
  if (std::adjacent_find(seen.begin(), seen.end()) != seen.end())
    return invalid("a sequence may appear only once in a step");
  return {};
}

Result<Logits> Engine::runStep(std::span<const StepSequence> sequences,
                               std::span<const int64_t> lengths,
                               const Sampling *sampling,
                               std::vector<int32_t> &sampled) {
  std::vector<SequenceTokens> wanted;
  for (const StepSequence &s : sequences)
    wanted.push_back({static_cast<int64_t>(s.ids.size()), s.logits});
  MLA_ASSIGN_OR_RETURN(std::vector<ProgramRun> runs,
                       schedule(wanted, thePlan.programs));
  for (const StepSequence &s : sequences)
    MLA_RETURN_IF_ERROR(s.sequence->extend(static_cast<int64_t>(s.ids.size())));

  int64_t vocab = thePlan.model.vocabSize;
  gathered.clear();
  for (const ProgramRun &run : runs) {
    bool sample = sampling && run.outputs > 0;
    if (sample)
      fillSampling(run, sampling);
    MLA_RETURN_IF_ERROR(
        runProgram(run.program, fillPorts(run, sequences, lengths), sample));
    countSaturated(run.tokens);
    if (sample)
      MLA_RETURN_IF_ERROR(takeSampled(run, lengths, sampled));
    if (sampling)
      continue;
    Logits logits(port<const float>(plan::Port::Logits), run.outputs, vocab);
    MLA_RETURN_IF_ERROR(checkFinite(run, logits, lengths));
    if (runs.size() == 1)
      return logits;
    const float *data = port<const float>(plan::Port::Logits);
    gathered.insert(gathered.end(), data, data + run.outputs * vocab);
  }
  auto rows = static_cast<int64_t>(gathered.size()) / vocab;
  return Logits(gathered.data(), rows, vocab);
}

plan::SymbolValues Engine::fillPorts(const ProgramRun &run,
                                     std::span<const StepSequence> sequences,
                                     std::span<const int64_t> lengths) {
  auto *ids = port<int32_t>(plan::Port::Ids);
  auto *positions = port<int32_t>(plan::Port::Positions);
  auto *rows = port<int32_t>(plan::Port::Sequence);
  auto *outputs = port<int32_t>(plan::Port::Outputs);
  auto *table = port<int32_t>(plan::Port::PageTable);

  // Pages that hold everything up to the last token of the piece.
  auto pagesOf = [&](const Piece &piece) {
    int64_t end = lengths[piece.sequence] + piece.begin + piece.tokens;
    return (end + plan::pageTokens - 1) / plan::pageTokens;
  };
  int64_t columns = 1;
  for (const Piece &piece : run.pieces)
    columns = std::max(columns, pagesOf(piece));
  // On a GPU a list is recorded for each value: few values serve all lengths.
  if (!thePlan.target.isHost())
    columns = std::min(static_cast<int64_t>(
                           std::bit_ceil(static_cast<uint64_t>(columns))),
                       thePlan.maxPages);

  int32_t token = 0;
  int32_t row = 0;
  for (const Piece &piece : run.pieces) {
    const StepSequence &s = sequences[piece.sequence];
    for (int64_t i = 0; i < piece.tokens; ++i, ++token) {
      ids[token] = s.ids[static_cast<size_t>(piece.begin + i)];
      positions[token] =
          static_cast<int32_t>(lengths[piece.sequence] + piece.begin + i);
      rows[token] = row;
      if (i >= piece.tokens - piece.outputs)
        *outputs++ = token;
    }
    int32_t *tableRow = table + row * columns;
    std::span<const int32_t> held =
        s.sequence->pages().first(static_cast<size_t>(pagesOf(piece)));
    std::fill(std::copy(held.begin(), held.end(), tableRow), tableRow + columns,
              0); // Never used; any page number that exists will do.
    ++row;
  }

  std::fill_n(port<int32_t>(plan::Port::Saturated), run.tokens, 0);
  plan::SymbolValues symbols;
  symbols[plan::Symbol::Tokens] = run.tokens;
  symbols[plan::Symbol::Sequences] = row;
  symbols[plan::Symbol::Outputs] = run.outputs;
  symbols[plan::Symbol::Pages] = columns;
  symbols[plan::Symbol::Capacity] = pages->capacity();
  return symbols;
}

void Engine::fillSampling(const ProgramRun &run, const Sampling *sampling) {
  auto *numbers = port<float>(plan::Port::Sampling);
  auto *topKs = port<int32_t>(plan::Port::TopK);
  for (const Piece &piece : run.pieces) {
    if (piece.outputs == 0)
      continue;
    const Sampling &s = sampling[piece.sequence];
    numbers = std::copy_n(
        std::array{s.temperature, s.topP, s.minP, s.uniform}.begin(), 4,
        numbers);
    *topKs++ = s.topK;
  }
}

Result<std::span<const hal::Dispatch>>
Engine::prepare(size_t program, const plan::SymbolValues &symbols,
                bool sample) {
  MLA_ASSIGN_OR_RETURN(std::span<const hal::Dispatch> list,
                       programs[program].prepare(symbols));
  if (!sample)
    return list;
  plan::SymbolValues rows = symbols;
  rows[plan::Symbol::Tokens] = symbols[plan::Symbol::Outputs];
  rows[plan::Symbol::Sequences] = 1;
  rows[plan::Symbol::Pages] = 1;
  MLA_ASSIGN_OR_RETURN(std::span<const hal::Dispatch> last,
                       sampler->prepare(rows));
  joined.assign(list.begin(), list.end());
  joined.insert(joined.end(), last.begin(), last.end());
  return std::span<const hal::Dispatch>(joined);
}

Status Engine::runProgram(size_t program, const plan::SymbolValues &symbols,
                          bool sample) {
  MLA_ASSIGN_OR_RETURN(std::span<const hal::Dispatch> list,
                       prepare(program, symbols, sample));
  MLA_RETURN_IF_ERROR(sendInputs(symbols, sample));
  auto results = [&]() -> Status {
    MLA_RETURN_IF_ERROR(device->toHost(
        *ports[static_cast<size_t>(plan::Port::Saturated)],
        static_cast<uint64_t>(symbols[plan::Symbol::Tokens]) * sizeof(int32_t)));
    // 4 bytes a row, whatever it is.
    auto rows = static_cast<uint64_t>(symbols[plan::Symbol::Outputs]);
    plan::Port result = sample ? plan::Port::Sampled : plan::Port::Logits;
    MLA_RETURN_IF_ERROR(device->toHost(
        *ports[static_cast<size_t>(result)],
        rows * sizeof(float) *
            (sample ? 1 : static_cast<uint64_t>(thePlan.model.vocabSize))));
    return device->synchronize();
  };
  if (!profiling && !observer) {
    MLA_RETURN_IF_ERROR(
        device->run(*module, list, keyOf(program, symbols, sample)));
    return results();
  }
  size_t own = thePlan.programs[program].launches.size();
  for (size_t l = 0; l < list.size(); ++l) {
    auto start = std::chrono::steady_clock::now();
    MLA_RETURN_IF_ERROR(device->run(*module, list.subspan(l, 1)));
    MLA_RETURN_IF_ERROR(device->synchronize());
    double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    LaunchCost &cost = l < own ? costs[program][l] : costs.back()[l - own];
    cost.fastest = cost.calls == 0 ? seconds : std::min(cost.fastest, seconds);
    cost.seconds += seconds;
    ++cost.calls;
    if (observer && l < own)
      MLA_RETURN_IF_ERROR(observer(thePlan.programs[program], symbols, l));
  }
  return results();
}

Status Engine::send(plan::Port which, int64_t elements) {
  auto p = static_cast<size_t>(which);
  auto bytes = static_cast<size_t>(elements) * sizeof(int32_t);
  if (sent[p].empty())
    return {}; // The device reads the host's view.
  std::span<const std::byte> now = ports[p]->host().first(bytes);
  if (std::equal(now.begin(), now.end(), sent[p].begin()))
    return {};
  MLA_RETURN_IF_ERROR(device->toDevice(*ports[p], bytes));
  std::copy(now.begin(), now.end(), sent[p].begin());
  return {};
}

/// Most steps change few ports: a copy costs more than to look.
Status Engine::sendInputs(const plan::SymbolValues &symbols, bool sample) {
  int64_t tokens = symbols[plan::Symbol::Tokens];
  MLA_RETURN_IF_ERROR(send(plan::Port::Ids, tokens));
  MLA_RETURN_IF_ERROR(send(plan::Port::Positions, tokens));
  MLA_RETURN_IF_ERROR(send(plan::Port::Sequence, tokens));
  MLA_RETURN_IF_ERROR(send(plan::Port::PageTable,
                           symbols[plan::Symbol::Sequences] *
                               symbols[plan::Symbol::Pages]));
  MLA_RETURN_IF_ERROR(
      send(plan::Port::Outputs, symbols[plan::Symbol::Outputs]));
  if (sample) {
    int64_t rows = symbols[plan::Symbol::Outputs];
    MLA_RETURN_IF_ERROR(send(plan::Port::Sampling, rows * 4));
    MLA_RETURN_IF_ERROR(send(plan::Port::TopK, rows));
  }
  MLA_RETURN_IF_ERROR(send(plan::Port::Saturated, tokens));
  // Not known any more, until countSaturated() has looked.
  std::vector<std::byte> &counts =
      sent[static_cast<size_t>(plan::Port::Saturated)];
  std::fill(counts.begin(), counts.end(), std::byte{0xFF});
  return {};
}

uint64_t Engine::keyOf(size_t program, const plan::SymbolValues &symbols,
                       bool sample) {
  constexpr size_t most = 65536; // Numbers are not used again.
  if (keys.size() >= most)
    keys.clear();
  uint64_t &key =
      keys[{program + (sample ? programs.size() : 0), symbols.values}];
  if (key == 0)
    key = ++lastKey;
  return key;
}

void Engine::countSaturated(int64_t tokens) {
  const auto *counts = port<const int32_t>(plan::Port::Saturated);
  auto p = static_cast<size_t>(plan::Port::Saturated);
  if (!sent[p].empty()) // What kernels have left there.
    std::copy_n(ports[p]->host().begin(),
                static_cast<size_t>(tokens) * sizeof(int32_t), sent[p].begin());
  saturated = std::accumulate(counts, counts + tokens, saturated);
}

bool Engine::hasFp8Cache() const {
  return std::any_of(thePlan.caches.begin(), thePlan.caches.end(),
                     [](const plan::Cache &cache) {
                       return cache.format == Format::FP8E4M3;
                     });
}

Status Engine::raiseLargest(const Sequence &sequence, std::span<float> amax) {
  std::vector<std::byte> page;
  for (size_t c = 0; c < thePlan.caches.size(); ++c) {
    const plan::Cache &cache = thePlan.caches[c];
    if (cache.kind != "latent")
      continue;
    if (cache.format != Format::F32 && cache.format != Format::BF16 &&
        cache.format != Format::F16)
      return unsupported("the range of cache " + cache.name +
                         " cannot be measured in " +
                         std::string(formatName(cache.format)) +
                         "; compile the plan with --kv-cache-dtype f32");
    uint64_t rowBytes =
        *elementBytes(cache.format) * static_cast<uint64_t>(cache.width);
    for (int64_t at = 0; at < sequence.length(); at += plan::pageTokens) {
      int64_t rows = std::min(plan::pageTokens, sequence.length() - at);
      auto number = static_cast<uint64_t>(
          sequence.pages()[static_cast<size_t>(at / plan::pageTokens)]);
      page.resize(static_cast<uint64_t>(rows) * rowBytes);
      MLA_RETURN_IF_ERROR(device->read(
          *caches[c], number * plan::pageTokens * rowBytes, page));
      std::vector<float> values(static_cast<size_t>(rows * cache.width));
      quant::dequantizeRows({cache.format, rows, cache.width, page, {}, {}}, 0,
                            values);
      float largest = quant::largestMagnitude(values);
      if (!std::isfinite(largest))
        return numericError("cache " + cache.name +
                            " has NaN or infinite values among positions " +
                            std::to_string(at) + " to " +
                            std::to_string(at + rows - 1));
      amax[c] = std::max(amax[c], largest);
    }
  }
  return {};
}

Status Engine::takeSampled(const ProgramRun &run,
                           std::span<const int64_t> lengths,
                           std::vector<int32_t> &sampled) {
  const auto *ids = port<const int32_t>(plan::Port::Sampled);
  for (const Piece &piece : run.pieces) {
    if (piece.outputs == 0)
      continue;
    int32_t id = *ids++;
    if (id < 0)
      return notFinite(piece, piece.tokens - 1, lengths);
    if (id >= thePlan.model.vocabSize)
      return internalError("the plan chose token " + std::to_string(id) +
                           " of a vocabulary of " +
                           std::to_string(thePlan.model.vocabSize));
    sampled.push_back(id);
  }
  return {};
}

Status Engine::checkFinite(const ProgramRun &run, const Logits &logits,
                           std::span<const int64_t> lengths) const {
  int64_t row = 0;
  for (const Piece &piece : run.pieces)
    for (int64_t i = piece.tokens - piece.outputs; i < piece.tokens; ++i, ++row)
      if (!allFinite(logits.row(row)))
        return notFinite(piece, i, lengths);
  return {};
}

} // namespace mla::runtime
