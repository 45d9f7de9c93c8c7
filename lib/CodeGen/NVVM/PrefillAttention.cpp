//===- PrefillAttention.cpp - latent attention of many tokens -------------===//
//
// Part of mla. A block takes 64 consecutive (token, head) pairs and walks over the
// rows of their sequence in tiles of 16, which serve as keys and as values. Four
// warps copy tiles. Two groups of 4 warps have 32 pairs each and share nothing but
// the tiles; so while one waits, the other has the tensor cores.
//
// In a group (m16n8k16, f32 accumulation, for 512 + 64 values a row):
//   scores   each warp a quarter of the contraction, 32 pairs x 16 rows: the queries
//            (32 x 144 a warp) stay in 72 registers; 36 products a tile. Partial
//            sums go through shared memory in the order of the fragments.
//   softmax  each warp 8 pairs: a lane 4 scores. The maximum moves only when it
//            rises by more than 6 (powers of 2), which is rare.
//   output   each warp a quarter of the latent values, 32 pairs x 128: 128
//            accumulators, 32 products a tile.
// Order: scores of tile i + 1, its partial sums on their way, output of tile i, softmax
// of tile i + 1. Barriers in shared memory say when partial sums and probabilities are
// there; there are products between arriving at one and waiting for it.
//
// The products leave no registers for copying: in the same warps it cost 20% of the
// time. So the copying warps give most of theirs up (setmaxnreg: 24 and 240 of the
// 168 that all start with), and copy each row, 16 bytes from the next, in one go. Warp
// and group are made known as uniform, or addresses take the last registers.
//
// Shared memory: 4 tiles of 16 rows (8 of less than 10,000 bytes) with 16 bytes between
// rows (no bank conflicts), 74,752 bytes in 16-bit formats, 75,776 in FP8; 21,056 of
// the two groups: partial scores, limits, probabilities, notes.
//
// A pair and row costs 2 * (576 + 512) flops; 64 pairs share the 1,152 bytes (FP8:
// 576) of a row. Bound by instructions and shared memory together: a tile takes about
// 1,450 clocks of an H200's SM; counted, its products at the rate of mma.sync are 880
// and its shared memory 1,050 (FP8: 700, but it converts every fragment). Reading
// queries and writing results, f32, 12 us a block, are not hidden, but for the L2 cache
// getting the queries of the block that comes next: one block has the SM.
//
// Rows from the end of a sequence on are copies of its last row with probability 0, so
// nothing unwritten is read.
//
//===----------------------------------------------------------------------===//
#include "AttentionPrefill.h"
#include "KernelSupport.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;

namespace mla::nvvm {

bool canPrefill(const AttentionSpec &spec) {
  int64_t width = spec.latent + spec.rope;
  return spec.latent > 0 && spec.latent % 64 == 0 && width % 64 == 0 &&
         spec.latent <= 512 && width <= 576;
}

namespace {

constexpr int64_t pairsOfBlock = 64, tileRows = 16, consumers = 256, producers = 128,
                  threads = consumers + producers;
static_assert(plan::pageTokens % tileRows == 0, "a tile is in one page");
struct Prefill {
  KernelBuilder &k;
  const AttentionSpec &spec;
  const Gpu &gpu;
  bool fp8;
  int64_t width, rowBytes, pitch, slotBytes;
  int64_t slots;
  int64_t steps;   ///< of 16 values of the contraction, a warp
  int64_t nTiles;  ///< of 8 latent values, a warp
  Ptr tiles, full, empty;
  Ptr begins; ///< [slot][2]: of the run that a tile begins, rows and next token
  Ptr own; ///< what the group has, at the offsets below
  /// Of `own`: for each reader, partial scores [source][n-tile][lane][2], limits
  /// [lane][2] (one used); probabilities [m-tile][lane][4], factors [tile's
  /// parity][pair], flags [warp], the next run's token [warp], the barriers of
  /// partial scores and of probabilities.
  enum Own : int64_t {
    Limits = 2048,
    ReaderBytes = Limits + 256,
    Weights = 4 * ReaderBytes,
    Factors = Weights + 1024,
    Flags = Factors + 256,
    Next = Flags + 16,
    ScoresIn = Next + 16,
    WeightsIn = ScoresIn + 8,
    OwnBytes = WeightsIn + 8
  };
  Ptr partialTo, partialFrom, weightsTo, weightsFrom; ///< of this lane
  V lane, warp, group, quarter, g, t;
  V tokens, firstPair, pageColumns, cacheScale;
  Ptr keys, values; ///< of this lane in the first tile, for ldmatrix
  Vs query;          ///< [m-tile][step][4]

