//===- CommandLine.cpp - the arguments of mla-run -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/ProcessGroup.h"
#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <iterator>
#include <map>

namespace mla::cli {
namespace {

/// What the parsed command line asks for.
using Action = std::function<Status()>;

void addPlan(CLI::App &app, std::filesystem::path &plan) {
  app.add_option("plan", plan, "Folder that mla-compile wrote")
      ->required()
      ->type_name("PLAN");
}

void addPlanOptions(CLI::App &app, PlanOptions &options) {
  addPlan(app, options.plan);
  options.engine.progress = true;
  constexpr const char *group = "Running the plan";
  app.add_option("--threads", options.engine.threads,
                 "Threads to compute with (default: all of the machine)")
      ->check(CLI::Range(1, runtime::ThreadPool::maxThreads))
      ->type_name("N")
      ->group(group);
  app.add_option("--cache-tokens", options.engine.cacheTokens,
                 "Tokens that the cache holds, over all sequences")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(group);
  app.add_option("--gpu", options.engine.gpus,
                 "Number of the GPU, for a plan that needs one; several ranks: one "
                 "for all, or a list of one for each (default: 0, 1, ...)")
      ->check(CLI::NonNegativeNumber)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N")
      ->group(group);
  app.add_option("--pack", options.engine.packed,
                 "File of packed weights, for a plan of a GPU: read if it "
                 "exists, or else written")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--checkpoint", options.engine.checkpoint,
                 "Folder of the checkpoint, if it has moved since the plan was "
                 "compiled")
      ->type_name("DIR")
      ->group(group);
  constexpr const char *ranks = "Several ranks";
  app.add_flag_callback(
         "--no-peer-access",
         [&options] { options.engine.path = p2p::Path::Host; },
         "GPUs exchange rows in memory of the host, even if they reach each "
         "other's")
      ->group(ranks);
  app.add_option_function<double>(
         "--collective-timeout",
         [&options](double seconds) {
           options.engine.collectiveTimeout =
               std::chrono::milliseconds(std::llround(seconds * 1000));
         },
         "Seconds that a rank waits for another before all end (default: 60)")
      ->check(CLI::Range(0.001, 1e6))
      ->type_name("SECONDS")
      ->group(ranks);
  app.add_flag("--check-ranks", options.engine.compareRanks,
               "After each step compare what the ranks computed: it must be the "
               "same")
      ->group(ranks);
}

template <typename T>
CLI::Option *number(CLI::App *app, const char *name, T &value,
                    const char *help) {
  return app->add_option(name, value, help)->type_name("N");
}

CLI::Option *addSampleOn(CLI::App *app, SampleOn &where, const char *help) {
  static const std::map<std::string, SampleOn> names = {
      {"auto", SampleOn::Auto},
      {"device", SampleOn::Device},
      {"host", SampleOn::Host}};
  return app->add_option("--sample-on", where, help)
      ->transform(CLI::CheckedTransformer(names).description(""))
      ->type_name("WHERE");
}

void addGenerate(CLI::App &app, Action &action) {
  auto options = std::make_shared<GenerateOptions>();
  CLI::App *sub = app.add_subcommand("generate", "Continue a text");
  addPlanOptions(*sub, *options);
  CLI::Option_group *input = sub->add_option_group("What to continue");
  input
      ->add_option("--prompt,-p", options->prompt,
                   "Text to continue; - reads it from standard input")
      ->type_name("TEXT");
  input->add_option("--ids", options->ids, "Token ids to continue, with commas")
      ->type_name("1,2,3");
  input->require_option(1);
  number(sub, "--max-tokens,-n", options->maxTokens,
         "Stop after so many tokens")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_flag("--ignore-eos", options->ignoreEos,
                "Go on after a token that ends a text");
  sub->add_flag("--print-ids", options->printIds,
                "Print token ids, with commas, instead of text");
  constexpr const char *group =
      "Choosing tokens (the likeliest one, unless one "
      "of the first five is given)";
  std::vector<CLI::Option *> sampling = {
      number(sub, "--temperature", options->temperature,
             "Divides the logits; 0 takes the likeliest token"),
      number(sub, "--top-k", options->topK, "Keep the N likeliest tokens"),
      number(sub, "--top-p", options->topP,
             "Keep the likeliest tokens that together reach this probability"),
      number(sub, "--min-p", options->minP,
             "Drop tokens below this share of the likeliest one's probability"),
      number(sub, "--seed", options->seed, "Start of the random numbers")};
  number(sub, "--repetition-penalty", options->repetitionPenalty,
         "Makes tokens that occurred before less likely; 1 does nothing")
      ->group(group);
  addSampleOn(sub, options->sampleOn,
              "device (the plan's own kernels), host, or auto: the device if "
              "the plan can, without a repetition penalty (the default)")
      ->group(group);
  CLI::Option *greedy = sub->add_flag("--greedy", options->greedy,
                                      "Take the likeliest token (the default)")
                            ->group(group);
  for (CLI::Option *option : sampling)
    option->group(group)->excludes(greedy);
  sub->callback([options, &action] {
    action = [options] {
      return runInGroup(*options, [&](ProcessGroup *group, std::ostream &out,
                                      std::ostream &err) -> Status {
        if (options->prompt == "-") { // Only rank 0 has it.
          options->prompt.clear();
          if (!group || group->isFirst())
            options->prompt.assign(std::istreambuf_iterator<char>(std::cin),
                                   {});
          if (group)
            MLA_RETURN_IF_ERROR(group->share(options->prompt));
        }
        return generate(*options, out, err);
      });
    };
  });
}

void addLogits(CLI::App &app, Action &action) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App *sub = app.add_subcommand(
      "logits", "Write the logits after every token of given ids");
  sub->footer("The file has the tensor 'logits', f32 [tokens, vocabulary]. "
              "With several --ids the\nsequences are stepped together, and the "
              "tensors are 'logits.0', 'logits.1', ...");
  addPlanOptions(*sub, *options);
  sub->add_option("--ids", options->ids,
                  "Token ids of a sequence, with commas; may be repeated")
      ->required()
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->type_name("1,2,3");
  number(sub, "--chunk", options->chunk,
         "Give so many tokens of a sequence at a time (default: all)")
      ->check(CLI::PositiveNumber);
  sub->add_option("--output,-o", options->output, "Safetensors file to write")
      ->required()
      ->type_name("FILE");
  sub->callback([options, &action] {
    action = [options] {
      return runInGroup(*options, [&](ProcessGroup *, std::ostream &,
                                      std::ostream &err) {
        return logits(*options, err);
      });
    };
  });
}

