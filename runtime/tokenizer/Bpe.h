//===- Bpe.h - merging the bytes of one word --------------------*- C++ -*-===//
//
// Part of mla. Byte-pair merges over ids: a word begins as one id a byte, and
// the adjacent pair of the lowest rank (leftmost among equals) is merged until
// no pair is in the table. A heap over a linked list makes it O(n log n).
//
// A merges list (tokenizer.json) fills the table itself. tiktoken has ranks
// only: it joins two neighbours if their bytes together are a token, the token
// of the lowest rank first. Since every part of a word is a token at any time,
// that is the same table with an entry for each token and each of its cuts into
// two tokens; mergeByRank() makes it, and encoding knows one algorithm.
//
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_TOKENIZER_BPE_H
#define MLA_RUNTIME_TOKENIZER_BPE_H

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mla {

class Bpe {
public:
  Bpe() { byteIds.fill(-1); }

  /// Memory that is reused from word to word.
  class Scratch {
    friend class Bpe;
    struct Symbol {
      int32_t id;
      int32_t previous, next; ///< -1 at the ends
    };
    struct Pair {
      uint32_t rank;
      int32_t position;
      int32_t id;                           ///< what the merge makes
      bool operator<(const Pair &o) const { // For a heap with the best on top.
        return rank != o.rank ? rank > o.rank : position > o.position;
      }
    };
    std::vector<Symbol> symbols;
    std::vector<Pair> heap;
  };

  void setByte(uint8_t byte, int32_t id) { byteIds[byte] = id; }
  /// A later merge of the same pair replaces the earlier one.
  void setMerge(int32_t left, int32_t right, uint32_t rank, int32_t id) {
    merges[key(left, right)] = {rank, id};
  }
  /// Words that are pieces as a whole skip the merges ("ignore_merges"; always
  /// so in tiktoken).
  void setWord(std::string word, int32_t id) { words[std::move(word)] = id; }
  /// The merges of a vocabulary whose ids are ranks: for each word that was set
  /// and each cut of it into two of them. To be called once, after all words.
  void mergeByRank();
  void reserveMerges(size_t count) { merges.reserve(count); }
  void reserveWords(size_t count) { words.reserve(count); }

  /// Appends the ids of `word`, which must be shorter than 2^31 bytes. Returns
  /// the byte that the vocabulary lacks, if so; `out` is then unchanged.
  std::optional<uint8_t> encode(std::string_view word, Scratch &scratch,
                                std::vector<int32_t> &out) const;

private:
  struct Merge {
    uint32_t rank;
    int32_t id;
  };
  struct StringHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const {
      return std::hash<std::string_view>()(s);
    }
  };
  static uint64_t key(int32_t left, int32_t right) {
    return uint64_t(uint32_t(left)) << 32 | uint32_t(right);
  }

  std::array<int32_t, 256> byteIds;
  std::unordered_map<uint64_t, Merge> merges;
  std::unordered_map<std::string, int32_t, StringHash, std::equal_to<>> words;
};

} // namespace mla

#endif // MLA_RUNTIME_TOKENIZER_BPE_H
