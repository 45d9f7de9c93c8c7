//===- Choices.cpp - which experts two plans choose -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cli/Choices.h"
#include "mla/Quant/Matrix.h"
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <numeric>

namespace mla::cli {
namespace {

/// Of the largest score: what f32 can make of it.
constexpr double scoreSlack = 1e-5;

bool isNoaux(const Routing &routing) {
  return routing.method == Routing::Method::NoauxTc;
}

/// Takes `word` and the underscore behind it off `text`.
bool take(std::string_view &text, std::string_view word) {
  if (!text.starts_with(word) || !text.substr(word.size()).starts_with('_'))
    return false;
  text.remove_prefix(word.size() + 1);
  return true;
}

bool takeNumber(std::string_view &text, int64_t &number) {
  auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '_')
    return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()) + 1);
  return true;
}

/// The values of a weight that is a vector, if the host sees them.
std::vector<float> vectorOf(const runtime::Engine &engine, uint32_t index) {
  const plan::Weight &weight = engine.plan().weights[index];
  auto tensors = engine.weights().tensors(index);
  Format format = weight.storedFormat();
  int64_t count = weight.matrixRows() * weight.matrixColumns();
  std::optional<uint64_t> size = elementBytes(format);
  if (tensors.size() != 1 || !size || format == Format::I32 ||
      format == Format::FP8E4M3 ||
      tensors[0].size() != static_cast<uint64_t>(count) * *size)
    return {};
  std::vector<float> values(static_cast<size_t>(count));
  quant::dequantizeRows({format, 1, count, tensors[0], {}, {}}, 0, values);
  return values;
}

/// The best score of each group, or the sum of its best two.
std::vector<double> groupScores(const Routing &routing,
                                std::span<const double> scores) {
  auto size = static_cast<size_t>(routing.experts / routing.groups);
  std::vector<double> result;
  for (int64_t g = 0; g < routing.groups; ++g) {
    std::span<const double> group =
        scores.subspan(static_cast<size_t>(g) * size, size);
    std::vector<double> best(std::min<size_t>(size, isNoaux(routing) ? 2 : 1));
    std::partial_sort_copy(group.begin(), group.end(), best.begin(), best.end(),
                           std::greater<>());
    result.push_back(best[0] + (best.size() > 1 ? best[1] : 0));
  }
  return result;
}

} // namespace

std::optional<Routing> routingOf(std::string_view kernel) {
  Routing r;
  if (!take(kernel, "route"))
    return std::nullopt;
  r.softmax = take(kernel, "softmax");
  if (!r.softmax && !take(kernel, "sigmoid"))
    return std::nullopt;
  if (take(kernel, "noaux_tc"))
    r.method = Routing::Method::NoauxTc;
  else if (take(kernel, "group_limited_greedy"))
    r.method = Routing::Method::GroupLimitedGreedy;
  else if (!take(kernel, "greedy"))
    return std::nullopt;
  for (int64_t *n : {&r.experts, &r.topk, &r.groups, &r.topkGroups})
    if (!takeNumber(kernel, *n))
      return std::nullopt;
  if (r.topk < 1 || r.experts < r.topk || r.groups < 1 ||
      r.experts % r.groups != 0 || r.topkGroups < 1)
    return std::nullopt;
  if (r.method == Routing::Method::Greedy)
    r.groups = r.topkGroups = 1;
  return r;
}

std::vector<double> choiceScores(const Routing &routing,
                                 std::span<const float> logits,
                                 std::span<const float> bias) {
  std::vector<double> scores(logits.begin(), logits.end());
  double largest = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (double &s : scores) {
    s = routing.softmax ? std::exp(s - largest) : 1 / (1 + std::exp(-s));
    sum += s;
  }
  for (size_t i = 0; i < scores.size(); ++i) {
    scores[i] /= routing.softmax ? sum : 1;
    scores[i] += bias.empty() ? 0 : static_cast<double>(bias[i]);
  }
  return scores;
}

