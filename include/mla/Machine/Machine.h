//===- Machine.h - what a machine has ---------------------------*- C++ -*-===//
//
// Part of mla. A machine is a JSON file (docs/machines.md): some are shipped
// (share/machines, built into the library), `mla-run probe` measures one. What
// follows from the compute capability alone is a table, never the marketing
// name: SM120 is not SM100.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_MACHINE_MACHINE_H
#define MLA_MACHINE_MACHINE_H

#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mla {

/// What every GPU of a compute capability has. Source: CUDA C++ Programming
/// Guide, technical specifications per compute capability.
struct Capability {
  std::string_view name;       ///< "sm_120a"
  int64_t sharedBytesPerBlock; ///< most dynamic shared memory of a block
  int64_t sharedBytesPerSM;    ///< 1,024 of which each block takes as well
  int64_t registersPerSM;      ///< of 32 bits
  int64_t threadsPerSM;
  bool hasFp4;     ///< block-scaled fp4 products, fp4 conversions
  bool hasWgmma;   ///< Hopper's warpgroup products
  bool hasTcgen05; ///< SM100's tensor memory
  bool hasKernels; ///< mla generates code for it
};

/// sm_120a, sm_90a, sm_100a.
std::span<const Capability> capabilities();
/// The one called `name`, or null.
const Capability *findCapability(std::string_view name);

/// How devices reach each other.
struct Link {
  std::string kind = "none";      ///< "none", "pcie3" to "pcie6", "nvlink"
  std::optional<bool> peerAccess; ///< tried with data; none: not known
  double writeBytesPerSecond = 0; ///< stores of a kernel into a peer's memory
  double readBytesPerSecond = 0;  ///< loads of a kernel from a peer's memory
  double latencySeconds = 0;      ///< of a store until the peer sees it
};

/// A measured or published time of one all-reduce.
struct CollectiveTime {
  std::string method; ///< "nccl", "one_shot", "two_shot", "fused" (with residual and norm)
  int64_t ranks = 0;
  int64_t bytes = 0; ///< of the vector that is reduced
  double seconds = 0;
};

struct Machine {
  std::string name;         ///< "rtx-pro-6000x8-pcie5"
  std::string description;  ///< one line
  std::string architecture; ///< a capability's name, or "host"
  int64_t devices = 1;
  /// Of one device. On the host multiprocessors are cores.
  int64_t multiprocessors = 1;
  double clockHz = 0;             ///< while it computes
  int64_t memoryBytes = 0;        ///< all of it
  int64_t reservedBytes = 0;      ///< taken by driver, context and libraries
  int64_t l2Bytes = 0;
  double readBytesPerSecond = 0;  ///< a kernel that only reads
  /// Dense products with tensor cores, two flops a multiply-add; 0: none. On the
  /// host bf16 stands for vector units in f32.
  double bf16FlopsPerSecond = 0, fp8FlopsPerSecond = 0, fp4FlopsPerSecond = 0;
  /// Between the end of a kernel and the beginning of the next one's work, in a
  /// graph with programmatic dependent launch.
  double launchGapSeconds = 0;
  Link link;
  std::vector<CollectiveTime> collectives; ///< by method, ranks, bytes
  /// JSON pointer of a figure -> where it is from.
  std::map<std::string, std::string> sources;

  bool isHost() const { return architecture == "host"; }
  const Capability *capability() const { return findCapability(architecture); }
  /// Where the figure at a JSON pointer ("/device/clock_hz") is from: its source
  /// or that of what holds it; "" if neither has one.
  std::string_view sourceOf(std::string_view pointer) const;

  /// Reads a file and checks it: one line for each mistake.
  static Result<Machine> read(const std::filesystem::path &file);
  /// `name` stands for the text in messages.
  static Result<Machine> parse(std::string_view text, std::string name);
  /// The file's text, which read() takes back as the same machine.
  std::string json() const;
};

/// The names of the shipped machines, in order.
std::vector<std::string> shippedMachines();
/// A shipped machine by name, else a file by path; an error that lists the names
/// if it is neither.
Result<Machine> findMachine(std::string_view nameOrPath);
/// The machine that stands for an architecture if none is named: sm_120a is
/// rtx-pro-6000x8-pcie5, sm_90a h200x1, sm_100a b200x8, host host.
Result<Machine> defaultMachine(std::string_view architecture);

} // namespace mla

#endif // MLA_MACHINE_MACHINE_H
