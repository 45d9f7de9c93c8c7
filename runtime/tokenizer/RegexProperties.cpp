//===- RegexProperties.cpp - names of character properties ----------------===//
//
// Part of mla. Whether PCRE2 knows a script or a binary property is asked of
// it, by compiling a pattern; only names that differ stand in a table.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/RegexProperties.h"
#include <algorithm>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace mla {

namespace {
struct Name {
  std::string_view from, to;
};
// Names that PCRE2 does not know or understands otherwise, lower case, without
// separators.
constexpr Name propertyNames[] = {
    {"letter", "L"},
    {"casedletter", "L&"},
    {"lc", "L&"},
    {"uppercaseletter", "Lu"},
    {"lowercaseletter", "Ll"},
    {"titlecaseletter", "Lt"},
    {"modifierletter", "Lm"},
    {"otherletter", "Lo"},
    {"mark", "M"},
    {"combiningmark", "M"},
    {"nonspacingmark", "Mn"},
    {"spacingmark", "Mc"},
    {"enclosingmark", "Me"},
    {"number", "N"},
    {"decimalnumber", "Nd"},
    {"letternumber", "Nl"},
    {"othernumber", "No"},
    {"punctuation", "P"},
    {"connectorpunctuation", "Pc"},
    {"dashpunctuation", "Pd"},
    {"openpunctuation", "Ps"},
    {"closepunctuation", "Pe"},
    {"initialpunctuation", "Pi"},
    {"finalpunctuation", "Pf"},
    {"otherpunctuation", "Po"},
    {"symbol", "S"},
    {"mathsymbol", "Sm"},
    {"currencysymbol", "Sc"},
    {"modifiersymbol", "Sk"},
    {"othersymbol", "So"},
    {"separator", "Z"},
    {"spaceseparator", "Zs"},
    {"lineseparator", "Zl"},
    {"paragraphseparator", "Zp"},
    {"other", "C"},
    {"control", "Cc"},
    {"format", "Cf"},
    {"unassigned", "Cn"},
    {"privateuse", "Co"},
    {"surrogate", "Cs"},
    {"digit", "Nd"},
    {"space", "White_Space"},
    {"whitespace", "White_Space"},
    {"alpha", "Alphabetic"},
    {"upper", "Uppercase"},
    {"lower", "Lowercase"},
    {"cntrl", "Cc"},
};
// Names whose sets differ between the two, or which only one knows.
constexpr std::string_view refusedNames[] = {
    "alnum", "punct", "graph", "print", "xdigit", "word", "blank",
    "ascii", "xan",   "xsp",   "xps",   "xwd",    "xuc"};
constexpr std::string_view categories =
    " C Cc Cf Cn Co Cs L Ll Lm Lo Lt Lu M Mc Me Mn N Nd Nl No P Pc Pd Pe Pf Pi "
    "Po Ps S Sc Sk Sm So Z Zl Zp Zs ";

std::string propertyItem(std::string_view name, bool negated = false) {
  std::string s(negated ? "\\P{" : "\\p{");
  return s.append(name).append("}");
}

bool compiles(const std::string &pattern) {
  int error;
  PCRE2_SIZE offset;
  pcre2_code *code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()),
                    pattern.size(), PCRE2_UTF, &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}
} // namespace

Result<std::string> translateProperty(std::string_view name, bool negated) {
  std::string plain;
  for (char c : name) {
    if (c == ' ' || c == '_' || c == '-')
      continue;
    if (!((c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
          (c >= 'a' && c <= 'z')))
      return invalid("wrong property name \"" + std::string(name) + "\"");
    plain += static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
  }
  std::string found;
  for (const Name &n : propertyNames)
    if (plain == n.from)
      found = n.to;
  if (found.empty() && (plain.size() == 1 || plain.size() == 2)) {
    std::string category = plain;
    if (category[0] >= 'a')
      category[0] = static_cast<char>(category[0] - 'a' + 'A');
    if (categories.find(" " + category + " ") != std::string_view::npos)
      found = category;
  }
  bool refused = std::find(std::begin(refusedNames), std::end(refusedNames),
                           plain) != std::end(refusedNames);
  // A script name alone means the script's extensions to PCRE2.
  if (found.empty() && !refused && !plain.empty()) {
    if (std::string script = "sc:" + plain; compiles(propertyItem(script)))
      found = script;
    else if (compiles(propertyItem(plain)))
      found = plain;
  }
  if (found.empty())
    return unsupported("the property \"" + std::string(name) +
                       "\" is not supported");
  return propertyItem(found, negated);
}

std::optional<std::string> otherCategories(std::string_view items) {
  std::string given = " "; // " Lu M "
  while (!items.empty()) {
    size_t close = items.find('}');
    if (!items.starts_with("\\p{") || close == std::string_view::npos)
      return std::nullopt;
    std::string name(items.substr(3, close - 3));
    if (categories.find(" " + name + " ") == std::string_view::npos)
      return std::nullopt;
    given += name + " ";
    items.remove_prefix(close + 1);
  }
  auto has = [&](std::string_view name) {
    return given.find(std::string(" ").append(name) + " ") != std::string::npos;
  };
  // `categories` has each major category before its parts.
  std::string others;
  bool majorGiven = false, partGiven = false;
  for (std::string_view rest = categories.substr(1); !rest.empty();) {
    std::string_view name = rest.substr(0, rest.find(' '));
    rest.remove_prefix(name.size() + 1);
    if (name.size() == 1) {
      majorGiven = has(name);
      // Whole where no part of it was given.
      partGiven =
          given.find(std::string(" ").append(name)) != std::string::npos;
      if (!partGiven)
        others += propertyItem(name);
    } else if (partGiven && !majorGiven && !has(name)) {
      others += propertyItem(name);
    }
  }
  return others;
}

} // namespace mla
