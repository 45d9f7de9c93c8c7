//===- CollectiveKernels.h - kernels that exchange rows ---------*- C++ -*-===//
//
// Part of mla. As in Kernels.h: the comments give operands (f32 rows where nothing is
// said) and scalars. "peers" is the table of include/mla/Plan/Peers.h. Each has two
// scalars: rows, the number of rows, the same on all ranks; and launch, the launch's
// number in its program, for what the runtime says after a time-out. Without rows
// nothing is done.
//
// Values are exchanged in `format`, bf16 or f32. Each rank rounds its own as the
// others', and sums are in f32 in the order of the ranks: the same bits on all ranks.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_COLLECTIVEKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_COLLECTIVEKERNELS_H

#include "Exchange.h"
#include "Kernels.h"

namespace mla::nvvm {

/// What all collectives of a plan have in common.
struct ExchangeSpec {
  ExchangeLayout layout;
  int64_t ranks = 0; ///< 2 to 8; 0: as many as the table says, up to 8
};

/// Most blocks of a kernel: if all of them wait, half of the multiprocessors are left to
/// others. With several ranks on a GPU the runtime launches fewer (p2p::Peers).
inline int64_t exchangeBlocksOf(int64_t multiprocessors) {
  return std::clamp<int64_t>(multiprocessors / 2, 1, ExchangeLayout::maxBlocks);
}

struct ReduceSpec {
  int64_t width;
  Format format = Format::BF16;
  bool residual = false; ///< is added to the sum
  bool pull = false;     ///< loaded from peers, not stored there; none of ReduceNorm
};
/// y = [residual +] sum of x over the ranks: every rank gets all of x. (peers, x
/// [rows, width], [residual,] y). `symbol` is what `rows` is in the grid.
Kernel allReduceOneShot(KernelSite site, const ExchangeSpec &with,
                        const ReduceSpec &spec, llvm::StringRef symbol);
/// The same in two steps: each rank sums a part, and the others get that, rounded to
/// `format` once more.
Kernel allReduceTwoShot(KernelSite site, const ExchangeSpec &with,
                        const ReduceSpec &spec, llvm::StringRef symbol);

struct ReduceNormSpec {
  ReduceSpec reduce;
  Format weight; ///< f32, bf16, f16
  double eps;
};
/// sum as by allReduceOneShot(), normed = sum * rsqrt(mean(sum^2) + eps) * weight.
/// (peers, x, [residual,] sum, weight rows, normed).
Kernel allReduceNorm(KernelSite site, const ExchangeSpec &with,
                     const ReduceNormSpec &spec, llvm::StringRef symbol);
/// Whether it takes rows of that many values.
bool canReduceNorm(const ExchangeSpec &with, const ReduceSpec &spec,
                   const Gpu &gpu);

struct GatherSpec {
  struct Segment {
    int64_t part, all; ///< columns of x and of y
  };
  llvm::SmallVector<Segment> segments;
  Format format = Format::F32;
  Transport transport = Transport::Flagged;
};
/// y_s[t] = [x_s[t] of rank 0 | x_s[t] of rank 1 | ...], `all` columns. (peers, x_0
/// [rows, part], y_0 [rows, all], x_1, y_1, ...).
Kernel allGather(KernelSite site, const ExchangeSpec &with,
                 const GatherSpec &spec, llvm::StringRef symbol);

struct MergeSpec {
  int64_t heads;  ///< of a rank
  int64_t latent; ///< values of a head
  Format format = Format::BF16; ///< lse is exchanged in f32
  Transport transport = Transport::Flagged;
};
/// mla.merge_attention. (peers, x [rows, ranks * heads * latent], lse [rows, ranks *
/// heads], y [rows, heads * latent]).
Kernel mergeAttention(KernelSite site, const ExchangeSpec &with,
                      const MergeSpec &spec, llvm::StringRef symbol);
bool canMerge(const ExchangeSpec &with, const MergeSpec &spec);
/// Of the heads that a rank gets.
MergeSpec mergeSpec(MergeAttentionOp op, Transport transport);
/// The same without an exchange: other ranks' heads stand for what the others send. (x,
/// lse, y), no scalars.
Kernel mergeAttentionLocal(KernelSite site, int64_t heads, int64_t latent,
                           int64_t ranks);

/// Kernels by which the runtime tries and measures exchanges without a plan: for 2 to
/// 8 ranks, as the table says, with ExchangeLayout's values. `rows` is the number of
/// elements where the width is 1. Behind them the sum, the norm and the copy of rows of
/// 7168 that exchange nothing. runtime/collectives/p2p/Kernels.h has their table.
void collectiveSuite(KernelSite site);

//===--- Inside --------------------------------------------------------------===//

constexpr int64_t exchangeThreads = 256;

/// How values lie in a unit.
struct UnitShape {
  Format format;
  Transport transport;
  int64_t words() const { return transport == Transport::Flagged ? 2 : 4; }
  int64_t values() const { return format == Format::BF16 ? 2 * words() : words(); }
};
/// A unit of this thread. `there` (i1): else another stands in for one beyond the end;
/// null: always.
struct ThreadUnit {
  V index, there;
};
/// Calls `body` with the units of [first, end) that are this thread's: one by one if
/// there is no more than one for each thread, else up to `atOnce` together, so that a
/// thread waits once for all that it reads. Returns what the last call did.
Vs eachUnits(KernelBuilder &k, V first, V end, int64_t atOnce, llvm::ArrayRef<V> init,
             llvm::function_ref<Vs(llvm::ArrayRef<ThreadUnit>, llvm::ArrayRef<V>)>
                 body);
/// The same for what has no result.
void eachUnits(KernelBuilder &k, V first, V end, int64_t atOnce,
               llvm::function_ref<void(llvm::ArrayRef<ThreadUnit>)> body);
/// `body` if the unit is there.
void whenThere(KernelBuilder &k, const ThreadUnit &unit,
               llvm::function_ref<void()> body);

/// values() f32 from `from` on, of which `left` (i32, may be more; null: all) are
/// there; zeros behind them. `aligned`: the address is a multiple of 4 * values()
/// bytes.
Vs loadUnit(KernelBuilder &k, const UnitShape &unit, Ptr from, V left,
            bool aligned);
void storeUnit(KernelBuilder &k, Ptr to, llvm::ArrayRef<V> values, V left,
               bool aligned);
Vs packUnit(KernelBuilder &k, const UnitShape &unit, llvm::ArrayRef<V> values);
Vs unpackUnit(KernelBuilder &k, const UnitShape &unit,
              llvm::ArrayRef<V> words);
/// The sum over what Exchange::receive() returned.
Vs sumUnits(KernelBuilder &k, const UnitShape &unit,
            llvm::ArrayRef<Vs> received);
/// "a_one_shot_bf16_8_8": family, format, and what of `with` a kernel depends on.
std::string exchangeName(llvm::StringRef family, const ExchangeSpec &with,
                         Format format);
/// Calls `body` with the bounds of each round of at most `most` of [low, high): index
/// of the round, first, end. Returns the number of rounds.
V eachRound(KernelBuilder &k, V low, V high, V most,
            llvm::function_ref<void(V round, V first, V end)> body);
/// This block's part of `count` things: [first, second).
std::pair<V, V> shareOf(KernelBuilder &k, V count);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_COLLECTIVEKERNELS_H
