//===- Utf8.cpp - stepping through UTF-8 ----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Utf8.h"

namespace mla {

Utf8Step stepUtf8(std::string_view text) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  unsigned char lead = byte(0);
  if (lead < 0x80)
    return {Utf8Step::Character, 1, lead};
  // The second byte's range is what excludes overlong forms, surrogates and
  // values beyond U+10FFFF.
  unsigned char low = 0x80, high = 0xBF;
  uint32_t length;
  char32_t value;
  if (lead >= 0xC2 && lead <= 0xDF) {
    length = 2;
    value = lead & 0x1F;
  } else if (lead >= 0xE0 && lead <= 0xEF) {
    length = 3;
    value = lead & 0x0F;
    if (lead == 0xE0)
      low = 0xA0;
    else if (lead == 0xED)
      high = 0x9F;
  } else if (lead >= 0xF0 && lead <= 0xF4) {
    length = 4;
    value = lead & 0x07;
    if (lead == 0xF0)
      low = 0x90;
    else if (lead == 0xF4)
      high = 0x8F;
  } else {
    return {Utf8Step::Wrong, 1, 0};
  }
  for (uint32_t i = 1; i < length; ++i) {
    if (i == text.size())
      return {Utf8Step::Unfinished, i, 0};
    if (byte(i) < low || byte(i) > high)
      return {Utf8Step::Wrong, i, 0};
    value = (value << 6) | (byte(i) & 0x3F);
    low = 0x80;
    high = 0xBF;
  }
  return {Utf8Step::Character, length, value};
}

bool isValidUtf8(std::string_view text) {
  while (!text.empty()) {
    Utf8Step step = stepUtf8(text);
    if (step.kind != Utf8Step::Character)
      return false;
    text.remove_prefix(step.length);
  }
  return true;
}

size_t appendUtf8(std::string_view bytes, std::string &out) {
  while (!bytes.empty()) {
    Utf8Step step = stepUtf8(bytes);
    if (step.kind == Utf8Step::Unfinished)
      return bytes.size();
    if (step.kind == Utf8Step::Character)
      out += bytes.substr(0, step.length);
    else
      out += replacementCharacter;
    bytes.remove_prefix(step.length);
  }
  return 0;
}

std::string toValidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (appendUtf8(bytes, out) != 0)
    out += replacementCharacter;
  return out;
}

void appendCodePoint(char32_t c, std::string &out) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xC0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xE0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  } else {
    out += static_cast<char>(0xF0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3F));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3F));
    out += static_cast<char>(0x80 | (c & 0x3F));
  }
}

} // namespace mla
