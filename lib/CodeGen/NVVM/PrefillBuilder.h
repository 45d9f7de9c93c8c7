//===- PrefillBuilder.h - parts of the prefill kernel -----------*- C++ -*-===//
//
// Part of mla. What a thread of the prefill kernel knows and does, over two files:
// PrefillAttention.cpp has how queries, rows and runs come and results go,
// PrefillTile.cpp what is computed with a tile.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_PREFILLBUILDER_H
#define MLA_LIB_CODEGEN_NVVM_PREFILLBUILDER_H

#include "AttentionKernels.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

namespace mla::nvvm {

/// Makes the prefill kernel's body.
class PrefillBuilder {
public:
  static constexpr int64_t pairsOfBlock = 64, tileRows = 16, consumers = 256,
                           producers = 128, threads = consumers + producers;
  static_assert(plan::pageTokens % tileRows == 0, "a tile is in one page");

  PrefillBuilder(KernelBuilder &k, const AttentionSpec &spec, const Gpu &gpu)
      : k(k), spec(spec), gpu(gpu), fp8(spec.cache == Format::FP8E4M3),
        spread(spec.ranks > 1),
        positions(positionsOf(k, spec, k.buffer(1), fp8 ? 3 : 2)),
        width(spec.latent + spec.rope) {
    rowBytes = width * (fp8 ? 1 : 2);
    pitch = rowBytes + 16;
    slotBytes = tileRows * pitch;
    slots = slotBytes > 10000 ? 4 : 8;
    steps = width / 64;
    nTiles = spec.latent / 32;
  }
  void build();

private:
  /// A run of tokens of one sequence in the block.
  struct Run {
    V pages; ///< index of the sequence's first page in the page table
    V next;  ///< the token behind the run
    V rows;  ///< most rows that one of its tokens attends to
    V tiles() const { return rows.k->ceilDiv(rows, tileRows); }
  };
  int64_t accCount() const { return 2 * nTiles * 4; }

  /// The block's first pair. Later tokens have more rows, so they come first.
  V pairOfBlock() {
    return (k.blocks() - 1 - readAnew(k, "ctaid")) * pairsOfBlock;
  }
  V lastToken() {
    return k.minimum((pairOfBlock() + (pairsOfBlock - 1)) / spec.heads,
                     tokens - 1);
  }

  /// The first token of the block's first run; behind the last token, if there is none.
  V firstToken();
  void setUp();
  void loadQuery();
  Run runAt(V first);
  void produce();
  void consume();
  void copy(const Run &run, V tile, V index, V page);
  /// What a lane gives ldmatrix: its place `of` in a tile, plus the warp's part. The
  /// sum is hidden from LLVM, which would take a register for each of its parts.
  Ptr tileAt(V index, Ptr of, int64_t bytesOfQuarter) {
    V offset = index % slots * slotBytes + quarter * bytesOfQuarter;
    return of + k.inlinePTX("mov.b32 $0, $1;", "=r,r", k.i32Type(),
                            {offset.value}, /*sideEffects=*/false);
  }
  void scores(V index, Vs &s);
  void storePartial(llvm::ArrayRef<V> s);
  Vs rescale(V index, llvm::ArrayRef<V> flag, llvm::ArrayRef<V> acc);
  Vs loadWeights();
  void output(V index, llvm::ArrayRef<V> a, Vs &acc);
  Vs softmax(V index, llvm::ArrayRef<V> state);
  void waitFull(V index) {
    k.mbarrierWait(full + index % slots * 8, index / slots & 1);
  }
  void waitGroup(Ptr barrier, V index) {
    k.mbarrierWait(barrier, index & 1);
  }
  void noteRun(V first, V begin);
  std::pair<Vs, V> runBody(V first, V begin, llvm::ArrayRef<V> state);
  void store(llvm::ArrayRef<V> state);
  Vs mma(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c) {
    return spec.cache == Format::BF16 ? k.mmaBF16(a, b, c) : k.mmaF16(a, b, c);
  }
  V pack(V low, V high) {
    return spec.cache == Format::BF16 ? k.packBF16(low, high)
                                      : k.packF16(low, high);
  }
  void setMaxRegisters(int64_t count, mlir::NVVM::SetMaxRegisterAction action) {
    mlir::NVVM::SetMaxRegisterOp::create(k.b, uint32_t(count), action);
  }
  void arrive(Ptr barrier) {
    k.syncWarp();
    k.when(lane == 0, [&] { k.mbarrierArrive(barrier); });
  }

  KernelBuilder &k;
  const AttentionSpec &spec;
  const Gpu &gpu;
  bool fp8, spread;
  Positions positions;
  int64_t width, rowBytes, pitch, slotBytes;
  int64_t slots;
  int64_t steps;   ///< of 16 values of the contraction, a warp
  int64_t nTiles;  ///< of 8 latent values, a warp
  Ptr tiles, full, empty;
  Ptr begins; ///< [slot][2]: of the run that a tile begins, rows and next token
  Ptr own; ///< what the group has, at the offsets below
  /// Of `own`: for each reader, partial scores [source][n-tile][lane][2], limits
  /// [lane][2] (one used); probabilities [m-tile][lane][4], factors [tile's
  /// parity][pair], flags [warp], the next run's token [warp], the barriers of
  /// partial scores and of probabilities.
  enum Own : int64_t {
    Limits = 2048,
    ReaderBytes = Limits + 256,
    Weights = 4 * ReaderBytes,
    Factors = Weights + 1024,
    Flags = Factors + 256,
    Next = Flags + 16,
    ScoresIn = Next + 16,
    WeightsIn = ScoresIn + 8,
    OwnBytes = WeightsIn + 8
  };
  Ptr partialTo, partialFrom, weightsTo, weightsFrom; ///< of this lane
  V lane, warp, group, quarter, g, t;
  V tokens, firstPair, pageColumns, cacheScale;
  Ptr keys, values; ///< of this lane in the first tile, for ldmatrix
  Vs query;          ///< [m-tile][step][4]
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_PREFILLBUILDER_H
