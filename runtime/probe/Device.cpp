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

/// Hz, of what probe_matrix_bf16 left at `times`.
Result<double> clockOf(Gpu &gpu, const Memory &times) {
  int64_t clock[2] = {}; // Cycles, nanoseconds.
  MLA_RETURN_IF_ERROR(
      gpu.read(times.address(), std::as_writable_bytes(std::span(clock))));
  if (clock[0] <= 0 || clock[1] <= 0)
    return internalError("GPU " + std::to_string(gpu.ordinal) +
                         ": its counters stand still");
  return static_cast<double>(clock[0]) / static_cast<double>(clock[1]) * 1e9;
}

/// Reads of memory, and the clock meanwhile.
Status readRate(Gpu &gpu, DeviceFigures &figures) {
  MLA_ASSIGN_OR_RETURN(auto memory, gpu.memory());
  uint64_t part = std::min(readPart, memory.first / (2 * readParts) >> 20 << 20);
  if (part == 0)
    return exhausted("GPU " + std::to_string(gpu.ordinal) +
                     " has no free memory to read");
  MLA_ASSIGN_OR_RETURN(Memory buffer,
                       gpu.allocate(part * readParts, "the read bandwidth"));
  MLA_ASSIGN_OR_RETURN(Memory sink, gpu.allocate(4096, "a sink"));
  MLA_ASSIGN_OR_RETURN(Memory times, gpu.allocate(4096, "times"));
  auto readAll = [&](int blocks) -> Status {
    for (uint64_t i = 0; i < readParts; ++i) {
      uint64_t arguments[] = {buffer.address() + i * part, sink.address(),
                              part};
      MLA_RETURN_IF_ERROR(gpu.launch(Kernel::Read, blocks * gpu.multiprocessors,
                                     arguments, i > 0));
    }
    return {};
  };
  for (int blocks : {1, 2, 4}) {
    MLA_ASSIGN_OR_RETURN(double seconds,
                         gpu.time([&] { return readAll(blocks); }, 20,
                                  "to measure its reads"));
    figures.readBytesPerSecond =
        std::max(figures.readBytesPerSecond,
                 static_cast<double>(part * readParts) / seconds);
  }
  // One block counts, for a shorter time than all others read; a block an SM
  // leaves room for it.
  constexpr uint64_t rounds = 4000;
  uint64_t arguments[] = {times.address(), rounds};
  for (int i = 0; i < 8; ++i) {
    MLA_RETURN_IF_ERROR(readAll(1));
    if (i == 0)
      MLA_RETURN_IF_ERROR(
          gpu.launchIn(gpu.side, Kernel::Matrix, 1, arguments));
  }
  MLA_RETURN_IF_ERROR(gpu.finish("to measure its clock"));
  MLA_ASSIGN_OR_RETURN(figures.clockHz, clockOf(gpu, times));
  return {};
}

/// Products of matrices by tensor cores, and the clock meanwhile.
Status matrixRate(Gpu &gpu, DeviceFigures &figures) {
  // As in lib/CodeGen/NVVM/ProbeKernels.cpp.
  constexpr double flopsARound = 16 * 2.0 * 16 * 8 * 16, warps = 8;
  constexpr int64_t blocks = 2;
  constexpr uint64_t rounds = 20000; // Some milliseconds.
  MLA_ASSIGN_OR_RETURN(Memory times, gpu.allocate(4096, "times"));
  uint64_t arguments[] = {times.address(), rounds};
  int64_t grid = blocks * gpu.multiprocessors;
  MLA_ASSIGN_OR_RETURN(
      double seconds,
      gpu.time([&] { return gpu.launch(Kernel::Matrix, grid, arguments); }, 5,
               "to measure its tensor cores"));
  figures.bf16FlopsPerSecond = static_cast<double>(grid) * warps *
                               static_cast<double>(rounds) * flopsARound /
                               seconds;
  MLA_ASSIGN_OR_RETURN(figures.matrixClockHz, clockOf(gpu, times));
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
  MLA_RETURN_IF_ERROR(readRate(gpu, figures));
  MLA_RETURN_IF_ERROR(matrixRate(gpu, figures));
  MLA_ASSIGN_OR_RETURN(figures.launchGapSeconds, launchGap(gpu));
  return figures;
}

} // namespace mla::probe
