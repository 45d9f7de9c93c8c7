//===- AttentionTest.cpp - attention over a paged cache -------------------===//
//
// Part of mla. One step with a token at each length around the 64 rows of a
// tile, two of them in one sequence. Cache rows that no token of a sequence has
// reached hold NaN, so that looking at one shows.
//
//===----------------------------------------------------------------------===//
#include "Pages.h"

using namespace mla;
using namespace mla::test;
using mla::host::HeadShape;

namespace {

enum class Inputs {
  Moderate, ///< scores of a few units
  Exact     ///< small integers, whose scores are large and without rounding
};

/// One kernel over one of the two caches.
struct Case {
  bool latent;
  HeadShape shape; ///< heads, nope, rope, v, latent
  double scale;
  int64_t selected = 0; ///< width of the selection
  Inputs inputs = Inputs::Moderate;
  Format cache = Format::F32;

  std::string kernel(host::KernelSite site) const {
    return latent
               ? host::latentAttention(site, shape, cache, scale, selected)
               : host::attention(site, shape, cache, scale, selected);
  }
  int64_t grid(int64_t tokens) const {
    return tokens * (latent ? host::headBlocks(shape.heads) : shape.heads);
  }

  /// What a stored value of the cache is multiplied by.
  double cacheScale() const { return cache == Format::FP8E4M3 ? 0.75 : 1; }
  std::vector<int64_t> scalars(const Pages &pages) const {
    std::vector<int64_t> out{pages.columns};
    if (cache == Format::FP8E4M3)
      out.push_back(std::bit_cast<uint32_t>(float(cacheScale())));
    return out;
  }

  // The layout of queries and rows, as the ops' descriptions have it.
  int64_t perHead() const { return shape.nope + shape.v; }
  int64_t queryWidth() const {
    return (latent ? shape.latent : shape.nope) + shape.rope;
  }
  int64_t rowWidth() const {
    return (latent ? shape.latent : shape.heads * perHead()) + shape.rope;
  }
  int64_t valueWidth() const { return latent ? shape.latent : shape.v; }
  int64_t valueAt(int64_t head) const {
    return latent ? 0 : head * perHead() + shape.nope;
  }
  /// Place in the row of value i of a head's query.
  int64_t keyAt(int64_t head, int64_t i) const {
    if (latent)
      return i;
    return i < shape.nope ? head * perHead() + i
                          : shape.heads * perHead() + i - shape.nope;
  }
};

Buffer draw(int64_t n, Inputs inputs, Random &random) {
  if (inputs == Inputs::Moderate)
    return Buffer::uniform(Format::F32, n, random);
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(randomInt(random, -4, 4));
  return Buffer::of(Format::F32, values);
}

/// Queries, the past, and for each token the positions it attends to.
struct Step {
  Step(const Case &c, Random &random)
      : c(c), pages({0, 62, 63, 64, 199, 130}, {0, 1, 2, 3, 4, 4}, random),
        q(draw(pages.tokens * c.shape.heads * c.queryWidth(), c.inputs,
               random)),
        cache(Buffer::output(c.cache, pages.cacheRows() * c.rowWidth())) {
    for (int64_t t = 0; t < pages.tokens; ++t) {
      int64_t length = pages.positions[t] + 1;
      Buffer rows = draw(length * c.rowWidth(), c.inputs, random);
      for (int64_t i = 0; i < rows.size(); ++i)
        cache.set(pages.row(pages.sequences[t], i / c.rowWidth()) *
                          c.rowWidth() +
                      i % c.rowWidth(),
                  rows[i]);
      attended.emplace_back(length);
      std::iota(attended.back().begin(), attended.back().end(), 0);
    }
  }

  /// Leaves each token a random selection, in random order.
  void select(Random &random) {
    for (auto &list : attended) {
      std::shuffle(list.begin(), list.end(), random);
      list.resize(std::min<int64_t>(list.size(), c.selected));
    }
  }

  /// The rows of the selection, filled with -1.
  Buffer selection() const {
    std::vector<int64_t> out;
    for (const auto &list : attended) {
      out.insert(out.end(), list.begin(), list.end());
      out.resize((out.size() + c.selected - 1) / c.selected * c.selected, -1);
    }
    return Buffer::ints(out);
  }

  int64_t outWidth() const { return c.shape.heads * c.valueWidth(); }

  Buffer run(const Kernel &k) {
    Buffer y = Buffer::output(Format::F32, pages.tokens * outWidth());
    Buffer chosen = c.selected ? selection() : Buffer::ints({});
    std::vector<Operand> operands{q, pages.positions, pages.sequences,
                                  pages.table, cache};
    if (c.selected)
      operands.push_back(chosen);
    operands.push_back(y);
    k(c.grid(pages.tokens), operands, c.scalars(pages));
    return y;
  }

  std::vector<Expected> reference() const {
    std::vector<Expected> out;
    for (int64_t t = 0; t < pages.tokens; ++t)
      for (int64_t h = 0; h < c.shape.heads; ++h)
        attend(t, h, out);
    return out;
  }

