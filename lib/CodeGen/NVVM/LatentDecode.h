//===- LatentDecode.h - split decode attention ------------------*- C++ -*-===//
//
// Part of mla. Decode attention on tensor cores: the rows of a sequence are
// divided among blocks, and a second kernel combines what they found.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LATENTDECODE_H
#define MLA_LIB_CODEGEN_NVVM_LATENTDECODE_H

#include "AttentionKernels.h"

namespace mla::nvvm {

/// How a block computes, and how many blocks there are.
///
/// A *stage* is 16 rows of shared memory of `pitch` bytes: 16 tokens at 16
/// bits, or 32 at 8 bits, two in a row. A *tile* is the tokens of a stage. A
/// *team* of 4 warps does 8 * headTiles heads; the teams of a block share the
/// stages. Heads beyond teams * 8 * headTiles are other blocks', a *group*
/// each.
struct DecodeShape {
  AttentionSpec spec;
  DecodeForm form;
  int64_t row;   ///< values of a cache row: latent + rope
  int64_t tile;  ///< tokens: 16, or 32 for fp8
  int64_t pitch; ///< bytes
  int64_t headTiles, teams, groups, stages;
  int64_t splits; ///< of all tokens together

  bool fp8() const { return spec.cache == Format::FP8E4M3; }
  /// Whether Q is taken in two bf16, the value and what rounding took from it.
  bool exact() const { return spec.cache == Format::BF16; }
  int64_t teamHeads() const { return 8 * headTiles; }
  int64_t blockHeads() const { return teams * teamHeads(); }
  int64_t stageBytes() const { return 16 * pitch; }
  /// Stages that Q in f32 takes at first, 8 heads each.
  int64_t queryStages() const { return teams * headTiles; }
  /// One of a team's two buffers of score partials, f32 [4 warps][16][heads].
  int64_t scoreBytes() const { return 4 * 16 * teamHeads() * 4; }
  int64_t sharedBytes() const {
    return stages * stageBytes() + 2 * teams * scoreBytes();
  }
  std::string name(llvm::StringRef family) const;
};

/// Whether the dimensions fit the tiles of all forms.
bool fitsDecodeTiles(const AttentionSpec &spec);
/// The shape of a form for `spec`, which fits the tiles.
DecodeShape decodeShape(const AttentionSpec &spec, DecodeForm form,
                        const Gpu &gpu);

/// What a block has to do. Splits are numbered through all tokens, token by
/// token, so that a partial result's row is its number.
struct DecodeWork {
  V active; ///< i1: there is work; what follows is within bounds without, too
  V token;
  V position;  ///< of the token
  V firstTile; ///< of the token's rows
  V tiles;
  V alone; ///< i1: the token has no other split
};
/// The work of block `block` of a group in a step of `tokens` tokens. A token that
/// sees no row has no split.
DecodeWork findWork(KernelBuilder &k, const DecodeShape &s,
                    const Positions &positions, V tokens, V block);

Kernel decodeAttention(KernelSite site, const DecodeShape &shape);
Kernel decodeCombine(KernelSite site, const DecodeShape &shape);

/// For a kernel that takes the place of decodeCombine() where there is one token:
/// how many splits it has. Positions are inputs of the step.
V splitsOfOne(KernelBuilder &k, const DecodeShape &s, const Positions &positions);
/// Whether blocks of `threads` threads can do combineHead().
bool canCombineHead(const DecodeShape &s, int64_t threads);
/// Joins what more than one split found for a head: `emit` gets numbers of values in
/// the row of all heads and one value, or that and the 7 behind it. By all threads
/// of a block; has barriers, and what was emitted to shared memory needs another.
void combineHead(KernelBuilder &k, const DecodeShape &s, V head, V splits,
                 Ptr partial, Ptr lse,
                 llvm::function_ref<void(V, llvm::ArrayRef<V>)> emit);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_LATENTDECODE_H
