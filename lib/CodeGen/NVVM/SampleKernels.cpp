//===- SampleKernels.cpp - from logits to ids -----------------------------===//
//
// Part of mla. Two launches for all rows, whatever each row asks for.
//
// `first`: one block of 256 threads a slice of 4,096 logits, 16 a thread in
// registers: largest logit, sum of weights, and for top-k and top-p the slice's
// best logits (candidates), found by bisection of the keys. Bound by latency; all
// slices together read the row once at the rate of the whole chip.
//
// `second`: one block of 1,024 threads a row. Greedy rows take the best of the
// slices. Without top-k and top-p the id is found by halving ranges of ids, about
// one reading of the row. Otherwise the candidates, up to 5,120 in 80 KB of shared
// memory, are cut by bisection of ranks: 32 or 54 sums over them for each of top-k,
// top-p and draw. If the answer lies beyond the candidates (a flat distribution
// with top-p, a large k), the same is done over the logits in memory: right, but
// slow, 54 readings a cut.
//
// A rank orders the candidates of a row: larger logits first, then lower ids. Every
// choice is "the first rank at which the sum of weights (or the count) is above a
// threshold". Weights are whole numbers, 2^40 for the largest logit, so that sums
// do not depend on their order and the id is a function of logits, parameters and
// uniform number alone.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

using namespace mlir;

namespace mla::nvvm {

static const double infinity = std::numeric_limits<double>::infinity();

//===----------------------------------------------------------------------===//
// The largest logit
//===----------------------------------------------------------------------===//

namespace {
/// A running choice of the largest number.
struct Best {
  V value, id, bad; ///< bad: i1, NaN or +inf was seen

