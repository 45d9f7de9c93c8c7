//===- Choices.h - which experts two plans choose ---------------*- C++ -*-===//
//
// Part of mla. A router chooses the experts with the best scores. Where two
// scores are nearly equal, rounding decides, and from there on everything that
// a token has differs. So compare judges choices by themselves: one that is
// right for its own logits, which hardly differ, is a tie, whatever follows
// from it.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CLI_CHOICES_H
#define MLA_RUNTIME_CLI_CHOICES_H

#include "runtime/executor/Engine.h"
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mla::cli {

/// How a router chooses, as MLA_RoutingAttr has it.
struct Routing {
  enum class Method { Greedy, GroupLimitedGreedy, NoauxTc };
  bool softmax = false; ///< Or else sigmoid.
  Method method = Method::Greedy;
  int64_t experts = 0, topk = 0, groups = 1, topkGroups = 1;
};

/// What the name of a kernel says, "route_sigmoid_noaux_tc_384_8_1_1_...";
/// nothing if it is no router's.
std::optional<Routing> routingOf(std::string_view kernel);

/// Scores by which a token's experts are chosen. `bias` is empty without
/// noaux_tc.
std::vector<double> choiceScores(const Routing &routing,
                                 std::span<const float> logits,
                                 std::span<const float> bias);

/// Whether `chosen` are the experts that `scores` call for, but for differences
/// that rounding of the scores explains.
bool isChoiceOf(const Routing &routing, std::span<const double> scores,
                std::span<const float> chosen);

/// The experts that `scores` call for, the best first; ties go to the lower index.
std::vector<float> choiceOf(const Routing &routing,
                            std::span<const double> scores);

/// What the launch of a router left, for all tokens of a step.
struct Choices {
  std::string name; ///< Of the chosen experts' value.
  Routing routing;
  /// Workspaces of the program; of the last two none if the experts' kernels choose.
  size_t logitsSpace = 0;
  std::optional<size_t> indicesSpace, weightsSpace;
  std::vector<float> indices, weights;       ///< [tokens, topk]
  std::vector<float> logits;                 ///< [tokens, experts]
  std::vector<float> bias; ///< [experts]; of noaux_tc, if the host can read it.

  int64_t tokens() const {
    return static_cast<int64_t>(indices.size()) / routing.topk;
  }
  std::span<const float> logitsOf(int64_t token) const {
    return std::span(logits).subspan(
        static_cast<size_t>(token * routing.experts),
        static_cast<size_t>(routing.experts));
  }
  std::span<const float> chosen(int64_t token) const {
    return std::span(indices).subspan(static_cast<size_t>(token * routing.topk),
                                      static_cast<size_t>(routing.topk));
  }
};

/// Reads them after `launch` has ended; nothing if it is no router's.
Result<std::optional<Choices>> readChoices(runtime::Engine &engine,
                                           const plan::Program &program,
                                           const plan::SymbolValues &symbols,
                                           size_t launch);

/// What kernels that choose by themselves will do with `logits`, of which the other
/// plan's router made `known`. No weights.
Choices choicesFrom(const Choices &known, std::vector<float> logits,
                    size_t logitsSpace);

/// A token for which two plans chose different experts.
struct ChoiceDifference {
  enum class Kind {
    Tie,      ///< Right for its own logits, which differ within the tolerance.
    Wrong,    ///< Not what its own logits call for.
    Logits,   ///< The logits differ by more than the tolerance.
    NotJudged ///< The bias of the router could not be read.
  };
  std::string name;
  int64_t step = 0, token = 0;       ///< The token counted from the first.
  std::vector<int32_t> first, other; ///< Chosen by one plan alone, ascending.
  Kind kind = Kind::NotJudged;
  double logitsError = 0; ///< ||a - b|| / ||a|| of the token's.
  /// In the first plan: the lowest score of `first` less the highest of
  /// `other`. Below 0 where groups of experts decided.
  double gap = 0;
};

/// The tokens of a step for which `a` and `b` differ. `tolerance` is that of
/// the logits. Step and place of the first token are not filled in.
std::vector<ChoiceDifference> differences(const Choices &a, const Choices &b,
                                          double tolerance);

const char *kindName(ChoiceDifference::Kind kind);
/// For people: which experts, and by how much.
std::string describe(const ChoiceDifference &difference);

} // namespace mla::cli

#endif // MLA_RUNTIME_CLI_CHOICES_H
