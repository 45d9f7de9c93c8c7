//===- ExchangeCounts.h - what ranks exchange in a step ---------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXCHANGECOUNTS_H
#define MLA_LIB_DRIVER_EXCHANGECOUNTS_H

#include <cstdint>

namespace mla {

/// All ranks together do each of them once.
struct ExchangeCounts {
  int64_t reduces = 0;  ///< sums over the ranks
  int64_t fused = 0;    ///< of them, with the norm behind them
  int64_t gathers = 0;  ///< of rows, logits included
  int64_t merges = 0;   ///< of partial attention
  int64_t overlaps = 0; ///< exchanges with independent work before their first user
};

} // namespace mla

#endif // MLA_LIB_DRIVER_EXCHANGECOUNTS_H
