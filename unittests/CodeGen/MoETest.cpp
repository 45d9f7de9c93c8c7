//===- MoETest.cpp - experts in grouped form ------------------------------===//
//
// Part of mla. The four kernels run after one another as in a plan; each is
// compared with a reference on what the one before left.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"

using namespace mla;
using namespace mla::test;
using mla::host::MatrixShape;

namespace {

struct Case {
  int64_t width, inner, experts, topk;
  Format gate, up, down;
  bool shared;

  MatrixShape gateShape() const { return {gate, inner, width}; }
  MatrixShape downShape() const { return {down, width, inner}; }
};

const Case cases[] = {
    {8, 8, 4, 2, Format::BF16, Format::BF16, Format::BF16, true},
    {20, 33, 8, 3, Format::F32, Format::BF16, Format::F16, false},
    {33, 9, 5, 1, Format::F16, Format::F32, Format::F32, true},
    {64, 70, 16, 6, Format::BF16, Format::F16, Format::BF16, false},
    {48, 32, 5, 2, Format::NVFP4, Format::NVFP4, Format::NVFP4, true},
    {140, 33, 4, 2, Format::FP8Block, Format::FP8Block, Format::FP8Block, false},
    {64, 96, 5, 3, Format::Int4G32, Format::NVFP4, Format::Int4G32, true}};

enum class Choice { Distinct, AllToOne, FewExperts, Repeated };

/// Experts for every (token, choice) pair.
std::vector<int64_t> choose(const Case &c, int64_t tokens, Choice kind,
                            Random &random) {
  std::vector<int64_t> out, all(c.experts);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  for (int64_t t = 0; t < tokens; ++t) {
    if (kind == Choice::Distinct)
      std::shuffle(all.begin(), all.end(), random);
    // What a router makes of NaN: the same expert again.
    if (kind == Choice::Repeated || kind == Choice::AllToOne)
      out.insert(out.end(), c.topk,
                 kind == Choice::AllToOne
                     ? c.experts - 1
                     : randomInt(random, 0, c.experts - 1));
    else
      out.insert(out.end(), all.begin(), all.begin() + c.topk);
  }
  return out;
}

/// The four kernels of a case and the weights that they read.
struct Experts {
  Experts(const Case &c, const std::vector<Kernel> &kernels, Random &random)
      : c(c), kernels(kernels) {
    for (int64_t e = 0; e < c.experts; ++e) {
      gate.emplace_back(c.gateShape(), random);
      up.emplace_back(MatrixShape{c.up, c.inner, c.width}, random);
      down.emplace_back(c.downShape(), random);
    }
  }