  void attend(int64_t token, int64_t head, std::vector<Expected> &out) const {
    std::vector<Expected> scores;
    std::vector<int64_t> rows;
    double highest = -std::numeric_limits<double>::infinity();
    int64_t queryAt = (token * c.shape.heads + head) * c.queryWidth();
    for (int64_t p : attended[token]) {
      rows.push_back(pages.row(pages.sequences[token], p) * c.rowWidth());
      Expected score;
      for (int64_t i = 0; i < c.queryWidth(); ++i)
        score.add(c.scale * c.cacheScale() * q[queryAt + i] *
                  cache[rows.back() + c.keyAt(head, i)]);
      if (c.inputs == Inputs::Exact)
        score.magnitude = 0;
      scores.push_back(score);
      highest = std::max(highest, score.value);
    }
    double sum = 0, off = 0;
    for (Expected &s : scores) {
      s.value = std::exp(s.value - highest);
      sum += s.value;
      off += s.value * s.magnitude;
    }
    for (int64_t i = 0; i < c.valueWidth(); ++i) {
      // A weight below e^-87 is 0 to the kernels.
      Expected e{0, 1e-28};
      for (size_t j = 0; j < rows.size(); ++j) {
        double p = scores[j].value / sum;
        double v = c.cacheScale() * cache[rows[j] + c.valueAt(head) + i];
        e.value += p * v;
        // What a score is off by scales its weight, and all the others through
        // the sum.
        e.magnitude += p * std::abs(v) * (1 + scores[j].magnitude + off / sum);
      }
      out.push_back(e);
    }
  }

  Case c;
  Pages pages;
  Buffer q, cache;
  std::vector<std::vector<int64_t>> attended;
};

/// Both layouts with every head count; widths around the 8 lanes.
std::vector<Case> shapes() {
  std::vector<Case> out;
  int64_t latents[] = {8, 20, 33, 128, 32}, ropes[] = {4, 2, 8, 6, 64};
  int64_t nopes[] = {8, 5, 16, 12, 32}, vs[] = {8, 9, 20, 1, 33};
  int64_t heads[] = {1, 2, 3, 4, 8};
  Format caches[] = {Format::F32, Format::F32, Format::BF16, Format::F32,
                     Format::F16};
  for (int64_t i = 0; i < 5; ++i)
    for (bool latent : {true, false}) {
      HeadShape s{heads[i], nopes[i], ropes[i], vs[i], latents[i]};
      out.push_back({latent, s, 0.3});
      out.back().cache = caches[i];
    }
  // An FP8 cache is latent.
  for (HeadShape s : {HeadShape{4, 0, 8, 0, 32}, {2, 0, 2, 0, 20}}) {
    out.push_back({true, s, 0.3});
    out.back().cache = Format::FP8E4M3;
  }
  return out;
}

/// The results of tokens that are alone in a step have the same bits.
void expectBatchInvariant(const Kernel &k, Step &step, const Buffer &all) {
  int64_t width = step.c.shape.heads * step.c.queryWidth();
  for (int64_t t = 0; t < step.pages.tokens; ++t) {
    Buffer q = Buffer::of(Format::F32, step.q.values(t * width, width));
    Buffer position = Buffer::ints({int64_t(step.pages.positions[t])});
    Buffer sequence = Buffer::ints({int64_t(step.pages.sequences[t])});
    Buffer y = Buffer::output(Format::F32, step.outWidth());
    k(step.c.grid(1), {q, position, sequence, step.pages.table, step.cache, y},
      step.c.scalars(step.pages));
    expectSameBits(y, 0, all, t * step.outWidth(), step.outWidth());
  }
}

TEST(Attention, Dense) {
  Kernels kernels;
  for (const Case &c : shapes())
    kernels.check(c.kernel(kernels.site()),
                  [c](const Kernel &k, Random &random) {
                    Step step(c, random);
                    Buffer y = step.run(k);
                    expectNear(y, step.reference());
                    expectBatchInvariant(k, step, y);
                  });
  kernels.run();
}

TEST(Attention, Selected) {
  Kernels kernels;
  int64_t widths[] = {1, 2, 16, 64, 100, 16};
  for (auto [i, c] : llvm::enumerate(shapes())) {
    c.selected = widths[i / 2];
    kernels.check(c.kernel(kernels.site()),
                  [c = c](const Kernel &k, Random &random) {
                    Step step(c, random);
                    step.select(random);
                    expectNear(step.run(k), step.reference());
                  });
  }
  kernels.run();
}

TEST(Attention, SelectionOfAllIsDenseToTheBit) {
  Kernels kernels;
  for (auto [i, dense] : llvm::enumerate(shapes())) {
    if (i % 3 != 0 && i != 11) // Five of the twelve.
      continue;
    Case selected = dense;
    selected.selected = 256;
    kernels.check(
        {dense.kernel(kernels.site()), selected.kernel(kernels.site())},
        [dense = dense, selected](const std::vector<Kernel> &k,
                                  Random &random) {
          Step step(dense, random);
          Buffer a = step.run(k[0]);
          step.c = selected;
          expectSameBits(step.run(k[1]), 0, a, 0, a.size());
        });
  }
  kernels.run();
}

/// Scores of thousands, whose exponentials alone would overflow, and scores
/// that are exactly equal.
TEST(Attention, LargeScores) {
  Kernels kernels;
  for (auto [i, c] : llvm::enumerate(shapes())) {
    c.inputs = Inputs::Exact;
    c.scale = i % 4 < 2 ? 64.0 : 0.25;
    kernels.check(c.kernel(kernels.site()),
                  [c = c](const Kernel &k, Random &random) {
                    Step step(c, random);
                    expectNear(step.run(k), step.reference());
                  });
  }
  kernels.run();
}

} // namespace
