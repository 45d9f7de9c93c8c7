//===- StreamTest.cpp - printing while generating -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"
#include "runtime/tokenizer/Utf8.h"
#include <random>

using namespace mla;
using namespace mla::test;

namespace {

TEST(Utf8, MaximalPartsBecomeOneReplacementEach) {
  // The examples of Unicode 3.9 and of Rust's from_utf8_lossy.
  EXPECT_EQ(toValidUtf8("Hello \xC0\x80 There\xE6\x83 Goodbye"),
            "Hello \uFFFD\uFFFD There\uFFFD Goodbye");
  EXPECT_EQ(toValidUtf8("\xF0\x80\x80\x80"
                        "foo\xF0\x90\x80"
                        "bar"),
            "\uFFFD\uFFFD\uFFFD\uFFFDfoo\uFFFDbar");
  EXPECT_EQ(toValidUtf8("\xED\xA0\x80"
                        "foo"),
            "\uFFFD\uFFFD\uFFFDfoo");
  EXPECT_EQ(toValidUtf8("\xF5\xFF"), "\uFFFD\uFFFD");
  EXPECT_EQ(toValidUtf8("\xF4\x90"), "\uFFFD\uFFFD");
  EXPECT_EQ(toValidUtf8("ok\xE2\x82"), "ok\uFFFD");
  EXPECT_EQ(toValidUtf8("\xF0\x9F\x98\x80"), "\U0001F600");
  EXPECT_TRUE(isValidUtf8("é漢\U0010FFFF"));
  EXPECT_FALSE(isValidUtf8("\xC3"));
}

TEST(StreamDecoder, NeverGivesHalfACharacter) {
  auto t = load(smallFile());
  ASSERT_TRUE(t.ok());
  StreamDecoder stream(**t);
  std::string text = "a\u00e9\u6f22\U0001F600";
  std::vector<std::string> got;
  for (unsigned char byte : text)
    got.push_back(*stream.push(byte));
  EXPECT_EQ(got, (std::vector<std::string>{"a", "", "\u00e9", "", "", "\u6f22",
                                           "", "", "", "\U0001F600"}));
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, FinishFlushesAndStartsAnew) {
  auto t = load(smallFile());
  ASSERT_TRUE(t.ok());
  StreamDecoder stream(**t);
  EXPECT_EQ(*stream.push(0xF0), "");
  EXPECT_EQ(*stream.push(0x9F), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
  EXPECT_EQ(stream.finish(), "");
  // A byte that cannot continue shows at once that the held ones are wrong.
  EXPECT_EQ(*stream.push(0xE6), "");
  EXPECT_EQ(*stream.push('x'), "\uFFFDx");
}

TEST(StreamDecoder, SkipsSpecialTokensOnRequest) {
  auto t = load(smallFile());
  ASSERT_TRUE(t.ok());
  StreamDecoder skipping(**t), showing(**t, /*skipSpecial=*/false);
  EXPECT_EQ(*skipping.push(257), "");
  EXPECT_EQ(*showing.push(257), "<s>");
  // A skipped token does not cut the character around it, as in decode().
  EXPECT_EQ(*skipping.push(0xC3), "");
  EXPECT_EQ(*skipping.push(257), "");
  EXPECT_EQ(*skipping.push(0xA9), "\u00e9");
  auto whole = (*t)->decode(Ids{0xC3, 257, 0xA9});
  EXPECT_EQ(*whole, "\u00e9");
}

TEST(StreamDecoder, UnknownIdsAreErrors) {
  auto t = load(smallFile());
  ASSERT_TRUE(t.ok());
  StreamDecoder stream(**t);
  for (int32_t id : {-1, 258, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(stream.push(id).status().code(), StatusCode::Invalid);
    EXPECT_EQ((*t)->decode(Ids{id}).status().code(), StatusCode::Invalid);
  }
}

TEST(StreamDecoder, JoinsToWhatDecodeGives) {
  auto t = kjv();
  ASSERT_TRUE(t);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    Ids ids(random() % 60);
    for (int32_t &id :
         ids) // Mostly single bytes, which seldom form characters.
      id = static_cast<int32_t>(random() % (random() % 2 ? 262 : 2048));
    bool skip = random() % 2;
    StreamDecoder stream(*t, skip);
    std::string joined;
    for (int32_t id : ids) {
      auto text = stream.push(id);
      ASSERT_TRUE(text.ok());
      EXPECT_TRUE(isValidUtf8(*text));
      joined += *text;
    }
    joined += stream.finish();
    EXPECT_EQ(joined, *t->decode(ids, skip));
  }
}

} // namespace
