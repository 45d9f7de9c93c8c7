//===- RouteKernels.cpp - choosing experts --------------------------------===//
//
// Part of mla. One block a token: a thread scores one expert (two of 1,024), the
// first warp then takes the best one by one, each by two redux.sync over keys in
// registers, an expert's key in each of 32 lanes: 24 registers a thread with 384
// experts, 78 with 1,024. Shared memory: 8 bytes an expert. Bound by latency: one
// load, one barrier (two with groups, four more with softmax), about 100 cycles a
// choice; 4 bytes and 20 flops an expert are nothing beside it.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

static const double infinity = std::numeric_limits<double>::infinity();

/// e^x with a relative error of 2^-22: the product with log2(e) in two parts.
/// x is taken as within +-88.72, between which the result is finite and not 0;
/// NaN stays.
static V exactExp(KernelBuilder &k, V x) {
  V limit = k.f32(88.72), least = k.f32(-88.72);
  x = k.select(x > limit, limit, k.select(x < least, least, x));
  V log2e = k.f32(1.4426950408889634);
  V high = x * log2e;
  V low = k.fma(x, k.f32(1.925963033500e-8),
                k.fma(x, log2e, k.f32(0) - high));
  V power = k.exp2(high);
  return k.fma(power, low * k.f32(0.6931471805599453), power);
}

namespace {
/// The keys of up to 32 n numbered things, number 32 i + lane in register i.
struct WarpKeys {
  KernelBuilder &k;

  V number(int64_t i) const { return k.lane() + 32 * i; }
  /// The number of the largest key, the lowest among equals, 0 if all are
  /// lowestKey. Every lane gets it.
  V best(ArrayRef<V> keys) const {
    V mine = keys[0];
    for (V key : keys.drop_front())
      mine = k.maximum(mine, key);
    V largest = largestKey(k, mine);
    V found = k.i32(0x7FFFFFFF);
    for (int64_t i = int64_t(keys.size()) - 1; i >= 0; --i)
      found = k.select(keys[i] == largest, number(i), found);
    return k.select(largest == lowestKey, k.i32(0), k.reduxMin(found));
  }
  Vs without(ArrayRef<V> keys, V taken) const {
    Vs rest;
    for (auto [i, key] : llvm::enumerate(keys))
      rest.push_back(
          k.select(number(i) == taken, k.i32(lowestKey), key));
    return rest;
  }
};

/// One kernel's shapes and shared memory.
struct Router {
  KernelBuilder &k;
  RoutingAttr routing;
  int64_t experts, groups, perGroup;
  Ptr scores = {}, choice = {}; ///< f32 an expert
  Ptr groupScores = {}, keep = {}; ///< f32 and i32 a group
  Ptr chosen = {}; ///< i32 a choice
  Ptr scratch = {}; ///< f32 a warp

  V blockMax(V v) const;
  void score(ArrayRef<V> logits, ArrayRef<V> biases) const;
  void limitGroups() const;
  void choose(Ptr indices, Ptr weights) const;
};
} // namespace

/// The largest of the block's numbers; NaN is ignored, it shows in the sum.
V Router::blockMax(V v) const {
  v = k.warpMax(v);
  k.when(k.lane() == 0, [&] { k.store(scratch + k.warp() * 4, v); });
  k.barrier();
  V best = k.loadF32(scratch);
  for (int64_t w = 1; w < k.warps(); ++w)
    best = k.maximum(best, k.loadF32(scratch + w * 4));
  k.barrier();
  return best;
}

/// scores[e] and choice[e] of the experts of this thread.
void Router::score(ArrayRef<V> logits, ArrayRef<V> biases) const {
  Vs values;
  auto expert = [&](size_t i) { return k.thread() + int64_t(i) * k.threads(); };
  if (routing.getScoring() == ScoringKind::Sigmoid) {
    for (V v : logits)
      values.push_back(
          k.divide(k.f32(1), k.f32(1) + exactExp(k, k.f32(0) - v)));
  } else {
    V most = logits[0];
    for (V v : logits.drop_front())
      most = k.maximum(most, v);
    most = blockMax(most);
    V sum = k.f32(0);
    for (auto [i, v] : llvm::enumerate(logits)) {
      values.push_back(
          k.select(expert(i) < experts, exactExp(k, v - most), k.f32(0)));
      sum = sum + values.back();
    }
    sum = k.blockSum(sum, scratch);
    for (V &v : values)
      v = k.divide(v, sum);
  }
  for (auto [i, v] : llvm::enumerate(values)) {
    V e = expert(i);
    k.when(e < experts, [&] {
      k.store(scores + e * 4, v);
      k.store(choice + e * 4, biases.empty() ? v : v + biases[i]);
    });
  }
  k.barrier();
}

