//===- TiktokenTest.cpp - tiktoken.model: what is read and refused --------===//
//
// Part of mla. The ids themselves are compared in ReferenceTest.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"
#include "unittests/TempFolder.h"
#include <chrono>
#include <fstream>
#include <random>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

/// Base64 of at most three bytes.
std::string base64(std::string_view bytes) {
  constexpr char digits[] =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  uint32_t bits = 0;
  for (size_t i = 0; i < 3; ++i)
    bits = bits << 8 | (i < bytes.size() ? uint8_t(bytes[i]) : 0u);
  std::string out;
  for (size_t i = 0; i < 4; ++i)
    out += i <= bytes.size() ? digits[bits >> (18 - 6 * i) & 63] : '=';
  return out;
}

/// Lines of a vocabulary: the 256 bytes under their own ranks, then `more`.
std::vector<std::string> lines(std::vector<std::string> more = {}) {
  std::vector<std::string> out;
  for (int b = 0; b < 256; ++b)
    out.push_back(base64(std::string(1, static_cast<char>(b))) + " " +
                  std::to_string(b));
  for (const std::string &token : more)
    out.push_back(base64(token) + " " + std::to_string(out.size()));
  return out;
}

std::string join(const std::vector<std::string> &all,
                 const std::string &end = "\n") {
  std::string text;
  for (const std::string &line : all)
    text += line + end;
  return text;
}

json config(int base, json named = json::object()) {
  json tokens = json::object();
  for (auto &[offset, content] : named.items())
    tokens[std::to_string(base + std::stoi(offset))] = {{"content", content},
                                                        {"special", true}};
  return {{"tokenizer_class", "TikTokenTokenizer"},
          {"added_tokens_decoder", tokens}};
}

Result<std::unique_ptr<Tokenizer>> load(const std::string &ranks,
                                        const json &config) {
  return Tokenizer::fromTiktokenText(ranks, config.dump(), "K/tiktoken.model");
}

/// The files must be refused as Invalid, with exactly this message.
void refuses(const std::vector<std::string> &ranks,
             const std::string &message) {
  auto t = load(join(ranks), config(static_cast<int>(ranks.size())));
  ASSERT_FALSE(t.ok()) << "expected: " << message;
  EXPECT_EQ(t.status().code(), StatusCode::Invalid);
  EXPECT_EQ(t.status().message(), message);
}

void refusesConfig(const json &config, StatusCode code,
                   const std::string &part) {
  auto t = load(join(lines()), config);
  ASSERT_FALSE(t.ok()) << "expected: " << part;
  EXPECT_EQ(t.status().code(), code) << t.status().message();
  EXPECT_NE(t.status().message().find(part), std::string::npos)
      << t.status().message();
}

TEST(Tiktoken, LooksUpPiecesAndSpecialTokens) {
  auto t = kimiLike();
  ASSERT_TRUE(t);
  auto bos = t->bosId();
  ASSERT_TRUE(bos);
  int32_t base = *bos;
  EXPECT_EQ(t->vocabSize(), base + 256);
  EXPECT_EQ(t->eosId(), base + 1);
  EXPECT_EQ(t->padId(), base + 255);
  EXPECT_EQ(t->chatTemplate(), "{{ messages }}");
  EXPECT_EQ(t->prefixIds().size(), 0u); // The template writes what it wants.
  EXPECT_EQ(t->idToPiece(base + 5),
            "<|reserved_token_" + std::to_string(base + 5) + "|>");
  EXPECT_EQ(t->idToPiece(base + 256), std::nullopt);
  auto the = t->pieceToId("Ġthe");
  ASSERT_TRUE(the);
  EXPECT_EQ(t->idToBytes(*the), " the");

  // "special": false shows in decoded text, yet is left alone in a user's.
  auto think = t->pieceToId("<think>"), end = t->pieceToId("<|im_end|>");
  ASSERT_TRUE(think && end);
  EXPECT_EQ(encode(*t, "<think><|im_end|>"), (Ids{*think, *end}));
  EXPECT_EQ(*t->decode(Ids{*think, *end, base + 5}), "<think>");
  for (int32_t id : encode(*t, "<think><|im_end|>", {true, false}))
    EXPECT_LT(id, base);
}

