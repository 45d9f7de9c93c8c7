//===- Sampler.h - choosing the next token ----------------------*- C++ -*-===//
//
// Part of mla. Turns the logits of one sequence into its next token. The steps
// and their order are those of Hugging Face's generate(): repetition penalty,
// temperature, top-k, top-p, min-p, draw.
//
// The same seed and the same logits give the same tokens on every platform:
// the generator is std::mt19937_64, whose output the standard fixes; a uniform
// number is its upper 53 bits times 2^-53; all sums run in a fixed order in
// double. (Only exp() may differ in its last bit between C libraries.) One
// number is drawn a call, also when one candidate is left; none when greedy.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_SAMPLER_SAMPLER_H
#define MLA_RUNTIME_SAMPLER_SAMPLER_H

#include "mla/Support/Status.h"
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace mla {

struct SamplerOptions {
  /// 0 is greedy: the largest logit after the repetition penalty, the lower id
  /// among equals.
  float temperature = 1.0f;
  /// Keep the k largest; 0 or at least the vocabulary keeps all. All logits
  /// equal to the k-th are kept, as Hugging Face does.
  int32_t topK = 0;
  /// Keep the fewest candidates whose probabilities reach this sum, at least
  /// one; 1 keeps all, 0 keeps one.
  float topP = 1.0f;
  /// Drop candidates below this share of the largest probability; 0 keeps all.
  float minP = 0.0f;
  /// Divides positive and multiplies negative logits of ids in the history,
  /// once for each id; 1 changes nothing.
  float repetitionPenalty = 1.0f;
  uint64_t seed = 0;

  /// Invalid with the name of the first option that is out of its range.
  Status validate() const;
};

class Sampler {
public:
  /// `options` must be valid; sample() refuses otherwise.
  explicit Sampler(const SamplerOptions &options);

  /// The next token. `history` is all ids of the sequence so far, read only for
  /// the repetition penalty; ids outside the vocabulary are Invalid. `step` is
  /// only for messages. NaN or +inf among the logits, or nothing above -inf, is
  /// a Numeric error that names step and place; no token is made up.
  Result<int32_t> sample(std::span<const float> logits,
                         std::span<const int32_t> history = {},
                         int64_t step = 0);

  /// The next random number, from 0 to below 1: the one that sample() would draw.
  /// For who chooses elsewhere, one a token, none when greedy.
  double uniform();

  /// Starts the random numbers anew.
  void reseed(uint64_t seed);

private:
  struct Candidate {
    float logit;
    int32_t id;
  };
  Status penalise(std::span<const float> logits,
                  std::span<const int32_t> history);
  void keepTopK();
  void weigh();
  void keepTopP();
  void keepMinP();

  SamplerOptions options;
  std::mt19937_64 generator;
  // Scratch that lives as long as the sampler, so that a step allocates
  // nothing once they have grown.
  std::vector<float> scores;
  std::vector<Candidate> candidates;
  std::vector<double> weights; ///< exp((logit - largest) / temperature)
  std::vector<bool> seen;
};

} // namespace mla

#endif // MLA_RUNTIME_SAMPLER_SAMPLER_H
