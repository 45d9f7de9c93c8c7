//===- KernelSupport.h - what the kernel families share ---------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_HOST_KERNELSUPPORT_H
#define MLA_LIB_CODEGEN_HOST_KERNELSUPPORT_H

#include "KernelBuilder.h"
#include "Kernels.h"
#include "mla/Plan/Plan.h"

namespace mla::host {

inline std::string nameOf(Format f) { return std::string(formatName(f)); }

/// Builds kernel `name` once: `build` gets a builder positioned in the new
/// function and must end with items().
std::string kernelOnce(KernelSite site, const std::string &name,
                       llvm::ArrayRef<llvm::StringRef> access, int64_t scalars,
                       llvm::function_ref<void(KernelBuilder &)> build);

/// Where token rows and weight rows of a blocked product lie.
struct RowProduct {
  Mem x;                                  ///< token rows
  llvm::function_ref<V(V token)> xAt;     ///< their starts
  llvm::SmallVector<Matrix, 2> weights;   ///< matrices multiplied side by side
  V firstRow = {};                        ///< added to a row of them, if given
  /// Receives one value a matrix for every (token, row).
  llvm::function_ref<void(V token, V row, llvm::ArrayRef<V>)> emit;
};

/// The rows [first, second) of block `block` of a matrix of `rows`.
inline std::pair<V, V> blockRows(KernelBuilder &k, V block, int64_t rows) {
  V low = block * rowsPerItem(rows);
  return {low, k.minimum(low + rowsPerItem(rows), k.index(rows))};
}

/// Multiplies matrix rows [rowLow, rowHigh) with tokens [tokenLow, tokenHigh).
/// Weight rows stay in the L2 cache while the tokens pass; a tile of tokens is
/// read once for all of them.
void rowProduct(KernelBuilder &k, const RowProduct &p, V rowLow, V rowHigh,
                V tokenLow, V tokenHigh);

/// Element offset of the cache row of `position` in sequence `sequence`.
V cacheRow(KernelBuilder &k, Mem pageTable, V pages, V sequence, V position,
           int64_t width);

/// Rotates `dim` values from `from` at `fromAt` into `to` at `toAt`:
/// [first of each pair | second of each pair].
void rotate(KernelBuilder &k, Mem from, V fromAt, Mem rotary, V rotaryAt,
            Mem to, V toAt, int64_t dim, bool interleaved);

/// Copies the f32 row at `fromAt`, RMS-normed, to `to` at `toAt`.
void rmsNormRow(KernelBuilder &k, Mem from, V fromAt, Mem weight, Mem to,
                V toAt, int64_t width, double eps);

} // namespace mla::host

#endif // MLA_LIB_CODEGEN_HOST_KERNELSUPPORT_H
