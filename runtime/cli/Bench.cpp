//===- Bench.cpp - mla-run bench ------------------------------------------===//
//
// Part of mla. Prefill: empty sequences take their prompts in one step. Decode:
// the same sequences take one token a step. Medians, after one round that
// counts for nothing.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>

namespace mla::cli {
namespace {

struct Samples {
  std::vector<double> prefill; ///< Seconds of a step.
  std::vector<double> decode;
};

/// One round: prefill and all decode steps.
Status measureRound(runtime::Engine &engine, const BenchOptions &options,
                    bool onDevice, Samples &samples) {
  int64_t vocab = engine.plan().model.vocabSize;
  std::vector<runtime::Sequence> sequences;
  std::vector<std::vector<int32_t>> texts;
  for (int64_t s = 0; s < options.sequences; ++s) {
    sequences.push_back(engine.newSequence());
    texts.push_back(spreadIds(options.promptTokens + options.decodeTokens,
                              vocab, static_cast<uint64_t>(s)));
  }
  std::vector<runtime::StepSequence> step(sequences.size());
  auto run = [&](int64_t begin, int64_t count) -> Result<double> {
    for (size_t s = 0; s < step.size(); ++s)
      step[s] = {&sequences[s],
                 std::span(texts[s]).subspan(static_cast<size_t>(begin),
                                             static_cast<size_t>(count))};
    Stopwatch watch;
    MLA_RETURN_IF_ERROR(stepAndChoose(engine, step, onDevice));
    return watch.seconds();
  };
  MLA_ASSIGN_OR_RETURN(double prefill, run(0, options.promptTokens));
  samples.prefill.push_back(prefill);
  for (int64_t i = 0; i < options.decodeTokens; ++i) {
    MLA_ASSIGN_OR_RETURN(double decode, run(options.promptTokens + i, 1));
    samples.decode.push_back(decode);
  }
  return {};
}

/// Text at the right of a column.
std::string right(const std::string &text, size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

/// What launches cost, by program and kernel, the dearest first. "floor" is the
/// time if every launch were as fast as its fastest call.
void printProfile(const std::vector<runtime::LaunchCost> &costs,
                  std::ostream &out) {
  struct Sum {
    int64_t calls = 0;
    double seconds = 0;
    double floor = 0;
  };
  using Key = std::pair<std::string, std::string>; // Program, kernel.
  std::map<Key, Sum> sums;
  double total = 0;
  for (const runtime::LaunchCost &cost : costs) {
    Sum &sum = sums[{cost.program, cost.kernel}];
    sum.calls += cost.calls;
    sum.seconds += cost.seconds;
    sum.floor += cost.fastest * static_cast<double>(cost.calls);
    total += cost.seconds;
  }
  std::vector<std::pair<Key, Sum>> order(sums.begin(), sums.end());
  std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
    return a.second.seconds > b.second.seconds;
  });
  out << " share     calls  mean us  floor us  program, kernel\n";
  for (const auto &[key, sum] : order) {
    auto calls = static_cast<double>(sum.calls);
    out << right(formatNumber(sum.seconds / total * 100, 1) + "%", 6)
        << right(std::to_string(sum.calls), 10)
        << right(formatNumber(sum.seconds / calls * 1e6, 1), 9)
        << right(formatNumber(sum.floor / calls * 1e6, 1), 10) << "  "
        << key.first << ", " << key.second << "\n";
  }
}

} // namespace

Status bench(const BenchOptions &options, std::ostream &out) {
  if (options.promptTokens < 1 || options.decodeTokens < 1 ||
      options.sequences < 1 || options.repeat < 1)
    return invalid("tokens, sequences and repetitions must be at least 1");
  if (!options.steps.empty())
    return benchStep(options, out);
  runtime::EngineOptions engineOptions = options.engine;
  engineOptions.measureOnly = true;
  if (engineOptions.cacheTokens == 0) {
    engineOptions.cacheTokens =
        options.sequences * (options.promptTokens + options.decodeTokens);
    engineOptions.extraPages = options.sequences;
  }
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, engineOptions));
  MLA_ASSIGN_OR_RETURN(bool onDevice,
                       samplesOnDevice(*engine, options.sampleOn));
  Samples warmUp, samples;
  MLA_RETURN_IF_ERROR(measureRound(*engine, options, onDevice, warmUp));
  for (int64_t i = 0; i < options.repeat; ++i)
    MLA_RETURN_IF_ERROR(measureRound(*engine, options, onDevice, samples));

  double prefill = median(samples.prefill);
  double decode = median(samples.decode);
  double prefillRate =
      static_cast<double>(options.promptTokens * options.sequences) / prefill;
  double decodeRate = static_cast<double>(options.sequences) / decode;
  runtime::MemoryUse memory = engine->memory();
  int64_t ranks = engine->plan().ranks.count;
  int64_t threads = engine->threads().size(); // Of each.
  if (options.json) {
    nlohmann::ordered_json json = {
        {"architecture", engine->plan().model.architecture},
        {"target", engine->plan().target.name},
        {"cpu", engine->plan().target.cpu},
        {"ranks", ranks},
        {"threads", threads},
        {"tokens_chosen_on_device", onDevice},
        {"sequences", options.sequences},
        {"prompt_tokens", options.promptTokens},
        {"decode_tokens", options.decodeTokens},
        {"prefill_seconds", prefill},
        {"prefill_tokens_per_second", prefillRate},
        {"decode_seconds", decode},
        {"decode_tokens_per_second", decodeRate},
        {"memory_bytes",
         {{"weights", memory.weights},
          {"cache", memory.cache},
          {"workspace", memory.workspace},
          {"ports", memory.ports}}}};
    out << json.dump(2) << "\n";
  } else {
    out << "prefill: " << options.sequences << " x " << options.promptTokens
        << " tokens in " << formatNumber(prefill * 1e3, 2) << " ms, "
        << formatNumber(prefillRate, 1) << " tokens/s\n"
        << "decode:  " << options.sequences << " x 1 token in "
        << formatNumber(decode * 1e3, 3) << " ms, "
        << formatNumber(decodeRate, 1) << " tokens/s (median of "
        << samples.decode.size() << " steps, "
        << (ranks == 1 ? "" : std::to_string(ranks) + " ranks of ") << threads
        << (threads == 1 ? " thread" : " threads") << (onDevice ? ", tokens chosen on the device" : "")
        << ")\n";
  }
  if (options.engine.profile)
    printProfile(engine->profile(), out);
  return {};
}

} // namespace mla::cli
