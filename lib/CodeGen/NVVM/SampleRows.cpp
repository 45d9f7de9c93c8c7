//===- SampleRows.cpp - the choice of a row -------------------------------===//
//
// Part of mla. The second launch of sampling; SampleKernels.cpp says how.
//
//===----------------------------------------------------------------------===//
#include "SampleKernels.h"

using namespace mlir;

namespace mla::nvvm {

namespace {
/// A row's choice, after its slices.
class RowSampler {
public:
  RowSampler(KernelBuilder &k, int64_t vocab)
      : k(k), vocab(vocab), layout(vocab),
        idBits(llvm::Log2_64_Ceil(vocab)), idMask((int64_t(1) << idBits) - 1) {
    scratch = k.shared(rowThreads / 32 * 12);
    counter = k.shared(4);
    ranks = k.shared(mostCandidates * 8);
    weights = k.shared(mostCandidates * 8);
  }
  void build();

private:
  using Measure = function_ref<V(V rank, V weight)>;
  using Measures = function_ref<Vs(V rank, V weight)>;

  V sumCandidates(V count, Measure measure);
  std::pair<V, V> ofLogit(V v, V at);
  Vs sumRange(V first, V end, int64_t stride, unsigned n, Measures measures);
  Vs sumLogits(unsigned n, Measures measures);
  V firstAbove(V count, V byId, V bit, V start, V threshold, V lightest,
               bool counts);
  V firstOfLogits(V limit, V threshold, V lightest, bool counts);
  V gather(V first, V last, V lightest);
  V keepCandidates(V count, V cut, V lightest);
  V share(V fraction, V total);
  V topPThreshold(V total);
  V drawThreshold(V total);
  V drawById(V start, V length, V target, V cut, V lightest);
  V sliceWeight(Ptr head);
  V fromSlices();
  V loadCandidates(V &total);
  V fromCandidates(V count, V total);
  V fromLogits();

