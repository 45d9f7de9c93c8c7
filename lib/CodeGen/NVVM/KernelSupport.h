//===- KernelSupport.h - shared by the kernel families ----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_KERNELSUPPORT_H
#define MLA_LIB_CODEGEN_NVVM_KERNELSUPPORT_H

#include "KernelBuilder.h"
#include "Kernels.h"
#include "mla/Plan/Plan.h"
#include "llvm/ADT/StringExtras.h"

namespace mla::nvvm {

/// Whether `kernels` has `name` already. Names hold everything that a kernel
/// depends on.
inline bool exists(const KernelSite &site, llvm::StringRef name) {
  mlir::ModuleOp kernels = site.kernels;
  return kernels.lookupSymbol(name) != nullptr;
}

/// "a_1_2" from "a", 1, 2.
template <typename... Ts>
std::string kernelName(llvm::StringRef family, Ts... parts) {
  std::string name = family.str();
  auto add = [&](const auto &part) {
    name += '_';
    if constexpr (std::is_arithmetic_v<std::decay_t<decltype(part)>>)
      name += std::to_string(part);
    else
      name += std::string(part);
  };
  (add(parts), ...);
  return name;
}

/// A float as part of a name: its bits in hexadecimal.
inline std::string nameOf(double v) {
  return llvm::utohexstr(llvm::bit_cast<uint32_t>(float(v)), true);
}

/// The x part of special register `name` ("tid", "ctaid"), read anew: what is made of
/// it behind a loop takes no register in the loop.
inline V readAnew(KernelBuilder &k, llvm::StringRef name) {
  return k.inlinePTX("mov.u32 $0, %" + name.str() + ".x;", "=r", k.i32Type(), {},
                     /*sideEffects=*/true);
}

/// The index of a token's row in a paged cache: page_table[sequence[t], position /
/// 64] * 64 + position % 64. `pages` is the page table's row length.
inline V cacheRow(KernelBuilder &k, V position, V sequence, Ptr pageTable,
                  V pages) {
  V page = k.loadI32(pageTable +
                     k.to64(sequence * pages +
                            position / plan::pageTokens) * 4);
  return page * plan::pageTokens + position % plan::pageTokens;
}

/// Where a kernel finds its tokens: positions as the step has them, or, of tokens that
/// are spread over ranks page by page, as the caches of this rank do. As
/// mla.shard_batch, from inputs of the step alone: what reads positions before it waits
/// for earlier launches still may.
class Positions {
public:
  /// `positions`: i32 [T]. `rank` (i32) is null with one rank.
  Positions(KernelBuilder &k, Ptr positions, int64_t ranks = 1, V rank = {})
      : k(&k), positions(positions), ranks(ranks), rank(rank) {}

  bool spread() const { return ranks > 1; }
  /// The position of the last row that `token` sees; spread, -1 if there is none.
  V read(V token) const {
    V position = k->loadI32(positions + token * 4);
    if (!spread())
      return position;
    // Of the blocks before those that the token is among, every rank has as many; of
    // those the ranks before its own have full ones.
    V row = position / (page * ranks), rest = position % (page * ranks);
    V visible = k->minimum(rest + 1 - rank * page, k->i32(page));
    return row * page + k->maximum(visible, k->i32(0)) - 1;
  }
  /// Where the row of `token` belongs, and whether to this rank (i1).
  std::pair<V, V> write(V token) const {
    V position = k->loadI32(positions + token * 4);
    if (!spread())
      return {position, k->yes()};
    V row = position / (page * ranks), rest = position % (page * ranks);
    return {row * page + rest % page, rest / page == rank};
  }

private:
  static constexpr int64_t page = plan::pageTokens;
  KernelBuilder *k;
  Ptr positions;
  int64_t ranks;
  V rank;
};

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// An i32 that orders, signed, as `v` does as a number: -0 is +0, and what never
/// wins a comparison, NaN and -inf, is lowestKey.
constexpr int64_t lowestKey = -2147483648;
inline V orderKey(KernelBuilder &k, V v) {
  V bits = k.bits(v + k.f32(0)); // -0 + 0 is +0
  V flip = k.select(bits < 0, k.i32(0x7FFFFFFF), k.i32(0));
  V wins = v > k.f32(-infinity);
  return k.select(wins, bits ^ flip, k.i32(lowestKey));
}
/// The largest of a warp's keys.
inline V largestKey(KernelBuilder &k, V key) {
  return k.reduxMax(key ^ lowestKey) ^ lowestKey;
}

/// x * sigmoid(x) to 2^-21. An exact division takes more registers, and is a
/// call where it is emitted.
inline V quickSilu(KernelBuilder &k, V x) {
  return x * k.reciprocal(k.f32(1) + k.exp(k.f32(0) - x));
}

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_KERNELSUPPORT_H
