//===- SampleKernels.cpp - from logits to ids -----------------------------===//
//
// Part of mla. Two launches for all rows, whatever each row asks for.
//
// `first`: one block of 256 threads a slice of 4,096 logits, 16 a thread in
// registers (72 in all): largest logit, sum of weights, and for top-k and top-p
// the slice's best logits (candidates), found by bisection of the keys. Bound by
// latency; all slices together read the row once at the rate of the whole chip.
//
// `second`: one block of 512 threads a row, 104 registers. Greedy rows take the
// best of the slices. Without top-k, top-p and min-p a slice is drawn by its sum
// and an id in it; with min-p alone the whole row is read for it. Otherwise the
// candidates, up to 5,120 in 80 KB of shared memory, are cut by bisection of
// ranks: up to 32 sums over them for top-k, 50 for top-p and for the draw; bound
// by the latency of each sum. If the answer lies beyond the candidates (a flat
// distribution with top-p, a large k), the logits in memory are bisected until
// what is left fits the candidates' place: right, but slow, tens of readings.
//
// A rank orders the candidates of a row: larger logits first, then lower ids.
// Every choice is "the first rank at which the sum of weights (or the count) is
// above a threshold". Weights are whole numbers, 2^40 for the largest logit, so
// that sums do not depend on their order and the id is a function of logits,
// parameters and uniform number alone.
//
//===----------------------------------------------------------------------===//
#include "SampleKernels.h"

using namespace mlir;

namespace mla::nvvm {

//===----------------------------------------------------------------------===//
// The largest logit
//===----------------------------------------------------------------------===//

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
  V largest = numberOf(k, all.key);
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
    // The lowest key (unsigned) of which no more than `most` are as large, or one
    // of which at least half as many are.
    Vs state = k.loopWhile(
        {k.i32(31), k.i64(0)}, [&](ArrayRef<V> now) { return now[0] >= 0; },
        [&](ArrayRef<V> now) {
          V step = k.shift(k.i64(1), k.to64(now[0]));
          V last = now[1] + step - 1;
          V bound = k.to32(last) ^ lowestKey;
          V count = k.i32(0);
          for (V key : keys)
            count = k.select(key >= bound, count + 1, count);
          count = k.reduxAdd(count);
          Ptr mine = scratch + (now[0] & 1) * (k.warps() * 4);
          k.when(k.lane() == 0, [&] { k.store(mine + k.warp() * 4, count); });
          k.barrier();
          V total = k.i32(0);
          for (int64_t w = 0; w < k.warps(); ++w)
            total = total + k.loadI32(mine + w * 4);
          V above = total > layout.most;
          V done = (!above) & (total >= layout.most / 2);
          V next = k.select(above, now[1] + step, now[1]);
          return Vs{k.select(done, k.i32(-1), now[0] - 1),
                    k.select(done, last, next)};
        });
    V found = state[1];
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
    sampleRow(k, vocab);
  }
  return kernels;
}

} // namespace mla::nvvm
