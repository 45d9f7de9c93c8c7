//===- Calibrate.cpp - mla-run calibrate ----------------------------------===//
//
// Part of mla. Fills the latent cache with the documents of a text, as a step
// of inference does, and looks at what is in it.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/KvScales.h"
#include "mla/Support/OutputFolder.h"
#include "runtime/cli/Commands.h"
#include "runtime/cli/Documents.h"
#include "runtime/cli/Support.h"
#include <algorithm>
#include <ostream>

namespace mla::cli {

Status calibrate(const CalibrateOptions &options, std::ostream &out) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<runtime::Engine> engine,
                       runtime::Engine::load(options.plan, options.engine));
  const plan::Plan &plan = engine->plan();
  // One latent cache a layer, in the order of the layers.
  std::vector<size_t> latent;
  for (size_t c = 0; c < plan.caches.size(); ++c)
    if (plan.caches[c].kind == "latent")
      latent.push_back(c);
  if (latent.size() != static_cast<size_t>(plan.model.layers))
    return invalid("expected a plan with a latent cache in each of its " +
                   std::to_string(plan.model.layers) + " layers, found " +
                   std::to_string(latent.size()) +
                   " (was it compiled with --plain?)");
  int64_t limit = engine->contextLength();
  if (options.maxTokens > 0)
    limit = std::min(limit, options.maxTokens);
  MLA_ASSIGN_OR_RETURN(
      std::vector<std::vector<int32_t>> documents,
      readDocuments(options.file, options.plan, plan.model, limit));

  std::vector<float> byCache(plan.caches.size(), 0.0F);
  size_t tokens = 0;
  for (const std::vector<int32_t> &ids : documents) {
    runtime::Sequence sequence = engine->newSequence();
    runtime::StepSequence step = {&sequence, ids, runtime::LogitsFor::Last};
    Result<runtime::Logits> logits = engine->step({&step, 1});
    MLA_RETURN_IF_ERROR(logits.status());
    MLA_RETURN_IF_ERROR(engine->raiseLargest(sequence, byCache));
    tokens += ids.size();
  }
  std::vector<float> amax;
  for (size_t c : latent)
    amax.push_back(byCache[c]);
  MLA_RETURN_IF_ERROR(writeFileAtomically(options.output, printKvScales(amax)));
  auto [low, high] = std::minmax_element(amax.begin(), amax.end());
  out << "largest magnitudes from " << formatNumber(*low, 3) << " to "
      << formatNumber(*high, 3) << " in " << amax.size() << " layers, over "
      << tokens << " tokens of " << documents.size() << " documents\nwrote "
      << options.output.string() << "\n";
  return {};
}

} // namespace mla::cli
