//===- Device.cpp - what one GPU can do -----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Internal.h"
#include <algorithm>

namespace mla::probe {
namespace {

/// Far more than a cache holds, in parts that come again only after all others.
constexpr uint64_t readParts = 4, readPart = uint64_t(256) << 20;

Result<double> readRate(Gpu &gpu) {
  MLA_ASSIGN_OR_RETURN(auto memory, gpu.memory());
  uint64_t part = std::min(readPart, memory.first / (2 * readParts) >> 20 << 20);
  if (part == 0)
    return exhausted("GPU " + std::to_string(gpu.ordinal) +
                     " has no free memory to read");
  MLA_ASSIGN_OR_RETURN(Memory buffer,
                       gpu.allocate(part * readParts, "the read bandwidth"));
  MLA_ASSIGN_OR_RETURN(Memory sink, gpu.allocate(4096, "a sink"));
  double best = 0;
  for (int blocks : {1, 2, 4}) {
    auto enqueue = [&]() -> Status {
      for (uint64_t i = 0; i < readParts; ++i) {
        uint64_t arguments[] = {buffer.address() + i * part, sink.address(),
                                part};
        MLA_RETURN_IF_ERROR(gpu.launch(Kernel::Read,
                                       blocks * gpu.multiprocessors, arguments,
                                       i > 0));
      }
      return {};
    };
    MLA_ASSIGN_OR_RETURN(double seconds,
                         gpu.time(enqueue, 20, "to measure its reads"));
    best = std::max(best, static_cast<double>(part * readParts) / seconds);
  }
  return best;
}

/// Products of matrices by tensor cores, and the clock meanwhile.
Status matrixRate(Gpu &gpu, DeviceFigures &figures) {
  // As in lib/CodeGen/NVVM/ProbeKernels.cpp.
  constexpr double flopsARound = 16 * 2.0 * 16 * 8 * 16, warps = 8, blocks = 2;
  constexpr uint64_t rounds = 20000; // Some milliseconds.
  MLA_ASSIGN_OR_RETURN(Memory times, gpu.allocate(4096, "times"));
  uint64_t arguments[] = {times.address(), rounds};
  auto grid = static_cast<int64_t>(blocks) * gpu.multiprocessors;
  MLA_ASSIGN_OR_RETURN(
      double seconds,
      gpu.time([&] { return gpu.launch(Kernel::Matrix, grid, arguments); }, 5,
               "to measure its tensor cores"));
  figures.bf16FlopsPerSecond = static_cast<double>(grid) * warps *
                               static_cast<double>(rounds) * flopsARound /
                               seconds;
  int64_t clock[2] = {}; // Cycles, nanoseconds.
  MLA_RETURN_IF_ERROR(
      gpu.read(times.address(), std::as_writable_bytes(std::span(clock))));
  if (clock[0] <= 0 || clock[1] <= 0)
    return internalError("GPU " + std::to_string(gpu.ordinal) +
                         ": its counters stand still");
  figures.clockHz =
      static_cast<double>(clock[0]) / static_cast<double>(clock[1]) * 1e9;
  return {};
}

Result<double> launchGap(Gpu &gpu) {
  constexpr int launches = 500;
  auto enqueue = [&]() -> Status {
    for (int i = 0; i < launches; ++i)
      MLA_RETURN_IF_ERROR(
          gpu.launch(Kernel::Empty, gpu.multiprocessors, {}, i > 0));
    return {};
  };
  MLA_ASSIGN_OR_RETURN(double seconds,
                       gpu.time(enqueue, 20, "to measure its launches"));
  return seconds / launches;
}

} // namespace

Result<DeviceFigures> measureDevice(Gpu &gpu) {
  DeviceFigures figures;
  MLA_RETURN_IF_ERROR(gpu.enter());
  MLA_ASSIGN_OR_RETURN(figures.readBytesPerSecond, readRate(gpu));
  MLA_RETURN_IF_ERROR(matrixRate(gpu, figures));
  MLA_ASSIGN_OR_RETURN(figures.launchGapSeconds, launchGap(gpu));
  return figures;
}

} // namespace mla::probe
