//===- MutationTest.cpp - broken files give errors, not crashes -----------===//
//
// Part of mla. Mutates good files in a fixed pseudo-random way. A mutant is
// either refused with a message or must then encode and decode without harm.
//
//===----------------------------------------------------------------------===//
#include "TestTokenizers.h"
#include "runtime/tokenizer/Utf8.h"
#include <random>

using namespace mla;
using namespace mla::test;
using nlohmann::json;

namespace {

constexpr const char *someTexts[] = {
    "", "Hello <s> world 123  \n\n x", "<|user|>s word  <|mask|> \t<|end|>  ",
    "漢字\u0301 é\u00a0 'Re ab abab", "\xff\xc3"};

/// Returns whether the mutant was accepted.
bool exercise(Result<std::unique_ptr<Tokenizer>> t) {
  if (!t.ok()) {
    EXPECT_FALSE(t.status().message().empty());
    EXPECT_NE(t.status().code(), StatusCode::Internal) << t.status().message();
    return false;
  }
  for (const char *text : someTexts) {
    for (bool flag : {true, false}) {
      auto ids = (*t)->encode(text, {flag, !flag});
      if (!ids.ok())
        continue;
      for (int32_t id : *ids)
        EXPECT_TRUE((*t)->idToPiece(id).has_value()) << id;
      auto back = (*t)->decode(*ids, flag);
      EXPECT_TRUE(back.ok() && isValidUtf8(*back));
    }
  }
  return true;
}

bool exercise(const std::string &file, const std::string &config) {
  return exercise(Tokenizer::fromText(file, config));
}

void collect(const json &value, const json::json_pointer &at,
             std::vector<json::json_pointer> &out) {
  out.push_back(at);
  if (value.is_object())
    for (auto it = value.begin(); it != value.end(); ++it)
      collect(*it, at / it.key(), out);
  else if (value.is_array())
    for (size_t i = 0; i < value.size(); ++i)
      collect(value[i], at / i, out);
}

json readJson(const std::filesystem::path &path) {
  auto text = readFile(path);
  EXPECT_TRUE(text.ok()) << text.status().message();
  return json::parse(*text);
}

const json &replacement(std::mt19937 &random) {
  static const std::vector<json> values = {nullptr,
                                           true,
                                           false,
                                           -1,
                                           0,
                                           1,
                                           299,
                                           1048575,
                                           1048576,
                                           4294967296,
                                           1.5,
                                           "",
                                           "a",
                                           " ",
                                           "a b",
                                           "Ġ",
                                           "<s>",
                                           "é",
                                           "[",
                                           "(a+)+$",
                                           "\\p{",
                                           "Sequence",
                                           "ByteLevel",
                                           "BPE",
                                           "A",
                                           json::array(),
                                           json::object(),
                                           json::array({1, 2}),
                                           json::array({"a", "b"})};
  return values[random() % values.size()];
}

void mutateValues(json file, json config, int count, uint32_t seed) {
  std::vector<json::json_pointer> all, rare, inConfig;
  collect(file, json::json_pointer(), all);
  collect(config, json::json_pointer(), inConfig);
  for (const auto &p : all) // The many entries of a vocabulary would win.
    if (p.to_string().find("/vocab/") == std::string::npos &&
        p.to_string().find("/merges/") == std::string::npos)
      rare.push_back(p);
  std::mt19937 random(seed);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    json mutant = file, mutantConfig = config;
    for (uint32_t changes = 1 + random() % 2; changes > 0; --changes) {
      uint32_t kind = random() % 8;
      bool toConfig = kind == 0;
      const auto &from = toConfig ? inConfig : kind < 6 ? rare : all;
      json &root = toConfig ? mutantConfig : mutant;
      const auto &at = from[random() % from.size()];
      if (at.empty() || !root.contains(at))
        continue;
      json &parent = root[at.parent_pointer()];
      if (random() % 4 == 0 && parent.is_object())
        parent.erase(at.back());
      else if (random() % 4 == 0)
        root[at] = root[from[random() % from.size()].parent_pointer()];
      else
        root[at] = replacement(random);
    }
    SCOPED_TRACE("mutant " + std::to_string(i));
    accepted += exercise(mutant.dump(), mutantConfig.dump());
  }
  // Neither should all be refused, nor all pass.
  EXPECT_GT(accepted, count / 50);
  EXPECT_LT(accepted, count * 49 / 50);
}

