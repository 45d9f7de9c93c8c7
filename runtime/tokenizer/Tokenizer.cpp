//===- Tokenizer.cpp - text to ids and back -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Tokenizer.h"
#include "runtime/tokenizer/TokenizerParts.h"
#include "runtime/tokenizer/Utf8.h"

namespace mla {

namespace {
constexpr size_t maxText = size_t(1) << 30;
// Longer words hardly ever repeat.
constexpr size_t maxCachedWord = 64;

/// The file's text, or "" if there is no such file.
Result<std::string> readIfPresent(const std::filesystem::path &path) {
  Result<std::string> text = readFile(path, maxText);
  if (!text.ok() && text.status().code() == StatusCode::NotFound)
    return std::string();
  return text;
}
} // namespace

Tokenizer::Tokenizer(std::unique_ptr<Parts> parts) : parts(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>>
Tokenizer::fromFile(const std::filesystem::path &path) {
  std::error_code ec;
  std::filesystem::path file = path;
  if (std::filesystem::is_directory(path, ec)) {
    file = path / "tokenizer.json";
    if (!std::filesystem::exists(file, ec))
      file = path / "tiktoken.model";
    if (!std::filesystem::exists(file, ec))
      return notFound(path.string() +
                      " has neither tokenizer.json nor tiktoken.model");
  }
  std::filesystem::path folder = file.parent_path();
  std::filesystem::path configFile = folder / "tokenizer_config.json";
  MLA_ASSIGN_OR_RETURN(std::string vocabulary, readFile(file, maxText));
  MLA_ASSIGN_OR_RETURN(std::string config, readIfPresent(configFile));
  TokenizerSidecars sidecars{config, configFile.string(), ""};
  MLA_ASSIGN_OR_RETURN(sidecars.chatTemplate,
                       readIfPresent(folder / "chat_template.jinja"));
  auto load = file.extension() == ".model" ? TokenizerLoader::loadTiktoken
                                           : TokenizerLoader::loadJson;
  return load(vocabulary, file.string(), std::move(sidecars));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::fromText(std::string_view json,
                                                       std::string_view config,
                                                       std::string name) {
  return TokenizerLoader::loadJson(json, std::move(name),
                                   {config, "tokenizer_config.json", ""});
}

Result<std::unique_ptr<Tokenizer>>
Tokenizer::fromTiktokenText(std::string_view ranks, std::string_view config,
                            std::string name) {
  return TokenizerLoader::loadTiktoken(ranks, std::move(name),
                                       {config, "tokenizer_config.json", ""});
}

Result<std::vector<int32_t>>
Tokenizer::encode(std::string_view text, const EncodeOptions &options) const {
  if (text.size() > maxText)
    return invalid("a text of " + std::to_string(text.size()) +
                   " bytes; at most " + std::to_string(maxText) +
                   " can be encoded at once");
  std::string repaired;
  if (!isValidUtf8(text)) {
    repaired = toValidUtf8(text);
    text = repaired;
  }

  std::vector<int32_t> out;
  if (options.addSpecial)
    out = parts->prefix;
  PreTokenizer::Scratch scratch;
  Bpe::Scratch bpeScratch;
  std::vector<std::string_view> words;
  // Where in `out` the ids of a word that occurred before stand. The words live
  // in the text or in the scratch, until the end of this call.
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache;

  for (const auto &segment : parts->added.split(text, options.parseSpecial)) {
    if (segment.id >= 0) {
      out.push_back(segment.id);
      continue;
    }
    MLA_RETURN_IF_ERROR(
        parts->preTokenizer.split(segment.text, scratch, words));
    for (std::string_view word : words) {
      bool cached = word.size() <= maxCachedWord;
      if (cached) {
        if (auto it = cache.find(word); it != cache.end()) {
          auto [begin, end] = it->second;
          for (size_t i = begin; i < end; ++i) {
            int32_t id = out[i];
            out.push_back(id);
          }
          continue;
        }
      }
      size_t begin = out.size();
      if (auto byte = parts->bpe.encode(word, bpeScratch, out)) {
        constexpr char hex[] = "0123456789abcdef";
        return invalid(parts->name +
                       ": the vocabulary has no piece for the byte 0x" +
                       std::string{hex[*byte >> 4], hex[*byte & 15]} +
                       ", which is in the text");
      }
      if (cached)
        cache.emplace(word, std::pair(begin, out.size()));
    }
  }
  if (options.addSpecial)
    out.insert(out.end(), parts->suffix.begin(), parts->suffix.end());
  return out;
}

namespace {
Status unknownId(const Tokenizer &t, int32_t id) {
  return invalid("no piece has id " + std::to_string(id) +
                 "; the tokenizer's ids are below " +
                 std::to_string(t.vocabSize()));
}
} // namespace

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids,
                                      bool skipSpecial) const {
  std::string bytes;
  for (int32_t id : ids) {
    const Parts::Piece *piece = parts->find(id);
    if (!piece)
      return unknownId(*this, id);
    if (!(skipSpecial && piece->special))
      bytes += piece->bytes;
  }
  return toValidUtf8(bytes);
}

int32_t Tokenizer::vocabSize() const {
  return static_cast<int32_t>(parts->pieces.size());
}

std::optional<std::string_view> Tokenizer::idToPiece(int32_t id) const {
  if (const Parts::Piece *piece = parts->find(id))
    return piece->spelled;
  return std::nullopt;
}

std::optional<std::string_view> Tokenizer::idToBytes(int32_t id) const {
  if (const Parts::Piece *piece = parts->find(id))
    return piece->bytes;
  return std::nullopt;
}

std::optional<int32_t> Tokenizer::pieceToId(std::string_view piece) const {
  auto it = parts->ids.find(std::string(piece));
  if (it == parts->ids.end())
    return std::nullopt;
  return it->second;
}

bool Tokenizer::isSpecial(int32_t id) const {
  const Parts::Piece *piece = parts->find(id);
  return piece && piece->special;
}

std::optional<int32_t> Tokenizer::bosId() const { return parts->bos; }
std::optional<int32_t> Tokenizer::eosId() const { return parts->eos; }
std::optional<int32_t> Tokenizer::padId() const { return parts->pad; }
std::span<const int32_t> Tokenizer::prefixIds() const { return parts->prefix; }
std::span<const int32_t> Tokenizer::suffixIds() const { return parts->suffix; }
const std::string &Tokenizer::chatTemplate() const {
  return parts->chatTemplate;
}

//===----------------------------------------------------------------------===//
// StreamDecoder
//===----------------------------------------------------------------------===//

Result<std::string> StreamDecoder::push(int32_t id) {
  std::optional<std::string_view> bytes = tokenizer->idToBytes(id);
  if (!bytes)
    return unknownId(*tokenizer, id);
  std::string text;
  if (skipSpecial && tokenizer->isSpecial(id))
    return text;
  held += *bytes;
  size_t unfinished = appendUtf8(held, text);
  held.erase(0, held.size() - unfinished);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text(held.empty() ? std::string_view() : replacementCharacter);
  held.clear();
  return text;
}

} // namespace mla
