//===- CostModel.h - how long kernels take ----------------------*- C++ -*-===//
//
// Part of mla. Predicts the time of each kernel family from bytes, flops, the
// machine's figures and a few constants fitted to benchmarks (calibration). No
// MLIR: the choice of lowerings, --explain and benchmarks/CostModel.cpp share it.
//
// Every estimate is for a kernel inside a CUDA graph with programmatic dependent
// launch, its weights and cache in memory (not in L2).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_COSTMODEL_COSTMODEL_H
#define MLA_COSTMODEL_COSTMODEL_H

#include "mla/Machine/Machine.h"
#include "mla/Support/Format.h"
#include <span>

namespace mla::cost {

/// A step of a model: `tokens` new ones in all, of `sequences` sequences, each
/// of which has `context` tokens behind it.
struct Step {
  int64_t tokens = 1, sequences = 1, context = 1024;
};

enum class Bound {
  Memory,  ///< bytes over the read ceiling
  Decode,  ///< instructions that turn weights or cache rows into operands
  Matrix,  ///< tensor cores
  Latency, ///< too little work for the machine
  Link     ///< what passes between devices
};
std::string_view boundName(Bound bound);

struct Estimate {
  double seconds = 0; ///< of all its launches, gaps between them not included
  double weightBytes = 0, cacheBytes = 0; ///< read from memory
  double flops = 0;
  int64_t launches = 0;
  Bound bound = Bound::Latency; ///< of the largest part
  double floorSeconds = 0;      ///< bytes over the read ceiling

  Estimate &operator+=(const Estimate &other);
};

/// A weight matrix as it lies in device memory.
struct Matrix {
  Format format;
  int64_t rows, columns;
};

/// What a linear does besides its product.
struct Prologue {
  bool norm = false;  ///< RMS norm of x
  bool exact = false; ///< x in two parts, as routers have it
};

struct Attention {
  int64_t heads, latent, rope;
  Format cache;
  /// Decoding: heads of a block, 8, 16, 24 or 32; each group of them reads the cache
  /// for itself, the first from memory, the others from L2. 0: what the form has that
  /// few heads and single tokens get, or many.
  int64_t blockHeads = 0;
};

struct Experts {
  Matrix gate, down; ///< of one expert; up is as gate
  int64_t experts, topk;
  /// Rows of the shared expert's gate if it is joined, else 0.
  int64_t sharedRows = 0;
  /// One token: gate and up choose from the router's logits, without a kernel
  /// before (then route() is not launched).
  bool chooses = false;
  /// Groups of ranks that have experts of their own, so many of `experts` each. Times
  /// are those of the busiest group, which the others wait for.
  int64_t groups = 1;
  /// The router's: of `routingGroups` groups of experts `routingKept` are chosen from.
  int64_t routingGroups = 1, routingKept = 1;
};

/// Of the experts that one token chooses among all, all as likely: element k is the
/// probability that the group with most of them has k. Exact; where the router's
/// groups neither divide the ranks' nor are divided by them, it counts as having none.
/// Asserts positive numbers, `groups` that divide `experts` and at most that many
/// chosen.
std::vector<double> busiestGroup(const Experts &shape);
/// Experts that `tokens` tokens choose, each once, in the group that has most of them:
/// the expected number. Of several tokens each is taken to choose among all experts.
double busiestExperts(const Experts &shape, int64_t tokens);

/// By NCCL; every rank writes all it has to all others and sums for itself; the same
/// with a part of the sum for each rank, which passes it on; one-shot with the residual
/// and the norm behind it in one kernel.
enum class Collective { Nccl, OneShot, TwoShot, Fused };
/// As in machine files: "one_shot".
std::string_view collectiveName(Collective method);

/// Work and exchanges of one rank in their order. An exchange starts when the one
/// before has ended, and work goes on until something waits for it.
class Timeline {
public:
  void work(double seconds) { now += seconds; }
  /// Begins an exchange; the number by which it is waited for.
  size_t exchange(double seconds);
  void wait(size_t exchange);
  /// Until all work and all exchanges are done.
  double end() const;

private:
  double now = 0, linkFree = 0;
  std::vector<double> ends;
};

/// A constant of the model: docs/cost-model.md says what each stands for.
struct Constant {
  std::string_view name; ///< "stream.nvfp4.bytes_per_cycle"
  std::string_view unit; ///< "seconds", "bytes a cycle", ...
  double start;          ///< where fitting begins
  double low, high;      ///< what it may be
};
/// All constants, in the order of their names.
std::span<const Constant> constants();

/// Fitted constants, share/calibration/kernels.json.
struct Calibration {
  std::map<std::string, double> values; ///< each of constants(), no others
  /// Refuses missing, unknown and impossible constants, one line for each.
  static Result<Calibration> parse(std::string_view text, std::string name);
  /// The shipped one.
  static const Calibration &shipped();
};

/// Estimates for one device of a machine. On the host all kernels are bytes over
/// bandwidth or flops over rate.
class Model {
public:
  explicit Model(const Machine &machine,
                 const Calibration &calibration = Calibration::shipped());

