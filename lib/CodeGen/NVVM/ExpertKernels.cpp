//===- ExpertKernels.cpp - experts of many tokens -------------------------===//
//
// Part of mla. After moeGroup, each chosen expert has a run of pairs in
// `order`.
//
// Up to 64 tokens, or 12 pairs an expert (FewTokens): a block has 16 to 256
// rows of one expert (of gate and of up) and reads their weights once for every
// 8 (or 16) of its pairs; bound by reading weights, or on an H200 with nvfp4
// and int4_g32 about as much by their decoding. 256 threads, two blocks an SM
// (128 registers; shared memory 9 to 35 KB), each lane with 4 (bf16, fp8_block:
// 8) 16-byte loads of the next span under way: 36 KB an SM (64).
//
// More tokens (ManyTokens): a block has 256 rows (gate and up: 128 of each;
// half of that where columns are few) and up to 128 pairs (fp8_block 64) of one
// expert; the list of tiles follows from `offsets`, which every block adds up
// for itself. Blocks of an expert with the same rows are neighbours: its
// weights come from memory once, then from L2. 255 registers, one block of 256
// threads an SM, 38 KB of shared memory. A block reads 256 rows of weights and
// 128 of x for 256 * 128 * 2 flops a column: 64 flops a byte of L2 for bf16, 90
// for nvfp4, which with the rate of mma.sync bounds it.
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
  /// Up to 64 tokens, or about 16 pairs an expert: one tile of FewTokens.
  bool few() const { return spec.maxTokens <= 64 || pairsPerExpert() <= 12; }
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
  /// Tiles of 8 pairs.
  int64_t manyTiles() const {
    return matrix.format == Format::FP8Block || pairsPerExpert() <= 64 ? 8 : 16;
  }
  /// Two small blocks an SM where beginning and end of a block weigh much.
  int64_t threads() const { return few() || matrix.columns > 1024 ? 256 : 128; }
  int64_t blockRows() const {
    return few() ? split().rows() : threads() / matrices;
  }
  int64_t blockTokens() const {
    return few() ? split().tokens() : manyTiles() * 8;
  }
  int64_t chunks() const { return llvm::divideCeil(matrix.rows, blockRows()); }
  std::string grid() const {
    std::string pairs = "tokens * " + std::to_string(spec.topk);
    std::string slots =
        "min(" + pairs + ", " + std::to_string(spec.experts) + ")";
    if (!few()) // a tile that is not full for each expert, at most
      slots = "(ceildiv(" + pairs + ", " + std::to_string(manyTiles() * 8) +
              ") + " + slots + ")";
    return slots + " * " + std::to_string(chunks());
  }
  std::string name(StringRef family) const {
    return kernelName(family, formatName(matrix.format), matrix.rows,
                      matrix.columns, spec.experts, spec.topk, blockTokens(),
                      few() ? "few" : "many");
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

/// Finds the (expert, tile of pairs, chunk of rows) of this block and calls
/// `body` with it, if there is one. A thread has a slot (or several) and adds
/// up the blocks of those before it: one latency of L2, and two barriers.
static void forTile(KernelBuilder &k, const ExpertProduct &p,
                    function_ref<void(const Work &)> body) {
  const int64_t tile = p.manyTiles() * 8;
  const int64_t most = std::min(p.spec.maxTokens * p.spec.topk, p.spec.experts);
  const int64_t rounds = llvm::divideCeil(most, p.threads());
  Ptr sums = k.shared(rounds * k.warps() * 4), found = k.shared(5 * 4);
  V slots = k.minimum(k.scalar32(0) * p.spec.topk, k.i32(p.spec.experts));
  struct Slot {
    V expert, low, high, end, blocks, tiles;
  };
  // What lies behind count is read, but not used.
  SmallVector<Slot> mine;
  V count = k.loadI32(k.buffer(p.count), Cached::L2);
  for (int64_t r = 0; r < rounds; ++r) {
    V s = k.minimum(k.thread() + r * p.threads(), slots - 1);
    Slot slot;
    slot.expert = k.loadI32(k.buffer(p.active) + s * 4, Cached::L2);
    slot.low = k.loadI32(k.buffer(p.offsets) + s * 4, Cached::L2);
    slot.high = k.loadI32(k.buffer(p.offsets) + s * 4 + 4, Cached::L2);
    mine.push_back(slot);
  }
  k.when(k.thread() == 0, [&] { k.store(found + 4, k.i32(0)); });
  for (auto [r, slot] : llvm::enumerate(mine)) {
    V there = k.thread() + int64_t(r) * p.threads() < count;
    slot.tiles =
        k.select(there, k.ceilDiv(slot.high - slot.low, tile), k.i32(0));
    slot.blocks = slot.tiles * p.chunks();
    slot.end = slot.blocks;
    for (int64_t by = 1; by < 32; by *= 2)
      slot.end = k.select(k.lane() >= by, slot.end + k.shuffleUp(slot.end, by),
                          slot.end);
    k.when(k.lane() == 31, [&, end = slot.end, r = r] {
      k.store(sums + (k.warp() + int64_t(r) * k.warps()) * 4, end);
    });
  }
  k.barrier();
  V before = k.i32(0);
  for (auto [r, slot] : llvm::enumerate(mine)) {
    for (int64_t w = 0; w < k.warps(); ++w) {
      V sum = k.loadI32(sums + (int64_t(r) * k.warps() + w) * 4);
      slot.end = slot.end + k.select(k.warp() > w, sum, k.i32(0));
      if (w == 0)
        slot.end = slot.end + before;
      before = before + sum;
    }
    V at = k.block() - (slot.end - slot.blocks);
    k.when((at >= 0) & (k.block() < slot.end), [&, slot = slot] {
      V low = slot.low + at % slot.tiles * tile;
      k.store(found, slot.expert);
      k.store(found + 4, k.i32(1));
      k.store(found + 8, low);
      k.store(found + 12, k.minimum(low + tile, slot.high));
      k.store(found + 16, at / slot.tiles * p.blockRows());
    });
  }
  k.barrier();
  k.when(k.loadI32(found + 4) == 1, [&] {
    body({k.loadI32(found), k.loadI32(found + 8), k.loadI32(found + 12),
          k.loadI32(found + 16)});
  });
}

/// The kernel: finds its work, then multiplies.
static void emitExperts(KernelBuilder &k, const ExpertProduct &p,
                        function_ref<V(V)> rowOf, Ptr places,
                        function_ref<void(V, V, ArrayRef<V>)> emit) {
  if (p.few()) {
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
      emitFew(k, p, {expert, low, high, firstRow}, product, rowOf, places,
              emit);
    });
    return;
  }
  int64_t tiles = p.manyTiles();
  Ptr scratch = k.shared(ManyTokens::sharedBytes(tiles));
  k.gridWait();
  k.gridTrigger();
  forTile(k, p, [&](const Work &work) {
    V pairs = work.high - work.low;
    loadPlaces(k, p, places, work.low, pairs);
    auto multiply = [&](int64_t some) {
      ManyTokens product(k, p.product(), some, scratch);
      product.run(matricesOf(k, p, work.expert), work.firstRow,
                  k.i32(p.matrix.rows), pairs,
                  {k.buffer(p.x), p.matrix.columns * 4,
                   [&](V token) { return rowOf(work.low + token); }},
                  [&](V row, V token, ArrayRef<V> sums) {
                    emit(row, placeOf(k, places, work.low, token), sums);
                  });
    };
    // An expert's last tile is seldom full.
    if (tiles == 16)
      k.ifElse(
          pairs > 64, [&] { multiply(16); }, [&] { multiply(8); });
    else
      multiply(tiles);
  });
}

/// x * sigmoid(x) to 2^-21. An exact division is a call where it is emitted,
/// and calls do not go with so many registers.
static V quickSilu(KernelBuilder &k, V x) {
  return x * k.reciprocal(k.f32(1) + k.exp(k.f32(0) - x));
}

Kernel expertsGateUp(KernelSite site, const ExpertSpec &spec) {
  ExpertProduct p{spec, spec.gate, 2};
  Kernel kernel{p.name("experts_gate_up"), p.grid()};
  if (exists(site, kernel.name))
    return kernel;
  SmallVector<StringRef> access(8, "read");
  access.back() = "write";
  KernelBuilder k(site.kernels, site.loc, kernel.name, access, 1,
                  {p.threads(), p.few() ? 2 : 1});
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
                  {p.threads(), p.few() ? 2 : 1});
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
