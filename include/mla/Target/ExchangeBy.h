//===- ExchangeBy.h - what may exchange rows among ranks --------*- C++ -*-===//
//
// Part of mla. `--collectives`, beside `local`. The host has one way; GPUs have kernels
// that write into each other's memory, and NCCL.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TARGET_EXCHANGEBY_H
#define MLA_TARGET_EXCHANGEBY_H

#include "llvm/ADT/StringRef.h"
#include <optional>

namespace mla {

enum class ExchangeBy {
  Cost,  ///< each exchange by what takes the least time; on the host its own
  Peers, ///< kernels of the plan alone
  Nccl   ///< NCCL alone, which also reaches ranks that are no peers
};

/// "exchange", "p2p", "nccl".
inline llvm::StringRef exchangeByName(ExchangeBy by) {
  return by == ExchangeBy::Peers  ? "p2p"
         : by == ExchangeBy::Nccl ? "nccl"
                                  : "exchange";
}

/// Nothing for other text.
inline std::optional<ExchangeBy> parseExchangeBy(llvm::StringRef text) {
  for (ExchangeBy by : {ExchangeBy::Cost, ExchangeBy::Peers, ExchangeBy::Nccl})
    if (text == exchangeByName(by))
      return by;
  return std::nullopt;
}

} // namespace mla

#endif // MLA_TARGET_EXCHANGEBY_H
