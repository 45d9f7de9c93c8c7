//===- StreamCore.h - packed weights times one token ------------*- C++ -*-===//
//
// Part of mla. The inside of the kernels for one token: about one block an SM,
// which owns some quads of 4 rows; its warps split the columns. Each warp has its
// own ring of bulk copies, filled before the wait for earlier kernels where the
// weights are known by then. The instruction's rows are four quads; x is in one
// column of B, so that it does the sum over columns:
//
//   bf16, fp8_block  x in every column; exact: column 1 has what rounding lost.
//                    fp8_block: sums of a unit times its block's scale
//   bf16, one quad   folded: the four quads are four units of the one, each with its
//                    x in a column of its own
//   nvfp4            column n has x in the 16 columns of block n, else zero: each
//                    block's sum stays apart and is multiplied by its scale
//   int4_g32         so for 4 groups of 32; a code is an f16 subnormal as it lies
//                    in the word, and 8 times the sum of x is subtracted
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_STREAMCORE_H
#define MLA_LIB_CODEGEN_NVVM_STREAMCORE_H

#include "MatrixKernels.h"
#include <functional>
#include <optional>

namespace mla::nvvm {

/// How a block's weights are cut. A stage is up to 4 quads x stageUnits units.
struct StreamShape {
  Format format = Format::BF16;
  int64_t units = 1;  ///< of columns, over all sources
  int64_t quads = 1;  ///< of a block
  int64_t planes = 1; ///< of x: 2 if exact
  int64_t warpsK = 1, warpsRow = 1;
  int64_t stageUnits = 1, stages = 1;
  int64_t scaleColumns = 0; ///< fp8_block: scales of a quad
  bool ragged = false;      ///< blocks have different numbers of quads
  bool joined = false;      ///< a stage has all units of its quads: one copy
  bool folded = false;      ///< bf16, one quad: four units an instruction
  int64_t extraBytes = 0;   ///< of shared memory, for what a kernel does besides

  int64_t warps() const { return warpsK * warpsRow; }
  int64_t unitsPerWarp() const { return llvm::divideCeil(units, warpsK); }
  int64_t rowBlocks() const { return llvm::divideCeil(quads, 4); }
  int64_t stagesPerRow() const {
    return llvm::divideCeil(unitsPerWarp(), stageUnits);
  }
  int64_t stageBytes() const {
    return (folded ? 1 : 4) * stageUnits * quant::unitBytes(format);
  }
  int64_t ringBytes() const { return warps() * stages * stageBytes(); }
  int64_t xBytes() const {
    return planes * units * quant::unitColumns(format) * 2;
  }
  /// Bulk copies of a stage.
  int64_t copies() const { return joined || folded ? 1 : 4; }
  /// Every warp has the same number of units, in whole stages.
  bool even() const {
    return units % warpsK == 0 && unitsPerWarp() % stageUnits == 0;
  }
  /// Of everything but the ring.
  int64_t otherBytes() const;
  int64_t sharedBytes() const { return ringBytes() + otherBytes(); }

  /// Whether two blocks fit an SM (by shared memory and by the 72 registers that
  /// 4-bit formats take, 64 for others): then the next kernel may begin beside this
  /// one, and is let in after the wait; else at the start.
  bool twoFit(const Gpu &gpu) const {
    return 2 * (sharedBytes() + 1024) <= gpu.sharedBytesPerSM &&
           warps() <= (quant::unitColumns(format) == 128 ? 14 : 16);
  }

  /// Chooses warps and stages for the other members; false if x leaves too little
  /// shared memory. Stages are of `multiple` units or a divisor of it, and whole,
  /// unless it is 0.
  bool choose(int64_t multiple);
};

/// Most shared memory of a kernel: what SM120 has.
constexpr int64_t streamShared = 101376;

class StreamCore {
public:
  /// Reserves shared memory.
  StreamCore(KernelBuilder &k, const StreamShape &shape);

  /// Where quad `slot` (0 .. quads - 1) of this block has unit `unit`.
  std::function<Ptr(V slot, V unit)> weights;
  /// How many of the slots there are; the first ones. Set before fill().
  V quads;
  /// fp8_block: which of a quad's scales is a unit's.
  std::function<V(V unit)> scaleColumn;
  /// Factor of a stage's sums, if they differ along the columns.
  std::function<V(V unit)> stageFactor;

  /// Makes barriers and zeros. Before fill(), by every thread.
  void init();
  /// Begins the first copies. By every warp.
  void fill();
  /// fp8_block: fetches scales; `from` says where that of a slot and column is.
  void fetchScales(llvm::function_ref<Ptr(V slot, V column)> from);

  /// Where x comes from: sources one behind the other, each padded to units in
  /// shared memory.
  struct X {
    Ptr values;
    int64_t sources = 1;
    int64_t columns;     ///< of a source but the last
    int64_t lastColumns; ///< of the last (or only) one
    Ptr gamma{};         ///< of one source: RMS norm
    Format gammaFormat = Format::BF16;
  };
  /// Loads gamma, calls `wait`, loads x, calls `meanwhile`, converts x into shared
  /// memory. A barrier must follow.
  void stageX(const X &x, llvm::function_ref<void()> wait,
              llvm::function_ref<void()> meanwhile);

  /// All products of this warp; sums lie in shared memory after a barrier.
  void run();
  /// After a barrier: sum of row `row` (0 .. quads * 4 - 1), with the format's
  /// constant factor.
  V sum(V row);
  /// After a barrier, with gamma: 1 / sqrt(mean(x^2) + eps). By whole warps.
  V normFactor(double eps, int64_t columns);

  V g, t;

private:
  void issue(V stage, V slot);
  Vs loadX(const X &x, V column);
  void storeX(const X &x, llvm::ArrayRef<V> four, llvm::ArrayRef<V> gamma,
              V column, V &square);
  Vs unit(llvm::ArrayRef<V> acc, Ptr a, V rowBlock, V unit, bool half);
  Vs foldedUnits(llvm::ArrayRef<V> acc, Ptr a, V unit);
  void flush(llvm::ArrayRef<V> acc, V rowBlock);
  V foldedSum(llvm::ArrayRef<V> acc);

  KernelBuilder &k;
  StreamShape s;
  Ptr ring, xs, sums, scales, xSums, squares, barriers, zeros;
  V warpK, warpRow, firstUnit, unitCount, stageCount, rowBlocks;
  Ptr xA, xB;         ///< this lane's x of unit 0
  V strideA, strideB; ///< to the next unit's
  bool even;
};

//===--- Kernels ------------------------------------------------------------===//

/// How linearStream() is cut; nothing if another kernel has to do it: more tokens, exact with 4-bit weights, x too long for shared memory.
std::optional<StreamShape> streamShape(const LinearSpec &spec, const Gpu &gpu);
Kernel linearStream(KernelSite site, const LinearSpec &spec,
                    const StreamShape &shape);

/// The experts' kernels of Kernels.h and how they are cut by default.
StreamShape gateUpOneShape(const ExpertSpec &spec, const Gpu &gpu);
Kernel expertsGateUpOne(KernelSite site, const ExpertSpec &spec,
                        const StreamShape &shape);
StreamShape downOneShape(const ExpertSpec &spec, const Gpu &gpu);
Kernel expertsDownOne(KernelSite site, const ExpertSpec &spec, bool residual,
                      const StreamShape &shape);

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_STREAMCORE_H
