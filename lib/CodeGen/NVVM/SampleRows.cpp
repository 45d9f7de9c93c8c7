//===- SampleRows.cpp - the choice of a row -------------------------------===//
//
// Part of mla. The second launch of sampling; SampleKernels.cpp says how.
//
//===----------------------------------------------------------------------===//
#include "SampleKernels.h"

using namespace mlir;

namespace mla::nvvm {

static const double infinity = std::numeric_limits<double>::infinity();

namespace {
/// A row's choice, after its slices.
class RowSampler {
public:
  RowSampler(KernelBuilder &k, int64_t vocab)
      : k(k), vocab(vocab), layout(vocab) {
    scratch = k.shared(rowThreads / 32 * 12);
    counter = k.shared(4);
    ranks = k.shared(mostCandidates * 8);
    weights = k.shared(mostCandidates * 8);
  }
  void build();

private:
  /// Sum of what `measure` makes of rank and weight, over a list.
  using Measure = function_ref<V(V rank, V weight)>;
  using Sum = function_ref<V(Measure)>;

  V sumCandidates(V count, Measure measure);
  V sumLogits(Measure measure);
  std::pair<V, V> ofLogit(V v, V at);
  V sumRange(V first, V end, int64_t stride, Measure measure);
  V firstAbove(Sum sum, V byId, V limit, V threshold, bool counts);
  V keepCandidates(V count, V cut, V least);
  V share(V fraction, V total);
  V topPThreshold(V total);
  V drawThreshold(V total);
  V drawById(V cut, V least);
  V fromCandidates(V count, V total);
  V fromLogits();

