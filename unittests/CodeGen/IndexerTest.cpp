//===- IndexerTest.cpp - the sparse-attention indexer ---------------------===//
//
// Part of mla. A result is a set: the order of its positions does not matter,
// unless there are no more than topk.
//
//===----------------------------------------------------------------------===//
#include "Pages.h"
#include <set>

using namespace mla;
using namespace mla::test;

namespace {

struct Case {
  int64_t heads, dim, topk;
  Format cache;
  double scale = 0.25; ///< a power of two, so that it keeps ties
};

const std::vector<int64_t> allPositions{0, 1, 3, 4, 5, 14, 15, 16, 63, 64, 199};

/// The inputs of a step with one sequence a token. Keys beyond a token's
/// position are NaN.
struct Step {
  Step(const Case &c, Random &random, llvm::function_ref<double()> draw)
      : c(c), pages(allPositions, sequencesOf(allPositions.size()), random),
        q(fill(pages.tokens * c.heads * c.dim, draw)),
        weights(fill(pages.tokens * c.heads, draw)),
        keys(Buffer::output(c.cache, pages.cacheRows() * c.dim)) {
    for (int64_t t = 0; t < pages.tokens; ++t)
      for (int64_t p = 0; p <= pages.positions[t]; ++p)
        for (int64_t i = 0; i < c.dim; ++i)
          keys.set(pages.row(t, p) * c.dim + i, draw());
  }

  static std::vector<int64_t> sequencesOf(int64_t n) {
    std::vector<int64_t> out(n);
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  static Buffer fill(int64_t n, llvm::function_ref<double()> draw) {
    std::vector<double> values(n);
    std::generate(values.begin(), values.end(), draw);
    return Buffer::of(Format::F32, values);
  }

  Buffer run(const Kernel &k) {
    Buffer y = Buffer::output(Format::I32, pages.tokens * c.topk);
    k(pages.tokens,
      {q, weights, pages.positions, pages.sequences, pages.table, keys, y},
      {pages.columns});
    return y;
  }

  Expected score(int64_t t, int64_t position) const {
    Expected e;
    for (int64_t h = 0; h < c.heads; ++h) {
      Expected d = dot(q, (t * c.heads + h) * c.dim, keys,
                       pages.row(t, position) * c.dim, c.dim);
      double w = c.scale * weights[t * c.heads + h];
      e.value += w * std::max(d.value, 0.0);
      e.magnitude += std::abs(w) * d.magnitude;
    }
    return e;
  }

  /// A token's result is a set of as many positions as there should be; those
  /// that are all come in order, before -1.
  std::set<int64_t> checkSet(const Buffer &y, int64_t t) const {
    int64_t count = pages.positions[t] + 1;
    std::set<int64_t> found;
    for (int64_t j = 0; j < c.topk; ++j) {
      int64_t p = y[t * c.topk + j];
      if (count <= c.topk)
        EXPECT_EQ(p, j < count ? j : -1) << "token " << t << ", entry " << j;
      else
        EXPECT_TRUE(p >= 0 && p < count && found.insert(p).second)
            << "token " << t << ", entry " << j << ": " << p;
    }
    return found;
  }

  Case c;
  Pages pages;
  Buffer q, weights, keys;
};

std::vector<Case> cases() {
  std::vector<Case> out;
  int64_t heads[] = {1, 2, 3, 4, 8, 16}, dims[] = {8, 20, 33, 64};
  Format caches[] = {Format::F32, Format::BF16, Format::F16};
  int64_t i = 0;
  for (int64_t topk : {1, 2, 5, 16})
    for (int64_t j = 0; j < 3; ++j, ++i)
      out.push_back({heads[i % 6], dims[(i + i / 4) % 4], topk, caches[j]});
  return out;
}

void checkBest(const Case &c, const Kernel &k, Random &random) {
  std::uniform_real_distribution<double> uniform(-1, 1);
  Step step(c, random, [&] { return uniform(random); });
  Buffer y = step.run(k);
  for (int64_t t = 0; t < step.pages.tokens; ++t) {
    std::set<int64_t> found = step.checkSet(y, t);
    if (found.empty())
      continue;
    // The worst that was taken is no worse than the best that was left, within
    // the rounding of the two scores.
    double worst = INFINITY, best = -INFINITY;
    for (int64_t p = 0; p <= step.pages.positions[t]; ++p) {
      Expected s = step.score(t, p);
      if (found.count(p))
        worst = std::min(worst, s.value + tolerance * s.magnitude);
      else
        best = std::max(best, s.value - tolerance * s.magnitude);
    }
    EXPECT_GE(worst, best) << "token " << t;
  }
}

/// Small integers: sums without rounding, most of them equal to others, which
/// the lower position wins.
void checkTies(const Case &c, const Kernel &k, Random &random) {
  for (int64_t range : {0, 1, 3}) {
    Step step(c, random, [&] { return randomInt(random, -range, range); });
    Buffer y = step.run(k);
    for (int64_t t = 0; t < step.pages.tokens; ++t) {
      std::set<int64_t> found = step.checkSet(y, t), expected;
      if (found.empty())
        continue;
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t p = 0; p <= step.pages.positions[t]; ++p)
        order.emplace_back(-step.score(t, p).value, p);
      std::sort(order.begin(), order.end());
      for (int64_t j = 0; j < c.topk; ++j)
        expected.insert(order[j].second);
      EXPECT_EQ(found, expected) << "token " << t << ", range " << range;
    }
  }
}

/// Whatever the scores are, later kernels load rows at the positions.
void checkNaN(const Case &c, const Kernel &k, Random &random) {
  const double values[] = {NAN, INFINITY, -INFINITY, 0, 1};
  for (int64_t kinds : {1, 3, 5}) {
    Step step(c, random, [&] {
      return randomInt(random, 0, 3 * c.dim) == 0
                 ? values[randomInt(random, 0, kinds - 1)]
                 : randomInt(random, -1, 1);
    });
    Buffer y = step.run(k);
    for (int64_t t = 0; t < step.pages.tokens; ++t)
      step.checkSet(y, t);
  }
}

/// One test, so that kernels are compiled once.
TEST(Indexer, ChoosesTheBestLowestFirstAndAlwaysASet) {
  Kernels kernels;
  for (const Case &c : cases())
    for (auto check : {checkBest, checkTies, checkNaN})
      kernels.check(
          host::indexer(kernels.site(), c.heads, c.dim, c.topk, c.cache,
                        c.scale),
          [=](const Kernel &k, Random &random) { check(c, k, random); });
  kernels.run();
}

} // namespace
