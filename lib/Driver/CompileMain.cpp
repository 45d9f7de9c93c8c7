//===- CompileMain.cpp - the command line of mla-compile ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "ExplainCommand.h"
#include "mla/Dialect/MLA.h"
#include "mla/Driver/Compile.h"
#include "mla/Driver/Driver.h"
#include "mla/CodeGen/NVVM/Lowerings.h"
#include "mla/Target/Lowering.h"
#include "llvm/Support/FileSystem.h"
#include "llvm/Support/InitLLVM.h"
#include <CLI/CLI.hpp>

using namespace mla;

static constexpr int exitFailure = 1, exitUsage = 2;

/// The model that comes with mla, found from where this program lies, in a
/// build tree as in an installed one.
static std::filesystem::path bundledModel(const char *argv0) {
  std::filesystem::path program = llvm::sys::fs::getMainExecutable(
      argv0, reinterpret_cast<void *>(&bundledModel));
  return program.parent_path().parent_path() / "share" / "mla" / "models" /
         "kjv-tiny";
}

static std::vector<std::string> stageNames() {
  std::vector<std::string> names;
  for (const StageInfo &info : stages())
    if (info.stage != Stage::Emit)
      names.push_back(info.name.str());
  return names;
}

static std::vector<std::string> targetNames() {
  std::vector<std::string> names;
  for (const Target &target : targets())
    names.push_back(target.name.str());
  return names;
}

