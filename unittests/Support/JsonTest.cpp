//===- JsonTest.cpp - the JSON accessor -----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Support/Json.h"
#include "unittests/TempFolder.h"
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>

using namespace mla;

namespace {

std::unique_ptr<JsonDocument> parse(std::string_view text) {
  auto result = JsonDocument::parseText(text, "a.json");
  EXPECT_TRUE(result.ok()) << result.status().message();
  return result.ok() ? *std::move(result) : nullptr;
}

std::string parseError(std::string_view text) {
  auto result = JsonDocument::parseText(text, "a.json");
  return result.ok() ? "" : result.status().message();
}

TEST(Json, TypedReads) {
  auto doc = parse(R"({"i": 3, "f": 1.5, "b": true, "s": "x", "n": null,
                       "a": [1, 2], "o": {"z": 1, "y": 2}})");
  JsonValue root = doc->root();
  EXPECT_EQ(root["i"].integer(0, 10), 3);
  EXPECT_EQ(root["i"].number(), 3.0);
  EXPECT_EQ(root["f"].number(), 1.5);
  EXPECT_TRUE(root["b"].boolean());
  EXPECT_EQ(root["s"].string(), "x");
  EXPECT_EQ(root["a"].elements().size(), 2u);
  EXPECT_EQ(root["a"].at(1).integer(0, 9), 2);
  EXPECT_EQ(root["o"].members().front().first, "y");
  EXPECT_FALSE(root["n"].present());
  EXPECT_FALSE(root["n"].absent());
  EXPECT_TRUE(root["missing"].absent());
  EXPECT_TRUE(root["a"].at(2).absent());
  EXPECT_TRUE(root["i"]["deeper"].absent());
  EXPECT_TRUE(doc->status().ok());
}

TEST(Json, MistakesAreCollectedWithFileAndPointer) {
  auto doc = parse(R"({"a": {"b": ["x", 5]}, "c/d~e": 1.5, "big": 99})");
  JsonValue root = doc->root();
  EXPECT_EQ(root["a"]["b"].at(0).integer(1, 8), 1);
  EXPECT_EQ(root["a"]["b"].at(1).string(), "");
  EXPECT_FALSE(root["c/d~e"].boolean());
  EXPECT_EQ(root["big"].integer(0, 10), 0);
  EXPECT_EQ(root["gone"].number(), 0.0);
  EXPECT_TRUE(root["a"].elements().empty());
  EXPECT_TRUE(root["a"]["b"].members().empty());
  EXPECT_EQ(doc->status().code(), StatusCode::Invalid);
  EXPECT_EQ(
      doc->status().message(),
      "a.json: at /a/b/0: expected an integer from 1 to 8, found string \"x\"\n"
      "a.json: at /a/b/1: expected a string, found number 5\n"
      "a.json: at /c~1d~0e: expected true or false, found number 1.5\n"
      "a.json: at /big: expected an integer from 0 to 10, found number 99\n"
      "a.json: at /gone: expected a number, found nothing\n"
      "a.json: at /a: expected an array, found an object\n"
      "a.json: at /a/b: expected an object, found an array of 2");
}

TEST(Json, TheNumberOfMessagesIsBounded) {
  auto doc = parse("{}");
  for (int i = 0; i < 1000; ++i)
    (void)doc->root()["x"].number();
  std::string text = doc->status().message();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 63);
}

TEST(Json, LongValuesAreShortened) {
  auto doc = parse("{\"s\": \"" + std::string(500, 'x') + "\"}");
  (void)doc->root()["s"].number();
  EXPECT_EQ(doc->status().message(),
            "a.json: at /s: expected a number, found string \"" +
                std::string(59, 'x') + "...");
}

TEST(Json, DuplicateKeysAreRefused) {
  EXPECT_EQ(parseError(R"({"a": 1, "b": {"k": 1, "k": 1}})"),
            "a.json: found the key \"k\" twice, which is refused");
}

TEST(Json, DepthIsBounded) {
  auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_EQ(parseError(nested(64)), "");
  EXPECT_EQ(parseError(nested(65)),
            "a.json: found nesting deeper than 64, which is refused");
  EXPECT_EQ(parseError(std::string(1000000, '[')),
            "a.json: found nesting deeper than 64, which is refused");
}

TEST(Json, IntegersBeyond53BitsAreRefused) {
  EXPECT_EQ(parseError("[9007199254740992, -9007199254740992]"), "");
  EXPECT_EQ(parseError("9007199254740993"),
            "a.json: found an integer beyond 2^53 (9007199254740993), which is "
            "refused");
  EXPECT_EQ(
      parseError("-9007199254740993"),
      "a.json: found an integer beyond 2^53 (-9007199254740993), which is "
      "refused");
  EXPECT_EQ(
      parseError("18446744073709551616"),
      "a.json: found an integer beyond 2^53 (18446744073709551616), which "
      "is refused");
}