void addPerplexity(CLI::App &app, Action &action) {
  auto options = std::make_shared<PerplexityOptions>();
  CLI::App *sub = app.add_subcommand(
      "perplexity", "Measure how well the model predicts a text");
  sub->footer(
      "Blank lines separate documents. A document is bos, its text with "
      "a newline at the\nend, and eos; every token but the first is "
      "predicted.");
  addPlanOptions(*sub, *options);
  sub->add_option("--file,-f", options->file, "Text file")
      ->required()
      ->type_name("FILE");
  number(sub, "--max-tokens", options->maxTokens,
         "Use only the first N tokens of a document, bos included")
      ->check(CLI::Range(int64_t(2), int64_t(1) << 40));
  sub->add_flag("--json", options->json, "Print JSON");
  sub->callback([options, &action] {
    action = [options] {
      return runInGroup(*options, [&](ProcessGroup *, std::ostream &out,
                                      std::ostream &err) {
        return perplexity(*options, out, err);
      });
    };
  });
}

void addCalibrate(CLI::App &app, Action &action) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App *sub = app.add_subcommand(
      "calibrate", "Measure the range of the latent cache for an FP8 cache");
  sub->footer(
      "Runs the documents of a text (see 'perplexity') and writes one scale a "
      "layer, the largest\nmagnitude divided by 448. The file is for "
      "mla-compile --kv-scales and mla-quantize --kv-scales.\nThe plan's own "
      "cache must be in f32, bf16 or f16.");
  addPlanOptions(*sub, *options);
  sub->add_option("--file,-f", options->file, "Text file")
      ->required()
      ->type_name("FILE");
  sub->add_option("--output,-o", options->output, "JSON file to write")
      ->required()
      ->type_name("FILE");
  number(sub, "--max-tokens", options->maxTokens,
         "Use only the first N tokens of a document, bos included")
      ->check(CLI::Range(int64_t(2), int64_t(1) << 40));
  sub->callback([options, &action] {
    action = [options] {
      MLA_RETURN_IF_ERROR(checkAlone("calibrate"));
      return calibrate(*options, std::cout);
    };
  });
}

/// "SEQUENCES:CONTEXT[:TOKENS]".
std::optional<BenchSetting> parseSetting(const std::string &text) {
  int64_t values[3] = {0, 0, 1};
  const char *at = text.data(), *end = at + text.size();
  for (int i = 0; i < 3; ++i) {
    auto [next, error] = std::from_chars(at, end, values[i]);
    if (error != std::errc() || (next != end && *next != ':'))
      return std::nullopt;
    if (next == end) {
      if (i == 0 || values[0] < 1 || values[1] < 0 || values[2] < 1)
        return std::nullopt;
      return BenchSetting{values[0], values[1], values[2]};
    }
    at = next + 1;
  }
  return std::nullopt;
}

