//===- Sampler.cpp - choosing the next token ------------------------------===//
//
// Part of mla. Nothing here sorts a whole vocabulary unless a flat distribution
// with top-p asks for it: top-k selects, top-p takes from a heap.
//
//===----------------------------------------------------------------------===//
#include "runtime/sampler/Sampler.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

namespace mla {

namespace {
constexpr float minusInfinity = -std::numeric_limits<float>::infinity();

Status outOfRange(const char *name, const char *range, double found) {
  return invalid(std::string(name) + ": expected " + range + ", found " +
                 std::to_string(found));
}

/// Refuses what cannot be a logit. -inf is a masked token and is fine as long
/// as something is left.
Status checkLogits(std::span<const float> logits, int64_t step) {
  auto numeric = [&](const std::string &what) {
    return numericError("step " + std::to_string(step) + ": " + what);
  };
  if (logits.size() > size_t(std::numeric_limits<int32_t>::max()))
    return invalid("more logits than ids");
  bool any = false;
  for (size_t i = 0; i < logits.size(); ++i) {
    float v = logits[i];
    if (std::isnan(v))
      return numeric("logit of token " + std::to_string(i) + " is NaN");
    if (v == -minusInfinity)
      return numeric("logit of token " + std::to_string(i) + " is +inf");
    any |= v != minusInfinity;
  }
  if (logits.empty())
    return invalid("step " + std::to_string(step) +
                   ": no logits to sample from");
  if (!any)
    return numeric("every logit is -inf");
  return {};
}
} // namespace

Status SamplerOptions::validate() const {
  // The comparisons are written so that NaN fails them.
  if (!(temperature >= 0.0f && std::isfinite(temperature)))
    return outOfRange("temperature", "a number of at least 0", temperature);
  if (topK < 0)
    return outOfRange("top-k", "at least 0", topK);
  if (!(topP >= 0.0f && topP <= 1.0f))
    return outOfRange("top-p", "a number from 0 to 1", topP);
  if (!(minP >= 0.0f && minP <= 1.0f))
    return outOfRange("min-p", "a number from 0 to 1", minP);
  if (!(repetitionPenalty > 0.0f && std::isfinite(repetitionPenalty)))
    return outOfRange("repetition penalty", "a number above 0",
                      repetitionPenalty);
  return {};
}

Sampler::Sampler(const SamplerOptions &options)
    : options(options), generator(options.seed) {}

void Sampler::reseed(uint64_t seed) {
  options.seed = seed;
  generator.seed(seed);
}

double Sampler::uniform() {
  return static_cast<double>(generator() >> 11) * 0x1.0p-53;
}

Status Sampler::penalise(std::span<const float> logits,
                         std::span<const int32_t> history) {
  scores.assign(logits.begin(), logits.end());
  seen.assign(logits.size(), false);
  for (int32_t id : history) {
    if (id < 0 || size_t(id) >= logits.size())
      return invalid("repetition penalty: the history holds id " +
                     std::to_string(id) + ", but there are " +
                     std::to_string(logits.size()) + " logits");
    if (seen[id])
      continue;
    seen[id] = true;
    float &score = scores[id];
    score = score < 0.0f ? score * options.repetitionPenalty
                         : score / options.repetitionPenalty;
  }
  return {};
}

/// Drops what is below the k-th largest logit; keeps the order by id.
void Sampler::keepTopK() {
  size_t k = static_cast<size_t>(options.topK);
  if (k == 0 || k >= candidates.size())
    return;
  scores.resize(candidates.size());
  for (size_t i = 0; i < candidates.size(); ++i)
    scores[i] = candidates[i].logit;
  std::nth_element(scores.begin(), scores.begin() + (k - 1), scores.end(),
                   std::greater<float>());
  float threshold = scores[k - 1];
  std::erase_if(candidates,
                [&](const Candidate &c) { return c.logit < threshold; });
}

void Sampler::weigh() {
  float largest = minusInfinity;
  for (const Candidate &c : candidates)
    largest = std::max(largest, c.logit);
  weights.resize(candidates.size());
  double temperature = options.temperature;
  for (size_t i = 0; i < candidates.size(); ++i)
    weights[i] =
        std::exp((double(candidates[i].logit) - double(largest)) / temperature);
}

/// Leaves the candidates from the most probable down until their share of the
/// whole reaches top-p. The order is total (equal logits by id), so the result
/// does not depend on how the library builds heaps.
void Sampler::keepTopP() {
  if (options.topP >= 1.0f)
    return;
  double total = 0.0;
  for (double w : weights)
    total += w;
  double wanted = double(options.topP) * total;
  auto lessProbable = [](const Candidate &a, const Candidate &b) {
    return a.logit != b.logit ? a.logit < b.logit : a.id > b.id;
  };
  std::make_heap(candidates.begin(), candidates.end(), lessProbable);
  auto heapEnd = candidates.end();
  float largest = candidates.front().logit;
  double temperature = options.temperature;
  double sum = 0.0;
  do {
    std::pop_heap(candidates.begin(), heapEnd, lessProbable);
    --heapEnd; // What is popped gathers, most probable last, behind the heap.
    sum += std::exp((double(heapEnd->logit) - double(largest)) / temperature);
  } while (sum < wanted && heapEnd != candidates.begin());
  candidates.erase(candidates.begin(), heapEnd);
  std::reverse(candidates.begin(), candidates.end());
  weigh();
}

void Sampler::keepMinP() {
  if (options.minP <= 0.0f)
    return;
  // The largest weight is 1, so a weight is its share of the largest. One is
  // always kept, since min-p is at most 1.
  size_t kept = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (weights[i] < double(options.minP))
      continue;
    candidates[kept] = candidates[i];
    weights[kept++] = weights[i];
  }
  candidates.resize(kept);
  weights.resize(kept);
}

Result<int32_t> Sampler::sample(std::span<const float> logits,
                                std::span<const int32_t> history,
                                int64_t step) {
  MLA_RETURN_IF_ERROR(options.validate());
  MLA_RETURN_IF_ERROR(checkLogits(logits, step));
  if (options.repetitionPenalty != 1.0f && !history.empty()) {
    MLA_RETURN_IF_ERROR(penalise(logits, history));
    // A tiny or huge penalty may overflow what was finite.
    if (Status s = checkLogits(scores, step); !s.ok())
      return s.withContext("after the repetition penalty");
    logits = scores;
  }

  if (options.temperature == 0.0f) // max_element gives the first of equals.
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                                logits.begin());

  candidates.clear();
  for (size_t i = 0; i < logits.size(); ++i)
    if (logits[i] != minusInfinity)
      candidates.push_back({logits[i], static_cast<int32_t>(i)});
  keepTopK();
  weigh();
  keepTopP();
  keepMinP();

  double total = 0.0;
  for (double w : weights)
    total += w;
  double target = uniform() * total;
  // Rounding could leave the target at the very end: then the last candidate
  // that has any weight is meant.
  int32_t chosen = -1;
  double sum = 0.0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    if (weights[i] == 0.0)
      continue;
    chosen = candidates[i].id;
    sum += weights[i];
    if (target < sum)
      break;
  }
  return chosen;
}

} // namespace mla
