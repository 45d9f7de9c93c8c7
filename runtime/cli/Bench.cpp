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
                    Samples &samples) {
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
    MLA_ASSIGN_OR_RETURN([[maybe_unused]] runtime::Logits logits,
                         engine.step(step));
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

/// What launches cost, by kernel, the dearest first.
void printProfile(const std::vector<runtime::LaunchCost> &costs,
                  std::ostream &out) {
  struct Sum {
    int64_t calls = 0;
    double seconds = 0;
  };
  std::map<std::string, Sum> byKernel;
  double total = 0;
  for (const runtime::LaunchCost &cost : costs) {
    Sum &sum = byKernel[cost.kernel];
    sum.calls += cost.calls;
    sum.seconds += cost.seconds;
    total += cost.seconds;
  }
  std::vector<std::pair<std::string, Sum>> order(byKernel.begin(),
                                                 byKernel.end());
  std::sort(order.begin(), order.end(), [](const auto &a, const auto &b) {
    return a.second.seconds > b.second.seconds;
  });
  out << "  share     calls     us/call  kernel\n";
  auto column = [&](const std::string &text, size_t width) {
    out << std::string(width - std::min(width, text.size()), ' ') << text;
  };
  for (const auto &[kernel, sum] : order) {
    column(formatNumber(total > 0 ? sum.seconds / total * 100 : 0, 1) + "%", 7);
    column(std::to_string(sum.calls), 10);
    column(formatNumber(sum.seconds * 1e6 / static_cast<double>(sum.calls), 2),
           12);
    out << "  " << kernel << "\n";
  }
}

} // namespace

Status bench(const BenchOptions &options, std::ostream &out) {
  if (options.promptTokens < 1 || options.decodeTokens < 1 ||
      options.sequences < 1 || options.repeat < 1)
    return invalid("tokens, sequences and repetitions must be at least 1");
  runtime::EngineOptions engineOptions = options.engine;
  if (engineOptions.cacheTokens == 0)
    engineOptions.cacheTokens =
        options.sequences *
        (options.promptTokens + options.decodeTokens + plan::pageTokens);
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, engineOptions));
  Samples warmUp, samples;
  MLA_RETURN_IF_ERROR(measureRound(*engine, options, warmUp));
  for (int64_t i = 0; i < options.repeat; ++i)
    MLA_RETURN_IF_ERROR(measureRound(*engine, options, samples));

  double prefill = median(samples.prefill);
  double decode = median(samples.decode);
  double prefillRate =
      static_cast<double>(options.promptTokens * options.sequences) / prefill;
  double decodeRate = static_cast<double>(options.sequences) / decode;
  runtime::MemoryUse memory = engine->memory();
  if (options.json) {
    nlohmann::ordered_json json = {
        {"architecture", engine->plan().model.architecture},
        {"target", engine->plan().target.name},
        {"cpu", engine->plan().target.cpu},
        {"threads", engine->threads().size()},
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
        << samples.decode.size() << " steps, " << engine->threads().size()
        << " threads)\n";
  }
  if (options.engine.profile)
    printProfile(engine->profile(), out);
  return {};
}

} // namespace mla::cli
