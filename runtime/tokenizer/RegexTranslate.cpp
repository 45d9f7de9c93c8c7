//===- RegexTranslate.cpp - Oniguruma syntax to PCRE2 syntax --------------===//
//
// Part of mla. A single pass over the pattern. Whatever is copied unchanged
// means the same in both syntaxes; see Regex.h for what is rewritten.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Regex.h"
#include "runtime/tokenizer/RegexProperties.h"
#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

namespace mla {

namespace {
// Oniguruma's \w; PCRE2's own lacks marks and most connectors.
constexpr std::string_view wordItems = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
// ... and what it takes along outside of brackets only (a quirk of its Latin-1
// table, which published ids depend on): superscripts and fractions.
constexpr std::string_view wordQuirk = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
constexpr std::string_view hexItems = "0-9A-Fa-f";
constexpr int maxNesting = 64;

std::string bracket(std::string_view items, bool negated = false) {
  std::string s(negated ? "[^" : "[");
  return s.append(items).append("]");
}

bool isAlnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
         (c >= 'a' && c <= 'z');
}
bool isHex(char c) {
  return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') ||
         (c >= 'a' && c <= 'f');
}

class Translator {
public:
  explicit Translator(std::string_view pattern) : in(pattern) {}
  Result<std::string> run();

private:
  Status group();
  Status interval();
  /// What an escape means. `set` is what stands inside brackets; `negated` asks
  /// for the complement of `set`; `outside` is set for what is no set at all.
  struct Escape {
    std::string set, outside;
    bool negated = false;
  };
  Result<Escape> escape(bool inClass);
  Result<std::string> property();
  Result<std::string> codePoint(char kind);
  /// What stands on one side of "&&" in a class, or the whole of it.
  struct Operand {
    std::string items;
    std::vector<std::string> nested;
    std::optional<std::string> complement() const;
  };
  Result<std::string> charClass(int depth);

  bool at(std::string_view s) const { return in.substr(pos, s.size()) == s; }
  Status refuse(const std::string &what) const {
    return unsupported(what + " at byte " + std::to_string(pos) +
                       " is not supported");
  }