  /// Runs and checks all four; returns the result.
  Buffer run(Buffer &x, const std::vector<int64_t> &choices, Buffer &weights,
             Buffer &shared) {
    tokens = choices.size() / c.topk;
    pairs = choices.size();
    slots = std::min(pairs, c.experts);
    Buffer indices = Buffer::ints(choices);
    Buffer order = Buffer::output(Format::I32, pairs);
    Buffer active = Buffer::output(Format::I32, slots);
    Buffer offsets = Buffer::output(Format::I32, slots + 1);
    Buffer count = Buffer::output(Format::I32, 1);
    kernels[0](1, {indices, order, active, offsets, count}, {tokens});
    checkGroups(choices, order, active, offsets, count);

    Buffer h = Buffer::output(Format::F32, pairs * c.inner);
    kernels[1](slots * host::rowBlocks(c.inner),
               {x, order, active, offsets, count, gate, up, h});
    std::vector<Expected> expected;
    for (int64_t p = 0; p < pairs; ++p) {
      int64_t pair = order[p], from = pair / c.topk * c.width;
      for (int64_t r = 0; r < c.inner; ++r) {
        Expected g = dot(gate[choices[pair]], r * c.width, x, from, c.width);
        Expected u = dot(up[choices[pair]], r * c.width, x, from, c.width);
        double act = silu(g.value);
        // silu is nowhere steeper than 1.1.
        expected.push_back({act * u.value, (1.1 * g.magnitude + std::abs(act)) *
                                                   std::abs(u.value) +
                                               std::abs(act) * u.magnitude});
      }
    }
    expectNear(h, expected);

    Buffer y = Buffer::output(Format::F32, pairs * c.width);
    kernels[2](slots * host::rowBlocks(c.width),
               {h, order, active, offsets, count, down, y});
    expected.assign(y.size(), {});
    for (int64_t p = 0; p < pairs; ++p)
      for (int64_t r = 0; r < c.width; ++r)
        expected[order[p] * c.width + r] =
            dot(down[choices[order[p]]], r * c.inner, h, p * c.inner, c.inner);
    expectNear(y, expected);

    Buffer out = Buffer::output(Format::F32, tokens * c.width);
    if (c.shared)
      kernels[3](tokens, {y, weights, shared, out});
    else
      kernels[3](tokens, {y, weights, out});
    expected.assign(out.size(), {});
    for (int64_t i = 0; i < out.size(); ++i) {
      int64_t t = i / c.width, column = i % c.width;
      for (int64_t j = 0; j < c.topk; ++j)
        expected[i].add(weights[t * c.topk + j] *
                        y[(t * c.topk + j) * c.width + column]);
      if (c.shared)
        expected[i].add(shared[i]);
    }
    expectNear(out, expected);
    return out;
  }

  /// Experts that somebody chose in order, their pairs in order.
  void checkGroups(const std::vector<int64_t> &choices, const Buffer &order,
                   const Buffer &active, const Buffer &offsets,
                   const Buffer &count) {
    std::vector<double> expectedOrder, expectedActive, expectedOffsets;
    for (int64_t e = 0; e < c.experts; ++e) {
      size_t first = expectedOrder.size();
      for (int64_t p = 0; p < pairs; ++p)
        if (choices[p] == e)
          expectedOrder.push_back(p);
      if (expectedOrder.size() > first) {
        expectedActive.push_back(e);
        expectedOffsets.push_back(first);
      }
    }
    expectedOffsets.push_back(pairs);
    int64_t used = expectedActive.size();
    expectEqual(count, {double(used)});
    expectEqual(order, expectedOrder);
    EXPECT_EQ(active.values(0, used), expectedActive);
    EXPECT_EQ(offsets.values(0, used + 1), expectedOffsets);
  }

