//===- Characters.cpp - classes of characters -----------------------------===//
//
// Part of mla. PCRE2's tables are the only Unicode data here, so the word class
// asks a one-character pattern. That is slow and rare: only tokens with
// "single_word" need it.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Characters.h"
#include "runtime/tokenizer/Utf8.h"
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace mla {

bool isWhiteSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool isWordCharacter(char32_t c) {
  if (c < 0x80)
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') ||
           (c >= 'a' && c <= 'z') || c == '_';
  // Compiled once and never freed, so that it outlives every tokenizer.
  static const pcre2_code *const code = [] {
    constexpr char pattern[] =
        "[\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}]";
    int error;
    PCRE2_SIZE offset;
    return pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern),
                         sizeof(pattern) - 1, PCRE2_UTF, &error, &offset,
                         nullptr);
  }();
  pcre2_match_data *data = pcre2_match_data_create(1, nullptr);
  if (!code || !data) {
    pcre2_match_data_free(data);
    return true; // Out of memory: a letter is the likelier guess.
  }
  std::string text;
  appendCodePoint(c, text);
  int rc = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                       text.size(), 0, 0, data, nullptr);
  pcre2_match_data_free(data);
  return rc >= 0;
}

} // namespace mla
