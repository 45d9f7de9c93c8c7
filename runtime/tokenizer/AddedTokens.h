//===- AddedTokens.h - tokens that stand in the text ------------*- C++ -*-===//
//
// Part of mla. Finds the added tokens of tokenizer.json in a text before it is
// split into words: leftmost first, the longest among those that begin at the
// same place; first those with "normalized": false over the whole text, then
// the others over what is left, as Hugging Face does.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_ADDEDTOKENS_H
#define MLA_RUNTIME_TOKENIZER_ADDEDTOKENS_H

#include <bitset>
#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mla {

struct AddedTokenFlags {
  bool special = false;
  bool singleWord = false; ///< only where no word character touches it
  bool lstrip = false;     ///< takes the white space before it along
  bool rstrip = false;     ///< takes the white space after it along
  bool normalized = false;
};

class AddedTokens {
public:
  /// A part of the text: plain text (id < 0), or an added token.
  struct Segment {
    std::string_view text;
    int32_t id;
  };

  /// `content` must not be empty.
  void add(std::string_view content, int32_t id, AddedTokenFlags flags);

  /// `text` must be valid UTF-8. Without `parseSpecial`, special tokens are
  /// left in the text.
  std::vector<Segment> split(std::string_view text, bool parseSpecial) const;

private:
  struct Token {
    int32_t id;
    uint32_t length;
    AddedTokenFlags flags;
  };
  /// A trie over bytes.
  class Matcher {
  public:
    void add(std::string_view content, int32_t token);
    /// The longest token at the front of `text`, or -1.
    int32_t match(std::string_view text) const;
    bool begins(char c) const { return first[static_cast<unsigned char>(c)]; }
    bool empty() const { return first.none(); }

  private:
    std::bitset<256> first;
    std::unordered_map<uint64_t, uint32_t> edges; ///< node << 8 | byte -> node
    std::vector<int32_t> tokenAt{-1};
  };
  void splitOne(const Matcher &matcher, std::string_view text,
                bool parseSpecial, std::vector<Segment> &out) const;

  std::vector<Token> tokens;
  Matcher exact, normalized;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_ADDEDTOKENS_H