/// Which groups are kept: by the sum of their best two (noaux_tc) or their best.
void Router::limitGroups() const {
  V low = k.f32(-infinity);
  k.loop(k.warp(), k.i32(groups), k.warps(), [&](V g) {
    Vs top = k.loop(
        k.lane(), k.i32(perGroup), 32, {low, low}, [&](V i, ArrayRef<V> acc) {
          V v = k.loadF32(choice + (g * perGroup + i) * 4);
          V first = v > acc[0], second = v > acc[1];
          return Vs{k.select(first, v, acc[0]),
                    k.select(first, acc[0], k.select(second, v, acc[1]))};
        });
    V best = top[0], next = top[1];
    for (int64_t mask = 16; mask; mask /= 2) {
      V otherBest = k.shuffleXor(best, mask);
      V otherNext = k.shuffleXor(next, mask);
      next = k.maximum(k.minimum(best, otherBest), k.maximum(next, otherNext));
      best = k.maximum(best, otherBest);
    }
    V score =
        routing.getMethod() == TopkKind::NoAuxTc ? best + next : best;
    k.when(k.lane() == 0, [&] { k.store(groupScores + g * 4, score); });
  });
  k.barrier();
  k.when(k.warp() == 0, [&] {
    WarpKeys warp{k};
    Vs state; // keys, then whether kept
    int64_t n = llvm::divideCeil(groups, 32);
    for (int64_t i = 0; i < n; ++i) {
      V there = warp.number(i) < groups;
      V at = k.select(there, warp.number(i), k.i32(0));
      V key = orderKey(k, k.loadF32(groupScores + at * 4));
      state.push_back(k.select(there, key, k.i32(lowestKey)));
    }
    state.append(n, k.i32(0));
    state = k.loop(k.i32(0), k.i32(routing.getTopkGroups()), 1, state,
                   [&](V, ArrayRef<V> now) {
                     V g = warp.best(now.take_front(n));
                     Vs next = warp.without(now.take_front(n), g);
                     for (int64_t i = 0; i < n; ++i)
                       next.push_back(k.select(warp.number(i) == g, k.i32(1),
                                               now[n + i]));
                     return next;
                   });
    for (int64_t i = 0; i < n; ++i)
      k.when(warp.number(i) < groups,
             [&] { k.store(keep + warp.number(i) * 4, state[n + i]); });
    k.syncWarp();
  });
}

/// The best topk of the experts that are kept, by the first warp.
void Router::choose(Ptr indices, Ptr weights) const {
  int64_t topk = routing.getTopk();
  bool limited = bool(keep.value);
  WarpKeys warp{k};
  Vs state; // keys, then the sum of the weights
  int64_t n = llvm::divideCeil(experts, 32);
  for (int64_t i = 0; i < n; ++i) {
    V there = warp.number(i) < experts;
    V at = k.select(there, warp.number(i), k.i32(0));
    V key = orderKey(k, k.loadF32(choice + at * 4));
    if (limited)
      there = there & (k.loadI32(keep + at / perGroup * 4) == 1);
    state.push_back(k.select(there, key, k.i32(lowestKey)));
  }
  state.push_back(k.f32(0));
  V sum = k.loop(k.i32(0), k.i32(topk), 1, state,
                 [&](V j, ArrayRef<V> now) {
                   V e = warp.best(now.drop_back());
                   Vs next = warp.without(now.drop_back(), e);
                   k.store(chosen + j * 4, e); // the same from every lane
                   next.push_back(now.back() + k.loadF32(scores + e * 4));
                   return next;
                 }).back();
  k.syncWarp();
  k.loop(k.lane(), k.i32(topk), 32, [&](V j) {
    V e = k.loadI32(chosen + j * 4);
    V w = k.loadF32(scores + e * 4);
    if (routing.getNormalize())
      w = k.divide(w, sum + k.f32(1e-20));
    k.store(indices + j * 4, e);
    k.store(weights + j * 4, w * k.f32(routing.getScale().getValueAsDouble()));
  });
}

Kernel route(KernelSite site, RoutingAttr routing, int64_t experts,
             std::optional<Format> bias) {
  int64_t topk = routing.getTopk(), groups = routing.getGroups();
  std::string name =
      kernelName("route", stringifyScoringKind(routing.getScoring()).str(),
                 stringifyTopkKind(routing.getMethod()).str(), experts, topk,
                 groups, routing.getTopkGroups(),
                 int64_t(routing.getNormalize()),
                 nameOf(routing.getScale().getValueAsDouble()));
  if (bias)
    name += "_" + std::string(formatName(*bias));
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access{"read", "write", "write"};
  if (bias)
    access.insert(access.begin(), "read");
  int64_t threads =
      std::min<int64_t>(llvm::alignTo(experts, 32), 512);
  KernelBuilder k(site.kernels, site.loc, name, access, 0, {threads});
  bool limited = groups > 1 && routing.getMethod() != TopkKind::Greedy;
  Router router{k, routing, experts, groups, experts / groups};
  router.scores = k.shared(experts * 4);
  router.choice = k.shared(experts * 4);
  if (limited) {
    router.groupScores = k.shared(groups * 4);
    router.keep = k.shared(groups * 4);
  }
  router.chosen = k.shared(topk * 4);
  router.scratch = k.shared(k.warps() * 4);

  // Threads beyond the experts look at the last one.
  Vs place, biases, logits;
  for (int64_t first = 0; first < experts; first += threads) {
    place.push_back(k.minimum(k.thread() + first, k.i32(experts - 1)));
    if (bias)
      biases.push_back(k.loadElement(k.buffer(1), place.back(), *bias));
  }
  k.gridTrigger();
  k.gridWait();
  V token = k.to64(k.block());
  for (V at : place)
    logits.push_back(
        k.loadF32(k.buffer(0) + token * (experts * 4) + at * 4));
  router.score(logits, biases);
  if (limited)
    router.limitGroups();
  k.when(k.warp() == 0, [&] {
    router.choose(k.buffer(access.size() - 2) + token * (topk * 4),
                  k.buffer(access.size() - 1) + token * (topk * 4));
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
