//===- LatentCombine.cpp - dividing decode attention and joining it -------===//
//
// Part of mla. Which block does which rows of which token is computed by every
// block from the positions, so one launch serves all lengths. Positions are
// inputs of the step, which no kernel writes: they are read before gridWait().
//
// Of tokens that are spread over ranks a rank may have none that a token sees. Then the
// token has no split, no block of attention, and the combine kernel writes zeros.
//
// Combining: a thread has 8 values of a head and every `groups`-th split; threads
// of a block with the same values are added up through shuffles and shared memory.
// The combine kernel reads heads * latent * 2 bytes a split, from the L2 cache, and
// is bound by latency: about 2 us. For one token, each block of expand_value
// combines its head itself (combineHead()): a head is read as often as it has
// blocks, but what the latency of a kernel costs is gone.
//
//===----------------------------------------------------------------------===//
#include "LatentDecode.h"

using namespace mlir;

namespace mla::nvvm {

std::string DecodeShape::name(StringRef family) const {
  std::string name = kernelName(attentionName(family, spec), splits,
                                spec.maxTokens == 1       ? "one"
                                : spec.maxTokens < splits ? "few"
                                                          : "many");
  switch (form) {
  case DecodeForm::Narrow:
    return name;
  case DecodeForm::Wide:
    return name + "_wide";
  case DecodeForm::Teams:
    return name + "_teams";
  case DecodeForm::Deep:
    return name + "_deep";
  }
  llvm_unreachable("all forms are named");
}

bool fitsDecodeTiles(const AttentionSpec &spec) {
  // 4 warps share the latent values and the row in steps of 16; a 128-byte line
  // of a stage belongs to one row.
  int64_t row = spec.latent + spec.rope;
  return spec.latent % 128 == 0 && row % 64 == 0 && row <= 576;
}

DecodeShape decodeShape(const AttentionSpec &spec, DecodeForm form,
                        const Gpu &gpu) {
  DecodeShape s;
  s.spec = spec;
  s.form = form;
  s.row = spec.latent + spec.rope;
  s.tile = s.fp8() ? 32 : 16;
  s.pitch = 2 * s.row;
  switch (form) {
  case DecodeForm::Narrow:
    s.headTiles = spec.heads <= 8 ? 1 : 2, s.teams = 1, s.stages = 5;
    break;
  case DecodeForm::Wide:
    s.headTiles = 3, s.teams = 1, s.stages = 4;
    break;
  case DecodeForm::Teams:
    s.headTiles = 2, s.teams = 2, s.stages = 4;
    break;
  case DecodeForm::Deep:
    s.headTiles = 2, s.teams = 2, s.stages = 5;
    break;
  }
  s.groups = (spec.heads + s.blockHeads() - 1) / s.blockHeads();
  int64_t blocks =
      s.teams == 1 && 2 * (s.sharedBytes() + 1024) <= gpu.sharedBytesPerSM ? 2
                                                                           : 1;
  s.splits = std::max<int64_t>(1, gpu.multiprocessors * blocks / s.groups);
  return s;
}

static V tilesOf(const DecodeShape &s, V position) {
  return (position + s.tile) / s.tile;
}
static V ceilDiv(V a, V b) { return (a + b - 1) / b; }

/// The most tiles of a split, the same for all tokens of the step: such that
/// all splits run at once. Every warp computes it.
static V divideStep(KernelBuilder &k, const DecodeShape &s,
                    const Positions &positions, V tokens) {
  // What others are divided by: 1 where no token sees a row.
  auto divisor = [&](V tiles) {
    return positions.spread() ? k.maximum(tiles, k.i32(1)) : tiles;
  };
  if (s.spec.maxTokens == 1)
    return divisor(k.ceilDiv(tilesOf(s, positions.read(k.i32(0))), s.splits));
  Vs sum = k.loop(k.lane(), tokens, 32, {k.i32(0)}, [&](V t, ArrayRef<V> acc) {
    return Vs{acc[0] + tilesOf(s, positions.read(t))};
  });
  V total = k.reduxAdd(sum[0]);
  // Rounding up gives a token up to one split more than its share.
  return divisor(
      ceilDiv(total, k.maximum(k.i32(s.splits) - tokens, k.i32(1))));
}

/// The tiles of each of a token's `splits` splits, of which there may be none.
static V tilesOfSplit(KernelBuilder &k, const Positions &positions, V tiles,
                      V splits) {
  if (!positions.spread())
    return ceilDiv(tiles, splits);
  V one = k.i32(1);
  return k.maximum(ceilDiv(tiles, k.maximum(splits, one)), one);
}

/// Sum over the lanes up to this one.
static V inclusiveScan(KernelBuilder &k, V v) {
  for (int64_t by = 1; by < 32; by *= 2) {
    V other = k.shuffleUp(v, by);
    v = k.select(k.lane() >= by, v + other, v);
  }
  return v;
}

DecodeWork findWork(KernelBuilder &k, const DecodeShape &s,
                    const Positions &positions, V tokens, V block) {
  auto work = [&](V token, V position, V split, V tiles) -> DecodeWork {
    V all = tilesOf(s, position);
    V first = split * tiles;
    return {
        first < all,   token, position, first, k.minimum(tiles, all - first),
        !(all > tiles)};
  };
  if (s.spec.maxTokens == 1) {
    return work(k.i32(0), positions.read(k.i32(0)), block,
                divideStep(k, s, positions, tokens));
  }
  V zero = k.i32(0);
  auto search = [&]() -> Vs {
    V most = divideStep(k, s, positions, tokens);
    // {splits of earlier tokens, token, position, split, tiles}. A split that
    // is not found is far behind the rows of token 0.
    V far = k.i32(1);
    Vs found = k.loop(
        zero, tokens, 32, {zero, zero, zero, far, far},
        [&](V first, ArrayRef<V> state) {
          V token = first + k.lane();
          V position = positions.read(k.minimum(token, tokens - 1));
          V all = tilesOf(s, position);
          V own = ceilDiv(all, most);
          V splits = k.select(token < tokens, own, zero);
          V end = state[0] + inclusiveScan(k, splits);
          V begin = end - splits;
          V hit = k.ballot((block >= begin) & (block < end));
          V lane = k.trailingZeros(hit) & 31;
          auto take = [&](V v, V old) {
            return k.select(hit == 0, old, k.shuffle(v, lane));
          };
          return Vs{k.shuffle(end, k.i32(31)), take(token, state[1]),
                    take(position, state[2]), take(block - begin, state[3]),
                    take(tilesOfSplit(k, positions, all, own), state[4])};
        });
    found.erase(found.begin());
    return found;
  };
  Vs w;
  if (s.spec.maxTokens < s.splits)
    w = search();
  else
    w = k.ifElse(
        tokens >= s.splits, SmallVector<Type>(4, k.i32Type()),
        [&]() -> Vs {
          V token = k.minimum(block, tokens - 1);
          V position = positions.read(token);
          return {token, position, k.select(block < tokens, zero, k.i32(1)),
                  tilesOf(s, position)};
        },
        search);
  return work(w[0], w[1], w[2], w[3]);
}

//===----------------------------------------------------------------------===//
// Combining
//===----------------------------------------------------------------------===//

namespace {
/// How the combine kernel divides its work.
struct CombineShape {
  int64_t threads, groups; ///< groups of threads with different splits
  int64_t batch;           ///< loads in flight of a thread
  int64_t units() const { return threads / groups; } ///< of 8 values
};
} // namespace

/// As many groups as make one batch of a thread's splits, for half as many
/// tokens as there may be.
static CombineShape combineShape(const DecodeShape &s) {
  constexpr int64_t batch = 9;
  int64_t splits = s.splits / (s.spec.maxTokens / 2 + 1);
  int64_t groups = 1;
  while (groups < 32 && groups * batch < splits)
    groups *= 2;
  int64_t threads = groups >= 8 ? 256 : groups >= 2 ? 128 : 64;
  return {threads, groups, batch};
}

/// `n` words at `at`, each `otherwise` without a load if not `condition`.
static Vs loadWhere(KernelBuilder &k, V condition, Ptr at, unsigned n,
                    int64_t otherwise) {
  std::string text =
      "{\n.reg .pred p;\nsetp.ne.b32 p, $" + std::to_string(n + 1) + ", 0;\n";
  std::string words, constraints;
  for (unsigned i = 0; i < n; ++i) {
    std::string word = "$" + std::to_string(i);
    text += "mov.b32 " + word + ", " + std::to_string(otherwise) + ";\n";
    words += (i ? ", " : "") + word;
    constraints += "=&r,";
  }
  text += n == 1 ? "@p ld.global.cg.b32 " + words
                 : "@p ld.global.cg.v4.b32 {" + words + "}";
  text += ", [$" + std::to_string(n) + "];\n}";
  SmallVector<Type> types(n, k.i32Type());
  Type type =
      n == 1 ? k.i32Type()
             : Type(LLVM::LLVMStructType::getLiteral(k.b.getContext(), types));
  V all = k.inlinePTX(text, constraints + "l,r", type,
                      {at.value, k.to32(condition).value},
                      /*sideEffects=*/true);
  if (n == 1)
    return {all};
  Vs out;
  for (unsigned i = 0; i < n; ++i)
    out.push_back(
        {LLVM::ExtractValueOp::create(k.b, all.value, int64_t(i)), &k});
  return out;
}

/// {maximum, sum of weights, 8 weighted sums} after the splits of group
/// `group`.
static Vs combineSplits(KernelBuilder &k, const CombineShape &c, V group,
                        V splits, Ptr lse, int64_t lseStride, Ptr partial,
                        int64_t partialStride) {
  constexpr double none = -1e30;
  Vs init(10, k.f32(0));
  init[0] = k.f32(none);
  return k.loop(
      group, splits, c.groups * c.batch, init, [&](V first, ArrayRef<V> state) {
        SmallVector<V> weight;
        SmallVector<Vs> value;
        for (int64_t i = 0; i < c.batch; ++i) {
          V split = first + i * c.groups;
          V there = split < splits;
          V at = k.to64(split);
          weight.push_back(
              k.fromBits(loadWhere(k, there, lse + at * lseStride, 1,
                                   llvm::bit_cast<int32_t>(float(none)))[0]));
          value.push_back(
              loadWhere(k, there, partial + at * partialStride, 4, 0));
        }
        V maximum = state[0];
        for (V x : weight)
          maximum = k.maximum(maximum, x);
        V factor = k.exp2(state[0] - maximum);
        Vs next(state.begin(), state.end());
        next[0] = maximum;
        for (int64_t j = 1; j < 10; ++j)
          next[j] = next[j] * factor;
        for (int64_t i = 0; i < c.batch; ++i) {
          V w = k.exp2(weight[i] - maximum);
          next[1] = next[1] + w;
          for (int64_t j = 0; j < 4; ++j) {
            auto [low, high] = k.unpackF16(value[i][j]);
            next[2 + 2 * j] = k.fma(w, low, next[2 + 2 * j]);
            next[3 + 2 * j] = k.fma(w, high, next[3 + 2 * j]);
          }
        }
        return next;
      });
}

/// Adds up what lanes with the same unit have: those `units`, 2 * units, ...
/// apart.
static Vs joinLanes(KernelBuilder &k, Vs state, int64_t units) {
  if (units >= 32)
    return state;
  V maximum = state[0];
  for (int64_t mask = units; mask < 32; mask *= 2)
    maximum = k.maximum(maximum, k.shuffleXor(maximum, mask));
  V factor = k.exp2(state[0] - maximum);
  for (int64_t j = 1; j < 10; ++j) {
    state[j] = state[j] * factor;
    for (int64_t mask = units; mask < 32; mask *= 2)
      state[j] = state[j] + k.shuffleXor(state[j], mask);
  }
  state[0] = maximum;
  return state;
}

/// Combines `splits` splits, from split `first` on, of unit (thread() % c.units())
/// of chunk `chunk`, and calls `emit` with the number of a value in the token's row
/// and one value or 8 adjacent ones; `emitLse`, if there is one, with a head and the
/// logarithm of its sum of weights, in units of log2. By all threads of a block; has
/// barriers.
static void combineChunk(KernelBuilder &k, const DecodeShape &s,
                         const CombineShape &c, V chunk, V first, V splits,
                         Ptr partials, Ptr lses,
                         function_ref<void(V value, ArrayRef<V>)> emit,
                         function_ref<void(V head, V lse)> emitLse = {}) {
  int64_t values = s.spec.heads * s.spec.latent;
  // Partial sums of warps that have the same units: 10 values, one word of
  // padding against bank conflicts.
  int64_t warpUnits = std::min<int64_t>(c.units(), 32);
  int64_t parts = k.warps() * warpUnits / c.units();
  constexpr int64_t partWords = 11;
  V group = k.thread() / c.units();
  V unit = chunk * c.units() + k.thread() % c.units();
  V here = k.minimum(unit, k.i32(values / 8 - 1));
  int64_t perHead = s.spec.latent / 8;
  V head = here / perHead;
  Ptr lse = lses + k.to64(first * s.spec.heads + head) * 4;
  Ptr partial = partials + k.to64(first) * (values * 2) + k.to64(here) * 16;
  Vs state = combineSplits(k, c, group, splits, lse, s.spec.heads * 4, partial,
                           values * 2);
  state = joinLanes(k, state, c.units());
  if (parts == 1) {
    k.when((unit < values / 8) & (k.lane() < warpUnits), [&] {
      if (emitLse)
        k.when(unit % perHead == 0,
               [&] { emitLse(head, state[0] + k.log2(state[1])); });
      V inverse = k.reciprocal(state[1]);
      for (V &v : state)
        v = v * inverse;
      emit(unit * 8, ArrayRef<V>(state).slice(2, 8));
    });
    return;
  }
  Ptr scratch = k.shared(k.warps() * warpUnits * partWords * 4);
  k.when(k.lane() < warpUnits, [&] {
    Ptr at = scratch + (k.warp() * warpUnits + k.lane()) * (partWords * 4);
    for (auto [j, v] : llvm::enumerate(state))
      k.store(at + 4 * j, v);
  });
  k.barrier();
  // One value a thread. Warps with the same units are c.units() / warpUnits
  // apart.
  int64_t outputs = c.units() * 8;
  for (int64_t base = 0; base < outputs; base += c.threads) {
    V i = k.thread() + base;
    V u = i / 8;
    V value = chunk * outputs + i;
    k.when((i < outputs) & (value < values), [&] {
      Ptr at = scratch + u * (partWords * 4);
      auto part = [&](int64_t p) {
        return at + p * c.units() * partWords * 4;
      };
      V maximum = k.f32(-1e30);
      for (int64_t p = 0; p < parts; ++p)
        maximum = k.maximum(maximum, k.loadF32(part(p)));
      V sum = k.f32(0), weighted = k.f32(0);
      for (int64_t p = 0; p < parts; ++p) {
        V w = k.exp2(k.loadF32(part(p)) - maximum);
        sum = k.fma(w, k.loadF32(part(p) + 4), sum);
        weighted = k.fma(w, k.loadF32(part(p) + (i & 7) * 4 + 8), weighted);
      }
      emit(value, {k.divide(weighted, sum)});
      if (emitLse)
        k.when(value % s.spec.latent == 0, [&] {
          emitLse(value / s.spec.latent, maximum + k.log2(sum));
        });
    });
  }
}

Kernel decodeCombine(KernelSite site, const DecodeShape &s) {
  CombineShape c = combineShape(s);
  int64_t values = s.spec.heads * s.spec.latent;
  int64_t chunks = (values / 8 + c.units() - 1) / c.units();
  std::string name = kernelName(s.name("latent_combine"), c.threads, c.groups);
  Kernel kernel{name, "tokens * " + std::to_string(chunks)};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access{"read", "read", "read", "readwrite"};
  if (s.spec.lse)
    access.push_back("readwrite");
  bool spread = s.spec.ranks > 1;
  KernelBuilder k(site.kernels, site.loc, name, access, spread ? 1 : 0,
                  {c.threads});
  V token = k.block() / chunks, chunk = k.block() % chunks;
  V tokens = k.blocks() / chunks;
  Positions positions = positionsOf(k, s.spec, k.buffer(0), 0);
  // Where a token's splits begin: behind those of the tokens before it.
  V zero = k.i32(0);
  auto where = [&]() -> Vs {
    if (s.spec.maxTokens == 1)
      return {zero, splitsOfOne(k, s, positions)};
    V most = divideStep(k, s, positions, tokens);
    auto splitsOf = [&](V t) {
      return ceilDiv(tilesOf(s, positions.read(t)), most);
    };
    V own = splitsOf(token);
    Vs before = k.loop(k.lane(), token, 32, {zero}, [&](V t, ArrayRef<V> acc) {
      return Vs{acc[0] + splitsOf(t)};
    });
    // Divided evenly, the last of a token's splits may have nothing left.
    V all = tilesOf(s, positions.read(token));
    return {k.reduxAdd(before[0]),
            ceilDiv(all, tilesOfSplit(k, positions, all, own))};
  };
  Vs place = s.spec.maxTokens < s.splits
                 ? where()
                 : k.ifElse(
                       tokens >= s.splits, {k.i32Type(), k.i32Type()},
                       [&] {
                         V one = k.i32(1);
                         if (spread)
                           one = k.select(positions.read(token) < 0, zero, one);
                         return Vs{zero, one};
                       },
                       where);
  V first = place[0], splits = place[1];
  Ptr y, lse;
  auto results = [&] {
    y = k.buffer(3) + k.to64(token) * (values * 4);
    if (s.spec.lse)
      lse = k.buffer(4) + k.to64(token) * (s.spec.heads * 4);
  };
  auto emitLse = [&](V head, V value) {
    k.store(lse + head * 4, value * k.f32(naturalLog2));
  };
  k.gridTrigger();
  k.gridWait();
  k.when(splits > 1, [&] {
    results();
    combineChunk(
        k, s, c, chunk, first, splits, k.buffer(1), k.buffer(2),
        [&](V value, ArrayRef<V> v) {
          Ptr at = y + value * 4;
          if (v.size() == 1)
            return k.store(at, v[0]);
          k.storeWords(at, v.take_front(4));
          k.storeWords(at + 16, v.drop_front(4));
        },
        s.spec.lse ? function_ref<void(V, V)>(emitLse)
                   : function_ref<void(V, V)>());
  });
  if (spread)
    k.when((splits == 0) & (k.thread() < c.units()), [&] {
      results();
      V unit = chunk * c.units() + k.thread(), none = k.f32(0);
      k.when(unit < values / 8, [&] {
        for (int64_t half : {0, 16})
          k.storeWords(y + unit * 32 + half, {none, none, none, none});
        int64_t perHead = s.spec.latent / 8;
        if (s.spec.lse)
          k.when(unit % perHead == 0, [&] {
            k.store(lse + unit / perHead * 4, k.f32(-infinity));
          });
      });
    });
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Combining in another kernel
//===----------------------------------------------------------------------===//

V splitsOfOne(KernelBuilder &k, const DecodeShape &s, const Positions &positions) {
  V one = k.i32(1);
  return ceilDiv(tilesOf(s, positions.read(k.i32(0))),
                 divideStep(k, s, positions, one));
}

bool canCombineHead(const DecodeShape &s, int64_t threads) {
  int64_t units = s.spec.latent / 8;
  return s.spec.maxTokens == 1 && llvm::isPowerOf2_64(units) &&
         units <= threads && llvm::isPowerOf2_64(threads);
}

void combineHead(KernelBuilder &k, const DecodeShape &s, V head, V splits,
                 Ptr partial, Ptr lse,
                 function_ref<void(V, ArrayRef<V>)> emit) {
  int64_t units = s.spec.latent / 8;
  CombineShape c{k.threads(), k.threads() / units, 9};
  combineChunk(k, s, c, head, k.i32(0), splits, partial, lse, emit);
}

} // namespace mla::nvvm
