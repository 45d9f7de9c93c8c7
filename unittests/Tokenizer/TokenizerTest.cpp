//===- TokenizerTest.cpp - encoding, look-ups, special tokens -------------===//
//
// Part of mla. What the reference cases cannot show.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"
#include "unittests/TempFolder.h"
#include <chrono>
#include <fstream>
#include <thread>

using namespace mla;
using namespace mla::test;

namespace {

TEST(Tokenizer, LooksUpPieces) {
  auto t = kjv();
  ASSERT_TRUE(t);
  EXPECT_EQ(t->vocabSize(), 2048);
  EXPECT_EQ(t->bosId(), 0);
  EXPECT_EQ(t->eosId(), 1);
  EXPECT_EQ(t->padId(), 2);
  EXPECT_EQ(t->pieceToId("<｜User｜>"), 3);
  EXPECT_TRUE(t->isSpecial(3));
  EXPECT_FALSE(t->isSpecial(44));
  EXPECT_FALSE(t->isSpecial(-1));
  EXPECT_FALSE(t->isSpecial(2048));
  auto the = t->pieceToId("Ġthe");
  ASSERT_TRUE(the);
  EXPECT_EQ(t->idToPiece(*the), "Ġthe");
  EXPECT_EQ(t->idToBytes(*the), " the");
  EXPECT_EQ(t->pieceToId("no such piece"), std::nullopt);
  EXPECT_EQ(t->idToPiece(-1), std::nullopt);
  EXPECT_EQ(t->idToPiece(2048), std::nullopt);
  EXPECT_NE(t->chatTemplate().find("add_generation_prompt"), std::string::npos);
}

TEST(Tokenizer, AddsBosOnRequestOnly) {
  auto t = kjv();
  ASSERT_TRUE(t);
  EXPECT_EQ(encode(*t, "", {}), (Ids{0}));
  EXPECT_EQ(encode(*t, "", {false, true}), (Ids{}));
  EXPECT_EQ(t->prefixIds().size(), 1u);
  EXPECT_EQ(t->suffixIds().size(), 0u);
}

TEST(Tokenizer, LeavesSpecialTokensInTextsOfUsers) {
  auto t = kjv();
  ASSERT_TRUE(t);
  std::string text = "<｜User｜>hi<｜end▁of▁sentence｜>";
  Ids parsed = encode(*t, text, {false, true});
  EXPECT_EQ(parsed.front(), 3);
  EXPECT_EQ(parsed.back(), 1);
  Ids plain = encode(*t, text, {false, false});
  for (int32_t id : plain)
    EXPECT_FALSE(t->isSpecial(id));
  EXPECT_EQ(*t->decode(plain), text);
}

TEST(Tokenizer, IgnoreMergesForgesNoSpecialToken) {
  // "<s>" is a word of the vocabulary, and the whole text is one word.
  auto file = smallFile();
  file["model"]["vocab"]["<s>"] = 257;
  file["model"]["ignore_merges"] = true;
  file["pre_tokenizer"]["use_regex"] = false;
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "<s>"), (Ids{257}));
  EXPECT_EQ(encode(**t, "<s>", {false, false}), (Ids{'<', 's', '>'}));
}

TEST(Tokenizer, SkipsSpecialTokensWhenDecoding) {
  auto t = load(smallFile());
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(*(*t)->decode(Ids{257, 'h', 'i', 257}), "hi");
  EXPECT_EQ(*(*t)->decode(Ids{257, 'h', 'i'}, false), "<s>hi");
  EXPECT_EQ(*(*t)->decode({}), "");
}

TEST(Tokenizer, InvalidUtf8IsEncodedAsReplacement) {
  auto t = kjv();
  ASSERT_TRUE(t);
  EXPECT_EQ(encode(*t, "a\xFFz\xE6\x83"), encode(*t, "a\uFFFDz\uFFFD"));
  EXPECT_EQ(encode(*t, "\xED\xA0\x80"), encode(*t, "\uFFFD\uFFFD\uFFFD"));
  EXPECT_EQ(encode(*t, std::string_view("a\0b", 3)).size(), 3u);
}

