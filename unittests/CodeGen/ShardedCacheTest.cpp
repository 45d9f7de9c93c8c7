//===- ShardedCacheTest.cpp - a cache whose tokens are spread -------------===//
//
// Part of mla. What N ranks do, one after the other, each with a cache that holds
// its own rows only: all others are NaN, as are those that no token has reached.
// What they make together must be what one rank with all rows makes.
//
//===----------------------------------------------------------------------===//
#include "Pages.h"

using namespace mla;
using namespace mla::test;
using mla::host::HeadShape;

namespace {

constexpr int64_t block = plan::pageTokens;

/// The blocks of a sequence go round the ranks.
int64_t ownerOf(int64_t position, int64_t ranks) {
  return position / block % ranks;
}

/// How many of the first `count` positions are those of `rank`, by counting.
int64_t ownedOf(int64_t count, int64_t rank, int64_t ranks) {
  int64_t owned = 0;
  for (int64_t p = 0; p < count; ++p)
    owned += ownerOf(p, ranks) == rank;
  return owned;
}

/// A prompt of 200 tokens, and tokens at and around the edges of blocks and of page
/// numbers of `ranks` ranks, each of a sequence of its own.
struct Tokens {
  explicit Tokens(int64_t ranks) {
    for (int64_t p = 0; p < 200; ++p)
      add(p, 0);
    int64_t sequence = 0, page = block * ranks;
    for (int64_t p : {int64_t(0), block - 1, block, 2 * block - 1, 2 * block,
                      page - 1, page, page + block, 2 * page - 1, 2 * page + 5})
      add(p, ++sequence);
  }
  void add(int64_t position, int64_t sequence) {
    positions.push_back(position);
    sequences.push_back(sequence);
  }
  int64_t size() const { return int64_t(positions.size()); }
  std::vector<int64_t> positions, sequences;
};

/// Where the rows of a step lie: on one rank that has all of them, and on the ranks.
struct Places {
  Places(const Tokens &tokens, int64_t ranks, Random &random)
      : ranks(ranks), whole(tokens.positions, tokens.sequences, random),
        // A page number for every `ranks` blocks: as many as a sequence of the
        // rank that has most needs.
        part(local(tokens.positions, ranks), tokens.sequences, random) {}

  static std::vector<int64_t> local(const std::vector<int64_t> &positions,
                                    int64_t ranks) {
    std::vector<int64_t> out;
    for (int64_t p : positions)
      out.push_back(p / (block * ranks) * block);
    return out;
  }
  /// The row of a rank's cache for a position that it has.
  int64_t rowOfRank(int64_t sequence, int64_t position) const {
    int64_t rank = ownerOf(position, ranks);
    return part.row(sequence, ownedOf(position, rank, ranks));
  }

