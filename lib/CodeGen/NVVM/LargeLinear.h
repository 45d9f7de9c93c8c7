//===- LargeLinear.h - inside the products of many tokens -------*- C++ -*-===//
//
// Part of mla. LargeLinear.cpp has the algorithm; LargeLoads.cpp how W and x come
// into registers.
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
  int64_t bytesB() const { return tokens / packedTokens * pieceB(); }
  int64_t aheadB() const { return slotsB - 2; } ///< chunks under way
};

/// Tiles of blockRows that all segments take.
int64_t rowTiles(const LinearSpec &spec);
Shape shapeFor(const LinearSpec &spec, const Gpu &gpu, bool four = false);

/// The kernel under construction.
struct LargeLinear {
  KernelBuilder &k;
  const LinearSpec &spec;
  const Shape &s;

  Ptr slotA, slotsB, fullA, fullB, emptyB; ///< of A: this warp's
  V lane, warp, tokens, firstToken;
  V localRow, rows, quadEnd; ///< this warp's first row in its segment, the ends
  llvm::SmallVector<Ptr> weight; ///< of gate and up, or the segment's
  Ptr y;
  int64_t unitsOfPart, units, parts;
  /// What this lane copies from: of gate and up, or twice the segment's; scales.
  Ptr sourceA[2], sourceScales, sourceB;
  V bytesA[2], bytesScales; ///< 16, or 0 beyond the matrix: of 16 rows each
  Ptr rawA;               ///< this lane's words of its first row
  llvm::SmallVector<V> fragmentB; ///< lane's offset in a piece for each step

  LargeLinear(KernelBuilder &k, const LinearSpec &spec, const Shape &s)
      : k(k), spec(spec), s(s) {}
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

  void locate(V block, V thread);
  void setUpCopies();
  void setUpBarriers();
  void issueA(V unit);
  void issueB(V chunk);
  void waitB(V chunk);
  Vs loadWords(V unit);
  Vs loadTokens(V chunk, int64_t step, int64_t pair);
  Vs decode(llvm::ArrayRef<V> words, int64_t step);
  Vs loadWords4(V unit);
  Vs multiply(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c,
              int64_t mTile, int64_t nTile);
  Vs scaleOf(V block);
  Vs unitBody(V unit, llvm::ArrayRef<V> state, bool last);
  void prefetchResidual();
  void store(llvm::ArrayRef<V> acc, llvm::ArrayRef<V> scales);
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
