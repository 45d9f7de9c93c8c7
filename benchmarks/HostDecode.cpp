//===- HostDecode.cpp - decoding against reading its weights --------------===//
//
// Part of mla. A step that decodes one token reads every weight that is active
// once; no host can do it faster than it can read those bytes. This program
// measures both in one process, on the same memory and the same threads, and
// prints their ratio:
//
//   (a) the median time of a step of one token, context small;
//   (b) the median time of reading the active weights once: all weights that
//       the step's launches take, one row of the embedding, and K tensors of
//       each stack of experts. Which K changes from one reading to the next, so
//       that caches help no more than they help decoding.
//
//   host_decode PLAN --experts-per-token 8 [--threads N]
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Support.h"
#include "runtime/executor/Engine.h"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

using namespace mla;

namespace {

using Bytes = std::span<const std::byte>;

struct Options {
  std::filesystem::path plan;
  runtime::EngineOptions engine;
  int64_t expertsPerToken = 0;
  int64_t contextTokens = 16;
  int64_t steps = 200;
  int64_t warmUp = 20;
};

/// How a step of one token uses a weight.
enum class Use { None, Whole, OneRow, Experts };

std::vector<Use> weightUses(const plan::Plan &plan,
                            const plan::Program &program) {
  std::vector<Use> uses(plan.weights.size(), Use::None);
  for (const plan::Launch &launch : program.launches) {
    // A launch that reads token ids looks up rows.
    bool looksUp = std::any_of(launch.arguments.begin(), launch.arguments.end(),
                               [](const auto &a) {
                                 auto *port = std::get_if<plan::Port>(&a.value);
                                 return port && *port == plan::Port::Ids;
                               });
    for (const plan::Argument &argument : launch.arguments) {
      auto *ref = std::get_if<plan::WeightRef>(&argument.value);
      if (!ref)
        continue;
      Use &use = uses[ref->index];
      if (plan.weights[ref->index].stacked)
        use = Use::Experts;
      else if (!looksUp)
        use = Use::Whole;
      else if (use == Use::None)
        use = Use::OneRow;
    }
  }
  return uses;
}

/// What reading number `round` reads, in slices of work for a thread.
std::vector<Bytes> activeSlices(const runtime::Engine &engine,
                                const std::vector<Use> &uses, int64_t round,
                                int64_t expertsPerToken) {
  constexpr size_t sliceBytes = size_t(64) << 10;
  std::vector<Bytes> slices;
  auto add = [&](Bytes bytes) {
    while (!bytes.empty()) {
      slices.push_back(bytes.first(std::min(bytes.size(), sliceBytes)));
      bytes = bytes.subspan(slices.back().size());
    }
  };
  for (uint32_t w = 0; w < uses.size(); ++w) {
    // All parts of a tensor stand together.
    std::span<const Bytes> tensors = engine.weights().tensors(w);
    size_t parts = engine.plan().weights[w].parts().size();
    auto rows = static_cast<size_t>(engine.plan().weights[w].shape.empty()
                                        ? 1
                                        : engine.plan().weights[w].shape[0]);
    auto at = static_cast<size_t>(round);
    if (uses[w] == Use::Whole) {
      for (Bytes part : tensors)
        add(part);
    } else if (uses[w] == Use::OneRow) {
      size_t row = tensors[0].size() / rows;
      add(tensors[0].subspan(at * 7 % rows * row, row));
    } else if (uses[w] == Use::Experts) {
      auto k = static_cast<size_t>(expertsPerToken);
      size_t count = tensors.size() / parts;
      for (size_t i = 0; i < k; ++i)
        for (size_t p = 0; p < parts; ++p)
          add(tensors[(at * k + i) % count * parts + p]);
    }
  }
  return slices;
}

uint64_t readPlain(Bytes bytes) {
  uint64_t sum = 0;
  size_t words = bytes.size() / 8;
  for (size_t i = 0; i < words; ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    sum ^= word;
  }
  for (size_t i = words * 8; i < bytes.size(); ++i)
    sum ^= static_cast<uint64_t>(bytes[i]);
  return sum;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t readAVX2(Bytes bytes) {
  __m256i sums[4] = {};
  size_t i = 0;
  for (; i + 128 <= bytes.size(); i += 128) {
    // Into the L2 cache, ahead of the hardware's prefetcher, as the kernels do:
    // a floor must not be higher than need be. May point beyond the end.
    constexpr uintptr_t ahead = 4096;
    for (uintptr_t line = 0; line < 128; line += 64)
      _mm_prefetch(reinterpret_cast<const char *>(
                       reinterpret_cast<uintptr_t>(bytes.data()) + i + line +
                       ahead),
                   _MM_HINT_T1);
    for (size_t lane = 0; lane < 4; ++lane)
      sums[lane] = _mm256_xor_si256(
          sums[lane], _mm256_loadu_si256(reinterpret_cast<const __m256i *>(
                          bytes.data() + i + 32 * lane)));
  }
  __m256i sum = _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]),
                                 _mm256_xor_si256(sums[2], sums[3]));
  return static_cast<uint64_t>(
             _mm256_extract_epi64(sum, 0) ^ _mm256_extract_epi64(sum, 1) ^
             _mm256_extract_epi64(sum, 2) ^ _mm256_extract_epi64(sum, 3)) ^
         readPlain(bytes.subspan(i));
}
#endif

