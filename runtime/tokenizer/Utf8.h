//===- Utf8.h - stepping through UTF-8 --------------------------*- C++ -*-===//
//
// Part of mla. The one rule for bytes that form no character: each maximal part
// that could begin a character but does not (Unicode 3.9, "maximal subpart")
// counts as one U+FFFD. Rust's and so Hugging Face's lossy strings do the same.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_UTF8_H
#define MLA_RUNTIME_TOKENIZER_UTF8_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace mla {

struct Utf8Step {
  enum Kind {
    Character,
    Wrong,     ///< `length` bytes that no continuation could repair
    Unfinished ///< the text ends inside a character that is right so far
  } kind;
  uint32_t length;
  char32_t codePoint; ///< of a Character
};

/// What stands at the front of `text`, which must not be empty.
Utf8Step stepUtf8(std::string_view text);

bool isValidUtf8(std::string_view text);

/// Bytes at the front of a character that begins with `lead`, in valid text.
inline size_t utf8Length(char lead) {
  auto b = static_cast<unsigned char>(lead);
  return b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
}

/// Appends `bytes` to `out` with U+FFFD for what is wrong. Returns how many
/// bytes at the end are unfinished; these are not appended.
size_t appendUtf8(std::string_view bytes, std::string &out);

/// All of `bytes` as valid text, with U+FFFD for what is wrong or unfinished.
std::string toValidUtf8(std::string_view bytes);

/// Appends one code point, which must be a scalar value.
void appendCodePoint(char32_t codePoint, std::string &out);

inline constexpr std::string_view replacementCharacter = "\xEF\xBF\xBD";

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_UTF8_H
