//===- Lowerings.h - what GPU targets can lower -----------------*- C++ -*-===//
//
// Part of mla. One table for all GPUs, in parts by family: what each lowering needs
// and what it costs, beside the kernels that it stands for. What both the choice
// and the lowering must know of an op is here.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_LOWERINGS_H
#define MLA_LIB_CODEGEN_NVVM_LOWERINGS_H

#include "Kernels.h"
#include "mla/CodeGen/NVVM/Lowerings.h"
#include "mla/Quant/Pack.h"

namespace mla::nvvm {

/// Parts of the table.
llvm::ArrayRef<Lowering> linearLowerings(); ///< LinearLowerings.cpp
llvm::ArrayRef<Lowering> attentionLowerings(); ///< AttentionLowerings.cpp
llvm::ArrayRef<Lowering> expertLowerings(); ///< ExpertLowerings.cpp
llvm::ArrayRef<Lowering> rowLowerings(); ///< RowLowerings.cpp
llvm::ArrayRef<Lowering> collectiveLowerings(); ///< CollectiveLowerings.cpp

//===--- Weights -------------------------------------------------------------===//

inline WeightType weightType(mlir::Value v) {
  return llvm::cast<WeightType>(v.getType());
}
inline Format formatOf(mlir::Value weight) {
  return weightType(weight).getFormat();
}
inline MatrixShape matrix(mlir::Value weight) {
  WeightType type = weightType(weight);
  unsigned rank = type.getRank();
  return {type.getFormat(), type.getDim(rank - 2), type.getDim(rank - 1)};
}

/// Whether a matrix is multiplied by tensor cores, from packed memory; others
/// are in f32.
inline bool isPacked(Format format) { return quant::canPack(format); }

inline int64_t bytesInMemory(MatrixShape m) {
  return isPacked(m.format) ? quant::packedBytes(m.format, m.rows, m.columns)
                            : m.rows * m.columns * 4;
}
inline cost::Matrix costMatrix(MatrixShape m) {
  return {isPacked(m.format) ? m.format : Format::F32, m.rows, m.columns};
}

//===--- Linears -------------------------------------------------------------===//

/// The kernels of a linear, each a lowering of its own.
enum class LinearForm {
  Stream,   ///< one token (StreamKernels.cpp)
  Tile,     ///< up to 64 (TileKernels.cpp)
  Large,    ///< many (LargeLinear.cpp)
  LargeFp4, ///< so, with activations in 4 bits
  F32       ///< f32 weights and arithmetic (MatrixKernels.cpp)
};
/// The form that a lowering's name without target stands for, "linear_tile".
LinearForm parseLinearForm(llvm::StringRef lowering);

std::optional<Refusal> refusal(LinearForm form, const LinearSpec &spec,
                               const LoweringSite &site);
cost::Estimate estimate(LinearForm form, const LinearSpec &spec,
                        const LoweringSite &site, const cost::Step &step);
/// The cheapest form that refuses `spec` for nothing: for linears inside of other
/// ops. One of Tile and F32 always does.
LinearForm bestForm(const LinearSpec &spec, const LoweringSite &site);

//===--- Attention -----------------------------------------------------------===//

/// Latent caches in 16 or 8 bits.
std::optional<Refusal> needsLatentCache(mlir::Operation *op,
                                        const LoweringSite &site);
AttentionSpec attentionSpec(LatentAttentionOp op, const LoweringSite &site);

//===--- Experts -------------------------------------------------------------===//

/// Whether the shared expert is one more of a token's experts: same formats.
bool joinsShared(mlir::Value gate, mlir::Value down, mlir::ValueRange shared);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_LOWERINGS_H
