//===- AddedTokens.cpp - tokens that stand in the text --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/AddedTokens.h"
#include "runtime/tokenizer/Characters.h"
#include "runtime/tokenizer/Utf8.h"
#include <algorithm>

namespace mla {

namespace {
char32_t lastCharacter(std::string_view text, size_t &length) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (text[begin] & 0xC0) == 0x80)
    --begin;
  length = text.size() - begin;
  return stepUtf8(text.substr(begin)).codePoint;
}
bool endsWithWord(std::string_view text) {
  size_t length;
  return !text.empty() && isWordCharacter(lastCharacter(text, length));
}
bool beginsWithWord(std::string_view text) {
  return !text.empty() && isWordCharacter(stepUtf8(text).codePoint);
}
size_t spaceAtEnd(std::string_view text) {
  size_t total = 0, length;
  while (!text.empty() && isWhiteSpace(lastCharacter(text, length))) {
    total += length;
    text.remove_suffix(length);
  }
  return total;
}
size_t spaceAtBegin(std::string_view text) {
  size_t total = 0;
  while (!text.empty()) {
    Utf8Step step = stepUtf8(text);
    if (!isWhiteSpace(step.codePoint))
      break;
    total += step.length;
    text.remove_prefix(step.length);
  }
  return total;
}
} // namespace

void AddedTokens::Matcher::add(std::string_view content, int32_t token) {
  first.set(static_cast<unsigned char>(content[0]));
  uint32_t node = 0;
  for (char c : content) {
    uint64_t edge = uint64_t(node) << 8 | static_cast<unsigned char>(c);
    auto [it, added] =
        edges.try_emplace(edge, static_cast<uint32_t>(tokenAt.size()));
    if (added)
      tokenAt.push_back(-1);
    node = it->second;
  }
  tokenAt[node] = token;
}

int32_t AddedTokens::Matcher::match(std::string_view text) const {
  int32_t found = -1;
  uint32_t node = 0;
  for (char c : text) {
    auto it = edges.find(uint64_t(node) << 8 | static_cast<unsigned char>(c));
    if (it == edges.end())
      break;
    node = it->second;
    if (tokenAt[node] >= 0)
      found = tokenAt[node];
  }
  return found;
}

void AddedTokens::add(std::string_view content, int32_t id,
                      AddedTokenFlags flags) {
  Matcher &matcher = flags.normalized ? normalized : exact;
  matcher.add(content, static_cast<int32_t>(tokens.size()));
  tokens.push_back({id, static_cast<uint32_t>(content.size()), flags});
}

void AddedTokens::splitOne(const Matcher &matcher, std::string_view text,
                           bool parseSpecial, std::vector<Segment> &out) const {
  size_t done = 0; // Everything before is in `out`.
  for (size_t pos = 0; pos < text.size();) {
    int32_t index =
        matcher.begins(text[pos]) ? matcher.match(text.substr(pos)) : -1;
    if (index < 0) {
      ++pos;
      continue;
    }
    const Token &token = tokens[index];
    size_t begin = pos, end = pos + token.length;
    // A match that is not wanted still covers its text: a shorter token in it
    // is not looked for.
    pos = end;
    if (!parseSpecial && token.flags.special)
      continue;
    if (token.flags.singleWord && (endsWithWord(text.substr(0, begin)) ||
                                   beginsWithWord(text.substr(end))))
      continue;
    if (token.flags.lstrip && begin > done)
      begin -= spaceAtEnd(text.substr(done, begin - done));
    if (token.flags.rstrip)
      end += spaceAtBegin(text.substr(end));
    // A token before may have taken white space with which this one begins.
    begin = std::max(begin, done);
    if (done < begin)
      out.push_back({text.substr(done, begin - done), -1});
    out.push_back({text.substr(begin, std::max(begin, end) - begin), token.id});
    done = std::max(done, end);
  }
  if (done < text.size())
    out.push_back({text.substr(done), -1});
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text,
                                                     bool parseSpecial) const {
  std::vector<Segment> out;
  if (text.empty())
    return out;
  splitOne(exact, text, parseSpecial, out);
  if (normalized.empty())
    return out;
  std::vector<Segment> all;
  for (const Segment &s : out) {
    if (s.id >= 0)
      all.push_back(s);
    else
      splitOne(normalized, s.text, parseSpecial, all);
  }
  return all;
}

} // namespace mla
