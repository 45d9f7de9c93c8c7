//===- Bpe.cpp - merging the bytes of one word ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/tokenizer/Bpe.h"
#include <algorithm>

namespace mla {

void Bpe::mergeByRank() {
  // In the order of their bytes, words come after their prefixes: a stack holds
  // those of the present word that are words, which are all left sides of it.
  std::vector<std::pair<std::string_view, int32_t>> sorted(words.begin(),
                                                           words.end());
  std::sort(sorted.begin(), sorted.end());
  std::vector<std::pair<std::string_view, int32_t>> prefixes;
  merges.reserve(2 * words.size());
  for (auto [word, id] : sorted) {
    while (!prefixes.empty() && !word.starts_with(prefixes.back().first))
      prefixes.pop_back();
    for (auto [left, leftId] : prefixes)
      if (auto right = words.find(word.substr(left.size()));
          right != words.end())
        setMerge(leftId, right->second, static_cast<uint32_t>(id), id);
    prefixes.emplace_back(word, id);
  }
}

std::optional<uint8_t> Bpe::encode(std::string_view word, Scratch &scratch,
                                   std::vector<int32_t> &out) const {
  if (!words.empty()) {
    if (auto it = words.find(word); it != words.end()) {
      out.push_back(it->second);
      return std::nullopt;
    }
  }

  auto &symbols = scratch.symbols;
  auto &heap = scratch.heap;
  symbols.clear();
  heap.clear();
  int32_t count = static_cast<int32_t>(word.size());
  for (int32_t i = 0; i < count; ++i) {
    auto byte = static_cast<uint8_t>(word[i]);
    if (byteIds[byte] < 0)
      return byte;
    symbols.push_back({byteIds[byte], i - 1, i + 1 < count ? i + 1 : -1});
  }
  auto lookUp = [&](int32_t left) -> std::optional<Scratch::Pair> {
    int32_t right = symbols[left].next;
    auto it = merges.find(key(symbols[left].id, symbols[right].id));
    if (it == merges.end())
      return std::nullopt;
    return Scratch::Pair{it->second.rank, left, it->second.id};
  };
  for (int32_t i = 0; i + 1 < count; ++i)
    if (auto pair = lookUp(i))
      heap.push_back(*pair);
  std::make_heap(heap.begin(), heap.end());

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    Scratch::Pair top = heap.back();
    heap.pop_back();
    Scratch::Symbol &left = symbols[top.position];
    if (left.id < 0 || left.next < 0)
      continue; // Its left side was merged away, or it is now the last.
    // Entries are not removed when their symbols change; what the pair makes
    // now tells whether the entry still holds. (The rank is not compared: the
    // reference does not either, and it can differ where two pairs make one
    // piece.)
    auto it = merges.find(key(left.id, symbols[left.next].id));
    if (it == merges.end() || it->second.id != top.id)
      continue;
    Scratch::Symbol &right = symbols[left.next];
    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) {
      symbols[left.next].previous = top.position;
      if (auto pair = lookUp(top.position)) {
        heap.push_back(*pair);
        std::push_heap(heap.begin(), heap.end());
      }
    }
    if (left.previous >= 0) {
      if (auto pair = lookUp(left.previous)) {
        heap.push_back(*pair);
        std::push_heap(heap.begin(), heap.end());
      }
    }
  }
  for (int32_t i = count > 0 ? 0 : -1; i >= 0; i = symbols[i].next)
    out.push_back(symbols[i].id);
  return std::nullopt;
}

} // namespace mla
