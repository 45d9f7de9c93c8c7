//===- FuzzTest.cpp - mutated plans end in a plan or an error -------------===//
//
// Part of mla. Deterministic: std::mt19937_64 is the same everywhere, and the
// distributions of the standard library, which are not, are not used. Whatever
// is accepted must also survive being written and read again.
//
//===----------------------------------------------------------------------===//
#include "SamplePlan.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <random>

using namespace mla;
using namespace mla::plan;
using nlohmann::json;

namespace {

class PlanFuzz : public testing::Test {
protected:
  size_t below(size_t n) { return n ? random() % n : 0; }

  void check(const std::string &text) {
    Result<Plan> plan = parse(text, "fuzz.json");
    if (!plan.ok()) {
      ++refused;
      ASSERT_EQ(plan.status().message().compare(0, 11, "fuzz.json: "), 0)
          << plan.status().message();
      return;
    }
    ++accepted;
    std::string once = print(*plan);
    Result<Plan> again = parse(once, "again.json");
    ASSERT_TRUE(again.ok()) << again.status().message() << "\n" << text;
    ASSERT_EQ(print(*again), once);
  }

  std::mt19937_64 random{12345};
  int accepted = 0, refused = 0;
};

TEST_F(PlanFuzz, Bytes) {
  const std::string good = print(samplePlan());
  const char *tokens[] = {"null", "-1",   "9007199254740993", "1e9",  "{}",
                          "[]",   "\"\"", "\\u0000",          "true", "0"};
  for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
    std::string text = good;
    for (size_t n = 1 + below(3); n > 0 && !text.empty(); --n) {
      size_t at = below(text.size());
      switch (below(6)) {
      case 0: // flip a bit
        text[at] = static_cast<char>(text[at] ^ (1 << below(8)));
        break;
      case 1: // any byte
        text[at] = static_cast<char>(random());
        break;
      case 2: // delete
        text.erase(at, 1 + below(20));
        break;
      case 3: // repeat a piece
        text.insert(below(text.size()), text.substr(at, below(60)));
        break;
      case 4: // another digit
        if (size_t d = text.find_first_of("0123456789", at);
            d != std::string::npos)
          text[d] = static_cast<char>('0' + below(10));
        break;
      default:
        text.insert(at, tokens[below(std::size(tokens))]);
        break;
      }
    }
    check(text);
  }
  EXPECT_GT(accepted, 20);
  EXPECT_GT(refused, 1000);
}

void collect(json &v, std::vector<json *> &out) {
  out.push_back(&v);
  if (v.is_structured())
    for (json &child : v)
      collect(child, out);
}

TEST_F(PlanFuzz, Values) {
  const json good = json::parse(print(samplePlan()));
  const json values = {nullptr,
                       true,
                       0,
                       -1,
                       1,
                       2,
                       63,
                       64,
                       255,
                       4096,
                       500000,
                       2147483648,
                       4294967296,
                       9007199254740991,
                       -9007199254740991,
                       0.5,
                       1e300,
                       "",
                       ".",
                       "..",
                       "/etc",
                       "a/b",
                       "x",
                       "moe",
                       "embed",
                       "experts",
                       "latent.0",
                       "decode",
                       "gather",
                       "tokens",
                       "capacity",
                       "pages - 1",
                       "tokens * 4611686018427387904",
                       "ceildiv(1, tokens - 1)",
                       "bf16",
                       "nvfp4",
                       "fp8_block",
                       "int4_g32",
                       "latent",
                       "index",
                       "read f32",
                       "scalar",
                       "table bf16",
                       "none",
                       "synthetic",
                       "{}",
                       "a.{}.b",
                       json::array(),
                       json::object(),
                       {1, 2},
                       {{"scalar", 1}},
                       {{"workspace", "x"}},
                       {{"port", "logits"}},
                       {{"port", "saturated"}},
                       {{"reciprocal", true}}};
  for (int i = 0; i < 3000 && !HasFatalFailure(); ++i) {
    json document = good;
    for (size_t n = 1 + below(3); n > 0; --n) {
      std::vector<json *> places;
      collect(document, places);
      json &v = *places[below(places.size())];
      json &w = *places[below(places.size())];
      switch (below(6)) {
      case 0: // another value
        v = values[below(values.size())];
        break;
      case 1: { // a copy from elsewhere
        json copy = w;
        v = std::move(copy);
        break;
      }
      case 2: // delete an element or member
        if (v.is_array() && !v.empty())
          v.erase(below(v.size()));
        else if (v.is_object() && !v.empty())
          v.erase(std::next(v.begin(), static_cast<long>(below(v.size()))));
        break;
      case 3: // repeat an element
        if (v.is_array() && !v.empty()) {
          json copy = v[below(v.size())];
          v.insert(v.begin() + static_cast<long>(below(v.size())),
                   std::move(copy));
        }
        break;
      case 4: // swap two elements
        if (v.is_array() && v.size() > 1)
          std::swap(v[below(v.size())], v[below(v.size())]);
        break;
      default: // nudge a number
        if (v.is_number_integer())
          v = v.get<int64_t>() + static_cast<int64_t>(below(129)) - 64;
        break;
      }
    }
    check(document.dump());
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(refused, 1000);
}

TEST_F(PlanFuzz, Expressions) {
  const char *pieces[] = {"tokens", "pages", "capacity",
                          "0",      "1",     "64",
                          "(",      ")",     "+",
                          "-",      "*",     ",",
                          "min(",   "max(",  "ceildiv(",
                          " ",      "/",     "x",
                          "\xff",   "-1",    "9223372036854775807"};
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (size_t n = below(12); n > 0; --n)
      text += pieces[below(std::size(pieces))];
    Result<Expr> e = Expr::parse(text);
    if (!e.ok()) {
      ++refused;
      continue;
    }
    ++accepted;
    SymbolValues v;
    v.values.fill(static_cast<int64_t>(random()) >> below(64));
    Result<int64_t> a = e->evaluate(v);
    Result<Expr> again = Expr::parse(e->str());
    ASSERT_TRUE(again.ok()) << text;
    ASSERT_EQ(again->str(), e->str()) << text;
    Result<int64_t> b = again->evaluate(v);
    ASSERT_EQ(a.ok(), b.ok()) << text;
  }
  EXPECT_GT(accepted, 500);
}

} // namespace
