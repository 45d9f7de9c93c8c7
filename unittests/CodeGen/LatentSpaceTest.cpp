//===- LatentSpaceTest.cpp - into and out of the latent space -------------===//
//
// Part of mla. Latents around the 8 lanes, head sizes around the blocks of rows
// that the kernels take at a time.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::test;
using mla::host::HeadShape;

namespace {

struct Case {
  HeadShape shape; ///< heads, nope, rope, v, latent
  Format kvB;
};

const Case cases[] = {
    {{2, 8, 4, 8, 8}, Format::F32},       {{3, 5, 2, 9, 20}, Format::BF16},
    {{1, 16, 8, 33, 32}, Format::F16},    {{4, 6, 6, 5, 33}, Format::BF16},
    {{2, 32, 64, 40, 128}, Format::BF16}, {{5, 1, 2, 1, 64}, Format::F32},
    // Heads that begin inside a block of 128 rows.
    {{3, 72, 4, 40, 130}, Format::FP8Block}, {{2, 5, 2, 9, 20}, Format::FP8Block},
    {{3, 9, 2, 12, 48}, Format::NVFP4},   {{2, 8, 4, 8, 64}, Format::NVFP4},
    {{3, 6, 2, 10, 96}, Format::Int4G32}};

Matrix weightOf(const Case &c, Random &random) {
  const HeadShape &s = c.shape;
  return {{c.kvB, s.heads * (s.nope + s.v), s.latent}, random};
}

TEST(AbsorbQuery, EqualsReference) {
  Kernels kernels;
  for (const Case &c : cases)
    for (bool interleaved : {false, true})
      kernels.check(
          host::absorbQuery(kernels.site(), c.shape, c.kvB, interleaved),
          [c, interleaved](const Kernel &k, Random &random) {
            const HeadShape &s = c.shape;
            int64_t qWidth = s.heads * (s.nope + s.rope);
            int64_t yWidth = s.heads * (s.latent + s.rope);
            Matrix w = weightOf(c, random);
            for (int64_t tokens : {1, 2, 5}) {
              Buffer q = Buffer::uniform(Format::F32, tokens * qWidth, random);
              Buffer rotary =
                  Buffer::uniform(Format::F32, tokens * s.rope, random);
              Buffer y = Buffer::output(Format::F32, tokens * yWidth);
              k(s.heads, {q, w, rotary, y}, {tokens});
              std::vector<Expected> expected;
              for (int64_t t = 0; t < tokens; ++t)
                for (int64_t h = 0; h < s.heads; ++h) {
                  int64_t at = t * qWidth + h * (s.nope + s.rope);
                  for (int64_t j = 0; j < s.latent; ++j) {
                    Expected e;
                    for (int64_t i = 0; i < s.nope; ++i)
                      e.add(q[at + i] *
                            w[(h * (s.nope + s.v) + i) * s.latent + j]);
                    expected.push_back(e);
                  }
                  for (Expected e :
                       rotated(q.values(at + s.nope, s.rope),
                               rotary.values(t * s.rope, s.rope), interleaved))
                    expected.push_back(e);
                }
              expectNear(y, expected);
              for (int64_t t = 0; t < tokens; ++t) {
                Buffer one =
                    Buffer::of(Format::F32, q.values(t * qWidth, qWidth));
                Buffer angle =
                    Buffer::of(Format::F32, rotary.values(t * s.rope, s.rope));
                Buffer alone = Buffer::output(Format::F32, yWidth);
                k(s.heads, {one, w, angle, alone}, {1});
                expectSameBits(alone, 0, y, t * yWidth, yWidth);
              }
            }
          });
  kernels.run();
}

TEST(ExpandValue, EqualsReference) {
  Kernels kernels;
  for (const Case &c : cases)
    kernels.check(
        host::expandValue(kernels.site(), c.shape, c.kvB),
        [c](const Kernel &k, Random &random) {
          const HeadShape &s = c.shape;
          int64_t grid = s.heads * host::rowBlocks(s.v);
          int64_t xWidth = s.heads * s.latent, yWidth = s.heads * s.v;
          Matrix w = weightOf(c, random);
          for (int64_t tokens : {1, 2, 3, 5}) {
            Buffer x = Buffer::uniform(Format::F32, tokens * xWidth, random);
            Buffer y = Buffer::output(Format::F32, tokens * yWidth);
            k(grid, {x, w, y}, {tokens});
            std::vector<Expected> expected;
            for (int64_t t = 0; t < tokens; ++t)
              for (int64_t h = 0; h < s.heads; ++h)
                for (int64_t r = 0; r < s.v; ++r) {
                  int64_t row = h * (s.nope + s.v) + s.nope + r;
                  expected.push_back(dot(w, row * s.latent, x,
                                         t * xWidth + h * s.latent, s.latent));
                }
            expectNear(y, expected);
            for (int64_t t = 0; t < tokens; ++t) {
              Buffer one =
                  Buffer::of(Format::F32, x.values(t * xWidth, xWidth));
              Buffer alone = Buffer::output(Format::F32, yWidth);
              k(grid, {one, w, alone}, {1});
              expectSameBits(alone, 0, y, t * yWidth, yWidth);
            }
          }
        });
  kernels.run();
}

} // namespace
