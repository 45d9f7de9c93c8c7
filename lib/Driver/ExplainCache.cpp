//===- ExplainCache.cpp - the latent cache's format, in words -------------===//
//
// Part of mla. What the checkpoint asks for, what the target takes, what was
// chosen and by whom, and what that costs or saves.
//
//===----------------------------------------------------------------------===//
#include "ExplainParts.h"
#include "ExplainText.h"

using namespace mlir;
using namespace mla;
using namespace mla::explain;

static std::string nameOf(Format format) {
  return std::string(formatName(format));
}

/// "config.json at /quantization_config", without the folder.
static std::string sourceText(const std::string &source) {
  size_t at = source.find(" at /");
  std::filesystem::path file(source.substr(0, at));
  return file.filename().string() +
         (at == std::string::npos ? "" : source.substr(at));
}

/// Which lowering of attention takes a cache in `format`, or why none does.
static CacheFormatOption optionFor(Graph &graph, Format format) {
  CacheFormatOption option{format, "", "", 0, 0};
  std::vector<std::string> problems;
  OwningOpRef<ModuleOp> module = graph.withCache(format, problems);
  if (!module) {
    option.refusal = problems.front();
    return option;
  }
  Operation *write = nullptr, *attention = nullptr;
  module->walk([&](Operation *op) {
    if (!write && isa<LatentCacheWriteOp>(op))
      write = op;
    if (!attention && isa<LatentAttentionOp>(op))
      attention = op;
  });
  if (!attention) {
    option.refusal = "the model has no latent attention";
    return option;
  }
  if (!graph.hasKernels()) {
    option.refusal = noCodeText(graph);
    return option;
  }
  Program smallest = graph.programs().front();
  for (Operation *op : {write, attention}) {
    if (!op)
      continue;
    Selection selection = selectFor(graph, *graph.on, op, smallest);
    if (const mla::Candidate *chosen = selection.chosen()) {
      if (op == attention)
        option.lowering = graph.on->target().fullName(*chosen->lowering);
      continue;
    }
    option.lowering.clear();
    // Those that are for other formats say no less than those that are for
    // other sizes, and come first.
    option.refusal = "there is no lowering for it";
    for (const mla::Candidate &candidate : selection.candidates)
      if (candidate.refusal) {
        option.refusal = candidate.refusal->full();
        if (candidate.refusal->need == Need::CacheFormat)
          break;
      }
    return option;
  }
  return option;
}

/// "bf16, f16 and fp8_e4m3".
static std::string listText(const std::vector<std::string> &names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  return text;
}

static void say(const Graph &graph, const Facts &facts,
                CacheDecision &decision) {
  std::vector<std::string> &words = decision.words;
  std::string machine = graph.machine().architecture;
  const CompileOptions &compile = graph.options.compile;
  words.push_back(
      decision.asked
          ? "The checkpoint asks for " + nameOf(*decision.asked) + ": " +
                decision.askedBy + "."
          : "The checkpoint asks for no format of its cache" +
                (graph.config.quantization.source.empty()
                     ? std::string(".")
                     : " (" + sourceText(graph.config.quantization.source) +
                           " was read)."));

  std::vector<std::string> possible;
  std::string by;
  for (const CacheFormatOption &option : decision.options)
    if (!option.lowering.empty()) {
      possible.push_back(nameOf(option.format));
      by = option.lowering;
    }
  if (!graph.hasKernels())
    words.push_back(machine + " takes none: " + noCodeText(graph) + ".");
  else if (machine == "sm_120a")
    words.push_back("sm_120a takes " + listText(possible) + ", by " + by +
                    ", which is made for it: at most 101,376 bytes of shared "
                    "memory with each of them.");
  else if (machine == "sm_90a")
    words.push_back("sm_90a takes " + listText(possible) + ", by " + by +
                    ": the kernels made for sm_120a, and here they have been "
                    "executed and measured.");
  else
    words.push_back(machine + " takes " + listText(possible) + ", by " + by +
                    ".");
  for (const CacheFormatOption &option : decision.options)
    if (graph.hasKernels() && option.lowering.empty())
      words.push_back("Not " + nameOf(option.format) + ": " + option.refusal +
                      ".");

  std::string chosen = nameOf(decision.chosen);
  std::string verb = decision.possible ? "Chosen: " : "Wanted: ";
  if (compile.cacheFormat) {
    std::string text = verb + chosen +
                       ", by --kv-cache-dtype, which "
                       "wins over config.json and hf_quant_config.json alike";
    if (decision.asked && *decision.asked != decision.chosen)
      text += ", here over the " + nameOf(*decision.asked) + " of " +
              decision.askedBy;
    words.push_back(text + "; no file is edited for it.");
  } else if (decision.asked) {
    words.push_back(verb + chosen +
                    ", since the checkpoint asks for it and the command line "
                    "says nothing.");
  } else {
    words.push_back(verb + chosen + ", the default of " + machine +
                    ", since nobody asks for another.");
  }
  if (!decision.possible) {
    words.push_back(
        "Chosen: nothing, no plan can be made with it on " + machine +
        (possible.empty()
             ? std::string(".")
             : ": choose " + listText(possible) + " with --kv-cache-dtype."));
    return;
  }
  if (decision.chosen == Format::FP8E4M3) {
    words.push_back(
        "Scales: " +
        (graph.cache.scaleSource == "none found: 1"
             ? std::string("none found, so 1; values beyond 448 would be "
                           "cut off (mla-run calibrate measures scales)")
             : graph.cache.scaleSource) +
        ".");
    words.push_back(
        "It takes " + grouped(facts.cacheBytes(Format::FP8E4M3)) +
        " bytes a token and device where 16 bits take " +
        grouped(facts.cacheBytes(Format::BF16)) +
        ". Perplexity of kjv-tiny, the bundled model: 42.881 with f32, 42.896 "
        "(+0.04%) with calibrated scales, 42.996 (+0.27%) with a scale of 1 "
        "(docs/quality.md).");
  } else if (decision.chosen != Format::F32) {
    words.push_back(
        "It takes " + grouped(facts.cacheBytes(decision.chosen)) +
        " bytes a token and device where fp8_e4m3 takes " +
        grouped(facts.cacheBytes(Format::FP8E4M3)) +
        ". Perplexity of kjv-tiny, the bundled model, differs from f32's by at "
        "most 0.01% (docs/quality.md).");
  }
}

CacheDecision mla::explain::decideCache(Graph &graph, const Facts &facts) {
  CacheDecision decision;
  const QuantizationConfig &quantization = graph.config.quantization;
  if (quantization.fp8KvCache) {
    decision.asked = Format::FP8E4M3;
    decision.askedBy = sourceText(quantization.source);
  }
  decision.chosen = graph.cache.format;
  decision.chosenBy = graph.options.compile.cacheFormat ? "--kv-cache-dtype"
                      : decision.asked                  ? "the checkpoint"
                                                        : "the default";
  for (Format format :
       {Format::F32, Format::BF16, Format::F16, Format::FP8E4M3}) {
    CacheFormatOption option = optionFor(graph, format);
    option.bytesPerToken = facts.cacheBytes(format);
    if (format == decision.chosen)
      decision.possible = !option.lowering.empty();
    decision.options.push_back(std::move(option));
  }
  say(graph, facts, decision);
  return decision;
}
