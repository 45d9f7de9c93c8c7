//===- Probe.cpp - GPUs, one by one and together --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include "runtime/probe/Internal.h"
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <tuple>

namespace mla::probe {
using namespace hal::cuda;
using runtime::formatBytes;

double rounded(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.3e", value);
  return std::strtod(text, nullptr);
}

std::string withUnit(double value, const std::string &unit) {
  const std::pair<double, const char *> prefixes[] = {
      {1e15, "P"}, {1e12, "T"}, {1e9, "G"},  {1e6, "M"},
      {1e3, "k"},  {1, ""},     {1e-3, "m"}, {1e-6, "u"}};
  for (auto [scale, prefix] : prefixes) {
    // A time of 0.51 us is not 510 ns, of which there is no smaller part here.
    if (value < scale && scale > 1e-6)
      continue;
    char text[40];
    std::snprintf(text, sizeof text, "%.*f ", value / scale < 100 ? 2 : 0,
                  value / scale);
    return text + std::string(prefix) + unit;
  }
  return "0 " + unit;
}

namespace {

class GpuProbe {
public:
  GpuProbe(const Driver &driver, const Options &options, std::ostream &progress)
      : driver(driver), options(options), progress(progress) {}

  Result<Report> run() {
    MLA_RETURN_IF_ERROR(open());
    MLA_RETURN_IF_ERROR(device());
    MLA_RETURN_IF_ERROR(reserved());
    if (gpus.size() > 1) {
      peers();
      if (!lost)
        collectives();
    } else {
      m.sources["/link"] = "reported: one device";
    }
    if (!lost)
      MLA_RETURN_IF_ERROR(reserved());
    for (double *figure :
         {&m.clockHz, &m.readBytesPerSecond, &m.bf16FlopsPerSecond,
          &m.fp8FlopsPerSecond, &m.fp4FlopsPerSecond, &m.launchGapSeconds,
          &m.link.writeBytesPerSecond, &m.link.readBytesPerSecond,
          &m.link.latencySeconds})
      *figure = rounded(*figure);
    for (CollectiveTime &time : m.collectives)
      time.seconds = rounded(time.seconds);
    report.lines.insert(
        report.lines.begin(),
        {{"GPUs", std::to_string(gpus.size()) + " x " + gpus[0]->name,
          m.architecture + ", " + std::to_string(m.multiprocessors) +
              " multiprocessors"},
         {"memory", formatBytes(static_cast<uint64_t>(m.memoryBytes)),
          formatBytes(static_cast<uint64_t>(m.reservedBytes)) + " taken"}});
    std::vector<std::string> addresses;
    for (const auto &gpu : gpus)
      addresses.push_back(gpu->address);
    if (gpus.size() > 1)
      for (std::string &hint : linkHints(addresses, options.sysfs))
        report.hints.push_back(std::move(hint));
    return std::move(report);
  }

private:
  Status open() {
    int count = 0;
    if (driver.deviceGetCount(&count) != Success || count < 1)
      return unsupported("the driver shows no GPU");
    if (options.devices > count)
      return unsupported("expected at most " + std::to_string(count) +
                         " GPUs, which the driver shows, found " +
                         std::to_string(options.devices));
    if (options.devices > 0)
      count = options.devices;
    progress << "opening " << count << (count > 1 ? " GPUs" : " GPU")
             << std::endl;
    for (int i = 0; i < count; ++i) {
      MLA_ASSIGN_OR_RETURN(std::unique_ptr<Gpu> gpu, Gpu::open(driver, i));
      gpus.push_back(std::move(gpu));
    }
    Gpu &first = *gpus[0];
    for (const auto &gpu : gpus)
      if (gpu->name != first.name)
        return unsupported("GPUs of one kind are one machine; GPU 0 is " +
                           first.name + ", GPU " +
                           std::to_string(gpu->ordinal) + " is " + gpu->name +
                           " (CUDA_VISIBLE_DEVICES chooses)");
    std::string own = "sm_" + std::to_string(first.major * 10 + first.minor);
    std::string known;
    for (const Capability &capability : capabilities()) {
      known += (known.empty() ? "" : ", ") + std::string(capability.name);
      if (capability.name == own + "a")
        m.architecture = capability.name;
    }
    if (m.architecture.empty())
      return unsupported(first.name + " is " + own + ": expected one of " +
                         known);
    m.name = options.name.empty() ? machineName(first.name, count)
                                  : options.name;
    m.devices = count;
    m.description = std::to_string(count) + " " + first.name + ", measured";
    m.multiprocessors = first.multiprocessors;
    m.l2Bytes = first.l2Bytes;
    m.sources["/device/multiprocessors"] = "reported: driver";
    m.sources["/device/l2_bytes"] = "reported: driver";
    return {};
  }