bool isChoiceOf(const Routing &routing, std::span<const double> scores,
                std::span<const float> chosen) {
  double largest = 0;
  for (double s : scores)
    largest = std::max(largest, std::fabs(s));
  double slack = scoreSlack * largest;
  std::vector<double> groups = groupScores(routing, scores);
  int64_t size = routing.experts / routing.groups;
  // How many groups are better than this one, by more than `slack`.
  auto better = [&](int64_t group, double slack) {
    double own = groups[static_cast<size_t>(group)];
    return std::count_if(groups.begin(), groups.end(),
                         [&](double g) { return g > own + slack; });
  };
  std::vector<bool> isChosen(scores.size());
  std::vector<int64_t> used;
  double lowest = INFINITY;
  for (float value : chosen) {
    auto e = static_cast<int64_t>(value);
    if (e < 0 || e >= routing.experts || isChosen[static_cast<size_t>(e)] ||
        better(e / size, slack) >= routing.topkGroups)
      return false;
    isChosen[static_cast<size_t>(e)] = true;
    lowest = std::min(lowest, scores[static_cast<size_t>(e)]);
    if (std::find(used.begin(), used.end(), e / size) == used.end())
      used.push_back(e / size);
  }
  if (static_cast<int64_t>(used.size()) > routing.topkGroups)
    return false;
  for (int64_t e = 0; e < routing.experts; ++e) {
    // Of groups that rounding could have left out nothing is known. A group
    // counts itself among those that are not worse.
    bool kept = better(e / size, -slack) <= routing.topkGroups;
    if (kept && !isChosen[static_cast<size_t>(e)] &&
        scores[static_cast<size_t>(e)] > lowest + slack)
      return false;
  }
  return true;
}

std::vector<float> choiceOf(const Routing &routing,
                            std::span<const double> scores) {
  std::vector<double> groups = groupScores(routing, scores);
  auto byScore = [](const std::vector<double> &of) {
    std::vector<size_t> order(of.size());
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return of[a] > of[b]; });
    return order;
  };
  std::vector<bool> kept(groups.size());
  std::vector<size_t> bestGroups = byScore(groups);
  for (size_t i = 0; i < bestGroups.size() && i < size_t(routing.topkGroups); ++i)
    kept[bestGroups[i]] = true;
  auto size = static_cast<size_t>(routing.experts / routing.groups);
  std::vector<float> chosen;
  for (size_t e : byScore({scores.begin(), scores.end()}))
    if (kept[e / size] && chosen.size() < size_t(routing.topk))
      chosen.push_back(static_cast<float>(e));
  return chosen;
}

Choices choicesFrom(const Choices &known, std::vector<float> logits,
                    size_t logitsSpace) {
  Choices choices;
  choices.name = known.name;
  choices.routing = known.routing;
  choices.bias = known.bias;
  choices.logits = std::move(logits);
  choices.logitsSpace = logitsSpace;
  for (int64_t t = 0; t < known.tokens(); ++t) {
    std::vector<float> chosen = choiceOf(
        known.routing,
        choiceScores(known.routing, choices.logitsOf(t), known.bias));
    choices.indices.insert(choices.indices.end(), chosen.begin(), chosen.end());
  }
  return choices;
}

Result<std::optional<Choices>> readChoices(runtime::Engine &engine,
                                           const plan::Program &program,
                                           const plan::SymbolValues &symbols,
                                           size_t launch) {
  const plan::Launch &at = program.launches[launch];
  const plan::Kernel &kernel = engine.plan().kernels[at.kernel];
  std::optional<Routing> routing = routingOf(kernel.name);
  if (!routing)
    return std::optional<Choices>();
  std::optional<size_t> logits, indices, weights;
  Choices choices;
  choices.routing = *routing;
  for (size_t i = 0; i < at.arguments.size(); ++i) {
    const plan::Parameter &parameter = kernel.parameters[i];
    if (auto *ref = std::get_if<plan::WorkspaceRef>(&at.arguments[i].value)) {
      if (parameter.access == plan::Access::Read)
        logits = ref->index;
      else
        (parameter.format == Format::I32 ? indices : weights) = ref->index;
    } else if (auto *ref =
                   std::get_if<plan::WeightRef>(&at.arguments[i].value)) {
      choices.bias = vectorOf(engine, ref->index);
    }
  }
  if (!logits || !indices || !weights)
    return std::optional<Choices>();
  choices.name = program.workspaces[*indices].name;
  choices.logitsSpace = *logits;
  choices.indicesSpace = *indices;
  choices.weightsSpace = *weights;
  for (auto [from, to] : {std::pair(*logits, &choices.logits),
                          {*indices, &choices.indices},
                          {*weights, &choices.weights}}) {
    MLA_ASSIGN_OR_RETURN(*to, engine.readWorkspace(program, from, symbols));
  }
  auto size = static_cast<size_t>(choices.tokens());
  if (choices.logits.size() != size * static_cast<size_t>(routing->experts) ||
      choices.weights.size() != choices.indices.size())
    return std::optional<Choices>();
  return std::optional<Choices>(std::move(choices));
}

