//===- Host.cpp - what the host's cores can do ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/Memory.h"
#include "runtime/base/ThreadPool.h"
#include "runtime/probe/Internal.h"
#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <string>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mla::probe {
namespace {

using Clock = std::chrono::steady_clock;

double secondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The best of some runs: others use the machine, too.
template <typename Work> double best(int runs, const Work &work) {
  double least = 0;
  for (int i = 0; i < runs; ++i) {
    Clock::time_point begin = Clock::now();
    work();
    double seconds = std::max(secondsSince(begin), 1e-9);
    least = i == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

/// Bytes of the largest cache that core 0 can use; 0 if Linux does not say.
int64_t lastLevelCache(const std::string &sysfs) {
  int64_t largest = 0;
  for (int i = 0; i < 8; ++i) {
    std::ifstream in(sysfs + "/devices/system/cpu/cpu0/cache/index" +
                     std::to_string(i) + "/size");
    int64_t size = 0;
    char unit = 'B';
    if (in >> size) {
      in >> unit;
      size *= unit == 'K' ? 1024 : unit == 'M' ? 1 << 20 : 1;
      largest = std::max(largest, size);
    }
  }
  return largest;
}

/// Hz that /proc/cpuinfo tells of the first core; 0 if it does not.
double reportedClock() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("cpu MHz", 0) == 0)
      if (size_t colon = line.find(':'); colon != line.npos)
        return std::atof(line.c_str() + colon + 1) * 1e6;
  return 0;
}

std::string cpuName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);)
    if (line.rfind("model name", 0) == 0)
      if (size_t colon = line.find(':'); colon + 2 < line.size())
        return line.substr(colon + 2);
  return "unknown processor";
}

#if defined(__x86_64__)
/// Flops of `rounds` of multiply-adds that depend on nothing but themselves. 12
/// sums hide 4 cycles of latency on 2 units, with room.
__attribute__((target("avx2,fma"), noinline)) double vectorFlops(int64_t rounds,
                                                                 float *sink) {
  constexpr int sums = 12;
  __m256 v[sums], x = _mm256_set1_ps(0.999F), y = _mm256_set1_ps(0.001F);
  for (__m256 &s : v)
    s = y;
  for (int64_t i = 0; i < rounds; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < sums; ++j)
      v[j] = _mm256_fmadd_ps(v[j], x, y);
  for (int j = 1; j < sums; ++j)
    v[0] = _mm256_add_ps(v[0], v[j]);
  _mm256_storeu_ps(sink, v[0]);
  return static_cast<double>(rounds) * sums * 8 * 2;
}
bool hasVectors() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#else
double vectorFlops(int64_t, float *) { return 0; }
bool hasVectors() { return false; }
#endif

double vectorRate(runtime::ThreadPool &pool) {
  if (!hasVectors())
    return 0;
  constexpr int64_t rounds = 2'000'000;
  std::atomic<double> flops{0};
  double seconds = best(3, [&] {
    flops = 0;
    pool.parallelFor(pool.size(), [&](int64_t begin, int64_t end) {
      float sink[8];
      for (int64_t i = begin; i < end; ++i)
        flops += vectorFlops(rounds, sink);
    });
  });
  return flops / seconds;
}

/// Bytes a second that all threads together read from memory.
Result<double> readRate(runtime::ThreadPool &pool, int64_t cache) {
  uint64_t bytes = std::max<uint64_t>(uint64_t(256) << 20,
                                      static_cast<uint64_t>(cache) * 8);
  bytes = std::min(bytes, runtime::availableMemory() / 4) >> 20 << 20;
  if (bytes == 0)
    return exhausted("the host has no free memory to read");
  MLA_ASSIGN_OR_RETURN(
      runtime::HostMemory memory,
      runtime::HostMemory::allocate(bytes, "the read bandwidth"));
  constexpr int64_t chunk = 1 << 20;
  auto chunks = static_cast<int64_t>(bytes) / chunk;
  std::atomic<uint64_t> sum{0};
  // Touched first: a page that was never written is the same zero page for all.
  pool.parallelFor(chunks, [&](int64_t begin, int64_t end) {
    std::fill(memory.bytes().begin() + begin * chunk,
              memory.bytes().begin() + end * chunk, std::byte{1});
  });
  double seconds = best(5, [&] {
    pool.parallelFor(chunks, [&](int64_t begin, int64_t end) {
      auto *words =
          reinterpret_cast<const uint64_t *>(memory.bytes().data());
      uint64_t own[8] = {};
      for (int64_t i = begin * chunk / 8; i < end * chunk / 8; i += 8)
        for (int j = 0; j < 8; ++j)
          own[j] ^= words[i + j];
      sum += own[0] ^ own[1] ^ own[2] ^ own[3] ^ own[4] ^ own[5] ^ own[6] ^
             own[7];
    });
  });
  return static_cast<double>(bytes) / seconds;
}