  static Best none(KernelBuilder &k) {
    return {k.f32(-infinity), k.i32(0), k.no()};
  }
  Vs all() const { return {value, id, bad}; }
  static Best of(ArrayRef<V> v) { return {v[0], v[1], v[2]}; }
  /// Ids must come in ascending order.
  Best with(KernelBuilder &k, V v, V at) const {
    V wins = v > value;
    return {k.select(wins, v, value), k.select(wins, at, id),
            bad | !(v < k.f32(infinity))};
  }
};

/// What all threads of a block (or lanes' warps before it) found.
struct BlockBest {
  V key, id;  ///< id: the lowest with `key`
  V bad;      ///< i1
};
} // namespace

/// Uses `scratch`, 12 bytes a warp, and two barriers; every thread gets it.
static BlockBest combine(KernelBuilder &k, V key, V id, V bad, Ptr scratch) {
  auto reduce = [&](V key, V id) {
    V most = largestKey(k, key);
    V lowest = k.reduxMin(k.select(key == most, id, k.i32(0x7FFFFFFF)));
    return std::pair(most, lowest);
  };
  auto [most, lowest] = reduce(key, id);
  V anyBad = k.select(k.any(bad), k.i32(1), k.i32(0));
  k.when(k.lane() == 0, [&] {
    Ptr at = scratch + k.warp() * 12;
    k.store(at, most);
    k.store(at + 4, lowest);
    k.store(at + 8, anyBad);
  });
  k.barrier();
  V there = k.lane() < k.warps();
  Ptr at = scratch + k.select(there, k.lane(), k.i32(0)) * 12;
  auto [blockMost, blockLowest] = reduce(k.loadI32(at), k.loadI32(at + 4));
  V blockBad = k.any(k.loadI32(at + 8) == 1);
  k.barrier();
  return {blockMost, blockLowest, blockBad};
}

/// The id to report: -1 for a row that has NaN or +inf or nothing above -inf.
static V chosenId(KernelBuilder &k, const BlockBest &best) {
  return k.select(best.bad | (best.key == lowestKey), k.i32(-1), best.id);
}

/// Logits a thread reads at once: 4 if rows start at multiples of 16 bytes.
static int64_t lanesOf(int64_t vocab) { return vocab % 4 == 0 ? 4 : 1; }
static Vs loadLogits(KernelBuilder &k, Ptr row, V at, int64_t lanes) {
  if (lanes == 1)
    return {k.loadF32(row + at * 4)};
  return k.loadFloats(row + at * 4, 4);
}

/// 1,024 threads a row, 4 loads of 16 bytes each in flight: 64 KB, what one SM
/// needs to read L2 at its full rate. 163,840 logits: about 6 us; `sample` spreads
/// them over more SMs.
Kernel argmax(KernelSite site, int64_t vocab) {
  std::string name = kernelName("argmax", vocab);
  Kernel kernel{name, "outputs"};
  if (exists(site, name))
    return kernel;
  int64_t lanes = lanesOf(vocab), places = vocab / lanes;
  int64_t threads =
      std::clamp<int64_t>(llvm::alignTo(places, 32), 32, 1024);
  int64_t atOnce = places > 2 * threads ? 4 : 1;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 0,
                  {threads});
  Ptr scratch = k.shared(k.warps() * 12);
  k.gridWait();
  k.gridTrigger();
  Ptr row = k.buffer(0) + k.to64(k.block()) * (vocab * 4);
  Vs found = k.loop(
      k.i32(0), k.i32(places), threads * atOnce, Best::none(k).all(),
      [&](V base, ArrayRef<V> now) {
        SmallVector<Vs> loaded;
        Vs ids;
        for (int64_t i = 0; i < atOnce; ++i) {
          V place = base + k.thread() + i * threads;
          // Behind the end, the last place again: it wins over nothing new.
          place = k.minimum(place, k.i32(places - 1));
          ids.push_back(place * lanes);
          loaded.push_back(loadLogits(k, row, ids.back(), lanes));
        }
        Best best = Best::of(now);
        for (auto [id, values] : llvm::zip(ids, loaded))
          for (auto [j, v] : llvm::enumerate(values))
            best = best.with(k, v, id + int64_t(j));
        return best.all();
      });
  Best best = Best::of(found);
  BlockBest all =
      combine(k, orderKey(k, best.value), best.id, best.bad, scratch);
  k.when(k.thread() == 0, [&] {
    k.store(k.buffer(1) + k.block() * 4, chosenId(k, all));
  });
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Layout between the launches
//===----------------------------------------------------------------------===//

constexpr int64_t sliceLogits = 4096, sliceThreads = 256;
constexpr int64_t mostCandidates = 5120, rowThreads = 1024;
constexpr int64_t idBits = 22; ///< of a rank; a key's 32 are above. 2^22 weights
                               ///< of 2^40 are less than an i64
constexpr int64_t rankBits = 32 + idBits;
constexpr int64_t idMask = (int64_t(1) << idBits) - 1;
constexpr int64_t noRank = int64_t(1) << 62; ///< of -inf: never among the first

namespace {
/// A row of `partial`: for each slice its head, then its candidates.
struct Partial {
  int64_t slices, most; ///< candidates of a slice, an even number
  enum Head { Key, Id, Bad, Sum, Count, Bound, HeadWords = 8 };

  explicit Partial(int64_t vocab)
      : slices(llvm::divideCeil(vocab, sliceLogits)),
        most(std::min<int64_t>(128, mostCandidates / slices / 2 * 2)) {}
  int64_t sliceWords() const { return HeadWords + 2 * most; }
};

/// What a row asks for.
struct Parameters {
  V temperature, topP, minP, uniform; ///< f32
  V topK;                             ///< i32; 0: all
  V cuts; ///< i1: there is a top-k or a top-p
  V scale; ///< log2(e) / temperature