  int64_t ranks;
  Pages whole, part;
};

/// read and write, as the kernel makes them.
std::pair<Buffer, Buffer> shardedBatch(const Kernel &k, Places &places,
                                       int64_t rank) {
  int64_t tokens = places.whole.tokens;
  Buffer read = Buffer::ints(std::vector<int64_t>(tokens, 7));
  Buffer write = Buffer::ints(std::vector<int64_t>(tokens, 7));
  k(tokens, {places.whole.positions, read, write}, {rank});
  return {std::move(read), std::move(write)};
}

TEST(ShardBatch, CountsTheRanksRows) {
  Kernels kernels;
  for (int64_t ranks : {2, 3, 8})
    kernels.check(
        host::shardBatch(kernels.site(), ranks),
        [=](const Kernel &k, Random &random) {
          Places places(Tokens(ranks), ranks, random);
          for (int64_t rank = 0; rank < ranks; ++rank) {
            auto [read, write] = shardedBatch(k, places, rank);
            std::vector<double> reads, writes;
            for (double position : places.whole.positions.values()) {
              auto p = int64_t(position);
              reads.push_back(double(ownedOf(p + 1, rank, ranks) - 1));
              writes.push_back(ownerOf(p, ranks) == rank
                                   ? double(ownedOf(p, rank, ranks))
                                   : -1);
            }
            expectEqual(read, reads);
            expectEqual(write, writes);
          }
        });
  kernels.run();
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

struct Case {
  int64_t ranks;
  HeadShape shape; ///< heads: of all ranks together
  Format cache;

  static constexpr double scale = 0.3;
  int64_t width() const { return shape.latent + shape.rope; }
  double cacheScale() const { return cache == Format::FP8E4M3 ? 0.75 : 1; }
  std::vector<int64_t> scalars(const Pages &pages) const {
    std::vector<int64_t> out{pages.columns};
    if (cache == Format::FP8E4M3)
      out.push_back(std::bit_cast<uint32_t>(float(cacheScale())));
    return out;
  }
};

std::vector<Case> cases() {
  std::vector<Case> out;
  Format formats[] = {Format::F32, Format::BF16, Format::F16, Format::FP8E4M3};
  int64_t ranks[] = {2, 3, 8, 2, 3, 8, 8};
  int64_t perRank[] = {2, 2, 1, 4, 1, 2, 1};
  HeadShape shapes[] = {{0, 0, 4, 0, 20}, {0, 0, 2, 0, 33}, {0, 0, 8, 0, 32}};
  for (int64_t i = 0; i < 7; ++i) {
    HeadShape shape = shapes[i % 3];
    shape.heads = ranks[i] * perRank[i];
    out.push_back({ranks[i], shape, formats[i % 4]});
  }
  return out;
}

/// Rows that all ranks together have, and queries of all heads.
struct Step {
  Step(const Case &c, Random &random)
      : c(c), places(Tokens(c.ranks), c.ranks, random),
        q(Buffer::uniform(Format::F32,
                          places.whole.tokens * c.shape.heads * c.width(), random)),
        whole(Buffer::output(c.cache, places.whole.cacheRows() * c.width())) {
    for (int64_t r = 0; r < c.ranks; ++r)
      parts.push_back(
          Buffer::output(c.cache, places.part.cacheRows() * c.width()));
    const Pages &pages = places.whole;
    for (int64_t t = 0; t < pages.tokens; ++t)
      for (int64_t p = 0; p <= int64_t(pages.positions[t]); ++p) {
        auto sequence = int64_t(pages.sequences[t]);
        // The prompt's rows once.
        int64_t at = pages.row(sequence, p) * c.width();
        if (std::isfinite(whole[at]))
          continue;
        Buffer row = Buffer::uniform(Format::F32, c.width(), random);
        for (int64_t i = 0; i < c.width(); ++i) {
          whole.set(at + i, row[i]);
          parts[ownerOf(p, c.ranks)].set(
              places.rowOfRank(sequence, p) * c.width() + i, row[i]);
        }
      }
  }

  int64_t rows() const { return places.whole.tokens * c.shape.heads; }

  /// The rank's two results.
  std::pair<Buffer, Buffer> runPart(const Kernel &batch, const Kernel &k,
                                    int64_t rank) {
    Buffer y = Buffer::output(Format::F32, rows() * c.shape.latent);
    Buffer lse = Buffer::output(Format::F32, rows());
    Buffer read = shardedBatch(batch, places, rank).first;
    k(places.whole.tokens * host::headBlocks(c.shape.heads),
      {q, read, places.part.sequences, places.part.table, parts[rank], y, lse},
      c.scalars(places.part));
    return {std::move(y), std::move(lse)};
  }
  Buffer runWhole(const Kernel &k) {
    Buffer y = Buffer::output(Format::F32, rows() * c.shape.latent);
    Pages &pages = places.whole;
    k(pages.tokens * host::headBlocks(c.shape.heads),
      {q, pages.positions, pages.sequences, pages.table, whole, y},
      c.scalars(pages));
    return y;
  }

  /// Attention of a token and head to the positions of `rank`, or to all if it is
  /// -1, and its log-sum-exp, which is -inf for none.
  Expected attend(int64_t token, int64_t head, int64_t rank,
                  std::vector<Expected> &out) const {
    const Pages &pages = places.whole;
    std::vector<Expected> scores;
    std::vector<int64_t> at;
    double highest = -std::numeric_limits<double>::infinity();
    for (int64_t p = 0; p <= int64_t(pages.positions[token]); ++p) {
      if (rank >= 0 && ownerOf(p, c.ranks) != rank)
        continue;
      at.push_back(pages.row(int64_t(pages.sequences[token]), p) * c.width());
      Expected score;
      for (int64_t i = 0; i < c.width(); ++i)
        score.add(c.scale * c.cacheScale() *
                  q[(token * c.shape.heads + head) * c.width() + i] *
                  whole[at.back() + i]);
      scores.push_back(score);
      highest = std::max(highest, score.value);
    }
    double sum = 0, off = 0;
    for (Expected &s : scores) {
      s.value = std::exp(s.value - highest);
      sum += s.value;
      off += s.value * s.magnitude;
    }
    for (int64_t i = 0; i < c.shape.latent; ++i) {
      Expected e;
      for (size_t j = 0; j < at.size(); ++j) {
        double p = scores[j].value / sum, v = c.cacheScale() * whole[at[j] + i];
        e.value += p * v;
        e.magnitude += p * std::abs(v) * (1 + scores[j].magnitude + off / sum);
      }
      out.push_back(e);
    }
    if (at.empty())
      return {highest, 0};
    return {highest + std::log(sum), 1 + std::abs(highest) + off / sum};
  }

  Case c;
  Places places;
  Buffer q, whole;
  std::vector<Buffer> parts; ///< caches of the ranks
};

std::vector<std::string> kernelsOf(host::KernelSite site, const Case &c) {
  auto attention = [&](bool partial) {
    return host::latentAttention(site, c.shape, c.cache, Case::scale, 0, partial);
  };
  return {host::shardBatch(site, c.ranks), attention(true), attention(false),
          host::mergeAttention(site, c.shape.heads / c.ranks, c.shape.latent,
                               c.ranks)};
}

TEST(PartialAttention, SeesTheRanksRowsAndNoOthers) {
  Kernels kernels;
  for (const Case &c : cases())
    kernels.check(
        kernelsOf(kernels.site(), c),
        [c](const std::vector<Kernel> &k, Random &random) {
          Step step(c, random);
          int64_t nothing = 0;
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            auto [y, lse] = step.runPart(k[0], k[1], rank);
            std::vector<Expected> expected;
            for (int64_t i = 0; i < step.rows(); ++i) {
              int64_t heads = c.shape.heads;
              Expected sum = step.attend(i / heads, i % heads, rank, expected);
              if (std::isfinite(sum.value)) {
                EXPECT_LE(std::abs(lse[i] - sum.value),
                          tolerance * sum.magnitude);
                continue;
              }
              ++nothing;
              EXPECT_EQ(lse[i], sum.value);
            }
            expectNear(y, expected); // Zeros, exactly, where nothing is seen.
          }
          EXPECT_GT(nothing, 0);
        });
  kernels.run();
}

TEST(MergeAttention, IsAttentionToAllRows) {
  Kernels kernels;
  for (const Case &c : cases())
    kernels.check(
        kernelsOf(kernels.site(), c),
        [c](const std::vector<Kernel> &k, Random &random) {
          Step step(c, random);
          std::vector<std::pair<Buffer, Buffer>> parts;
          for (int64_t rank = 0; rank < c.ranks; ++rank)
            parts.push_back(step.runPart(k[0], k[1], rank));
          Buffer all = step.runWhole(k[2]);
          int64_t tokens = step.places.whole.tokens, latent = c.shape.latent;
          int64_t own = c.shape.heads / c.ranks;
          for (int64_t rank = 0; rank < c.ranks; ++rank) {
            // What an exchange among all ranks gives it.
            std::vector<double> x, lse;
            std::vector<Expected> reference, whole;
            for (int64_t t = 0; t < tokens; ++t) {
              int64_t from = t * c.shape.heads + rank * own;
              for (auto &[y, l] : parts) {
                auto rows = y.values(from * latent, own * latent);
                auto sums = l.values(from, own);
                x.insert(x.end(), rows.begin(), rows.end());
                lse.insert(lse.end(), sums.begin(), sums.end());
              }
              for (int64_t h = 0; h < own; ++h)
                step.attend(t, rank * own + h, -1, reference);
              for (double v : all.values(from * latent, own * latent))
                whole.push_back({v, 1});
            }
            Buffer xs = Buffer::of(Format::F32, x), ls = Buffer::of(Format::F32, lse);
            Buffer y = Buffer::output(Format::F32, tokens * own * latent);
            k[3](tokens * own, {xs, ls, y});
            expectNear(y, reference);
            expectNear(y, whole, 1e-6);
          }
        });
  kernels.run();
}

/// Where no rank sees anything the result is zero; NaN does not get lost.
TEST(MergeAttention, OfNothingAndOfNaN) {
  Kernels kernels;
  kernels.check(host::mergeAttention(kernels.site(), 1, 8, 3),
                [](const Kernel &k, Random &) {
                  const double none = -std::numeric_limits<double>::infinity();
                  const double nan = std::numeric_limits<double>::quiet_NaN();
                  std::vector<double> rows(3 * 3 * 8, 0);
                  std::fill(rows.begin() + 3 * 8, rows.begin() + 4 * 8, 5);
                  Buffer x = Buffer::of(Format::F32, rows);
                  Buffer lse = Buffer::of(
                      Format::F32,
                      {none, none, none, -2e4, none, none, 1, nan, none});
                  Buffer y = Buffer::output(Format::F32, 3 * 8);
                  k(3, {x, lse, y});
                  for (int64_t i = 0; i < 8; ++i) {
                    EXPECT_EQ(y[i], 0);
                    EXPECT_EQ(y[8 + i], 5);
                    EXPECT_TRUE(std::isnan(y[16 + i]));
                  }
                });
  kernels.run();
}

//===----------------------------------------------------------------------===//
// Writes
//===----------------------------------------------------------------------===//

/// Each row goes to one rank, with the bits that a cache of all rows gets, and is
/// counted there.
TEST(ShardedCache, RowsAreWrittenOnce) {
  Kernels kernels;
  const int64_t latent = 40, rope = 6, width = latent + rope;
  for (Format format : {Format::F32, Format::BF16, Format::FP8E4M3})
    for (int64_t ranks : {2, 3, 8})
      kernels.check(
          {host::shardBatch(kernels.site(), ranks),
           host::latentCacheWrite(kernels.site(), latent, rope, Format::F32,
                                  format, 1e-6, true)},
          [=](const std::vector<Kernel> &k, Random &random) {
            Places places(Tokens(ranks), ranks, random);
            int64_t tokens = places.whole.tokens;
            Buffer x = Buffer::uniform(Format::F32, tokens * width, random);
            Buffer norm = Buffer::uniform(Format::F32, latent, random);
            Buffer rotary = Buffer::uniform(Format::F32, tokens * rope, random);
            const float scale = 1e-3F; // Cuts some values off.
            std::vector<double> counts(tokens);
            auto write = [&](Pages &pages, Buffer &positions, Buffer &cache) {
              Buffer saturated = Buffer::ints(std::vector<int64_t>(tokens));
              std::vector<Operand> operands{positions, pages.sequences,
                                            pages.table, x, norm, rotary, cache};
              std::vector<int64_t> scalars{pages.columns};
              if (format == Format::FP8E4M3) {
                operands.push_back(saturated);
                scalars.push_back(std::bit_cast<uint32_t>(scale));
              }
              k[1](tokens, operands, scalars);
              return saturated;
            };
            Buffer whole =
                Buffer::output(format, places.whole.cacheRows() * width);
            Buffer all = write(places.whole, places.whole.positions, whole);
            for (int64_t rank = 0; rank < ranks; ++rank) {
              int64_t n = places.part.cacheRows() * width;
              Buffer cache = Buffer::output(format, n);
              Buffer expected = Buffer::output(format, n);
              for (int64_t t = 0; t < tokens; ++t) {
                auto p = int64_t(places.whole.positions[t]);
                if (ownerOf(p, ranks) != rank)
                  continue;
                auto sequence = int64_t(places.whole.sequences[t]);
                for (int64_t i = 0; i < width; ++i)
                  expected.set(places.rowOfRank(sequence, p) * width + i,
                               whole[places.whole.rowOf(t) * width + i]);
              }
              Buffer positions = shardedBatch(k[0], places, rank).second;
              Buffer saturated = write(places.part, positions, cache);
              EXPECT_TRUE(cache.snapshot() == expected.snapshot());
              for (int64_t t = 0; t < tokens; ++t)
                counts[t] += saturated[t];
            }
            expectEqual(all, counts);
            if (format == Format::FP8E4M3) {
              EXPECT_GT(std::accumulate(counts.begin(), counts.end(), 0.0), 0);
            }
          });
  kernels.run();
}

} // namespace