uint64_t readBytes(Bytes bytes) {
#if defined(__x86_64__)
  static const bool hasAVX2 = __builtin_cpu_supports("avx2") != 0;
  if (hasAVX2)
    return readAVX2(bytes);
#endif
  return readPlain(bytes);
}

Result<double> measureDecode(runtime::Engine &engine, const Options &options) {
  int64_t count = options.warmUp + options.steps;
  if (options.contextTokens + count > engine.contextLength())
    return invalid("the model's context of " +
                   std::to_string(engine.contextLength()) +
                   " tokens is too short for so many steps");
  std::vector<int32_t> ids = cli::spreadIds(options.contextTokens + count,
                                            engine.plan().model.vocabSize, 1);
  runtime::Sequence sequence = engine.newSequence();
  std::span<const int32_t> rest = ids;
  auto step = [&](size_t size) {
    runtime::StepSequence one = {&sequence, rest.first(size)};
    rest = rest.subspan(size);
    return engine.step({&one, 1}).status();
  };
  MLA_RETURN_IF_ERROR(step(static_cast<size_t>(options.contextTokens)));
  std::vector<double> seconds;
  for (int64_t i = 0; i < count; ++i) {
    cli::Stopwatch watch;
    MLA_RETURN_IF_ERROR(step(1));
    if (i >= options.warmUp)
      seconds.push_back(watch.seconds());
  }
  return cli::median(std::move(seconds));
}

Result<nlohmann::ordered_json> measure(const Options &options) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, options.engine));
  const plan::Plan &plan = engine->plan();
  std::vector<Use> uses = weightUses(plan, plan.programs.front());
  for (size_t w = 0; w < uses.size(); ++w)
    if (uses[w] == Use::Experts &&
        (options.expertsPerToken < 1 ||
         options.expertsPerToken > plan.weights[w].shape[0]))
      return invalid("--experts-per-token must be from 1 to " +
                     std::to_string(plan.weights[w].shape[0]) +
                     " (num_experts_per_tok of the model)");

  MLA_ASSIGN_OR_RETURN(double decode, measureDecode(*engine, options));
  std::vector<double> seconds;
  uint64_t bytes = 0;
  std::atomic<uint64_t> sink{0};
  for (int64_t i = 0; i < options.warmUp + options.steps; ++i) {
    std::vector<Bytes> slices =
        activeSlices(*engine, uses, i, options.expertsPerToken);
    bytes = 0;
    for (Bytes slice : slices)
      bytes += slice.size();
    cli::Stopwatch watch;
    engine->threads().parallelFor(
        static_cast<int64_t>(slices.size()), [&](int64_t begin, int64_t end) {
          uint64_t sum = 0;
          for (int64_t s = begin; s < end; ++s)
            sum ^= readBytes(slices[static_cast<size_t>(s)]);
          sink.fetch_xor(sum, std::memory_order_relaxed);
        });
    if (i >= options.warmUp)
      seconds.push_back(watch.seconds());
  }
  double read = cli::median(std::move(seconds));
  auto rate = [&](double time) {
    return static_cast<double>(bytes) / time / 1e9;
  };
  return nlohmann::ordered_json{{"benchmark", "host_decode"},
                                {"architecture", plan.model.architecture},
                                {"layers", plan.model.layers},
                                {"cpu", plan.target.cpu},
                                {"threads", engine->threads().size()},
                                {"experts_per_token", options.expertsPerToken},
                                {"context_tokens", options.contextTokens},
                                {"steps", options.steps},
                                {"active_weight_bytes", bytes},
                                {"all_weight_bytes", engine->memory().weights},
                                {"decode_seconds", decode},
                                {"decode_gb_per_second", rate(decode)},
                                {"read_seconds", read},
                                {"read_gb_per_second", rate(read)},
                                {"decode_over_read", decode / read},
                                {"read_checksum", sink.load()}};
}

} // namespace

int main(int argc, char **argv) {
  Options options;
  options.engine.progress = true;
  CLI::App app("Compares decoding one token with reading its weights once.");
  app.add_option("plan", options.plan, "Folder that mla-compile wrote")
      ->required();
  app.add_option("--threads", options.engine.threads,
                 "Threads (default: all of the machine)");
  app.add_option("--checkpoint", options.engine.checkpoint,
                 "Folder of the checkpoint, if it has moved");
  app.add_option("--experts-per-token", options.expertsPerToken,
                 "num_experts_per_tok of the model");
  app.add_option("--context", options.contextTokens,
                 "Tokens before the first step measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps to take the median of")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  Result<nlohmann::ordered_json> json = measure(options);
  if (!json.ok()) {
    std::cerr << "host_decode: " << json.status().message() << "\n";
    return 1;
  }
  std::cout << json->dump(2) << "\n";
  return 0;
}