TEST(Tokenizer, MergesLowestRankThenLeftmost) {
  auto file = smallFile();
  file["model"]["vocab"]["aa"] = 258;
  file["model"]["vocab"]["aaa"] = 259;
  file["model"]["merges"] = nlohmann::json::array({"a a", "aa a", "a b"});
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "aaaaa"), (Ids{258, 259}));
  EXPECT_EQ(encode(**t, "aab"), (Ids{258, 'b'}));
  EXPECT_EQ(encode(**t, "ab"), (Ids{256}));
}

TEST(Tokenizer, LongWordsTakeNoQuadraticTime) {
  auto file = smallFile();
  std::string piece = "a";
  file["model"]["merges"] = nlohmann::json::array();
  for (int i = 0; i < 10; ++i) {
    file["model"]["merges"].push_back(piece + " " + piece);
    piece += piece;
    file["model"]["vocab"][piece] = 300 + i;
  }
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(encode(**t, std::string(1 << 20, 'a')), Ids(1 << 10, 309));
  auto real = kjv();
  ASSERT_TRUE(real);
  for (const char *unit :
       {"a", " ", "\n", "é", "\u0301", "漢", "!", "1", " \r"}) {
    std::string text;
    while (text.size() < (1 << 20))
      text += unit;
    Ids ids = encode(*real, text);
    EXPECT_EQ(*real->decode(ids), text);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(Tokenizer, AddedTokensAreLeftmostThenLongest) {
  auto file = smallFile();
  file["added_tokens"].push_back(
      nlohmann::json::object({{"id", 258}, {"content", "<s>x"}}));
  file["added_tokens"].push_back(
      nlohmann::json::object({{"id", 259}, {"content", "s>xyz"}}));
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "<s>xyz<s>"), (Ids{258, 'y', 'z', 257}));
  EXPECT_EQ(encode(**t, "s>xyz"), (Ids{259}));
}

TEST(Tokenizer, AddedTokensDecodeToTheirText) {
  // "é" spells the byte 0xE9 in a vocabulary, but is itself as added token.
  auto file = smallFile();
  file["model"]["vocab"].erase("é");
  file["model"]["vocab"]["unused"] = 0xE9;
  file["added_tokens"].push_back(
      nlohmann::json::object({{"id", 258}, {"content", "ñé x"}}));
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(*(*t)->decode(encode(**t, "añé xb")), "añé xb");
}

TEST(Tokenizer, MissingByteIsNamed) {
  auto file = smallFile();
  file["model"]["vocab"].erase("q");
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "abc"), (Ids{256, 'c'}));
  auto ids = (*t)->encode("aqua");
  EXPECT_EQ(ids.status().code(), StatusCode::Invalid);
  EXPECT_NE(ids.status().message().find("0x71"), std::string::npos);
}

TEST(Tokenizer, IsSafeFromManyThreads) {
  auto t = kjv();
  ASSERT_TRUE(t);
  Ids want = encode(*t, "In the beginning God created 123 heavens\n");
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int n = 0; n < 4; ++n)
    threads.emplace_back([&, n] {
      for (int i = 0; i < 200; ++i) {
        auto ids = t->encode("In the beginning God created 123 heavens\n",
                             {false, true});
        wrong[n] += !ids.ok() || *ids != want;
      }
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

TEST(Tokenizer, ReadsTheFilesBesideIt) {
  test::TempFolder temp;
  const std::filesystem::path &folder = temp.path;
  auto missing = Tokenizer::fromFile(folder);
  EXPECT_EQ(missing.status().code(), StatusCode::NotFound);
  std::ofstream(folder / "tokenizer.json") << smallFile().dump();
  auto alone = Tokenizer::fromFile(folder);
  ASSERT_TRUE(alone.ok()) << alone.status().message();
  EXPECT_EQ((*alone)->bosId(), std::nullopt);
  EXPECT_EQ((*alone)->chatTemplate(), "");
  std::ofstream(folder / "tokenizer_config.json")
      << R"({"bos_token": {"content": "<s>"}, "chat_template": "old"})";
  std::ofstream(folder / "chat_template.jinja") << "new";
  auto both = Tokenizer::fromFile(folder / "tokenizer.json");
  ASSERT_TRUE(both.ok()) << both.status().message();
  EXPECT_EQ((*both)->bosId(), 257);
  EXPECT_EQ((*both)->chatTemplate(), "new");
  std::ofstream(folder / "tokenizer_config.json") << "{";
  auto broken = Tokenizer::fromFile(folder);
  EXPECT_NE(broken.status().message().find("tokenizer_config.json"),
            std::string::npos);
}

} // namespace
