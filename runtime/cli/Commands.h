//===- Commands.h - what mla-run does ---------------------------*- C++ -*-===//
//
// Part of mla. One function a subcommand, apart from the command line, so that
// tests can call them. Each has its own file. Results go to `out`, what a
// person wants to know beside them to `err`; the functions neither exit nor
// throw.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CLI_COMMANDS_H
#define MLA_RUNTIME_CLI_COMMANDS_H

#include "mla/Support/Status.h"
#include "runtime/executor/Engine.h"
#include "runtime/hal/cuda/Driver.h"
#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace mla::cli {

/// What every subcommand that runs a plan takes.
struct PlanOptions {
  std::filesystem::path plan = {};
  runtime::EngineOptions engine = {};
};

/// Where tokens are chosen.
enum class SampleOn {
  Auto,   ///< On the device if the plan can, and if nothing else is asked for.
  Device, ///< Unsupported if the plan cannot.
  Host
};

struct GenerateOptions : PlanOptions {
  std::string prompt;
  std::string ids; ///< "1,2,3", instead of a prompt.
  int64_t maxTokens = 256;
  bool ignoreEos = false;
  bool printIds = false; ///< Print ids with commas instead of text.
  bool greedy = false;
  // Sampling is on if any of these five is given.
  std::optional<float> temperature;
  std::optional<int32_t> topK;
  std::optional<float> topP;
  std::optional<float> minP;
  std::optional<uint64_t> seed;
  float repetitionPenalty = 1.0F;
  SampleOn sampleOn = SampleOn::Auto;
};
/// Continues a prompt, token by token, until an end token, maxTokens, or the
/// end of the model's context.
Status generate(GenerateOptions options, std::ostream &out, std::ostream &err);

struct LogitsOptions : PlanOptions {
  std::vector<std::string> ids; ///< "1,2,3", one for each sequence.
  int64_t chunk = 0;            ///< Tokens of a sequence in a step; 0: all.
  std::filesystem::path output;
};
/// Writes the logits after every token to a safetensors file.
Status logits(const LogitsOptions &options, std::ostream &err);

struct PerplexityOptions : PlanOptions {
  std::filesystem::path file;
  int64_t maxTokens = 0; ///< Of a document; 0: the model's context.
  bool json = false;
};
/// How well the model predicts the documents of a text file.
Status perplexity(const PerplexityOptions &options, std::ostream &out,
                  std::ostream &err);

struct CalibrateOptions : PlanOptions {
  std::filesystem::path file;   ///< Text.
  std::filesystem::path output; ///< JSON; see mla/Config/KvScales.h.
  int64_t maxTokens = 0;        ///< Of a document; 0: the model's context.
};
/// Measures the range of the latent cache over a text and writes the scales that
/// an FP8 cache of this model needs.
Status calibrate(const CalibrateOptions &options, std::ostream &out);

struct CompareOptions : PlanOptions { ///< `plan` is the one to be trusted.
  std::filesystem::path other;
  std::string ids; ///< "1,2,3", or a file that holds that.
  std::string prompt;
  int64_t random = 0; ///< So many random tokens, instead of these two.
  uint64_t seed = 1;
  int64_t decode = 0;      ///< Steps of one token after the prompt, greedy.
  double tolerance = 2e-2; ///< Of the logits: ||a - b|| / ||a||.
  bool poison = false;     ///< Scratch memory is NaN before each step.
  bool json = false;
};
/// Runs the same steps on two plans of a model and compares every value of the
/// graph that both have. Invalid if the logits differ by more than `tolerance`.
Status compare(const CompareOptions &options, std::ostream &out);

struct PackOptions {
  std::filesystem::path plan;
  std::filesystem::path checkpoint; ///< Replaces the plan's, if not empty.
  std::filesystem::path output;
  int threads = 0;
};
/// Writes the weights of a plan for a GPU as the GPU has them.
Status pack(const PackOptions &options, std::ostream &err);

/// A step of `tokens` new ones of each of `sequences`, behind `context` others.
struct BenchSetting {
  int64_t sequences = 1, context = 0, tokens = 1;
};
struct BenchOptions : PlanOptions {
  int64_t promptTokens = 128;
  int64_t decodeTokens = 64;
  int64_t sequences = 1;
  int64_t repeat = 5;
  /// If there are any: no prefill, but each of these, kernel by kernel.
  std::vector<BenchSetting> steps;
  int kernelRepeats = 20; ///< Runs of each kernel to take the median of.
  /// On the device the likeliest token is chosen in every step. On the host none
  /// is: a step ends when the logits are there.
  SampleOn sampleOn = SampleOn::Auto;
  bool json = false;
  std::filesystem::path jsonFile; ///< With steps: JSON goes there too.
};
/// Measures prefill and decode, or the given steps.
Status bench(const BenchOptions &options, std::ostream &out);
/// The latter.
Status benchStep(const BenchOptions &options, std::ostream &out);

struct InspectOptions {
  std::filesystem::path folder; ///< Of a plan or of a model.
  bool launches = false;        ///< Of a plan: print them.
  bool json = false;            ///< Of a model: print JSON.
};
/// Says what a folder holds, without loading it: a plan, if there is a
/// plan.json, or else a model, if there is a config.json.
Status inspect(const InspectOptions &options, std::ostream &out);

/// The model in `folder`: modules by format, cache, what is skipped. What is
/// missing or does not fit is an error, after everything was printed.
Status inspectModel(const std::filesystem::path &folder, bool json,
                    std::ostream &out);

struct ProbeOptions {
  std::filesystem::path output; ///< A machine file; see docs/machines.md.
  std::string name;             ///< Of the machine; "": made of the device's.
  int gpus = 0;                 ///< The first so many; 0: all.
  bool host = false;            ///< The host, also if there is a GPU.
  int threads = 0;              ///< Of the host; 0: all.
  std::string nccl;             ///< File of the library; "": the system's.
  std::string driver = hal::cuda::Driver::defaultLibrary;
};
/// Measures this machine, GPUs if there are any, and writes a machine file.
Status probe(const ProbeOptions &options, std::ostream &out, std::ostream &err);

/// The program mla-run. Returns its exit code: 0 success, 1 error, 2 wrong
/// usage, 3 NaN or infinity among the logits.
int run(int argc, const char *const *argv);

} // namespace mla::cli

#endif // MLA_RUNTIME_CLI_COMMANDS_H
