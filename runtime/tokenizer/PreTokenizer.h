//===- PreTokenizer.h - text to words ---------------------------*- C++ -*-===//
//
// Part of mla. The "pre_tokenizer" of tokenizer.json: a chain of splits, each
// applied to every piece of the one before as if it were a text of its own.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_PRETOKENIZER_H
#define MLA_RUNTIME_TOKENIZER_PRETOKENIZER_H

#include "mla/Support/Json.h"
#include "runtime/tokenizer/Regex.h"
#include <deque>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace mla {

/// The error that `at` is `what`, which no tokenizer here has.
Status notSupported(JsonValue at, const std::string &what);

class PreTokenizer {
public:
  struct Scratch {
    RegexScratch regex;
    std::deque<std::string> owned; ///< pieces that are not in the text
    std::vector<std::string_view> other;
  };

  /// Reads the value of "pre_tokenizer". Wrong types are recorded in the
  /// document; what is not supported is the Status.
  Status read(JsonValue value);
  /// Splits by one pattern alone. Errors: those of Regex::compile.
  Status readPattern(std::string_view pattern);
  /// Overrides the option of a lone ByteLevel, as tokenizer_config.json may.
  void overridePrefixSpace(bool add);

  /// The words of `text` (valid UTF-8), as bytes. They live as long as `text`
  /// and the scratch's `owned`.
  Status split(std::string_view text, Scratch &scratch,
               std::vector<std::string_view> &words) const;

private:
  struct PrefixSpace {}; ///< a space before each piece that begins with none
  using Stage = std::variant<Regex, std::string, PrefixSpace>;

  Status readOne(JsonValue value, bool last, int depth);
  Status readSplit(JsonValue value);
  Status readByteLevel(JsonValue value);
  Status addRegex(JsonValue where, std::string_view pattern);

  std::vector<Stage> stages;
  bool sawByteLevel = false;
  bool loneByteLevel = false;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_PRETOKENIZER_H
