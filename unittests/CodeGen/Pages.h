//===- Pages.h - sequences whose pages lie in disorder ----------*- C++ -*-===//
//
// Part of mla. What the tests over caches share: a page table with scrambled
// page numbers, tokens of several sequences in a step.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_CODEGEN_PAGES_H
#define MLA_UNITTESTS_CODEGEN_PAGES_H

#include "Harness.h"
#include "mla/Plan/Plan.h"

namespace mla::test {

/// Where the tokens of a step are: token t is at positions[t] of sequence
/// sequences[t].
struct Pages {
  /// A table that holds every position, and one page that nobody has.
  Pages(const std::vector<int64_t> &positions,
        const std::vector<int64_t> &sequences, Random &random)
      : tokens(positions.size()), positions(Buffer::ints(positions)),
        sequences(Buffer::ints(sequences)), table(Buffer::ints({})) {
    using plan::pageTokens;
    auto last = *std::max_element(positions.begin(), positions.end());
    columns = last / pageTokens + 1;
    int64_t rows = *std::max_element(sequences.begin(), sequences.end()) + 1;
    std::vector<int64_t> numbers(rows * columns + 1);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), random);
    capacity = numbers.size();
    numbers.pop_back();
    table = Buffer::ints(numbers);
  }

  /// The row of a cache where `position` of `sequence` lies.
  int64_t row(int64_t sequence, int64_t position) const {
    int64_t page = table[sequence * columns + position / plan::pageTokens];
    return page * plan::pageTokens + position % plan::pageTokens;
  }
  int64_t rowOf(int64_t token) const {
    return row(sequences[token], positions[token]);
  }
  int64_t cacheRows() const { return capacity * plan::pageTokens; }

  int64_t tokens;
  Buffer positions, sequences, table;
  int64_t columns = 0;  ///< of the table: scalar "pages" of the kernels
  int64_t capacity = 0; ///< pages of a cache
};

} // namespace mla::test

#endif // MLA_UNITTESTS_CODEGEN_PAGES_H
