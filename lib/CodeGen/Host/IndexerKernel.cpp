//===- IndexerKernel.cpp - the sparse-attention indexer -------------------===//
//
// Part of mla. One work item is one token: it scores every position up to its
// own and keeps the best `topk` in a heap, whose root is the one to lose next
// (lowest score, among equals the highest position). The result row doubles as
// the heap; its scores live in scratch. As long as there are no more positions
// than `topk` they are kept in order and never compared, so that sparse
// attention over a short past is dense attention to the bit.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::host {

namespace {
/// The heap of one token: position and score of entry i.
struct Heap {
  KernelBuilder &k;
  Mem positions;
  V positionsAt;
  Mem scores;
  int64_t size;

  V position(V i) { return k.load(positions, positionsAt + i); }
  V score(V i) { return k.load(scores, i); }
  void set(V i, V position, V score) {
    k.store(positions, positionsAt + i, position);
    k.store(scores, i, score);
  }

  /// Entry (score a, position x) loses before (score b, position y).
  V losesBefore(V a, V x, V b, V y) {
    return k.either(a < b, k.both(a == b, x > y));
  }

  /// Puts (score, position) at `hole` or below, moving losers up.
  void sink(V hole, V position, V score) {
    V end = k.index(size);
    // state: {place of the hole}; ends at a leaf or above only winners.
    V place =
        k.loopWhile(
             {hole, k.index(1)},
             [&](ArrayRef<V> s) { return s[1] == 1; },
             [&](ArrayRef<V> s) {
               V at = s[0];
               V isInner = at * 2 + 1 < end;
               V child = nextToLose(at, isInner);
               V moves = k.both(isInner, losesBefore(this->score(child),
                                                     this->position(child),
                                                     score, position));
               k.when(moves, [&] {
                 set(at, this->position(child), this->score(child));
               });
               return SmallVector<V>{
                   k.select(moves, child, at),
                   k.select(moves, k.index(1), k.index(0))};
             })[0];
    set(place, position, score);
  }

  /// The child of `at` that loses first; for a leaf some entry, not beyond the
  /// end.
  V nextToLose(V at, V isInner) {
    V left = k.select(isInner, at * 2 + 1, k.index(0));
    V right = k.minimum(left + 1, k.index(size - 1));
    V takeRight = losesBefore(score(right), position(right), score(left),
                              position(left));
    return k.select(takeRight, right, left);
  }

  /// Makes a heap of entries in any order.
  void build() {
    k.loop(k.index(0), k.index(size / 2), 1, [&](V i) {
      V at = k.index(size / 2 - 1) - i;
      sink(at, position(at), score(at));
    });
  }
};
} // namespace

/// scale * sum_h weights[h] * relu(q[h] . key), heads in order.
static V emitScore(KernelBuilder &k, Mem q, V queryAt, Mem weights, V weightAt,
                   Mem keys, V keyAt, int64_t heads, int64_t dim,
                   double scale) {
  int64_t block = heads % 8 == 0 ? 8 : heads % 4 == 0 ? 4 : 1;
  V total = k.loop(
      k.index(0), k.index(heads), block, {k.f32(0)},
      [&](V head, ArrayRef<V> acc) {
        SmallVector<V> xAt;
        for (int64_t h = 0; h < block; ++h)
          xAt.push_back(queryAt + (head + h) * dim);
        auto dots = dotTile(k, {keys}, {{keyAt}}, q, xAt, dim);
        V sum = acc[0];
        for (int64_t h = 0; h < block; ++h)
          sum = k.fma(k.load(weights, weightAt + head + h),
                      k.maximum(dots[0][h], k.f32(0)), sum);
        return SmallVector<V>{sum};
      })[0];
  return total * k.f32(scale);
}

std::string indexer(KernelSite site, int64_t heads, int64_t dim, int64_t topk,
                    Format cache, double scale) {
  std::string name = "indexer_" + nameOf(cache) + "_" + std::to_string(heads) +
                     "_" + std::to_string(dim) + "_" + std::to_string(topk) +
                     "_" + llvm::utohexstr(llvm::bit_cast<uint64_t>(scale));
  return kernelOnce(
      site, name,
      {"read", "read", "read", "read", "read", "read", "write"}, 1,
      [&](KernelBuilder &k) {
        Mem q = k.buffer(0, Format::F32), weights = k.buffer(1, Format::F32);
        Mem positions = k.buffer(2, Format::I32);
        Mem sequences = k.buffer(3, Format::I32);
        Mem table = k.buffer(4, Format::I32), keys = k.buffer(5, cache);
        Mem y = k.buffer(6, Format::I32);
        V pages = k.scalar(0);
        Mem scores = k.scratch(topk, Format::F32);
        k.items([&](V t) {
          V sequence = k.load(sequences, t), count = k.load(positions, t) + 1;
          V resultAt = t * topk;
          Heap heap{k, y, resultAt, scores, topk};
          auto scoreOf = [&](V position) {
            V keyAt = cacheRow(k, table, pages, sequence, position, dim);
            return emitScore(k, q, t * (heads * dim), weights, t * heads, keys,
                             keyAt, heads, dim, scale);
          };
          V all = count < topk + 1;
          k.ifElse(
              all,
              [&] {
                k.loop(k.index(0), k.index(topk), 1, [&](V i) {
                  k.store(y, resultAt + i,
                          k.select(i < count, i, k.index(-1)));
                });
              },
              [&] {
                k.loop(k.index(0), k.index(topk), 1,
                       [&](V i) { heap.set(i, i, scoreOf(i)); });
                heap.build();
                k.loop(k.index(topk), count, 1, [&](V position) {
                  V score = scoreOf(position);
                  // An equal score loses: its position is higher.
                  k.when(score > heap.score(k.index(0)),
                         [&] { heap.sink(k.index(0), position, score); });
                });
              });
        });
      });
}

} // namespace mla::host