  KernelBuilder &k;
  int64_t vocab;
  Partial layout;
  Ptr scratch, counter, ranks, weights, logits, partial;
  std::optional<Parameters> p;
  V largest, least; ///< least: the whole weight of min-p
};
} // namespace

V RowSampler::sumCandidates(V count, Measure measure) {
  V mine = k.loop(k.thread(), count, rowThreads, {k.i64(0)},
                  [&](V i, ArrayRef<V> acc) {
                    return Vs{acc[0] + measure(k.loadI64(ranks + i * 8),
                                               k.loadI64(weights + i * 8))};
                  })[0];
  return blockSum64(k, mine, scratch);
}

/// Rank and weight of the logit `v` of id `at`; -inf has noRank and 0.
std::pair<V, V> RowSampler::ofLogit(V v, V at) {
  V key = orderKey(k, v) ^ 0x7FFFFFFF; // descending, unsigned
  V rank = (k.to64(key) << idBits) | k.to64(at);
  V weight = toWhole(k, weightOf(k, v, largest, p->scale));
  return {k.select(v > k.f32(-infinity), rank, k.i64(noRank)), weight};
}
/// This thread's part of the sum over ids first, first + stride, ... below `end`:
/// 8 loads in flight.
V RowSampler::sumRange(V first, V end, int64_t stride, Measure measure) {
  constexpr int64_t atOnce = 8;
  return k.loop(
      first, end, stride * atOnce, {k.i64(0)}, [&](V base, ArrayRef<V> acc) {
        Vs ids, loaded;
        for (int64_t i = 0; i < atOnce; ++i) {
          ids.push_back(base + i * stride);
          V at = k.select(ids[i] < end, ids[i], base);
          loaded.push_back(k.loadF32(logits + at * 4));
        }
        V sum = acc[0];
        for (auto [id, v] : llvm::zip(ids, loaded)) {
          auto [rank, weight] = ofLogit(v, id);
          sum = sum + k.select(id < end, measure(rank, weight), k.i64(0));
        }
        return Vs{sum};
      })[0];
}
V RowSampler::sumLogits(Measure measure) {
  V mine = sumRange(k.thread(), k.i32(vocab), rowThreads, measure);
  return blockSum64(k, mine, scratch);
}

/// The first place (a rank, or its id with `byId`) up to which the sum is above
/// `threshold`, of ranks up to `limit` with weights of at least `least`. With
/// `counts`, a place is the first rank with a key, and each rank counts 1. All ones
/// if there is none.
V RowSampler::firstAbove(Sum sum, V byId, V limit, V threshold, bool counts) {
  V mask = k.select(byId, k.i64(idMask), k.i64(-1));
  V highest = k.select(byId, k.i32(idBits - 1), k.i32(rankBits - 1));
  int64_t lowest = counts ? idBits : 0;
  return k.loopWhile(
      {highest, k.i64(0)},
      [&](ArrayRef<V> now) { return now[0] >= lowest; },
      [&](ArrayRef<V> now) {
        V step = k.shift(k.i64(1), k.to64(now[0]));
        V last = now[1] + step - 1;
        V total = sum([&](V rank, V weight) {
          V in = (last >= (rank & mask)) & (limit >= rank);
          if (!counts)
            in = in & (weight >= least);
          return k.select(in, counts ? k.i64(1) : weight, k.i64(0));
        });
        return Vs{now[0] - 1,
                  k.select(threshold >= total, now[1] + step, now[1])};
      })[1];
}

/// Drops candidates behind `cut` or lighter than `least`; how many are left.
V RowSampler::keepCandidates(V count, V cut, V lightest) {
  constexpr int64_t each = mostCandidates / rowThreads;
  k.when(k.thread() == 0, [&] { k.store(counter, k.i32(0)); });
  Vs rank, weight, kept;
  for (int64_t i = 0; i < each; ++i) {
    V at = k.thread() + i * rowThreads, there = at < count;
    at = k.select(there, at, k.i32(0));
    rank.push_back(k.loadI64(ranks + at * 8));
    weight.push_back(k.loadI64(weights + at * 8));
    kept.push_back(there & (cut >= rank[i]) & (weight[i] >= lightest));
  }
  k.barrier();
  for (int64_t i = 0; i < each; ++i)
    k.when(kept[i], [&] {
      V place = nextPlace(k, counter);
      k.store(ranks + place * 8, rank[i]);
      k.store(weights + place * 8, weight[i]);
    });
  k.barrier();
  V left = k.loadI32(counter);
  k.barrier();
  return left;
}

static V f64Of(KernelBuilder &k, V v) {
  Type f64 = k.b.getF64Type();
  if (isa<FloatType>(v.value.getType()))
    return {arith::ExtFOp::create(k.b, f64, v.value), &k};
  return {arith::SIToFPOp::create(k.b, f64, v.value), &k};
}
/// The whole part of fraction * total.
V RowSampler::share(V fraction, V total) {
  V product = f64Of(k, fraction) * f64Of(k, total);
  return {arith::FPToSIOp::create(k.b, k.i64Type(), product.value), &k};
}
/// Sums above it are at least top-p * total; 0, so that one is kept, at least.
V RowSampler::topPThreshold(V total) {
  V whole = share(p->topP, total);
  V product = f64Of(k, p->topP) * f64Of(k, total);
  V exact = product == f64Of(k, whole);
  whole = k.select(exact, whole - 1, whole);
  return k.select(whole < 0, k.i64(0), whole);
}

/// Sums above it are above the uniform number's share; always below `total`.
V RowSampler::drawThreshold(V total) {
  V target = share(p->uniform, total);
  target = k.select(target < total, target, total - 1);
  return k.select(target < 0, k.i64(0), target);
}

/// Draws in the order of ids from the logits with ranks up to `cut` and weights of
/// at least `lightest`: warps sum up ranges of ids, the range of one is next.
V RowSampler::drawById(V cut, V lightest) {
  int64_t warps = rowThreads / 32;
  return k.loopWhile(
      {k.i32(0), k.i32(vocab), k.i64(-1)},
      [&](ArrayRef<V> now) { return now[1] > 0; },
      [&](ArrayRef<V> now) {
        V start = now[0], length = now[1];
        V each = k.ceilDiv(length, warps);
        V low = k.minimum(k.warp() * each, length);
        V high = k.minimum(low + each, length);
        V mine = sumRange(start + low + k.lane(), start + high, 32,
                          [&](V rank, V weight) {
                            V in = (cut >= rank) & (weight >= lightest);
                            return k.select(in, weight, k.i64(0));
                          });
        mine = warpSum64(k, mine);
        k.when(k.lane() == 0, [&] { k.store(scratch + k.warp() * 8, mine); });
        k.barrier();
        Vs sums;
        V total = k.i64(0);
        for (int64_t w = 0; w < warps; ++w) {
          sums.push_back(k.loadI64(scratch + w * 8));
          total = total + sums.back();
        }
        k.barrier();
        V target = k.select(now[2] < 0, drawThreshold(total), now[2]);
        // The last warp whose range starts at or before the target and is not
        // empty.
        V before = k.i64(0), chosen = k.i32(0), rest = target;
        for (int64_t w = 0; w < warps; ++w) {
          V in = (target >= before) & (sums[w] > 0);
          chosen = k.select(in, k.i32(w), chosen);
          rest = k.select(in, target - before, rest);
          before = before + sums[w];
        }
        V next = k.minimum(each, length - chosen * each);
        return Vs{start + chosen * each,
                  k.select(each == 1, k.i32(0), next), rest};
      })[0];
}

/// The choice among `count` candidates, or -1 if it lies beyond them; `total` is
/// the weight of the whole row.
V RowSampler::fromCandidates(V count, V total) {
  auto sum = [&](V n) {
    return [this, n](Measure measure) { return sumCandidates(n, measure); };
  };
  V everything = k.i64(noRank - 1), none = k.i64(0);
  V hasK = p->topK > 0, hasP = p->topP < k.f32(1);
  Type i32 = k.i32Type(), i64 = k.i64Type();
  // Top-k: all with the logit of the k-th are kept.
  V enough = (!hasK) | (count >= p->topK);
  Vs afterK = k.ifElse(
      hasK & enough, {i32, i64},
      [&] {
        V place = firstAbove(sum(count), k.no(), everything,
                             k.to64(p->topK - 1), /*counts=*/true);
        V left = keepCandidates(
            count, place | idMask, none);
        V weight = sumCandidates(left, [&](V, V w) { return w; });
        return Vs{left, weight};
      },
      [&] { return Vs{count, total}; });
  count = afterK[0];
  total = afterK[1];
  V saved = least;
  Vs afterP = k.ifElse(
      hasP & enough, {i32, k.i1Type()},
      [&] {
        least = none;
        V threshold = topPThreshold(total);
        V there = sumCandidates(count, [&](V, V w) { return w; });
        V cut = firstAbove(sum(count), k.no(), everything, threshold,
                           /*counts=*/false);
        least = saved;
        return Vs{keepCandidates(count, cut, none), there > threshold};
      },
      [&] { return Vs{count, enough}; });
  return k.ifElse(
      afterP[1], {i32},
      [&] {
        V left = keepCandidates(afterP[0], everything, least);
        V weight = sumCandidates(left, [&](V, V w) { return w; });
        V place = firstAbove(sum(left), !hasP, everything,
                             drawThreshold(weight), /*counts=*/false);
        return Vs{k.to32(place & idMask)};
      },
      [&] { return Vs{k.i32(-1)}; })[0];
}

/// The choice by sums over the whole row.
V RowSampler::fromLogits() {
  auto sum = [this](Measure measure) { return sumLogits(measure); };
  V everything = k.i64(noRank - 1), none = k.i64(0);
  V hasK = p->topK > 0, hasP = p->topP < k.f32(1);
  Type i64 = k.i64Type();
  V saved = least;
  V cut = k.ifElse(
      hasK, {i64},
      [&] {
        V place = firstAbove(sum, k.no(), everything, k.to64(p->topK - 1),
                             /*counts=*/true);
        return Vs{place | idMask};
      },
      [&] { return Vs{everything}; })[0];
  return k.ifElse(
      hasP, {k.i32Type()},
      [&] {
        least = none;
        V total = sumLogits([&](V rank, V weight) {
          return k.select(cut >= rank, weight, none);
        });
        V last = firstAbove(sum, k.no(), cut, topPThreshold(total),
                            /*counts=*/false);
        least = saved;
        V kept = sumLogits([&](V rank, V weight) {
          return k.select((last >= rank) & (weight >= least), weight, none);
        });
        V place = firstAbove(sum, k.no(), last, drawThreshold(kept),
                             /*counts=*/false);
        return Vs{k.to32(place & idMask)};
      },
      [&] { return Vs{drawById(cut, least)}; })[0];
}

void RowSampler::build() {
  k.gridWait();
  k.gridTrigger();
  V row = k.block();
  p.emplace(k, k.buffer(1), k.buffer(2), row, vocab);
  logits = k.buffer(0) + k.to64(row) * (vocab * 4);
  int64_t sliceBytes = layout.sliceWords() * 4;
  partial = k.buffer(3) + k.to64(row) * (layout.slices * sliceBytes);
  Ptr id = k.buffer(4) + k.to64(row) * 4;

  Vs found = k.loop(
      k.thread(), k.i32(layout.slices), rowThreads,
      {k.i32(lowestKey), k.i32(0), k.no()}, [&](V s, ArrayRef<V> now) {
        Vs head = k.loadWords(partial + s * sliceBytes, 4);
        V wins = head[Partial::Key] > now[0];
        return Vs{k.select(wins, head[Partial::Key], now[0]),
                  k.select(wins, head[Partial::Id], now[1]),
                  now[2] | (head[Partial::Bad] == 1)};
      });
  BlockBest best = combine(k, found[0], found[1], found[2], scratch);
  V greedy = chosenId(k, best);
  V draws = (greedy >= 0) & (p->temperature > k.f32(0));
  V flip = k.select(best.key < 0, k.i32(0x7FFFFFFF), k.i32(0));
  largest = k.fromBits(best.key ^ flip);
  least = toWhole(k, p->minP);
  V chosen = k.ifElse(
      draws, {k.i32Type()},
      [&] {
        V fast = k.ifElse(
            p->cuts, {k.i32Type()},
            [&] {
              // Weight of the row, and from which key on its slices have given
              // all they have.
              Vs all = k.loop(
                  k.thread(), k.i32(layout.slices), rowThreads,
                  {k.i64(0), k.i32(lowestKey)}, [&](V s, ArrayRef<V> now) {
                    Ptr head = partial + s * sliceBytes;
                    V key = k.loadI32(head + Partial::Key * 4);
                    V turn = k.select(key < 0, k.i32(0x7FFFFFFF), k.i32(0));
                    V top = k.fromBits(key ^ turn);
                    V weight = k.loadF32(head + Partial::Sum * 4) *
                               weightOf(k, top, largest, p->scale);
                    weight = k.select(key == lowestKey, k.f32(0), weight);
                    V bound = k.loadI32(head + Partial::Bound * 4);
                    return Vs{now[0] + toWhole(k, weight),
                              k.maximum(now[1], bound)};
                  });
              V total = blockSum64(k, all[0], scratch);
              V bound = combine(k, all[1], k.i32(0), k.no(), scratch).key;
              k.loop(k.thread(), k.i32(layout.slices * layout.most),
                     rowThreads, [&](V i) {
                       Ptr slice = partial + i / layout.most * sliceBytes;
                       V j = i % layout.most;
                       V there = j < k.loadI32(slice + Partial::Count * 4);
                       j = k.select(there, j, k.i32(0));
                       Vs one = k.loadWords(
                           slice + (j * 8 + Partial::HeadWords * 4), 2);
                       V key = one[0];
                       there = there & (key >= bound);
                       V rank = (k.to64(key ^ 0x7FFFFFFF) << idBits) |
                                k.to64(one[1]);
                       V back = k.select(key < 0, k.i32(0x7FFFFFFF), k.i32(0));
                       V weight = toWhole(
                           k, weightOf(k, k.fromBits(key ^ back), largest,
                                       p->scale));
                       k.store(ranks + i * 8,
                               k.select(there, rank, k.i64(noRank)));
                       k.store(weights + i * 8,
                               k.select(there, weight, k.i64(0)));
                     });
              k.barrier();
              V count =
                  keepCandidates(k.i32(layout.slices * layout.most),
                                 k.i64(noRank - 1), k.i64(0));
              return Vs{fromCandidates(count, total)};
            },
            [&] { return Vs{k.i32(-1)}; })[0];
        return k.ifElse(
            fast < 0, {k.i32Type()}, [&] { return Vs{fromLogits()}; },
            [&] { return Vs{fast}; });
      },
      [&] { return Vs{greedy}; })[0];
  k.when(k.thread() == 0, [&] { k.store(id, chosen); });
  k.finish();
}

void sampleRow(KernelBuilder &k, int64_t vocab) { RowSampler(k, vocab).build(); }

} // namespace mla::nvvm
