//===- TiktokenLoader.cpp - reading tiktoken.model ------------------------===//
//
// Part of mla. The vocabulary of the Kimi models: a line for each token, its
// bytes in base64 and its rank, which is its id and says what is merged first.
// The 256 ids after the last rank are special tokens; tokenizer_config.json
// names some of them, the others are "<|reserved_token_ID|>". How a text is
// split into words stands in no file but in the Python code beside them
// (tokenization_kimi.py, class TikTokenTokenizer).
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/ByteAlphabet.h"
#include "runtime/tokenizer/TokenizerParts.h"
#include <algorithm>
#include <charconv>

namespace mla {

namespace {
constexpr int32_t reservedCount = 256;
constexpr int64_t maxRank = maxTokenId - reservedCount;
// Each cut of a token is looked up, so a token must not be huge.
constexpr size_t maxTokenBytes = 4096;

// In this order: runs of Han; words that end in lower case; words that begin
// with upper case (so "getUserName" is get, User, Name), each with an English
// contraction; digits by threes; punctuation; line ends; white space.
constexpr std::string_view kimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

/// The value of a base64 digit, or -1.
int base64Digit(char c) {
  if (c >= 'A' && c <= 'Z')
    return c - 'A';
  if (c >= 'a' && c <= 'z')
    return c - 'a' + 26;
  if (c >= '0' && c <= '9')
    return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/// RFC 4648 with its padding and nothing else; nothing for what is none.
std::optional<std::string> decodeBase64(std::string_view text) {
  if (text.size() % 4 != 0)
    return std::nullopt;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding)
    text.remove_suffix(1);
  std::string out;
  uint32_t bits = 0;
  int count = 0; // of bits that are in no byte yet
  for (char c : text) {
    int digit = base64Digit(c);
    if (digit < 0)
      return std::nullopt;
    bits = bits << 6 | static_cast<uint32_t>(digit);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count);
      bits &= (1u << count) - 1;
    }
  }
  // What is left over must be no whole digit and zero.
  return count < 6 && bits == 0 ? std::optional(out) : std::nullopt;
}

/// Part of a file in a message: short, and ASCII.
std::string quoted(std::string_view text) {
  constexpr size_t most = 40;
  std::string out = "\"";
  for (char c : text.substr(0, most))
    out += c >= 0x20 && c < 0x7F ? c : '?';
  return out + (text.size() > most ? "...\"" : "\"");
}

std::string spellBytes(std::string_view bytes) {
  std::string out;
  for (char c : bytes)
    out += spellByte(static_cast<uint8_t>(c));
  return out;
}

struct RankLine {
  std::string bytes;
  int32_t rank = -1;
};

Result<RankLine> readLine(std::string_view line) {
  size_t space = std::min(line.find(' '), line.size());
  std::string_view token = line.substr(0, space);
  std::string_view digits = line.substr(std::min(space + 1, line.size()));
  if (token.empty() || digits.empty())
    return invalid("expected a token in base64, a space and its rank, found " +
                   quoted(line));
  std::optional<std::string> bytes = decodeBase64(token);
  if (!bytes || bytes->empty() || bytes->size() > maxTokenBytes)
    return invalid("expected 1 to " + std::to_string(maxTokenBytes) +
                   " bytes in base64, found " + quoted(token));
  int32_t rank = -1;
  const char *digitsEnd = digits.data() + digits.size();
  auto [end, error] = std::from_chars(digits.data(), digitsEnd, rank);
  if (error != std::errc() || end != digitsEnd || rank < 0 || rank > maxRank)
    return invalid("expected a rank from 0 to " + std::to_string(maxRank) +
                   ", found " + quoted(digits));
  return RankLine{*std::move(bytes), rank};
}
} // namespace

Result<std::unique_ptr<Tokenizer>>
TokenizerLoader::loadTiktoken(std::string_view ranks, std::string name,
                              TokenizerSidecars sidecars) {
  TokenizerLoader loader(std::move(name));
  loader.tiktoken = true;
  MLA_RETURN_IF_ERROR(loader.readRanks(ranks));
  MLA_RETURN_IF_ERROR(loader.parts->preTokenizer.readPattern(kimiPattern));
  if (sidecars.config.empty())
    return notFound(loader.parts->name +
                    ": its special tokens are named by tokenizer_config.json, "
                    "which is missing or empty");
  return loader.finish(std::move(sidecars));
}

