//===- ExprTest.cpp - expressions over step symbols -----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <gtest/gtest.h>
#include <random>

using namespace mla;
using namespace mla::plan;

namespace {

SymbolValues symbols() {
  SymbolValues v;
  v[Symbol::Tokens] = 7;
  v[Symbol::Sequences] = 3;
  v[Symbol::Outputs] = 2;
  v[Symbol::Pages] = 5;
  v[Symbol::Capacity] = 100;
  v[Symbol::Rank] = 3;
  return v;
}

TEST(Expr, Evaluates) {
  const std::pair<const char *, int64_t> cases[] = {
      {"0", 0},
      {"-5", -5},
      {"tokens", 7},
      {"sequences+outputs*pages", 13},
      {"(sequences + outputs) * pages", 25},
      {"tokens - 1 - 2", 4},
      {"tokens - (1 - 2)", 8},
      {"tokens--1", 8},
      {"min(tokens * 8, 384) * 16", 896},
      {"max(1, min(2, 3))", 2},
      {"ceildiv(tokens, 2)", 4},
      {"ceildiv(0 - tokens, 2)", -3},
      {"ceildiv(8, 2)", 4},
      {"capacity * 64", 6400},
      {"min(rank * 8, 30 - rank)", 24},
      {"9223372036854775807", INT64_MAX},
      {"-9223372036854775808", INT64_MIN},
      {"  tokens  ", 7},
  };
  for (auto [text, value] : cases) {
    Result<int64_t> result = expr(text).evaluate(symbols());
    ASSERT_TRUE(result.ok()) << text << ": " << result.status().message();
    EXPECT_EQ(*result, value) << text;
  }
}

TEST(Expr, PrintsCanonically) {
  const std::pair<const char *, const char *> cases[] = {
      {"((tokens))", "tokens"},
      {"(tokens*8)+1", "tokens * 8 + 1"},
      {"tokens*(8+1)", "tokens * (8 + 1)"},
      {"tokens+(pages+1)", "tokens + (pages + 1)"},
      {"(tokens+pages)+1", "tokens + pages + 1"},
      {"tokens-(pages-1)", "tokens - (pages - 1)"},
      {"tokens*(pages*2)", "tokens * (pages * 2)"},
      {"tokens- -1", "tokens - -1"},
      {"min( tokens ,max(1,(2)))", "min(tokens, max(1, 2))"},
      {"007", "7"},
  };
  for (auto [text, canonical] : cases) {
    EXPECT_EQ(expr(text).str(), canonical);
    EXPECT_EQ(expr(canonical), expr(text));
  }
  EXPECT_EQ(Expr().str(), "0");
  EXPECT_EQ(Expr(Symbol::Capacity).str(), "capacity");
}

TEST(Expr, RefusesBadText) {
  const std::pair<const char *, const char *> cases[] = {
      {"", "expected an integer, a symbol, a function or '(', found the end"},
      {"tokens +", "found the end"},
      {"tokens pages", "expected an operator or the end, found \"p\""},
      {"(tokens", "expected ')', found the end"},
      {"tokens)", "expected an operator or the end, found \")\""},
      {"tokens / 2", "found \"/\" at column 8"},
      {"batch", "expected a symbol or a function, found \"batch\""},
      {"min(1)", "expected ',', found \")\""},
      {"min(1, 2, 3)", "expected ')', found \",\""},
      {"min", "expected '(', found the end"},
      {"2tokens", "expected an operator after the integer"},
      {"- 5", "found \"-\""},
      {"-tokens", "found \"-\""},
      {"9223372036854775808", "does not fit 64 bits"},
      {"tokens\ttokens", "found \"?\""},
      {"t\xc3\xb6kens", "found \"t\""},
  };
  for (auto [text, message] : cases) {
    Result<Expr> result = Expr::parse(text);
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), StatusCode::Invalid);
    EXPECT_NE(result.status().message().find(message), std::string::npos)
        << result.status().message();
  }
  EXPECT_FALSE(Expr::parse(std::string_view("1\0", 2)).ok());
}

TEST(Expr, LimitsDepthTermsAndLength) {
  auto nested = [](size_t n) {
    return std::string(n, '(') + "1" + std::string(n, ')');
  };
  EXPECT_TRUE(Expr::parse(nested(31)).ok());
  EXPECT_FALSE(Expr::parse(nested(32)).ok());
  EXPECT_FALSE(Expr::parse(nested(8000)).ok());

  std::string sum = "1";
  for (int i = 0; i < 127; ++i)
    sum += "+1";
  EXPECT_TRUE(Expr::parse(sum).ok()); // 255 terms
  EXPECT_FALSE(Expr::parse(sum + "+1").ok());
  EXPECT_FALSE(Expr::parse(std::string(1 << 20, ' ') + "1").ok());

  // The longest canonical text is still accepted.
  std::string longest = "-9223372036854775808";
  for (int i = 0; i < 127; ++i)
    longest = "ceildiv(-9223372036854775808," + longest + ")";
  EXPECT_FALSE(Expr::parse(longest).ok()); // Too deep; so flat instead:
  longest = "-9223372036854775808";
  for (int i = 0; i < 127; ++i)
    longest += "*-9223372036854775808";
  ASSERT_TRUE(Expr::parse(longest).ok());
  EXPECT_TRUE(Expr::parse(Expr::parse(longest)->str()).ok());
}

