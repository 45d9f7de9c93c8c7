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

constexpr int64_t blockRows = 256, blockThreads = 256;

/// Compile-time shape of a kernel.
struct Shape {
  Format format;
  int64_t tokens;             ///< of a block
  int64_t groups;             ///< of warps that share rows
  int64_t warpsOfGroup;       ///< they split the tokens
  int64_t slotsA, slotsB;
  int64_t unitBytes, unitColumns;
  int64_t chunk;              ///< columns of x a slot

  int64_t groupRows() const { return blockRows / groups; }
  int64_t mTiles() const { return groupRows() / 16; }
  int64_t warpTokens() const { return tokens / warpsOfGroup; }
  int64_t pairs() const { return warpTokens() / 16; } ///< of n-tiles
  int64_t quads() const { return groupRows() / 4; }
  int64_t steps() const { return unitColumns / 16; }
  int64_t chunks() const { return unitColumns / chunk; } ///< in a unit
  int64_t stepsOfChunk() const { return chunk / 16; }
  int64_t bytesA() const { return quads() * unitBytes; } ///< a group's slot
  int64_t pieceB() const { return packedTokens * chunk * 2; }
  int64_t bytesB() const { return tokens / packedTokens * pieceB(); }
  /// Units of W that are under way ahead of the one whose words are in registers.
  /// With two warps to a group the one before is left alone, as the other warp may
  /// still read it.
  int64_t aheadA() const { return warpsOfGroup == 1 ? slotsA : slotsA - 1; }
  int64_t aheadB() const { return slotsB - 2; }
};

/// Tiles of blockRows that all segments take.
int64_t rowTiles(const LinearSpec &spec, int64_t groupRows);
Shape shapeFor(const LinearSpec &spec, const Gpu &gpu);

/// The kernel under construction.
struct LargeLinear {
  KernelBuilder &k;
  const LinearSpec &spec;
  const Shape &s;

  Ptr slotsA, slotsB, fullA, emptyA, fullB, emptyB;
  V lane, warp, group, member, tokens, firstToken;
  V localRow, rows, quadEnd; ///< this warp's first row in its segment, the ends
  llvm::SmallVector<Ptr> weight; ///< of gate and up, or the segment's
  Ptr y;
  int64_t unitsOfPart, units, parts;
  /// What this lane copies from: of gate and up, or twice the segment's; scales.
  Ptr sourceA[2], sourceScales, sourceB;
  V bytesA[2], bytesScales; ///< 16, or 0 beyond the matrix: of 16 rows each
  V rawOffset;            ///< of lane's words in a quad group
  llvm::SmallVector<V> fragmentB; ///< lane's offset in a piece for each step

  LargeLinear(KernelBuilder &k, const LinearSpec &spec, const Shape &s)
      : k(k), spec(spec), s(s) {}
  void build();

private:
  int64_t columns() const { return spec.segments[0].columns; }
  int64_t quadStride() const {
    return quant::packedUnits(s.format, columns()) * s.unitBytes;
  }
  bool isHalf() const { return s.format != Format::BF16; }
  int64_t half() const { return spec.gated ? s.mTiles() / 2 : s.mTiles(); }
  int64_t partOf(int64_t mTile) const { return mTile / half(); }

  void locate(V block, V thread);
  void setUpCopies();
  void setUpBarriers();
  void issueA(V unit);
  void issueB(V chunk);
  void waitA(V unit);
  void waitB(V chunk);
  Vs loadWords(V unit);
  Vs loadTokens(V chunk, int64_t step, int64_t pair);
  Vs decode(llvm::ArrayRef<V> words, int64_t step);
  Vs scaleOf(V block);
  Vs unitBody(V unit, llvm::ArrayRef<V> state, bool last);
  void store(llvm::ArrayRef<V> acc, llvm::ArrayRef<V> scales);
  int64_t accCount() const { return s.mTiles() * s.pairs() * 2 * 4; }
  int64_t wordCount() const {
    return s.mTiles() * 2 * (s.unitBytes > 256 ? 5 : 4);
  }
  int64_t scaleCount() const {
    return s.format == Format::FP8Block ? (spec.gated ? 2 : 1) : 0;
  }
  static constexpr int64_t ahead = 2; ///< pairs of n-tiles loaded ahead
};

} // namespace mla::nvvm::large

#endif // MLA_LIB_CODEGEN_NVVM_LARGELINEAR_H
