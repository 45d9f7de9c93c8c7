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
namespace {
/// Bytes that are written to a device at a time.
constexpr uint64_t stagingBytes = uint64_t(16) << 20;
} // namespace

Result<std::vector<float>>
Engine::readWorkspace(const plan::Program &program, size_t index,
                      const plan::SymbolValues &symbols) {
  const plan::Workspace &space = program.workspaces[index];
  MLA_ASSIGN_OR_RETURN(uint64_t bytes,
                       plan::bufferBytes(space.format, space.shape, symbols));
  std::vector<std::byte> stored(bytes);
  MLA_RETURN_IF_ERROR(device->read(*workspace, space.offset, stored));
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

Status Engine::poisonWorkspace() {
  std::vector<std::byte> poison(std::min(stagingBytes, workspace->size()),
                                std::byte{0xFF});
  for (uint64_t at = 0; at < workspace->size(); at += poison.size())
    MLA_RETURN_IF_ERROR(device->write(
        *workspace, at,
        std::span(poison).first(
            std::min<uint64_t>(poison.size(), workspace->size() - at))));
  return {};
}

Status Engine::fillCaches(uint64_t seed) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<hal::Buffer> staging,
                       device->allocate(stagingBytes, hal::Access::Shared,
                                        "values for the caches"));
  std::span<std::byte> bytes = staging->host();
  uint64_t state = seed * 0x9E3779B97F4A7C15 + 1;
  std::vector<float> values;
  for (size_t c = 0; c < caches.size(); ++c) {
    Format format = thePlan.caches[c].format;
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
      quant::quantizeRows(values, 0,
                          {format, 1, static_cast<int64_t>(values.size()),
                           bytes, {}, {}});
    for (uint64_t at = 0; at < caches[c]->size(); at += bytes.size())
      MLA_RETURN_IF_ERROR(device->write(
          *caches[c], at,
          bytes.first(std::min<uint64_t>(bytes.size(),
                                         caches[c]->size() - at))));
  }
  return {};
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
  MLA_ASSIGN_OR_RETURN(step.launches,
                       programs[runs[0].program].prepare(step.symbols));
  MLA_RETURN_IF_ERROR(sendInputs(step.symbols));
  return step;
}

} // namespace mla::runtime
