//===- PackedProduct.h - packed weights times tokens ------------*- C++ -*-===//
//
// Part of mla. Two ways for a block to multiply some rows of one packed matrix,
// or of two at once (gate and up), with some tokens:
//
//   FewTokens   warps split the contraction and stream their part of the weight
//               and of x straight into fragments: bound by reading the weight.
//   ManyTokens  a warp has 32 rows and all tokens of the block, which lie in
//               shared memory: bound by tensor cores.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_PACKEDPRODUCT_H
#define MLA_LIB_CODEGEN_NVVM_PACKEDPRODUCT_H

#include "PackedTiles.h"

namespace mla::nvvm {

/// What both multiply.
struct ProductShape {
  MatrixShape matrix;
  int64_t matrices = 1; ///< 2: gate and up, of one shape
  bool aligned = true;  ///< the block's first row is a multiple of 16
  bool xAligned = true; ///< rows of x are aligned to 16 bytes
};

/// x: row r begins at `base` + r * `stride` bytes, and token i's is `rowOf(i)`.
struct TokenRows {
  Ptr base;
  int64_t stride;
  llvm::function_ref<V(V token)> rowOf;
};

/// Takes a row of a matrix, a token (of the block's) and the sum of each
/// matrix.
using EmitProduct =
    llvm::function_ref<void(V row, V token, llvm::ArrayRef<V> sums)>;

/// Products of `warpsM * rowTiles * 16` rows and `tokenTiles * 8` tokens a
/// block.
///
/// A warp's loads of the next span of weights are under way while it works on
/// one. It has the tokens' span in shared memory of its own (4 times 64 bytes
/// of L1 lines a token and load would be too many), where its sums go in the
/// end, to be added to those of the warps that share its rows.
class FewTokens {
public:
  struct Split {
    int64_t rowTiles = 1, tokenTiles = 1, warpsM = 1, warpsK = 1;
    /// Tokens that are loaded whether they are there or not, at once: 2, or a
    /// multiple of 8. Others follow 8 at a time, where there are as many.
    int64_t firstTokens = 2;
    int64_t threads() const { return 32 * warpsM * warpsK; }
    int64_t rows() const { return 16 * rowTiles * warpsM; }
    int64_t tokens() const { return 8 * tokenTiles; }
  };
  /// Reserves the shared memory.
  FewTokens(KernelBuilder &k, ProductShape shape, Split split);

  /// Loads the first span of weights: matrices begin at `bases`, the block's
  /// rows are `firstRow` up to, and without, `endRow`. Touches nothing but
  /// weights. May be called again, for the same or other rows.
  void begin(llvm::ArrayRef<Ptr> bases, V firstRow, V endRow);
  /// Multiplies with tokens 0 <= i < `tokens`, which are at least 1, and emits.
  /// Every thread of the block calls it.
  void run(V tokens, TokenRows x, EmitProduct emit);

private:
  Vs loadWeights(V span) const;
  void accumulate(Vs &acc, llvm::ArrayRef<V> words, Ptr buffer,
                  llvm::function_ref<void()> halfway) const;

  KernelBuilder &k;
  ProductShape shape;
  Split split;
  int64_t spans, perWarp;
  int64_t warpBytes; ///< of `scratch`, a warp: tokens of a span, then sums
  Ptr scratch;
  llvm::SmallVector<PackedTile> tiles; ///< by matrix, then by tile of rows
  V low, high;                         ///< this warp's spans
  V firstRow, endRow;
  Vs first; ///< the words of span `low`
};

/// Products of `warps * 32 / matrices` rows and `tokenTiles * 8` tokens a
/// block.
///
/// x goes through registers to shared memory, as fragments are read: 64 columns
/// of all tokens at a time, two buffers, one barrier for each. A token has 144
/// bytes there, so that neither side has bank conflicts.
class ManyTokens {
public:
  static int64_t sharedBytes(int64_t tokenTiles);
  /// `scratch` is sharedBytes(tokenTiles) of shared memory.
  ManyTokens(KernelBuilder &k, ProductShape shape, int64_t tokenTiles,
             Ptr scratch);
  int64_t rows() const { return k.warps() * 32 / shape.matrices; }

  /// As FewTokens::begin() and run().
  void run(llvm::ArrayRef<Ptr> bases, V firstRow, V endRow, V tokens,
           TokenRows x, EmitProduct emit);

private:
  KernelBuilder &k;
  ProductShape shape;
  int64_t tokenTiles;
  Ptr scratch;
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_PACKEDPRODUCT_H
