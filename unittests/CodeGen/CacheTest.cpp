//===- CacheTest.cpp - rotary embedding and cache writes ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Pages.h"

using namespace mla;
using namespace mla::test;

namespace {

TEST(RotaryEmbedding, EqualsReference) {
  Kernels kernels;
  std::vector<float> base;
  for (int i = 0; i < 32; ++i)
    base.push_back(std::pow(10000.0, -i / 32.0));
  for (const std::vector<float> &frequencies :
       {base, {1.0f}, {1.0f, 0.1f, 0.01f}, {0.5f}})
    for (double factor : {1.0, 1.2079441541679836})
      kernels.check(
          host::rotaryEmbedding(kernels.site(), frequencies, factor),
          [=](const Kernel &k, Random &) {
            Buffer positions = Buffer::ints({0, 1, 63, 64, 100000, 5});
            int64_t tokens = positions.size(), half = frequencies.size();
            Buffer y = Buffer::output(Format::F32, tokens * 2 * half);
            k(tokens, {positions, y});
            std::vector<Expected> expected;
            for (int64_t t = 0; t < tokens; ++t)
              for (bool sine : {false, true})
                for (float f : frequencies) {
                  // The angle is an f32 product by the op's definition: at
                  // position 100000 its rounding moves the cosine by 4e-3.
                  double angle = float(positions[t]) * f;
                  double v = sine ? std::sin(angle) : std::cos(angle);
                  expected.push_back({v * factor, factor});
                }
            expectNear(y, expected, 3e-7);
          });
  kernels.run();
}

struct RopeCase {
  int64_t heads, headDim, offset, dim;
};

TEST(Rope, EqualsReference) {
  Kernels kernels;
  for (RopeCase c : {RopeCase{1, 8, 0, 8},
                     {3, 24, 0, 8},  // in front
                     {3, 24, 16, 8}, // at the end
                     {2, 33, 7, 10}, // in the middle, odd sizes
                     {2, 18, 7, 10}, // one value behind
                     {1, 2, 0, 2},
                     {4, 96, 32, 64}})
    for (bool interleaved : {false, true})
      kernels.check(
          host::rope(kernels.site(), c.heads * c.headDim, c.headDim, c.offset,
                     c.dim, interleaved),
          [=](const Kernel &k, Random &random) {
            int64_t tokens = 4, width = c.heads * c.headDim;
            Buffer x = Buffer::uniform(Format::F32, tokens * width, random);
            Buffer rotary =
                Buffer::uniform(Format::F32, tokens * c.dim, random);
            Buffer y = Buffer::output(Format::F32, tokens * width);
            k(tokens, {x, rotary, y});
            std::vector<Expected> expected;
            for (double v : x.values())
              expected.push_back({v, 0}); // What is not rotated is copied.
            for (int64_t t = 0; t < tokens; ++t)
              for (int64_t h = 0; h < c.heads; ++h) {
                int64_t at = t * width + h * c.headDim + c.offset;
                auto part =
                    rotated(x.values(at, c.dim),
                            rotary.values(t * c.dim, c.dim), interleaved);
                std::copy(part.begin(), part.end(), expected.begin() + at);
              }
            expectNear(y, expected);
          });
  kernels.run();
}

/// Steps over caches: a chunk across a page's end, one token each of several
/// sequences, single tokens at a page's first and last place.
const std::pair<std::vector<int64_t>, std::vector<int64_t>> steps[] = {
    {{62, 63, 64, 65}, {0, 0, 0, 0}},
    {{127, 0, 200, 63}, {0, 1, 2, 3}},
    {{64}, {0}},
    {{63}, {2}},
    {{5, 130, 6, 131, 128}, {2, 1, 2, 1, 0}}};

/// A cache full of values of earlier steps, for reference and kernel.
Buffer filledCache(const Pages &pages, int64_t width, Random &random) {
  return Buffer::uniform(Format::F32, pages.cacheRows() * width, random);
}

std::vector<Expected> exactly(const Buffer &b) {
  std::vector<Expected> out;
  for (double v : b.values())
    out.push_back({v, 0});
  return out;
}

TEST(CacheWrite, WritesTheTokensRowsOnly) {
  Kernels kernels;
  for (std::vector<int64_t> widths :
       {std::vector<int64_t>{1}, {8}, {20, 7}, {33, 2, 64}})
    kernels.check(
        host::cacheWrite(kernels.site(), widths, Format::F32),
        [=](const Kernel &k, Random &random) {
          int64_t width = std::accumulate(widths.begin(), widths.end(), 0);
          for (const auto &[positions, sequences] : steps) {
            Pages pages(positions, sequences, random);
            Buffer cache = filledCache(pages, width, random);
            auto expected = exactly(cache);
            std::vector<Buffer> parts;
            int64_t offset = 0;
            for (int64_t w : widths) {
              parts.push_back(
                  Buffer::uniform(Format::F32, pages.tokens * w, random));
              for (int64_t t = 0; t < pages.tokens; ++t)
                for (int64_t c = 0; c < w; ++c)
                  expected[pages.rowOf(t) * width + offset + c].value =
                      parts.back()[t * w + c];
              offset += w;
            }
            std::vector<Operand> operands{pages.positions, pages.sequences,
                                          pages.table, cache};
            operands.insert(operands.end(), parts.begin(), parts.end());
            k(pages.tokens, operands, {pages.columns});
            expectNear(cache, expected);
          }
        });
  kernels.run();
}

/// A cache of 16 or 8 bits rounds to nearest, ties to even, as the references do.
TEST(CacheWrite, RoundsToTheFormat) {
  Kernels kernels;
  for (Format format : {Format::BF16, Format::F16, Format::FP8E4M3})
    for (int64_t width : {8, 7, 1})
      kernels.check(
          host::cacheWrite(kernels.site(), {width}, format),
          [=](const Kernel &k, Random &random) {
            std::vector<double> values{0,
                                       -0.0,
                                       1 + 1.0 / 256,
                                       1 + 3.0 / 256,
                                       -1 - 1.0 / 256,
                                       1 + 1.0 / 256 + 1.0 / 65536,
                                       1 + 1.0 / 2048,
                                       1 + 3.0 / 2048,
                                       3e38,
                                       3.4e38,
                                       -3.4e38,
                                       65519,
                                       65520,
                                       1e-30,
                                       1e-40,
                                       3e-8,
                                       448,
                                       464,
                                       -1e6,
                                       1.0625,
                                       1.1875,
                                       -0.0146484375,
                                       0x1p-9,
                                       0x1p-10,
                                       0x3p-10,
                                       0x7.8p-9,
                                       INFINITY,
                                       -INFINITY,
                                       NAN};
            std::uniform_real_distribution<double> uniform(-1, 1);
            while (values.size() < size_t(64 * width))
              values.push_back(float(uniform(random)));
            std::vector<int64_t> positions(64);
            std::iota(positions.begin(), positions.end(), 0);
            Pages pages(positions, std::vector<int64_t>(64), random);
            Buffer cache = Buffer::output(format, pages.cacheRows() * width);
            Buffer expected = Buffer::output(format, pages.cacheRows() * width);
            Buffer part = Buffer::of(Format::F32, values);
            for (int64_t i = 0; i < part.size(); ++i)
              expected.set(pages.rowOf(i / width) * width + i % width, part[i]);
            k(64, {pages.positions, pages.sequences, pages.table, cache, part},
              {pages.columns});
            // Bits, since NaN is among the values.
            EXPECT_TRUE(cache.snapshot() == expected.snapshot());
          });
  kernels.run();
}

struct LatentCase {
  int64_t latent, rope;
  Format norm;
  double eps;
};

TEST(LatentCacheWrite, NormsRotatesAndWrites) {
  Kernels kernels;
  for (LatentCase c : {LatentCase{20, 8, Format::F32, 1e-6},
                       {33, 2, Format::BF16, 1e-2},
                       {128, 64, Format::BF16, 1e-6},
                       {8, 10, Format::F16, 1e-5}})
    for (bool interleaved : {false, true})
      kernels.check(
          host::latentCacheWrite(kernels.site(), c.latent, c.rope, c.norm,
                                 Format::F32, c.eps, interleaved),
          [=](const Kernel &k, Random &random) {
            int64_t width = c.latent + c.rope;
            for (const auto &[positions, sequences] : steps) {
              Pages pages(positions, sequences, random);
              Buffer cache = filledCache(pages, width, random);
              Buffer x =
                  Buffer::uniform(Format::F32, pages.tokens * width, random);
              Buffer norm = Buffer::uniform(c.norm, c.latent, random);
              Buffer rotary =
                  Buffer::uniform(Format::F32, pages.tokens * c.rope, random);
              auto expected = exactly(cache);
              for (int64_t t = 0; t < pages.tokens; ++t) {
                int64_t from = t * width, to = pages.rowOf(t) * width;
                double mean = dot(x, from, x, from, c.latent).value / c.latent;
                for (int64_t i = 0; i < c.latent; ++i) {
                  double v = x[from + i] / std::sqrt(mean + c.eps) * norm[i];
                  expected[to + i] = {v, std::abs(v)};
                }
                auto part =
                    rotated(x.values(from + c.latent, c.rope),
                            rotary.values(t * c.rope, c.rope), interleaved);
                std::copy(part.begin(), part.end(),
                          expected.begin() + to + c.latent);
              }
              k(pages.tokens,
                {pages.positions, pages.sequences, pages.table, x, norm, rotary,
                 cache},
                {pages.columns});
              expectNear(cache, expected);
            }
          });
  kernels.run();
}

/// The same rows as in f32, rounded; with FP8 divided by a scale, cut off at
/// 448, and what was cut off is counted.
TEST(LatentCacheWrite, RoundsScalesAndCounts) {
  Kernels kernels;
  const int64_t latent = 40, rope = 6, width = latent + rope;
  auto kernel = [&](Format format) {
    return host::latentCacheWrite(kernels.site(), latent, rope, Format::F32,
                                  format, 1e-6, true);
  };
  for (Format format : {Format::BF16, Format::F16, Format::FP8E4M3})
    for (float scale : {1.0F, 0.004F, 1e-4F})
      kernels.check(
          {kernel(Format::F32), kernel(format)},
          [=](const std::vector<Kernel> &k, Random &random) {
            bool scaled = format == Format::FP8E4M3;
            if (!scaled && scale != 1)
              return;
            for (const auto &[positions, sequences] : steps) {
              Pages pages(positions, sequences, random);
              int64_t n = pages.cacheRows() * width;
              Buffer exact = Buffer::output(Format::F32, n);
              Buffer cache = Buffer::output(format, n);
              Buffer expected = Buffer::output(format, n);
              Buffer x =
                  Buffer::uniform(Format::F32, pages.tokens * width, random);
              Buffer norm = Buffer::uniform(Format::F32, latent, random);
              Buffer rotary =
                  Buffer::uniform(Format::F32, pages.tokens * rope, random);
              std::vector<Operand> operands{pages.positions, pages.sequences,
                                            pages.table,     x,
                                            norm,            rotary,
                                            exact};
              k[0](pages.tokens, operands, {pages.columns});
              operands.back() = cache;
              // Counts are added to what is there.
              std::vector<int64_t> counts(pages.tokens, 5);
              Buffer saturated = Buffer::ints(counts);
              std::vector<int64_t> scalars{pages.columns};
              if (scaled) {
                operands.push_back(saturated);
                scalars.push_back(std::bit_cast<uint32_t>(scale));
              }
              for (int64_t t = 0; t < pages.tokens; ++t)
                for (int64_t i = 0; i < width; ++i) {
                  int64_t at = pages.rowOf(t) * width + i;
                  float v = float(exact[at]) / scale;
                  expected.set(at, v);
                  counts[t] += scaled && std::abs(v) > 464;
                }
              k[1](pages.tokens, operands, scalars);
              EXPECT_TRUE(cache.snapshot() == expected.snapshot());
              EXPECT_TRUE(saturated.snapshot() ==
                          Buffer::ints(scaled ? counts
                                              : std::vector<int64_t>(
                                                    pages.tokens, 5))
                              .snapshot());
              if (scale == 1e-4F) {
                EXPECT_GT(counts[0], 5);
              }
            }
          });
  kernels.run();
}

} // namespace
