//===- RegexTest.cpp - rewriting and limits of patterns -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Regex.h"
#include "runtime/tokenizer/Utf8.h"
#include <chrono>
#include <gtest/gtest.h>

using namespace mla;

namespace {

std::vector<std::string> split(const char *pattern, std::string_view text) {
  auto regex = Regex::compile(pattern);
  EXPECT_TRUE(regex.ok()) << regex.status().message();
  if (!regex.ok())
    return {};
  RegexScratch scratch;
  std::vector<std::string_view> out;
  Status s = regex->split(text, scratch, out);
  EXPECT_TRUE(s.ok()) << s.message();
  return {out.begin(), out.end()};
}
using Pieces = std::vector<std::string>;

TEST(TokenizerRegex, SpaceIsUnicodeWhiteSpace) {
  // PCRE2's own \s would match the Mongolian vowel separator.
  EXPECT_EQ(split("\\s", "a\u180Eb"), (Pieces{"a\u180Eb"}));
  EXPECT_EQ(split("[^\\s]+", "a\u180Eb\u3000c"),
            (Pieces{"a\u180Eb", "\u3000", "c"}));
  EXPECT_EQ(split("\\s+", "a\u0085\u00A0b"),
            (Pieces{"a", "\u0085\u00A0", "b"}));
}

TEST(TokenizerRegex, ScriptIsNotScriptExtensions) {
  // U+3001 is of script Common; Han is among its extensions only.
  EXPECT_EQ(split("\\p{Han}+", "漢、字"), (Pieces{"漢", "、", "字"}));
}

/// Every character, in the order of code points.
std::string allCharacters() {
  std::string text;
  for (char32_t c = 0; c <= 0x10FFFF; ++c)
    if (c < 0xD800 || c > 0xDFFF)
      appendCodePoint(c, text);
  return text;
}

TEST(TokenizerRegex, IntersectionsAreOneClassWherePossible) {
  // Against the general form, which a nested class enforces.
  const std::string text = allCharacters();
  for (auto [single, general] :
       {std::pair("[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]+",
                  "(?:(?=[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}])[^\\p{Han}])+"),
        std::pair("[\\p{L}\\p{Nd}&&[^\\p{Greek}a-m]]+",
                  "(?:(?=[\\p{L}\\p{Nd}])[^\\p{Greek}a-m])+"),
        std::pair("[^\\p{C}\\p{Zs}&&[^\\x{20}-\\x{FF}]]+",
                  "(?:(?![\\p{C}\\p{Zs}])(?:.|\\n)|[\\x{20}-\\x{FF}])+"),
        std::pair("[\\p{L}\\p{P}&&[^\\p{Han}]&&\\p{Lo}\\p{Po}]+",
                  "(?:(?![\\p{Han}])[\\p{Lo}\\p{Po}])+")}) {
    auto rewritten = translateOniguruma(single);
    ASSERT_TRUE(rewritten.ok());
    EXPECT_EQ(rewritten->find('('), std::string::npos) << *rewritten;
    Pieces pieces = split(single, text);
    EXPECT_GT(pieces.size(), 3u);
    EXPECT_EQ(pieces, split(general, text)) << single;
  }
  for (const char *other :
       {"(?i:[\\p{Lu}&&[^\\p{Han}]])", "[a-z&&[^aeiou]]",
        "(?i)[\\p{Lu}&&[^\\p{Han}]]", "(?i:a(b)[\\p{Lu}&&[^\\p{Han}]])"}) {
    auto rewritten = translateOniguruma(other);
    ASSERT_TRUE(rewritten.ok());
    EXPECT_NE(rewritten->find("(?="), std::string::npos) << *rewritten;
  }
  auto after = translateOniguruma("(?i:'s)?[\\p{Lu}&&[^\\p{Han}]]");
  ASSERT_TRUE(after.ok());
  EXPECT_EQ(after->find("(?="), std::string::npos) << *after;
}

TEST(TokenizerRegex, EmptyMatchesOnlyCut) {
  EXPECT_EQ(split("", "aé漢"), (Pieces{"a", "é", "漢"}));
  EXPECT_EQ(split("x*", ""), (Pieces{}));
  EXPECT_EQ(split("x*", "axxb"), (Pieces{"a", "xx", "b"}));
}

TEST(TokenizerRegex, SeesNothingOutsideItsText) {
  std::string text = "ab  cd";
  auto regex = Regex::compile("\\s+(?!\\S)|\\s+");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  std::vector<std::string_view> out;
  // The lookahead must find the end of the piece, not the "c" behind it.
  ASSERT_TRUE(
      regex->split(std::string_view(text).substr(0, 4), scratch, out).ok());
  EXPECT_EQ(Pieces(out.begin(), out.end()), (Pieces{"ab", "  "}));
}

TEST(TokenizerRegex, RefusesWhatItCannotRewrite) {
  for (const char *pattern :
       {"(a)\\1",      "(?<n>a)", "\\k<n>",  "(?i)a|(?x) b", "a(?i)b",
        "(?m:.)",      "(*FAIL)", "(?#x)",   "a{2}+",        "a{2}?",
        "[[:alpha:]]", "\\pL",    "\\X",     "\\R",          "\\K",
        "\\Qa\\E",     "\\G",     "\\xE4",   "\\p{Alnum}",   "\\p{Nonsense}",
        "[]a]",        "[a&&]",   "\\y",     "\\8",          "(?R)",
        "(?~a)",       "[\\A]",   "\\p{Xsp}"}) {
    auto regex = Regex::compile(pattern);
    ASSERT_FALSE(regex.ok()) << pattern;
    EXPECT_EQ(regex.status().code(), StatusCode::Unsupported) << pattern;
    EXPECT_NE(regex.status().message().find(pattern), std::string::npos);
  }
}

TEST(TokenizerRegex, ReportsBadSyntax) {
  for (const char *pattern :
       {"(", ")", "[a", "[", "a\\", "*a", "[z-a]", "\\x{", "\\x{110000}",
        "\\u12", "\\p{L", "(?<=a*)b", "a{70000}", "\\p{%}", "[a-", "\\p{}"}) {
    auto regex = Regex::compile(pattern);
    EXPECT_FALSE(regex.ok()) << pattern;
  }
  std::string deep(100000, '[');
  EXPECT_FALSE(Regex::compile(deep).ok());
  EXPECT_FALSE(Regex::compile(std::string(60000, '[')).ok());
  EXPECT_FALSE(Regex::compile(std::string(60000, '(')).ok());
}

TEST(TokenizerRegex, GivesUpInsteadOfHanging) {
  auto regex = Regex::compile("(?:a+)+b");
  ASSERT_TRUE(regex.ok());
  RegexScratch scratch;
  std::vector<std::string_view> out;
  std::string text(5000, 'a');
  auto start = std::chrono::steady_clock::now();
  // Required characters would end the search before it began.
  text += "cb";
  Status s = regex->split(text, scratch, out);
  EXPECT_EQ(s.code(), StatusCode::Exhausted);
  EXPECT_NE(s.message().find("(?:a+)+b"), std::string::npos);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(TokenizerRegex, LongRunsAreFine) {
  std::string text(1 << 20, 'a');
  // A repeated group keeps memory for each turn, so it has its limit.
  EXPECT_EQ(split("(?:a|b)+", text.substr(0, 1 << 16)).size(), 1u);
  EXPECT_EQ(split("\\p{L}+", text).size(), 1u);
  EXPECT_EQ(
      split("\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+", std::string(1 << 20, ' ') + "x")
          .size(),
      3u);
}

} // namespace
