//===- LoadTest.cpp - what is read, refused and reported ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

/// The file must be refused with `code` and a message that holds `part`.
void refuses(const json &file, StatusCode code, const std::string &part,
             const json &config = nullptr) {
  auto t = load(file, config);
  ASSERT_FALSE(t.ok()) << "expected: " << part;
  EXPECT_EQ(t.status().code(), code) << t.status().message();
  EXPECT_NE(t.status().message().find(part), std::string::npos)
      << t.status().message();
}

TEST(TokenizerLoad, AcceptsTheSmallFile) {
  EXPECT_EQ(loadError(smallFile()), "");
  auto file = smallFile();
  file["normalizer"] = {{"type", "Sequence"}, {"normalizers", json::array()}};
  file["model"]["unk_token"] = "<s>"; // Nothing is unknown: it has no effect.
  file["model"]["dropout"] = nullptr;
  file["model"]["continuing_subword_prefix"] = "";
  EXPECT_EQ(loadError(file), "");
}

TEST(TokenizerLoad, RefusesOtherKindsOfTokenizers) {
  auto change = [](const char *pointer, json value) {
    auto file = smallFile();
    file[json::json_pointer(pointer)] = std::move(value);
    return file;
  };
  auto unsupportedAt = [&](const char *pointer, json value,
                           const std::string &part) {
    refuses(change(pointer, std::move(value)), StatusCode::Unsupported, part);
  };
  unsupportedAt("/model/type", "WordPiece", "WordPiece");
  unsupportedAt("/model/byte_fallback", true, "byte fallback");
  unsupportedAt("/model/dropout", 0.5, "dropout");
  unsupportedAt("/model/end_of_word_suffix", "</w>", "end_of_word_suffix");
  unsupportedAt("/normalizer", {{"type", "NFC"}}, "\"NFC\"");
  unsupportedAt("/normalizer",
                {{"type", "Sequence"},
                 {"normalizers", json::array({{{"type", "NFKC"}}})}},
                "/normalizer/normalizers/0/type");
  unsupportedAt("/pre_tokenizer", nullptr, "without ByteLevel");
  unsupportedAt("/pre_tokenizer/type", "Metaspace", "Metaspace");
  unsupportedAt("/decoder/type", "ByteFallback", "ByteFallback");
  unsupportedAt("/post_processor", {{"type", "RobertaProcessing"}}, "Roberta");

  json byteLevel = smallFile()["pre_tokenizer"];
  json split = {{"type", "Split"},
                {"pattern", {{"Regex", "x"}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  auto sequence = [&](json all) {
    return change("/pre_tokenizer",
                  {{"type", "Sequence"}, {"pretokenizers", std::move(all)}});
  };
  EXPECT_EQ(loadError(sequence(json::array({split, byteLevel}))), "");
  refuses(sequence(json::array({split})), StatusCode::Unsupported,
          "without ByteLevel");
  refuses(sequence(json::array({byteLevel, split})), StatusCode::Unsupported,
          "not the last");
  for (const char *behavior :
       {"Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"}) {
    json other = split;
    other["behavior"] = behavior;
    refuses(sequence(json::array({other, byteLevel})), StatusCode::Unsupported,
            behavior);
  }
  json inverted = split;
  inverted["invert"] = true;
  refuses(sequence(json::array({inverted, byteLevel})), StatusCode::Unsupported,
          "inverted");
  json bad = split;
  bad["pattern"]["Regex"] = "(";
  refuses(sequence(json::array({bad, byteLevel})), StatusCode::Invalid,
          "/pre_tokenizer/pretokenizers/0/pattern/Regex");
  bad["pattern"] = {{"String", ""}};
  refuses(sequence(json::array({bad, byteLevel})), StatusCode::Invalid,
          "not empty");
}

TEST(TokenizerLoad, SplitsByTextsAndDigits) {
  auto file = smallFile();
  json byteLevel = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  file["model"]["vocab"]["11"] = 258;
  file["model"]["merges"].push_back("1 1");
  auto with = [&](json first) {
    file["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers", json::array({first, byteLevel})}};
    auto t = load(file);
    EXPECT_TRUE(t.ok()) << t.status().message();
    return *std::move(t);
  };
  auto literal = with({{"type", "Split"},
                       {"pattern", {{"String", "a"}}},
                       {"behavior", "Isolated"},
                       {"invert", false}});
  EXPECT_EQ(encode(*literal, "ab11"), (Ids{'a', 'b', 258}));
  auto single = with({{"type", "Digits"}, {"individual_digits", true}});
  EXPECT_EQ(encode(*single, "ab11"), (Ids{256, '1', '1'}));
  auto runs = with({{"type", "Digits"}, {"individual_digits", false}});
  EXPECT_EQ(encode(*runs, "ab11"), (Ids{256, 258}));
}

TEST(TokenizerLoad, ReportsWrongVocabularies) {
  auto file = smallFile();
  file["model"]["vocab"]["ab"] = 5;
  refuses(file, StatusCode::Invalid, "id 5 is also that of");
  for (json id : {json(-1), json(1 << 20), json(int64_t(1) << 40), json("5"),
                  json(1.5), json(nullptr)}) {
    file["model"]["vocab"]["ab"] = id;
    refuses(file, StatusCode::Invalid, "/model/vocab/ab: expected an id from");
  }
  file = smallFile();
  file["model"]["vocab"] = json::object();
  refuses(file, StatusCode::Invalid, "at least one piece");
  file["model"]["vocab"] = 3;
  refuses(file, StatusCode::Invalid, "expected an object, found number 3");
  file["model"] = nullptr;
  refuses(file, StatusCode::Invalid, "/model: expected an object");
  file = smallFile();
  file["model"]["vocab"].erase("q");
  file["model"]["unk_token"] = "<s>";
  refuses(file, StatusCode::Unsupported, "lacks bytes");
}

TEST(TokenizerLoad, ReportsWrongMerges) {
  auto file = smallFile();
  auto merge = [&](json m) {
    file["model"]["merges"] = json::array({m});
    return file;
  };
  refuses(merge(json::array({"a", "zz"})), StatusCode::Invalid,
          "\"zz\" is not in");
  refuses(merge(json::array({"zz", "a"})), StatusCode::Invalid,
          "\"zz\" is not in");
  refuses(merge("b a"), StatusCode::Invalid, "\"ba\" is not in");
  for (json m : {json("ab"), json("a b c"), json(""), json(" "), json(3),
                 json::array({"a"}), json::array({"a", "b", "c"}),
                 json::array({"", "a"})})
    refuses(merge(m), StatusCode::Invalid, "/model/merges/0: expected two");
  refuses(merge(json::array({"a", 3})), StatusCode::Invalid,
          "/model/merges/0/1");
  file["model"]["merges"] = "a b";
  refuses(file, StatusCode::Invalid, "/model/merges: expected an array");
}

TEST(TokenizerLoad, ReportsWrongAddedTokens) {
  auto added = [](json token) {
    auto file = smallFile();
    file["added_tokens"].push_back(std::move(token));
    return file;
  };
  refuses(added({{"id", 257}, {"content", "xx"}}), StatusCode::Invalid,
          "id 257 is also that of \"<s>\"");
  refuses(added({{"id", 258}, {"content", "<s>"}}), StatusCode::Invalid,
          "already has id 257");
  refuses(added({{"id", 258}, {"content", "ab"}}), StatusCode::Invalid,
          "already has id 256");
  refuses(added({{"id", 258}, {"content", ""}}), StatusCode::Invalid,
          "/added_tokens/1/content");
  refuses(added({{"id", 258}, {"content", std::string(2000, 'x')}}),
          StatusCode::Invalid, "1 to 1024 bytes");
  refuses(added({{"id", -1}, {"content", "xx"}}), StatusCode::Invalid,
          "/added_tokens/1/id");
  refuses(added({{"content", "xx"}}), StatusCode::Invalid, "found nothing");
  refuses(added(7), StatusCode::Invalid, "/added_tokens/1: expected an object");
  refuses(added({{"id", 258}, {"content", "xx"}, {"special", 1}}),
          StatusCode::Invalid, "/added_tokens/1/special");
}

TEST(TokenizerLoad, TemplateGoesAroundTheText) {
  auto file = smallFile();
  json special = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  json text = {{"Sequence", {{"id", "A"}, {"type_id", 0}}}};
  json processor = {
      {"type", "TemplateProcessing"},
      {"single", json::array({special, text, special, special})},
      {"special_tokens", {{"<s>", {{"ids", json::array({257})}}}}}};
  file["post_processor"] = processor;
  auto t = load(file);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "c", {}), (Ids{257, 'c', 257, 257}));

  // The configuration's flags win.
  t = load(file, {{"bos_token", "<s>"}, {"add_bos_token", false}});
  EXPECT_EQ(encode(**t, "c", {}), (Ids{'c', 257, 257}));
  t = load(file, {{"bos_token", "<s>"}, {"add_bos_token", true}});
  EXPECT_EQ(encode(**t, "c", {}), (Ids{257, 'c', 257, 257}));

  auto with = [&](json single) {
    file["post_processor"]["single"] = std::move(single);
    return file;
  };
  refuses(with(json::array({special})), StatusCode::Invalid,
          "the text \"A\" once");
  refuses(with(json::array({text, text})), StatusCode::Invalid,
          "the text \"A\" once");
  refuses(with(json::array({text, 3})), StatusCode::Invalid, "/single/1");
  file["post_processor"] = processor;
  file["post_processor"]["special_tokens"]["<s>"]["ids"] = json::array({900});
  refuses(file, StatusCode::Invalid, "no piece has id 900");
  file["post_processor"]["special_tokens"] = json::object();
  refuses(file, StatusCode::Invalid, "/special_tokens/<s>/ids");
  file["post_processor"] = {
      {"type", "Sequence"},
      {"processors", json::array({processor, processor})}};
  refuses(file, StatusCode::Unsupported, "a second template");
}