  /// The slowest of each figure: a step waits for the slowest device.
  Status device() {
    double matrixClock = 0;
    for (const auto &gpu : gpus) {
      progress << "measuring GPU " << gpu->ordinal << " (" << gpu->name << ")"
               << std::endl;
      MLA_ASSIGN_OR_RETURN(DeviceFigures f, measureDevice(*gpu));
      auto least = [&](double &value, double found) {
        value = gpu == gpus[0] ? found : std::min(value, found);
      };
      least(m.readBytesPerSecond, f.readBytesPerSecond);
      least(m.bf16FlopsPerSecond, f.bf16FlopsPerSecond);
      least(m.clockHz, f.clockHz);
      least(matrixClock, f.matrixClockHz);
      m.launchGapSeconds = std::max(m.launchGapSeconds, f.launchGapSeconds);
    }
    m.sources["/device/read_bytes_per_second"] =
        "measured: mla-run probe, kernel read_ceiling";
    m.sources["/device/bf16_flops_per_second"] =
        std::string("measured: mla-run probe, mma.sync m16n8k16 in registers") +
        (m.capability()->hasWgmma     ? "; wgmma reaches more"
         : m.capability()->hasTcgen05 ? "; tcgen05 reaches more"
                                      : "");
    m.sources["/device/clock_hz"] =
        "measured: mla-run probe, cycles while memory is read";
    m.sources["/device/launch_gap_seconds"] =
        "measured: mla-run probe, empty kernels in a graph with programmatic "
        "dependent launch";
    otherFormats();
    report.lines.push_back({"read bandwidth",
                            withUnit(m.readBytesPerSecond, "B/s"),
                            "kernel read_ceiling, 1 GiB"});
    report.lines.push_back({"matrix rate bf16",
                            withUnit(m.bf16FlopsPerSecond, "FLOP/s"),
                            "mma.sync m16n8k16, operands in registers"});
    report.lines.push_back(
        {"clock", withUnit(m.clockHz, "Hz"),
         "while memory is read; " + withUnit(matrixClock, "Hz") +
             " while tensor cores work"});
    report.lines.push_back({"launch gap", withUnit(m.launchGapSeconds, "s"),
                            "empty kernels, graph, dependent launch"});
    return {};
  }

  /// fp8 and fp4 have no kernel here: as the shipped machine of the same
  /// architecture, by multiprocessors and clock.
  void otherFormats() {
    Result<Machine> shipped = defaultMachine(m.architecture);
    double share = 0;
    std::string source = "assumed: no machine of this architecture is shipped";
    if (shipped.ok()) {
      share = static_cast<double>(m.multiprocessors) * m.clockHz /
              (static_cast<double>(shipped->multiprocessors) *
               shipped->clockHz);
      m.fp8FlopsPerSecond = shipped->fp8FlopsPerSecond * share;
      m.fp4FlopsPerSecond = shipped->fp4FlopsPerSecond * share;
      source = "assumed: as " + shipped->name +
               ", by multiprocessors and clock; not measured";
    }
    m.sources["/device/fp8_flops_per_second"] = source;
    m.sources["/device/fp4_flops_per_second"] = source;
  }