  const Machine &machine() const { return m; }

  /// Linear of one token: all segments in one pass (lib/CodeGen/NVVM/Stream*).
  Estimate linearStream(std::span<const Matrix> segments,
                        Prologue prologue = {}) const;
  /// Up to 64 tokens (Tile*).
  Estimate linearTile(std::span<const Matrix> segments, int64_t tokens) const;
  /// Many tokens: packing of rows, then the product (PackRows, Large*).
  Estimate linearLarge(std::span<const Matrix> segments, int64_t tokens,
                       Prologue prologue = {}) const;
  /// The first of these: rows in 16 bits, as the product reads them.
  Estimate packRows(int64_t columns, int64_t tokens,
                    Prologue prologue = {}) const;
  /// f32 weights, f32 arithmetic.
  Estimate linearF32(std::span<const Matrix> segments, int64_t tokens) const;
  /// Split-KV decode attention and its combining (Latent*).
  Estimate attentionDecode(const Attention &shape, const Step &step) const;
  /// The second of these.
  Estimate attentionCombine(const Attention &shape, const Step &step) const;
  /// One token: the second joined with values out of the latent space, `v` a head.
  Estimate attentionCombineExpand(const Attention &shape, int64_t v,
                                  const Step &step) const;
  /// Attention of prompts (PrefillAttention).
  Estimate attentionPrefill(const Attention &shape, const Step &step) const;
  /// Experts of one token, both kernels (ExpertOne*).
  Estimate expertsOne(const Experts &shape) const;
  Estimate expertsGateUpOne(const Experts &shape) const;
  Estimate expertsDownOne(const Experts &shape) const;
  /// Experts of several tokens: grouping, both products, combining.
  Estimate experts(const Experts &shape, int64_t tokens) const;
  Estimate expertsGroup(const Experts &shape, int64_t tokens) const;
  Estimate expertsGateUp(const Experts &shape, int64_t tokens) const;
  Estimate expertsDown(const Experts &shape, int64_t tokens) const;
  Estimate expertsCombine(const Experts &shape, int64_t tokens) const;
  /// The choice of experts, without the router's linear.
  Estimate route(int64_t experts, int64_t tokens) const;
  /// `heads` matrices of `matrix`, one a head: absorbed queries, values out of
  /// the latent space.
  Estimate heads(int64_t heads, const Matrix &matrix, int64_t tokens) const;
  /// A kernel that only moves rows: norms, sums, embedding, cache writes.
  Estimate rows(int64_t tokens, int64_t bytesPerToken) const;
  /// What lies between the kernels of a step of so many launches.
  double gaps(int64_t launches) const;
  /// An all-reduce of `bytes` among `ranks`; an error if the machine's file has
  /// no figures for it.
  Result<Estimate> allReduce(Collective method, int64_t ranks,
                             int64_t bytes) const;
  /// Each rank gets what the others have, `bytes` with its own. From the figures for
  /// all-reduces (docs/cost-model.md); an error if there are none, and for Fused.
  Result<Estimate> allGather(Collective method, int64_t ranks,
                             int64_t bytes) const;

private:
  Machine m;
  Calibration c;
};

} // namespace mla::cost

#endif // MLA_COSTMODEL_COSTMODEL_H
