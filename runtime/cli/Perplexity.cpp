//===- Perplexity.cpp - mla-run perplexity --------------------------------===//
//
// Part of mla. Every id of a document but the first is predicted from those
// before it. The result is exp of the mean negative log-likelihood over all
// predicted ids of all documents.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/Documents.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

namespace mla::cli {
namespace {

double negativeLogLikelihood(std::span<const float> logits, int32_t id) {
  double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float value : logits)
    sum += std::exp(static_cast<double>(value) - largest);
  return std::log(sum) + largest -
         static_cast<double>(logits[static_cast<size_t>(id)]);
}

/// Appends the loss of every id but the first. Steps of a size that one program
/// takes, so that logits of a document need not be kept together.
Status measure(runtime::Engine &engine, std::span<const int32_t> ids,
               std::vector<double> &losses) {
  runtime::Sequence sequence = engine.newSequence();
  size_t count = ids.size() - 1;
  auto chunk = static_cast<size_t>(engine.largestStepWithLogits());
  for (size_t begin = 0; begin < count; begin += chunk) {
    size_t size = std::min(chunk, count - begin);
    runtime::StepSequence step = {&sequence, ids.subspan(begin, size),
                                  runtime::LogitsFor::All};
    MLA_ASSIGN_OR_RETURN(runtime::Logits logits, engine.step({&step, 1}));
    size_t first = losses.size();
    losses.resize(first + size);
    engine.threads().parallelFor(
        static_cast<int64_t>(size), [&](int64_t from, int64_t to) {
          for (int64_t i = from; i < to; ++i) {
            auto at = static_cast<size_t>(i);
            losses[first + at] =
                negativeLogLikelihood(logits.row(i), ids[begin + at + 1]);
          }
        });
  }
  return {};
}

} // namespace

Status perplexity(const PerplexityOptions &options, std::ostream &out,
                  std::ostream &err) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, options.engine));
  reportExchange(*engine, err);
  // The last id is only predicted, so it needs no place in the context.
  int64_t limit = engine->contextLength() + 1;
  if (options.maxTokens > 0)
    limit = std::min(limit, options.maxTokens);
  MLA_ASSIGN_OR_RETURN(
      std::vector<std::vector<int32_t>> documents,
      readDocuments(options.file, options.plan, engine->plan().model, limit));

  Stopwatch watch;
  std::vector<double> losses;
  for (const std::vector<int32_t> &ids : documents)
    MLA_RETURN_IF_ERROR(measure(*engine, ids, losses));
  double sum = 0;
  for (double loss : losses)
    sum += loss;
  double result = std::exp(sum / static_cast<double>(losses.size()));
  double seconds = watch.seconds();
  reportSaturation(*engine, err);
  if (options.json) {
    nlohmann::ordered_json json = {{"perplexity", result},
                                   {"tokens", losses.size()},
                                   {"documents", documents.size()},
                                   {"seconds", seconds}};
    if (engine->hasFp8Cache())
      json["saturated_values"] = engine->saturatedValues();
    out << json.dump(2) << "\n";
    return {};
  }
  out << "perplexity " << formatNumber(result, 4) << " over " << losses.size()
      << " tokens of " << documents.size() << " documents in "
      << formatNumber(seconds, 1) << " s\n";
  return {};
}

} // namespace mla::cli
