//===- LatentTile.cpp - what decode attention does with a tile ------------===//
//
// Part of mla. Scores, softmax and weighted values of a tile, and the results
// of a split; LatentDecode.cpp says how they make a kernel.
//
//===----------------------------------------------------------------------===//
#include "LatentDecodeBuilder.h"

using namespace mlir;

namespace mla::nvvm {

/// The largest rise of a maximum, in units of log2, that needs no rescaling.
constexpr double rescaleAbove = 6;

/// This warp's part of the scores of a tile, C fragments [n8][4]. Two chains of
/// sums, since an mma waits for the one whose sum it continues.
Vs DecodeBuilder::scores(V stage) {
  Vs chain[2] = {Vs(n8 * 4, k.f32(0)), Vs(n8 * 4, k.f32(0))};
  int64_t chains = n8 < 3 ? 2 : 1; // three sums are enough
  auto step = [&](int64_t which, int64_t i, ArrayRef<V> a, ArrayRef<V> query) {
    for (int64_t n = 0; n < n8; ++n) {
      Vs &sums = chain[which % chains];
      ArrayRef<V> c = ArrayRef<V>(sums).slice(n * 4, 4);
      Vs d = mma(a, query.slice((i * n8 + n) * 2, 2), c);
      llvm::copy(d, sums.begin() + n * 4);
    }
  };
  Ptr a = keyA + stage, b = fp8 ? keyB + stage : Ptr();
  int64_t first = (steps + 1) / 2;
  for (int64_t i = 0; i < steps; ++i) {
    if (!fp8) {
      Vs r = k.ldmatrix(a + i * 128);
      step(i % 2, i, r, q);
      if (s.exact())
        step(1 - i % 2, i, r, qRest);
      continue;
    }
    Vs r = k.ldmatrix(i < first ? a + i * 128 : b + (i - first) * 128);
    auto low = [&](int64_t j) { return k.e4m3ToF16(r[j]); };
    auto high = [&](int64_t j) { return k.e4m3ToF16(r[j] >> 16); };
    step(0, 2 * i, {low(0), low(1), high(0), high(1)}, q);
    step(1, 2 * i + 1, {low(2), low(3), high(2), high(3)}, q);
  }
  for (int64_t i = 0; i < n8 * 4 && chains == 2; ++i)
    chain[0][i] = chain[0][i] + chain[1][i];
  return chain[0];
}

void DecodeBuilder::storeScores(ArrayRef<V> c, V buffer) {
  for (int64_t n = 0; n < n8; ++n) {
    V even[2] = {c[n * 4], c[n * 4 + 2]}, odd[2] = {c[n * 4 + 1], c[n * 4 + 3]};
    Vs first, second;
    for (int64_t i = 0; i < 2; ++i) {
      first.push_back(k.select(swapped, odd[i], even[i]));
      second.push_back(k.select(swapped, even[i], odd[i]));
    }
    k.storeWords(scoreStore + buffer + n * 128, first);
    k.storeWords(scoreStore2 + buffer + n * 128, second);
  }
}

/// Scores of the tile, [blocks16][n8][4]: of head 8 n + g and tokens 2 t, 2 t +
/// 1, 2 t + 8, 2 t + 9. With `rowsLeft`, those of tokens from there on are
/// noScore.
Vs DecodeBuilder::loadScores(V buffer, V rowsLeft) {
  Vs v;
  for (int64_t b = 0; b < blocks16; ++b)
    for (int64_t n = 0; n < n8; ++n) {
      Vs sum;
      for (int64_t part = 0; part < kParts; ++part) {
        Vs x = k.loadFloats(
            scoreLoad + buffer +
                ((b * kParts + part) * s.teamHeads() * 64 + n * 128),
            4);
        if (part == 0)
          sum = x;
        else
          for (int64_t i = 0; i < 4; ++i)
            sum[i] = sum[i] + x[i];
      }
      std::swap(sum[1], sum[2]); // stored as 2t, 2t + 8, 2t + 1, 2t + 9
      if (rowsLeft.k)
        for (int64_t i = 0; i < 4; ++i) {
          V token = t * 2 + (b * 16 + (i & 1) + (i >> 1) * 8);
          sum[i] = k.select(token < rowsLeft, sum[i], k.f32(noScore));
        }
      v.append(sum);
    }
  return v;
}

/// Raises the maxima, and scales what was summed, if a score is far above.
DecodeBuilder::State DecodeBuilder::rescale(State state, ArrayRef<V> v) {
  Vs highest;
  V up = k.no();
  for (int64_t n = 0; n < n8; ++n) {
    V x;
    for (int64_t b = 0; b < blocks16; ++b) {
      ArrayRef<V> s4 = v.slice((b * n8 + n) * 4, 4);
      V m = k.maximum(k.maximum(s4[0], s4[1]), k.maximum(s4[2], s4[3]));
      x = b == 0 ? m : k.maximum(x, m);
    }
    x = x * toLog2;
    highest.push_back(x);
    up = up | (x > state.maximum[n] + k.f32(rescaleAbove));
  }
  Vs flat = state.flat();
  SmallVector<Type> types(flat.size(), k.f32Type());
  Vs result = k.ifElse(
      k.any(up), types,
      [&] {
        State next = state;
        for (int64_t n = 0; n < n8; ++n) {
          V x = highest[n];
          x = k.maximum(x, k.shuffleXor(x, 1));
          x = k.maximum(x, k.shuffleXor(x, 2));
          x = k.maximum(x, state.maximum[n]);
          V factor = k.exp2(state.maximum[n] - x);
          next.maximum[n] = x;
          next.sum[n] = state.sum[n] * factor;
          V even = k.shuffle(factor, t * 8), odd = k.shuffle(factor, t * 8 + 4);
          for (int64_t i = 0; i < outTiles; ++i)
            for (int64_t j = 0; j < 4; ++j) {
              V &a = next.acc[(i * n8 + n) * 4 + j];
              a = a * (j % 2 ? odd : even);
            }
        }
        return next.flat();
      },
      [&] { return flat; });
  return unflatten(result);
}

/// Adds the tile's values, weighted, and the weights as the products see them.
DecodeBuilder::State DecodeBuilder::addValues(State state, ArrayRef<V> v,
                                              V stage) {
  Vs p; // [blocks16][n8][2]
  for (int64_t b = 0; b < blocks16; ++b)
    for (int64_t n = 0; n < n8; ++n) {
      Vs e;
      V minus = k.f32(0) - state.maximum[n];
      for (int64_t i = 0; i < 4; ++i)
        e.push_back(k.exp2(k.fma(v[(b * n8 + n) * 4 + i], toLog2, minus)));
      for (int64_t i = 0; i < 4; i += 2) {
        V packed = pack(e[i], e[i + 1]);
        p.push_back(packed);
        if (s.spec.cache == Format::BF16)
          std::tie(e[i], e[i + 1]) = k.unpackBF16(packed);
      }
      state.sum[n] = state.sum[n] + ((e[0] + e[1]) + (e[2] + e[3]));
    }
  auto step = [&](int64_t tile, int64_t block, ArrayRef<V> a) {
    for (int64_t n = 0; n < n8; ++n) {
      int64_t at = (tile * n8 + n) * 4;
      Vs d = mma(a, ArrayRef<V>(p).slice((block * n8 + n) * 2, 2),
                 ArrayRef<V>(state.acc).slice(at, 4));
      llvm::copy(d, state.acc.begin() + at);
    }
  };
  for (int64_t b = 0; b < blocks16; ++b) {
    Ptr at = valueAt[b] + stage;
    if (!fp8) {
      for (int64_t i = 0; i < outTiles; ++i)
        step(i, b, k.ldmatrix(at + i * 128, /*transposed=*/true));
      continue;
    }
    for (int64_t i = 0; i < outTiles / 2; ++i) {
      Vs r = k.ldmatrix(at + i * 128, /*transposed=*/true);
      Vs a;
      for (V x : r) {
        x = k.permuteBytes(x, x, 0x3120);
        a.push_back(k.e4m3ToF16(x));
        a.push_back(k.e4m3ToF16(x >> 16));
      }
      step(2 * i, b, ArrayRef<V>(a).slice(0, 4));
      step(2 * i + 1, b, ArrayRef<V>(a).slice(4, 4));
    }
  }
  return state;
}

//===----------------------------------------------------------------------===//
// Results
//===----------------------------------------------------------------------===//

void DecodeBuilder::eachPair(const State &state, ArrayRef<V> factor,
                             function_ref<void(V, V, V, V)> f) {
  for (int64_t n = 0; n < n8; ++n) {
    V even = k.shuffle(factor[n], t * 8), odd = k.shuffle(factor[n], t * 8 + 4);
    for (int64_t i = 0; i < outTiles; ++i) {
      // Rows g and g + 8 of the fragment are a pair.
      ArrayRef<V> a = ArrayRef<V>(state.acc).slice((i * n8 + n) * 4, 4);
      V dim = fp8 ? w * 32 + (g * 2 + ((i & 1) * 16 + (i >> 1) * 128))
                  : w * 16 + (g + i * 64);
      V head = t * 2 + n * 8;
      f(dim, head, a[0] * even, a[2] * even);
      f(dim, head + 1, a[1] * odd, a[3] * odd);
    }
  }
}

void DecodeBuilder::writeOutput(const State &state, ArrayRef<V> factor) {
  Ptr y = k.buffer(7) +
          k.to64(work.token * s.spec.heads + teamHead) * (s.spec.latent * 4);
  bool partial = s.spec.heads % s.blockHeads() != 0;
  eachPair(state, factor, [&](V dim, V head, V first, V second) {
    Ptr at = y + (head * s.spec.latent + dim) * 4;
    auto write = [&] {
      if (fp8)
        return k.storeWords(at, {first, second});
      k.store(at, first);
      k.store(at + 4 * pairDistance(), second);
    };
    if (partial)
      k.when(teamHead + head < s.spec.heads, write);
    else
      write();
  });
}

void DecodeBuilder::writeLse(const State &state, Ptr to, V row, double unit) {
  for (int64_t n = 0; n < n8; ++n) {
    V head = teamHead + g + n * 8;
    k.when((w == 0) & (t == 0) & (head < s.spec.heads), [&] {
      V lse = state.maximum[n] + k.log2(state.sum[n]);
      k.store(to + k.to64(row * s.spec.heads + head) * 4,
              unit == 1 ? lse : lse * k.f32(unit));
    });
  }
}

/// Through shared memory, where the stages were, to write whole sectors.
void DecodeBuilder::writePartial(const State &state, ArrayRef<V> factor) {
  int64_t rowBytes = (s.spec.latent + 8) * 2;
  V number = k.block() / s.groups;
  k.barrier(); // all warps are done with the stages
  Ptr own = stages + team * (s.teamHeads() * rowBytes);
  eachPair(state, factor, [&](V dim, V head, V first, V second) {
    Ptr at = own + (head * rowBytes + dim * 2);
    V pair = k.packF16(first, second);
    if (fp8)
      return k.store(at, pair);
    k.storeI16(at, pair);
    k.storeI16(at + 2 * pairDistance(), pair >> 16);
  });
  writeLse(state, k.buffer(6), number, 1);
  k.barrier();
  int64_t perHead = s.spec.latent / 8;
  Ptr out = k.buffer(5) +
            k.to64(number * s.spec.heads + groupHead) * (s.spec.latent * 2);
  bool partial = s.spec.heads % s.blockHeads() != 0;
  int64_t all = s.blockHeads() * perHead;
  for (int64_t base = 0; base < all; base += k.threads()) {
    V i = k.thread() + base;
    V head = i / perHead, chunk = i % perHead;
    auto copy = [&] {
      k.storeWords(out + i * 16,
                   k.loadWords(stages + (head * rowBytes + chunk * 16), 4));
    };
    if (partial)
      k.when(groupHead + head < s.spec.heads, copy);
    else
      copy();
  }
}

void DecodeBuilder::writeResult(State state) {
  Vs factor;
  for (V &sum : state.sum) {
    sum = sum + k.shuffleXor(sum, 1);
    sum = sum + k.shuffleXor(sum, 2);
    factor.push_back(k.divide(valueScale, sum));
  }
  k.ifElse(
      work.alone,
      [&] {
        writeOutput(state, factor);
        if (s.spec.lse)
          writeLse(state, k.buffer(8), work.token, naturalLog2);
      },
      [&] { writePartial(state, factor); });
}

} // namespace mla::nvvm
