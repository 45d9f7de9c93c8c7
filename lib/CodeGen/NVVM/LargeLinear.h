//===- LargeLinear.h - inside the products of many tokens -------*- C++ -*-===//
//
// Part of mla. LargeLinear.cpp has the algorithm; LargeLoads.cpp how W and x come
// into registers; LargeStore.cpp what becomes of sums; LargeExperts.cpp which rows
// and tokens blocks of experts have.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LARGELINEAR_H
#define MLA_LIB_CODEGEN_NVVM_LARGELINEAR_H

#include "KernelSupport.h"
#include "LargeKernels.h"
#include "mla/Quant/Pack.h"

namespace mla::nvvm::large {

constexpr int64_t blockThreads = 256, warpCount = 8, blockRows = 256,
                  warpRows = blockRows / warpCount;
constexpr int64_t mTiles = warpRows / 16, quadsOfWarp = warpRows / 4;

/// Compile-time shape of a kernel. A step of the main loop is a unit of columns.
struct Shape {
  Format format;
  int64_t tokens;    ///< of a block
  int64_t slotTokens; ///< those that a slot has room for
  int64_t columns;   ///< of a unit
  int64_t quadBytes; ///< of a unit of 4 rows: two units of quant/Pack.h, or one
  int64_t slotsB;
  bool four = false; ///< x in 4 bits: mma of fp4 with block scales, 64 columns each

  int64_t pairs() const { return tokens / 16; } ///< of n-tiles
  int64_t steps() const { return columns / (four ? 64 : 16); }
  int64_t chunks() const { return steps() / stepsOfChunk(); } ///< in a unit
  bool hasScales() const { return quadBytes == 288; }
  /// 16-byte words of a row that a lane has of a unit, times 4.
  int64_t rowWords() const { return hasScales() ? 4 : 8; }
  int64_t stepsOfChunk() const { return four ? 2 : chunkColumns / 16; }
  int64_t pieceB() const {
    return four ? fp4ChunkBytes : packedTokens * chunkColumns * 2;
  }
  int64_t fragmentB() const { return four ? 6 : 4; } ///< words for 16 tokens
  int64_t bytesA() const { return quadsOfWarp * quadBytes; } ///< a warp's
  int64_t bytesB() const { return slotTokens / packedTokens * pieceB(); }
  int64_t aheadB() const { return slotsB - 2; } ///< chunks under way
};

/// Tiles of blockRows that all segments take.
int64_t rowTiles(const LinearSpec &spec);
Shape shapeFor(const LinearSpec &spec, const Gpu &gpu, bool four = false);

/// Where an even column and the one behind it stand in x16: word 4 * half + t of the
/// 8 words that a token has of step `step`.
struct PackedWord {
  V step, half, t;
};
PackedWord packedWordOf(Format format, V column);
/// Two values as such a word.
V packColumns(KernelBuilder &k, Format format, llvm::ArrayRef<V> two);

/// Experts: tokens are the (token, choice) pairs in the order of moeGroup(), in
/// tiles of one expert's. Operands: (x16, order, tiles, weights ..., y), scalar T.
struct Grouping {
  int64_t experts, topk;
  bool gather;  ///< row order[p] / topk of x16 is place p's, else p
  bool scatter; ///< the result of place p is y[order[p]], else y[p]
  /// y is x16 of the product that has this, as gated sums are stored.
  std::optional<LinearSpec> next;
};

/// What a lane copies from; values, as they go around the loop over tiles.
struct Sources {
  Ptr a[2], scales; ///< of gate and up, or twice the segment's
  V bytesA[2], bytesScales; ///< 16, or 0 beyond the matrix: of 16 rows each
  V copies;         ///< whether the warp has tokens to copy
  Ptr x;
  V gathered[4]; ///< Grouping: where 16 bytes of 4 tokens begin, in 16 bytes
};

/// The kernel under construction.
struct LargeLinear {
  KernelBuilder &k;
  const LinearSpec &spec;
  Shape s;
  const Grouping *groups;

  // Barriers and slots; of A: this warp's.
  Ptr slotA, slotsB, fullA, fullB, emptyB;
  Ptr rawA[2], scalesA[2]; ///< this lane's words of its rows of each half
  V fragmentB; ///< this lane's offset in a piece, for step 0
  V zero;                         ///< unknown to the compiler
  int64_t unitsOfPart, units, parts;

