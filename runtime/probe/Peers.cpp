//===- Peers.cpp - what passes between two GPUs ---------------------------===//
//
// Part of mla. Through the pointers that kernels of collectives use. A driver
// that reports peer access is asked for proof: a pattern written by one GPU must
// be what the owner of the memory reads, and the other way round.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Internal.h"
#include <algorithm>

namespace mla::probe {
using namespace hal::cuda;

namespace {

constexpr uint64_t largest = uint64_t(128) << 20;

/// The number of 16 bytes of `bytes` at `address` that `reader` finds different
/// from pattern `seed`.
Result<int32_t> differing(Gpu &reader, uint64_t address, uint64_t bytes,
                          uint64_t seed) {
  MLA_ASSIGN_OR_RETURN(Memory errors, reader.allocate(4096, "a count"));
  uint64_t arguments[] = {address, errors.address(), bytes, seed};
  MLA_RETURN_IF_ERROR(
      reader.launch(Kernel::Check, reader.multiprocessors, arguments));
  MLA_RETURN_IF_ERROR(reader.finish("to read what a peer wrote"));
  int32_t count = 0;
  MLA_RETURN_IF_ERROR(reader.read(errors.address(),
                                  std::as_writable_bytes(std::span(&count, 1))));
  return count;
}

Status write(Gpu &writer, uint64_t address, uint64_t bytes, uint64_t seed) {
  uint64_t arguments[] = {address, bytes, seed};
  MLA_RETURN_IF_ERROR(writer.enter());
  MLA_RETURN_IF_ERROR(
      writer.launch(Kernel::Push, writer.multiprocessors, arguments));
  return writer.finish("to write into a peer's memory");
}

/// Writes through `from` and reads on `to`, whose memory it is, then the other
/// way round. Says what went wrong, or "".
Result<std::string> tryData(Gpu &from, Gpu &to, const Memory &memory) {
  uint64_t seed = 0x1234567;
  for (uint64_t bytes : {uint64_t(4096), uint64_t(1) << 20, largest}) {
    auto wrong = [&](int32_t count, const char *direction) {
      return std::to_string(count) + " of " + std::to_string(bytes / 16) +
             " pieces of 16 bytes " + direction + " are not what was written";
    };
    MLA_RETURN_IF_ERROR(to.fill(memory.address(), 0xFF, bytes));
    MLA_RETURN_IF_ERROR(write(from, memory.address(), bytes, ++seed));
    MLA_ASSIGN_OR_RETURN(int32_t stored,
                         differing(to, memory.address(), bytes, seed));
    if (stored)
      return wrong(stored, "stored in a peer's memory");
    MLA_RETURN_IF_ERROR(write(to, memory.address(), bytes, ++seed));
    MLA_ASSIGN_OR_RETURN(int32_t loaded,
                         differing(from, memory.address(), bytes, seed));
    if (loaded)
      return wrong(loaded, "loaded from a peer's memory");
  }
  return std::string();
}

} // namespace

Result<PeerFigures> measurePeer(Gpu &from, Gpu &to) {
  PeerFigures figures;
  std::string attempt = "to reach GPU " + std::to_string(to.ordinal);
  int can = 0;
  MLA_RETURN_IF_ERROR(from.check(
      from.driver.deviceCanAccessPeer(&can, from.device, to.device),
      "cuDeviceCanAccessPeer", attempt));
  if (!can) {
    figures.problem = "the driver reports no peer access";
    return figures;
  }
  figures.reported = true;
  MLA_RETURN_IF_ERROR(from.enter());
  Code code = from.driver.ctxEnablePeerAccess(to.context, 0);
  if (code != PeerAccessAlreadyEnabled)
    if (Status status = from.check(code, "cuCtxEnablePeerAccess", attempt);
        !status.ok()) {
      figures.problem = status.message();
      return figures;
    }
  MLA_ASSIGN_OR_RETURN(Memory memory, to.allocate(largest, "a peer's data"));
  MLA_ASSIGN_OR_RETURN(Memory sink, from.allocate(4096, "a sink"));
  MLA_ASSIGN_OR_RETURN(figures.problem, tryData(from, to, memory));
  if (!figures.problem.empty())
    return figures;
  figures.arrived = true;

  auto rate = [&](Kernel kernel) -> Result<double> {
    uint64_t push[] = {memory.address(), largest, 1};
    uint64_t pull[] = {memory.address(), sink.address(), largest};
    double best = 0;
    for (int blocks : {1, 2}) {
      MLA_ASSIGN_OR_RETURN(
          double seconds,
          from.time(
              [&] {
                return from.launch(kernel, blocks * from.multiprocessors,
                                   kernel == Kernel::Push ? push : pull);
              },
              5, attempt));
      best = std::max(best, static_cast<double>(largest) / seconds);
    }
    return best;
  };
  MLA_ASSIGN_OR_RETURN(figures.writeBytesPerSecond, rate(Kernel::Push));
  MLA_ASSIGN_OR_RETURN(figures.readBytesPerSecond, rate(Kernel::Read));
  return figures;
}

Result<double> measureLatency(Gpu &one, Gpu &other) {
  constexpr uint64_t rounds = 2000, polls = uint64_t(1) << 21; // About 1 s.
  Gpu *gpus[] = {&one, &other};
  Memory flags[2], results[2];
  for (int i : {0, 1}) {
    MLA_ASSIGN_OR_RETURN(flags[i], gpus[i]->allocate(4096, "a flag"));
    MLA_ASSIGN_OR_RETURN(results[i], gpus[i]->allocate(4096, "a result"));
  }
  for (int i : {0, 1}) {
    uint64_t arguments[] = {flags[i].address(), flags[1 - i].address(),
                            results[i].address(), rounds, uint64_t(i), polls};
    MLA_RETURN_IF_ERROR(gpus[i]->enter());
    MLA_RETURN_IF_ERROR(gpus[i]->launch(Kernel::PingPong, 1, arguments));
  }
  // Both, before the memory of either is freed.
  for (Gpu *gpu : gpus) {
    MLA_RETURN_IF_ERROR(gpu->enter());
    MLA_RETURN_IF_ERROR(gpu->finish("to exchange flags with a peer"));
  }
  int64_t result[2] = {}; // Nanoseconds, whether it failed.
  MLA_RETURN_IF_ERROR(one.read(results[0].address(),
                               std::as_writable_bytes(std::span(result))));
  if (result[1] != 0)
    return 0.0;
  return static_cast<double>(result[0]) * 1e-9 / (2 * rounds);
}

} // namespace mla::probe