  Prefill(KernelBuilder &k, const AttentionSpec &spec, const Gpu &gpu)
      : k(k), spec(spec), gpu(gpu), fp8(spec.cache == Format::FP8E4M3),
        width(spec.latent + spec.rope) {
    rowBytes = width * (fp8 ? 1 : 2);
    pitch = rowBytes + 16;
    slotBytes = tileRows * pitch;
    slots = slotBytes > 10000 ? 4 : 8;
    steps = width / 64;
    nTiles = spec.latent / 32;
  }
  void build();

private:
  /// A run of tokens of one sequence in the block.
  struct Run {
    V pages; ///< index of the sequence's first page in the page table
    V next;  ///< the token behind the run
    V rows;  ///< most rows that one of its tokens attends to
    V tiles() const { return rows.k->ceilDiv(rows, tileRows); }
  };
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
  Run runAt(V first);
  void produce();
  void consume();
  void copy(const Run &run, V tile, V index, V page);
  /// What a lane gives ldmatrix: its place `of` in a tile, plus the warp's part. The
  /// sum is hidden from LLVM, which would take a register for each of its parts.
  Ptr tileAt(V index, Ptr of, int64_t bytesOfQuarter) {
    V offset = index % slots * slotBytes + quarter * bytesOfQuarter;
    return of + k.inlinePTX("mov.b32 $0, $1;", "=r,r", k.i32Type(),
                            {offset.value}, /*sideEffects=*/false);
  }
  void scores(V index, Vs &s);
  void storePartial(ArrayRef<V> s);
  Vs rescale(V index, ArrayRef<V> flag, ArrayRef<V> acc);
  Vs loadWeights();
  void output(V index, ArrayRef<V> a, Vs &acc);
  Vs softmax(V index, ArrayRef<V> state);
  void waitFull(V index) {
    k.mbarrierWait(full + index % slots * 8, index / slots & 1);
  }
  void waitGroup(Ptr barrier, V index) {
    k.mbarrierWait(barrier, index & 1);
  }
  void noteRun(V first, V begin);
  std::pair<Vs, V> runBody(V first, V begin, ArrayRef<V> state);
  void store(ArrayRef<V> state);
  Vs mma(ArrayRef<V> a, ArrayRef<V> b, ArrayRef<V> c) {
    return spec.cache == Format::BF16 ? k.mmaBF16(a, b, c) : k.mmaF16(a, b, c);
  }
  V pack(V low, V high) {
    return spec.cache == Format::BF16 ? k.packBF16(low, high)
                                      : k.packF16(low, high);
  }
  void setMaxRegisters(int64_t count, NVVM::SetMaxRegisterAction action) {
    NVVM::SetMaxRegisterOp::create(k.b, uint32_t(count), action);
  }
  void arrive(Ptr barrier) {
    k.syncWarp();
    k.when(lane == 0, [&] { k.mbarrierArrive(barrier); });
  }
};

void Prefill::setUp() {
  tiles = k.shared(slots * slotBytes, 128);
  own = k.shared(2 * OwnBytes, 128);
  full = k.shared(slots * 8, 8);
  empty = k.shared(slots * 8, 8);
  begins = k.shared(slots * 8, 8);
  k.when(k.thread() == 0, [&] {
    for (int64_t i = 0; i < slots; ++i) {
      k.mbarrierInit(full + 8 * i, producers / 32);
      k.mbarrierInit(empty + 8 * i, consumers / 32);
    }
    for (int64_t i = 0; i < 2; ++i) {
      k.mbarrierInit(own + (i * OwnBytes + ScoresIn), 4);
      k.mbarrierInit(own + (i * OwnBytes + WeightsIn), 4);
    }
    k.mbarrierInitFence();
  });
  k.barrier();
  lane = k.lane(), warp = k.shuffle(k.warp(), k.i32(0)); // uniform for ptxas
  group = warp >> 2, quarter = warp & 3;
  g = lane >> 2, t = lane & 3;
  own = own + group * OwnBytes;
  partialTo = own + quarter * 512 + lane * 8;
  partialFrom = own + quarter * ReaderBytes + lane * 8;
  weightsTo =
      own + (quarter >> 1) * 512 + (quarter & 1) * 4 + lane * 16 + Weights;
  weightsFrom = own + lane * 16 + Weights;
  firstPair = pairOfBlock();
  V matrix = lane >> 3, row8 = lane & 7;
  if (fp8) {
    // Matrices: rows 0-7, rows 8-15 of a 16-byte chunk; then of the next chunk.
    V row = row8 + (matrix & 1) * 8;
    keys = values = tiles + (row * pitch + (matrix >> 1) * 16);
  } else {
    // Keys: both halves of k for rows 0-7, then 8-15. Values: both halves of the
    // rows for 8 columns, then for the next 8.
    keys = tiles + ((row8 + (matrix >> 1) * 8) * pitch + (matrix & 1) * 16);
    values = tiles + ((row8 + (matrix & 1) * 8) * pitch + (matrix >> 1) * 16);
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

/// The run from token `first` on.
Prefill::Run Prefill::runAt(V first) {
  Ptr positions = k.buffer(1), sequence = k.buffer(2);
  V of = k.loadI32(sequence + first * 4);
  V last = lastToken();
  V next = k.loopWhile(
      {first + 1},
      [&](ArrayRef<V> at) {
        V same = k.loadI32(sequence + k.minimum(at[0], last) * 4) == of;
        return (last >= at[0]) & same;
      },
      [&](ArrayRef<V> at) { return Vs{at[0] + 1}; })[0];
  return {of * pageColumns, next, k.loadI32(positions + (next - 1) * 4) + 1};
}

/// Copies this warp's 4 rows of a tile, when its slot is empty. Behind the last row
/// that one comes again: its scores are masked, and its values are finite.
void Prefill::copy(const Run &run, V tile, V index, V page) {
  V slot = index % slots;
  k.mbarrierWait(empty + slot * 8, (index / slots & 1) ^ 1);
  Ptr barrier = full + slot * 8;
  k.when((tile == 0) & (quarter == 0) & (lane == 0), [&] {
    k.storeWords(begins + slot * 8, {run.rows, run.next});
  });
  k.when(lane == 0,
         [&] { k.mbarrierExpect(barrier, k.i32(4 * rowBytes)); });
  k.syncWarp();
  V line = quarter * 4 + lane;
  k.when(lane < 4, [&] {
    V row = k.minimum(tile * tileRows + line, run.rows - 1);
    V at = page * plan::pageTokens + row % plan::pageTokens;
    k.bulkCopy(tiles + slot * slotBytes + line * pitch,
               k.buffer(4) + k.to64(at) * rowBytes, k.i32(rowBytes), barrier);
  });
}

void Prefill::produce() {
  k.loopWhile(
      {firstPair / spec.heads, k.i32(0)},
      [&](ArrayRef<V> now) { return lastToken() >= now[0]; },
      [&](ArrayRef<V> now) {
        Run run = runAt(now[0]);
        V tiles = run.tiles();
        // The page of a tile is looked up one ahead.
        auto pageOf = [&](V tile) {
          V row = k.minimum(tile * tileRows, run.rows - 1);
          return k.loadI32(k.buffer(3) +
                           k.to64(run.pages + row / plan::pageTokens) * 4);
        };
        k.loop(k.i32(0), tiles, 1, {pageOf(k.i32(0))},
               [&](V tile, ArrayRef<V> page) {
                 V next = pageOf(tile + 1);
                 copy(run, tile, now[1] + tile, page[0]);
                 return Vs{next};
               });
        return Vs{run.next, now[1] + tiles};
      });
  // The queries of the block that will have this SM next.
  V ahead = pairOfBlock() - gpu.multiprocessors * pairsOfBlock;
  k.when((k.thread() == consumers) & (ahead >= 0), [&] {
    k.bulkPrefetchL2(k.buffer(0) + k.to64(ahead) * (width * 4),
                     k.i32(pairsOfBlock * width * 4));
  });
}

/// s += this warp's part of the scores of tile `index`: [m-tile][n-tile][4].
void Prefill::scores(V index, Vs &s) {
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
void Prefill::storePartial(ArrayRef<V> s) {
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
Vs Prefill::rescale(V index, ArrayRef<V> flag, ArrayRef<V> acc) {
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
Vs Prefill::loadWeights() {
  Vs a;
  for (int64_t mTile = 0; mTile < 2; ++mTile)
    a.append(k.loadWords(weightsFrom + mTile * 512, 4));
  return a;
}

/// acc += probabilities `a` * values of tile `index`.
void Prefill::output(V index, ArrayRef<V> a, Vs &acc) {
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
Vs Prefill::softmax(V index, ArrayRef<V> state) {
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

/// Notes the limits of a run and the token behind it, while its first tile is there.
void Prefill::noteRun(V first, V begin) {
  V next = k.loadI32(begins + (begin % slots * 8 + 4));
  // Pair 8 * warp + lane / 4 of the block is this lane's in the softmax.
  V id = readAnew(k, "tid");
  V token = (pairOfBlock() + (id >> 2)) / spec.heads;
  V mine = (token >= first) & (token < next);
  V limit = k.loadI32(k.buffer(1) + k.minimum(token, tokens - 1) * 4) + 1 +
            begin * tileRows - (id & 3) * 2;
  k.store(partialFrom + Limits, k.select(mine, limit, k.i32(0)));
  k.store(own + quarter * 4 + Next, next);
}

/// All tiles of the run of token `first`; the first has the number `begin`. State:
/// maximum, sum, accumulators. Also returns the number behind the tiles.
std::pair<Vs, V> Prefill::runBody(V first, V begin, ArrayRef<V> state) {
  Vs s(16, k.f32(0));
  waitFull(begin);
  scores(begin, s);
  storePartial(s);
  noteRun(first, begin);
  Vs init = softmax(begin, state.take_front(2));
  init.append(state.begin() + 2, state.end());
  V end = begin + k.ceilDiv(k.loadI32(begins + begin % slots * 8), tileRows);
  Vs out = k.loop(
      begin, end - 1, 1, init, [&](V index, ArrayRef<V> now) {
        waitFull(index + 1);
        Vs s(16, k.f32(0));
        scores(index + 1, s);
        // Behind this wait the group has read the partial scores before.
        waitGroup(own + WeightsIn, index);
        Vs a = loadWeights(), flag = k.loadWords(own + Flags, 4);
        storePartial(s);
        Vs acc = rescale(index, flag, now.drop_front(2));
        output(index, a, acc);
        arrive(empty + index % slots * 8);
        Vs out = softmax(index + 1, now.take_front(2));
        out.append(acc);
        return out;
      });
  V index = end - 1;
  waitGroup(own + WeightsIn, index);
  Vs a = loadWeights(), flag = k.loadWords(own + Flags, 4);
  Vs acc = rescale(index, flag, ArrayRef(out).drop_front(2));
  output(index, a, acc);
  arrive(empty + index % slots * 8);
  llvm::copy(acc, out.begin() + 2);
  return {out, end};
}

void Prefill::store(ArrayRef<V> state) {
  V sum = state[1];
  sum = sum + k.shuffleXor(sum, 1);
  sum = sum + k.shuffleXor(sum, 2);
  k.barrier(k.i32(1), consumers); // factors of the last tiles have been read
  k.when(t == 0, [&] {
    k.store(own + quarter * 32 + g * 4 + Factors, k.reciprocal(sum));
  });
  k.barrier(k.i32(1), consumers);
  ArrayRef<V> acc = state.drop_front(2);
  V pairs = tokens * spec.heads;
  V id = readAnew(k, "tid");
  V firstRow = pairOfBlock() + (id >> 7) * 32 + (id >> 2 & 7);
  for (int64_t mTile = 0; mTile < 2; ++mTile)
    for (int64_t half = 0; half < 2; ++half) {
      int64_t row = 16 * mTile + 8 * half;
      V pair = firstRow + row;
      V factor = k.loadF32(own + g * 4 + (Factors + row * 4));
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

void Prefill::consume() {
  loadQuery();
  // State: the first token of the next run, tiles so far, maximum, sum,
  // accumulators.
  Vs state{firstPair / spec.heads, k.i32(0), k.f32(-1e30), k.f32(0)};
  state.append(accCount(), k.f32(0));
  Vs end = k.loopWhile(
      state, [&](ArrayRef<V> now) { return lastToken() >= now[0]; },
      [&](ArrayRef<V> now) {
        auto [state, end] = runBody(now[0], now[1], now.drop_front(2));
        Vs out{k.loadI32(own + quarter * 4 + Next), end};
        out.append(state);
        return out;
      });
  store(ArrayRef(end).drop_front(2));
}

void Prefill::build() {
  setUp();
  pageColumns = k.scalar32(0);
  if (fp8)
    cacheScale = k.scalarF32(1);
  tokens = k.scalar32(fp8 ? 2 : 1);
  k.gridWait();
  k.gridTrigger();
  k.ifElse(
      warp >= consumers / 32,
      [&] {
        setMaxRegisters(24, NVVM::SetMaxRegisterAction::decrease);
        produce();
      },
      [&] {
        setMaxRegisters(240, NVVM::SetMaxRegisterAction::increase);
        consume();
      });
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
  Prefill(k, spec, site.gpu).build();
  k.finish();
  return out;
}

} // namespace mla::nvvm