void addBench(CLI::App &app, Action &action) {
  auto options = std::make_shared<BenchOptions>();
  CLI::App *sub = app.add_subcommand("bench", "Measure prefill and decode");
  addPlanOptions(*sub, *options);
  number(sub, "--prompt-tokens", options->promptTokens,
         "Tokens of a sequence before decoding")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  number(sub, "--decode-tokens", options->decodeTokens,
         "Steps of one token that follow")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  number(sub, "--sequences,--batch", options->sequences,
         "Sequences in every step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  number(sub, "--repeat", options->repeat,
         "Rounds to take the median of, after one to warm up")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  auto context = std::make_shared<int64_t>(0);
  auto settings = std::make_shared<std::vector<std::string>>();
  addSampleOn(sub, options->sampleOn,
              "device: steps choose the likeliest token; host: steps end with "
              "the logits; auto: the device if the plan can (the default)");
  CLI::Option *contextOption =
      number(sub, "--context", *context,
             "Measure a decode step at this context, and each of its kernels; "
             "the cache is filled with random values")
          ->check(CLI::PositiveNumber);
  CLI::Option *steps =
      sub->add_option("--steps", *settings,
                      "So, these steps: sequences, tokens behind each, and new "
                      "tokens of each (1 if not said)")
          ->delimiter(',')
          ->check(CLI::Validator(
              [](std::string &text) {
                return parseSetting(text) ? std::string()
                                          : "expected SEQUENCES:CONTEXT[:TOKENS]"
                                            ", found " + text;
              },
              "", "step"))
          ->excludes(contextOption)
          ->type_name("B:C[:T],");
  number(sub, "--rank", options->engine.rank,
         "Whose part to measure, of a plan whose ranks exchange nothing "
         "(default: 0)")
      ->check(CLI::NonNegativeNumber);
  CLI::Option *json = sub->add_flag("--json", options->json, "Print JSON");
  sub->add_option("--json-file", options->jsonFile, "Write JSON to a file, too")
      ->type_name("FILE");
  sub->add_flag("--profile", options->engine.profile,
                "Measure every launch and print the sum for each kernel; "
                "slows steps a little")
      ->excludes(json)
      ->excludes(contextOption)
      ->excludes(steps);
  sub->callback([options, context, settings, &action] {
    if (*context)
      options->steps = {{options->sequences, *context, 1}};
    for (const std::string &text : *settings)
      options->steps.push_back(*parseSetting(text));
    if (!options->jsonFile.empty() && options->steps.empty())
      throw CLI::RequiresError("--json-file", "--context or --steps");
    action = [options] {
      return runInGroup(*options, [&](ProcessGroup *, std::ostream &out,
                                      std::ostream &) {
        return bench(*options, out);
      });
    };
  });
}

void addCompare(CLI::App &app, Action &action) {
  auto options = std::make_shared<CompareOptions>();
  CLI::App *sub = app.add_subcommand(
      "compare", "Run two plans of one model and compare their values");
  sub->footer("Both take the same tokens; after the prompt those that the first "
              "plan finds likeliest.\nEvery value that both plans name is read "
              "after the launch that completes it.");
  addPlanOptions(*sub, *options);
  sub->add_option("other", options->other, "Plan to be judged by the first")
      ->required()
      ->type_name("OTHER");
  CLI::Option_group *input = sub->add_option_group("What to run");
  input->add_option("--ids", options->ids,
                    "Token ids with commas, or a file of them")
      ->type_name("1,2,3");
  input->add_option("--prompt,-p", options->prompt, "Text")->type_name("TEXT");
  input->add_option("--random", options->random, "So many random tokens")
      ->check(CLI::PositiveNumber)
      ->type_name("N");
  input->require_option(1);
  number(sub, "--seed", options->seed, "Start of the random tokens")
      ->capture_default_str();
  number(sub, "--decode", options->decode, "Steps of one token that follow")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  number(sub, "--tolerance", options->tolerance,
         "Relative error of the logits that is no failure")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  sub->add_flag("--poison", options->poison,
                "Fill scratch memory with NaN before each step");
  sub->add_flag("--json", options->json, "Print JSON, with all values");
  sub->callback([options, &action] {
    action = [options] {
      MLA_RETURN_IF_ERROR(checkAlone("compare"));
      return compare(*options, std::cout);
    };
  });
}

