//===- TestTokenizers.h - tokenizers that tests share -----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_TOKENIZER_TESTTOKENIZERS_H
#define MLA_UNITTESTS_TOKENIZER_TESTTOKENIZERS_H

#include "mla/Support/Json.h"
#include "runtime/tokenizer/ByteAlphabet.h"
#include "runtime/tokenizer/Tokenizer.h"
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace mla::test {

inline std::unique_ptr<Tokenizer> mustLoad(const std::filesystem::path &path) {
  auto t = Tokenizer::fromFile(path);
  EXPECT_TRUE(t.ok()) << t.status().message();
  return t.ok() ? *std::move(t) : nullptr;
}

inline std::unique_ptr<Tokenizer> kjv() { return mustLoad(MLA_KJV_TINY); }

inline std::filesystem::path casesFile(const char *name) {
  return std::filesystem::path(MLA_TOKENIZER_CASES) / name;
}

inline std::unique_ptr<Tokenizer> kimiLike() {
  return mustLoad(casesFile("kimi_like"));
}

/// The parts of the smallest file that is accepted: 256 bytes, "ab" (256), and
/// the special token "<s>" (257). Tests change a copy.
inline nlohmann::json smallFile() {
  nlohmann::json vocab;
  for (int b = 0; b < 256; ++b)
    vocab[spellByte(static_cast<uint8_t>(b))] = b;
  vocab["ab"] = 256;
  return {{"added_tokens",
           nlohmann::json::array(
               {{{"id", 257}, {"content", "<s>"}, {"special", true}}})},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"},
            {"add_prefix_space", false},
            {"use_regex", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"vocab", vocab},
            {"merges", nlohmann::json::array({"a b"})}}}};
}

inline Result<std::unique_ptr<Tokenizer>>
load(const nlohmann::json &file, const nlohmann::json &config = nullptr) {
  return Tokenizer::fromText(file.dump(),
                             config.is_null() ? "" : config.dump());
}

/// The message of the error that `file` must give, "" if it gives none.
inline std::string loadError(const nlohmann::json &file,
                             const nlohmann::json &config = nullptr) {
  auto t = load(file, config);
  return t.ok() ? "" : t.status().message();
}

using Ids = std::vector<int32_t>;
inline Ids encode(const Tokenizer &t, std::string_view text,
                  EncodeOptions options = {false, true}) {
  auto ids = t.encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids{-1};
}

} // namespace mla::test

#endif // MLA_UNITTESTS_TOKENIZER_TESTTOKENIZERS_H
