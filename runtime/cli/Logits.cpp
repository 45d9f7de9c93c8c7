//===- Logits.cpp - mla-run logits ----------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Commands.h"
#include "runtime/cli/ProcessGroup.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <ostream>

namespace mla::cli {

Status logits(const LogitsOptions &options, std::ostream &err) {
  std::vector<std::vector<int32_t>> texts;
  int64_t tokens = 0;
  for (const std::string &text : options.ids) {
    MLA_ASSIGN_OR_RETURN(std::vector<int32_t> ids, parseIds(text));
    tokens += static_cast<int64_t>(ids.size());
    texts.push_back(std::move(ids));
  }
  if (texts.empty())
    return invalid("at least one --ids is needed");
  runtime::EngineOptions engineOptions = options.engine;
  if (engineOptions.cacheTokens == 0) {
    engineOptions.cacheTokens = tokens;
    // Every sequence ends in a page that is filled in part.
    engineOptions.extraPages = static_cast<int64_t>(texts.size());
  }
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, engineOptions));
  reportExchange(*engine, err);

  std::vector<runtime::Sequence> sequences;
  std::vector<NamedMatrix> outputs;
  for (size_t s = 0; s < texts.size(); ++s) {
    sequences.push_back(engine->newSequence());
    outputs.push_back(
        {texts.size() == 1 ? "logits" : "logits." + std::to_string(s),
         0,
         engine->plan().model.vocabSize,
         {}});
  }
  // Each step takes the next chunk of every sequence that has tokens left.
  while (true) {
    std::vector<runtime::StepSequence> step;
    std::vector<size_t> which;
    for (size_t s = 0; s < texts.size(); ++s) {
      auto done = static_cast<size_t>(sequences[s].length());
      size_t count = texts[s].size() - done;
      if (options.chunk > 0)
        count = std::min(count, static_cast<size_t>(options.chunk));
      if (count == 0)
        continue;
      step.push_back({&sequences[s], std::span(texts[s]).subspan(done, count),
                      runtime::LogitsFor::All});
      which.push_back(s);
    }
    if (step.empty())
      break;
    MLA_ASSIGN_OR_RETURN(runtime::Logits rows, engine->step(step));
    int64_t row = 0;
    for (size_t i = 0; i < step.size(); ++i)
      for (size_t t = 0; t < step[i].ids.size(); ++t) {
        std::span<const float> values = rows.row(row++);
        NamedMatrix &output = outputs[which[i]];
        output.values.insert(output.values.end(), values.begin(), values.end());
        ++output.rows;
      }
  }
  if (writesFiles(options))
    MLA_RETURN_IF_ERROR(writeSafetensors(options.output, outputs));
  reportSaturation(*engine, err);
  err << "wrote " << options.output.string() << "\n";
  return {};
}

} // namespace mla::cli
