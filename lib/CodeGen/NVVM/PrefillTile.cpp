//===- PrefillTile.cpp - what prefill attention does with a tile ----------===//
//
// Part of mla. Scores, probabilities and weighted values of a tile;
// PrefillAttention.cpp says how they make a kernel.
//
//===----------------------------------------------------------------------===//
#include "PrefillBuilder.h"

using namespace mlir;

namespace mla::nvvm {

/// s += this warp's part of the scores of tile `index`: [m-tile][n-tile][4].
void PrefillBuilder::scores(V index, Vs &s) {
  Ptr at = tileAt(index, keys, rowBytes / 4);
  auto step = [&](int64_t i, ArrayRef<V> b) { // b: [n-tile][2]
    for (int64_t mTile = 0; mTile < 2; ++mTile)
      for (int64_t nTile = 0; nTile < 2; ++nTile) {
        int64_t first = (mTile * 2 + nTile) * 4;
        Vs d = mma(ArrayRef(query).slice((mTile * steps + i) * 4, 4),
                   b.slice(2 * nTile, 2), ArrayRef(s).slice(first, 4));
        llvm::copy(d, s.begin() + first);
      }
  };
  if (!fp8) {
    for (int64_t i = 0; i < steps; ++i)
      step(i, k.ldmatrix(at + i * 32));
    return;
  }
  for (int64_t i = 0; i < steps; i += 2) {
    // The last chunk's neighbour is read, if not used: it is within the pitch.
    Vs r = k.ldmatrix(at + i * 16);
    for (int64_t j = 0; j < 2 && i + j < steps; ++j) {
      Vs b;
      for (int64_t nTile = 0; nTile < 2; ++nTile) {
        V word = r[2 * j + nTile];
        b.push_back(k.e4m3ToF16(word & 0xFFFF));
        b.push_back(k.e4m3ToF16(word >> 16));
      }
      step(i + j, b);
    }
  }
}

/// Hands the partial scores to the warps that need them: warp r has pairs 8r to
/// 8r + 7, half r % 2 of m-tile r / 2.
void PrefillBuilder::storePartial(ArrayRef<V> s) {
  // Two words at a time, as the products leave them in registers.
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t nTile = 0; nTile < 2; ++nTile) {
      int64_t first = r / 2 * 8 + nTile * 4 + r % 2 * 2;
      k.storeWords(partialTo + (r * ReaderBytes + nTile * 256),
                   {s[first], s[first + 1]});
    }
  arrive(own + ScoresIn);
}

/// acc times the factors that the softmax has left, if a warp of the group has any:
/// those of the other warps are not stored.
Vs PrefillBuilder::rescale(V index, ArrayRef<V> flag, ArrayRef<V> acc) {
  SmallVector<Type> types(accCount(), k.f32Type());
  return k.ifElse(
      !((flag[0] | flag[1] | flag[2] | flag[3]) == 0), types,
      [&] {
        Vs out;
        for (int64_t mTile = 0; mTile < 2; ++mTile) {
          V f[2];
          for (int64_t half = 0; half < 2; ++half) {
            V stored =
                k.loadF32(own + (index & 1) * 128 + g * 4 +
                          (Factors + mTile * 64 + half * 32));
            f[half] = k.select(flag[2 * mTile + half] == 0, k.f32(1), stored);
          }
          for (int64_t i = 0; i < nTiles * 4; ++i)
            out.push_back(acc[mTile * nTiles * 4 + i] * f[i % 4 / 2]);
        }
        return out;
      },
      [&] { return Vs(acc); });
}

/// The probabilities as A fragments.
Vs PrefillBuilder::loadWeights() {
  Vs a;
  for (int64_t mTile = 0; mTile < 2; ++mTile)
    a.append(k.loadWords(weightsFrom + mTile * 512, 4));
  return a;
}

