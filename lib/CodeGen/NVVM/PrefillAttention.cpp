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
// Of tokens that are spread over ranks a rank may have none that a token sees. A run
// begins with a token that sees some and goes on over those that see none, whoever's
// they are: their limit masks all rows, as that of tokens of other runs does. A block
// whose tokens all see none has no run.
//
//===----------------------------------------------------------------------===//
#include "AttentionPrefill.h"
#include "PrefillBuilder.h"

using namespace mlir;

namespace mla::nvvm {

bool canPrefill(const AttentionSpec &spec) {
  int64_t width = spec.latent + spec.rope;
  return spec.latent > 0 && spec.latent % 64 == 0 && width % 64 == 0 &&
         spec.latent <= 512 && width <= 576;
}

void PrefillBuilder::setUp() {
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
void PrefillBuilder::loadQuery() {
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

V PrefillBuilder::firstToken() {
  V first = firstPair / spec.heads;
  if (!spread)
    return first;
  V last = lastToken();
  return k.loopWhile(
      {first},
      [&](ArrayRef<V> at) {
        return (last >= at[0]) & (positions.read(k.minimum(at[0], last)) < 0);
      },
      [&](ArrayRef<V> at) { return Vs{at[0] + 1}; })[0];
}

/// The run from token `first` on.
PrefillBuilder::Run PrefillBuilder::runAt(V first) {
  Ptr sequence = k.buffer(2);
  V of = k.loadI32(sequence + first * 4);
  V last = lastToken();
  if (spread) {
    Vs end = k.loopWhile(
        {first + 1, positions.read(first) + 1},
        [&](ArrayRef<V> at) {
          V token = k.minimum(at[0], last);
          V same = k.loadI32(sequence + token * 4) == of;
          return (last >= at[0]) & (same | (positions.read(token) < 0));
        },
        [&](ArrayRef<V> at) {
          return Vs{at[0] + 1, k.maximum(at[1], positions.read(at[0]) + 1)};
        });
    return {of * pageColumns, end[0], end[1]};
  }
  V next = k.loopWhile(
      {first + 1},
      [&](ArrayRef<V> at) {
        V same = k.loadI32(sequence + k.minimum(at[0], last) * 4) == of;
        return (last >= at[0]) & same;
      },
      [&](ArrayRef<V> at) { return Vs{at[0] + 1}; })[0];
  return {of * pageColumns, next, positions.read(next - 1) + 1};
}

/// Copies this warp's 4 rows of a tile, when its slot is empty. Behind the last row
/// that one comes again: its scores are masked, and its values are finite.
void PrefillBuilder::copy(const Run &run, V tile, V index, V page) {
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

void PrefillBuilder::produce() {
  k.loopWhile(
      {firstToken(), k.i32(0)},
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

/// Notes the limits of a run and the token behind it, while its first tile is there.
void PrefillBuilder::noteRun(V first, V begin) {
  V next = k.loadI32(begins + (begin % slots * 8 + 4));
  // Pair 8 * warp + lane / 4 of the block is this lane's in the softmax.
  V id = readAnew(k, "tid");
  V token = (pairOfBlock() + (id >> 2)) / spec.heads;
  V mine = (token >= first) & (token < next);
  V limit = positions.read(k.minimum(token, tokens - 1)) + 1 +
            begin * tileRows - (id & 3) * 2;
  k.store(partialFrom + Limits, k.select(mine, limit, k.i32(0)));
  k.store(own + quarter * 4 + Next, next);
}

/// All tiles of the run of token `first`; the first has the number `begin`. State:
/// maximum, sum, accumulators. Also returns the number behind the tiles.
std::pair<Vs, V> PrefillBuilder::runBody(V first, V begin, ArrayRef<V> state) {
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

void PrefillBuilder::store(ArrayRef<V> state) {
  V sum = state[1];
  sum = sum + k.shuffleXor(sum, 1);
  sum = sum + k.shuffleXor(sum, 2);
  k.barrier(k.i32(1), consumers); // factors of the last tiles have been read
  k.when(t == 0, [&] {
    V factor = k.reciprocal(sum);
    // With a row the sum is 1 at least.
    V some = sum > k.f32(0);
    if (spread)
      factor = k.select(some, factor, k.f32(0));
    k.store(own + quarter * 32 + g * 4 + Factors, factor);
    if (!spec.lse)
      return;
    V lse = (state[0] + k.log2(sum)) * k.f32(naturalLog2);
    if (spread)
      lse = k.select(some, lse, k.f32(-infinity));
    V pair = pairOfBlock() + (readAnew(k, "tid") >> 2);
    k.when(pair < tokens * spec.heads,
           [&] { k.store(k.buffer(8) + k.to64(pair) * 4, lse); });
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

void PrefillBuilder::consume() {
  // Before the queries, which would be spilled around its loop.
  V first = firstToken();
  loadQuery();
  // State: the first token of the next run, tiles so far, maximum, sum,
  // accumulators.
  Vs state{first, k.i32(0), k.f32(-1e30), k.f32(0)};
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

void PrefillBuilder::build() {
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

AttentionKernels latentAttentionPrefill(KernelSite site,
                                        const AttentionSpec &spec) {
  std::string name = attentionName("latent_attention_prefill", spec);
  AttentionKernels out;
  out.first = {name, "ceildiv(tokens * " + std::to_string(spec.heads) + ", " +
                         std::to_string(PrefillBuilder::pairsOfBlock) + ")"};
  out.partialRows = out.lseRows = "1";
  if (exists(site, name))
    return out;
  KernelBuilder k(site.kernels, site.loc, name, attentionAccess(spec),
                  (spec.cache == Format::FP8E4M3 ? 3 : 2) +
                      (spec.ranks > 1 ? 1 : 0),
                  {PrefillBuilder::threads});
  PrefillBuilder(k, spec, site.gpu).build();
  k.finish();
  return out;
}

} // namespace mla::nvvm
