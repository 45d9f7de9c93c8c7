//===- Probe.h - what a machine can do, measured ----------------*- C++ -*-===//
//
// Part of mla. Measures the machine that this runs on and makes a Machine of it
// (docs/machines.md). Kernels are PTX that the driver compiles (Kernels.ptx); no
// plan is needed.
//
// Nothing that a driver reports about peers is believed: data is written through
// peer pointers and read back on the device that owns the memory. Whatever waits
// for a device has a deadline, because a link over which nothing arrives is what
// is looked for.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_PROBE_PROBE_H
#define MLA_RUNTIME_PROBE_PROBE_H

#include "mla/Machine/Machine.h"
#include "mla/Support/Status.h"
#include "runtime/hal/cuda/Driver.h"
#include <iosfwd>
#include <string>
#include <vector>

namespace mla::probe {

struct Options {
  std::string name;        ///< of the machine; "": made of what is found
  int devices = 0;         ///< the first so many GPUs; 0: all
  int threads = 0;         ///< on the host; 0: all
  std::string nccl;        ///< file of the library; "": where the system looks
  std::string sysfs = "/sys"; ///< another folder in tests
};

/// A line of the table: "read bandwidth", "4.33 TB/s", "kernel read_ceiling".
struct Line {
  std::string what, value, how;
};

struct Report {
  Machine machine;
  std::vector<Line> lines;
  /// What a person should know: sentences, none of them an error.
  std::vector<std::string> hints;
};

/// The host: its cores and its memory. Exhausted if it has no memory to read.
Result<Report> probeHost(const Options &options);

/// The GPUs that `driver` shows, all of one kind. Unsupported if their compute
/// capability is none of mla::capabilities(). What takes long is announced to
/// `progress`.
Result<Report> probeGpus(const hal::cuda::Driver &driver,
                         const Options &options, std::ostream &progress);

/// What stands between devices at PCI addresses ("0000:01:00.0") by `sysfs`: an
/// IOMMU that translates, bridges that redirect peer traffic (ACS). Sentences;
/// none if there is nothing to tell or nothing to be read.
std::vector<std::string> linkHints(const std::vector<std::string> &addresses,
                                   const std::string &sysfs);
/// "pcie5" by what `sysfs` says of the fastest speed of the device's slot; "" if
/// it says nothing.
std::string pcieKind(const std::string &address, const std::string &sysfs);

/// A name for a machine: "nvidia-h200x2" of "NVIDIA H200" and 2.
std::string machineName(const std::string &device, int64_t devices);

} // namespace mla::probe

#endif // MLA_RUNTIME_PROBE_PROBE_H
