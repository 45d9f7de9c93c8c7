//===- TokenizerParts.h - what a tokenizer is made of -----------*- C++ -*-===//
//
// Part of mla. Private to runtime/tokenizer: written by TokenizerLoader, read
// by Tokenizer.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_TOKENIZERPARTS_H
#define MLA_RUNTIME_TOKENIZER_TOKENIZERPARTS_H

#include "mla/Support/Json.h"
#include "runtime/tokenizer/AddedTokens.h"
#include "runtime/tokenizer/Bpe.h"
#include "runtime/tokenizer/PreTokenizer.h"
#include "runtime/tokenizer/Tokenizer.h"

namespace mla {

struct Tokenizer::Parts {
  struct Piece {
    std::string spelled;  ///< as in the file
    std::string bytes;    ///< what it stands for in a text
    bool known = false;   ///< false where the ids have a gap
    bool inModel = false; ///< of the vocabulary; else only an added token
    bool added = false;
    bool special = false;
  };
  std::vector<Piece> pieces; ///< by id
  std::unordered_map<std::string, int32_t> ids;
  Bpe bpe;
  AddedTokens added;
  PreTokenizer preTokenizer;
  std::optional<int32_t> bos, eos, pad;
  std::vector<int32_t> prefix, suffix;
  std::string chatTemplate;
  std::string name;

  const Piece *find(int32_t id) const {
    return id >= 0 && size_t(id) < pieces.size() && pieces[id].known
               ? &pieces[id]
               : nullptr;
  }
};

/// Reads the JSON files. One function a part of the file; each returns what is
/// not supported and records wrong values in its document.
class TokenizerLoader {
public:
  static Result<std::unique_ptr<Tokenizer>>
  load(std::string_view json, std::string_view config, std::string name,
       std::string configName, std::string chatTemplate);

private:
  using Piece = Tokenizer::Parts::Piece;

  Status readTokenizer(JsonValue root);
  Status readNormalizer(JsonValue value);
  Status readModel(JsonValue model);
  void readVocabulary(JsonValue vocab);
  void readMerges(JsonValue merges);
  void readAddedTokens(JsonValue list);
  void addToken(JsonValue at, int64_t id, bool mayExist);
  Status readPostProcessor(JsonValue value, int depth);
  void readTemplate(JsonValue value);
  Status readDecoder(JsonValue value, int depth);
  Status finishBytes(JsonValue model);

  Status readConfig(JsonValue root);
  std::optional<int32_t> readNamedToken(JsonValue value);
  void readChatTemplate(JsonValue value);

  Piece &place(int64_t id);

  std::unique_ptr<Tokenizer::Parts> parts;
  bool ignoreMerges = false;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_TOKENIZERPARTS_H