const json someConfig = {
    {"bos_token", {{"content", "a"}, {"special", true}}},
    {"eos_token", "b"},
    {"add_bos_token", true},
    {"add_prefix_space", false},
    {"added_tokens_decoder",
     {{"900", {{"content", "<x>"}, {"special", true}}}}},
    {"chat_template", json::array({{{"name", "default"}, {"template", "t"}}})}};

TEST(TokenizerMutation, Values) {
  mutateValues(readJson(casesFile("glm_like_tokenizer.json")), someConfig, 900,
               1);
  mutateValues(smallFile(), someConfig, 600, 2);
}

TEST(TokenizerMutation, Bytes) {
  std::string file = readJson(casesFile("glm_like_tokenizer.json")).dump();
  // Two thirds of the cuts and changes fall outside the long vocabulary.
  size_t modelAt = file.find("\"model\""),
         modelEnd = file.rfind("\"normalizer\"");
  ASSERT_NE(modelAt, std::string::npos);
  std::mt19937 random(3);
  for (int i = 0; i < 700; ++i) {
    std::string mutant = file;
    for (uint32_t changes = 1 + random() % 3; changes > 0; --changes) {
      size_t at = random() % mutant.size();
      if (random() % 3 && at > modelAt && at < modelEnd)
        at = random() % 2
                 ? random() % modelAt
                 : std::min(modelEnd + random() % 1500, mutant.size() - 1);
      at = std::min(at, mutant.size() - 1);
      switch (random() % 4) {
      case 0:
        mutant[at] = static_cast<char>(random());
        break;
      case 1:
        mutant[at] = "0123456789{}[]\",:\\ae-."[random() % 23];
        break;
      case 2:
        mutant.erase(at, 1 + random() % 8);
        break;
      default:
        mutant.insert(at,
                      mutant.substr(random() % mutant.size(), random() % 16));
      }
    }
    SCOPED_TRACE("mutant " + std::to_string(i));
    exercise(mutant, "");
  }
  for (size_t length = 0; length < file.size(); length += 97)
    EXPECT_FALSE(exercise(file.substr(0, length), ""));
}

TEST(TokenizerMutation, Tiktoken) {
  auto ranks = readFile(casesFile("kimi_like/tiktoken.model"));
  ASSERT_TRUE(ranks.ok());
  const json config = readJson(casesFile("kimi_like/tokenizer_config.json"));
  std::vector<json::json_pointer> places;
  collect(config, json::json_pointer(), places);
  std::vector<size_t> starts{0}; // of lines
  for (size_t at = 0; (at = ranks->find('\n', at)) != std::string::npos;)
    starts.push_back(++at);
  starts.pop_back();
  std::mt19937 random(4);
  int accepted = 0;
  for (int i = 0; i < 1500; ++i) {
    std::string mutant = *ranks;
    json mutantConfig = config;
    size_t line = random() % starts.size(), begin = starts[line];
    size_t at = begin + random() % (mutant.find('\n', begin) - begin + 1);
    std::string other = mutant.substr(starts[random() % starts.size()]);
    other.resize(other.find('\n') + 1);
    switch (random() % 8) {
    case 0:
      mutant[at] = static_cast<char>(random());
      break;
    case 1:
      mutant[at] = "ABCxyz0189+/= \r\n"[random() % 16];
      break;
    case 2:
      mutant.erase(at, 1 + random() % 12);
      break;
    case 3:
      mutant.insert(at, other);
      break;
    case 4:
      mutant.insert(begin, random() % 2 ? "\n" : "\r\n");
      break;
    case 5: // The order of lines is free.
      mutant.erase(begin, mutant.find('\n', begin) + 1 - begin);
      mutant += ranks->substr(begin, ranks->find('\n', begin) + 1 - begin);
      break;
    case 6:
      mutant.resize(at);
      break;
    default: {
      const auto &place = places[1 + random() % (places.size() - 1)];
      mutantConfig[place] = replacement(random);
    }
    }
    SCOPED_TRACE("mutant " + std::to_string(i));
    accepted +=
        exercise(Tokenizer::fromTiktokenText(mutant, mutantConfig.dump()));
  }
  EXPECT_GT(accepted, 1500 / 10);
  EXPECT_LT(accepted, 1500 * 9 / 10);
}

} // namespace