/// acc += probabilities `a` * values of tile `index`.
void PrefillBuilder::output(V index, ArrayRef<V> a, Vs &acc) {
  Ptr at = tileAt(index, values, spec.latent / 4 * (fp8 ? 1 : 2));
  auto product = [&](int64_t nTile, ArrayRef<V> b) {
    for (int64_t mTile = 0; mTile < 2; ++mTile) {
      int64_t first = (mTile * nTiles + nTile) * 4;
      Vs d = mma(a.slice(4 * mTile, 4), b, ArrayRef(acc).slice(first, 4));
      llvm::copy(d, acc.begin() + first);
    }
  };
  if (!fp8) {
    for (int64_t n = 0; n < nTiles; n += 2) {
      Vs r = k.ldmatrix(at + n * 16, /*transposed=*/true);
      product(n, ArrayRef(r).take_front(2));
      product(n + 1, ArrayRef(r).drop_front(2));
    }
    return;
  }
  // A chunk of 16 values is two n-tiles: its even and its odd columns.
  for (int64_t n = 0; n < nTiles; n += 4) {
    Vs r = k.ldmatrix(at + n * 8, /*transposed=*/true);
    for (int64_t c = 0; c < 2 && n + 2 * c < nTiles; ++c) {
      V first = k.permuteBytes(r[2 * c], r[2 * c], 0x3120);
      V second = k.permuteBytes(r[2 * c + 1], r[2 * c + 1], 0x3120);
      product(n + 2 * c, {k.e4m3ToF16(first & 0xFFFF),
                          k.e4m3ToF16(second & 0xFFFF)});
      product(n + 2 * c + 1,
              {k.e4m3ToF16(first >> 16), k.e4m3ToF16(second >> 16)});
    }
  }
}

/// Probabilities of 8 pairs and 16 rows of a tile: this lane has pair g, rows 2t,
/// 2t + 1, 2t + 8 and 2t + 9. State: maximum, sum of this lane's.
Vs PrefillBuilder::softmax(V index, ArrayRef<V> state) {
  waitGroup(own + ScoresIn, index);
  Vs parts[8];
  for (int64_t i = 0; i < 8; ++i)
    parts[i] = k.loadFloats(partialFrom + i * 256, 2);
  V limit = k.loadI32(partialFrom + Limits);
  Vs x;
  for (int64_t nTile = 0; nTile < 2; ++nTile)
    for (int64_t i = 0; i < 2; ++i)
      x.push_back((parts[nTile][i] + parts[nTile + 2][i]) +
                  (parts[nTile + 4][i] + parts[nTile + 6][i]));
  V row = index * tileRows;
  for (int64_t i = 0; i < 4; ++i) {
    if (fp8)
      x[i] = x[i] * cacheScale;
    x[i] = k.select(limit > row + (i % 2 + i / 2 * 8), x[i],
                    k.f32(-INFINITY));
  }
  V largest = k.maximum(k.maximum(x[0], x[1]), k.maximum(x[2], x[3]));
  V rises = k.any(largest > state[0] + k.f32(6));
  Vs now = k.ifElse(
      rises, {k.f32Type(), k.f32Type()},
      [&] {
        // The lanes of a pair agree on a maximum.
        V all = k.maximum(largest, k.shuffleXor(largest, 1));
        all = k.maximum(all, k.shuffleXor(all, 2));
        V maximum = k.select(all > state[0] + k.f32(6), all, state[0]);
        V factor = k.exp2(state[0] - maximum);
        k.when(t == 0, [&] {
          k.store(own + (index & 1) * 128 + quarter * 32 + g * 4 + Factors,
                  factor);
        });
        return Vs{maximum, state[1] * factor};
      },
      [&] { return Vs(state); });
  V maximum = now[0], sum = now[1];
  for (V &v : x)
    v = k.exp2(v - maximum);
  V low = pack(x[0], x[1]), high = pack(x[2], x[3]);
  // The sum is of what the products see.
  for (V word : {low, high}) {
    auto [a, b] = spec.cache == Format::BF16 ? k.unpackBF16(word)
                                             : k.unpackF16(word);
    sum = sum + (a + b);
  }
  // a0 and a2, or a1 and a3, of an m-tile.
  k.store(weightsTo, low);
  k.store(weightsTo + 8, high);
  k.when(lane == 0, [&] {
    k.store(own + quarter * 4 + Flags, k.select(rises, k.i32(1), k.i32(0)));
  });
  arrive(own + WeightsIn);
  return {maximum, sum};
}

} // namespace mla::nvvm