TEST(TokenizerLoad, ReadsTheConfiguration) {
  auto t = load(smallFile(),
                {{"bos_token", {{"content", "<s>"}}},
                 {"eos_token", "ab"},
                 {"pad_token", nullptr},
                 {"add_eos_token", true},
                 {"chat_template",
                  json::array({{{"name", "tool"}, {"template", "x"}},
                               {{"name", "default"}, {"template", "y"}}})}});
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->bosId(), 257);
  EXPECT_EQ((*t)->eosId(), 256);
  EXPECT_EQ((*t)->padId(), std::nullopt);
  EXPECT_EQ((*t)->chatTemplate(), "y");
  EXPECT_EQ(encode(**t, "c", {}),
            (Ids{'c', 256})); // No flag, no template: no BOS.

  t = load(smallFile(), {{"added_tokens_decoder",
                          {{"257", {{"content", "<s>"}}},
                           {"260", {{"content", "<e>"}, {"special", true}}}}}});
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ(encode(**t, "<e><s>"), (Ids{260, 257}));
  EXPECT_TRUE((*t)->isSpecial(257)); // tokenizer.json's flags stay.
  EXPECT_EQ((*t)->idToPiece(259), std::nullopt);
  EXPECT_FALSE((*t)->decode(Ids{259}).ok());

  t = load(smallFile(), {{"add_prefix_space", true}});
  ASSERT_TRUE(t.ok());
  EXPECT_EQ(encode(**t, "c"), (Ids{' ', 'c'}));

  refuses(smallFile(), StatusCode::Invalid, "\"<e>\" is not in",
          {{"bos_token", "<e>"}});
  refuses(smallFile(), StatusCode::Invalid, "/add_bos_token",
          {{"add_bos_token", true}});
  refuses(smallFile(), StatusCode::Invalid, "/add_bos_token",
          {{"bos_token", "<s>"}, {"add_bos_token", "yes"}});
  refuses(smallFile(), StatusCode::Invalid, "expected an object",
          json::array({1}));
  refuses(smallFile(), StatusCode::Invalid,
          "expected as the key an id from 0 to 1048575",
          {{"added_tokens_decoder", {{"9x", {{"content", "q1"}}}}}});
  refuses(smallFile(), StatusCode::Invalid, "is also that of",
          {{"added_tokens_decoder", {{"5", {{"content", "q1"}}}}}});
}

