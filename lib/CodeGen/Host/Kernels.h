//===- Kernels.h - the kernels of the host target ---------------*- C++ -*-===//
//
// Part of mla. Each function makes the kernel for the given shapes and formats
// in the module `kernels`, unless it is there, and returns its name. The
// comment gives operands (formats f32 where none is said), scalars and grid.
// T = tokens, P = columns of the page table.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_HOST_KERNELS_H
#define MLA_LIB_CODEGEN_HOST_KERNELS_H

#include "mla/Dialect/MLA.h"
#include "mla/Plan/Plan.h"
#include "mla/Support/Format.h"
#include "mlir/IR/BuiltinOps.h"

namespace mla::host {

struct KernelSite {
  mlir::ModuleOp kernels;
  mlir::Location loc;
};

/// A weight matrix, or each matrix of a stack.
struct MatrixShape {
  Format format;
  int64_t rows, columns;
};

/// Rows of a matrix that one work item multiplies.
int64_t rowsPerItem(int64_t rows);
inline int64_t rowBlocks(int64_t rows) {
  return (rows + rowsPerItem(rows) - 1) / rowsPerItem(rows);
}

//===--- Linear ------------------------------------------------------------===//

/// y_i[t] = W_i x[t] for every segment i.
/// (x, W_0, y_0, W_1, y_1, ...), scalar T; grid: sum of rowBlocks(W_i).
std::string linear(KernelSite site, llvm::ArrayRef<MatrixShape> segments);
/// y[i] = W x[outputs[i]]. (x, W, outputs i32, y), scalar: outputs; grid:
/// rowBlocks(W).
std::string lmHead(KernelSite site, MatrixShape weight);
/// y[t] = silu(G x[t]) * (U x[t]). (x, G, U, y), scalar T; grid: rowBlocks(G).
std::string gatedLinear(KernelSite site, MatrixShape gate, Format up);

//===--- Rows --------------------------------------------------------------===//

/// (ids i32, table, y); grid T. Of a part of the vocabulary also a scalar: the
/// first id that is in it; others have rows of zeros.
std::string embedding(KernelSite site, MatrixShape table, bool part);
/// (x, weight, y); grid T.
std::string rmsNorm(KernelSite site, int64_t width, Format weight, double eps);
/// (x, weight, bias, y); grid T.
std::string layerNorm(KernelSite site, int64_t width, Format weight,
                      Format bias, double eps);
/// (gate, up, y); grid T.
std::string swiglu(KernelSite site, int64_t width);
/// (a, b, y); grid T.
std::string add(KernelSite site, int64_t width);
/// (x, y): a row of y is that of x again and again, `all` values; grid T.
std::string repeat(KernelSite site, int64_t width, int64_t all);
/// What the runtime does for it (plan::Collective). (x, y), scalars: rows, columns of
/// x, columns of y; grid 1.
std::string collective(KernelSite site, plan::Collective kind);
/// (x, y_0, y_1, ...); grid T.
std::string split(KernelSite site, llvm::ArrayRef<int64_t> widths);

//===--- Rotary embedding and caches ----------------------------------------===//

/// (positions i32, y [T, 2 * frequencies]); grid T.
std::string rotaryEmbedding(KernelSite site, llvm::ArrayRef<float> frequencies,
                            double factor);
/// (x, rotary, y); grid T.
std::string rope(KernelSite site, int64_t width, int64_t headDim,
                 int64_t offset, int64_t dim, bool interleaved);
/// (positions, read, write (all i32)), scalar: the rank; grid T. The positions of
/// mla.shard_batch.
std::string shardBatch(KernelSite site, int64_t ranks);
/// (positions, sequence, page_table (all i32), cache, part_0, ...), scalar P;
/// grid T. A token with a position below 0 is not written, here and below.
std::string cacheWrite(KernelSite site, llvm::ArrayRef<int64_t> widths,
                       Format cache);
/// (positions, sequence, page_table, x, norm, rotary, cache), scalar P; grid T.
/// With an fp8_e4m3 cache also an operand saturated i32 [T], to which a token's
/// values beyond the cache's range are added, and a scalar: the bits of the
/// cache's scale.
std::string latentCacheWrite(KernelSite site, int64_t latent, int64_t rope,
                             Format norm, Format cache, double eps,
                             bool interleaved);

//===--- Attention ----------------------------------------------------------===//

struct HeadShape {
  int64_t heads, nope, rope, v, latent;
};

/// (q, kv_b, rotary, y), scalar T; grid: heads.
std::string absorbQuery(KernelSite site, HeadShape shape, Format kvB,
                        bool interleaved);
/// (x, kv_b, y), scalar T; grid: heads * rowBlocks(v).
std::string expandValue(KernelSite site, HeadShape shape, Format kvB);
/// (q, positions, sequence, page_table, cache, [selected i32,] y), scalar P;
/// grid: T * headBlocks(heads). With an fp8_e4m3 cache a second scalar: the bits
/// of the cache's scale. If `partial`, another operand lse [T, heads] behind y, and
/// positions may be -1 (mla.latent_attention).
std::string latentAttention(KernelSite site, HeadShape shape, Format cache,
                            double scale, int64_t selected,
                            bool partial = false);
/// (x [T, ranks * heads * latent], lse [T, ranks * heads], y): what mla.merge_attention
/// computes after the exchange, with `heads` of one rank; grid: T * heads.
std::string mergeAttention(KernelSite site, int64_t heads, int64_t latent,
                           int64_t ranks);
int64_t headBlocks(int64_t heads);
/// As latentAttention, over an expanded cache; grid: T * heads.
std::string attention(KernelSite site, HeadShape shape, Format cache,
                      double scale, int64_t selected);
/// (q, weights, positions, sequence, page_table, cache, y i32), scalar P;
/// grid T.
std::string indexer(KernelSite site, int64_t heads, int64_t dim, int64_t topk,
                    Format cache, double scale);

//===--- Experts ------------------------------------------------------------===//

/// (logits, [bias,] indices i32, weights); grid T.
std::string route(KernelSite site, RoutingAttr routing, int64_t experts,
                  std::optional<Format> bias);
/// Sorts the T * topk (token, choice) pairs by expert. (indices i32, order i32
/// [pairs], active i32 [slots], offsets i32 [slots + 1], count i32 [1]), scalar
/// T; grid 1. slots = min(pairs, experts). Of a `part` of the experts also a scalar,
/// the first of them: pairs of others are left out, and the kernels behind it count
/// experts from there.
std::string moeGroup(KernelSite site, int64_t experts, int64_t topk, bool part);
/// h[p] = silu(gate x) * (up x) for pair p of the order. (x, order, active,
/// offsets, count, gate table, up table, h); grid: slots * rowBlocks(gate).
std::string moeGateUp(KernelSite site, MatrixShape gate, Format up,
                      int64_t topk);
/// y[order[p]] = down h[p]. (h, order, active, offsets, count, down table, y);
/// grid: slots * rowBlocks(down).
std::string moeDown(KernelSite site, MatrixShape down);
/// out[t] = sum_j weights[t, j] * y[t * topk + j] (+ shared[t]). (y, weights,
/// [shared,] out); grid T. With `part` experts, of which the rank has them, not 0:
/// also an operand indices i32 in front of out and a scalar, the first expert; what
/// is of others is not read.
std::string moeCombine(KernelSite site, int64_t width, int64_t topk,
                       bool shared, int64_t part);

} // namespace mla::host

#endif // MLA_LIB_CODEGEN_HOST_KERNELS_H