TEST(Tiktoken, MergesByRankAndTakesWholeWords) {
  auto t = load(join(lines({"bc", "ab", "cc", "bcd", "cd"})), config(261));
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "abc"), (Ids{'a', 256})); // "ab" comes after "bc".
  EXPECT_EQ(encode(**t, "abx"), (Ids{257, 'x'}));
  EXPECT_EQ(encode(**t, "xccc"), (Ids{'x', 258, 'c'})); // leftmost of equals
  EXPECT_EQ(encode(**t, "xbcd"), (Ids{'x', 259}));      // bc + d
  EXPECT_EQ(encode(**t, "ccd"), (Ids{258, 'd'}));
  // As a whole word only: "aqz" has no part of two bytes.
  t = load(join(lines({"aqz"})), config(257));
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "aqz"), (Ids{256}));
  EXPECT_EQ(encode(**t, "aqzx"), (Ids{'a', 'q', 'z', 'x'}));
}

TEST(Tiktoken, AcceptsAnyOrderAndLineEnds) {
  auto all = lines({"ab"});
  std::swap(all[0], all[256]);
  for (std::string text : {join(all), join(all, "\r\n"), join(all, "\n\n"),
                           join(all).substr(0, join(all).size() - 1)}) {
    auto t = load(text, config(257, {{"0", "<x>"}}));
    ASSERT_TRUE(t.ok()) << t.status().message();
    EXPECT_EQ(encode(**t, "ab<x>"), (Ids{256, 257}));
  }
}

TEST(Tiktoken, ReportsWrongLines) {
  auto with = [](size_t line, std::string text) {
    auto all = lines({"ab", "cd"});
    all[line - 1] = std::move(text);
    return all;
  };
  std::string form = "expected a token in base64, a space and its rank, found ";
  refuses(with(3, "Ag=="), "K/tiktoken.model:3: " + form + "\"Ag==\"");
  refuses(with(3, "Ag== "), "K/tiktoken.model:3: " + form + "\"Ag== \"");
  refuses(with(3, " 2"), "K/tiktoken.model:3: " + form + "\" 2\"");
  refuses(with(3, "\x01\xFF" + std::string(60, 'x')),
          "K/tiktoken.model:3: " + form + "\"??" + std::string(38, 'x') +
              "...\"");
  for (std::string token : {"Ag=", "Ag", "A===", "Ah==", "Ag==Ag==", "A-==",
                            "====", "Ag=A", "AgA?", "AAB="})
    refuses(with(3, token + " 2"),
            "K/tiktoken.model:3: expected 1 to 4096 bytes in base64, found \"" +
                token + "\"");
  for (std::string rank :
       {"x", "-1", "2x", "2 ", " 2", "2.5", "1048320", "99999999999", "+2"})
    refuses(with(3, "Ag== " + rank), "K/tiktoken.model:3: expected a rank from "
                                     "0 to 1048319, found \"" +
                                         rank + "\"");
  std::string huge;
  for (int i = 0; i < 1366; ++i)
    huge += "AAAA";
  refuses(with(3, huge + " 2"),
          "K/tiktoken.model:3: expected 1 to 4096 bytes in base64, found \"" +
              std::string(40, 'A') + "...\"");
}

TEST(Tiktoken, ReportsWrongRanks) {
  auto all = lines({"ab", "cd"});
  all[257] = base64("ab") + " 257";
  refuses(all, "K/tiktoken.model:258: the token \"ab\" already has rank 256");
  all[257] = base64("cd") + " 256";
  refuses(all, "K/tiktoken.model:258: rank 256 is also that of \"ab\"");
  all[257] = base64("cd") + " 300";
  refuses(all, "K/tiktoken.model:258: expected the ranks of 258 tokens to be 0 "
               "to 257, found 300, while no line has rank 257");
  all = lines({"ab", "cd"});
  all.erase(all.begin() + 4);
  refuses(all, "K/tiktoken.model:257: expected the ranks of 257 tokens to be 0 "
               "to 256, found 257, while no line has rank 4");
  all = lines();
  all['q'] = base64("ab") + " 113";
  refuses(all, "K/tiktoken.model: expected a token for each byte, found none "
               "for 0x71 among 256 tokens");
  refuses({},
          "K/tiktoken.model: expected a token for each byte, found none for "
          "0x00 among 0 tokens");
}

