//===- Support.h - small things that subcommands share ----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CLI_SUPPORT_H
#define MLA_RUNTIME_CLI_SUPPORT_H

#include "mla/Support/Status.h"
#include "runtime/cli/Commands.h"
#include "runtime/executor/Engine.h"
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace mla::cli {

/// Wall clock since it was made.
class Stopwatch {
public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }

private:
  std::chrono::steady_clock::time_point start =
      std::chrono::steady_clock::now();
};

/// With `digits` after the point, in the C locale.
std::string formatNumber(double value, int digits);

/// The middle value, or the mean of the two in the middle; 0 for none.
double median(std::vector<double> values);

/// Ids that are spread over a vocabulary, for measurements.
std::vector<int32_t> spreadIds(int64_t count, int64_t vocab, uint64_t seed);

/// Token ids from "1,2,3"; spaces may stand beside the numbers.
Result<std::vector<int32_t>> parseIds(const std::string &text);

/// A matrix of f32 for writeSafetensors().
struct NamedMatrix {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  std::vector<float> values;
};

/// Writes a safetensors file. Written beside `path` first and then renamed:
/// never a torn file. Io, with the path.
Status writeSafetensors(const std::filesystem::path &path,
                        std::span<const NamedMatrix> matrices);

/// Whether tokens are to be chosen on the device. Unsupported if that was asked
/// for and the plan does not.
Result<bool> samplesOnDevice(const runtime::Engine &engine, SampleOn where);

/// A step that ends with the likeliest token of each sequence, or, if not
/// `onDevice`, with the logits; for measurements.
Status stepAndChoose(runtime::Engine &engine,
                     std::span<const runtime::StepSequence> sequences,
                     bool onDevice);

/// A warning if ranks on GPUs do not reach each other's memory, with why.
void reportExchange(runtime::Engine &engine, std::ostream &err);

/// A warning if values did not fit an FP8 cache, with what helps.
void reportSaturation(const runtime::Engine &engine, std::ostream &err);

} // namespace mla::cli

#endif // MLA_RUNTIME_CLI_SUPPORT_H
