//===- Quantize.h - a model folder in other formats -------------*- C++ -*-===//
//
// Part of mla. What mla-quantize does; docs/quantize.md has its semantics.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_QUANTIZE_QUANTIZE_H
#define MLA_RUNTIME_QUANTIZE_QUANTIZE_H

#include "runtime/quantize/Recipe.h"
#include <atomic>
#include <filesystem>
#include <iosfwd>

namespace mla::quantize {

struct Layout;

struct Options {
  std::filesystem::path input, output;
  Recipe recipe;
  bool fp8Cache = false; ///< the config asks for an FP8 latent cache
  std::filesystem::path cacheScales; ///< file of KvScales.h, or empty
  uint64_t shardBytes = 5'000'000'000;
  int threads = 0; ///< 0: one for each hardware thread
  bool progress = true;
  /// Set from a signal handler, ends the work with an error.
  const std::atomic<bool> *interrupted = nullptr;
};

/// Writes the folder `output` and a summary to `out`. After an error there is
/// no new folder.
Status quantize(const Options &options, std::ostream &out);

/// A table of formats with modules, bytes and bits a weight, and what stayed as
/// it was, with the reason.
void printSummary(const Layout &layout, std::ostream &out);

/// The tool: parses the command line, handles signals. Exit codes: 0 success, 1
/// error, 2 wrong usage, 130 interrupted.
int run(int argc, const char *const *argv);

} // namespace mla::quantize

#endif // MLA_RUNTIME_QUANTIZE_QUANTIZE_H
