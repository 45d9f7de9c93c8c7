//===- ByteAlphabet.h - bytes spelled as printable characters ---*- C++ -*-===//
//
// Part of mla. Byte-level vocabularies spell each byte as one printable
// character: '!'..'~', U+00A1..U+00AC and U+00AE..U+00FF stand for themselves,
// the 68 other bytes, in order, for U+0100 onward (so " " is "Ġ").
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_BYTEALPHABET_H
#define MLA_RUNTIME_TOKENIZER_BYTEALPHABET_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mla {

/// The character that spells `byte`, in UTF-8.
std::string spellByte(uint8_t byte);

/// The bytes that `piece` spells, or nothing if a character of it spells none.
std::optional<std::string> unspell(std::string_view piece);

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_BYTEALPHABET_H
