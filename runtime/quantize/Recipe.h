//===- Recipe.h - which module is wanted in which format --------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_QUANTIZE_RECIPE_H
#define MLA_RUNTIME_QUANTIZE_RECIPE_H

#include "mla/Config/StoredWeight.h"
#include "mla/Support/Format.h"
#include "mla/Support/Status.h"
#include <optional>
#include <string>
#include <vector>

namespace mla::quantize {

/// A format to bring a module into; nothing: leave it as the input has it.
using Choice = std::optional<Format>;

/// "nvfp4", "fp8-block", "int4-g32", "bf16" or "keep".
Result<Choice> parseChoice(const std::string &text);

struct Rule {
  std::string glob; ///< fnmatch
  Choice choice;
};
/// "GLOB=FORMAT".
Result<Rule> parseRule(const std::string &text);

struct Recipe {
  Choice weights;                   ///< of linear modules without a rule
  std::vector<Rule> rules;          ///< the last that matches wins
  std::vector<std::string> exclude; ///< globs; stronger than any rule

  /// What is wanted for a module of a model, and, where it is to be kept, why
  /// (""  if another format is wanted). Names match with and without
  /// "language_model.". Only linear modules are ever given a format; lm_head
  /// only by a rule that spells "lm_head".
  struct Decision {
    Choice choice;
    std::string whyKept;
  };
  Decision decide(const ModelWeight &weight) const;

  /// Invalid for a glob that matches no module that could be quantized: it is
  /// most likely mistyped.
  Status check(const std::vector<ModelWeight> &weights) const;
};

} // namespace mla::quantize

#endif // MLA_RUNTIME_QUANTIZE_RECIPE_H