  /// Data, rates and latencies of all pairs. An error is of a GPU that can no
  /// longer be used.
  Status tryPairs() {
    for (const auto &from : gpus)
      for (const auto &to : gpus) {
        if (from == to)
          continue;
        MLA_ASSIGN_OR_RETURN(PeerFigures f, measurePeer(*from, *to));
        reported &= f.reported;
        if (f.arrived) {
          writes.add(f.writeBytesPerSecond);
          reads.add(f.readBytesPerSecond);
        } else if (problem.empty()) {
          problem = "GPU " + std::to_string(from->ordinal) + " to GPU " +
                    std::to_string(to->ordinal) + ": " + f.problem;
        }
      }
    if (!problem.empty())
      return {};
    for (size_t i = 0; i < gpus.size(); ++i)
      for (size_t j = i + 1; j < gpus.size(); ++j) {
        MLA_ASSIGN_OR_RETURN(double seconds, measureLatency(*gpus[i], *gpus[j]));
        if (seconds > 0)
          latencies.add(seconds);
        else if (problem.empty())
          problem = "a flag that GPU " + std::to_string(i) + " and GPU " +
                    std::to_string(j) + " exchange does not arrive";
      }
    return {};
  }

  void peers() {
    progress << "trying peer access" << std::endl;
    if (Status status = tryPairs(); !status.ok()) {
      problem = status.message();
      lost = true; // The figures of single devices are there already.
    }
    bool arrived = problem.empty();
    m.link.kind = linkKind();
    m.link.peerAccess = arrived;
    if (!arrived) {
      std::string source = reported
                               ? "measured: mla-run probe, peer access is "
                                 "reported but data did not arrive"
                               : "reported: driver, no peer access";
      for (const char *key : {"peer_access", "write_bytes_per_second",
                              "read_bytes_per_second", "latency_seconds"})
        m.sources[std::string("/link/") + key] = source;
      report.lines.push_back({"peer access", "no", problem});
      report.hints.push_back(
          (reported ? "peer access is reported but data did not arrive ("
                    : "no peer access (") +
          problem + "): p2p stays off");
      return;
    }
    m.link.writeBytesPerSecond = writes.low;
    m.link.readBytesPerSecond = reads.low;
    m.link.latencySeconds = latencies.high;
    m.sources["/link/peer_access"] =
        "measured: mla-run probe, data written and read both ways";
    m.sources["/link/write_bytes_per_second"] =
        "measured: mla-run probe, kernel probe_push, slowest pair";
    m.sources["/link/read_bytes_per_second"] =
        "measured: mla-run probe, kernel read_ceiling, slowest pair";
    m.sources["/link/latency_seconds"] =
        "measured: mla-run probe, half of a flag's way to and fro, slowest pair";
    report.lines.push_back({"peer access", "yes", "data arrived, all pairs"});
    report.lines.push_back({"push", writes.text("B/s"), "stores, each pair"});
    report.lines.push_back({"pull", reads.text("B/s"), "loads, each pair"});
    report.lines.push_back(
        {"store latency", latencies.text("s"), "half a round trip"});
    if (writes.low * 3 < reads.low)
      report.hints.push_back("stores into a peer are much slower than loads (" +
                             withUnit(writes.low, "B/s") + " against " +
                             withUnit(reads.low, "B/s") +
                             "), as behind some PCIe switches");
  }

  /// All-reduces by kernels, where GPUs reach each other, and by NCCL, if it is there.
  void collectives() {
    if (m.link.peerAccess == true) {
      progress << "measuring exchanges by kernels" << std::endl;
      Result<std::vector<CollectiveTime>> times = measureExchanges(gpus);
      if (!times.ok())
        report.hints.push_back("no all-reduces by kernels: " +
                               times.status().message());
      else
        addCollectives(*times, "kernels that exchange", "");
    }
    progress << "measuring NCCL" << std::endl;
    Result<NcclFigures> figures = measureNccl(gpus, options.nccl);
    if (!figures.ok()) {
      report.hints.push_back("no all-reduces by NCCL: " +
                             figures.status().message());
      return;
    }
    const char *nvls = std::getenv("NCCL_NVLS_ENABLE");
    addCollectives(figures->times, "NCCL " + figures->version,
                   nvls ? std::string(", NCCL_NVLS_ENABLE=") + nvls : "");
  }