  const Case &c;
  const std::vector<Kernel> &kernels;
  std::vector<Matrix> gate, up, down;
  int64_t tokens = 0, pairs = 0, slots = 0;
};

TEST(MoE, EqualsReference) {
  Kernels kernels;
  for (const Case &c : cases)
    kernels.check(
        {host::moeGroup(kernels.site(), c.experts, c.topk, /*part=*/false),
         host::moeGateUp(kernels.site(), c.gateShape(), c.up, c.topk),
         host::moeDown(kernels.site(), c.downShape()),
         host::moeCombine(kernels.site(), c.width, c.topk, c.shared,
                          /*part=*/0)},
        [&c](const std::vector<Kernel> &ks, Random &random) {
          Experts experts(c, ks, random);
          for (int64_t tokens : {1, 2, 3, 7, 40})
            for (Choice kind : {Choice::Distinct, Choice::AllToOne,
                                Choice::FewExperts, Choice::Repeated}) {
              auto choices = choose(c, tokens, kind, random);
              Buffer x = Buffer::uniform(Format::F32, tokens * c.width, random);
              Buffer weights =
                  Buffer::uniform(Format::F32, tokens * c.topk, random, 0, 1);
              Buffer shared =
                  Buffer::uniform(Format::F32, tokens * c.width, random);
              Buffer out = experts.run(x, choices, weights, shared);
              // A token alone gets the same bits as among others.
              int64_t t = randomInt(random, 0, tokens - 1);
              auto row = [&](const Buffer &b, int64_t width) {
                return Buffer::of(Format::F32, b.values(t * width, width));
              };
              Buffer oneX = row(x, c.width), oneWeights = row(weights, c.topk);
              Buffer oneShared = row(shared, c.width);
              auto at = choices.begin() + t * c.topk;
              Buffer alone =
                  experts.run(oneX, {at, at + c.topk}, oneWeights, oneShared);
              expectSameBits(alone, 0, out, t * c.width, c.width);
            }
        });
  kernels.run();
}

// A group of ranks has the second third of the experts: choices of others are in no
// slot, their places in h and y are never written, and count for nothing.
TEST(MoE, PartOfTheExperts) {
  Kernels kernels;
  for (const Case &c : {cases[0], cases[1], cases[4]})
    kernels.check(
        {host::moeGroup(kernels.site(), c.experts, c.topk, /*part=*/true),
         host::moeGateUp(kernels.site(), c.gateShape(), c.up, c.topk),
         host::moeDown(kernels.site(), c.downShape()),
         host::moeCombine(kernels.site(), c.width, c.topk, c.shared, c.experts)},
        [c](const std::vector<Kernel> &ks, Random &random) {
          std::vector<Matrix> gate, up, down;
          for (int64_t e = 0; e < c.experts; ++e) {
            gate.emplace_back(c.gateShape(), random);
            up.emplace_back(MatrixShape{c.up, c.inner, c.width}, random);
            down.emplace_back(c.downShape(), random);
          }
          int64_t first = c.experts;
          // All of the group's, none, and some.
          for (auto [low, high] : {std::pair(first, 2 * first - 1),
                                   std::pair(2 * first, 3 * first - 1),
                                   std::pair(int64_t(0), 3 * first - 1)})
            for (int64_t tokens : {1, 3, 20}) {
              int64_t pairs = tokens * c.topk;
              int64_t slots = std::min(pairs, c.experts);
              std::vector<int64_t> choices;
              for (int64_t p = 0; p < pairs; ++p)
                choices.push_back(randomInt(random, low, high));
              Buffer indices = Buffer::ints(choices);
              Buffer order = Buffer::output(Format::I32, pairs);
              Buffer active = Buffer::output(Format::I32, slots);
              Buffer offsets = Buffer::output(Format::I32, slots + 1);
              Buffer count = Buffer::output(Format::I32, 1);
              Buffer x = Buffer::uniform(Format::F32, tokens * c.width, random);
              Buffer weights = Buffer::uniform(Format::F32, pairs, random, 0, 1);
              Buffer shared =
                  Buffer::uniform(Format::F32, tokens * c.width, random);
              Buffer h = Buffer::output(Format::F32, pairs * c.inner);
              Buffer y = Buffer::output(Format::F32, pairs * c.width);
              Buffer out = Buffer::output(Format::F32, tokens * c.width);
              ks[0](1, {indices, order, active, offsets, count}, {tokens, first});
              ks[1](slots * host::rowBlocks(c.inner),
                    {x, order, active, offsets, count, gate, up, h});
              ks[2](slots * host::rowBlocks(c.width),
                    {h, order, active, offsets, count, down, y});
              if (c.shared)
                ks[3](tokens, {y, weights, shared, indices, out}, {first});
              else
                ks[3](tokens, {y, weights, indices, out}, {first});
              // y is checked by the test above; here only what is taken of it.
              std::vector<Expected> expected(out.size());
              for (int64_t i = 0; i < out.size(); ++i) {
                int64_t t = i / c.width;
                for (int64_t j = t * c.topk; j < (t + 1) * c.topk; ++j)
                  if (choices[j] >= first && choices[j] < 2 * first)
                    expected[i].add(weights[j] * y[j * c.width + i % c.width]);
                if (c.shared)
                  expected[i].add(shared[i]);
              }
              expectNear(out, expected);
            }
        });
  kernels.run();
}

} // namespace