void addPack(CLI::App &app, Action &action) {
  auto options = std::make_shared<PackOptions>();
  CLI::App *sub = app.add_subcommand(
      "pack", "Write the weights of a plan as a GPU has them, for fast starts");
  sub->footer("The file is for --pack of the other subcommands, with this plan "
              "or another that cuts\nand packs the same checkpoint alike. No GPU "
              "is needed. Each of several ranks has a file\nof its own: "
              "FILE.rank0, FILE.rank1, ...");
  addPlan(*sub, options->plan);
  sub->add_option("--output,-o", options->output, "File to write")
      ->required()
      ->type_name("FILE");
  sub->add_option("--checkpoint", options->checkpoint,
                  "Folder of the checkpoint, if it has moved")
      ->type_name("DIR");
  number(sub, "--threads", options->threads,
         "Threads to work with (default: all of the machine)")
      ->check(CLI::Range(1, runtime::ThreadPool::maxThreads));
  sub->callback([options, &action] {
    action = [options] {
      MLA_RETURN_IF_ERROR(checkAlone("pack"));
      return pack(*options, std::cerr);
    };
  });
}

void addInspect(CLI::App &app, Action &action) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App *sub =
      app.add_subcommand("inspect", "Say what a plan or a model folder holds");
  sub->footer("Only headers are read. A model's weights are listed by kind and "
              "format. What is missing\nor does not fit is an error, after "
              "everything else was printed.");
  sub->add_option("folder", options->folder,
                  "Folder with plan.json (a plan) or config.json (a model)")
      ->required()
      ->type_name("DIR");
  CLI::Option *launches =
      sub->add_flag("--launches", options->launches,
                    "Of a plan: print the launches of every program");
  sub->add_flag("--json", options->json, "Of a model: print JSON")
      ->excludes(launches);
  sub->callback([options, &action] {
    action = [options] { return inspect(*options, std::cout); };
  });
}

void addProbe(CLI::App &app, Action &action) {
  auto options = std::make_shared<ProbeOptions>();
  CLI::App *sub = app.add_subcommand(
      "probe", "Measure this machine for mla-compile --machine");
  sub->footer("GPUs are measured alone and together: memory, tensor cores, "
              "launches; peer access tried\nwith data, links, NCCL. Without a "
              "GPU the host is measured. docs/machines.md has the file.");
  sub->add_option("--output,-o", options->output, "JSON file to write")
      ->required()
      ->type_name("FILE");
  sub->add_option("--name", options->name,
                  "Name of the machine (default: made of the device's)")
      ->type_name("NAME");
  CLI::Option *host = sub->add_flag(
      "--host", options->host, "Measure the host, also if there is a GPU");
  number(sub, "--gpus", options->gpus, "The first N GPUs (default: all)")
      ->check(CLI::Range(1, 1024))
      ->excludes(host);
  number(sub, "--threads", options->threads,
         "Threads of the host (default: all of the machine)")
      ->check(CLI::Range(1, runtime::ThreadPool::maxThreads));
  sub->add_option("--nccl", options->nccl,
                  "NCCL's library (default: libnccl.so.2 where the system looks)")
      ->type_name("FILE")
      ->excludes(host);
  sub->callback([options, &action] {
    action = [options] { return probe(*options, std::cout, std::cerr); };
  });
}

int exitCode(const Status &status) {
  if (status.ok())
    return 0;
  std::cout.flush();
  std::cerr << "mla-run: " << status.message() << "\n";
  return status.code() == StatusCode::Numeric ? 3 : 1;
}

} // namespace

int run(int argc, const char *const *argv) {
  try {
    CLI::App app("Runs a plan that mla-compile wrote, and measures machines.", "mla-run");
    app.require_subcommand(1);
    app.footer("'mla-run SUBCOMMAND --help' explains a subcommand.\n"
               "Exit codes: 0 success, 1 error, 2 wrong usage, 3 NaN or "
               "infinity among the logits.");
    app.get_formatter()->column_width(32);
    Action action;
    addGenerate(app, action);
    addLogits(app, action);
    addPerplexity(app, action);
    addCalibrate(app, action);
    addBench(app, action);
    addCompare(app, action);
    addPack(app, action);
    addInspect(app, action);
    addProbe(app, action);
    try {
      app.parse(argc, argv);
    } catch (const CLI::ParseError &e) {
      return app.exit(e) == 0 ? 0 : 2;
    }
    return exitCode(action());
  } catch (const std::exception &e) {
    // Out of memory, mostly. The library's own errors are Status values.
    return exitCode(internalError(e.what()));
  }
}

} // namespace mla::cli