  int64_t sliceBytes() const { return layout.sliceWords() * 4; }
  V wholePlace() { return k.i32(keyBits + idBits - 1); }
  KernelBuilder &k;
  int64_t vocab;
  Partial layout;
  /// A rank is a key's keyBits, then an id's idBits.
  int64_t idBits, idMask;
  Ptr scratch, counter, ranks, weights, logits, partial;
  std::optional<Parameters> p;
  V largest, least; ///< least: the whole weight of min-p
};
} // namespace

/// Few candidates are summed up by every warp, which costs no barrier.
V RowSampler::sumCandidates(V count, Measure measure) {
  auto part = [&](V first, int64_t step) {
    return k.loop(first, count, step, {k.i64(0)}, [&](V i, ArrayRef<V> acc) {
      return Vs{acc[0] + measure(k.loadI64(ranks + i * 8),
                                 k.loadI64(weights + i * 8))};
    })[0];
  };
  return k.ifElse(
      count < 257, {k.i64Type()},
      [&] { return Vs{warpSum64(k, part(k.lane(), 32))}; },
      [&] {
        return Vs{blockSum64(k, part(k.thread(), rowThreads), scratch)};
      })[0];
}

/// Rank and weight of the logit `v` of id `at`; -inf has noRank and 0.
std::pair<V, V> RowSampler::ofLogit(V v, V at) {
  V key = orderKey(k, v) ^ 0x7FFFFFFF; // descending, unsigned
  V rank = (k.to64(key) << idBits) | k.to64(at);
  V weight = toWhole(k, weightOf(k, v, largest, p->scale));
  return {k.select(v > k.f32(-infinity), rank, k.i64(noRank)), weight};
}
/// This thread's parts of `n` sums over ids first, first + stride, ... below `end`:
/// 8 loads in flight. `measures` is also called for places behind the end, with
/// noRank, which it must not count.
Vs RowSampler::sumRange(V first, V end, int64_t stride, unsigned n,
                        Measures measures) {
  constexpr int64_t atOnce = 8;
  return k.loop(
      first, end, stride * atOnce, Vs(n, k.i64(0)),
      [&](V base, ArrayRef<V> acc) {
        Vs ids, loaded, sums(acc.begin(), acc.end());
        for (int64_t i = 0; i < atOnce; ++i) {
          ids.push_back(base + i * stride);
          V at = k.select(ids[i] < end, ids[i], base);
          loaded.push_back(k.loadF32(logits + at * 4));
        }
        for (auto [id, v] : llvm::zip(ids, loaded)) {
          auto [rank, weight] = ofLogit(v, id);
          rank = k.select(id < end, rank, k.i64(noRank));
          for (auto [sum, more] : llvm::zip(sums, measures(rank, weight)))
            sum = sum + more;
        }
        return sums;
      });
}
Vs RowSampler::sumLogits(unsigned n, Measures measures) {
  Vs sums = sumRange(k.thread(), k.i32(vocab), rowThreads, n, measures);
  for (V &sum : sums)
    sum = blockSum64(k, sum, scratch);
  return sums;
}

/// The first place (a rank, or its id with `byId`) among `count` candidates up to
/// which the sum is above `threshold`, of those with weights of at least `lightest`.
/// With `counts`, each counts 1, and the place is the last of a key. Bits above
/// `bit` of the place are known to be those of `start`. All ones if there is none.
V RowSampler::firstAbove(V count, V byId, V bit, V start, V threshold,
                         V lightest, bool counts) {
  V mask = k.select(byId, k.i64(idMask), k.i64(-1));
  V lowest = k.i32(counts ? idBits : 0);
  Vs end = k.loopWhile(
      {bit, start}, [&](ArrayRef<V> now) { return now[0] >= lowest; },
      [&](ArrayRef<V> now) {
        V step = k.shift(k.i64(1), k.to64(now[0]));
        V last = now[1] + step - 1;
        V total = sumCandidates(count, [&](V rank, V weight) {
          V in = (last >= (rank & mask)) & (weight >= lightest);
          return k.select(in, counts ? k.i64(1) : weight, k.i64(0));
        });
        V next = k.select(threshold >= total, now[1] + step, now[1]);
        if (!counts)
          return Vs{now[0] - 1, next};
        // As many as are wanted: no need to know the last one's key.
        V done = total == threshold + 1;
        return Vs{k.select(done, k.i32(-1), now[0] - 1),
                  k.select(done, last, next)};
      });
  return counts ? end[1] | idMask : end[1];
}

/// Makes candidates of the logits with ranks from `first` to `last` and weights of
/// at least `lightest`, of which there must be few enough; how many they are.
V RowSampler::gather(V first, V last, V lightest) {
  k.when(k.thread() == 0, [&] { k.store(counter, k.i32(0)); });
  k.barrier();
  sumRange(k.thread(), k.i32(vocab), rowThreads, 1, [&](V rank, V weight) {
    k.when((rank >= first) & (last >= rank) & (weight >= lightest), [&] {
      V place = nextPlace(k, counter);
      k.store(ranks + place * 8, rank);
      k.store(weights + place * 8, weight);
    });
    return Vs{k.i64(0)};
  });
  k.barrier();
  V count = k.loadI32(counter);
  k.barrier();
  return count;
}

/// The same over the logits with ranks up to `limit`: bisection over memory until
/// what is left fits the candidates' place, which is overwritten.
V RowSampler::firstOfLogits(V limit, V threshold, V lightest, bool counts) {
  int64_t lowest = counts ? idBits : 0;
  // Bit, place, the sum before it, the most that can be left.
  Vs state = k.loopWhile(
      {wholePlace(), k.i64(0), k.i64(0), k.i64(vocab)},
      [&](ArrayRef<V> now) {
        return (now[0] >= lowest) & (now[3] > mostCandidates);
      },
      [&](ArrayRef<V> now) {
        V step = k.shift(k.i64(1), k.to64(now[0]));
        V last = k.minimum(now[1] + step - 1, limit);
        Vs sums = sumLogits(2, [&](V rank, V weight) {
          V in = (rank >= now[1]) & (last >= rank) & (weight >= lightest);
          V one = k.select(in, k.i64(1), k.i64(0));
          return Vs{counts ? one : k.select(in, weight, k.i64(0)), one};
        });
        V sum = now[2] + sums[0];
        V skip = threshold >= sum;
        return Vs{now[0] - 1, k.select(skip, now[1] + step, now[1]),
                  k.select(skip, sum, now[2]),
                  k.select(skip, now[3] - sums[1], sums[1])};
      });
  return k.ifElse(
      state[0] >= lowest, {k.i64Type()},
      [&] {
        V range = k.shift(k.i64(2), k.to64(state[0]));
        V last = k.minimum(state[1] + range - 1, limit);
        V count = gather(state[1], last, lightest);
        return Vs{firstAbove(count, k.no(), state[0], state[1],
                             threshold - state[2], lightest, counts)};
      },
      [&] { return Vs{counts ? state[1] | idMask : state[1]}; })[0];
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

/// Draws in the order of ids, of `length` from `start` on, from the logits with
/// ranks up to `cut` and weights of at least `lightest`: warps sum up ranges of ids,
/// the range of one is next. A negative `target` is taken from the sum.
V RowSampler::drawById(V start, V length, V target, V cut, V lightest) {
  int64_t warps = rowThreads / 32;
  return k.loopWhile(
      {start, length, target}, [&](ArrayRef<V> now) { return now[1] > 0; },
      [&](ArrayRef<V> now) {
        V start = now[0], length = now[1];
        V each = k.ceilDiv(length, warps);
        V low = k.minimum(k.warp() * each, length);
        V high = k.minimum(low + each, length);
        V mine = sumRange(start + low + k.lane(), start + high, 32, 1,
                          [&](V rank, V weight) {
                            V in = (cut >= rank) & (weight >= lightest);
                            return Vs{k.select(in, weight, k.i64(0))};
                          })[0];
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
        V target = k.select(now[2] < 0, drawThreshold(total),
                            k.minimum(now[2], total - 1));
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

/// The weight of a slice; 0 if its largest logit has none.
V RowSampler::sliceWeight(Ptr head) {
  V key = k.loadI32(head + Partial::Key * 4);
  V weight = weightOf(k, numberOf(k, key), largest, p->scale);
  V sum = k.loadF32(head + Partial::Sum * 4) * weight;
  V counts = (key > lowestKey) & (toWhole(k, weight) > 0);
  return toWhole(k, k.select(counts, sum, k.f32(0)));
}

/// Draws from the whole row: a slice, then an id in it.
V RowSampler::fromSlices() {
  V slices = k.i32(layout.slices);
  k.loop(k.thread(), slices, rowThreads, [&](V s) {
    k.store(weights + s * 8, sliceWeight(partial + s * sliceBytes()));
  });
  k.barrier();
  V target =
      drawThreshold(sumCandidates(slices, [](V, V weight) { return weight; }));
  Vs found = k.loop(k.i32(0), slices, 1, {k.i64(0), k.i32(0), target},
                    [&](V s, ArrayRef<V> now) {
                      V weight = k.loadI64(weights + s * 8);
                      V in = (target >= now[0]) & (weight > 0);
                      return Vs{now[0] + weight, k.select(in, s, now[1]),
                                k.select(in, target - now[0], now[2])};
                    });
  V start = found[1] * sliceLogits;
  V length = k.minimum(k.i32(sliceLogits), k.i32(vocab) - start);
  return drawById(start, length, found[2], k.i64(noRank - 1), k.i64(0));
}

/// Candidates from the key on from which all slices have given all they have; how
/// many they are, and the weight of the whole row.
V RowSampler::loadCandidates(V &total) {
  Vs all = k.loop(k.thread(), k.i32(layout.slices), rowThreads,
                  {k.i64(0), k.i32(lowestKey)}, [&](V s, ArrayRef<V> now) {
                    Ptr head = partial + s * sliceBytes();
                    V bound = k.loadI32(head + Partial::Bound * 4);
                    return Vs{now[0] + sliceWeight(head),
                              k.maximum(now[1], bound)};
                  });
  total = blockSum64(k, all[0], scratch);
  V bound = combine(k, all[1], k.i32(0), k.no(), scratch).key;
  k.when(k.thread() == 0, [&] { k.store(counter, k.i32(0)); });
  k.barrier();
  k.loop(k.thread(), k.i32(layout.slices * layout.most), rowThreads, [&](V i) {
    Ptr slice = partial + i / layout.most * sliceBytes();
    V j = i % layout.most;
    k.when(j < k.loadI32(slice + Partial::Count * 4), [&] {
      Vs one = k.loadWords(slice + (j * 8 + Partial::HeadWords * 4), 2);
      k.when(one[0] >= bound, [&] {
        V place = nextPlace(k, counter);
        V rank = (k.to64(one[0] ^ 0x7FFFFFFF) << idBits) | k.to64(one[1]);
        V weight = weightOf(k, numberOf(k, one[0]), largest, p->scale);
        k.store(ranks + place * 8, rank);
        k.store(weights + place * 8, toWhole(k, weight));
      });
    });
  });
  k.barrier();
  V count = k.loadI32(counter);
  k.barrier();
  return count;
}

/// The choice among `count` candidates, or -1 if it lies beyond them; `total` is
/// the weight of the whole row.
V RowSampler::fromCandidates(V count, V total) {
  V none = k.i64(0);
  V hasK = p->topK > 0, hasP = p->topP < k.f32(1);
  Type i32 = k.i32Type(), i64 = k.i64Type();
  auto weightOfAll = [&](V n) {
    return sumCandidates(n, [](V, V weight) { return weight; });
  };
  // Top-k: all with the logit of the k-th are kept.
  V enough = (!hasK) | (count >= p->topK);
  Vs afterK = k.ifElse(
      hasK & enough, {i32, i64},
      [&] {
        V last = firstAbove(count, k.no(), wholePlace(), none,
                            k.to64(p->topK - 1), none, /*counts=*/true);
        V left = keepCandidates(count, last, none);
        return Vs{left, weightOfAll(left)};
      },
      [&] { return Vs{count, total}; });
  count = afterK[0];
  total = afterK[1];
  Vs afterP = k.ifElse(
      hasP & enough, {i32, k.i1Type()},
      [&] {
        V threshold = topPThreshold(total);
        V there = weightOfAll(count);
        V last = firstAbove(count, k.no(), wholePlace(), none, threshold, none,
                            /*counts=*/false);
        return Vs{keepCandidates(count, last, none), there > threshold};
      },
      [&] { return Vs{count, enough}; });
  return k.ifElse(
      afterP[1], {i32},
      [&] {
        V left = keepCandidates(afterP[0], k.i64(noRank - 1), least);
        V bit = k.select(hasP, wholePlace(), k.i32(idBits - 1));
        V place =
            firstAbove(left, !hasP, bit, none, drawThreshold(weightOfAll(left)),
                       none, /*counts=*/false);
        return Vs{k.to32(place & idMask)};
      },
      [&] { return Vs{k.i32(-1)}; })[0];
}

/// The choice by sums over the whole row.
V RowSampler::fromLogits() {
  V everything = k.i64(noRank - 1), none = k.i64(0);
  V hasK = p->topK > 0, hasP = p->topP < k.f32(1);
  V cut = k.ifElse(
      hasK, {k.i64Type()},
      [&] {
        return Vs{firstOfLogits(everything, k.to64(p->topK - 1), none,
                                /*counts=*/true)};
      },
      [&] { return Vs{everything}; })[0];
  auto weightUpTo = [&](V last, V lightest) {
    return sumLogits(1, [&](V rank, V weight) {
      V in = (last >= rank) & (weight >= lightest);
      return Vs{k.select(in, weight, none)};
    })[0];
  };
  return k.ifElse(
      hasP, {k.i32Type()},
      [&] {
        V threshold = topPThreshold(weightUpTo(cut, none));
        V last = firstOfLogits(cut, threshold, none, /*counts=*/false);
        V target = drawThreshold(weightUpTo(last, least));
        V place = firstOfLogits(last, target, least, /*counts=*/false);
        return Vs{k.to32(place & idMask)};
      },
      [&] {
        return Vs{
            drawById(k.i32(0), k.i32(vocab), k.i64(-1), cut, least)};
      })[0];
}

void RowSampler::build() {
  k.gridWait();
  k.gridTrigger();
  V row = k.block();
  p.emplace(k, k.buffer(1), k.buffer(2), row, vocab);
  logits = k.buffer(0) + k.to64(row) * (vocab * 4);
  partial = k.buffer(3) + k.to64(row) * (layout.slices * sliceBytes());
  Ptr id = k.buffer(4) + k.to64(row) * 4;

  Vs found = k.loop(
      k.thread(), k.i32(layout.slices), rowThreads,
      {k.i32(lowestKey), k.i32(0), k.no()}, [&](V s, ArrayRef<V> now) {
        Vs head = k.loadWords(partial + s * sliceBytes(), 4);
        V wins = head[Partial::Key] > now[0];
        return Vs{k.select(wins, head[Partial::Key], now[0]),
                  k.select(wins, head[Partial::Id], now[1]),
                  now[2] | (head[Partial::Bad] == 1)};
      });
  BlockBest best = combine(k, found[0], found[1], found[2], scratch);
  V greedy = chosenId(k, best);
  V draws = (greedy >= 0) & (p->temperature > k.f32(0));
  largest = numberOf(k, best.key);
  least = toWhole(k, p->minP);
  Type i32 = k.i32Type();
  V chosen = k.ifElse(
      draws, {i32},
      [&] {
        return k.ifElse(
            (!p->cuts) & (least == 0), {i32}, [&] { return Vs{fromSlices()}; },
            [&] {
              V fast = k.ifElse(
                  p->cuts, {i32},
                  [&] {
                    V total;
                    V count = loadCandidates(total);
                    return Vs{fromCandidates(count, total)};
                  },
                  [&] { return Vs{k.i32(-1)}; })[0];
              return k.ifElse(
                  fast < 0, {i32}, [&] { return Vs{fromLogits()}; },
                  [&] { return Vs{fast}; });
            });
      },
      [&] { return Vs{greedy}; })[0];
  k.when(k.thread() == 0, [&] { k.store(id, chosen); });
  k.finish();
}

void sampleRow(KernelBuilder &k, int64_t vocab) { RowSampler(k, vocab).build(); }

} // namespace mla::nvvm