  // The tile at hand: locate().
  V lane, warp, firstToken, endToken;
  V localRow, rows, quadEnd; ///< this warp's first row in its segment, the ends
  llvm::SmallVector<Ptr> weight; ///< of gate and up, or the segment's
  Ptr y;
  V base; ///< units that the block has done before
  Sources from;

  /// `groups` may be null.
  LargeLinear(KernelBuilder &k, const LinearSpec &spec, const Shape &s,
              const Grouping *groups = nullptr)
      : k(k), spec(spec), s(s), groups(groups) {}
  void build();

private:
  int64_t columns() const { return spec.segments[0].columns; }
  int64_t bytesOfTokens() const {
    return s.four ? packedRowsFp4Bytes(spec) : packedRowsBytes(spec);
  }
  /// Of a row of quads in memory.
  int64_t quadStride() const {
    return quant::packedUnits(s.format, columns()) *
           quant::unitBytes(s.format);
  }
  bool isHalf() const { return s.format != Format::BF16; }
  int64_t half() const { return spec.gated ? mTiles / 2 : mTiles; }
  int64_t partOf(int64_t mTile) const { return mTile / half(); }
  int64_t chunks() const { return units * s.chunks(); }
  /// From an m-tile's words in shared memory to the next one's; a row has `row`
  /// bytes in a quad.
  int64_t bytesOfMTile(int64_t row) const {
    return spec.gated ? quadsOfWarp / 2 * s.quadBytes : 2 * row;
  }
  /// Whether no warp reads beyond a matrix.
  bool isWhole() const {
    if (!spec.gated && spec.segments.size() > 1)
      return false;
    return spec.segments[0].rows % (spec.gated ? blockRows / 2 : blockRows) ==
           0;
  }
  /// Chunks that are under way when a tile begins.
  int64_t firstChunks() const { return std::min(s.aheadB(), chunks()); }
  /// Whether barriers and slots are in the same state at the end of each tile.
  bool sameState() const {
    return units % 2 == 0 && chunks() % (2 * s.slotsB) == 0;
  }

  V tiles();
  void locate(V tile, V thread);
  void locateLinear(V tile);
  void locateGroup(V tile);
  void setUpSources();
  void setUpFragments();
  void setUpBarriers();
  void issueA(V unit);
  void issueB(V chunk);
  void waitB(V chunk);
  V slotOf(V chunk);
  Vs loadWords(V unit);
  Vs loadTokens(V chunk, int64_t step, int64_t pair);
  Vs decode(llvm::ArrayRef<V> words, int64_t step);
  Vs loadWords4(V unit);
  Vs multiply(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c,
              int64_t mTile, int64_t nTile);
  Vs scaleOf(V block);
  void appendScales(Vs &state);
  Vs unitBody(V unit, llvm::ArrayRef<V> state,
              llvm::function_ref<void(int64_t)> next = nullptr);
  Vs tileState(V tile, V there);
  Vs tileBody(llvm::ArrayRef<V> state);
  void prefetchResidual();

  /// What sums are multiplied with, places of the epilogue's tokens.
  Vs factors(llvm::ArrayRef<V> scales);
  Vs loadPlaces();
  Vs rowsOf(llvm::ArrayRef<V> acc, llvm::ArrayRef<V> factor, int64_t nTile,
            int64_t odd);
  void store(llvm::ArrayRef<V> acc, llvm::ArrayRef<V> scales,
             llvm::ArrayRef<V> places);
  void storePacked(llvm::ArrayRef<V> acc, llvm::ArrayRef<V> factor);
  int64_t accCount() const { return mTiles * s.pairs() * 2 * 4; }
  int64_t wordCount() const {
    return mTiles * 2 * (s.rowWords() + (s.hasScales() ? 1 : 0));
  }
  int64_t scaleCount() const {
    return s.format == Format::FP8Block ? (spec.gated ? 2 : 1) : 0;
  }
  static constexpr int64_t ahead = 2; ///< pairs of n-tiles loaded ahead
};

} // namespace mla::nvvm::large

#endif // MLA_LIB_CODEGEN_NVVM_LARGELINEAR_H
