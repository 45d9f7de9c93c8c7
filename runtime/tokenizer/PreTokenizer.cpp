//===- PreTokenizer.cpp - text to words -----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/PreTokenizer.h"

namespace mla {

Status notSupported(JsonValue at, const std::string &what) {
  return unsupported(at.file() + ": at " + at.pointer() + ": " + what +
                     " is not supported");
}

namespace {
// What ByteLevel with use_regex splits by (GPT-2's pattern).
constexpr std::string_view byteLevelPattern =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";
constexpr size_t maxStages = 64;

void splitLiteral(std::string_view text, std::string_view literal,
                  std::vector<std::string_view> &out) {
  size_t done = 0;
  for (size_t at; (at = text.find(literal, done)) != std::string_view::npos;) {
    if (at > done)
      out.push_back(text.substr(done, at - done));
    out.push_back(text.substr(at, literal.size()));
    done = at + literal.size();
  }
  if (done < text.size())
    out.push_back(text.substr(done));
}
} // namespace

Status PreTokenizer::readPattern(std::string_view pattern) {
  MLA_ASSIGN_OR_RETURN(Regex regex, Regex::compile(pattern));
  stages.emplace_back(std::move(regex));
  return {};
}

Status PreTokenizer::addRegex(JsonValue where, std::string_view pattern) {
  return readPattern(pattern).withContext(where.file() + ": at " +
                                          where.pointer());
}

Status PreTokenizer::readSplit(JsonValue value) {
  JsonValue pattern = value["pattern"];
  std::string behavior = value["behavior"].string();
  bool invert = value["invert"].present() && value["invert"].boolean();
  if (!behavior.empty() && behavior != "Isolated")
    return notSupported(value["behavior"], "the behavior \"" + behavior + "\"");
  if (invert)
    return notSupported(value["invert"], "an inverted split");
  if (pattern["Regex"].present())
    return addRegex(pattern["Regex"], pattern["Regex"].string());
  if (!pattern["String"].present()) {
    pattern.fail("an object with \"Regex\" or \"String\"");
    return {};
  }
  std::string literal = pattern["String"].string();
  if (literal.empty())
    pattern["String"].fail("a text that is not empty");
  else
    stages.emplace_back(std::move(literal));
  return {};
}

Status PreTokenizer::readByteLevel(JsonValue value) {
  sawByteLevel = true;
  if (value["add_prefix_space"].boolean())
    stages.emplace_back(PrefixSpace{});
  // Files from before the option existed mean true.
  if (value["use_regex"].absent() || value["use_regex"].boolean())
    return addRegex(value, byteLevelPattern);
  return {};
}

Status PreTokenizer::readOne(JsonValue value, bool last, int depth) {
  if (stages.size() > maxStages)
    return notSupported(value, "a chain this long");
  std::string type = value["type"].string();
  if (type == "Sequence") {
    std::vector<JsonValue> all = value["pretokenizers"].elements();
    for (size_t i = 0; i < all.size(); ++i)
      MLA_RETURN_IF_ERROR(
          readOne(all[i], last && i + 1 == all.size(), depth + 1));
    return {};
  }
  if (type == "Split")
    return readSplit(value);
  if (type == "Digits")
    return addRegex(value, value["individual_digits"].boolean() ? "\\p{N}"
                                                                : "\\p{N}+");
  if (type == "ByteLevel") {
    // What came after it would see spelled bytes, not text.
    if (!last)
      return notSupported(value, "a ByteLevel that is not the last");
    loneByteLevel = depth == 0;
    return readByteLevel(value);
  }
  if (type.empty())
    return {}; // Recorded in the document.
  return notSupported(value["type"], "the pre-tokenizer \"" + type + "\"");
}

Status PreTokenizer::read(JsonValue value) {
  if (!value.present())
    return notSupported(value, "a tokenizer without ByteLevel");
  MLA_RETURN_IF_ERROR(readOne(value, true, 0));
  if (!sawByteLevel)
    return notSupported(value, "a tokenizer without ByteLevel");
  return {};
}

void PreTokenizer::overridePrefixSpace(bool add) {
  if (!loneByteLevel)
    return;
  bool has = !stages.empty() && std::holds_alternative<PrefixSpace>(stages[0]);
  if (add && !has)
    stages.emplace(stages.begin(), PrefixSpace{});
  else if (!add && has)
    stages.erase(stages.begin());
}

Status PreTokenizer::split(std::string_view text, Scratch &scratch,
                           std::vector<std::string_view> &words) const {
  words.clear();
  if (!text.empty())
    words.push_back(text);
  for (const Stage &stage : stages) {
    std::vector<std::string_view> &next = scratch.other;
    next.clear();
    for (std::string_view piece : words) {
      if (auto *regex = std::get_if<Regex>(&stage)) {
        MLA_RETURN_IF_ERROR(regex->split(piece, scratch.regex, next));
      } else if (auto *literal = std::get_if<std::string>(&stage)) {
        splitLiteral(piece, *literal, next);
      } else if (piece.front() == ' ') {
        next.push_back(piece);
      } else {
        scratch.owned.emplace_back(1, ' ').append(piece);
        next.push_back(scratch.owned.back());
      }
    }
    words.swap(next);
  }
  return {};
}

} // namespace mla
