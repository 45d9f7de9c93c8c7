//===- Regex.h - the patterns of tokenizer files ----------------*- C++ -*-===//
//
// Part of mla. Hugging Face runs the patterns of tokenizer.json with Oniguruma.
// Here they are rewritten (translateOniguruma) into what means the same to
// PCRE2, and run with it. What cannot be rewritten faithfully is Unsupported.
//
// tiktoken runs its patterns with Rust's regex crate, in a syntax of which the
// one pattern that matters (TiktokenLoader.cpp) is read the same way.
//
// Two differences remain. PCRE2's Unicode tables may be older or newer than
// those of Hugging Face's library (10.42 has Unicode 14, tokenizers 0.23 has
// 16; characters that both know split alike). And (?i) folds characters one by
// one: "ss" does not match U+00DF.
//
// The pattern comes from the model, the text from anybody: match and heap
// limits make sure that no text hangs a match; meeting one is Exhausted.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_REGEX_H
#define MLA_RUNTIME_TOKENIZER_REGEX_H

#include "mla/Support/Status.h"
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mla {

/// The memory of running matches; one for each thread that matches.
class RegexScratch {
public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch &) = delete;
  RegexScratch &operator=(const RegexScratch &) = delete;

private:
  friend class Regex;
  struct State;
  std::unique_ptr<State> state;
};

class Regex {
public:
  /// `pattern` in the syntax of Oniguruma, of which a subset is understood.
  static Result<Regex> compile(std::string_view pattern);
  Regex(Regex &&) noexcept;
  Regex &operator=(Regex &&) noexcept;
  ~Regex();

  /// Appends the matches and what lies between them to `out`, in order and
  /// without empty pieces ("Isolated"). `text` must be valid UTF-8; nothing
  /// outside it is looked at.
  Status split(std::string_view text, RegexScratch &scratch,
               std::vector<std::string_view> &out) const;

private:
  struct Code;
  Regex();
  std::unique_ptr<Code> code;
};

/// Oniguruma to PCRE2 (with UTF, UCP and newline LF). Differences that matter
/// here and are resolved: \s and \w (PCRE2's differ in U+180E and in marks),
/// ^ and $ (always at lines), \h, \v, {,n}, nested and intersected classes,
/// scripts (PCRE2 means script extensions), long names of categories. Refused:
/// back references, names, recursion, verbs, flags other than i, POSIX
/// brackets, possessive intervals and every unknown escape.
Result<std::string> translateOniguruma(std::string_view pattern);

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_REGEX_H
