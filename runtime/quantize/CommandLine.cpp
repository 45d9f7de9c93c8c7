//===- CommandLine.cpp - the arguments of mla-quantize --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/base/ThreadPool.h"
#include "runtime/quantize/Quantize.h"
#include <CLI/CLI.hpp>
#include <csignal>
#include <iostream>

namespace mla::quantize {
namespace {

std::atomic<bool> interrupted = false;

/// The work ends at the next stripe and cleans up. A second signal ends the
/// program at once.
void catchSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = true; };
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  for (int signal : {SIGINT, SIGTERM, SIGHUP})
    ::sigaction(signal, &action, nullptr);
  // A limit on file sizes is then an error of a write.
  std::signal(SIGXFSZ, SIG_IGN);
}

/// Turns a parser of ours into a check of CLI11, whose message it prints.
template <typename Parse> CLI::Validator checkedBy(Parse parse) {
  return CLI::Validator(
      [parse](const std::string &text) {
        auto result = parse(text);
        return result.ok() ? std::string() : result.status().message();
      },
      "");
}

int fail(const std::string &message) {
  std::cout.flush();
  std::cerr << "mla-quantize: " << message << "\n";
  return interrupted ? 130 : 1;
}

} // namespace

int run(int argc, const char *const *argv) {
  try {
    CLI::App app("Writes a model folder with weights in other formats.",
                 "mla-quantize");
    app.footer(
        "FORMAT is nvfp4, fp8-block, int4-g32, bf16, or keep (leave it as the "
        "input has it).\nLinear modules of the text model are converted; all "
        "other tensors are copied.\nExample: the attention of an nvfp4 model "
        "in "
        "FP8, its experts untouched:\n"
        "  mla-quantize IN -o OUT --weights keep --weights-for "
        "'*self_attn*=fp8-block'\n"
        "Exit codes: 0 success, 1 error, 2 wrong usage, 130 interrupted.");
    app.get_formatter()->column_width(32);
    Options options;
    std::string weights, cache;
    std::vector<std::string> rules;
    bool quiet = false;
    app.add_option("input", options.input, "Folder of the model")
        ->required()
        ->type_name("IN_DIR");
    app.add_option("-o,--output", options.output,
                   "Folder to write; must not exist or be empty")
        ->required()
        ->type_name("OUT_DIR");
    app.add_option("--weights", weights, "Format of linear modules")
        ->required()
        ->check(checkedBy(parseChoice))
        ->type_name("FORMAT");
    app.add_option("--weights-for", rules,
                   "Format of the modules that GLOB matches; may be repeated, "
                   "the last match wins. The only way to lm_head")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->check(checkedBy(parseRule))
        ->type_name("GLOB=FORMAT");
    app.add_option("--exclude", options.recipe.exclude,
                   "Leave the modules that GLOB matches as they are; may be "
                   "repeated")
        ->expected(1)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
        ->type_name("GLOB");
    app.add_option("--kv", cache,
                   "Format of the latent cache that the config "
                   "asks for (default: as the input's)")
        ->check(CLI::IsMember({"fp8"}))
        ->type_name("fp8");
    app.add_option("--kv-scales", options.cacheScales,
                   "Scales of the cache, from mla-run calibrate")
        ->type_name("FILE");
    app.add_option("--shard-size", options.shardBytes,
                   "Largest shard, in bytes or as 5GB")
        ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true))
        ->check(CLI::PositiveNumber)
        ->default_str("5GB")
        ->type_name("BYTES");
    app.add_option("--threads", options.threads,
                   "Threads to work with (default: all of the machine)")
        ->check(CLI::Range(1, runtime::ThreadPool::maxThreads))
        ->type_name("N");
    app.add_flag("--no-progress", quiet, "Draw no progress bar");
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
      return app.exit(e) == 0 ? 0 : 2;
    }

    // Checked above, so these have values.
    options.recipe.weights = *parseChoice(weights);
    for (const std::string &rule : rules)
      options.recipe.rules.push_back(*parseRule(rule));
    options.fp8Cache = cache == "fp8";
    options.progress = !quiet;
    options.interrupted = &interrupted;
    catchSignals();
    Status status = quantize(options, std::cout);
    return status.ok() ? 0 : fail(status.message());
  } catch (const std::exception &e) {
    // Out of memory, mostly. The library's own errors are Status values.
    return fail(e.what());
  }
}

} // namespace mla::quantize