  void addCollectives(const std::vector<CollectiveTime> &times,
                      const std::string &by, const std::string &settings) {
    for (const CollectiveTime &t : times) {
      // In the order of machine files.
      auto behind = [](const CollectiveTime &a, const CollectiveTime &b) {
        return std::tie(a.method, a.ranks, a.bytes) <
               std::tie(b.method, b.ranks, b.bytes);
      };
      auto place = std::upper_bound(m.collectives.begin(), m.collectives.end(),
                                    t, behind);
      sources.insert(sources.begin() + (place - m.collectives.begin()),
                     "measured: mla-run probe, " + by + " in a graph" + settings);
      m.collectives.insert(place, t);
      report.lines.push_back(
          {t.method + " " + formatBytes(static_cast<uint64_t>(t.bytes)),
           withUnit(t.seconds, "s"),
           "all-reduce, " + std::to_string(t.ranks) + " ranks, bf16, " + by});
    }
    for (size_t i = 0; i < sources.size(); ++i)
      m.sources["/collectives/" + std::to_string(i)] = sources[i];
  }

  /// What is gone now that all libraries have taken their part.
  Status reserved() {
    uint64_t least = 0, most = 0;
    for (const auto &gpu : gpus) {
      MLA_ASSIGN_OR_RETURN(auto memory, gpu->memory());
      auto [free, total] = memory;
      least = least == 0 ? total : std::min(least, total);
      most = std::max(most, total - free);
    }
    m.memoryBytes = static_cast<int64_t>(least);
    m.reservedBytes = static_cast<int64_t>(most);
    m.sources["/device/memory_bytes"] = "reported: driver";
    m.sources["/device/reserved_bytes"] =
        "reported: driver, in use after the measurements";
    return {};
  }

  std::string linkKind() {
    // Atomics pass over NVLink as they are; PCIe has none of its own.
    int atomics = 0;
    if (driver.deviceGetP2PAttribute(&atomics, NativeAtomicSupported,
                                     gpus[0]->device,
                                     gpus[1]->device) == Success &&
        atomics) {
      m.sources["/link/kind"] = "reported: driver, atomics between devices";
      return "nvlink";
    }
    std::string kind = pcieKind(gpus[0]->address, options.sysfs);
    m.sources["/link/kind"] = "reported: Linux, fastest speed of the slot";
    if (kind.empty()) {
      kind = "pcie5";
      m.sources["/link/kind"] = "assumed: no NVLink, and Linux does not say";
    }
    return kind;
  }

  struct Range {
    double low = 0, high = 0;
    void add(double v) {
      low = low == 0 ? v : std::min(low, v);
      high = std::max(high, v);
    }
    std::string text(const std::string &unit) const {
      return high > low * 1.05
                 ? withUnit(low, unit) + " to " + withUnit(high, unit)
                 : withUnit(low, unit);
    }
  };

  const Driver &driver;
  const Options &options;
  std::ostream &progress;
  Gpus gpus;
  Report report;
  Machine &m = report.machine;
  std::vector<std::string> sources; ///< Of m.collectives.
  // Of pairs.
  Range writes, reads, latencies;
  bool reported = true;
  std::string problem; ///< the first; "": data arrives
  bool lost = false;   ///< a GPU is of no further use
};

} // namespace

Result<Report> probeGpus(const Driver &driver, const Options &options,
                         std::ostream &progress) {
  return GpuProbe(driver, options, progress).run();
}

} // namespace mla::probe
