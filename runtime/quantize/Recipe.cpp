//===- Recipe.cpp - which module is wanted in which format ----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/Recipe.h"
#include <algorithm>
#include <fnmatch.h>

namespace mla::quantize {

Result<Choice> parseChoice(const std::string &text) {
  if (text == "keep")
    return Choice();
  std::string name = text;
  std::replace(name.begin(), name.end(), '-', '_');
  std::optional<Format> format = parseFormat(name);
  for (Format known :
       {Format::NVFP4, Format::FP8Block, Format::Int4G32, Format::BF16})
    if (format == known)
      return Choice(known);
  return invalid("expected nvfp4, fp8-block, int4-g32, bf16 or keep, found '" +
                 text + "'");
}

Result<Rule> parseRule(const std::string &text) {
  size_t equals = text.rfind('=');
  if (equals == std::string::npos || equals == 0)
    return invalid("expected GLOB=FORMAT, found '" + text + "'");
  Result<Choice> choice = parseChoice(text.substr(equals + 1));
  if (!choice.ok())
    return choice.status().withContext("'" + text + "'");
  return Rule{text.substr(0, equals), *choice};
}

static bool matches(const std::string &glob, const std::string &module) {
  return ::fnmatch(glob.c_str(), module.c_str(), 0) == 0 ||
         ::fnmatch(glob.c_str(), ("language_model." + module).c_str(), 0) == 0;
}

static bool isHead(const ModelWeight &weight) {
  return weight.module == "lm_head";
}

static bool isQuantizable(const ModelWeight &weight) {
  return weight.role == WeightRole::Linear || isHead(weight);
}

static bool applies(const Rule &rule, const ModelWeight &weight) {
  return matches(rule.glob, weight.module) &&
         (!isHead(weight) || rule.glob.find("lm_head") != std::string::npos);
}

Recipe::Decision Recipe::decide(const ModelWeight &weight) const {
  if (!isQuantizable(weight))
    return {{}, "never quantized"};
  for (const std::string &glob : exclude)
    if (matches(glob, weight.module))
      return {{}, "--exclude " + glob};
  for (auto rule = rules.rbegin(); rule != rules.rend(); ++rule)
    if (applies(*rule, weight))
      return {rule->choice,
              rule->choice ? "" : "--weights-for " + rule->glob + "=keep"};
  if (isHead(weight))
    return {{}, "the output head, which no --weights-for names"};
  return {weights, weights ? "" : "--weights keep"};
}

Status Recipe::check(const std::vector<ModelWeight> &weights) const {
  auto used = [&](auto test) {
    return std::any_of(
        weights.begin(), weights.end(),
        [&](const ModelWeight &w) { return isQuantizable(w) && test(w); });
  };
  for (const Rule &rule : rules)
    if (!used([&](const ModelWeight &w) { return applies(rule, w); }))
      return invalid("--weights-for " + rule.glob +
                     ": matches no module that can be quantized");
  for (const std::string &glob : exclude)
    if (!used([&](const ModelWeight &w) { return matches(glob, w.module); }))
      return invalid("--exclude " + glob +
                     ": matches no module that can be quantized");
  return {};
}

} // namespace mla::quantize
