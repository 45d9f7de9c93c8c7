//===- Internal.h - the parts of a probe ------------------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_PROBE_INTERNAL_H
#define MLA_RUNTIME_PROBE_INTERNAL_H

#include "runtime/probe/Gpu.h"
#include "runtime/probe/Probe.h"

namespace mla::probe {

using Gpus = std::vector<std::unique_ptr<Gpu>>;

/// What of a GPU can be measured alone.
struct DeviceFigures {
  double readBytesPerSecond = 0, bf16FlopsPerSecond = 0, launchGapSeconds = 0;
  /// While memory is read, which is what decoding does, and while tensor cores
  /// work, which takes more power.
  double clockHz = 0, matrixClockHz = 0;
};
Result<DeviceFigures> measureDevice(Gpu &gpu);

/// From one GPU to another.
struct PeerFigures {
  bool reported = false; ///< by the driver
  bool arrived = false;  ///< what was written and read, tried with data
  std::string problem;   ///< why it did not
  double writeBytesPerSecond = 0, readBytesPerSecond = 0;
};
/// An error only if a GPU can no longer be used.
Result<PeerFigures> measurePeer(Gpu &from, Gpu &to);
/// Seconds from a store until the other sees it; 0 if nothing arrives.
Result<double> measureLatency(Gpu &one, Gpu &other);

/// All-reduces of bf16 by NCCL among all GPUs, in graphs.
struct NcclFigures {
  std::string version;
  std::vector<CollectiveTime> times;
};
Result<NcclFigures> measureNccl(Gpus &gpus, const std::string &file);

/// All-reduces by kernels of plans among all GPUs, which reach each other's memory.
Result<std::vector<CollectiveTime>> measureExchanges(Gpus &gpus);

/// To four digits: what a measurement is worth, and a person can read.
double rounded(double value);

/// 4.33e12, "B/s" -> "4.33 TB/s"; 5.1e-7, "s" -> "0.51 us".
std::string withUnit(double value, const std::string &unit);

} // namespace mla::probe

#endif // MLA_RUNTIME_PROBE_INTERNAL_H
