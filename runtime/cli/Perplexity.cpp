//===- Perplexity.cpp - mla-run perplexity --------------------------------===//
//
// Part of mla. A document is a run of lines without a blank line between them;
// its ids are bos, its text with a newline at the end, eos. Every id but the
// first is predicted from those before it. The result is exp of the mean
// negative log-likelihood over all predicted ids of all documents.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Json.h"
#include "runtime/cli/Commands.h"
#include "runtime/cli/Support.h"
#include "runtime/tokenizer/Tokenizer.h"
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <ostream>

namespace mla::cli {
namespace {

std::vector<std::string> splitDocuments(std::string_view text) {
  std::vector<std::string> documents;
  std::string document;
  auto finish = [&] {
    if (!document.empty())
      documents.push_back(std::move(document));
    document.clear();
  };
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) {
      finish();
      continue;
    }
    document.append(line).append("\n");
  }
  finish();
  return documents;
}

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

Status perplexity(const PerplexityOptions &options, std::ostream &out) {
  MLA_ASSIGN_OR_RETURN(std::string text, readFile(options.file));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer,
                       Tokenizer::fromFile(options.plan));
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, options.engine));
  const plan::Model &model = engine->plan().model;
  // The last id is only predicted, so it needs no place in the context.
  int64_t limit = engine->contextLength() + 1;
  if (options.maxTokens > 0)
    limit = std::min(limit, options.maxTokens);

  Stopwatch watch;
  std::vector<double> losses;
  int64_t documents = 0;
  for (const std::string &document : splitDocuments(text)) {
    MLA_ASSIGN_OR_RETURN(std::vector<int32_t> body,
                         tokenizer->encode(document, {.addSpecial = false,
                                                      .parseSpecial = false}));
    std::vector<int32_t> ids;
    if (model.bosToken)
      ids.push_back(static_cast<int32_t>(*model.bosToken));
    ids.insert(ids.end(), body.begin(), body.end());
    if (!model.eosTokens.empty())
      ids.push_back(static_cast<int32_t>(model.eosTokens.front()));
    ids.resize(std::min(ids.size(), static_cast<size_t>(limit)));
    if (ids.size() < 2)
      continue; // Nothing to predict.
    ++documents;
    MLA_RETURN_IF_ERROR(measure(*engine, ids, losses));
  }
  if (losses.empty())
    return invalid(options.file.string() + ": has no tokens to predict");
  double sum = 0;
  for (double loss : losses)
    sum += loss;
  double result = std::exp(sum / static_cast<double>(losses.size()));
  double seconds = watch.seconds();
  if (options.json) {
    nlohmann::ordered_json json = {{"perplexity", result},
                                   {"tokens", losses.size()},
                                   {"documents", documents},
                                   {"seconds", seconds}};
    out << json.dump(2) << "\n";
    return {};
  }
  out << "perplexity " << formatNumber(result, 4) << " over " << losses.size()
      << " tokens of " << documents << " documents in "
      << formatNumber(seconds, 1) << " s\n";
  return {};
}

} // namespace mla::cli
