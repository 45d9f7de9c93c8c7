//===- TokenizerLoader.cpp - reading tokenizer.json -----------------------===//
//
// Part of mla. See TokenizerConfig.cpp for tokenizer_config.json.
//
// "truncation" and "padding" are not read: Hugging Face's transformers switches
// both off before it encodes a text.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/ByteAlphabet.h"
#include "runtime/tokenizer/TokenizerParts.h"
#include "runtime/tokenizer/Utf8.h"

namespace mla {

namespace {
// The trie is searched from every place of a text.
constexpr size_t maxAddedToken = 1024;

/// False when the value is absent, null or false; records what is no boolean.
bool flag(JsonValue value) { return value.present() && value.boolean(); }

bool presentText(JsonValue value) {
  return value.present() && !value.string().empty();
}

/// Bytes that occur in no UTF-8 text; a vocabulary need not have them.
bool neverInUtf8(int byte) {
  return byte == 0xC0 || byte == 0xC1 || byte > 0xF4;
}
} // namespace

TokenizerLoader::TokenizerLoader(std::string name)
    : parts(std::make_unique<Tokenizer::Parts>()) {
  parts->name = std::move(name);
}

// A wrong value explains more than the refusal that may follow from it, so the
// document's errors go first.
static Status orElse(JsonDocument &doc, const Status &s) {
  return doc.failed() ? doc.status() : s;
}

Result<std::unique_ptr<Tokenizer>>
TokenizerLoader::loadJson(std::string_view json, std::string name,
                          TokenizerSidecars sidecars) {
  TokenizerLoader loader(name);
  MLA_ASSIGN_OR_RETURN(auto doc, JsonDocument::parseText(json, name));
  MLA_RETURN_IF_ERROR(orElse(*doc, loader.readTokenizer(doc->root())));
  return loader.finish(std::move(sidecars));
}

Result<std::unique_ptr<Tokenizer>>
TokenizerLoader::finish(TokenizerSidecars sidecars) {
  if (!sidecars.config.empty()) {
    MLA_ASSIGN_OR_RETURN(auto doc, JsonDocument::parseText(
                                       sidecars.config, sidecars.configName));
    MLA_RETURN_IF_ERROR(orElse(*doc, readConfig(doc->root())));
  }
  if (!sidecars.chatTemplate.empty())
    parts->chatTemplate = std::move(sidecars.chatTemplate);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Status TokenizerLoader::readTokenizer(JsonValue root) {
  MLA_RETURN_IF_ERROR(readNormalizer(root["normalizer"]));
  JsonValue model = root["model"];
  MLA_RETURN_IF_ERROR(readModel(model));
  if (root["added_tokens"].present())
    readAddedTokens(root["added_tokens"]);
  MLA_RETURN_IF_ERROR(finishBytes(model));
  MLA_RETURN_IF_ERROR(parts->preTokenizer.read(root["pre_tokenizer"]));
  if (root["post_processor"].present())
    MLA_RETURN_IF_ERROR(readPostProcessor(root["post_processor"], 0));
  if (root["decoder"].present())
    MLA_RETURN_IF_ERROR(readDecoder(root["decoder"], 0));
  return {};
}

Status TokenizerLoader::readNormalizer(JsonValue value) {
  if (!value.present())
    return {};
  std::string type = value["type"].string();
  if (type == "Sequence") {
    for (JsonValue one : value["normalizers"].elements())
      MLA_RETURN_IF_ERROR(readNormalizer(one));
    return {};
  }
  return type.empty()
             ? Status()
             : notSupported(value["type"], "the normalizer \"" + type + "\"");
}

//===----------------------------------------------------------------------===//
// The model
//===----------------------------------------------------------------------===//

TokenizerLoader::Piece &TokenizerLoader::place(int64_t id) {
  if (size_t(id) >= parts->pieces.size())
    parts->pieces.resize(id + 1);
  return parts->pieces[id];
}

Status TokenizerLoader::readModel(JsonValue model) {
  if (!model.isObject()) {
    model.fail("an object");
    return {};
  }
  if (model["type"].present() && model["type"].string() != "BPE")
    return notSupported(model["type"], "the model " + model["type"].describe());
  if (model["dropout"].present() && model["dropout"].number() != 0.0)
    return notSupported(model["dropout"], "dropout");
  if (flag(model["byte_fallback"]))
    return notSupported(model["byte_fallback"], "byte fallback");
  for (const char *key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (presentText(model[key]))
      return notSupported(model[key], key);
  ignoreMerges = flag(model["ignore_merges"]);
  readVocabulary(model["vocab"]);
  readMerges(model["merges"]);
  return {};
}

void TokenizerLoader::readVocabulary(JsonValue vocab) {
  for (auto &[spelled, value] : vocab.members()) {
    if (!value.isInteger() || value.integer(INT64_MIN, INT64_MAX) < 0 ||
        value.integer(INT64_MIN, INT64_MAX) > maxTokenId) {
      value.fail("an id from 0 to " + std::to_string(maxTokenId));
      continue;
    }
    int64_t id = value.integer(0, maxTokenId);
    Piece &piece = place(id);
    if (piece.known) {
      value.failWith("id " + std::to_string(id) + " is also that of \"" +
                     piece.spelled + "\"");
      continue;
    }
    piece.known = piece.inModel = true;
    piece.bytes = unspell(spelled).value_or(spelled);
    piece.spelled = spelled;
    parts->ids.emplace(spelled, static_cast<int32_t>(id));
  }
  if (vocab.isObject() && parts->ids.empty())
    vocab.failWith("expected at least one piece");
}

void TokenizerLoader::readMerges(JsonValue merges) {
  uint32_t rank = 0;
  parts->bpe.reserveMerges(merges.size());
  for (JsonValue merge : merges.elements()) {
    std::string left, right;
    if (merge.isString()) {
      std::string both = merge.string();
      size_t space = both.find(' ');
      if (space != std::string::npos &&
          both.find(' ', space + 1) == std::string::npos) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    } else if (merge.isArray() && merge.size() == 2) {
      left = merge.at(0).string();
      right = merge.at(1).string();
    }
    if (left.empty() || right.empty()) {
      merge.fail("two pieces, as \"a b\" or [\"a\", \"b\"]");
      continue;
    }
    std::optional<int32_t> ids[3];
    const std::string names[3] = {left, right, left + right};
    bool all = true;
    for (int i = 0; i < 3; ++i) {
      auto it = parts->ids.find(names[i]);
      if (it != parts->ids.end()) {
        ids[i] = it->second;
        continue;
      }
      merge.failWith("\"" + names[i] + "\" is not in the vocabulary");
      all = false;
      break;
    }
    if (all)
      parts->bpe.setMerge(*ids[0], *ids[1], rank, *ids[2]);
    ++rank;
  }
}

Status TokenizerLoader::finishBytes(JsonValue model) {
  bool complete = true;
  for (int byte = 0; byte < 256; ++byte) {
    auto it = parts->ids.find(spellByte(static_cast<uint8_t>(byte)));
    // An added token that looks like a spelled byte does not spell one.
    if (it != parts->ids.end() && parts->pieces[it->second].inModel)
      parts->bpe.setByte(static_cast<uint8_t>(byte), it->second);
    else if (!neverInUtf8(byte))
      complete = false;
  }
  // With every byte there is nothing unknown; without, Hugging Face would put
  // unk_token, and here encode() reports the byte.
  if (!complete && presentText(model["unk_token"]))
    return notSupported(model["unk_token"],
                        "an unknown token where the vocabulary lacks bytes");
  if (ignoreMerges)
    for (size_t id = 0; id < parts->pieces.size(); ++id) {
      const Piece &piece = parts->pieces[id];
      // Plain text must not become a special token by this way.
      if (piece.inModel && !piece.special)
        if (auto bytes = unspell(piece.spelled))
          parts->bpe.setWord(std::move(*bytes), static_cast<int32_t>(id));
    }
  return {};
}

//===----------------------------------------------------------------------===//
// Added tokens
//===----------------------------------------------------------------------===//

void TokenizerLoader::readAddedTokens(JsonValue list) {
  for (JsonValue entry : list.elements()) {
    if (!entry.isObject()) {
      entry.fail("an object");
      continue;
    }
    addToken(entry, entry["id"].integer(0, maxTokenId), false);
  }
}

/// `mayExist`: an added token of the same text is left as it is.
void TokenizerLoader::addToken(JsonValue at, int64_t id, bool mayExist) {
  std::string content = at["content"].string();
  AddedTokenFlags flags;
  bool special = flag(at["special"]);
  // tiktoken looks for all of them or for none; "special" says there only
  // which are left out of decoded text.
  flags.special = special || tiktoken;
  flags.singleWord = flag(at["single_word"]);
  flags.lstrip = flag(at["lstrip"]);
  flags.rstrip = flag(at["rstrip"]);
  flags.normalized = flag(at["normalized"]);
  if (content.empty() || content.size() > maxAddedToken) {
    at["content"].fail("a text of 1 to " + std::to_string(maxAddedToken) +
                       " bytes");
    return;
  }
  if (tiktoken && (flags.singleWord || flags.lstrip || flags.rstrip)) {
    at.failWith("expected \"single_word\", \"lstrip\" and \"rstrip\" to be "
                "false, since tiktoken knows no such tokens");
    return;
  }
  auto existing = parts->ids.find(content);
  if (mayExist && existing != parts->ids.end() &&
      parts->pieces[existing->second].added)
    return;
  if (auto reason = placeAdded(content, id, flags, special))
    at.failWith(*reason);
}

/// Makes `content` the added token `id`, or says why it cannot be. `skipped`:
/// left out of decoded text on request.
std::optional<std::string>
TokenizerLoader::placeAdded(const std::string &content, int64_t id,
                            AddedTokenFlags flags, bool skipped) {
  auto existing = parts->ids.find(content);
  if (existing != parts->ids.end() &&
      (parts->pieces[existing->second].added || existing->second != id))
    return "\"" + content + "\" already has id " +
           std::to_string(existing->second);
  Piece &piece = place(id);
  if (piece.known && piece.spelled != content)
    return "id " + std::to_string(id) + " is also that of \"" + piece.spelled +
           "\"";
  piece.known = piece.added = true;
  piece.special = skipped;
  piece.spelled = piece.bytes = content;
  parts->ids.emplace(content, static_cast<int32_t>(id));
  parts->added.add(content, static_cast<int32_t>(id), flags);
  return std::nullopt;
}

//===----------------------------------------------------------------------===//
// Post-processor and decoder
//===----------------------------------------------------------------------===//

Status TokenizerLoader::readPostProcessor(JsonValue value, int depth) {
  std::string type = value["type"].string();
  if (type == "ByteLevel" || type.empty()) // It changes offsets, no ids.
    return {};
  if (type == "Sequence") {
    for (JsonValue one : value["processors"].elements())
      MLA_RETURN_IF_ERROR(readPostProcessor(one, depth + 1));
    return {};
  }
  if (type == "TemplateProcessing") {
    if (!parts->prefix.empty() || !parts->suffix.empty())
      return notSupported(value, "a second template");
    readTemplate(value);
    return {};
  }
  return notSupported(value["type"], "the post-processor \"" + type + "\"");
}

void TokenizerLoader::readTemplate(JsonValue value) {
  bool sawText = false;
  for (JsonValue item : value["single"].elements()) {
    if (item["Sequence"].present()) {
      if (sawText || item["Sequence"]["id"].string() != "A")
        item.failWith("expected the text \"A\" once");
      sawText = true;
      continue;
    }
    if (!item["SpecialToken"].present()) {
      item.fail("\"SpecialToken\" or \"Sequence\"");
      continue;
    }
    std::string name = item["SpecialToken"]["id"].string();
    for (JsonValue id : value["special_tokens"][name]["ids"].elements()) {
      auto number = static_cast<int32_t>(id.integer(0, maxTokenId));
      if (!parts->find(number))
        id.failWith("no piece has id " + std::to_string(number));
      (sawText ? parts->suffix : parts->prefix).push_back(number);
    }
  }
  if (!sawText)
    value["single"].failWith("expected the text \"A\" once");
}

Status TokenizerLoader::readDecoder(JsonValue value, int depth) {
  std::string type = value["type"].string();
  if (type == "ByteLevel" || type.empty())
    return {};
  if (type == "Sequence") {
    for (JsonValue one : value["decoders"].elements())
      MLA_RETURN_IF_ERROR(readDecoder(one, depth + 1));
    return {};
  }
  return notSupported(value["type"], "the decoder \"" + type + "\"");
}

} // namespace mla
