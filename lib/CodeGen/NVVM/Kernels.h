//===- Kernels.h - the kernels of GPU targets -------------------*- C++ -*-===//
//
// Part of mla. Each function makes the kernel for the given shapes and formats
// in the module `kernels`, unless it is there, and returns its name and grid (an
// expression over the step's symbols, in blocks). The comment gives operands
// (formats f32 where none is said) and scalars. T = tokens, P = columns of the
// page table. Rows of activations are f32 [T, width].
//
// "packed": a weight with Layout::Packed, one buffer (a stack: matrices one behind
// the other, quant::packedBytes() apart). "rows": Layout::Rows.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_KERNELS_H
#define MLA_LIB_CODEGEN_NVVM_KERNELS_H

#include "mla/Dialect/MLA.h"
#include "mla/Support/Format.h"
#include "mla/Target/Gpu.h"
#include "mlir/IR/BuiltinOps.h"

namespace mla::nvvm {

struct KernelSite {
  mlir::ModuleOp kernels;
  mlir::Location loc;
  const Gpu &gpu;
};

/// A kernel to launch.
struct Kernel {
  std::string name;
  std::string grid;
};

/// A weight matrix, or each matrix of a stack.
struct MatrixShape {
  Format format;
  int64_t rows, columns;
};

//===--- Rows (RowKernels.cpp, CacheKernels.cpp, RouteKernels.cpp) ----------===//

/// y[t] = table[ids[t]]. (ids i32, table rows f32|bf16|f16, y). Of a part of the
/// vocabulary also a scalar: the first id that is in it; others have rows of zeros.
Kernel embedding(KernelSite site, MatrixShape table, bool part = false);
/// y = x * rsqrt(mean(x^2) + eps) * weight. (x, weight rows f32|bf16|f16, y).
Kernel rmsNorm(KernelSite site, int64_t width, Format weight, double eps);
/// y = silu(gate) * up. (gate, up, y).
Kernel swiglu(KernelSite site, int64_t width);
/// y = a + b. (a, b, y).
Kernel add(KernelSite site, int64_t width);
/// y[r] = x[r] again and again, `all` values. (x, y), grid over the rows r, whose
/// number is the symbol `rows`.
Kernel repeat(KernelSite site, int64_t width, int64_t all,
              llvm::StringRef rows);
/// (x, y_0, y_1, ...).
Kernel split(KernelSite site, llvm::ArrayRef<int64_t> widths);
/// [cos | sin] of position * frequency, times factor. (positions i32, y [T, 2 *
/// frequencies]).
Kernel rotaryEmbedding(KernelSite site, llvm::ArrayRef<float> frequencies,
                       double factor);
/// As host::rope. (x, rotary, y).
Kernel rope(KernelSite site, int64_t width, int64_t headDim, int64_t offset,
            int64_t dim, bool interleaved);
/// As host::latentCacheWrite: norm of the first `latent` values, rotation of the
/// rest, one row written into the page of the token's position, divided by the
/// scale if fp8_e4m3. (positions, sequence, page_table (all i32), x, norm rows,
/// rotary, cache bf16|f16|fp8_e4m3), scalar P. With fp8_e4m3 also an operand
/// saturated i32 [T] behind cache, to which a token's count of values beyond +-448
/// is added, and a scalar: the bits of the cache's scale. With `ranks` the cache has
/// a rank's tokens (mla.shard_batch), of which alone rows are written and values
/// counted; the last scalar is the rank.
Kernel latentCacheWrite(KernelSite site, int64_t latent, int64_t rope,
                        Format norm, Format cache, double eps,
                        bool interleaved, int64_t ranks = 1);
/// logits[i] -> chosen experts and weights of each token, as host::route: f32
/// throughout, ties to the lower index. (logits, [bias rows f32|bf16|f16,]
/// indices i32 [T, topk], weights [T, topk]).
Kernel route(KernelSite site, RoutingAttr routing, int64_t experts,
             std::optional<Format> bias);
/// Sorts the T * topk (token, choice) pairs by expert, stably. (indices i32, order
/// i32 [pairs], active i32 [slots], offsets i32 [slots + 1], count i32 [1]),
/// scalar T; slots = min(pairs, experts); active[s] for s < count[0] is the s-th
/// distinct expert, whose pairs are order[offsets[s]] to order[offsets[s + 1] - 1];
/// a pair is token * topk + choice. With `tileTokens` there is an operand tiles i32
/// [ceildiv(pairs, tileTokens) + slots, 4] behind count: expert, and places in order
/// from the second value up to, without, the third, tileTokens at most; those behind
/// the last are empty. With `part` `experts` are those of a rank's group, and a second
/// scalar is the first of them; pairs of others are nowhere in the order.
Kernel moeGroup(KernelSite site, int64_t experts, int64_t topk,
                int64_t maxTokens, int64_t tileTokens = 0, bool part = false);
/// out[t] = sum_j weights[t, j] * y[t * topk + j] + the addends. (y [pairs,
/// width], weights, addend_0 [T, width], ..., out). With `partOf` a rank's group has
/// so many experts, the first of which is a scalar: behind weights there is indices
/// i32 [T, topk], and choices of others count for nothing, whatever is in y.
Kernel moeCombine(KernelSite site, int64_t width, int64_t topk,
                  int64_t addends, int64_t partOf = 0);
/// Chooses the id with the largest logit of each row (ties: lower id); -1 if there
/// is NaN or +inf in it or nothing above -inf. (logits [R, vocab], ids i32 [R]),
/// grid over R = `outputs`.
Kernel argmax(KernelSite site, int64_t vocab);
/// Reads `bytes` of a buffer and keeps nothing: the read ceiling. (buffer, sink
/// i32 [1]), scalar: bytes, a multiple of 16.
Kernel readCeiling(KernelSite site);

//===--- Sampling (SampleKernels.cpp) ---------------------------------------===//

/// Chooses the next id of each row as runtime/sampler does (without its repetition
/// penalty), given the uniform number; ids as argmax() where the temperature is 0,
/// and -1 where argmax() has it. R = `outputs`, vocab below 2^22.
///   first:  (logits [R, vocab], parameters [R, 4], top_k i32 [R], partial)
///   second: (logits, parameters, top_k, partial, ids i32 [R])
/// Parameters of a row: temperature, top-p, min-p, uniform number from 0 to below
/// 1; top_k 0 keeps all. partial is i32 [R, partialWidth].
struct SampleKernels {
  Kernel first, second;
  int64_t partialWidth = 1;
};
SampleKernels sample(KernelSite site, int64_t vocab);

//===--- Matrices (MatrixKernels.cpp) ---------------------------------------===//

/// y_s[t] = W_s * prologue(x[t]) for each segment s, in one pass over x.
struct LinearSpec {
  llvm::SmallVector<MatrixShape> segments; ///< same format and columns
  int64_t maxTokens = 1;  ///< of the program: 1, up to 64, or more
  bool norm = false;      ///< prologue: RMS norm with `eps`, operand gamma
  Format gamma = Format::BF16;
  double eps = 0;
  bool residual = false;  ///< y[t] += residual[t]; one segment
  bool gated = false;     ///< two segments gate, up: y = silu(gate) * up
  bool outputs = false;   ///< lm_head: row i is of token outputs[i]
  bool exact = false;     ///< router: x not rounded to 16 bits
};
/// (x, [gamma rows,] W_0 packed, y_0, W_1, y_1, ... [, residual]); gated: (x,
/// [gamma,] gate, up, y); outputs: (x, [gamma,] W, y, outputs i32). Scalar: T,
/// with `outputs` the number of outputs.
/// For one token; spec.segments fit its shared memory (canStream()).
Kernel linearStream(KernelSite site, const LinearSpec &spec);
bool canStream(const LinearSpec &spec, const Gpu &gpu);
/// For up to 64 tokens at a time; with more the grid covers them.
Kernel linearTile(KernelSite site, const LinearSpec &spec);
/// The same for weights in f32 (rows) with f32 arithmetic: routers of f32
/// checkpoints. Plain and `outputs`, `norm`, `residual`.
Kernel linearF32(KernelSite site, const LinearSpec &spec);

//===--- Heads (HeadKernels.cpp) --------------------------------------------===//

struct HeadShape {
  int64_t heads, nope, rope, v, latent;
};
/// As host::absorbQuery: y[t, h] = [W_h q_nope | rotated q_rope]. (q [T, heads *
/// (nope + rope)], kT packed bf16 [heads * latent, nope], rotary, y [T, heads *
/// (latent + rope)]), scalar T.
Kernel absorbQuery(KernelSite site, HeadShape shape, bool interleaved,
                   int64_t maxTokens);
/// y[t, h] = W_h x[t, h]. (x [T, heads * latent], vB packed bf16 [heads * v,
/// latent], y [T, heads * v]), scalar T.
Kernel expandValue(KernelSite site, HeadShape shape, int64_t maxTokens);

//===--- Attention (AttentionKernels.cpp) -----------------------------------===//

struct AttentionSpec {
  int64_t heads, latent, rope;
  Format cache; ///< bf16, f16, fp8_e4m3
  double scale;
  int64_t maxTokens, maxSequences; ///< of the program
  int64_t maxContext;              ///< most tokens of a sequence
  /// Over which the tokens of the cache are spread, page by page (mla.shard_batch).
  int64_t ranks = 1;
  bool lse = false; ///< the op's second result is written, too
};
/// Attention over the latent cache for each token: softmax over the rows of its
/// sequence up to its own position, y [T, heads * latent]. Two launches where
/// `combine` is there, with two buffers between them.
///   first:   (q [T, heads * (latent + rope)], positions, sequence, page_table (all
///            i32), cache, partial, lse, y), scalar P, with fp8_e4m3 a second: the
///            bits of the cache's scale. If a token was done by one block, or if
///            there is no combine, y is written.
///   combine: (positions, partial, lse, y).
/// Both read positions, sequence and page_table before they wait for earlier
/// launches: these are inputs of the step, which no kernel may write.
///
/// With `ranks` both have one scalar more, the last: the rank. Positions are those of
/// the step, from which each kernel computes what the rank's cache has. A token of
/// which it has no row gets zeros, from `combine` if there is one. With `lse` both
/// have one operand more, behind y: f32 [T, heads], the natural logarithm of the sum
/// of exp(score) over the rows, -inf where there are none; written by who writes y.
struct AttentionKernels {
  Kernel first;
  std::optional<Kernel> combine;
  std::string partialRows, lseRows; ///< first dimension of the two buffers
  int64_t partialWidth = 1, lseWidth = 1;
  Format partialFormat = Format::F16; ///< lse is f32
};

/// What a block of split-KV attention does, each a lowering of its own.
enum class DecodeForm {
  Narrow, ///< one team of warps, up to 16 heads; two blocks an SM where they fit
  Wide,   ///< one team, 24 heads, rows in 16 bits
  Teams,  ///< two teams of 16 heads share what is read
  Deep    ///< so, with one stage more in flight
};
/// Rows divided among blocks. `latent` is a multiple of 128, latent + rope one of
/// 64 and at most 576.
AttentionKernels latentAttentionSplit(KernelSite site, const AttentionSpec &spec,
                                      DecodeForm form);
/// Any dimensions; a block a head and token, no combine.
AttentionKernels latentAttentionSimple(KernelSite site,
                                       const AttentionSpec &spec);

/// Whether combineExpand() can take the place of `combine` and expandValue().
bool canCombineInExpand(const AttentionSpec &spec, DecodeForm form,
                        HeadShape shape, const Gpu &gpu);
/// One token: combines and expands, y[h] = W_h x[h]. (positions, partial, lse, x [T,
/// heads * latent], which it completes, vB packed bf16 [heads * v, latent], y [T,
/// heads * v]).
Kernel combineExpand(KernelSite site, const AttentionSpec &spec, DecodeForm form,
                     HeadShape shape);

//===--- Experts (ExpertKernels.cpp) ----------------------------------------===//

struct ExpertSpec {
  MatrixShape gate, down; ///< of each expert; up is as gate
  int64_t experts, topk;
  int64_t maxTokens;
  /// Rows of the shared expert's gate if it is joined: same formats, the columns
  /// of `gate` and the rows of `down`. Only with maxTokens 1. 0: not joined.
  int64_t sharedRows = 0;
  /// expertsGateUpOne: RMS norm of x first, operand gamma.
  bool norm = false;
  Format gamma = Format::BF16;
  double eps = 0;
  /// The two kernels of one token: choose the experts, as route() does. For "indices
  /// [, weights]" below the operands are then "logits [, bias rows]".
  RoutingAttr routing = {};
  std::optional<Format> bias = {};
};
/// Whether the two kernels of one token can choose the experts themselves. Others
/// have route() before them.
bool canChooseInExperts(const ExpertSpec &spec, RoutingAttr routing);
/// One token: every chosen expert (and the shared one) in one pass.
/// h[j] = weights[j] * silu(gate x) * (up x), the shared expert's behind them
/// unweighted. (x, [gamma rows,] indices i32, weights, gate packed stack, up packed
/// stack, [shared gate packed, shared up packed,] h [topk * gate.rows +
/// sharedRows]). It lets its successors begin after its own wait only, which
/// expertsDownOne relies on: that reads the indices, or logits, before its wait.
Kernel expertsGateUpOne(KernelSite site, const ExpertSpec &spec);
/// y = sum_j down_{indices[j]} h[j] + shared down h[topk] [+ residual]. (h, indices
/// i32, down packed stack, [shared down packed,] [residual,] y).
Kernel expertsDownOne(KernelSite site, const ExpertSpec &spec, bool residual);
/// Several tokens, after moeGroup: h[p] = silu(gate x) * (up x), p a place in the
/// order. (x, order, active, offsets, count, gate packed stack, up packed stack,
/// h [pairs, gate.rows]), scalar T.
Kernel expertsGateUp(KernelSite site, const ExpertSpec &spec);
/// y[order[p]] = down h[p]. (h, order, active, offsets, count, down packed stack, y
/// [pairs, down.rows]), scalar T.
Kernel expertsDown(KernelSite site, const ExpertSpec &spec);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_KERNELS_H
