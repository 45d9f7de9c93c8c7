//===- SampleKernels.h - shared by the launches of sampling -----*- C++ -*-===//
//
// Part of mla. See SampleKernels.cpp.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_SAMPLEKERNELS_H
#define MLA_LIB_CODEGEN_NVVM_SAMPLEKERNELS_H

#include "KernelSupport.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

namespace mla::nvvm {

/// A running choice of the largest number.
struct Best {
  V value, id, bad; ///< bad: i1, NaN or +inf was seen

  static Best none(KernelBuilder &k) {
    return {k.f32(-infinity), k.i32(0), k.no()};
  }
  Vs all() const { return {value, id, bad}; }
  static Best of(llvm::ArrayRef<V> v) { return {v[0], v[1], v[2]}; }
  /// Ids must come in ascending order.
  Best with(KernelBuilder &k, V v, V at) const {
    V wins = v > value;
    return {k.select(wins, v, value), k.select(wins, at, id),
            bad | !(v < k.f32(infinity))};
  }
};

/// What all threads of a block (or lanes' warps before it) found.
struct BlockBest {
  V key, id;  ///< id: the lowest with `key`
  V bad;      ///< i1
};

/// Uses `scratch`, 12 bytes a warp, and two barriers; every thread gets it.
inline BlockBest combine(KernelBuilder &k, V key, V id, V bad, Ptr scratch) {
  auto reduce = [&](V key, V id) {
    V most = largestKey(k, key);
    V lowest = k.reduxMin(k.select(key == most, id, k.i32(0x7FFFFFFF)));
    return std::pair(most, lowest);
  };
  auto [most, lowest] = reduce(key, id);
  V anyBad = k.select(k.any(bad), k.i32(1), k.i32(0));
  k.when(k.lane() == 0, [&] {
    Ptr at = scratch + k.warp() * 12;
    k.store(at, most);
    k.store(at + 4, lowest);
    k.store(at + 8, anyBad);
  });
  k.barrier();
  V there = k.lane() < k.warps();
  Ptr at = scratch + k.select(there, k.lane(), k.i32(0)) * 12;
  auto [blockMost, blockLowest] = reduce(k.loadI32(at), k.loadI32(at + 4));
  V blockBad = k.any(k.loadI32(at + 8) == 1);
  k.barrier();
  return {blockMost, blockLowest, blockBad};
}

/// The number of a key; NaN of lowestKey.
inline V numberOf(KernelBuilder &k, V key) {
  V flip = k.select(key < 0, k.i32(0x7FFFFFFF), k.i32(0));
  return k.fromBits(key ^ flip);
}

/// The id to report: -1 for a row that has NaN or +inf or nothing above -inf.
inline V chosenId(KernelBuilder &k, const BlockBest &best) {
  return k.select(best.bad | (best.key == lowestKey), k.i32(-1), best.id);
}

/// Logits a thread reads at once: 4 if rows start at multiples of 16 bytes.
inline int64_t lanesOf(int64_t vocab) { return vocab % 4 == 0 ? 4 : 1; }
inline Vs loadLogits(KernelBuilder &k, Ptr row, V at, int64_t lanes) {
  if (lanes == 1)
    return {k.loadF32(row + at * 4)};
  return k.loadFloats(row + at * 4, 4);
}

constexpr int64_t sliceLogits = 4096, sliceThreads = 256;
constexpr int64_t mostCandidates = 5120, rowThreads = 512;
constexpr int64_t keyBits = 32;
/// Weights of the largest logit; 2^22 of them are less than an i64.
constexpr int64_t weightBits = 40;
constexpr int64_t noRank = int64_t(1) << 62; ///< of -inf: never among the first

/// A row of `partial`: for each slice its head, then its candidates.
struct Partial {
  int64_t slices, most; ///< candidates of a slice, an even number
  enum Head { Key, Id, Bad, Sum, Count, Bound, HeadWords = 8 };

  explicit Partial(int64_t vocab)
      : slices(llvm::divideCeil(vocab, sliceLogits)),
        most(std::min<int64_t>(128, mostCandidates / slices / 2 * 2)) {}
  int64_t sliceWords() const { return HeadWords + 2 * most; }
};

/// What a row asks for.
struct Parameters {
  V temperature, topP, minP, uniform; ///< f32
  V topK;                             ///< i32; 0: all
  V cuts; ///< i1: there is a top-k or a top-p
  V scale; ///< log2(e) / temperature

  Parameters(KernelBuilder &k, Ptr parameters, Ptr topKs, V row,
             int64_t vocab) {
    Vs all = k.loadFloats(parameters + k.to64(row) * 16, 4);
    temperature = all[0];
    topP = all[1];
    minP = all[2];
    uniform = all[3];
    topK = k.loadI32(topKs + k.to64(row) * 4);
    topK = k.select((topK > 0) & (topK < vocab), topK, k.i32(0));
    cuts = (temperature > k.f32(0)) & ((topK > 0) | (topP < k.f32(1)));
    // A bound keeps 0 * scale a number.
    scale = k.minimum(k.divide(k.f32(1.4426950408889634), temperature),
                      k.f32(1e30));
  }
};

/// e^((logit - largest) / temperature); 0 of -inf.
inline V weightOf(KernelBuilder &k, V logit, V largest, V scale) {
  return k.exp2((logit - largest) * scale);
}
inline V toWhole(KernelBuilder &k, V weight) {
  return {mlir::arith::FPToUIOp::create(k.b, k.i64Type(),
                                  (weight * k.f32(double(int64_t(1) << weightBits)))
                                      .value),
          &k};
}

/// Sum over a warp of i64 below 2^62, every lane gets it: three sums of 32 bits.
inline V warpSum64(KernelBuilder &k, V v) {
  V sum = k.i64(0);
  for (int64_t shift : {0, 21, 42}) {
    V part = k.to32((v >> shift) & 0x1FFFFF);
    sum = sum + (k.to64(k.reduxAdd(part)) << shift);
  }
  return sum;
}
/// The same over a block. Uses `scratch`, 8 bytes a warp, and two barriers.
inline V blockSum64(KernelBuilder &k, V v, Ptr scratch) {
  v = warpSum64(k, v);
  k.when(k.lane() == 0, [&] { k.store(scratch + k.warp() * 8, v); });
  k.barrier();
  V there = k.lane() < k.warps();
  V mine = k.loadI64(scratch + k.select(there, k.lane(), k.i32(0)) * 8);
  V sum = warpSum64(k, k.select(there, mine, k.i64(0)));
  k.barrier();
  return sum;
}

/// The value of a counter in shared memory, which is one more afterwards.
inline V nextPlace(KernelBuilder &k, Ptr counter) {
  return {mlir::LLVM::AtomicRMWOp::create(
              k.b, mlir::LLVM::AtomicBinOp::add, counter.value, k.i32(1).value,
              mlir::LLVM::AtomicOrdering::monotonic),
          &k};
}

/// The second launch: the block's row, whose slices have been done. Operands as
/// sample() has them.
void sampleRow(KernelBuilder &k, int64_t vocab);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_SAMPLEKERNELS_H