TEST(Tiktoken, ReportsWrongConfigurations) {
  auto missing = Tokenizer::fromTiktokenText(join(lines()), "");
  EXPECT_EQ(missing.status().code(), StatusCode::NotFound);
  EXPECT_NE(missing.status().message().find("tokenizer_config.json"),
            std::string::npos);
  json other = config(256);
  other["tokenizer_class"] = "QWenTokenizer";
  refusesConfig(other, StatusCode::Unsupported,
                "expected \"TikTokenTokenizer\"");
  for (const char *key : {"255", "512", "-1", "x", "256x"}) {
    json wrong = config(256);
    wrong["added_tokens_decoder"][key] = {{"content", "<x>"}};
    refusesConfig(wrong, StatusCode::Invalid,
                  std::string("/added_tokens_decoder/") + key +
                      ": expected as the key an id from 256 to 511");
  }
  refusesConfig(config(256, {{"0", "<x>"}, {"1", "<x>"}}), StatusCode::Invalid,
                "\"<x>\" already has id 256");
  refusesConfig(config(256, {{"0", "<|reserved_token_300|>"}}),
                StatusCode::Invalid,
                "\"<|reserved_token_300|>\" already has id 256");
  refusesConfig(config(256, {{"0", "a"}}), StatusCode::Invalid,
                "\"a\" already has id 97");
  for (const char *flag : {"lstrip", "rstrip", "single_word"}) {
    json wrong = config(256, {{"0", "<x>"}});
    wrong["added_tokens_decoder"]["256"][flag] = true;
    refusesConfig(wrong, StatusCode::Invalid, "tiktoken knows no such tokens");
  }
  for (const char *key : {"bos_token", "eos_token", "pad_token"}) {
    json wrong = config(256);
    wrong[key] = "[BOS]";
    refusesConfig(wrong, StatusCode::Invalid,
                  std::string("/") + key + ": \"[BOS]\" is not in");
  }
}

TEST(Tiktoken, StreamsPartsOfCharacters) {
  // Tokens that end inside a character, and one of its middle.
  auto t = load(join(lines({"\xE6\xBC", "a\xF0\x9F", "\x98\x80"})),
                config(259, {{"0", "<x>"}}));
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "漢"), (Ids{256, 0xA2}));
  StreamDecoder stream(**t);
  EXPECT_EQ(*stream.push(256), "");
  EXPECT_EQ(*stream.push(0xA2), "漢");
  EXPECT_EQ(*stream.push(257), "a");
  EXPECT_EQ(*stream.push(259), ""); // A skipped token cuts nothing.
  EXPECT_EQ(*stream.push(258), "\U0001F600");
  EXPECT_EQ(*stream.push(258), "\uFFFD\uFFFD");
  EXPECT_EQ(*stream.push(257), "a");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Tiktoken, LongWordsTakeNoQuadraticTime) {
  auto t = kimiLike();
  ASSERT_TRUE(t);
  auto start = std::chrono::steady_clock::now();
  for (const char *unit : {"a", "A", "aB", "é", "ก", "漢", "\u0301", "ʰ", "!",
                           "1", " ", "\n", "'s"}) {
    std::string text;
    while (text.size() < (1 << 19))
      text += unit;
    Ids ids = encode(*t, text);
    EXPECT_EQ(*t->decode(ids), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Tiktoken, FolderPrefersTokenizerJson) {
  test::TempFolder temp;
  const std::filesystem::path &folder = temp.path;
  auto none = Tokenizer::fromFile(folder);
  EXPECT_EQ(none.status().code(), StatusCode::NotFound);
  EXPECT_NE(
      none.status().message().find("neither tokenizer.json nor tiktoken.model"),
      std::string::npos);
  auto write = [&](const char *name, const std::string &text) {
    std::ofstream(folder / name) << text;
  };
  write("tiktoken.model", join(lines({"ab", "abc"})));
  auto alone = Tokenizer::fromFile(folder);
  EXPECT_EQ(alone.status().code(), StatusCode::NotFound);
  write("tokenizer_config.json", config(258, {{"0", "<x>"}}).dump());
  auto ranks = Tokenizer::fromFile(folder);
  ASSERT_TRUE(ranks.ok()) << ranks.status().message();
  EXPECT_EQ(encode(**ranks, "abc<x>"), (Ids{257, 258}));
  write("tokenizer.json", smallFile().dump());
  auto both = Tokenizer::fromFile(folder);
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ(encode(**both, "abc<x>"), (Ids{256, 'c', 258}));
  auto named = Tokenizer::fromFile(folder / "tiktoken.model");
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(encode(**named, "abc"), (Ids{257}));
}

} // namespace
