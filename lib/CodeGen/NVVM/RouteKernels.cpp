//===- RouteKernels.cpp - choosing experts --------------------------------===//
//
// Part of mla. One block a token: a thread scores one expert (two of 1,024), the
// first warp then takes the best, an expert's key in each of 32 lanes: 24 registers a
// thread with 384 experts, 78 with 1,024. Shared memory: 8 bytes an expert and 0.5
// KB. Bound by latency: one load, one barrier (two with groups, four more with
// softmax), some hundred cycles of one warp for the choice; 4 bytes and 20 flops an
// expert are nothing beside it.
//
//===----------------------------------------------------------------------===//
#include "Router.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

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
  /// By a tree: this is one warp alone, which waits for each result.
  static V join(ArrayRef<V> in, function_ref<V(V, V)> f) {
    Vs v(in.begin(), in.end());
    for (; v.size() > 1; v.truncate((v.size() + 1) / 2))
      for (size_t i = 0; i < v.size() / 2; ++i)
        v[i] = f(v[i], v[v.size() - 1 - i]);
    return v[0];
  }
  /// This lane's largest key.
  V largest(ArrayRef<V> keys) const {
    return join(keys, [&](V a, V b) { return k.maximum(a, b); });
  }
  /// The number of the largest key, the lowest among equals, 0 if all are
  /// lowestKey. Every lane gets it.
  V best(ArrayRef<V> keys) const {
    V largest = largestKey(k, this->largest(keys));
    Vs found;
    for (auto [i, key] : llvm::enumerate(keys))
      found.push_back(k.select(key == largest, number(i), k.i32(0x7FFFFFFF)));
    V lowest = join(found, [&](V a, V b) { return k.minimum(a, b); });
    return k.select(largest == lowestKey, k.i32(0), k.reduxMin(lowest));
  }
  Vs without(ArrayRef<V> keys, V taken) const {
    Vs rest;
    for (auto [i, key] : llvm::enumerate(keys))
      rest.push_back(
          k.select(number(i) == taken, k.i32(lowestKey), key));
    return rest;
  }
};
} // namespace

static bool isLimited(RoutingAttr routing) {
  return routing.getGroups() > 1 && routing.getMethod() != TopkKind::Greedy;
}

Router::Router(KernelBuilder &k, RoutingAttr routing, int64_t experts,
               std::optional<Format> bias)
    : k(k), routing(routing), experts(experts), groups(routing.getGroups()),
      perGroup(experts / groups), bias(bias), limited(isLimited(routing)) {
  scores = k.shared(experts * 4);
  choice = k.shared(experts * 4);
  if (limited) {
    groupScores = k.shared(groups * 4);
    keep = k.shared(groups * 4);
  }
  chosen = k.shared(routing.getTopk() * 4);
  candidates = k.shared(256);
  scratch = k.shared(k.warps() * 4);
}

int64_t Router::sharedBytes(RoutingAttr routing, int64_t experts,
                            int64_t threads) {
  int64_t groups = isLimited(routing) ? routing.getGroups() : 0;
  return experts * 8 + groups * 8 + routing.getTopk() * 4 + 256 +
         threads / 8 + 7 * 16; // alignment
}

std::string Router::name(RoutingAttr routing, int64_t experts,
                         std::optional<Format> bias) {
  std::string name =
      kernelName(stringifyScoringKind(routing.getScoring()),
                 stringifyTopkKind(routing.getMethod()).str(), experts,
                 routing.getTopk(), routing.getGroups(),
                 routing.getTopkGroups(), int64_t(routing.getNormalize()),
                 nameOf(routing.getScale().getValueAsDouble()));
  if (bias)
    name += "_" + std::string(formatName(*bias));
  return name;
}

/// Calls `body` with each of this thread's experts; threads beyond the experts look
/// at the last one.
static void eachExpert(KernelBuilder &k, int64_t experts,
                       function_ref<void(V)> body) {
  for (int64_t first = 0; first < experts; first += k.threads())
    body(k.minimum(k.thread() + first, k.i32(experts - 1)));
}

void Router::fetchBias(Ptr from) {
  eachExpert(k, experts,
             [&](V e) { biases.push_back(k.loadElement(from, e, *bias)); });
}

void Router::fetchLogits(Ptr from) {
  eachExpert(k, experts, [&](V e) {
    logits.push_back(k.loadF32(from + e * 4, Cached::L2));
  });
}

/// The largest of the block's numbers; NaN is ignored, it shows in the sum.
V Router::blockMax(V v) {
  v = k.warpMax(v);
  k.when(k.lane() == 0, [&] { k.store(scratch + k.warp() * 4, v); });
  k.barrier();
  V best = k.loadF32(scratch);
  for (int64_t w = 1; w < k.warps(); ++w)
    best = k.maximum(best, k.loadF32(scratch + w * 4));
  k.barrier();
  return best;
}

