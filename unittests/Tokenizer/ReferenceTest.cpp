//===- ReferenceTest.cpp - the same ids as tokenizers and tiktoken --------===//
//
// Part of mla. The expected ids and pieces were written by make_cases.py, with
// Hugging Face's tokenizers and with tiktoken, and stand in the JSON files of
// this folder and of test/data.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"
#include "runtime/tokenizer/Regex.h"
#include "runtime/tokenizer/Utf8.h"

using namespace mla;
using namespace mla::test;

namespace {

Ids readIds(JsonValue value) {
  Ids ids;
  for (JsonValue id : value.elements())
    ids.push_back(static_cast<int32_t>(id.integer(0, 1 << 20)));
  return ids;
}

std::unique_ptr<JsonDocument> readDocument(const std::filesystem::path &path) {
  auto doc = JsonDocument::parseFile(path);
  EXPECT_TRUE(doc.ok()) << doc.status().message();
  return doc.ok() ? *std::move(doc) : nullptr;
}

/// The text of a case, or its bytes where they are no text.
std::string readText(JsonValue one) {
  if (!one["hex"].present())
    return one["text"].string();
  std::string hex = one["hex"].string(), bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

/// `exact`: no added token takes white space along and no prefix space is put,
/// so that decoding gives the text back.
void checkCases(const Tokenizer &t, JsonValue cases, size_t atLeast,
                bool exact) {
  ASSERT_GE(cases.size(), atLeast);
  for (JsonValue one : cases.elements()) {
    SCOPED_TRACE(one.dump());
    std::string text = readText(one);
    EncodeOptions options{false, true};
    if (one["special"].present())
      options.addSpecial = one["special"].boolean();
    if (one["parse"].present())
      options.parseSpecial = one["parse"].boolean();
    Ids ids = encode(t, text, options);
    EXPECT_EQ(ids, readIds(one["ids"]));
    if (!exact)
      continue;
    auto back = t.decode(ids, /*skipSpecial=*/false);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, toValidUtf8(text));
  }
}

TEST(TokenizerReference, KjvTinyGoldens) {
  auto t = kjv();
  ASSERT_TRUE(t);
  auto doc = readDocument(std::filesystem::path(MLA_TEST_DATA) /
                          "goldens/kjv-tiny/tokenizer.json");
  ASSERT_TRUE(doc);
  checkCases(*t, doc->root(), 19, true);
  EXPECT_TRUE(doc->status().ok()) << doc->status().message();
}

TEST(TokenizerReference, KjvTinyPromptsHaveBos) {
  auto t = kjv();
  ASSERT_TRUE(t);
  auto doc = readDocument(std::filesystem::path(MLA_TEST_DATA) /
                          "goldens/kjv-tiny/golden.json");
  ASSERT_TRUE(doc);
  JsonValue prompts = doc->root()["prompts"];
  ASSERT_GE(prompts.size(), 1u);
  int plain = 0;
  for (JsonValue prompt : prompts.elements()) {
    std::string text = prompt["text"].string();
    if (text.starts_with("<chat>")) // A label for the template of this model.
      text = "<｜User｜>" + text.substr(6) + "<｜Assistant｜>";
    else if (text.starts_with("<")) // A label for an excerpt ("<held0>").
      continue;
    EXPECT_EQ(encode(*t, text, {}), readIds(prompt["ids"])) << text;
    ++plain;
  }
  EXPECT_GE(plain, 10);
}

TEST(TokenizerReference, KjvTinyManyScripts) {
  auto t = kjv();
  auto doc = readDocument(casesFile("kjv_cases.json"));
  ASSERT_TRUE(t && doc);
  checkCases(*t, doc->root()["cases"], 400, true);
}

TEST(TokenizerReference, Llama3PatternIgnoreMergesAndFlags) {
  auto t = mustLoad(casesFile("glm_like_tokenizer.json"));
  auto doc = readDocument(casesFile("glm_like_cases.json"));
  ASSERT_TRUE(t && doc);
  checkCases(*t, doc->root()["cases"], 300, false);
}

TEST(TokenizerReference, LoneByteLevelWithPrefixSpace) {
  auto t = mustLoad(casesFile("gpt2_like_tokenizer.json"));
  auto doc = readDocument(casesFile("gpt2_like_cases.json"));
  ASSERT_TRUE(t && doc);
  checkCases(*t, doc->root()["cases"], 140, false);
}

TEST(TokenizerReference, TiktokenManyScripts) {
  auto t = kimiLike();
  auto doc = readDocument(casesFile("kimi_cases.json"));
  ASSERT_TRUE(t && doc);
  checkCases(*t, doc->root()["cases"], 420, true);
  EXPECT_TRUE(doc->status().ok()) << doc->status().message();
}

TEST(TokenizerReference, TiktokenDecodesPartsOfCharacters) {
  auto t = kimiLike();
  auto doc = readDocument(casesFile("kimi_cases.json"));
  ASSERT_TRUE(t && doc);
  JsonValue cases = doc->root()["decoded"];
  ASSERT_GE(cases.size(), 200u);
  for (JsonValue one : cases.elements()) {
    Ids ids = readIds(one["ids"]);
    auto text = t->decode(ids, /*skipSpecial=*/false);
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(*text, one["text"].string()) << one.dump();
    StreamDecoder stream(*t, /*skipSpecial=*/false);
    std::string joined;
    for (int32_t id : ids)
      joined += *stream.push(id);
    EXPECT_EQ(joined + stream.finish(), *text) << one.dump();
  }
  EXPECT_TRUE(doc->status().ok()) << doc->status().message();
}

TEST(TokenizerReference, TiktokenRandomTexts) {
  auto t = kimiLike();
  auto doc = readDocument(casesFile("kimi_random.json"));
  ASSERT_TRUE(t && doc);
  ASSERT_GE(doc->root().size(), 4000u);
  for (JsonValue one : doc->root().elements()) {
    std::string text = one.at(0).string();
    Ids want;
    for (size_t i = 1; i < one.size(); ++i)
      want.push_back(static_cast<int32_t>(one.at(i).integer(0, 1 << 20)));
    Ids ids = encode(*t, text);
    EXPECT_EQ(ids, want) << one.dump();
    auto back = t->decode(ids, /*skipSpecial=*/false);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, text);
  }
  EXPECT_TRUE(doc->status().ok()) << doc->status().message();
}

TEST(TokenizerReference, PatternsSplitAsOniguruma) {
  auto doc = readDocument(casesFile("pattern_cases.json"));
  ASSERT_TRUE(doc);
  RegexScratch scratch;
  ASSERT_GE(doc->root()["patterns"].size(), 38u);
  for (JsonValue entry : doc->root()["patterns"].elements()) {
    auto regex = Regex::compile(entry["pattern"].string());
    ASSERT_TRUE(regex.ok()) << regex.status().message();
    for (JsonValue one : entry["cases"].elements()) {
      SCOPED_TRACE(entry["pattern"].string() + " on " + one["text"].dump());
      std::string text = one["text"].string();
      std::vector<std::string_view> pieces;
      Status s = regex->split(text, scratch, pieces);
      ASSERT_TRUE(s.ok()) << s.message();
      std::vector<std::string> got(pieces.begin(), pieces.end()), want;
      for (JsonValue piece : one["pieces"].elements())
        want.push_back(piece.string());
      EXPECT_EQ(got, want);
    }
  }
}

} // namespace