/// What a visitor of the members of `object` saw, and then the errors.
std::string visited(std::string_view text, std::string_view object) {
  std::string out;
  auto visit = [&](const std::string &key, const JsonValue &value) {
    out += key + "=" + value.dump() + " ";
    if (key == "wrong")
      (void)value["deep"].at(1).string();
  };
  auto doc = JsonDocument::parseMembers(text, "a.json", object, visit);
  if (!doc.ok())
    return out + doc.status().message();
  JsonValue root = (*doc)->root();
  (void)(object.empty() ? root : root[object]).members();
  return out + "| " + root.dump() + " " + (*doc)->status().message();
}

TEST(Json, MembersPassByWithoutBeingKept) {
  EXPECT_EQ(visited(R"({"b": [1, {"x": {}}], "a": "s", "c": {}})", ""),
            "b=[1,{\"x\":{}}] a=\"s\" c={} | {} ");
  EXPECT_EQ(
      visited(R"({"m": {"w": 1}, "w": {"m": 2, "w": {"w": 3}}, "z": 4})", "w"),
      "m=2 w={\"w\":3} | {\"m\":{\"w\":1},\"w\":{},\"z\":4} ");
  EXPECT_EQ(visited(R"({"w": {"wrong": {"deep": [1, 2]}, "a/b": 1}})", "w"),
            "wrong={\"deep\":[1,2]} a/b=1 | {\"w\":{}} "
            "a.json: at /w/wrong/deep/1: expected a string, found number 2");
  EXPECT_EQ(visited("[{\"w\": {\"x\": 1}}]", "w"),
            "| [{\"w\":{\"x\":1}}] a.json: at /w: expected an object, found "
            "nothing");
  EXPECT_EQ(visited("[1]", ""),
            "| [1] a.json: at the root: expected an object, found an array of "
            "1");
  EXPECT_EQ(visited("{\"w\": 5}", "w"),
            "| {\"w\":5} a.json: at /w: expected an object, found number 5");
  EXPECT_EQ(visited("{}", "w"),
            "| {} a.json: at /w: expected an object, found nothing");
}

TEST(Json, MembersThatPassByAreCheckedLikeOthers) {
  EXPECT_EQ(visited(R"({"a": 1, "b": 2, "a": 3})", ""),
            "a=1 b=2 a.json: found the key \"a\" twice, which is refused");
  EXPECT_EQ(visited(R"({"w": {"a": 1}, "w": {"a": 1}})", "w"),
            "a=1 a.json: found the key \"w\" twice, which is refused");
  EXPECT_EQ(visited(R"({"a": {"k": 1, "k": 1}})", ""),
            "a.json: found the key \"k\" twice, which is refused");
  // The same verdict as on the whole tree, whatever the text.
  std::string good = R"({"metadata": {"x": [1, 2.5, "y"]}, "weight_map": {)"
                     R"("a.weight": "f.safetensors", "b\u00e4": ["f", null]}})";
  ASSERT_EQ(parseError(good), "");
  auto ignore = [](const std::string &, const JsonValue &) {};
  size_t failures = 0;
  for (size_t i = 0; i < good.size(); ++i)
    for (const char *piece :
         {"", "{", "}", "]", "\"", ",", "9", "\x80", "\"a.weight\":1,"}) {
      std::string text = good;
      text.replace(i, 1, piece);
      for (std::string_view object : {"", "weight_map", "metadata"}) {
        auto doc = JsonDocument::parseMembers(text, "a.json", object, ignore);
        EXPECT_EQ(doc.status().message(), parseError(text)) << text;
        failures += !doc.ok();
      }
    }
  EXPECT_GT(failures, 1000U);
  EXPECT_LT(failures, good.size() * 9 * 3);
}

TEST(Json, WhatIsNoJsonIsRefused) {
  for (const char *text : {"", "{", "{\"a\": }", "[1,]", "{} {}", "nul",
                           "\"\x80\"", "1e999", "{\"a\" 1}", "'a'", "NaN"}) {
    std::string message = parseError(text);
    EXPECT_EQ(message.rfind("a.json: ", 0), 0u) << text << ": " << message;
  }
  EXPECT_EQ(parseError("[1,]").rfind(
                "a.json: not valid JSON: parse error at line 1, column 4", 0),
            0u);
}

TEST(Json, Files) {
  test::TempFolder folder;
  std::string path = (folder / "a.json").string();
  EXPECT_EQ(JsonDocument::parseFile(path).status().code(),
            StatusCode::NotFound);
  EXPECT_EQ(JsonDocument::parseFile(path).status().message(),
            path + ": no such file");
  std::ofstream(path) << "[1, 2, 3]";
  auto doc = JsonDocument::parseFile(path);
  ASSERT_TRUE(doc.ok());
  EXPECT_EQ((*doc)->root().size(), 3u);
  EXPECT_EQ(JsonDocument::parseFile(path, 8).status().message(),
            path + ": expected at most 8 bytes, found 9");
  EXPECT_EQ(JsonDocument::parseFile(folder.path).status().code(),
            StatusCode::Invalid);
}

} // namespace
