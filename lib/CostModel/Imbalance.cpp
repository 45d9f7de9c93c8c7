//===- Imbalance.cpp - the busiest group of experts -----------------------===//
//
// Part of mla. Where groups of ranks have experts of their own, a step ends when the
// group with most of the chosen experts does. Choices are drawn without replacement,
// so the largest count of a group follows from the number of choices in which no
// group has more than m: coefficients of products of polynomials, one for each
// group. Several tokens' choices together are, for each number of different experts,
// any set of so many with equal probability, as all experts are alike.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"
#include <cassert>
#include <cmath>

namespace mla::cost {

static double logChoose(int64_t n, int64_t k) {
  if (k < 0 || k > n)
    return -INFINITY;
  return std::lgamma(double(n + 1)) - std::lgamma(double(k + 1)) -
         std::lgamma(double(n - k + 1));
}

namespace {
/// Coefficients of x^chosen y^kept, up to the numbers that are asked for. A term of x
/// is divided by a constant for each choice, so that none overflows.
class Counts {
public:
  Counts(int64_t chosen, int64_t kept)
      : chosen(chosen), kept(kept), values((chosen + 1) * (kept + 1)) {}

  void set(int64_t y, int64_t x, double value) {
    values[y * (chosen + 1) + x] = value;
    degree = std::max(degree, x);
  }
  double get(int64_t y, int64_t x) const { return values[y * (chosen + 1) + x]; }

  Counts times(const Counts &other) const {
    Counts out(chosen, kept);
    out.degree = std::min(degree + other.degree, chosen);
    for (int64_t y = 0; y <= kept; ++y)
      for (int64_t v = 0; v + y <= kept; ++v)
        for (int64_t x = 0; x <= degree; ++x)
          if (double a = get(y, x); a > 0) {
            const double *from = &other.values[v * (chosen + 1)];
            double *to = &out.values[(y + v) * (chosen + 1) + x];
            int64_t last = std::min(other.degree, chosen - x);
            for (int64_t u = 0; u <= last; ++u)
              to[u] += a * from[u];
          }
    return out;
  }

private:
  int64_t chosen, kept, degree = 0;
  std::vector<double> values; ///< [kept][chosen]
};

/// `groups` groups of ranks with `parts` of the router's groups each, of which `kept`
/// are chosen in all; a part has `size` experts.
struct Draw {
  int64_t groups, parts, kept, size;
  /// Without a choice among parts a group is one of them, and is always chosen.
  bool isPlain() const { return kept == groups * parts; }
};
} // namespace

/// What one group contributes if it has at most `most` experts.
static Counts countsOf(const Draw &draw, int64_t chosen, int64_t most) {
  // Weights p^x (1 - p)^(n - x) keep terms near 1; they cancel in quotients.
  double p = double(chosen) / double(draw.kept * draw.size);
  p = std::min(std::max(p, 1e-9), 1 - 1e-9);
  auto weight = [&](int64_t n, int64_t x) {
    return std::exp(logChoose(n, x) + double(x) * std::log(p) +
                    double(n - x) * std::log1p(-p));
  };
  bool plain = draw.isPlain();
  int64_t kept = plain ? 0 : draw.kept;
  Counts one(chosen, kept);
  for (int64_t y = plain ? draw.parts : 0; y <= std::min(draw.parts, draw.kept); ++y)
    for (int64_t x = 0; x <= std::min({most, chosen, y * draw.size}); ++x)
      one.set(plain ? 0 : y, x,
              std::exp(logChoose(draw.parts, y)) * weight(y * draw.size, x));
  return one;
}

/// In proportion to the choices in which no group has more than `most`.
static double choices(const Draw &draw, int64_t chosen, int64_t most) {
  int64_t kept = draw.isPlain() ? 0 : draw.kept;
  Counts power = countsOf(draw, chosen, most), product(chosen, kept);
  product.set(0, 0, 1);
  for (int64_t n = draw.groups; n > 0; n /= 2) {
    if (n % 2)
      product = product.times(power);
    if (n > 1)
      power = power.times(power);
  }
  return product.get(kept, chosen);
}

/// Element m: the probability that no group has more than m of `chosen` experts.
static std::vector<double> atMost(const Draw &draw, int64_t chosen) {
  std::vector<double> out(chosen + 1, 1.0);
  double all = choices(draw, chosen, chosen);
  for (int64_t m = 0; m < chosen; ++m) {
    // Fewer than an equal share is impossible, and beyond all but 1e-12 nothing is
    // left to tell.
    out[m] = m * draw.groups < chosen ? 0 : choices(draw, chosen, m) / all;
    if (out[m] > 1 - 1e-12)
      break;
  }
  return out;
}

static std::vector<double> busiest(const Draw &draw, int64_t chosen) {
  std::vector<double> most = atMost(draw, chosen);
  for (size_t m = most.size() - 1; m > 0; --m)
    most[m] = std::max(most[m] - most[m - 1], 0.0);
  return most;
}

/// The draw of one token, whose router may have groups.
static Draw drawOf(const Experts &shape) {
  int64_t g = shape.groups, r = shape.routingGroups, kept = shape.routingKept;
  if (r > 1 && r % g == 0)
    return {g, r / g, kept, shape.experts / r};
  if (r > 1 && g % r == 0)
    return {kept * (g / r), 1, kept * (g / r), shape.experts / g};
  return {g, 1, g, shape.experts / g};
}

std::vector<double> busiestGroup(const Experts &shape) {
  assert(shape.groups > 0 && shape.experts % shape.groups == 0 &&
         shape.topk <= shape.experts);
  return busiest(drawOf(shape), shape.topk);
}

double busiestExperts(const Experts &shape, int64_t tokens) {
  auto mean = [](const std::vector<double> &probability) {
    double sum = 0;
    for (size_t k = 0; k < probability.size(); ++k)
      sum += double(k) * probability[k];
    return sum;
  };
  if (shape.groups == 1)
    return distinctExperts(shape.experts, shape.topk, tokens);
  if (tokens <= 1)
    return mean(busiestGroup(shape));
  if (shape.topk == 0)
    return 0;
  // The number of different experts varies little: its mean, between two whole ones.
  double distinct = distinctExperts(shape.experts, shape.topk, tokens);
  auto whole = int64_t(distinct);
  double rest = distinct - double(whole);
  Draw draw{shape.groups, 1, shape.groups, shape.experts / shape.groups};
  if (whole >= shape.experts - 1) // as good as all
    return double(draw.size);
  double sum = (1 - rest) * mean(busiest(draw, whole));
  return rest > 0 ? sum + rest * mean(busiest(draw, whole + 1)) : sum;
}

} // namespace mla::cost
