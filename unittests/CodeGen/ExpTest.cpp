//===- ExpTest.cpp - the exponential of the kernels -----------------------===//
//
// Part of mla. The exponential is not a kernel; two kernels show it. The weight
// of the second of two experts with logits 0 and x < 0 is e^x / (1 + e^x), and
// silu(-x) is -x / (1 + e^x). Where e^x or 1 vanishes beside the other, one
// division is all that is added.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "mlir/IR/Builders.h"

using namespace mla;
using namespace mla::test;

namespace {

/// Less than what the last term of the series is worth and f32 adds to it.
constexpr double accuracy = 1.5e-7;
/// 1 + e^x and the division round once each, by at most 2^-24.
constexpr double around = 2.0 / (1 << 24);

/// Many values from `low` to `high`, both included, and their neighbours.
std::vector<double> grid(double low, double high, Random &random) {
  std::vector<double> out{low, high, std::nextafter(float(low), INFINITY),
                          std::nextafter(float(high), -INFINITY)};
  std::uniform_real_distribution<double> uniform(low, high);
  while (out.size() < 40000)
    out.push_back(float(uniform(random)));
  return out;
}

std::string softmaxOfTwo(Kernels &kernels) {
  mlir::Builder b(&kernels.context());
  auto routing =
      RoutingAttr::get(b.getContext(), /*topk=*/2, /*groups=*/1,
                       /*topkGroups=*/1, ScoringKind::Softmax, TopkKind::Greedy,
                       /*normalize=*/false, b.getF64FloatAttr(1.0));
  return host::route(kernels.site(), routing, 2, std::nullopt);
}

/// The weight of the second expert for each x.
std::vector<double> secondWeights(const Kernel &k,
                                  const std::vector<double> &xs) {
  std::vector<double> logits;
  for (double x : xs)
    logits.insert(logits.end(), {0.0, x});
  int64_t tokens = xs.size();
  Buffer l = Buffer::of(Format::F32, logits);
  Buffer indices = Buffer::output(Format::I32, 2 * tokens);
  Buffer weights = Buffer::output(Format::F32, 2 * tokens);
  k(tokens, {l, indices, weights});
  std::vector<double> out;
  for (int64_t t = 0; t < tokens; ++t)
    out.push_back(weights[2 * t + 1]);
  return out;
}

TEST(Exp, OfNegatives) {
  Kernels kernels;
  kernels.check(softmaxOfTwo(kernels), [](const Kernel &k, Random &random) {
    std::vector<double> xs = grid(-87, -1e-3, random);
    std::vector<double> found = secondWeights(k, xs);
    for (size_t i = 0; i < xs.size(); ++i) {
      double e = std::exp(xs[i]), expected = e / (1 + e);
      double allowed = accuracy + (xs[i] > -17 ? around : 0);
      double off = std::abs(found[i] / expected - 1);
      ASSERT_LE(off, allowed) << "x = " << xs[i];
    }
    EXPECT_EQ(secondWeights(k, {0.0, -87.5, -1000.0, -1e38, -INFINITY}),
              (std::vector<double>{0.5, 0, 0, 0, 0}));
  });
  kernels.run();
}

TEST(Exp, OfPositives) {
  Kernels kernels;
  kernels.check(
      host::swiglu(kernels.site(), 8), [](const Kernel &k, Random &random) {
        std::vector<double> xs = grid(17, 88, random), negated;
        for (double x : xs)
          negated.push_back(-x);
        int64_t n = xs.size();
        Buffer gate = Buffer::of(Format::F32, negated);
        Buffer up = Buffer::of(Format::F32, std::vector<double>(n, 1.0));
        Buffer y = Buffer::output(Format::F32, n);
        k(n / 8, {gate, up, y});
        for (int64_t i = 0; i < n; ++i) {
          double off = std::abs(y[i] / silu(-xs[i]) - 1);
          ASSERT_LE(off, accuracy + around) << "x = " << xs[i];
        }
      });
  kernels.run();
}

} // namespace
