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

/// Ids index a table, so a wrong id must not make it huge. The largest
/// published vocabularies have 262,144.
inline constexpr int64_t maxTokenId = (int64_t(1) << 20) - 1;

struct Tokenizer::Parts {
  struct Piece {
    std::string spelled;  ///< as in the file
    std::string bytes;    ///< what it stands for in a text
    bool known = false;   ///< false where the ids have a gap
    bool inModel = false; ///< of the vocabulary; else only an added token
    bool added = false;
    bool special = false; ///< left out of decoded text on request
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

/// What stands beside the vocabulary; empty texts for files that are absent.
struct TokenizerSidecars {
  std::string_view config;  ///< the text of tokenizer_config.json
  std::string configName;   ///< its name in messages
  std::string chatTemplate; ///< the text of chat_template.jinja
};

/// Reads the files. One function a part of a file; each returns what is not
/// supported and records wrong values in its document.
class TokenizerLoader {
public:
  static Result<std::unique_ptr<Tokenizer>>
  loadJson(std::string_view json, std::string name, TokenizerSidecars sidecars);
  static Result<std::unique_ptr<Tokenizer>>
  loadTiktoken(std::string_view ranks, std::string name,
               TokenizerSidecars sidecars);

private:
  using Piece = Tokenizer::Parts::Piece;

  explicit TokenizerLoader(std::string name);
  Result<std::unique_ptr<Tokenizer>> finish(TokenizerSidecars sidecars);

  // tokenizer.json
  Status readTokenizer(JsonValue root);
  Status readNormalizer(JsonValue value);
  Status readModel(JsonValue model);
  void readVocabulary(JsonValue vocab);
  void readMerges(JsonValue merges);
  void readAddedTokens(JsonValue list);
  Status readPostProcessor(JsonValue value, int depth);
  void readTemplate(JsonValue value);
  Status readDecoder(JsonValue value, int depth);
  Status finishBytes(JsonValue model);

  // tiktoken.model
  Status readRanks(std::string_view text);
  Status checkRanks(size_t count, size_t lastLine);
  Status readReserved(JsonValue root);

  // tokenizer_config.json
  Status readConfig(JsonValue root);
  void readTokensById(JsonValue object, int32_t first, int32_t last);
  std::optional<int32_t> readNamedToken(JsonValue value);
  void readChatTemplate(JsonValue value);

  Piece &place(int64_t id);
  void addToken(JsonValue at, int64_t id, bool mayExist);
  std::optional<std::string> placeAdded(const std::string &content, int64_t id,
                                        AddedTokenFlags flags, bool skipped);

  std::unique_ptr<Tokenizer::Parts> parts;
  bool ignoreMerges = false;
  bool tiktoken = false;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_TOKENIZERPARTS_H
