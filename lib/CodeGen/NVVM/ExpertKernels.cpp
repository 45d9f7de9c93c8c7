//===- ExpertKernels.cpp - experts of several tokens ----------------------===//
//
// Part of mla. After moeGroup, each chosen expert has a run of pairs in
// `order`.
//
// A block has 16 to 256 rows of one expert (of gate and of up) and reads their
// weights once for every 8 (or 16) of its pairs; bound by reading weights, or on an
// H200 with nvfp4 and int4_g32 about as much by their decoding. 256 threads, two
// blocks an SM (128 registers; shared memory 9 to 35 KB), each lane with 4 (bf16,
// fp8_block: 8) 16-byte loads of the next span under way: 36 KB an SM (64).
//
// Steps with many pairs an expert have LargeExperts.cpp.
//
//===----------------------------------------------------------------------===//
#include "PackedProduct.h"

using namespace mlir;

namespace mla::nvvm {

namespace {
/// Gate and up, or down: what the two kernels have in common.
struct ExpertProduct {
  ExpertSpec spec;
  MatrixShape matrix;
  int64_t matrices;
  /// Operands.
  unsigned x = 0, order = 1, active = 2, offsets = 3, count = 4, weights = 5;
  unsigned y() const { return weights + matrices; }

  int64_t pairsPerExpert() const {
    return llvm::divideCeil(spec.maxTokens * spec.topk, spec.experts);
  }
  FewTokens::Split split() const {
    FewTokens::Split s;
    int64_t spans = spansOf(matrix);
    // Enough spans a warp for its pipeline, or one, and enough rows.
    s.warpsK = spans <= 2 ? spans : 8;
    while (spans > 2 && s.warpsK > 1 && spans < 6 * s.warpsK)
      s.warpsK /= 2;
    s.warpsM = 8 / s.warpsK;
    s.rowTiles = (spans <= 2 ? 4 : 2) / matrices;
    s.tokenTiles = pairsPerExpert() > 4 ? 2 : 1;
    s.firstTokens = pairsPerExpert() > 4 ? 8 : 2;
    return s;
  }
  static constexpr int64_t threads = 256;
  int64_t blockRows() const { return split().rows(); }
  int64_t blockTokens() const { return split().tokens(); }
  int64_t chunks() const { return llvm::divideCeil(matrix.rows, blockRows()); }
  std::string grid() const {
    return "min(tokens * " + std::to_string(spec.topk) + ", " +
           std::to_string(spec.experts) + ") * " + std::to_string(chunks());
  }
  std::string name(StringRef family) const {
    return kernelName(family, formatName(matrix.format), matrix.rows,
                      matrix.columns, spec.experts, spec.topk, blockTokens(),
                      "few");
  }
  ProductShape product() const {
    return {matrix, matrices, true, matrix.columns % 4 == 0};
  }
};

/// A block's work: rows from firstRow of `expert`, for pairs low <= p < high.
struct Work {
  V expert, low, high, firstRow;
};
} // namespace

/// The expert's matrices.
static SmallVector<Ptr> matricesOf(KernelBuilder &k, const ExpertProduct &p,
                                   V expert) {
  SmallVector<Ptr> bases;
  int64_t bytes =
      quant::packedBytes(p.matrix.format, p.matrix.rows, p.matrix.columns);
  for (int64_t m = 0; m < p.matrices; ++m)
    bases.push_back(k.buffer(p.weights + m) + k.to64(expert) * bytes);
  return bases;
}

/// If `places` is there, puts order[low] to order[low + count - 1] there, for
/// after the next barrier: loads of each where it is needed would be one after
/// the other.
static void loadPlaces(KernelBuilder &k, const ExpertProduct &p, Ptr places,
                       V low, V count) {
  if (places.value)
    k.when(k.thread() < count, [&] {
      k.store(places + k.thread() * 4,
              k.loadI32(k.buffer(p.order) + k.to64(low + k.thread()) * 4,
                        Cached::L2));
    });
}
/// Where the result of the block's pair `token` goes.
static V placeOf(KernelBuilder &k, Ptr places, V low, V token) {
  return places.value ? k.loadI32(places + token * 4) : low + token;
}

/// The product for `work`; `rowOf` takes a pair.
static void emitFew(KernelBuilder &k, const ExpertProduct &p, const Work &work,
                    FewTokens &product, function_ref<V(V)> rowOf, Ptr places,
                    function_ref<void(V, V, ArrayRef<V>)> emit) {
  int64_t tokens = p.split().tokens();
  k.loop(work.low, work.high, tokens, [&](V low) {
    // Without this LLVM would move the first span's loads and their decoding
    // out of the loop, which is seldom run twice, and keep all of it in
    // registers.
    V hidden = k.inlinePTX("mov.b32 $0, 0;", "=r", k.i32Type(), {},
                           /*sideEffects=*/true);
    product.begin(matricesOf(k, p, work.expert), work.firstRow + hidden,
                  k.i32(p.matrix.rows));
    // Sums of the tokens before may still be read.
    k.barrier();
    V count = k.minimum(work.high - low, k.i32(tokens));
    loadPlaces(k, p, places, low, count);
    product.run(count,
                {k.buffer(p.x), p.matrix.columns * 4,
                 [&](V token) { return rowOf(low + token); }},
                [&](V row, V token, ArrayRef<V> sums) {
                  emit(row, placeOf(k, places, low, token), sums);
                });
  });
}

/// The kernel: finds its work, then multiplies.
static void emitExperts(KernelBuilder &k, const ExpertProduct &p,
                        function_ref<V(V)> rowOf, Ptr places,
                        function_ref<void(V, V, ArrayRef<V>)> emit) {
  FewTokens product(k, p.product(), p.split());
  k.gridWait();
  k.gridTrigger();
  V slot = k.block() / p.chunks();
  // All at once: what lies behind count is read, but not used.
  V count = k.loadI32(k.buffer(p.count), Cached::L2);
  V expert = k.loadI32(k.buffer(p.active) + slot * 4, Cached::L2);
  V low = k.loadI32(k.buffer(p.offsets) + slot * 4, Cached::L2);
  V high = k.loadI32(k.buffer(p.offsets) + (slot + 1) * 4, Cached::L2);
  V firstRow = k.block() % p.chunks() * p.blockRows();
  k.when(slot < count, [&] {
    emitFew(k, p, {expert, low, high, firstRow}, product, rowOf, places, emit);
  });
}

Kernel expertsGateUp(KernelSite site, const ExpertSpec &spec) {
  ExpertProduct p{spec, spec.gate, 2};
  Kernel kernel{p.name("experts_gate_up"), p.grid()};
  if (exists(site, kernel.name))
    return kernel;
  SmallVector<StringRef> access(8, "read");
  access.back() = "write";
  KernelBuilder k(site.kernels, site.loc, kernel.name, access, 1,
                  {p.threads, 2});
  emitExperts(
      k, p,
      [&](V pair) {
        return k.loadI32(k.buffer(p.order) + k.to64(pair) * 4, Cached::L2) /
               spec.topk;
      },
      Ptr(),
      [&](V row, V pair, ArrayRef<V> sums) {
        k.store(k.buffer(p.y()) +
                    (k.to64(pair) * (p.matrix.rows * 4) + k.to64(row) * 4),
                quickSilu(k, sums[0]) * sums[1]);
      });
  k.finish();
  return kernel;
}

Kernel expertsDown(KernelSite site, const ExpertSpec &spec) {
  ExpertProduct p{spec, spec.down, 1};
  Kernel kernel{p.name("experts_down"), p.grid()};
  if (exists(site, kernel.name))
    return kernel;
  SmallVector<StringRef> access(7, "read");
  access.back() = "write";
  KernelBuilder k(site.kernels, site.loc, kernel.name, access, 1,
                  {p.threads, 2});
  emitExperts(
      k, p, [](V pair) { return pair; }, k.shared(p.blockTokens() * 4),
      [&](V row, V to, ArrayRef<V> sums) {
        k.store(k.buffer(p.y()) +
                    (k.to64(to) * (p.matrix.rows * 4) + k.to64(row) * 4),
                sums[0]);
      });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
