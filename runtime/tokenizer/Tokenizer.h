//===- Tokenizer.h - text to ids and back -----------------------*- C++ -*-===//
//
// Part of mla. A byte-level BPE tokenizer, read from Hugging Face's
// tokenizer.json or from Kimi's tiktoken.model, with tokenizer_config.json
// beside it. It gives the ids that the `tokenizers` or the `tiktoken` library
// gives, or an error at load that names what this reader does not do; nothing
// is ignored that could change an id.
//
// Text that is not valid UTF-8 is encoded as if every maximal invalid part
// were U+FFFD: the texts of both libraries are Unicode, and that is what their
// callers make of wrong bytes (Rust's from_utf8_lossy, Python's
// errors="replace"). Decoding bytes that form no character gives U+FFFD by the
// same rule.
//
// One difference to Kimi's own Python remains: before it calls tiktoken, it
// cuts a text at every 400,000 characters and inside runs of more than 25,000
// characters with or without white space, to spare tiktoken's stack. Here no
// text is cut; the ids are those of tiktoken for the whole text.
//
// A Tokenizer is immutable: all const members may be called from many threads.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_TOKENIZER_H
#define MLA_RUNTIME_TOKENIZER_TOKENIZER_H

#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mla {

struct EncodeOptions {
  /// Put the ids before and after the text that the files ask for (usually
  /// BOS). Set to false for text made by a chat template, which writes them.
  bool addSpecial = true;
  /// Recognise special tokens written in the text ("<｜User｜>"). Set to false
  /// for text of a user, so that it cannot forge them. With tiktoken.model
  /// these are all 256 added tokens, whatever their "special" says.
  bool parseSpecial = true;
};

class Tokenizer {
public:
  /// `path` is tokenizer.json, a tiktoken file (*.model), or a folder, in which
  /// tokenizer.json is preferred to tiktoken.model. tokenizer_config.json and
  /// chat_template.jinja beside it are read if they exist; tiktoken.model needs
  /// the first, which names its special tokens.
  static Result<std::unique_ptr<Tokenizer>>
  fromFile(const std::filesystem::path &path);

  /// From texts. An empty `config` means that there is no
  /// tokenizer_config.json; `name` stands for the file in messages.
  static Result<std::unique_ptr<Tokenizer>>
  fromText(std::string_view json, std::string_view config = {},
           std::string name = "tokenizer.json");

  /// The same for tiktoken.model: lines of a token in base64 and its rank.
  static Result<std::unique_ptr<Tokenizer>>
  fromTiktokenText(std::string_view ranks, std::string_view config,
                   std::string name = "tiktoken.model");

  ~Tokenizer();

  /// Text may hold any bytes (see above). Errors: Exhausted if a pattern of
  /// the file meets its match limit on this text, Invalid if the vocabulary
  /// lacks a byte of the text or the text exceeds 1 GiB.
  Result<std::vector<int32_t>> encode(std::string_view text,
                                      const EncodeOptions &options = {}) const;

  /// The text of `ids`, always valid UTF-8. An id without a piece is an error.
  Result<std::string> decode(std::span<const int32_t> ids,
                             bool skipSpecial = true) const;

  /// One more than the largest id; some ids below may have no piece.
  int32_t vocabSize() const;
  /// The piece as tokenizer.json spells it ("Ġthe"; those of tiktoken.model are
  /// spelled likewise), or nothing for an unknown id.
  std::optional<std::string_view> idToPiece(int32_t id) const;
  /// The bytes that the id stands for (" the"); they may be part of a
  /// character only. Nothing for an unknown id.
  std::optional<std::string_view> idToBytes(int32_t id) const;
  /// The id of a piece as the file spells it, added tokens included.
  std::optional<int32_t> pieceToId(std::string_view piece) const;
  /// True for added tokens that the file marks "special".
  bool isSpecial(int32_t id) const;

  /// From tokenizer_config.json; nothing if it names none.
  std::optional<int32_t> bosId() const;
  std::optional<int32_t> eosId() const;
  std::optional<int32_t> padId() const;
  /// What encode(addSpecial) puts before and after the text.
  std::span<const int32_t> prefixIds() const;
  std::span<const int32_t> suffixIds() const;
  /// The chat template as text (Jinja); empty if there is none.
  const std::string &chatTemplate() const;

private:
  struct Parts;
  friend class TokenizerLoader;
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts;
};

/// Turns ids into text one at a time, for printing while a model generates. The
/// pieces returned join to what Tokenizer::decode gives for all ids together,
/// and each is valid UTF-8: bytes of an unfinished character are held back.
/// The tokenizer must outlive it.
class StreamDecoder {
public:
  explicit StreamDecoder(const Tokenizer &tokenizer, bool skipSpecial = true)
      : tokenizer(&tokenizer), skipSpecial(skipSpecial) {}

  /// The text that is ready after this id; often empty.
  Result<std::string> push(int32_t id);
  /// The end: U+FFFD if bytes of an unfinished character are held, else "".
  /// The decoder may be used anew afterwards.
  std::string finish();

private:
  const Tokenizer *tokenizer;
  bool skipSpecial;
  std::string held;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_TOKENIZER_H
