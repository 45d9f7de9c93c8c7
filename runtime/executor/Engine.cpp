//===- Engine.cpp - a loaded plan that does steps -------------------------===//
//
// Part of mla. The half of Engine that runs in every step; see Load.cpp for the
// other.
//
//===----------------------------------------------------------------------===//
#include "runtime/executor/Engine.h"
#include "mla/Quant/Matrix.h"
#include "mla/Support/Hash.h"
#include <algorithm>
#include <bit>
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
  if (group)
    if (Status status = checkSameStep(sequences, sampling); !status.ok())
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

Status Engine::checkSameStep(std::span<const StepSequence> sequences,
                             const Sampling *sampling) {
  uint64_t mine = fnv1a64("");
  auto add = [&](std::span<const std::byte> bytes) {
    mine = fnv1a64({reinterpret_cast<const char *>(bytes.data()), bytes.size()},
                   mine);
  };
  for (size_t i = 0; i < sequences.size(); ++i) {
    const StepSequence &s = sequences[i];
    int64_t numbers[] = {s.sequence->length(), int64_t(s.ids.size()),
                         int64_t(s.logits)};
    add(std::as_bytes(std::span(numbers)));
    add(std::as_bytes(s.ids));
    if (sampling)
      add(std::as_bytes(std::span(&sampling[i], 1)));
  }
  MLA_ASSIGN_OR_RETURN(
      std::vector<uint64_t> all,
      collectives::Collectives(*group).gatherEach(mine, "the tokens of a step"));
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      return invalid("rank " + std::to_string(rank) +
                     " was given other tokens than rank 0: every process must "
                     "run the same command");
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
        runProgram({run.program, fillPorts(run, sequences, lengths), sample}));
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
    return pages->pagesFor(end);
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

Status Engine::onAll(const std::function<Status(Rank &)> &body) {
  RankThreads::Outcome outcome = threadsOfRanks->onAll(
      [&](size_t i) { return body(*ranks[i]); },
      [&](size_t i, const Status &why) { ranks[i]->giveUp(why); });
  if (outcome.status.ok() || ranks.size() == 1)
    return outcome.status;
  return ofRank(ranks[outcome.rank]->number(), outcome.status);
}

Status Engine::runProgram(const RankStep &step) {
  Rank &first = *ranks[0];
  if (!observer)
    return onAll([&](Rank &rank) -> Status {
      MLA_RETURN_IF_ERROR(rank.begin(step, first));
      MLA_RETURN_IF_ERROR(rank.run());
      return rank.end();
    });
  MLA_RETURN_IF_ERROR(onAll([&](Rank &rank) { return rank.begin(step, first); }));
  const plan::Program &program = thePlan.programs[step.program];
  for (size_t l = 0; l < first.launches().size(); ++l) {
    MLA_RETURN_IF_ERROR(onAll([&](Rank &rank) { return rank.run(l); }));
    if (l < program.launches.size())
      MLA_RETURN_IF_ERROR(observer(program, step.symbols, l));
  }
  return onAll([](Rank &rank) { return rank.end(); });
}

void Engine::countSaturated(int64_t tokens) {
  // All ranks have the same rows, or each its own.
  size_t counting = thePlan.ranks.pageRanks > 1 ? ranks.size() : 1;
  for (size_t r = 0; r < counting; ++r) {
    const auto *counts = ranks[r]->port<const int32_t>(plan::Port::Saturated);
    saturated = std::accumulate(counts, counts + tokens, saturated);
  }
}

bool Engine::hasFp8Cache() const {
  return std::any_of(thePlan.caches.begin(), thePlan.caches.end(),
                     [](const plan::Cache &cache) {
                       return cache.format == Format::FP8E4M3;
                     });
}

Status Engine::raiseLargest(const Sequence &sequence, std::span<float> amax) {
  // Block b of the positions is on rank b % pageRanks.
  int64_t pageRanks = thePlan.ranks.pageRanks;
  if (pageRanks > 1 && ranks.size() != static_cast<size_t>(pageRanks))
    return unsupported("the caches' tokens are spread over " +
                       std::to_string(pageRanks) +
                       " ranks, of which this process runs " +
                       std::to_string(ranks.size()));
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
      int64_t block = at / plan::pageTokens;
      Rank &rank = *ranks[static_cast<size_t>(block % pageRanks)];
      auto number = static_cast<uint64_t>(
          sequence.pages()[static_cast<size_t>(block / pageRanks)]);
      page.resize(static_cast<uint64_t>(rows) * rowBytes);
      MLA_RETURN_IF_ERROR(rank.device().read(
          rank.cache(c), number * plan::pageTokens * rowBytes, page));
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
