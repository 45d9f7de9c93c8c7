//===- LinearTest.cpp - matrix times rows ---------------------------------===//
//
// Part of mla. Row counts around the sizes of tiles and blocks (8 to 32 rows),
// columns around the 8 lanes and a cache line, tokens around the tile of 3.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::test;
using mla::host::MatrixShape;

namespace {

constexpr Format formats[] = {Format::F32, Format::BF16, Format::F16};

/// Every column count in every format, with the row counts in turn.
std::vector<MatrixShape> shapes() {
  const int64_t rows[] = {1, 5, 8, 9, 33, 70};
  std::vector<MatrixShape> out;
  for (int64_t columns : {1, 7, 8, 20, 33, 64})
    for (Format format : formats)
      out.push_back({format, rows[(out.size() + out.size() / 6) % 6], columns});
  // Rows and columns around the blocks of 128 and the groups of 16 and 32.
  for (auto [rows, columns] :
       {std::pair{1, 1}, {9, 7}, {130, 128}, {257, 129}, {33, 300}, {5, 264}})
    out.push_back({Format::FP8Block, rows, columns});
  for (auto [rows, columns] :
       {std::pair{1, 16}, {33, 48}, {9, 32}, {70, 80}, {8, 144}})
    out.push_back({Format::NVFP4, rows, columns});
  for (auto [rows, columns] : {std::pair{1, 32}, {33, 96}, {9, 64}, {70, 160}})
    out.push_back({Format::Int4G32, rows, columns});
  // Blocks of 32 rows; a cache line, 8 lanes and a tail of columns.
  out.push_back({Format::BF16, 513, 43});
  out.push_back({Format::BF16, 40, 79});
  return out;
}

std::vector<Expected> product(const Buffer &x, const Matrix &w, MatrixShape s,
                              const std::vector<int64_t> &tokens) {
  std::vector<Expected> out;
  for (int64_t t : tokens)
    for (int64_t r = 0; r < s.rows; ++r)
      out.push_back(dot(w, r * s.columns, x, t * s.columns, s.columns));
  return out;
}

std::vector<int64_t> upTo(int64_t n) {
  std::vector<int64_t> out(n);
  std::iota(out.begin(), out.end(), 0);
  return out;
}

/// Row `t` of `all`, made again from this token alone, has the same bits.
/// `runOne(x, y)` launches it for one token.
void expectBatchInvariant(const Buffer &x, int64_t columns, const Buffer &all,
                          int64_t rows, int64_t tokens,
                          llvm::function_ref<void(Buffer &, Buffer &)> runOne) {
  for (int64_t t = 0; t < tokens; ++t) {
    Buffer one = Buffer::of(Format::F32, x.values(t * columns, columns));
    Buffer y = Buffer::output(Format::F32, rows);
    runOne(one, y);
    expectSameBits(y, 0, all, t * rows, rows);
  }
}

TEST(Linear, OneSegment) {
  Kernels kernels;
  for (MatrixShape s : shapes())
    kernels.check(host::linear(kernels.site(), {s}), [s](const Kernel &k,
                                                         Random &random) {
      Matrix w(s, random);
      for (int64_t tokens : {1, 2, 3, 4, 7}) {
        Buffer x = Buffer::uniform(Format::F32, tokens * s.columns, random);
        Buffer y = Buffer::output(Format::F32, tokens * s.rows);
        k(host::rowBlocks(s.rows), {x, w, y}, {tokens});
        expectNear(y, product(x, w, s, upTo(tokens)));
        expectBatchInvariant(x, s.columns, y, s.rows, tokens,
                             [&](Buffer &one, Buffer &out) {
                               k(host::rowBlocks(s.rows), {one, w, out}, {1});
                             });
      }
    });
  kernels.run();
}

TEST(Linear, SeveralSegments) {
  const std::vector<MatrixShape> groups[] = {
      {{Format::F32, 5, 20}, {Format::BF16, 33, 20}},
      {{Format::BF16, 70, 7}, {Format::F16, 1, 7}, {Format::F32, 8, 7}},
      {{Format::F16, 9, 64}, {Format::F16, 9, 64}},
      {{Format::NVFP4, 33, 160}, {Format::FP8Block, 150, 160},
       {Format::Int4G32, 9, 160}, {Format::BF16, 5, 160}}};
  Kernels kernels;
  for (const auto &group : groups)
    kernels.check(host::linear(kernels.site(), group), [group](const Kernel &k,
                                                               Random &random) {
      int64_t columns = group[0].columns;
      for (int64_t tokens : {1, 2, 3, 4, 7}) {
        Buffer x = Buffer::uniform(Format::F32, tokens * columns, random);
        std::vector<Matrix> ws;
        std::vector<Buffer> ys;
        std::vector<Operand> operands{x};
        int64_t grid = 0;
        for (MatrixShape s : group) {
          ws.emplace_back(s, random);
          ys.push_back(Buffer::output(Format::F32, tokens * s.rows));
          grid += host::rowBlocks(s.rows);
        }
        for (size_t i = 0; i < group.size(); ++i) {
          operands.push_back(ws[i]);
          operands.push_back(ys[i]);
        }
        k(grid, operands, {tokens});
        for (size_t i = 0; i < group.size(); ++i)
          expectNear(ys[i], product(x, ws[i], group[i], upTo(tokens)));
      }
    });
  kernels.run();
}

TEST(Linear, NoTokens) {
  Kernels kernels;
  MatrixShape s{Format::F32, 9, 8};
  kernels.check(host::linear(kernels.site(), {s}),
                [s](const Kernel &k, Random &random) {
                  Matrix w(s, random);
                  Buffer x = Buffer::of(Format::F32, {0});
                  Buffer y = Buffer::of(Format::F32, {7});
                  k(host::rowBlocks(s.rows), {x, w, y}, {0});
                  expectEqual(y, {7});
                });
  kernels.run();
}

TEST(LMHead, PicksRows) {
  Kernels kernels;
  for (MatrixShape s :
       {MatrixShape{Format::F32, 33, 20}, MatrixShape{Format::BF16, 70, 64},
        MatrixShape{Format::F16, 9, 7}, MatrixShape{Format::FP8Block, 140, 70},
        MatrixShape{Format::NVFP4, 33, 48}})
    kernels.check(
        host::lmHead(kernels.site(), s), [s](const Kernel &k, Random &random) {
          Matrix w(s, random);
          Buffer x = Buffer::uniform(Format::F32, 6 * s.columns, random);
          // Out of order, repeated, one alone, none.
          for (std::vector<int64_t> rows : {std::vector<int64_t>{5, 0, 3},
                                            {4, 4, 1, 4},
                                            {5},
                                            {},
                                            {0, 1, 2, 3, 4, 5, 0}}) {
            Buffer outputs = Buffer::ints(rows);
            Buffer y = Buffer::output(Format::F32, rows.size() * s.rows);
            int64_t count = rows.size();
            k(host::rowBlocks(s.rows), {x, w, outputs, y}, {count});
            expectNear(y, product(x, w, s, rows));
            for (int64_t i = 0; i < count; ++i) {
              Buffer which = Buffer::ints({rows[i]});
              Buffer one = Buffer::output(Format::F32, s.rows);
              k(host::rowBlocks(s.rows), {x, w, which, one}, {1});
              expectSameBits(one, 0, y, i * s.rows, s.rows);
            }
          }
        });
  kernels.run();
}

/// x picks a column of `w`: the products are its values, rounded once.
/// `value(i)` is what they are, by flat index.
void expectColumn(const Kernel &k, Matrix &w, int64_t column,
                  llvm::function_ref<double(int64_t)> value) {
  const MatrixShape &s = w.shape;
  Buffer x = Buffer::of(Format::F32, std::vector<double>(s.columns));
  x.set(column, 1);
  Buffer y = Buffer::output(Format::F32, s.rows);
  k(host::rowBlocks(s.rows), {x, w, y}, {1});
  std::vector<double> expected;
  for (int64_t r = 0; r < s.rows; ++r)
    expected.push_back(float(value(r * s.columns + column)));
  expectEqual(y, expected);
}

/// Every code with every kind of scale.
TEST(Linear, EveryCodeIsExact) {
  Kernels kernels;
  for (MatrixShape s : {MatrixShape{Format::FP8Block, 257, 256},
                        MatrixShape{Format::NVFP4, 128, 48},
                        MatrixShape{Format::Int4G32, 16, 64}})
    kernels.check(host::linear(kernels.site(), {s}),
                  [s](const Kernel &k, Random &random) {
                    Matrix w(s, random);
                    for (int64_t column = 0; column < s.columns; ++column)
                      expectColumn(k, w, column,
                                   [&](int64_t i) { return w[i]; });
                  });
  kernels.run();
}

/// Scales near the ends of f32, in the vectors of a row and in its tail.
TEST(Linear, LargestAndSmallestScales) {
  Kernels kernels;
  MatrixShape s{Format::FP8Block, 5, 131};
  kernels.check(
      host::linear(kernels.site(), {s}), [s](const Kernel &k, Random &random) {
        for (double scale : {7e35, 1e-30}) {
          Matrix w(s, random);
          w.parts[1] = Buffer::of(Format::F32, {scale, scale});
          for (int64_t column : {0, 31, 127, 128, 130})
            expectColumn(k, w, column, [&](int64_t i) {
              return w.parts[0][i] * double(float(scale));
            });
        }
      });
  kernels.run();
}

TEST(GatedLinear, EqualsReference) {
  Kernels kernels;
  for (size_t i = 0; i < 9; ++i) {
    Format gate = formats[i % 3], up = formats[(i + i / 3) % 3];
    if (i >= 6) {
      const Format quantized[] = {Format::NVFP4, Format::FP8Block,
                                  Format::Int4G32, Format::NVFP4};
      gate = quantized[i - 6], up = quantized[i - 5];
    }
    int64_t rows[] = {1, 5, 8, 9, 33, 70, 33, 130, 9};
    // Two matrices with long tails, so that values of the tile are spilled.
    int64_t columns[] = {64, 79, 20, 79, 7, 1, 48, 160, 96};
    MatrixShape s{gate, rows[i], columns[i]};
    kernels.check(
        host::gatedLinear(kernels.site(), s, up),
        [s, up](const Kernel &k, Random &random) {
          Matrix g(s, random), u({up, s.rows, s.columns}, random);
          for (int64_t tokens : {1, 2, 3, 4, 7}) {
            Buffer x =
                Buffer::uniform(Format::F32, tokens * s.columns, random, -2, 2);
            Buffer y = Buffer::output(Format::F32, tokens * s.rows);
            k(host::rowBlocks(s.rows), {x, g, u, y}, {tokens});
            auto gs = product(x, g, s, upTo(tokens));
            auto us = product(x, u, s, upTo(tokens));
            std::vector<Expected> expected;
            for (size_t j = 0; j < gs.size(); ++j) {
              double act = silu(gs[j].value);
              // silu is nowhere steeper than 1.1.
              expected.push_back(
                  {act * us[j].value, (1.1 * gs[j].magnitude + std::abs(act)) *
                                              std::abs(us[j].value) +
                                          std::abs(act) * us[j].magnitude});
            }
            expectNear(y, expected);
            expectBatchInvariant(
                x, s.columns, y, s.rows, tokens, [&](Buffer &one, Buffer &out) {
                  k(host::rowBlocks(s.rows), {one, g, u, out}, {1});
                });
          }
        });
  }
  kernels.run();
}

} // namespace