// As the GLM models have it: no template around the text (the chat template
// writes "[gMASK]<sop>"), no BOS, a null "bos_token", and keys without effect.
TEST(TokenizerLoad, AddsNothingAsGlm) {
  auto text = readFile(casesFile("glm_like_tokenizer.json"));
  ASSERT_TRUE(text.ok());
  json file = json::parse(*text);
  file["post_processor"] = file["post_processor"]["processors"][0];
  ASSERT_EQ(file["post_processor"]["type"], "ByteLevel");
  json config = {
      {"added_tokens_decoder",
       {{"701", {{"content", "[gMASK]"}, {"special", true}}},
        {"709", {{"content", "<think>"}, {"special", false}}}}},
      {"additional_special_tokens", json::array({"[gMASK]", "<sop>"})},
      {"extra_special_tokens", json::object()},
      {"bos_token", nullptr},
      {"eos_token", "<|end|>"},
      {"pad_token", "<|end|>"},
      {"do_lower_case", false},
      {"remove_space", false},
      {"padding_side", "left"},
      {"tokenizer_class", "PreTrainedTokenizerFast"}};
  auto t = load(file, config);
  ASSERT_TRUE(t.ok()) << t.status().message();
  EXPECT_EQ((*t)->bosId(), std::nullopt);
  EXPECT_EQ((*t)->eosId(), 704);
  EXPECT_EQ((*t)->padId(), 704);
  EXPECT_TRUE((*t)->prefixIds().empty() && (*t)->suffixIds().empty());
  std::string chat = "[gMASK]<sop><|user|>\nhi<think>";
  Ids ids = encode(**t, chat, {}); // as in glm_like_cases.json
  EXPECT_EQ(ids, (Ids{701, 702, 703, 198, 71, 72, 709}));
  // What is not special stands in decoded text, and stays a token in a user's.
  EXPECT_EQ(*(*t)->decode(ids), "\nhi<think>");
  ids = encode(**t, chat, {true, false});
  EXPECT_EQ(ids.back(), 709);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), 701), 0);

  config["additional_special_tokens"].push_back("<|new|>");
  refuses(file, StatusCode::Invalid,
          "/additional_special_tokens/2: \"<|new|>\" is not in", config);
}

TEST(TokenizerLoad, ReportsAllMistakesTogether) {
  auto file = smallFile();
  file["model"]["merges"] = json::array({"a zz", "b zz"});
  file["added_tokens"] = json::array({3});
  std::string message = loadError(file);
  for (const char *part :
       {"/model/merges/0", "/model/merges/1", "/added_tokens/0"})
    EXPECT_NE(message.find(part), std::string::npos) << message;
}

} // namespace
