//===- Characters.h - classes of characters ---------------------*- C++ -*-===//
//
// Part of mla. The two classes that added tokens ask for, as Rust's regex crate
// defines them (\w and \s), since Hugging Face uses that crate there.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_CHARACTERS_H
#define MLA_RUNTIME_TOKENIZER_CHARACTERS_H

namespace mla {

/// Alphabetic, mark, decimal number, connector, or joiner.
bool isWordCharacter(char32_t c);
/// Unicode's White_Space.
bool isWhiteSpace(char32_t c);

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_CHARACTERS_H
