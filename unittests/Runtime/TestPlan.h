//===- TestPlan.h - a plan and checkpoint made by hand ----------*- C++ -*-===//
//
// Part of mla. Writes the little model of TestKernels.cpp to a folder of its
// own, so that tests can load it, or damage it first. expectedLogits() computes
// the same model without cache or kernels.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_TESTPLAN_H
#define MLA_UNITTESTS_RUNTIME_TESTPLAN_H

#include "mla/Plan/Plan.h"
#include "unittests/TempFolder.h"
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mla::test {

class TestPlan {
public:
  static constexpr int64_t vocab = 12;
  static constexpr int64_t width = 4;
  static constexpr int64_t expertCount = 3;
  static constexpr int64_t maxPositions = 200;
  /// A token whose embedding is NaN.
  static constexpr int32_t nanToken = 11;

  /// Makes the checkpoint (two files) and fills `plan`; write() comes later.
  TestPlan();

  /// Adds a latent cache of `format` to which every program writes what it
  /// writes to the first one. In fp8_e4m3, with this scale and with a count of
  /// the values beyond its range.
  void addLatentCache(Format format, float scale = 1);
  /// Adds a router to every program, which chooses one of four "experts" by y and
  /// replaces y by what follows from that; `kernel` is its kernel.
  void addRouter(const std::string &kernel);
  /// Divides the model among `count` ranks, after everything else was added: each
  /// has the embeddings of some tokens, which are summed, and computes some of the
  /// columns of the logits, which are gathered.
  void addRanks(int64_t count);
  /// Adds the kernel test_sample, which chooses tokens "on the device".
  void addSampling();
  /// Adds a tokenizer that knows a, b and the end of a line, as 2, 4 and 6.
  void addTokenizer();

  /// Writes the plan; a test may change `plan` before, or the files after.
  void write();
  std::filesystem::path folder() const { return temp.path / "plan"; }
  std::filesystem::path checkpoint() const { return temp.path / "weights"; }

  plan::Plan plan;

private:
  TempFolder temp;
};

/// Value `w` of the embedding of a token: small integers, and NaN for nanToken.
float embedding(int64_t id, int64_t w);
/// The largest magnitude in the embeddings of `ids`.
float largestEmbedding(std::span<const int32_t> ids);

/// A text without the NaN token; other ones for other seeds.
std::vector<int32_t> text(size_t length, int32_t seed);

/// Logits after the last of `ids`.
std::vector<float> expectedLogits(std::span<const int32_t> ids);

} // namespace mla::test

#endif // MLA_UNITTESTS_RUNTIME_TESTPLAN_H
