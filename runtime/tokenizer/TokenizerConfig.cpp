//===- TokenizerConfig.cpp - reading tokenizer_config.json ----------------===//
//
// Part of mla. What transformers does with this file that changes ids: named
// tokens, tokens that tokenizer.json lacks, BOS and EOS around a text, and the
// prefix space. "clean_up_tokenization_spaces" is not followed: it would make
// decoded text differ from what was encoded.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/TokenizerParts.h"
#include <charconv>

namespace mla {

/// The id of a token that is named as a text or as {"content": text}.
std::optional<int32_t> TokenizerLoader::readNamedToken(JsonValue value) {
  if (!value.present())
    return std::nullopt;
  std::string text =
      value.isObject() ? value["content"].string() : value.string();
  if (text.empty())
    return std::nullopt;
  auto it = parts->ids.find(text);
  if (it == parts->ids.end()) {
    value.failWith("\"" + text + "\" is not in the vocabulary");
    return std::nullopt;
  }
  return it->second;
}

void TokenizerLoader::readChatTemplate(JsonValue value) {
  if (!value.present())
    return;
  if (!value.isArray()) {
    parts->chatTemplate = value.string();
    return;
  }
  // Several named templates: the one named "default", as transformers does.
  for (JsonValue one : value.elements())
    if (one["name"].string() == "default")
      parts->chatTemplate = one["template"].string();
}

/// "added_tokens_decoder": tokens under their ids.
void TokenizerLoader::readTokensById(JsonValue object, int32_t first,
                                     int32_t last) {
  for (auto &[key, value] : object.members()) {
    int32_t id = -1;
    const char *keyEnd = key.data() + key.size();
    auto [end, error] = std::from_chars(key.data(), keyEnd, id);
    if (error != std::errc() || end != keyEnd || id < first || id > last)
      value.failWith("expected as the key an id from " + std::to_string(first) +
                     " to " + std::to_string(last));
    else if (!value.isObject())
      value.fail("an object");
    else
      addToken(value, id, /*mayExist=*/!tiktoken);
  }
}

Status TokenizerLoader::readConfig(JsonValue root) {
  if (!root.isObject()) {
    root.fail("an object");
    return {};
  }
  if (tiktoken)
    MLA_RETURN_IF_ERROR(readReserved(root));
  else if (root["added_tokens_decoder"].present())
    readTokensById(root["added_tokens_decoder"], 0, maxTokenId);
  parts->bos = readNamedToken(root["bos_token"]);
  parts->eos = readNamedToken(root["eos_token"]);
  parts->pad = readNamedToken(root["pad_token"]);
  // transformers would give new ids to names that have none.
  for (const char *key : {"additional_special_tokens", "extra_special_tokens"})
    if (root[key].isArray())
      for (JsonValue one : root[key].elements())
        (void)readNamedToken(one);
  readChatTemplate(root["chat_template"]);

  // These flags, where they are given, win over the template of tokenizer.json.
  auto around = [&](const char *key, std::optional<int32_t> id,
                    std::vector<int32_t> &ids, bool front) {
    JsonValue value = root[key];
    if (!value.present())
      return;
    bool wanted = value.boolean();
    if (wanted && !id) {
      value.failWith("there is no such token to add");
      return;
    }
    bool has = id && !ids.empty() && (front ? ids.front() : ids.back()) == *id;
    if (wanted && !has)
      ids.insert(front ? ids.begin() : ids.end(), *id);
    else if (!wanted && has)
      ids.erase(front ? ids.begin() : ids.end() - 1);
  };
  around("add_bos_token", parts->bos, parts->prefix, true);
  around("add_eos_token", parts->eos, parts->suffix, false);
  if (root["add_prefix_space"].present())
    parts->preTokenizer.overridePrefixSpace(root["add_prefix_space"].boolean());
  return {};
}

} // namespace mla