void Router::score() {
  Vs values;
  auto expert = [&](size_t i) { return k.thread() + int64_t(i) * k.threads(); };
  if (routing.getScoring() == ScoringKind::Sigmoid) {
    for (V v : logits)
      values.push_back(
          k.divide(k.f32(1), k.f32(1) + exactExp(k, k.f32(0) - v)));
  } else {
    V most = logits[0];
    for (V v : ArrayRef<V>(logits).drop_front())
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
  if (limited)
    limitGroups();
}

/// Which groups are kept: by the sum of their best two (noaux_tc) or their best.
void Router::limitGroups() {
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

/// Experts `keys` to chosen[], best first, one by one.
static void takeOneByOne(KernelBuilder &k, ArrayRef<V> keys, int64_t topk,
                         Ptr chosen) {
  WarpKeys warp{k};
  k.loop(k.i32(0), k.i32(topk), 1, keys, [&](V j, ArrayRef<V> now) {
    V e = warp.best(now);
    k.store(chosen + j * 4, e); // the same from every lane
    return warp.without(now, e);
  });
}

/// As takeOneByOne(), 0.4 us sooner for 8 of 384: the topk best are among the keys
/// that are no smaller than the topk-th largest of the lanes' largest. There are
/// seldom more than a few more; they get a lane each, which counts how many are
/// better. Where they are more than lanes, it is done one by one.
static void takeAtOnce(KernelBuilder &k, ArrayRef<V> keys, int64_t topk,
                       Ptr chosen, Ptr candidates) {
  WarpKeys warp{k};
  Ptr ids = candidates + 128;
  k.store(candidates + k.lane() * 4, k.i32(lowestKey));
  V mine = warp.largest(keys), better = k.i32(0), one = k.i32(1);
  for (int64_t by = 1; by < 32; ++by) {
    V other = k.shuffle(mine, (k.lane() + by) & 31);
    better = better + k.select(other > mine, one, k.i32(0));
  }
  V least = k.select(better < topk, mine, k.i32(0x7FFFFFFF));
  least = k.reduxMin(least ^ lowestKey) ^ lowestKey;
  V below = k.shift(one, k.lane()) - 1, count = k.i32(0);
  k.syncWarp();
  for (auto [i, key] : llvm::enumerate(keys)) {
    V is = key >= least;
    V all = k.ballot(is);
    V at = count + k.popcount(all & below);
    k.when(is & (at < 32), [&] {
      k.store(candidates + at * 4, key);
      k.store(ids + at * 4, warp.number(i));
    });
    count = count + k.popcount(all);
  }
  k.syncWarp();
  // Without enough numbers the rest is not chosen by place.
  k.ifElse(
      (count > 32) | (least == lowestKey),
      [&] { takeOneByOne(k, keys, topk, chosen); },
      [&] {
        // Candidates are in the order of their numbers: equal ones keep it.
        V key = k.loadI32(candidates + k.lane() * 4), rank = k.i32(0);
        for (int64_t j = 0; j < 32; j += 4)
          for (auto [i, other] :
               llvm::enumerate(k.loadWords(candidates + j * 4, 4))) {
            V before = k.lane() > j + int64_t(i);
            V wins = (other > key) | ((other == key) & before);
            rank = rank + k.select(wins, one, k.i32(0));
          }
        k.when((k.lane() < count) & (rank < topk), [&] {
          k.store(chosen + rank * 4, k.loadI32(ids + k.lane() * 4));
        });
      });
}

void Router::choose(Ptr indices, Ptr weights) {
  int64_t topk = routing.getTopk();
  WarpKeys warp{k};
  Vs keys;
  for (int64_t i = 0, n = llvm::divideCeil(experts, 32); i < n; ++i) {
    V there = warp.number(i) < experts;
    V at = k.select(there, warp.number(i), k.i32(0));
    V key = orderKey(k, k.loadF32(choice + at * 4));
    if (limited)
      there = there & (k.loadI32(keep + at / perGroup * 4) == 1);
    keys.push_back(k.select(there, key, k.i32(lowestKey)));
  }
  if (topk <= atOnce)
    takeAtOnce(k, keys, topk, chosen, candidates);
  else
    takeOneByOne(k, keys, topk, chosen);
  k.syncWarp();
  // Added up in the order of the choice.
  V sum = k.f32(0);
  auto add = [&](V sum, V j) {
    return sum + k.loadF32(scores + k.loadI32(chosen + j * 4) * 4);
  };
  if (topk <= atOnce)
    for (int64_t j = 0; j < topk; ++j)
      sum = add(sum, k.i32(j));
  else
    sum = k.loop(k.i32(0), k.i32(topk), 1, {sum}, [&](V j, ArrayRef<V> in) {
             return Vs{add(in[0], j)};
           })[0];
  k.loop(k.lane(), k.i32(topk), 32, [&](V j) {
    V e = k.loadI32(chosen + j * 4);
    k.store(indices + j * 4, e);
    if (!weights.value)
      return;
    V w = k.loadF32(scores + e * 4);
    if (routing.getNormalize())
      w = k.divide(w, sum + k.f32(1e-20));
    k.store(weights + j * 4, w * k.f32(routing.getScale().getValueAsDouble()));
  });
}

Kernel route(KernelSite site, RoutingAttr routing, int64_t experts,
             std::optional<Format> bias) {
  std::string name = kernelName("route", Router::name(routing, experts, bias));
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  int64_t topk = routing.getTopk();
  SmallVector<StringRef> access{"read", "write", "write"};
  if (bias)
    access.insert(access.begin(), "read");
  int64_t threads =
      std::min<int64_t>(llvm::alignTo(experts, 32), 512);
  KernelBuilder k(site.kernels, site.loc, name, access, 0, {threads});
  Router router(k, routing, experts, bias);
  if (bias)
    router.fetchBias(k.buffer(1));
  k.gridTrigger();
  k.gridWait();
  V token = k.to64(k.block());
  router.fetchLogits(k.buffer(0) + token * (experts * 4));
  router.score();
  k.when(k.warp() == 0, [&] {
    router.choose(k.buffer(access.size() - 2) + token * (topk * 4),
                  k.buffer(access.size() - 1) + token * (topk * 4));
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
