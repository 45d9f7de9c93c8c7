//===- LatentDecodeBuilder.h - parts of the decode kernel -------*- C++ -*-===//
//
// Part of mla. What a thread of the decode kernel knows and does, over two
// files: LatentDecode.cpp has how rows and queries come, LatentTile.cpp what is
// computed with a tile, and how results are written.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LATENTDECODEBUILDER_H
#define MLA_LIB_CODEGEN_NVVM_LATENTDECODEBUILDER_H

#include "LatentDecode.h"

namespace mla::nvvm {

/// A score, in units of log2 before scaling, below all others.
constexpr double noScore = -1e30;

/// Makes the decode kernel's body. g is lane / 4 and t lane % 4, as in PTX'
/// pictures of fragments.
class DecodeBuilder {
public:
  DecodeBuilder(KernelBuilder &k, const DecodeShape &s)
      : k(k), s(s), fp8(s.fp8()), blocks16(s.tile / 16), kParts(4 / blocks16),
        steps(s.row / 64), outTiles(s.spec.latent / 64), n8(s.headTiles) {}
  void build();

private:
  // What a warp carries from tile to tile.
  struct State {
    Vs acc;     ///< [outTiles][n8][4]
    Vs maximum; ///< [n8], of head 8 n + lane / 4
    Vs sum;     ///< [n8], over this lane's tokens
    Vs flat() const {
      Vs all(acc);
      all.append(maximum);
      all.append(sum);
      return all;
    }
  };
  State unflatten(llvm::ArrayRef<V> all) const {
    int64_t a = outTiles * n8 * 4;
    return {Vs(all.take_front(a)), Vs(all.slice(a, n8)),
            Vs(all.slice(a + n8, n8))};
  }
  Vs mma(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c) {
    return s.spec.cache == Format::BF16 ? k.mmaBF16(a, b, c)
                                        : k.mmaF16(a, b, c);
  }
  V pack(V low, V high) {
    return s.spec.cache == Format::BF16 ? k.packBF16(low, high)
                                        : k.packF16(low, high);
  }
  // LatentDecode.cpp: rows and queries into place.
  V chunkOffset(V token, V chunk);
  void setUp();
  Ptr tileAt(V tile, V page);
  V pageOf(V tile);
  void copyStage(V stage, V tile, V page);
  void clearBehind(V stage, V rows);
  void copyQuery();
  Ptr queryStage(int64_t n);
  void readQuery();

  // LatentTile.cpp. Stages and score buffers are byte offsets.
  Vs scores(V stage);
  void storeScores(llvm::ArrayRef<V> c, V buffer);
  Vs loadScores(V buffer, V rowsLeft);
  State rescale(State state, llvm::ArrayRef<V> v);
  State addValues(State state, llvm::ArrayRef<V> v, V stage);
  void writeResult(State state);
  /// Row `row` of `to`, [heads]: the logarithms of the heads' sums of weights, in
  /// units of log2 times `unit`.
  void writeLse(const State &state, Ptr to, V row, double unit);
  void writeOutput(const State &state, llvm::ArrayRef<V> factor);
  void writePartial(const State &state, llvm::ArrayRef<V> factor);
  /// Calls `f` with each pair of accumulators of a head: the first one's
  /// dimension, the head among the team's, both values. The second dimension is
  /// pairDistance() further on.
  void eachPair(const State &state, llvm::ArrayRef<V> factor,
                llvm::function_ref<void(V, V, V, V)> f);
  int64_t pairDistance() const { return fp8 ? 1 : 8; }

  KernelBuilder &k;
  const DecodeShape &s;
  bool fp8;
  int64_t blocks16; ///< 16-token blocks of a tile
  int64_t kParts;   ///< warps that share a block's k
  int64_t steps;    ///< ldmatrix of a warp for the scores of its part
  int64_t outTiles; ///< of 16 dimensions, of a warp
  int64_t n8;

  V team, w, g, t;       ///< w: warp of the team
  V groupHead, teamHead; ///< first head of block and team
  V toLog2, valueScale;
  DecodeWork work;
  Ptr table;               ///< of the sequence's pages
  Ptr stages, scoreMemory; ///< shared memory
  // This lane's places in the first stage: to copy to, fragments of keys (fp8:
  // in two columns of lines), and of values of each 16-token block.
  Ptr copyTo, keyA, keyB;
  llvm::SmallVector<Ptr> valueAt;
  V copyRow, copyChunk, copyFrom;
  // ... and in the first score buffer.
  Ptr scoreStore, scoreStore2, scoreLoad;
  V swapped;
  Vs q;     ///< [k-step][n8][2]
  Vs qRest; ///< what rounding took from q, for bf16
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_LATENTDECODEBUILDER_H