TEST(Expr, ChecksArithmetic) {
  for (const char *text :
       {"9223372036854775807 + tokens", "-9223372036854775808 - tokens",
        "9223372036854775807 * tokens", "ceildiv(tokens, 0)",
        "ceildiv(tokens, -1)", "ceildiv(-9223372036854775808, -1)"}) {
    Result<int64_t> result = expr(text).evaluate(symbols());
    ASSERT_FALSE(result.ok()) << text;
    EXPECT_EQ(result.status().code(), StatusCode::Invalid);
    EXPECT_NE(result.status().message().find("tokens=7"), std::string::npos);
  }
  EXPECT_TRUE(expr("ceildiv(9223372036854775807, 2)").evaluate({}).ok());
}

TEST(Expr, KnowsSymbolsAndMonotony) {
  EXPECT_TRUE(expr("min(1, 2) - 3").isConstant());
  EXPECT_FALSE(expr("min(1, pages)").isConstant());
  EXPECT_TRUE(expr("min(1, pages)").uses(Symbol::Pages));
  EXPECT_FALSE(expr("min(1, pages)").uses(Symbol::Tokens));

  for (const char *text : {"3 - 5", "tokens", "min(tokens * 8, 384) * 16",
                           "ceildiv(tokens, 2 + 2)", "max(tokens, pages)",
                           "rank * 2"})
    EXPECT_TRUE(expr(text).isMonotone()) << text;
  for (const char *text : {"tokens - 1", "8 - tokens", "tokens * -1", "8 - rank",
                           "ceildiv(8, tokens)", "min(tokens, 3 - 2)"})
    EXPECT_FALSE(expr(text).isMonotone()) << text;
}

TEST(Expr, SurvivesBeingMovedFrom) {
  Expr a = expr("tokens + 1");
  Expr b = std::move(a);
  EXPECT_EQ(b.str(), "tokens + 1");
  EXPECT_EQ(a.str(), "0"); // NOLINT: on purpose
  EXPECT_EQ(a.evaluate({}).status().code(), StatusCode::Internal);
}

/// Random trees: the text is stable and means the same.
TEST(Expr, RoundTripsRandomTrees) {
  std::mt19937_64 random(1);
  auto build = [&](auto &self, int depth) -> std::string {
    uint64_t n = random() % 8;
    if (depth == 0 || n == 0)
      return random() % 2 ? std::string(symbolName(
                                static_cast<Symbol>(random() % symbolCount)))
                          : std::to_string(int64_t(random() % 20) - 10);
    std::string a = self(self, depth - 1), b = self(self, depth - 1);
    const char *ops[] = {" + ", " - ", " * "};
    const char *functions[] = {"ceildiv", "min", "max"};
    if (n <= 4)
      return "(" + a + ")" + ops[n % 3] + "(" + b + ")";
    return std::string(functions[n % 3]) + "(" + a + ", " + b + ")";
  };
  for (int i = 0; i < 2000; ++i) {
    std::string text = build(build, 4);
    Expr e = expr(text.c_str());
    Expr again = expr(e.str().c_str());
    EXPECT_EQ(again.str(), e.str()) << text;
    Result<int64_t> v = e.evaluate(symbols()), w = again.evaluate(symbols());
    ASSERT_EQ(v.ok(), w.ok()) << text;
    if (v.ok()) {
      EXPECT_EQ(*v, *w) << text;
    }
  }
}

/// What isMonotone() promises: never smaller for larger symbols.
TEST(Expr, MonotoneMeansMonotone) {
  std::mt19937_64 random(2);
  const char *pieces[] = {"tokens", "pages", "sequences", "outputs",  "0",
                          "1",      "17",    " + ",       " * ",      " - ",
                          "(",      ")",     "min(",      "ceildiv(", "max(",
                          ", ",     "-2"};
  int checked = 0;
  for (int i = 0; i < 200000 && checked < 2000; ++i) {
    std::string text;
    for (uint64_t n = 1 + random() % 9; n > 0; --n)
      text += pieces[random() % std::size(pieces)];
    Result<Expr> e = Expr::parse(text);
    if (!e.ok() || e->isConstant() || !e->isMonotone())
      continue;
    ++checked;
    SymbolValues low, high;
    for (size_t s = 0; s < symbolCount; ++s) {
      low.values[s] = 1 + int64_t(random() % 30);
      high.values[s] = low.values[s] + int64_t(random() % 30);
    }
    Result<int64_t> a = e->evaluate(low), b = e->evaluate(high);
    if (a.ok() && b.ok()) {
      EXPECT_LE(*a, *b) << text;
    }
  }
  EXPECT_GE(checked, 500);
}

} // namespace
