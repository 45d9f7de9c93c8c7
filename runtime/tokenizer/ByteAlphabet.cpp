//===- ByteAlphabet.cpp - bytes spelled as printable characters -----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/ByteAlphabet.h"
#include "runtime/tokenizer/Utf8.h"
#include <array>

namespace mla {

namespace {
bool spellsItself(char32_t c) {
  return (c >= 0x21 && c <= 0x7E) || (c >= 0xA1 && c <= 0xAC) ||
         (c >= 0xAE && c <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> spelling;
  std::array<int16_t, 0x144> byteOf; ///< -1: spells nothing
  Alphabet() {
    byteOf.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      char32_t c = spellsItself(b) ? char32_t(b) : next++;
      spelling[b] = c;
      byteOf[c] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet &alphabet() {
  static const Alphabet a;
  return a;
}
} // namespace

std::string spellByte(uint8_t byte) {
  std::string out;
  appendCodePoint(alphabet().spelling[byte], out);
  return out;
}

std::optional<std::string> unspell(std::string_view piece) {
  std::string out;
  while (!piece.empty()) {
    Utf8Step step = stepUtf8(piece);
    if (step.kind != Utf8Step::Character ||
        step.codePoint >= alphabet().byteOf.size() ||
        alphabet().byteOf[step.codePoint] < 0)
      return std::nullopt;
    out += static_cast<char>(alphabet().byteOf[step.codePoint]);
    piece.remove_prefix(step.length);
  }
  return out;
}

} // namespace mla
