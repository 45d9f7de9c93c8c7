//===- Observe.cpp - what reports and measurements ask of an engine -------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Codec.h"
#include "mla/Quant/Matrix.h"
#include "runtime/executor/Engine.h"
#include <algorithm>
#include <cstring>

namespace mla::runtime {
Result<std::vector<float>>
Engine::readWorkspace(const plan::Program &program, size_t index,
                      const plan::SymbolValues &symbols, size_t rank) {
  const plan::Workspace &space = program.workspaces[index];
  MLA_ASSIGN_OR_RETURN(uint64_t bytes,
                       plan::bufferBytes(space.format, space.shape, symbols));
  std::vector<std::byte> stored(bytes);
  MLA_RETURN_IF_ERROR(ranks[rank]->device().read(
      ranks[rank]->arena(), space.offset, stored));
  auto count = static_cast<int64_t>(bytes / *elementBytes(space.format));
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i)
    if (space.format == Format::I32) {
      int32_t value = 0;
      std::memcpy(&value, &stored[4 * i], sizeof value);
      values[i] = static_cast<float>(value);
    } else if (space.format == Format::FP8E4M3) {
      values[i] = quant::decodeE4M3(std::to_integer<uint8_t>(stored[i]));
    }
  if (space.format != Format::I32 && space.format != Format::FP8E4M3)
    quant::dequantizeRows({space.format, 1, count, stored, {}, {}}, 0, values);
  return values;
}

Status Engine::writeWorkspace(const plan::Program &program, size_t index,
                              uint64_t offset,
                              std::span<const std::byte> bytes) {
  for (const auto &rank : ranks)
    MLA_RETURN_IF_ERROR(rank->device().write(
        rank->arena(), program.workspaces[index].offset + offset, bytes));
  return {};
}

Status Engine::poisonWorkspace() {
  return onAll([](Rank &rank) { return rank.poisonWorkspace(); });
}

Status Engine::fillCaches(uint64_t seed) {
  return onAll([&](Rank &rank) { return rank.fillCaches(seed); });
}

Result<Engine::PreparedStep>
Engine::prepareStep(std::span<const StepSequence> sequences) {
  std::vector<SequenceTokens> wanted;
  std::vector<int64_t> lengths;
  for (const StepSequence &s : sequences) {
    auto count = static_cast<int64_t>(s.ids.size());
    if (!s.sequence || count == 0 || s.sequence->length() < count)
      return invalid("every sequence of a prepared step needs its new tokens");
    wanted.push_back({count, s.logits});
    lengths.push_back(s.sequence->length() - count);
  }
  MLA_ASSIGN_OR_RETURN(std::vector<ProgramRun> runs,
                       schedule(wanted, thePlan.programs));
  if (runs.size() != 1)
    return invalid("the step needs " + std::to_string(runs.size()) +
                   " runs of a program, and one was expected");
  PreparedStep step;
  step.program = &thePlan.programs[runs[0].program];
  step.symbols = fillPorts(runs[0], sequences, lengths);
  Rank &first = *ranks[0];
  MLA_RETURN_IF_ERROR(onAll([&](Rank &rank) {
    return rank.begin({runs[0].program, step.symbols, false}, first);
  }));
  step.launches = first.launches();
  return step;
}

Result<std::vector<double>>
Engine::time(std::span<const hal::Dispatch> launches, int repeats) {
  std::vector<std::vector<double>> ofRanks(ranks.size());
  Rank *first = ranks[0].get();
  MLA_RETURN_IF_ERROR(onAll([&](Rank &rank) -> Status {
    std::vector<hal::Dispatch> own;
    if (&rank != first)
      own = rank.sameLaunches(launches);
    std::span<const hal::Dispatch> list = &rank == first ? launches : own;
    if (list.empty())
      return {};
    auto index = static_cast<size_t>(rank.number() - first->number());
    MLA_ASSIGN_OR_RETURN(
        ofRanks[index],
        rank.device().time(rank.kernels(), list, repeats));
    return {};
  }));
  std::vector<double> slowest(static_cast<size_t>(std::max(repeats, 0)));
  for (const std::vector<double> &seconds : ofRanks)
    for (size_t i = 0; i < std::min(seconds.size(), slowest.size()); ++i)
      slowest[i] = std::max(slowest[i], seconds[i]);
  return slowest;
}

Status Engine::run(std::span<const hal::Dispatch> launches) {
  Rank *first = ranks[0].get();
  return onAll([&](Rank &rank) -> Status {
    std::vector<hal::Dispatch> own;
    if (&rank != first)
      own = rank.sameLaunches(launches);
    MLA_RETURN_IF_ERROR(rank.device().run(
        rank.kernels(), &rank == first ? launches : own, 0));
    return rank.device().synchronize();
  });
}

} // namespace mla::runtime
