//===- MoEKernels.cpp - pairs by expert, and their sum --------------------===//
//
// Part of mla. (token, choice) pairs are sorted by expert, so that each
// expert's weights are read once a step.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

/// Inclusive sum over the lanes of a warp.
static V scanWarp(KernelBuilder &k, V v) {
  for (int64_t by = 1; by < 32; by *= 2)
    v = k.select(k.lane() >= by, v + k.shuffleUp(v, by), v);
  return v;
}

/// Exclusive sum over the threads of a block, and the sum of all. Two barriers;
/// `scratch` is 32 words.
static std::pair<V, V> scanBlock(KernelBuilder &k, V v, Ptr scratch) {
  V inclusive = scanWarp(k, v);
  k.when(k.lane() == 31, [&] { k.store(scratch + k.warp() * 4, inclusive); });
  k.barrier();
  V mine = k.select(k.lane() < k.warps(), k.loadI32(scratch + k.lane() * 4),
                    k.i32(0));
  V sums = scanWarp(k, mine);
  V before = k.shuffle(sums, k.maximum(k.warp() - 1, k.i32(0)));
  before = k.select(k.warp() == 0, k.i32(0), before);
  V total = k.shuffle(sums, k.i32(31));
  k.barrier();
  return {before + inclusive - v, total};
}

namespace {
/// Lanes with the same key.
struct Peers {
  V before, count; ///< how many are lower, how many there are
  V isFirst;
};
} // namespace
static Peers peersOf(KernelBuilder &k, V key) {
  V mask = k.intrinsic("llvm.nvvm.match.any.sync.i32", k.i32Type(),
                       {k.i32(-1), key});
  V below = k.shift(k.i32(1), k.lane()) - 1;
  V before = k.popcount(mask & below);
  return {before, k.popcount(mask), before == 0};
}

/// One block. Warps have equal shares of the pairs, in order, and a count for
/// each expert each: counts, then places (a sum over experts, then over warps),
/// then the pairs go to their places. Shared memory: warps * experts words, 64
/// KB at most. 4096 tokens x 8 are 8 steps of 128 pairs a warp, twice, each
/// loads from L2 and then, the second time, four matches. What bounds it is
/// latency: three passes.
Kernel moeGroup(KernelSite site, int64_t experts, int64_t topk,
                int64_t maxTokens, int64_t tileTokens, bool part) {
  int64_t maxPairs = maxTokens * topk;
  // As many warps as there are 32 pairs, and as fit with their counts.
  int64_t warps = 1;
  while (warps < 32 && warps * 32 < maxPairs && 2 * warps * experts <= 16384)
    warps *= 2;
  int64_t threads = std::max<int64_t>(
      warps * 32, std::min<int64_t>(1024, llvm::alignTo(experts, 32)));
  std::string name = kernelName("moe_group", experts, topk, warps,
                                maxPairs >= 4096 ? "many" : "few");
  if (tileTokens)
    name = kernelName(name, "tiles", tileTokens);
  if (part)
    name += "_part";
  Kernel kernel{name, "1"};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name,
                  ArrayRef<StringRef>{"read", "write", "write", "write", "write",
                                      "write"}
                      .take_front(tileTokens ? 6 : 5),
                  part ? 2 : 1, {threads});
  Ptr counts = k.shared(warps * experts * 4), scratch = k.shared(32 * 4);
  Ptr indices = k.buffer(0), order = k.buffer(1), active = k.buffer(2);
  Ptr offsets = k.buffer(3), count = k.buffer(4);
  k.loop(k.thread(), k.i32(warps * experts), threads,
         [&](V i) { k.store(counts + i * 4, k.i32(0)); });
  k.barrier();
  k.gridWait();
  k.gridTrigger();
  V pairs = k.scalar32(0) * topk;
  // A warp's share, in whole steps: of several times 32 pairs, if they are
  // many, so that loads do not wait for one another.
  int64_t step = maxPairs >= 4096 ? 128 : 32;
  V share = k.ceilDiv(pairs, warps * step) * step;
  V low = k.warp() * share, high = k.minimum(low + share, pairs);
  Ptr mine = counts + k.warp() * (experts * 4);
  auto eachPair = [&](function_ref<void(V, V, V)> body) {
    k.when(k.warp() < warps, [&] {
      k.loop(low, high, step, [&](V from) {
        Vs ps, es;
        for (int64_t i = 0; i < step; i += 32) {
          ps.push_back(from + k.lane() + i);
          es.push_back(
              k.loadI32(indices + k.to64(k.minimum(ps.back(), high - 1)) * 4));
        }
        for (auto [p, e] : llvm::zip(ps, es)) {
          V there = p < high;
          if (part) { // choices of other groups' experts are not there
            e = e - k.scalar32(1);
            there = there & (e >= 0) & (e < experts);
          }
          body(p, there, e);
        }
      });
    });
  };
  eachPair([&](V, V there, V e) {
    k.when(there, [&] { k.atomicAdd(mine + e * 4, k.i32(1)); });
  });
  k.barrier();

  // The place of each expert's first pair, and of each warp's.
  Vs end{k.i32(0), k.i32(0)};
  V tiles = k.i32(0);
  for (int64_t first = 0; first < experts; first += threads) {
    V e = k.thread() + first;
    V there = e < experts;
    V total = k.loop(k.i32(0), k.select(there, k.i32(warps), k.i32(0)), 1,
                     {k.i32(0)}, [&](V w, ArrayRef<V> sum) {
                       Ptr at = counts + (w * experts + e) * 4;
                       V n = k.loadI32(at);
                       k.store(at, sum[0]);
                       return Vs{sum[0] + n};
                     })[0];
    V some = total > 0;
    auto [place, placed] = scanBlock(k, total, scratch);
    auto [slot, slots] =
        scanBlock(k, k.select(some, k.i32(1), k.i32(0)), scratch);
    V start = end[0] + place;
    k.when(some, [&] {
      V at = end[1] + slot;
      k.store(active + at * 4, e);
      k.store(offsets + at * 4, start);
      k.loop(k.i32(0), k.i32(warps), 1, [&](V w) {
        Ptr of = counts + (w * experts + e) * 4;
        k.store(of, k.loadI32(of) + start);
      });
    });
    if (tileTokens) {
      V mine = k.ceilDiv(total, tileTokens);
      auto [tile, placedTiles] = scanBlock(k, mine, scratch);
      Ptr to = k.buffer(5) + (tiles + tile) * 16;
      k.loop(k.i32(0), mine, 1, [&](V i) {
        V low = start + i * tileTokens;
        V high = k.minimum(low + tileTokens, start + total);
        k.storeWords(to + i * 16, {e, low, high, k.i32(0)});
      });
      tiles = tiles + placedTiles;
    }
    end = {end[0] + placed, end[1] + slots};
  }
  k.when(k.thread() == 0, [&] {
    k.store(offsets + end[1] * 4, end[0]);
    k.store(count, end[1]);
  });
  if (tileTokens) {
    V all = k.ceilDiv(pairs, tileTokens) + k.minimum(pairs, k.i32(experts));
    k.loop(tiles + k.thread(), all, threads, [&](V i) {
      k.storeWords(k.buffer(5) + i * 16, Vs(4, k.i32(0)));
    });
  }
  k.barrier();
  eachPair([&](V p, V there, V e) {
    Peers peers = peersOf(k, k.select(there, e, k.i32(-1)));
    V at = k.ifElse(
        there, {k.i32Type()}, [&] { return Vs{k.loadI32(mine + e * 4)}; },
        [&] { return Vs{k.i32(0)}; })[0];
    k.syncWarp();
    k.when(there, [&] { k.store(order + k.to64(at + peers.before) * 4, p); });
    k.when(there & peers.isFirst,
           [&] { k.store(mine + e * 4, at + peers.count); });
    k.syncWarp();
  });
  k.finish();
  return kernel;
}

