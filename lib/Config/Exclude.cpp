//===- Exclude.cpp - which modules a quantization leaves alone ------------===//
//
// Part of mla. Producers write their exclude lists in three languages: globs
// (modelopt), regular expressions after "re:" (compressed-tensors) and plain
// names (FP8), of modules as they were called in the program that quantized
// them. All become globs over the names that text tensors have in the file.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"
#include <algorithm>

namespace mla {
using namespace config;

static bool startsWith(std::string_view text, std::string_view prefix) {
  return text.substr(0, prefix.size()) == prefix;
}
static bool endsWith(std::string_view text, std::string_view suffix) {
  return text.size() >= suffix.size() &&
         text.substr(text.size() - suffix.size()) == suffix;
}

//===----------------------------------------------------------------------===//
// Globs
//===----------------------------------------------------------------------===//

/// Matches one [set] at `p` (just after the bracket) against `c` and moves `p`
/// behind it. A set that is never closed matches nothing.
static bool matchSet(std::string_view pattern, size_t &p, char c) {
  bool negate = p < pattern.size() && (pattern[p] == '!' || pattern[p] == '^');
  p += negate;
  bool found = false;
  for (bool first = true; p < pattern.size(); first = false) {
    if (pattern[p] == ']' && !first) {
      ++p;
      return found != negate;
    }
    if (p + 2 < pattern.size() && pattern[p + 1] == '-' &&
        pattern[p + 2] != ']') {
      found |= pattern[p] <= c && c <= pattern[p + 2];
      p += 3;
    } else {
      found |= pattern[p++] == c;
    }
  }
  return false;
}

bool config::globMatch(std::string_view pattern, std::string_view text) {
  size_t p = 0, t = 0;
  // Where to resume if what follows the last * does not fit. One such place is
  // enough, so the time is at most |pattern| * |text|.
  size_t starP = std::string_view::npos, starT = 0;
  while (t < text.size()) {
    bool fits = false;
    size_t next = p;
    if (p < pattern.size()) {
      if (pattern[p] == '*') {
        starP = ++p;
        starT = t;
        continue;
      }
      if (pattern[p] == '[') {
        next = p + 1;
        fits = matchSet(pattern, next, text[t]);
      } else {
        next = p + 1;
        fits = pattern[p] == '?' || pattern[p] == text[t];
      }
    }
    if (fits) {
      p = next;
      ++t;
    } else if (starP != std::string_view::npos) {
      p = starP;
      t = ++starT;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*')
    ++p;
  return p == pattern.size();
}

//===----------------------------------------------------------------------===//
// Regular expressions
//===----------------------------------------------------------------------===//

namespace {
/// Rewrites the regular expressions that occur in exclude lists (literals, ".",
/// ".*", ".+", one level of (a|b)) as globs. A general matcher could be made to
/// run for ever by a file; this cannot.
class RegexToGlobs {
public:
  explicit RegexToGlobs(std::string_view regex) : rest(regex) {}

  bool run(std::vector<std::string> &out) {
    std::vector<std::string> globs = {""};
    bool anchored = false;
    if (startsWith(rest, "^"))
      rest.remove_prefix(1);
    while (!rest.empty()) {
      if (rest == "$") {
        anchored = true;
        break;
      }
      std::vector<std::string> choices;
      if (rest[0] == '(' ? !group(choices) : !atom(choices.emplace_back()))
        return false;
      if (globs.size() * choices.size() > 64)
        return false;
      std::vector<std::string> longer;
      for (const std::string &head : globs)
        for (const std::string &tail : choices)
          longer.push_back(head + tail);
      globs = std::move(longer);
    }
    for (std::string &glob : globs) {
      // The expression need only match the start of a name.
      if (!anchored && !endsWith(glob, "*"))
        glob += '*';
      out.push_back(std::move(glob));
    }
    return true;
  }

private:
  static bool quantifier(char c) {
    return c == '*' || c == '+' || c == '?' || c == '{';
  }

  /// Appends one character, escape or dot, with what may repeat a dot.
  bool atom(std::string &out) {
    char c = rest[0];
    rest.remove_prefix(1);
    if (c == '.') {
      if (rest.empty() || rest[0] != '*')
        out += '?';
      if (!rest.empty() && (rest[0] == '*' || rest[0] == '+')) {
        out += '*';
        rest.remove_prefix(1);
        if (startsWith(rest, "?")) // Greedy or not is the same to a match.
          rest.remove_prefix(1);
      }
      return rest.empty() || !quantifier(rest[0]);
    }
    if (c == '\\') {
      if (rest.empty() || (rest[0] != '.' && rest[0] != '-' && rest[0] != '_'))
        return false;
      c = rest[0];
      rest.remove_prefix(1);
    } else if (std::string_view("*+?{}[]()|^$").find(c) !=
               std::string_view::npos) {
      return false;
    }
    out += c;
    return rest.empty() || !quantifier(rest[0]);
  }

  bool group(std::vector<std::string> &out) {
    rest.remove_prefix(1);
    if (startsWith(rest, "?:"))
      rest.remove_prefix(2);
    out.emplace_back();
    while (!rest.empty() && rest[0] != ')') {
      if (rest[0] == '|') {
        rest.remove_prefix(1);
        out.emplace_back();
      } else if (!atom(out.back())) {
        return false;
      }
    }
    if (rest.empty())
      return false;
    rest.remove_prefix(1);
    return rest.empty() || !quantifier(rest[0]);
  }

  std::string_view rest;
};

/// A name under which programs fuse modules, and what it stands for in a file.
struct FusedName {
  std::string_view fused;
  std::vector<std::string_view> parts;
};

const std::vector<FusedName> &fusedNames() {
  static const std::vector<FusedName> names = {
      {".experts.gate_up_proj", {".experts.*.gate_proj", ".experts.*.up_proj"}},
      {".experts.down_proj", {".experts.*.down_proj"}},
      {".gate_up_proj", {".gate_proj", ".up_proj"}},
      {".fused_qkv_a_proj_with_mqa", {".q_a_proj", ".kv_a_proj_with_mqa"}},
      {".fused_qkv_a_proj", {".q_a_proj", ".kv_a_proj_with_mqa"}},
      {".indexer.wk_weights_proj", {".indexer.wk", ".indexer.weights_proj"}},
      // So spelt in the FP8 checkpoints of GLM-5.
      {".indexers_proj", {".indexer.weights_proj"}},
  };
  return names;
}
} // namespace

bool config::appendExclude(const std::string &entry,
                           std::vector<std::string> &out) {
  std::vector<std::string> globs;
  if (startsWith(entry, "re:")) {
    if (!RegexToGlobs(std::string_view(entry).substr(3)).run(globs))
      return false;
  } else {
    globs.push_back(entry);
  }
  for (std::string glob : globs) {
    constexpr std::string_view prefix = "language_model.";
    if (startsWith(glob, "model.language_model."))
      glob.replace(0, 6 + prefix.size(), "model.");
    else if (startsWith(glob, prefix))
      glob.erase(0, prefix.size());
    else if (glob == "language_model" || glob == "language_model*")
      glob.assign(1, '*');
    for (const FusedName &name : fusedNames()) {
      std::string_view stem(glob);
      std::string_view star = endsWith(stem, "*") ? "*" : "";
      stem.remove_suffix(star.size());
      if (!endsWith(stem, name.fused))
        continue;
      stem.remove_suffix(name.fused.size());
      for (std::string_view part : name.parts)
        out.push_back(std::string(stem) + std::string(part) +
                      std::string(star));
      break;
    }
    out.push_back(std::move(glob));
  }
  return true;
}

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

static bool excludes(const std::string &pattern, std::string_view module) {
  if (pattern.find_first_of("*?[") != std::string::npos)
    return globMatch(pattern, module);
  // A module and all that is inside it.
  if (startsWith(module, pattern))
    return module.size() == pattern.size() || module[pattern.size()] == '.';
  // A bare name such as "gate" means every module so called.
  if (pattern.find('.') != std::string::npos || pattern.empty())
    return false;
  std::string inner = "." + pattern;
  for (size_t at = module.find(inner); at != std::string_view::npos;
       at = module.find(inner, at + 1)) {
    size_t end = at + inner.size();
    if (end == module.size() || module[end] == '.')
      return true;
  }
  return false;
}

/// Modules that no producer quantizes, though few of them list them: they are
/// no linear layers in the producer's program, or are kept for their precision.
static bool neverQuantized(QuantizationConfig::Method method,
                           std::string_view name) {
  if (size_t dot = name.rfind('.'); dot != std::string_view::npos)
    name.remove_prefix(dot + 1);
  if (name == "gate" || name == "embed_tokens" || name == "eh_proj" ||
      name == "weights_proj" || endsWith(name, "norm"))
    return true;
  return method == QuantizationConfig::Method::Fp8Block &&
         (name == "lm_head" || name == "head");
}

/// Whether `pattern` may match a module whose name starts with `prefix`.
static bool mayMatchBelow(std::string_view pattern, std::string_view prefix) {
  for (size_t i = 0; i < std::min(pattern.size(), prefix.size()); ++i) {
    if (std::string_view("*?[").find(pattern[i]) != std::string_view::npos)
      return true;
    if (pattern[i] != prefix[i]) // A bare name means modules anywhere.
      return pattern.find('.') == std::string_view::npos;
  }
  return true;
}

/// "model.layers.12." of a module of layer 12, "" outside the layers.
static std::string_view layerPrefix(std::string_view module) {
  constexpr std::string_view layers = "model.layers.";
  if (!startsWith(module, layers))
    return "";
  return module.substr(0, module.find('.', layers.size()) + 1);
}

void ExpectedFormats::narrow(std::string_view prefix) {
  layer = prefix;
  exclude.clear();
  globs.clear();
  for (const std::string &pattern : config.exclude)
    if (prefix.empty() || mayMatchBelow(pattern, prefix))
      exclude.push_back(&pattern);
  for (const auto &glob : config.globs)
    if (prefix.empty() || mayMatchBelow(glob.first, prefix))
      globs.push_back(&glob);
}

Format ExpectedFormats::of(std::string_view module, Format base) {
  using Method = QuantizationConfig::Method;
  constexpr std::string_view textPrefix = "language_model.";
  if (startsWith(module, textPrefix))
    module.remove_prefix(textPrefix.size());
  if (config.method == Method::None || neverQuantized(config.method, module))
    return base;
  if (std::string_view prefix = layerPrefix(module); layer != prefix)
    narrow(prefix);
  for (const std::string *pattern : exclude)
    if (excludes(*pattern, module))
      return base;
  switch (config.method) {
  case Method::None:
    break;
  case Method::Fp8Block:
    return Format::FP8Block;
  case Method::Nvfp4:
    return Format::NVFP4;
  case Method::Int4Group:
    return Format::Int4G32;
  case Method::Mixed:
    if (auto at = config.modules.find(std::string(module));
        at != config.modules.end())
      return at->second;
    for (const auto *glob : globs)
      if (globMatch(glob->first, module))
        return glob->second;
    break;
  }
  return base;
}

Format QuantizationConfig::expectedFormat(const std::string &module,
                                          Format base) const {
  return ExpectedFormats(*this).of(module, base);
}

} // namespace mla
