//===- PrefillAttention.cpp - latent attention of many tokens -------------===//
//
// Part of mla. A block takes 64 consecutive (token, head) pairs and walks over the
// rows of their sequence in tiles of 16, which serve as keys and as values. Two
// groups of 4 warps have 32 pairs each and share nothing but the tiles; so while one
// waits, the other has the tensor cores.
//
// In a group (m16n8k16, f32 accumulation, for 512 + 64 values a row):
//   scores   each warp a quarter of the contraction, 32 pairs x 16 rows: the queries
//            (32 x 144 a warp) stay in 72 registers; 36 products a tile. Partial
//            sums go through shared memory in the order of the fragments.
//   softmax  each warp 8 pairs: a lane 4 scores. The maximum moves only when it
//            rises by more than 6 (powers of 2), which is rare.
//   output   each warp a quarter of the latent values, 32 pairs x 128: 128
//            accumulators, 32 products a tile.
// Order: products of tile i (output) and i + 1 (scores) interleaved, softmax of tile
// i + 1. The group's barriers stand before and behind the softmax. One block an SM.
// (Taking turns, one group at its products and the other at its softmax, is 8%
// slower: one warp a scheduler does not fill the tensor cores.)
//
// Shared memory: 4 tiles of 16 rows with 16 bytes between rows (no bank conflicts;
// a warp copies 2 rows of a tile), 74,752 bytes in 16-bit formats, 37,888 in FP8;
// 16,384 of partial scores, 2,048 of probabilities, 4,096 of notes.
// (3 tiles, with a part of the queries in shared memory instead, are 5% slower: the
// groups then hold each other up.)
//
// A pair and row costs 2 * (576 + 512) flops; 64 pairs share the 1,152 bytes (FP8:
// 576) of a row. Bound by the tensor cores' instructions and by waiting: on an H200
// the same instructions run 1.6 times as fast in linearLarge(), which has no barriers
// in its loop.
//
// Rows from the end of a sequence on are zeros with probability 0, so nothing
// unwritten is read.
//
//===----------------------------------------------------------------------===//
#include "AttentionPrefill.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

bool canPrefill(const AttentionSpec &spec) {
  int64_t width = spec.latent + spec.rope;
  return spec.latent > 0 && spec.latent % 64 == 0 && width % 64 == 0 &&
         spec.latent <= 512 && width <= 576;
}

namespace {

constexpr int64_t pairsOfBlock = 64, tileRows = 16, slots = 4, threads = 256,
                  tilesAhead = 2;

struct Prefill {
  KernelBuilder &k;
  const AttentionSpec &spec;
  bool fp8;
  int64_t width, rowBytes, pitch, slotBytes;
  int64_t steps;   ///< of 16 values of the contraction, a warp
  int64_t nTiles;  ///< of 8 latent values, a warp
  Ptr tiles, partial, weights, factors, flags, full, empty, notes;
  V lane, warp, group, quarter, g, t;
  V tokens, firstPair, pageColumns, cacheScale;
  V keyOffset, valueOffset; ///< of this lane in a tile, for ldmatrix
  Vs query;                 ///< [m-tile][step][4]

  Prefill(KernelBuilder &k, const AttentionSpec &spec)
      : k(k), spec(spec), fp8(spec.cache == Format::FP8E4M3),
        width(spec.latent + spec.rope) {
    rowBytes = width * (fp8 ? 1 : 2);
    pitch = rowBytes + 16;
    slotBytes = tileRows * pitch;
    steps = width / 64;
    nTiles = spec.latent / 32;
  }
  void build();

private:
  /// A run of tokens of one sequence. What is seldom needed of it stands in shared
  /// memory, a thread's own 16 bytes, as registers are short.
  struct Run {
    V base; ///< tiles before this run
    V tiles;
  };
  enum Note {
    Pages, ///< index of the sequence's first page in the page table
    Rows,  ///< most rows that a token of the run attends to
    Limit, ///< rows of this lane's pair in the softmax; 0: not in the run
    Next   ///< the token behind the run
  };
  V note(Note which) { return k.loadI32(notes + which * 4); }
  int64_t accCount() const { return 2 * nTiles * 4; }

  /// The block's first pair. Later tokens have more rows, so they come first.
  V pairOfBlock() {
    return (k.blocks() - 1 - readAnew(k, "ctaid")) * pairsOfBlock;
  }
  V lastToken() {
    return k.minimum((pairOfBlock() + (pairsOfBlock - 1)) / spec.heads,
                     tokens - 1);
  }