  std::string_view in;
  size_t pos = 0;
  std::string out;
  std::vector<bool> caseless{false}; ///< of the groups that are open
};

Result<std::string> Translator::run() {
  while (pos < in.size()) {
    char c = in[pos];
    switch (c) {
    case '\\': {
      MLA_ASSIGN_OR_RETURN(Escape e, escape(false));
      if (!e.outside.empty())
        out += e.outside;
      else
        out += bracket(e.set, e.negated);
      break;
    }
    case '[': {
      MLA_ASSIGN_OR_RETURN(std::string s, charClass(0));
      out += s;
      break;
    }
    case '(':
      MLA_RETURN_IF_ERROR(group());
      break;
    case ')':
      out += c;
      ++pos;
      if (caseless.size() > 1) // Else PCRE2 reports it.
        caseless.pop_back();
      break;
    case '{':
      MLA_RETURN_IF_ERROR(interval());
      break;
    case '^':
      out += "(?m:^)";
      ++pos;
      break;
    case '$':
      out += "(?m:$)";
      ++pos;
      break;
    default:
      out += c;
      ++pos;
    }
  }
  return std::move(out);
}

Status Translator::group() {
  if (at("(*"))
    return refuse("\"(*\"");
  // "(?i)" opens no group.
  if (!at("(?i)"))
    caseless.push_back(caseless.back());
  if (!at("(?")) {
    out += in[pos++];
    return {};
  }
  for (std::string_view plain : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"}) {
    if (at(plain)) {
      out += plain;
      pos += plain.size();
      return {};
    }
  }
  for (std::string_view flag : {"(?i:", "(?-i:"}) {
    if (at(flag)) {
      caseless.back() = flag == "(?i:";
      out += flag;
      pos += flag.size();
      return {};
    }
  }
  // In the middle of a pattern, "(?i)" encloses the alternatives after it in
  // Oniguruma but not in PCRE2; at the front there is no difference.
  if (at("(?i)") && pos == 0) {
    caseless.back() = true;
    out += "(?i)";
    pos += 4;
    return {};
  }
  return refuse("\"" + std::string(in.substr(pos, 4)) + "\"");
}

Status Translator::interval() {
  size_t p = pos + 1;
  auto digits = [&] {
    size_t begin = p;
    while (p < in.size() && in[p] >= '0' && in[p] <= '9')
      ++p;
    return std::string(in.substr(begin, p - begin));
  };
  std::string low = digits();
  bool comma = p < in.size() && in[p] == ',';
  std::string high;
  if (comma) {
    ++p;
    high = digits();
  }
  if (p >= in.size() || in[p] != '}' || (low.empty() && high.empty())) {
    out += "\\{"; // No interval: both take it literally.
    ++pos;
    return {};
  }
  ++p;
  // A '+' after it is "possessive" to PCRE2 and "once or more" to Oniguruma; a
  // '?' after a fixed count is "lazy" to the one, "or not at all" to the other.
  if (p < in.size() && (in[p] == '+' || (in[p] == '?' && !comma)))
    return refuse("\"" + std::string(in.substr(pos, p + 1 - pos)) + "\"");
  out.append("{").append(low.empty() ? "0" : low);
  if (comma)
    out.append(",").append(high);
  out += '}';
  pos = p;
  return {};
}

Result<Translator::Escape> Translator::escape(bool inClass) {
  if (pos + 1 >= in.size())
    return invalid("the pattern ends with a backslash");
  char c = in[pos + 1];
  Escape e;
  auto set = [&](std::string_view items, bool negated = false) {
    e.set = items;
    e.negated = negated;
    pos += 2;
    return e;
  };
  auto outside = [&](std::string text) {
    e.outside = std::move(text);
    pos += 2;
    return e;
  };
  switch (c) {
  case 's':
    return set("\\p{White_Space}");
  case 'S':
    return set("\\P{White_Space}");
  case 'd':
    return set("\\p{Nd}");
  case 'D':
    return set("\\P{Nd}");
  case 'w':
  case 'W':
    set(wordItems, c == 'W');
    if (!inClass)
      e.set += wordQuirk;
    return e;
  case 'h':
    return set(hexItems);
  case 'H':
    return set(hexItems, true);
  case 'v':
    return set("\\x{0B}");
  case 'n':
  case 'r':
  case 't':
  case 'f':
  case 'a':
  case 'e':
    return set(in.substr(pos, 2));
  case 'p':
  case 'P': {
    MLA_ASSIGN_OR_RETURN(e.set, property());
    return e;
  }
  case 'x':
  case 'u': {
    MLA_ASSIGN_OR_RETURN(e.set, codePoint(c));
    return e;
  }
  case 'b':
    if (inClass)
      return set("\\x{08}");
    {
      std::string w = bracket(std::string(wordItems).append(wordQuirk));
      return outside("(?:(?<=" + w + ")(?!" + w + ")|(?<!" + w + ")(?=" + w +
                     "))");
    }
  case 'A':
  case 'z':
  case 'Z':
    if (!inClass)
      return outside(std::string(in.substr(pos, 2)));
    break;
  default:
    break;
  }
  if (isAlnum(c))
    return refuse("the escape \"\\" + std::string(1, c) + "\"");
  if (static_cast<unsigned char>(c) >= 0x80) {
    // The backslash is idle; the character follows as itself.
    ++pos;
    size_t length = 1;
    while (pos + length < in.size() && (in[pos + length] & 0xC0) == 0x80)
      ++length;
    e.set = in.substr(pos, length);
    pos += length;
    return e;
  }
  return set(in.substr(pos, 2));
}

Result<std::string> Translator::codePoint(char kind) {
  size_t p = pos + 2;
  std::string digits;
  bool braces = kind == 'x' && p < in.size() && in[p] == '{';
  if (braces)
    ++p;
  size_t most = braces ? 8 : kind == 'u' ? 4 : 2;
  while (p < in.size() && isHex(in[p]) && digits.size() < most)
    digits += in[p++];
  bool closed = !braces || (p < in.size() && in[p] == '}');
  if (digits.empty() || !closed || (kind == 'u' && digits.size() != 4))
    return invalid("wrong hexadecimal escape at byte " + std::to_string(pos));
  // "\xE4" is one byte of a character to Oniguruma, a character to PCRE2.
  if (!braces && kind == 'x' && digits.size() == 2 && digits[0] > '7')
    return refuse("the byte escape \"\\x" + digits + "\"");
  pos = p + (braces ? 1 : 0);
  return "\\x{" + digits + "}";
}

Result<std::string> Translator::property() {
  bool negated = in[pos + 1] == 'P';
  size_t close = in.find('}', pos);
  if (pos + 2 >= in.size() || in[pos + 2] != '{' ||
      close == std::string_view::npos)
    return refuse("a property without braces");
  std::string_view name = in.substr(pos + 3, close - (pos + 3));
  if (!name.empty() && name.front() == '^') {
    negated = !negated;
    name.remove_prefix(1);
  }
  Result<std::string> item = translateProperty(name, negated);
  if (!item.ok())
    return item.status().withContext("byte " + std::to_string(pos));
  pos = close + 1;
  return item;
}

/// The items of the characters that are not of this operand, if it is "[^...]"
/// alone or consists of categories.
std::optional<std::string> Translator::Operand::complement() const {
  if (nested.empty() && !items.empty())
    return otherCategories(items);
  // Whatever is no plain class begins with "(?".
  if (items.empty() && nested.size() == 1 && nested[0].starts_with("[^"))
    return nested[0].substr(2, nested[0].size() - 3);
  return std::nullopt;
}

/// One bracketed class. Oniguruma's nested and intersected classes become
/// lookaheads and alternatives, which for single characters mean the same.
Result<std::string> Translator::charClass(int depth) {
  if (depth >= maxNesting)
    return refuse("a class nested this deep");
  ++pos; // '['
  bool negated = at("^");
  if (negated)
    ++pos;
  if (at("]"))
    return refuse("\"]\" as the first of a class");

  std::vector<Operand> operands(1);
  while (true) {
    if (pos >= in.size())
      return invalid("a class is not closed");
    Operand &operand = operands.back();
    char c = in[pos];
    if (c == ']') {
      ++pos;
      break;
    }
    if (at("&&")) {
      operands.emplace_back();
      pos += 2;
    } else if (at("[:")) {
      return refuse("a POSIX bracket");
    } else if (c == '[') {
      MLA_ASSIGN_OR_RETURN(std::string s, charClass(depth + 1));
      operand.nested.push_back(std::move(s));
    } else if (c == '\\') {
      MLA_ASSIGN_OR_RETURN(Escape e, escape(true));
      if (e.negated)
        operand.nested.push_back(bracket(e.set, true));
      else
        operand.items += e.set;
    } else {
      operand.items += c == '^' ? "\\^" : std::string(1, c);
      ++pos;
    }
  }

  if (operands.size() == 1 && operands[0].nested.empty())
    return bracket(operands[0].items, negated);
  // An intersection is the complement of what its sides lack together. Where
  // that can be said, it is one class; a long run of it then takes no memory.
  // (Without regard to case, the complement of a category is another matter.)
  std::string lacking;
  bool single = operands.size() > 1 && !caseless.back();
  for (const Operand &operand : operands) {
    std::optional<std::string> items = operand.complement();
    single = single && items;
    if (single)
      lacking += *items;
  }
  if (single && !lacking.empty())
    return bracket(lacking, !negated);

  std::string body;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Operand &operand = operands[i];
    std::string one;
    if (!operand.items.empty())
      one = bracket(operand.items);
    for (const std::string &n : operand.nested)
      one += (one.empty() ? "" : "|") + n;
    if (one.empty())
      return refuse("an empty side of \"&&\"");
    body += (i + 1 < operands.size() ? "(?=" : "(?:") + one + ")";
  }
  return negated ? "(?:(?!" + body + ")(?s:.))" : "(?:" + body + ")";
}
} // namespace

Result<std::string> translateOniguruma(std::string_view pattern) {
  return Translator(pattern).run();
}

} // namespace mla
