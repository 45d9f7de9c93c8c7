//===- RowTest.cpp - norms, embedding, elementwise ------------------------===//
//
// Part of mla. Widths around the 8 lanes.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::test;

namespace {

constexpr Format formats[] = {Format::F32, Format::BF16, Format::F16};
constexpr int64_t widths[] = {1, 2, 7, 8, 20, 33, 64};
constexpr int64_t tokens = 5;

TEST(Embedding, CopiesRows) {
  Kernels kernels;
  for (Format format : formats)
    for (int64_t width : {1, 7, 20, 64})
      kernels.check(host::embedding(kernels.site(), {format, 9, width}, /*part=*/false),
                    [format, width](const Kernel &k, Random &random) {
                      Buffer table = Buffer::uniform(format, 9 * width, random);
                      Buffer ids = Buffer::ints({8, 0, 3, 3, 8});
                      Buffer y = Buffer::output(Format::F32, tokens * width);
                      k(tokens, {ids, table, y});
                      std::vector<double> expected;
                      for (int64_t t = 0; t < tokens; ++t)
                        for (double v : table.values(ids[t] * width, width))
                          expected.push_back(v);
                      expectEqual(y, expected);
                    });
  kernels.run();
}

TEST(Embedding, OfAPartOfTheVocabulary) {
  Kernels kernels;
  for (int64_t width : {1, 7, 20, 64})
    kernels.check(
        host::embedding(kernels.site(), {Format::BF16, 9, width}, /*part=*/true),
        [width](const Kernel &k, Random &random) {
          Buffer table = Buffer::uniform(Format::BF16, 9 * width, random);
          Buffer ids = Buffer::ints({8, 9, 17, 18, 0});
          Buffer y = Buffer::output(Format::F32, tokens * width);
          k(tokens, {ids, table, y}, {9});
          std::vector<double> expected;
          for (int64_t t = 0; t < tokens; ++t)
            for (int64_t i = 0; i < width; ++i)
              expected.push_back(ids[t] >= 9 && ids[t] < 18
                                     ? table[(int64_t(ids[t]) - 9) * width + i]
                                     : 0);
          expectEqual(y, expected);
        });
  kernels.run();
}

TEST(Repeat, CopiesARowAndAPartOfIt) {
  Kernels kernels;
  for (int64_t width : {7, 8, 20})
    for (int64_t all : {width + 1, 2 * width + 3})
      kernels.check(host::repeat(kernels.site(), width, all),
                    [=](const Kernel &k, Random &random) {
                      Buffer x =
                          Buffer::uniform(Format::F32, tokens * width, random);
                      Buffer y = Buffer::output(Format::F32, tokens * all);
                      k(tokens, {x, y});
                      std::vector<double> expected;
                      for (int64_t t = 0; t < tokens; ++t)
                        for (int64_t i = 0; i < all; ++i)
                          expected.push_back(x[t * width + i % width]);
                      expectEqual(y, expected);
                    });
  kernels.run();
}

TEST(Repeat, CopiesARowSeveralTimes) {
  Kernels kernels;
  for (int64_t width : widths)
    for (int64_t copies : {1, 2, 5})
      kernels.check(host::repeat(kernels.site(), width, width * copies),
                    [=](const Kernel &k, Random &random) {
                      Buffer x =
                          Buffer::uniform(Format::F32, tokens * width, random);
                      Buffer y =
                          Buffer::output(Format::F32, tokens * width * copies);
                      k(tokens, {x, y});
                      std::vector<double> expected;
                      for (int64_t t = 0; t < tokens; ++t)
                        for (int64_t i = 0; i < copies; ++i)
                          for (double v : x.values(t * width, width))
                            expected.push_back(v);
                      expectEqual(y, expected);
                    });
  kernels.run();
}

TEST(RMSNorm, EqualsReference) {
  Kernels kernels;
  int64_t i = 0;
  for (int64_t width : widths)
    for (double eps : {1e-6, 1e-2}) {
      Format format = formats[i++ % 3];
      kernels.check(
          host::rmsNorm(kernels.site(), width, format, eps),
          [=](const Kernel &k, Random &random) {
            // Small values make eps count, large ones must not overflow.
            for (double range : {1e-4, 1.0, 1e12}) {
              Buffer x = Buffer::uniform(Format::F32, tokens * width, random,
                                         -range, range);
              Buffer w = Buffer::uniform(format, width, random, -2, 2);
              Buffer y = Buffer::output(Format::F32, tokens * width);
              k(tokens, {x, w, y});
              std::vector<Expected> expected;
              for (int64_t t = 0; t < tokens; ++t) {
                double mean =
                    dot(x, t * width, x, t * width, width).value / width;
                for (int64_t c = 0; c < width; ++c) {
                  double v = x[t * width + c] / std::sqrt(mean + eps) * w[c];
                  expected.push_back({v, std::abs(v)});
                }
              }
              expectNear(y, expected);
            }
          });
    }
  // Zeros stay zeros.
  kernels.check(host::rmsNorm(kernels.site(), 8, Format::F32, 1e-6),
                [](const Kernel &k, Random &random) {
                  Buffer x = Buffer::of(Format::F32, std::vector<double>(8));
                  Buffer w = Buffer::uniform(Format::F32, 8, random);
                  Buffer y = Buffer::output(Format::F32, 8);
                  k(1, {x, w, y});
                  expectEqual(y, std::vector<double>(8));
                });
  kernels.run();
}

TEST(LayerNorm, EqualsReference) {
  Kernels kernels;
  int64_t i = 0;
  for (int64_t width : widths) {
    Format weight = formats[i % 3], bias = formats[(i + 1 + i / 3) % 3];
    ++i;
    double eps = 1e-5;
    kernels.check(host::layerNorm(kernels.site(), width, weight, bias, eps),
                  [=](const Kernel &k, Random &random) {
                    // A mean far from zero cancels.
                    for (double mid : {0.0, 3.0}) {
                      Buffer x = Buffer::uniform(Format::F32, tokens * width,
                                                 random, mid - 1, mid + 1);
                      Buffer w = Buffer::uniform(weight, width, random);
                      Buffer b = Buffer::uniform(bias, width, random);
                      Buffer y = Buffer::output(Format::F32, tokens * width);
                      k(tokens, {x, w, b, y});
                      std::vector<Expected> expected;
                      for (int64_t t = 0; t < tokens; ++t) {
                        auto row = x.values(t * width, width);
                        double sum = 0, size = 0, squares = 0;
                        for (double v : row)
                          sum += v, size += std::abs(v);
                        for (double v : row)
                          squares += (v - sum / width) * (v - sum / width);
                        double scale = 1 / std::sqrt(squares / width + eps);
                        for (int64_t c = 0; c < width; ++c)
                          expected.push_back(
                              {(row[c] - sum / width) * scale * w[c] + b[c],
                               (std::abs(row[c]) + size / width) * scale *
                                       std::abs(w[c]) +
                                   std::abs(b[c])});
                      }
                      expectNear(y, expected);
                    }
                  });
  }
  kernels.run();
}

TEST(SwiGLU, EqualsReference) {
  Kernels kernels;
  for (int64_t width : widths)
    kernels.check(host::swiglu(kernels.site(), width), [=](const Kernel &k,
                                                           Random &random) {
      // From where silu is 0 to where it is its argument.
      for (double range : {1.0, 30.0, 150.0}) {
        Buffer g =
            Buffer::uniform(Format::F32, tokens * width, random, -range, range);
        Buffer u = Buffer::uniform(Format::F32, tokens * width, random);
        Buffer y = Buffer::output(Format::F32, tokens * width);
        k(tokens, {g, u, y});
        std::vector<Expected> expected;
        for (int64_t i = 0; i < g.size(); ++i) {
          double v = silu(g[i]) * u[i];
          // Below -88.7 the exponential is infinite, silu 0 instead of
          // at most 1e-36.
          expected.push_back({v, std::abs(v) + 1e-30});
        }
        expectNear(y, expected);
      }
    });
  kernels.check(host::swiglu(kernels.site(), 8), [](const Kernel &k, Random &) {
    const double inf = std::numeric_limits<double>::infinity();
    Buffer g =
        Buffer::of(Format::F32, {-1e30, -1000, -104, 0, 104, 1000, 1e30, inf});
    Buffer u = Buffer::of(Format::F32, {1, 1, 1, 1, 1, 1, 1, 1});
    Buffer y = Buffer::output(Format::F32, 8);
    k(1, {g, u, y});
    std::vector<double> found = y.values();
    EXPECT_EQ(found,
              (std::vector<double>{0, 0, 0, 0, 104, 1000, float(1e30), inf}));
  });
  kernels.run();
}

TEST(SwiGLU, KeepsNaN) {
  Kernels kernels;
  kernels.check(host::swiglu(kernels.site(), 8), [](const Kernel &k, Random &) {
    Buffer g = Buffer::of(Format::F32, {NAN, 1, 1, 1, 1, 1, 1, 1});
    Buffer u = Buffer::of(Format::F32, {1, NAN, 1, 1, 1, 1, 1, 1});
    Buffer y = Buffer::output(Format::F32, 8);
    k(1, {g, u, y});
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && !std::isnan(y[2]));
  });
  kernels.run();
}