double launchGap(runtime::ThreadPool &pool) {
  constexpr int loops = 2000;
  return best(5, [&] {
           for (int i = 0; i < loops; ++i)
             pool.parallelFor(pool.size(), [](int64_t, int64_t) {});
         }) /
         loops;
}

} // namespace

Result<Report> probeHost(const Options &options) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::ThreadPool> pool,
                       runtime::ThreadPool::create(options.threads));
  Report report;
  Machine &m = report.machine;
  m.name = options.name.empty() ? "host" : options.name;
  m.architecture = "host";
  m.multiprocessors = pool->size();
  m.description = std::to_string(m.multiprocessors) + " threads of " + cpuName();
  m.clockHz = reportedClock();
  m.sources["/device/clock_hz"] = "reported: /proc/cpuinfo";
  if (m.clockHz < 1e8) {
    m.clockHz = 2e9;
    m.sources["/device/clock_hz"] = "assumed: Linux does not say";
  }
  m.memoryBytes = static_cast<int64_t>(runtime::physicalMemory());
  m.reservedBytes = std::clamp<int64_t>(
      m.memoryBytes - static_cast<int64_t>(runtime::availableMemory()), 0,
      m.memoryBytes - 1);
  m.l2Bytes = lastLevelCache(options.sysfs);
  MLA_ASSIGN_OR_RETURN(m.readBytesPerSecond, readRate(*pool, m.l2Bytes));
  m.bf16FlopsPerSecond = vectorRate(*pool);
  m.launchGapSeconds = launchGap(*pool);
  for (double *figure : {&m.clockHz, &m.readBytesPerSecond,
                         &m.bf16FlopsPerSecond, &m.launchGapSeconds})
    *figure = rounded(*figure);
  m.sources["/device/multiprocessors"] = "reported: threads that are used";
  m.sources["/device/memory_bytes"] = "reported: Linux";
  m.sources["/device/reserved_bytes"] =
      "reported: Linux, what is in use while this is measured";
  m.sources["/device/l2_bytes"] = m.l2Bytes
                                      ? "reported: Linux, last-level cache"
                                      : "assumed: Linux does not say";
  m.sources["/device/read_bytes_per_second"] =
      "measured: mla-run probe, all threads read";
  m.sources["/device/bf16_flops_per_second"] =
      m.bf16FlopsPerSecond > 0
          ? "measured: mla-run probe, 256-bit multiply-adds in f32"
          : "assumed: no vector units that kernels are made for";
  m.sources["/device/fp8_flops_per_second"] = "assumed: converted to f32";
  m.sources["/device/fp4_flops_per_second"] = "assumed: converted to f32";
  m.sources["/device/launch_gap_seconds"] =
      "measured: mla-run probe, loops of the thread pool";
  m.sources["/link"] = "reported: one host";
  report.lines = {
      {"threads", std::to_string(m.multiprocessors), "reported"},
      {"memory", runtime::formatBytes(static_cast<uint64_t>(m.memoryBytes)),
       "reported"},
      {"read bandwidth", withUnit(m.readBytesPerSecond, "B/s"),
       "all threads read"},
      {"vector units", withUnit(m.bf16FlopsPerSecond, "FLOP/s"),
       "256-bit multiply-adds in f32"},
      {"launch gap", withUnit(m.launchGapSeconds, "s"),
       "loops of the thread pool"}};
  return report;
}

} // namespace mla::probe