static std::string joined(const std::vector<std::string> &names) {
  std::string text;
  for (const std::string &name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// A range that is checked and, unlike CLI11's, not spelt out by --help.
static CLI::Validator between(int64_t low, int64_t high) {
  return CLI::Range(low, high).description("");
}

/// Reads "tp4xep2", "tp8" or "ep8" (without `experts` only the second); nothing if
/// it is none of these.
static std::optional<std::pair<int64_t, int64_t>> parseParallel(llvm::StringRef text,
                                                                bool experts) {
  int64_t tp = 1, ep = 1;
  if (text.consume_front("tp") &&
      (text.consumeInteger(10, tp) || !(text.empty() || text.consume_front("x"))))
    return std::nullopt;
  if (!text.empty() &&
      (!experts || !text.consume_front("ep") || text.consumeInteger(10, ep)))
    return std::nullopt;
  if (!text.empty() || tp < 1 || ep < 1 || tp > maxRanks || ep > maxRanks)
    return std::nullopt;
  return std::pair(tp, ep);
}

/// --attention and --experts, which say how many ranks there are unless --ranks
/// does (`given`). Returns what is wrong.
static std::string parseLayout(const std::string &attention,
                               const std::string &experts, bool given,
                               PipelineOptions &pipeline) {
  for (bool ofExperts : {false, true}) {
    const std::string &text = ofExperts ? experts : attention;
    if (text.empty())
      continue;
    std::string option = ofExperts ? "--experts" : "--attention";
    auto parsed = parseParallel(text, ofExperts);
    if (!parsed)
      return option + ": expected " +
             (ofExperts ? "tp8, ep8 or tp4xep2 (with other numbers)" : "tp8 (with "
                                                             "another number)") +
             ", found " + text;
    auto [tp, ep] = *parsed;
    if (!std::exchange(given, true))
      pipeline.ranks = tp * ep;
    if (tp * ep != pipeline.ranks)
      return option + " " + text + " is for " + std::to_string(tp * ep) +
             " ranks, found " + std::to_string(pipeline.ranks);
    if (ofExperts)
      pipeline.layout.expertGroups = ep;
  }
  return "";
}

static std::string footer() {
  std::string text = "Stages:\n";
  for (const StageInfo &info : stages()) {
    std::string name = info.name.str();
    name.resize(12, ' ');
    text += "  " + name + info.description.str() + "\n";
  }
  return text +
         "\nExamples:\n"
         "  mla-compile -o kjv.plan                    the bundled model\n"
         "  mla-compile DeepSeek-V2-Lite -o v2.plan    a Hugging Face folder\n"
         "  mla-compile DeepSeek-V2-Lite -o v2.plan --target sm_120a\n"
         "  mla-compile config.json --no-weights --stop-after=fuse\n"
         "  mla-compile config.json --explain --machine rtx-pro-6000x8-pcie5\n"
         "\nExit status: 0 done, 1 the model could not be compiled, 2 wrong "
         "usage.\n";
}

static int complain(const std::string &message) {
  llvm::errs() << "mla-compile: error: " << message
               << "\nTry mla-compile --help.\n";
  return exitUsage;
}

int mla::compileMain(int argc, char **argv) {
  llvm::InitLLVM init(argc, argv);
  registerGpuLowerings(nvvm::lowerings());
  CompileOptions options;
  std::string model = bundledModel(argv[0]).string();
  std::string output, stopAfter;
  int64_t seed = 0;

  CLI::App app("Compiles a model of the DeepSeek-V3 family to a plan, which "
               "mla-run executes.",
               "mla-compile");
  auto *named =
      app.add_option("MODEL", model,
                     "Model folder (config.json, *.safetensors), a lone "
                     "config.json, or a step function as .mlir; the bundled "
                     "kjv-tiny if left out")
          ->type_name("");
  app.add_option("-o,--output", output,
                 "Folder of the plan; with --stop-after the file for the IR")
      ->type_name("PATH");
  std::string machine;
  auto *target =
      app.add_option("--target", options.pipeline.target,
                     "Architecture to compile for: " + joined(targetNames()))
          ->type_name("NAME")
          ->capture_default_str()
          ->check(CLI::IsMember(targetNames()).description(""));
  app.add_option("--machine", machine,
                 "Machine to compile for: a file of mla-run probe, or one of " +
                     joined(shippedMachines()) +
                     " (default: the one that stands for the target)")
      ->type_name("MACHINE");
  app.add_option("--max-context", options.maxContext,
                 "Most tokens of a sequence (default: the model's)")
      ->type_name("N")
      ->check(between(1, int64_t(1) << 31));
  app.add_option("--cpu", options.cpu, "CPU that the kernels may rely on")
      ->type_name("NAME")
      ->capture_default_str();
  auto *steps =
      app.add_option("--max-step-tokens", options.pipeline.maxStepTokens,
                     "Most tokens in one step (default: 256, on a GPU 2048)")
          ->type_name("N")
          ->check(between(1, int64_t(1) << 20));
  auto *sequences =
      app.add_option("--max-sequences", options.pipeline.maxSequences,
                     "Most sequences in one step")
          ->type_name("N")
          ->capture_default_str()
          ->check(between(1, int64_t(1) << 20));

  std::string choosing = "Choosing lowerings";
  app.add_option("--lower", options.pipeline.lower,
                 "Lower an op this way, not the fastest; may be repeated")
      ->type_name("OP=LOWERING")
      ->group(choosing)
      ->take_all();
  std::string activations = "16bit";
  app.add_option("--activations", activations,
                 "16bit, or fp4: prompts times nvfp4 weights with activations in "
                 "4 bits, on targets that have such products")
      ->type_name("FORMAT")
      ->group(choosing)
      ->capture_default_str()
      ->check(CLI::IsMember({"16bit", "fp4"}).description(""));

  std::string several = "Several ranks";
  auto *ranks =
      app.add_option("--ranks", options.pipeline.ranks,
                     "Divide the model among this many ranks")
          ->type_name("N")
          ->group(several)
          ->check(between(1, maxRanks));
  std::string attention, experts;
  auto *attentionOption =
      app.add_option("--attention", attention,
                     "How attention is divided: tpN, the heads among all N ranks")
          ->type_name("LAYOUT")
          ->group(several);
  auto *expertsOption =
      app.add_option("--experts", experts,
                     "How experts are divided: tpN, the inner columns of each among "
                     "all ranks; epN, whole experts; tpMxepN, N groups of M ranks that "
                     "divide the columns of their experts (default: the fastest that "
                     "the target can do, on the host tpN)")
          ->type_name("LAYOUT")
          ->group(several);
  auto sharded = [&](const char *option, const char *what, bool &to) {
    return app
        .add_option_function<std::string>(
            option, [&to](const std::string &text) { to = text == "sharded"; },
            what)
        ->type_name("replicated|sharded")
        ->group(several)
        ->check(CLI::IsMember({"replicated", "sharded"}).description(""));
  };
  auto *downOption = sharded(
      "--latent-projections",
      "Whether all ranks have all of q_a and kv_a, or exchange what they make "
      "(default: the faster, on the host replicated)",
      options.pipeline.layout.shardDown);
  auto *routerOption = sharded("--router", "The same of routers",
                               options.pipeline.layout.shardRouter);
  auto *cacheOption = sharded(
      "--cache",
      "Whether all ranks keep all tokens in their caches, or the tokens are spread "
      "over the ranks, which exchange queries and merge results (default: the faster, "
      "on the host replicated)",
      options.pipeline.layout.shardCache);
  std::string collectives = "exchange";
  app.add_option("--collectives", collectives,
                 "exchange: each exchange by what takes the least time; on GPUs also "
                 "p2p: kernels that write into each other's memory alone; nccl: NCCL "
                 "alone, as between machines; local: nothing is exchanged, to measure "
                 "one rank alone, and what it computes means nothing")
      ->type_name("KIND")
      ->group(several)
      ->capture_default_str()
      ->check(CLI::IsMember({"exchange", "p2p", "nccl", "local"}).description(""));

  std::string cache = "auto";
  app.add_option("--kv-cache-dtype", cache,
                 "Format of the latent cache: auto (what the checkpoint asks "
                 "for, else f32 on the host, bf16 on a GPU), f32, bf16, f16, fp8_e4m3")
      ->type_name("FORMAT")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "f32", "bf16", "f16", "fp8_e4m3"})
                  .description(""));
  app.add_option("--kv-scales", options.cacheScales,
                 "Scales of an FP8 cache: a file of mla-run calibrate, or one "
                 "number (default: the checkpoint's)")
      ->type_name("FILE");

  std::string weights = "Where weights come from";
  auto *none = app.add_flag("--no-weights", options.noWeights,
                            "Read none, take their formats from the config; "
                            "such a plan cannot be run")
                   ->group(weights);
  auto *synthetic =
      app.add_option("--synthetic-weights", seed,
                     "Read none, make them from this seed when the plan runs")
          ->type_name("SEED")
          ->group(weights)
          ->check(between(0, int64_t(1) << 53));

  std::string looking = "Looking inside";
  app.add_flag("--print-config", options.printConfig,
               "Print what was read of the config, and end")
      ->group(looking);
  app.add_option("--stop-after", stopAfter,
                 "Print the IR after this stage, and end")
      ->type_name("STAGE")
      ->group(looking)
      ->check(CLI::IsMember(stageNames()).description(""));
  app.add_flag("--print-locations", options.printLocations,
               "Print the IR with the module path of each op")
      ->group(looking);
  bool plain = false;
  app.add_flag("--plain", plain, "Leave out the fusions, to compare with")
      ->group(looking);
  app.add_flag("-v,--verbose", options.verbose,
               "Print the time of each stage, and what passes remark")
      ->group(looking);
  explain::Command explaining;
  explaining.addTo(app);
  options.producer = "mla " MLA_VERSION;
  app.set_version_flag("--version", options.producer)
      ->description("Print the version, and end");
  app.set_help_flag("-h,--help", "Print this, and end");
  app.footer(footer());

  try {
    app.parse(explain::Command::complete(argc, argv));
  } catch (const CLI::ParseError &error) {
    if (error.get_exit_code() == 0)
      return app.exit(error); // --help, --version
    return complain(error.what());
  }

  options.model = model;
  options.output = output;
  options.pipeline.fuse = !plain;
  options.cacheFormat = parseFormat(cache); // none for "auto"
  if (*synthetic && *none)
    return complain("--no-weights and --synthetic-weights exclude each other");
  if (*synthetic)
    options.syntheticSeed = seed;
  if (explaining.given()) {
    if (!stopAfter.empty() || !output.empty() || options.printConfig || plain ||
        collectives == "local")
      return complain("--explain and --compare go with none of -o, --stop-after, "
                      "--print-config, --plain and --collectives local");
    if (std::string wrong = explaining.check(bool(*named)); !wrong.empty())
      return complain(wrong);
  } else if (explaining.hasDetails()) {
    return complain("--json, --contexts and --batches go with --explain and "
                    "--compare");
  } else if (!stopAfter.empty()) {
    options.stopAfter = parseStage(stopAfter);
  } else if (output.empty() && !options.printConfig) {
    return complain("-o is required: where does the plan go?");
  }
  PipelineOptions &pipeline = options.pipeline;
  pipeline.fp4Activations = activations == "fp4";
  if (!machine.empty()) {
    auto read = findMachine(machine);
    if (!read.ok())
      return complain("--machine: " + read.status().message());
    if (*target && read->architecture != pipeline.target)
      return complain("--machine " + machine + " is " + read->architecture +
                      ", --target says " + pipeline.target);
    pipeline.target = machine;
  }
  // A GPU wants prompts in large pieces.
  auto on = TargetMachine::open(pipeline.target);
  if (!*steps && on.ok() && (*on)->gpu())
    pipeline.maxStepTokens = 2048;
  if (pipeline.maxSequences > pipeline.maxStepTokens) {
    // Each sequence of a step has a token in it.
    if (*sequences && *steps)
      return complain("--max-sequences is above --max-step-tokens");
    (*sequences ? pipeline.maxStepTokens : pipeline.maxSequences) =
        *sequences ? pipeline.maxSequences : pipeline.maxStepTokens;
  }

  auto end = [](llvm::Error error) {
    if (!error)
      return 0;
    std::string message = llvm::toString(std::move(error));
    if (!message.empty())
      llvm::errs() << "mla-compile: error: " << message << "\n";
    return exitFailure;
  };
  if (std::string wrong = parseLayout(attention, experts, bool(*ranks), pipeline);
      !wrong.empty())
    return complain(wrong);
  options.given = {bool(*expertsOption), bool(*downOption), bool(*routerOption),
                   bool(*cacheOption)};
  pipeline.localCollectives = collectives == "local";
  pipeline.exchange = parseExchangeBy(collectives).value_or(ExchangeBy::Cost);
  if (pipeline.exchange != ExchangeBy::Cost && on.ok() && !(*on)->gpu())
    return complain("--collectives " + collectives +
                    " is for GPUs: the host has exchange and local");
  if (pipeline.exchange == ExchangeBy::Nccl && pipeline.layout.shardCache)
    return complain("--cache sharded merges attention by kernels that exchange, which "
                    "--collectives nccl excludes: take exchange or p2p");
  if (explaining.given())
    return end(
        explaining.run(options, pipeline.ranks > 1 || *ranks, llvm::outs(),
                       llvm::errs()));
  if (pipeline.ranks > 1) {
    if (plain)
      return complain("--plain and --ranks exclude each other: only the fused "
                      "graph can be divided");
  } else if (*attentionOption || *expertsOption || *downOption ||
             *routerOption || *cacheOption || collectives != "exchange") {
    return complain("--attention, --experts, --latent-projections, --router, "
                    "--cache and --collectives need several --ranks");
  }

  return end(compile(options, llvm::outs(), llvm::errs()));
}
