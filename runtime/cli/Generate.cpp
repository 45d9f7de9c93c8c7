//===- Generate.cpp - mla-run generate ------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/Support.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/sampler/Sampler.h"
#include "runtime/tokenizer/Tokenizer.h"
#include <algorithm>
#include <iostream>
#include <iterator>

namespace mla::cli {
namespace {

SamplerOptions samplerOptions(const GenerateOptions &options) {
  SamplerOptions sampler;
  bool sampling = options.temperature || options.topK || options.topP ||
                  options.minP || options.seed;
  sampler.temperature = options.temperature.value_or(sampling ? 1.0F : 0.0F);
  if (options.greedy)
    sampler.temperature = 0.0F;
  sampler.topK = options.topK.value_or(sampler.topK);
  sampler.topP = options.topP.value_or(sampler.topP);
  sampler.minP = options.minP.value_or(sampler.minP);
  sampler.seed = options.seed.value_or(sampler.seed);
  sampler.repetitionPenalty = options.repetitionPenalty;
  return sampler;
}

/// Writes what was generated as soon as it is known: as text, or, without a
/// tokenizer, as numbers with commas between them.
class TokenPrinter {
public:
  TokenPrinter(std::ostream &out, const Tokenizer *tokenizer) : out(out) {
    if (tokenizer)
      decoder.emplace(*tokenizer);
  }
  Status print(int32_t id) {
    if (decoder) {
      MLA_ASSIGN_OR_RETURN(std::string piece, decoder->push(id));
      out << piece;
    } else {
      out << separator << id;
      separator = ",";
    }
    out << std::flush;
    return out ? Status() : ioError("cannot write what is generated");
  }
  void finish() {
    out << (decoder ? decoder->finish() : "") << "\n" << std::flush;
  }

private:
  std::ostream &out;
  std::optional<StreamDecoder> decoder;
  const char *separator = "";
};

/// Does steps of one sequence and chooses the token that follows each.
class Chooser {
public:
  Chooser(runtime::Engine &engine, const SamplerOptions &options, bool onDevice)
      : engine(engine), options(options), sampler(options), onDevice(onDevice) {
  }

  /// `history` is the sequence with `ids`, its new tokens; `generated` is for
  /// messages.
  Result<int32_t> next(runtime::Sequence &sequence,
                       std::span<const int32_t> ids,
                       std::span<const int32_t> history, int64_t generated) {
    runtime::StepSequence step = {&sequence, ids};
    if (!onDevice) {
      MLA_ASSIGN_OR_RETURN(runtime::Logits logits, engine.step({&step, 1}));
      return sampler.sample(logits.row(0), history, generated);
    }
    runtime::Sampling sampling = {options.temperature, options.topK,
                                  options.topP, options.minP, 0};
    // The numbers that the host would draw, but never rounded up to 1.
    if (options.temperature > 0)
      sampling.uniform =
          std::min(static_cast<float>(sampler.uniform()), 0x1.fffffep-1F);
    MLA_ASSIGN_OR_RETURN(std::vector<int32_t> chosen,
                         engine.stepAndSample({&step, 1}, {&sampling, 1}));
    return chosen[0];
  }

private:
  runtime::Engine &engine;
  const SamplerOptions &options;
  Sampler sampler;
  bool onDevice;
};

/// The kernels know no repetition penalty: then the host chooses.
Result<bool> onDevice(const GenerateOptions &options,
                      const runtime::Engine &engine) {
  if (options.repetitionPenalty == 1.0F)
    return samplesOnDevice(engine, options.sampleOn);
  if (options.sampleOn == SampleOn::Device)
    return unsupported("--sample-on device: a repetition penalty is applied on "
                       "the host");
  return false;
}

void report(std::ostream &err, const char *what, int64_t tokens,
            double seconds) {
  err << what << ": " << tokens << " tokens in " << formatNumber(seconds, 3)
      << " s";
  if (tokens > 0 && seconds > 0)
    err << ", " << formatNumber(static_cast<double>(tokens) / seconds, 1)
        << " tokens/s";
  err << "\n";
}

} // namespace

Status generate(GenerateOptions options, std::ostream &out, std::ostream &err) {
  SamplerOptions sampling = samplerOptions(options);
  MLA_RETURN_IF_ERROR(sampling.validate());
  if (options.maxTokens < 1)
    return invalid("--max-tokens must be at least 1");
  std::unique_ptr<Tokenizer> tokenizer; // Ids to ids needs none.
  if (options.ids.empty() || !options.printIds) {
    MLA_ASSIGN_OR_RETURN(tokenizer, Tokenizer::fromFile(options.plan));
  }
  MLA_ASSIGN_OR_RETURN(std::vector<int32_t> history,
                       options.ids.empty() ? tokenizer->encode(options.prompt)
                                           : parseIds(options.ids));
  if (history.empty())
    return invalid("the prompt has no tokens");
  auto promptTokens = static_cast<int64_t>(history.size());
  if (options.engine.cacheTokens == 0 &&
      options.maxTokens < runtime::defaultCacheTokens)
    options.engine.cacheTokens = promptTokens + options.maxTokens;
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, options.engine));
  reportExchange(*engine, err);

  std::vector<int64_t> ends;
  if (!options.ignoreEos)
    ends = engine->plan().model.eosTokens;
  MLA_ASSIGN_OR_RETURN(bool device, onDevice(options, *engine));
  // Every process draws the same numbers.
  if (options.engine.group && !options.seed)
    MLA_RETURN_IF_ERROR(collectives::Collectives(*options.engine.group)
                            .broadcast(std::as_writable_bytes(
                                           std::span(&sampling.seed, 1)),
                                       0, "the seed"));
  Chooser chooser(*engine, sampling, device);
  TokenPrinter printer(out, options.printIds ? nullptr : tokenizer.get());
  runtime::Sequence sequence = engine->newSequence();
  std::vector<int32_t> next = history;
  int64_t generated = 0;
  double prefillSeconds = 0;
  Stopwatch watch;
  while (true) {
    MLA_ASSIGN_OR_RETURN(int32_t id,
                         chooser.next(sequence, next, history, generated));
    if (generated == 0) {
      prefillSeconds = watch.seconds();
      watch = {};
    }
    if (std::find(ends.begin(), ends.end(), id) != ends.end())
      break;
    ++generated;
    history.push_back(id);
    next = {id};
    MLA_RETURN_IF_ERROR(printer.print(id));
    if (generated == options.maxTokens)
      break;
    if (sequence.length() == engine->contextLength()) {
      err << "\nstopped: the model's context of " << engine->contextLength()
          << " tokens is full\n";
      break;
    }
  }
  printer.finish();
  report(err, "prompt", promptTokens, prefillSeconds);
  // The first token comes out of the prompt's step.
  report(err, "generated", std::max<int64_t>(generated - 1, 0),
         watch.seconds());
  reportSaturation(*engine, err);
  return {};
}

} // namespace mla::cli