  Parameters(KernelBuilder &k, Ptr parameters, Ptr topKs, V row,
             int64_t vocab) {
    Vs all = k.loadFloats(parameters + k.to64(row) * 16, 4);
    temperature = all[0];
    topP = all[1];
    minP = all[2];
    uniform = all[3];
    topK = k.loadI32(topKs + k.to64(row) * 4);
    topK = k.select((topK > 0) & (topK < vocab), topK, k.i32(0));
    cuts = (temperature > k.f32(0)) & ((topK > 0) | (topP < k.f32(1)));
    // A bound keeps 0 * scale a number.
    scale = k.minimum(k.divide(k.f32(1.4426950408889634), temperature),
                      k.f32(1e30));
  }
};
} // namespace

/// e^((logit - largest) / temperature); 0 of -inf.
static V weightOf(KernelBuilder &k, V logit, V largest, V scale) {
  return k.exp2((logit - largest) * scale);
}
static V toWhole(KernelBuilder &k, V weight) {
  return {arith::FPToUIOp::create(k.b, k.i64Type(),
                                  (weight * k.f32(0x1p40)).value),
          &k};
}

/// Sum over a warp of i64 below 2^62, every lane gets it: three sums of 32 bits.
static V warpSum64(KernelBuilder &k, V v) {
  V sum = k.i64(0);
  for (int64_t shift : {0, 21, 42}) {
    V part = k.to32((v >> shift) & 0x1FFFFF);
    sum = sum + (k.to64(k.reduxAdd(part)) << shift);
  }
  return sum;
}
/// The same over a block. Uses `scratch`, 8 bytes a warp, and two barriers.
static V blockSum64(KernelBuilder &k, V v, Ptr scratch) {
  v = warpSum64(k, v);
  k.when(k.lane() == 0, [&] { k.store(scratch + k.warp() * 8, v); });
  k.barrier();
  V there = k.lane() < k.warps();
  V mine = k.loadI64(scratch + k.select(there, k.lane(), k.i32(0)) * 8);
  V sum = warpSum64(k, k.select(there, mine, k.i64(0)));
  k.barrier();
  return sum;
}

/// The value of a counter in shared memory, which is one more afterwards.
static V nextPlace(KernelBuilder &k, Ptr counter) {
  return {LLVM::AtomicRMWOp::create(k.b, LLVM::AtomicBinOp::add, counter.value,
                                    k.i32(1).value,
                                    LLVM::AtomicOrdering::monotonic),
          &k};
}

//===----------------------------------------------------------------------===//
// First: slices
//===----------------------------------------------------------------------===//

static void sampleSlices(KernelSite site, StringRef name, int64_t vocab) {
  Partial layout(vocab);
  KernelBuilder k(site.kernels, site.loc, name,
                  {"read", "read", "read", "write"}, 0, {sliceThreads});
  Ptr scratch = k.shared(k.warps() * 12), counter = k.shared(4);
  k.when(k.thread() == 0, [&] { k.store(counter, k.i32(0)); });
  k.gridWait();
  k.gridTrigger();
  V row = k.block() / layout.slices, slice = k.block() % layout.slices;
  Parameters p(k, k.buffer(1), k.buffer(2), row, vocab);
  Ptr logits = k.buffer(0) + k.to64(row) * (vocab * 4);
  Ptr out = k.buffer(3) + k.to64(k.block()) * (layout.sliceWords() * 4);
  int64_t lanes = lanesOf(vocab);
  int64_t loads = sliceLogits / sliceThreads / lanes;

  Vs ids, values, keys;
  Best best = Best::none(k);
  for (int64_t i = 0; i < loads; ++i) {
    V at = slice * sliceLogits + (k.thread() + i * sliceThreads) * lanes;
    V there = at < vocab; // A place of 4 lies inside or outside as a whole.
    Vs loaded = loadLogits(k, logits, k.select(there, at, k.i32(0)), lanes);
    for (auto [j, v] : llvm::enumerate(loaded)) {
      values.push_back(k.select(there, v, k.f32(-infinity)));
      ids.push_back(at + int64_t(j));
    }
  }
  for (auto [id, v] : llvm::zip(ids, values)) {
    best = best.with(k, v, id);
    keys.push_back(orderKey(k, v));
  }
  BlockBest all =
      combine(k, orderKey(k, best.value), best.id, best.bad, scratch);
  // The number of the largest key; a slice of -inf has none, and its sum is
  // never looked at.
  V flip = k.select(all.key < 0, k.i32(0x7FFFFFFF), k.i32(0));
  V largest = k.fromBits(all.key ^ flip);
  V sum = k.f32(0);
  for (V v : values)
    sum = sum + weightOf(k, v, largest, p.scale);
  sum = k.blockSum(sum, scratch);
  sum = k.select(all.key == lowestKey, k.f32(0), sum);
  k.when(k.thread() == 0, [&] {
    k.storeWords(out, {all.key, all.id, k.select(all.bad, k.i32(1), k.i32(0)),
                       k.bits(sum)});
  });
  k.when(p.cuts, [&] {
    // The lowest key (unsigned) of which no more than `most` are as large.
    V found = k.loop(
        k.i32(0), k.i32(32), 1, {k.i64(0)}, [&](V i, ArrayRef<V> now) {
          V step = k.shift(k.i64(1), k.to64(k.i32(31) - i));
          V bound = k.to32(now[0] + step - 1) ^ lowestKey;
          V count = k.i32(0);
          for (V key : keys)
            count = k.select(key >= bound, count + 1, count);
          count = k.reduxAdd(count);
          Ptr mine = scratch + (i & 1) * (k.warps() * 4);
          k.when(k.lane() == 0, [&] { k.store(mine + k.warp() * 4, count); });
          k.barrier();
          V total = k.i32(0);
          for (int64_t w = 0; w < k.warps(); ++w)
            total = total + k.loadI32(mine + w * 4);
          return Vs{k.select(total > layout.most, now[0] + step, now[0])};
        })[0];
    // What never wins has key 0 and is no candidate.
    V bound = k.to32(k.select(found < 1, k.i64(1), found)) ^ lowestKey;
    for (auto [id, key] : llvm::zip(ids, keys))
      k.when(key >= bound, [&] {
        V place = nextPlace(k, counter);
        k.storeWords(out + (place * 8 + Partial::HeadWords * 4), {key, id});
      });
    k.barrier();
    k.when(k.thread() == 0,
           [&] { k.storeWords(out + 16, {k.loadI32(counter), bound}); });
  });
  k.finish();
}

//===----------------------------------------------------------------------===//
// Second: rows
//===----------------------------------------------------------------------===//

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
  std::pair<V, V> ofLogit(V at);
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

/// Rank and weight of the logit of id `at`; -inf has noRank and 0.
std::pair<V, V> RowSampler::ofLogit(V at) {
  V v = k.loadF32(logits + at * 4);
  V key = orderKey(k, v) ^ 0x7FFFFFFF; // descending, unsigned
  V rank = (k.to64(key) << idBits) | k.to64(at);
  V weight = toWhole(k, weightOf(k, v, largest, p->scale));
  return {k.select(v > k.f32(-infinity), rank, k.i64(noRank)), weight};
}
V RowSampler::sumLogits(Measure measure) {
  V mine = k.loop(k.thread(), k.i32(vocab), rowThreads, {k.i64(0)},
                  [&](V i, ArrayRef<V> acc) {
                    auto [rank, weight] = ofLogit(i);
                    return Vs{acc[0] + measure(rank, weight)};
                  })[0];
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
        V mine = k.loop(start + low + k.lane(), start + high, 32, {k.i64(0)},
                        [&](V i, ArrayRef<V> acc) {
                          auto [rank, weight] = ofLogit(i);
                          V in = (cut >= rank) & (weight >= lightest);
                          return Vs{acc[0] +
                                    k.select(in, weight, k.i64(0))};
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

SampleKernels sample(KernelSite site, int64_t vocab) {
  Partial layout(vocab);
  SampleKernels kernels;
  kernels.partialWidth = layout.slices * layout.sliceWords();
  kernels.first = {kernelName("sample_slices", vocab),
                   "outputs * " + std::to_string(layout.slices)};
  kernels.second = {kernelName("sample_rows", vocab), "outputs"};
  if (!exists(site, kernels.first.name))
    sampleSlices(site, kernels.first.name, vocab);
  if (!exists(site, kernels.second.name)) {
    KernelBuilder k(site.kernels, site.loc, kernels.second.name,
                    {"read", "read", "read", "read", "write"}, 0,
                    {rowThreads});
    RowSampler(k, vocab).build();
  }
  return kernels;
}

} // namespace mla::nvvm
