//===- Compile.h - one run of the compiler ----------------------*- C++ -*-===//
//
// Part of mla. What mla-compile does once its command line is read. Nothing
// here exits or writes to the process's own streams, so that a test can call
// it.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DRIVER_COMPILE_H
#define MLA_DRIVER_COMPILE_H

#include "mla/Pipelines/Pipelines.h"
#include "llvm/Support/Error.h"
#include "llvm/Support/raw_ostream.h"
#include <filesystem>

namespace mla {

/// What the command line says of a layout; the rest is chosen by cost on a GPU, and
/// the simplest on the host.
struct LayoutGiven {
  bool experts = false, down = false, router = false, cache = false;
};

struct CompileOptions {
  /// A model folder, a lone config.json, or a step function as .mlir (with
  /// syntheticSeed).
  std::filesystem::path model;
  /// The plan's folder; with `stopAfter` a file for the IR, "" for `out`.
  std::filesystem::path output;
  std::string cpu = "x86-64-v3";
  int64_t maxContext = 0; ///< most tokens of a sequence; 0: the model's
  /// But for maxPages and the cache's format, which depend on the model.
  PipelineOptions pipeline;
  LayoutGiven given; ///< of pipeline.layout
  std::optional<Stage> stopAfter;
  /// Of the latent cache; none: what the checkpoint asks for, else f32 on the
  /// host and bf16 on a GPU.
  std::optional<Format> cacheFormat;
  std::string cacheScales; ///< a file, or a number; see --kv-scales
  bool printConfig = false;
  bool printLocations = false; ///< with the IR
  bool noWeights = false;      ///< formats as the config announces them
  std::optional<int64_t> syntheticSeed;
  bool verbose = false;
  std::string producer; ///< recorded in the plan, "mla 0.1.0"
};

/// Runs the stages. `out` gets what was asked for (IR, the config, the report),
/// `err` the diagnostics, each line of which begins with "mla-compile: ". The
/// error that is returned has not been printed; its text is empty if
/// diagnostics have said everything.
llvm::Error compile(const CompileOptions &options, llvm::raw_ostream &out,
                    llvm::raw_ostream &err);

} // namespace mla

#endif // MLA_DRIVER_COMPILE_H