std::vector<ChoiceDifference> differences(const Choices &a, const Choices &b,
                                          double tolerance) {
  const Routing &routing = a.routing;
  // The model's, whichever of the two can be read.
  std::span<const float> bias = a.bias.empty() ? b.bias : a.bias;
  bool known =
      bias.empty() ? !isNoaux(routing) : bias.size() == size_t(routing.experts);
  std::vector<ChoiceDifference> found;
  for (int64_t t = 0; t < std::min(a.tokens(), b.tokens()); ++t) {
    std::vector<int32_t> first, other;
    for (float e : a.chosen(t))
      first.push_back(static_cast<int32_t>(e));
    for (float e : b.chosen(t))
      other.push_back(static_cast<int32_t>(e));
    std::sort(first.begin(), first.end());
    std::sort(other.begin(), other.end());
    if (first == other)
      continue;
    ChoiceDifference d;
    d.name = a.name;
    d.token = t;
    std::set_difference(first.begin(), first.end(), other.begin(), other.end(),
                        std::back_inserter(d.first));
    std::set_difference(other.begin(), other.end(), first.begin(), first.end(),
                        std::back_inserter(d.other));
    auto row = [&](const Choices &c) {
      return std::span(c.logits).subspan(
          static_cast<size_t>(t * routing.experts),
          static_cast<size_t>(routing.experts));
    };
    double moved = 0, norm = 0;
    for (int64_t e = 0; e < routing.experts; ++e) {
      auto i = static_cast<size_t>(e);
      double x = row(a)[i], y = row(b)[i];
      moved += (x - y) * (x - y);
      norm += x * x;
    }
    d.logitsError = moved == 0 ? 0 : std::sqrt(moved / norm);
    if (!(d.logitsError <= tolerance)) {
      d.kind = ChoiceDifference::Kind::Logits;
    } else if (known) {
      d.kind =
          isChoiceOf(routing, choiceScores(routing, row(b), bias), b.chosen(t))
              ? ChoiceDifference::Kind::Tie
              : ChoiceDifference::Kind::Wrong;
    }
    if (known) {
      std::vector<double> scores = choiceScores(routing, row(a), bias);
      auto score = [&](int32_t e) {
        return e >= 0 && e < routing.experts ? scores[static_cast<size_t>(e)]
                                             : NAN;
      };
      double low = INFINITY, high = -INFINITY;
      for (int32_t e : d.first)
        low = std::min(low, score(e));
      for (int32_t e : d.other)
        high = std::max(high, score(e));
      d.gap = low - high;
    }
    found.push_back(std::move(d));
  }
  return found;
}

const char *kindName(ChoiceDifference::Kind kind) {
  switch (kind) {
  case ChoiceDifference::Kind::Tie:
    return "tie";
  case ChoiceDifference::Kind::Wrong:
    return "wrong";
  case ChoiceDifference::Kind::Logits:
    return "logits";
  case ChoiceDifference::Kind::NotJudged:
    return "not judged";
  }
  return "";
}

std::string describe(const ChoiceDifference &d) {
  auto list = [](const std::vector<int32_t> &ids) {
    std::string text;
    for (int32_t id : ids)
      text += (text.empty() ? "" : ",") + std::to_string(id);
    return text.empty() ? std::string("none") : text;
  };
  char line[160];
  std::snprintf(line, sizeof line, "  step %-4lld token %-5lld %s: ",
                static_cast<long long>(d.step), static_cast<long long>(d.token),
                kindName(d.kind));
  std::string text = line;
  text += d.name + ": expert " + list(d.other) + " instead of " + list(d.first);
  std::snprintf(line, sizeof line, "; scores %.2e apart, logits differ by %.2e",
                d.gap, d.logitsError);
  return text + line;
}

} // namespace mla::cli