/// A thread has four values of a token (one, if the width is no multiple of 4),
/// and loads all their summands at once: (topk + addends + 1) * 4 bytes a
/// value, bound by memory, or latency for few tokens.
Kernel moeCombine(KernelSite site, int64_t width, int64_t topk,
                  int64_t addends, int64_t partOf) {
  unsigned each = width % 4 == 0 ? 4 : 1;
  int64_t threads =
      std::clamp<int64_t>(llvm::alignTo(width / each, 32), 32, 256);
  int64_t blocks = llvm::divideCeil(width / each, threads);
  std::string name = kernelName("moe_combine", width, topk, addends);
  if (partOf)
    name = kernelName(name, "part", partOf);
  Kernel kernel{name, "tokens * " + std::to_string(blocks)};
  if (exists(site, name))
    return kernel;
  const unsigned addendsAt = partOf ? 3 : 2;
  SmallVector<StringRef> access(addendsAt + 1 + addends, "read");
  access.back() = "write";
  KernelBuilder k(site.kernels, site.loc, name, access, partOf ? 1 : 0,
                  {threads});
  k.gridWait();
  k.gridTrigger();
  V token = k.block() / blocks;
  V column = (k.block() % blocks * threads + k.thread()) * each;
  k.when(column < width, [&] {
    auto load = [&](Ptr base, V row) {
      Ptr p = base + (k.to64(row) * (width * 4) + k.to64(column) * 4);
      return each == 4 ? k.loadFloats(p, 4) : Vs{k.loadF32(p)};
    };
    SmallVector<Vs> summands, extra;
    Vs weights;
    for (int64_t j = 0; j < topk; ++j) {
      V pair = token * topk + j;
      Vs &summand = summands.emplace_back(load(k.buffer(0), pair));
      if (partOf) {
        // What other groups' experts would have written is not there.
        V id = k.loadI32(k.buffer(2) + k.to64(pair) * 4) - k.scalar32(0);
        V mine = (id >= 0) & (id < partOf);
        for (V &v : summand)
          v = k.select(mine, v, k.f32(0));
      }
      weights.push_back(k.loadF32(k.buffer(1) + k.to64(pair) * 4));
    }
    for (int64_t a = 0; a < addends; ++a)
      extra.push_back(load(k.buffer(addendsAt + a), token));
    Vs out(each, k.f32(0));
    for (unsigned i = 0; i < each; ++i) {
      for (int64_t j = 0; j < topk; ++j)
        out[i] = k.fma(weights[j], summands[j][i], out[i]);
      for (const Vs &more : extra)
        out[i] = out[i] + more[i];
    }
    Ptr to = k.buffer(addendsAt + addends) +
             (k.to64(token) * (width * 4) + k.to64(column) * 4);
    if (each == 4)
      k.storeWords(to, out);
    else
      k.store(to, out[0]);
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