Status TokenizerLoader::readRanks(std::string_view text) {
  auto lines = static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  lines = std::min<size_t>(lines + 1, maxTokenId);
  parts->pieces.reserve(lines + reservedCount);
  parts->ids.reserve(lines + reservedCount);
  parts->bpe.reserveWords(lines);

  size_t count = 0;    // of tokens
  size_t lastLine = 0; // where the largest rank stands
  for (size_t number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.ends_with('\r'))
      line.remove_suffix(1);
    if (line.empty())
      continue;
    std::string where = parts->name + ":" + std::to_string(number);
    Result<RankLine> read = readLine(line);
    if (!read.ok())
      return read.status().withContext(where);
    auto &[bytes, rank] = *read;

    if (size_t(rank) >= parts->pieces.size())
      lastLine = number;
    Piece &piece = place(rank);
    if (piece.known)
      return invalid(where + ": rank " + std::to_string(rank) +
                     " is also that of \"" + piece.spelled + "\"");
    std::string spelled = spellBytes(bytes);
    auto [other, added] = parts->ids.emplace(spelled, rank);
    if (!added)
      return invalid(where + ": the token \"" + spelled +
                     "\" already has rank " + std::to_string(other->second));
    piece.known = piece.inModel = true;
    piece.spelled = std::move(spelled);
    piece.bytes = bytes;
    if (bytes.size() == 1)
      parts->bpe.setByte(static_cast<uint8_t>(bytes.front()), rank);
    parts->bpe.setWord(std::move(bytes), rank);
    ++count;
  }
  MLA_RETURN_IF_ERROR(checkRanks(count, lastLine));
  parts->bpe.mergeByRank();
  return {};
}

/// The special tokens follow the ranks, so there must be no hole below them;
/// and a text may have any byte. `lastLine` is where the largest rank stands.
Status TokenizerLoader::checkRanks(size_t count, size_t lastLine) {
  const auto &pieces = parts->pieces;
  if (count < pieces.size()) {
    auto hole = std::find_if(pieces.begin(), pieces.end(),
                             [](const Piece &piece) { return !piece.known; });
    return invalid(parts->name + ":" + std::to_string(lastLine) +
                   ": expected the ranks of " + std::to_string(count) +
                   " tokens to be 0 to " + std::to_string(count - 1) +
                   ", found " + std::to_string(pieces.size() - 1) +
                   ", while no line has rank " +
                   std::to_string(hole - pieces.begin()));
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (parts->ids.contains(spellByte(static_cast<uint8_t>(byte))))
      continue;
    constexpr char hex[] = "0123456789abcdef";
    return invalid(parts->name +
                   ": expected a token for each byte, found none for 0x" +
                   std::string{hex[byte >> 4], hex[byte & 15]} + " among " +
                   std::to_string(count) + " tokens");
  }
  return {};
}

/// The 256 special tokens, of tokenizer_config.json's root.
Status TokenizerLoader::readReserved(JsonValue root) {
  JsonValue kind = root["tokenizer_class"];
  if (kind.present() && kind.string() != "TikTokenTokenizer")
    return unsupported(kind.file() + ": at " + kind.pointer() +
                       ": expected \"TikTokenTokenizer\", whose pattern is "
                       "known, beside tiktoken.model; found " +
                       kind.describe());
  auto first = static_cast<int32_t>(parts->pieces.size());
  int32_t end = first + reservedCount;
  JsonValue named = root["added_tokens_decoder"];
  if (named.present())
    readTokensById(named, first, end - 1);
  AddedTokenFlags flags;
  flags.special = true;
  for (int32_t id = first; id < end; ++id) {
    if (parts->find(id))
      continue;
    std::string content = "<|reserved_token_" + std::to_string(id) + "|>";
    if (auto reason = placeAdded(content, id, flags, /*skipped=*/true))
      named.failWith(*reason);
  }
  return {};
}

} // namespace mla