  void setUp();
  void loadQuery();
  V pageOf(V tile);
  void issue(const Run &run, V tile, V page);
  Ptr tileAt(V index) { return tiles + index % slots * slotBytes; }
  void scores(V index, Vs &s, int64_t from, int64_t to);
  void storePartial(ArrayRef<V> s);
  Vs rescale(ArrayRef<V> acc);
  Vs loadWeights();
  void output(V index, ArrayRef<V> a, Vs &acc, int64_t from, int64_t to);
  Vs softmax(V tile, ArrayRef<V> state);
  void waitFull(V index) {
    k.mbarrierWait(full + index % slots * 8, index / slots & 1);
  }
  void groupBarrier() { k.barrier(group + 1, 128); }
  Vs runBody(const Run &run, ArrayRef<V> state);
  void store(ArrayRef<V> state);
  Vs mma(ArrayRef<V> a, ArrayRef<V> b, ArrayRef<V> c) {
    return spec.cache == Format::BF16 ? k.mmaBF16(a, b, c) : k.mmaF16(a, b, c);
  }
  V pack(V low, V high) {
    return spec.cache == Format::BF16 ? k.packBF16(low, high)
                                      : k.packF16(low, high);
  }
  void arrive(Ptr barrier) {
    k.syncWarp();
    k.when(lane == 0, [&] { k.mbarrierArrive(barrier); });
  }
};

void Prefill::setUp() {
  tiles = k.shared(slots * slotBytes, 128);
  partial = k.shared(2 * 4 * 4 * 512, 128); // [group][reader][source][n-tile]
  weights = k.shared(2 * 1024, 128);        // [group][m-tile][lane]
  factors = k.shared(2 * 32 * 4, 128);      // [group][pair]
  flags = k.shared(2 * 16, 16);             // [group][warp]
  notes = k.shared(threads * 16, 16) + k.thread() * 16;
  full = k.shared(slots * 8, 8);
  empty = k.shared(slots * 8, 8);
  k.when(k.thread() == 0, [&] {
    for (int64_t i = 0; i < slots; ++i) {
      k.mbarrierInit(full + 8 * i, threads);
      k.mbarrierInit(empty + 8 * i, threads / 32);
    }
    k.mbarrierInitFence();
  });
  k.barrier();
  lane = k.lane(), warp = k.warp();
  group = warp >> 2, quarter = warp & 3;
  g = lane >> 2, t = lane & 3;
  partial = partial + group * 8192;
  weights = weights + group * 1024;
  factors = factors + group * 128;
  flags = flags + group * 16;
  firstPair = pairOfBlock();
  V matrix = lane >> 3, row8 = lane & 7;
  if (fp8) {
    // Matrices: rows 0-7, rows 8-15 of a 16-byte chunk; then of the next chunk.
    V row = row8 + (matrix & 1) * 8;
    keyOffset = row * pitch + (quarter * steps + (matrix >> 1)) * 16;
    valueOffset =
        row * pitch + (quarter * (spec.latent / 64) + (matrix >> 1)) * 16;
  } else {
    // Keys: both halves of k for rows 0-7, then 8-15. Values: both halves of the
    // rows for 8 columns, then for the next 8.
    keyOffset = (row8 + (matrix >> 1) * 8) * pitch +
                (quarter * (2 * steps) + (matrix & 1)) * 16;
    valueOffset = (row8 + (matrix & 1) * 8) * pitch +
                  (quarter * nTiles + (matrix >> 1)) * 16;
  }
}

/// Queries as A fragments, times scale * log2(e). FP8: the contraction is permuted
/// within 16 values, as pairs of bytes come out of the tiles.
void Prefill::loadQuery() {
  V last = tokens * spec.heads - 1;
  V factor = k.f32(spec.scale * 1.4426950408889634);
  for (int64_t mTile = 0; mTile < 2; ++mTile) {
    Ptr rows[2];
    for (int64_t half = 0; half < 2; ++half) {
      V pair = firstPair + group * 32 + g + (16 * mTile + 8 * half);
      rows[half] = k.buffer(0) +
                   k.to64(k.minimum(pair, last)) * (width * 4) +
                   (quarter * (steps * 64) + t * (fp8 ? 16 : 8));
    }
    for (int64_t step = 0; step < steps; ++step) {
      Vs low, high;
      for (int64_t half = 0; half < 2; ++half) {
        Ptr p = rows[half] + step * 64;
        Vs v = fp8 ? k.loadFloats(p, 4) : k.loadFloats(p, 2);
        if (!fp8)
          v.append(k.loadFloats(p + 32, 2));
        low.push_back(pack(v[0] * factor, v[1] * factor));
        high.push_back(pack(v[2] * factor, v[3] * factor));
      }
      query.append({low[0], low[1], high[0], high[1]});
    }
  }
}

/// The page of a tile, or of the last one.
V Prefill::pageOf(V tile) {
  V row = k.minimum(tile * tileRows, note(Rows) - 1);
  return k.loadI32(k.buffer(3) +
                   k.to64(note(Pages) + row / plan::pageTokens) * 4);
}

/// Starts the copy of this warp's 2 rows of a tile, when its slot is empty.
void Prefill::issue(const Run &run, V tile, V page) {
  V index = run.base + tile;
  V slot = index % slots;
  k.mbarrierWait(empty + slot * 8, (index / slots & 1) ^ 1);
  V row = tile * tileRows + warp * 2; // rows lie one behind the other in a page
  V at = page * plan::pageTokens + row % plan::pageTokens;
  Ptr from = k.buffer(4) + k.to64(at) * rowBytes + lane * 16;
  Ptr to = tiles + slot * slotBytes + warp * (2 * pitch) + lane * 16;
  V left = (note(Rows) - row) * (rowBytes / 16); // chunks that exist
  for (int64_t i = 0; i < 2 * rowBytes / 16; i += 32) {
    V chunk = lane + i;
    auto copy = [&] {
      V gap = i + 31 < rowBytes / 16 ? k.i32(0)
              : i >= rowBytes / 16
                  ? k.i32(16)
                  : k.select(chunk >= rowBytes / 16, k.i32(16), k.i32(0));
      k.cpAsync16(to + gap + i * 16, from + i * 16,
                  k.select(chunk < left, k.i32(16), k.i32(0)));
    };
    if (i + 32 <= 2 * rowBytes / 16)
      copy();
    else
      k.when(chunk < 2 * rowBytes / 16, copy);
  }
  k.cpAsyncArrive(full + slot * 8);
}

/// s += this warp's part of the scores of tile `index`, steps [from, to) of the
/// contraction: [m-tile][n-tile][4].
void Prefill::scores(V index, Vs &s, int64_t from, int64_t to) {
  Ptr at = tileAt(index) + keyOffset;
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
    for (int64_t i = from; i < to; ++i)
      step(i, k.ldmatrix(at + i * 32));
    return;
  }
  for (int64_t i = from; i < to; i += 2) {
    // The last chunk's neighbour is read, if not used: it is within the pitch.
    Vs r = k.ldmatrix(at + i * 16);
    for (int64_t j = 0; j < 2 && i + j < to; ++j) {
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
void Prefill::storePartial(ArrayRef<V> s) {
  // Two words at a time, as the products leave them in registers.
  Ptr at = partial + quarter * 512 + lane * 8;
  for (int64_t r = 0; r < 4; ++r)
    for (int64_t nTile = 0; nTile < 2; ++nTile) {
      int64_t first = r / 2 * 8 + nTile * 4 + r % 2 * 2;
      k.storeWords(at + (r * 2048 + nTile * 256), {s[first], s[first + 1]});
    }
  groupBarrier();
}

/// acc times the factors that the softmax has left, if a warp of the group has any:
/// those of the other warps are not stored.
Vs Prefill::rescale(ArrayRef<V> acc) {
  Vs flag = k.loadWords(flags, 4);
  SmallVector<Type> types(accCount(), k.f32Type());
  return k.ifElse(
      !((flag[0] | flag[1] | flag[2] | flag[3]) == 0), types,
      [&] {
        Vs out;
        for (int64_t mTile = 0; mTile < 2; ++mTile) {
          V f[2];
          for (int64_t half = 0; half < 2; ++half) {
            V stored =
                k.loadF32(factors + g * 4 + (mTile * 64 + half * 32));
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
Vs Prefill::loadWeights() {
  Vs a;
  for (int64_t mTile = 0; mTile < 2; ++mTile)
    a.append(k.loadWords(weights + mTile * 512 + lane * 16, 4));
  return a;
}

/// acc += probabilities `a` * values of tile `index`, n-tiles [from, to).
void Prefill::output(V index, ArrayRef<V> a, Vs &acc, int64_t from,
                     int64_t to) {
  Ptr at = tileAt(index) + valueOffset;
  auto product = [&](int64_t nTile, ArrayRef<V> b) {
    for (int64_t mTile = 0; mTile < 2; ++mTile) {
      int64_t first = (mTile * nTiles + nTile) * 4;
      Vs d = mma(a.slice(4 * mTile, 4), b, ArrayRef(acc).slice(first, 4));
      llvm::copy(d, acc.begin() + first);
    }
  };
  if (!fp8) {
    for (int64_t n = from; n < to; n += 2) {
      Vs r = k.ldmatrix(at + n * 16, /*transposed=*/true);
      product(n, ArrayRef(r).take_front(2));
      product(n + 1, ArrayRef(r).drop_front(2));
    }
    return;
  }
  // A chunk of 16 values is two n-tiles: its even and its odd columns.
  for (int64_t n = from; n < to; n += 4) {
    Vs r = k.ldmatrix(at + n * 8, /*transposed=*/true);
    for (int64_t c = 0; c < 2 && n + 2 * c < to; ++c) {
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
Vs Prefill::softmax(V tile, ArrayRef<V> state) {
  Ptr from = partial + quarter * 2048 + lane * 8;
  Vs parts[8];
  for (int64_t i = 0; i < 8; ++i)
    parts[i] = k.loadFloats(from + i * 256, 2);
  V limit = note(Limit);
  Vs x;
  for (int64_t nTile = 0; nTile < 2; ++nTile)
    for (int64_t i = 0; i < 2; ++i)
      x.push_back((parts[nTile][i] + parts[nTile + 2][i]) +
                  (parts[nTile + 4][i] + parts[nTile + 6][i]));
  V row = tile * tileRows + t * 2;
  for (int64_t i = 0; i < 4; ++i) {
    if (fp8)
      x[i] = x[i] * cacheScale;
    x[i] = k.select(row + (i % 2 + i / 2 * 8) < limit, x[i],
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
          k.store(factors + quarter * 32 + g * 4, factor);
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
  Ptr at =
      weights + (quarter >> 1) * 512 + lane * 16 + (quarter & 1) * 4;
  k.store(at, low);
  k.store(at + 8, high);
  k.when(lane == 0, [&] {
    k.store(flags + quarter * 4, k.select(rises, k.i32(1), k.i32(0)));
  });
  groupBarrier();
  return {maximum, sum};
}

/// All tiles of a run. State: maximum, sum, accumulators.
Vs Prefill::runBody(const Run &run, ArrayRef<V> state) {
  for (int64_t tile = 0; tile < tilesAhead; ++tile)
    k.when(run.tiles > tile, [&] {
      issue(run, k.i32(tile), pageOf(k.i32(tile)));
    });
  Vs first(16, k.f32(0));
  waitFull(run.base);
  scores(run.base, first, 0, steps);
  storePartial(first);
  Vs begin = softmax(k.i32(0), state.take_front(2));
  begin.append(state.begin() + 2, state.end());
  // The page of the next tile to be copied is looked up a tile ahead.
  begin.push_back(pageOf(k.i32(tilesAhead)));
  Vs end = k.loop(
      k.i32(0), run.tiles - 1, 1, begin, [&](V tile, ArrayRef<V> now) {
        V next = tile + tilesAhead;
        k.when(next < run.tiles, [&] { issue(run, next, now.back()); });
        V page = pageOf(next + 1);
        V index = run.base + tile;
        Vs acc = rescale(now.drop_front(2).drop_back());
        waitFull(index + 1);
        Vs a = loadWeights(), s(16, k.f32(0));
        int64_t someSteps = fp8 ? 2 : 1, someTiles = 2 * someSteps;
        for (int64_t i = 0; i * someSteps < steps || i * someTiles < nTiles;
             ++i) {
          scores(index + 1, s, std::min(i * someSteps, steps),
                 std::min((i + 1) * someSteps, steps));
          output(index, a, acc, std::min(i * someTiles, nTiles),
                 std::min((i + 1) * someTiles, nTiles));
        }
        arrive(empty + index % slots * 8);
        storePartial(s);
        Vs out = softmax(tile + 1, now.take_front(2));
        out.append(acc);
        out.push_back(page);
        return out;
      });
  V index = run.base + run.tiles - 1;
  Vs out(end.begin(), end.begin() + 2);
  Vs acc = rescale(ArrayRef(end).drop_front(2).drop_back());
  output(index, loadWeights(), acc, 0, nTiles);
  arrive(empty + index % slots * 8);
  out.append(acc);
  return out;
}

void Prefill::store(ArrayRef<V> state) {
  V sum = state[1];
  sum = sum + k.shuffleXor(sum, 1);
  sum = sum + k.shuffleXor(sum, 2);
  k.barrier(); // factors of the last tiles have been read
  k.when(t == 0, [&] {
    k.store(factors + quarter * 32 + g * 4, k.divide(k.f32(1), sum));
  });
  k.barrier();
  ArrayRef<V> acc = state.drop_front(2);
  V pairs = tokens * spec.heads;
  V id = readAnew(k, "tid");
  V firstRow = pairOfBlock() + (id >> 7) * 32 + (id >> 2 & 7);
  for (int64_t mTile = 0; mTile < 2; ++mTile)
    for (int64_t half = 0; half < 2; ++half) {
      int64_t row = 16 * mTile + 8 * half;
      V pair = firstRow + row;
      V factor = k.loadF32(factors + g * 4 + row * 4);
      if (fp8)
        factor = factor * cacheScale;
      auto value = [&](int64_t nTile, int64_t i) {
        return acc[(mTile * nTiles + nTile) * 4 + 2 * half + i] * factor;
      };
      k.when(pair < pairs, [&] {
        Ptr y = k.buffer(7) + k.to64(pair) * (spec.latent * 4) +
                quarter * (spec.latent);
        if (fp8)
          for (int64_t n = 0; n < nTiles; n += 2)
            k.storeWords(y + (n * 32) + t * 16,
                         {value(n, 0), value(n + 1, 0), value(n, 1),
                          value(n + 1, 1)});
        else
          for (int64_t n = 0; n < nTiles; ++n)
            k.storeWords(y + (n * 32) + t * 8, {value(n, 0), value(n, 1)});
      });
    }
}

void Prefill::build() {
  setUp();
  pageColumns = k.scalar32(0);
  if (fp8)
    cacheScale = k.scalarF32(1);
  tokens = k.scalar32(fp8 ? 2 : 1);
  k.gridWait();
  k.gridTrigger();
  loadQuery();
  Ptr positions = k.buffer(1), sequence = k.buffer(2);
  V firstToken = firstPair / spec.heads;

  // State: the first token of the next run, tiles so far, maximum, sum,
  // accumulators.
  Vs state{firstToken, k.i32(0), k.f32(-1e30), k.f32(0)};
  state.append(accCount(), k.f32(0));
  Vs end = k.loopWhile(
      state, [&](ArrayRef<V> now) { return lastToken() >= now[0]; },
      [&](ArrayRef<V> now) {
        V of = k.loadI32(sequence + now[0] * 4);
        V last = lastToken();
        V next = k.loopWhile(
            {now[0] + 1},
            [&](ArrayRef<V> at) {
              V same = k.loadI32(sequence + k.minimum(at[0], last) * 4) ==
                       of;
              return (last >= at[0]) & same;
            },
            [&](ArrayRef<V> at) { return Vs{at[0] + 1}; })[0];
        V rows = k.loadI32(positions + (next - 1) * 4) + 1;
        // Pair 8 * warp + lane / 4 of the block is this lane's in the softmax.
        V myToken = (pairOfBlock() + (readAnew(k, "tid") >> 2)) / spec.heads;
        V mine = (myToken >= now[0]) & (myToken < next);
        V limit = k.ifElse(
            mine, {k.i32Type()},
            [&] { return Vs{k.loadI32(positions + myToken * 4) + 1}; },
            [&] { return Vs{k.i32(0)}; })[0];
        k.storeWords(notes, {of * pageColumns, rows, limit, next});
        Run run{now[1], k.ceilDiv(rows, tileRows)};
        Vs out{k.i32(0), run.base + run.tiles};
        out.append(runBody(run, now.drop_front(2)));
        out[0] = note(Next);
        return out;
      });
  store(ArrayRef(end).drop_front(2));
}

} // namespace

AttentionKernels latentAttentionPrefill(KernelSite site,
                                        const AttentionSpec &spec) {
  std::string name =
      kernelName("latent_attention_prefill", formatName(spec.cache), spec.heads,
                 spec.latent, spec.rope, nameOf(spec.scale));
  AttentionKernels out;
  out.first = {name, "ceildiv(tokens * " + std::to_string(spec.heads) + ", " +
                         std::to_string(pairsOfBlock) + ")"};
  out.partialRows = out.lseRows = "1";
  if (exists(site, name))
    return out;
  KernelBuilder k(site.kernels, site.loc, name,
                  {"read", "read", "read", "read", "read", "write",
                   "write", "write"},
                  spec.cache == Format::FP8E4M3 ? 3 : 2, {threads});
  Prefill(k, spec).build();
  k.finish();
  return out;
}

} // namespace mla::nvvm