TEST(Add, EqualsReference) {
  Kernels kernels;
  for (int64_t width : widths)
    kernels.check(host::add(kernels.site(), width),
                  [=](const Kernel &k, Random &random) {
                    int64_t n = tokens * width;
                    Buffer a = Buffer::uniform(Format::F32, n, random);
                    Buffer b = Buffer::uniform(Format::F32, n, random);
                    Buffer y = Buffer::output(Format::F32, n);
                    k(tokens, {a, b, y});
                    std::vector<double> expected;
                    for (int64_t i = 0; i < n; ++i)
                      expected.push_back(float(a[i]) + float(b[i]));
                    expectEqual(y, expected);
                  });
  kernels.run();
}

TEST(Split, CopiesParts) {
  Kernels kernels;
  for (std::vector<int64_t> parts :
       {std::vector<int64_t>{1, 1}, {8, 20}, {7, 33, 2}, {64, 8, 8, 1}})
    kernels.check(host::split(kernels.site(), parts), [parts](const Kernel &k,
                                                              Random &random) {
      int64_t total = std::accumulate(parts.begin(), parts.end(), 0);
      Buffer x = Buffer::uniform(Format::F32, tokens * total, random);
      std::vector<Buffer> ys;
      for (int64_t w : parts)
        ys.push_back(Buffer::output(Format::F32, tokens * w));
      std::vector<Operand> operands{x};
      operands.insert(operands.end(), ys.begin(), ys.end());
      k(tokens, operands);
      int64_t offset = 0;
      for (size_t i = 0; i < parts.size(); offset += parts[i++]) {
        std::vector<double> expected;
        for (int64_t t = 0; t < tokens; ++t)
          for (double v : x.values(t * total + offset, parts[i]))
            expected.push_back(v);
        expectEqual(ys[i], expected);
      }
    });
  kernels.run();
}

} // namespace
