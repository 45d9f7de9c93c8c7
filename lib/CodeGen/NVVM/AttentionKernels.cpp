//===- AttentionKernels.cpp - attention over the latent cache -------------===//
//
// Part of mla. The form of attention for small and odd dimensions; LatentDecode.cpp
// has those for real models.
//
//===----------------------------------------------------------------------===//
#include "LatentDecode.h"

using namespace mlir;

namespace mla::nvvm {

std::string attentionName(StringRef family, const AttentionSpec &s) {
  std::string name = kernelName(family, formatName(s.cache), s.heads, s.latent,
                                s.rope, nameOf(s.scale));
  if (s.ranks > 1)
    name = kernelName(name, "of", s.ranks);
  return s.lse ? name + "_lse" : name;
}

SmallVector<StringRef> attentionAccess(const AttentionSpec &spec) {
  SmallVector<StringRef> access{"read",  "read",  "read",  "read",
                                "read",  "write", "write", "write"};
  if (spec.lse)
    access.push_back("write");
  return access;
}

Positions positionsOf(KernelBuilder &k, const AttentionSpec &spec, Ptr positions,
                      unsigned rank) {
  return Positions(k, positions, spec.ranks,
                   spec.ranks > 1 ? k.scalar32(rank) : V());
}

/// The simple form: a block of 4 warps is one head of one token. It walks the
/// token's pages with a running softmax: a warp takes every fourth row and adds
/// up its score lane by lane; then each thread adds up its share of the latent
/// values. For any dimensions, among them those of models made for tests. Every
/// head reads the cache, element by element: bound by instructions.
///
/// Shared memory: 4 * (latent + rope) bytes of query, 256 of scores.
static Kernel simpleAttention(KernelSite site, const AttentionSpec &s) {
  std::string name = attentionName("latent_attention_simple", s);
  Kernel kernel{name, "tokens * " + std::to_string(s.heads)};
  if (exists(site, name))
    return kernel;
  bool scaled = s.cache == Format::FP8E4M3;
  constexpr int64_t threads = 128, tile = plan::pageTokens;
  int64_t row = s.latent + s.rope;
  int64_t elementSize = int64_t(*elementBytes(s.cache));
  bool spread = s.ranks > 1;
  KernelBuilder k(site.kernels, site.loc, name, attentionAccess(s),
                  (scaled ? 2 : 1) + (spread ? 1 : 0), {threads});
  Ptr query = k.shared(row * 4), scores = k.shared(tile * 4);
  k.gridTrigger();
  k.gridWait();
  V token = k.block() / s.heads;
  V count = positionsOf(k, s, k.buffer(1), scaled ? 2 : 1).read(token) + 1;
  V pages = k.scalar32(0);
  Ptr table =
      k.buffer(3) + k.to64(k.loadI32(k.buffer(2) + token * 4) * pages) * 4;
  Ptr q = k.buffer(0) + k.to64(k.block()) * (row * 4);
  // Scores are in units of log2.
  V toLog2 = k.f32(s.scale * 1.4426950408889634);
  V cacheScale = scaled ? k.scalarF32(1) : k.f32(1);
  k.loop(k.thread(), k.i32(row), threads, [&](V i) {
    k.store(query + i * 4, k.loadF32(q + i * 4) * cacheScale * toLog2);
  });
  k.barrier();

  int64_t perThread = (s.latent + threads - 1) / threads;
  Vs init(perThread + 2, k.f32(0));
  init[0] = k.f32(-1e30);
  // state: maximum, sum of weights, weighted sums of this thread's values.
  Vs state =
      k.loop(k.i32(0), count, tile, init, [&](V first, ArrayRef<V> state) {
        V page = k.loadI32(table + k.to64(first / tile) * 4);
        Ptr rows = k.buffer(4) + k.to64(page) * (tile * row * elementSize);
        V here = k.minimum(count - first, k.i32(tile));
        k.loop(k.warp(), here, k.warps(), [&](V r) {
          Vs sum = k.loop(
              k.lane(), k.i32(row), 32, {k.f32(0)}, [&](V i, ArrayRef<V> acc) {
                V x = k.loadElement(rows, r * row + i, s.cache);
                return Vs{k.fma(k.loadF32(query + i * 4), x, acc[0])};
              });
          V score = k.warpSum(sum[0]);
          k.when(k.lane() == 0, [&] { k.store(scores + r * 4, score); });
        });
        k.barrier();
        // What lies behind the token's own row has the weight 0 by its place,
        // whatever is in memory there.
        V lowest = k.f32(-1e30);
        auto scoreAt = [&](V r) {
          return k.select(r < here, k.loadF32(scores + r * 4), lowest);
        };
        V low = scoreAt(k.lane()), high = scoreAt(k.lane() + 32);
        V maximum = k.maximum(state[0], k.warpMax(k.maximum(low, high)));
        V factor = k.exp2(state[0] - maximum);
        V sum = k.warpSum(k.exp2(low - maximum) + k.exp2(high - maximum));
        Vs next(state.begin(), state.end());
        for (V &v : next)
          v = v * factor;
        next[0] = maximum;
        next[1] = next[1] + sum;
        next = k.loop(k.i32(0), here, 1, next, [&](V r, ArrayRef<V> acc) {
          V weight = k.exp2(k.loadF32(scores + r * 4) - maximum);
          Vs out(acc.begin(), acc.end());
          for (int64_t i = 0; i < perThread; ++i) {
            // Threads beyond the width repeat the last value.
            V at = k.minimum(k.thread() + i * threads, k.i32(s.latent - 1));
            out[2 + i] = k.fma(
                weight, k.loadElement(rows, r * row + at, s.cache), acc[2 + i]);
          }
          return out;
        });
        k.barrier();
        return next;
      });
  V inverse = k.divide(cacheScale, state[1]);
  V some = count > 0;
  if (spread)
    inverse = k.select(some, inverse, k.f32(0));
  Ptr y = k.buffer(7) + k.to64(k.block()) * (s.latent * 4);
  for (int64_t i = 0; i < perThread; ++i) {
    V at = k.thread() + i * threads;
    k.when(at < s.latent, [&] { k.store(y + at * 4, state[2 + i] * inverse); });
  }
  if (s.lse) {
    V lse = (state[0] + k.log2(state[1])) * k.f32(naturalLog2);
    if (spread)
      lse = k.select(some, lse, k.f32(-infinity));
    k.when(k.thread() == 0,
           [&] { k.store(k.buffer(8) + k.to64(k.block()) * 4, lse); });
  }
  k.finish();
  return kernel;
}

AttentionKernels latentAttentionSimple(KernelSite site,
                                       const AttentionSpec &spec) {
  return {simpleAttention(site, spec), std::nullopt, "1", "1"};
}

AttentionKernels latentAttentionSplit(KernelSite site,
                                      const AttentionSpec &spec,
                                      DecodeForm form) {
  DecodeShape shape = decodeShape(spec, form, site.gpu);
  AttentionKernels kernels;
  kernels.first = decodeAttention(site, shape);
  kernels.combine = decodeCombine(site, shape);
  // A split is a row, whosever it is.
  kernels.partialRows = kernels.lseRows = std::to_string(shape.splits);
  kernels.partialWidth = spec.heads * spec.latent;
  kernels.lseWidth = spec.heads;
  return kernels;
}

} // namespace mla::nvvm
