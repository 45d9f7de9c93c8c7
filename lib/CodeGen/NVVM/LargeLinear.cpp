//===- LargeLinear.cpp - packed matrices times many tokens ----------------===//
//
// Part of mla. y[t] = W x[t] on mma.sync m16n8k16 with f32 accumulation; rows of W
// are M, tokens are N. A block of 8 warps computes 256 rows x BN tokens (64 to
// 128, whichever fills the machine's waves best at maxTokens), a warp 32 rows x BN.
// Quantized weights are decoded to f16 in registers, once a block, and are used BN
// times.
//
//            columns a unit    shared memory: W, x (slots of 64 columns)
//   bf16     64                32,768 + 4 * 128 * BN
//   fp8      128               32,768 + 4 * 128 * BN
//   4 bits   128               18,432 + 5 * 128 * BN
//   fp4 x    128               18,432 + 5 * 72 * BN (linearLargeFp4)
//
// Registers: BN accumulators, 16 or 32 of packed W, 8 of fragments of W and 12 of x;
// one block an SM.
//
// A block takes every so many tiles, as many blocks as multiprocessors: the next
// tile's first copies are under way in the last step of one, and sums are stored
// while they arrive. A lane's rows are neighbours, stored as 16 bytes, and a residual
// is loaded a few tokens ahead. (Together 419 to 348 us for 7168 rows, 2048 columns,
// 4096 tokens; with 7168 columns, where a tile is long, a block for each was 3%
// faster.)
//
// Copies are cp.async of 16 bytes, each warp its own rows and 16 tokens. A warp's
// rows are its own; of x, mbarriers tell a slot full and empty, so warps run up to
// two slots apart and no barrier of the block stands in the main loop. W goes ahead
// of gridWait(). (Bulk copies of a quad's unit take a warp some 40 cycles each.)
//
// Flops: 2 * rows * columns a token. Bytes a block and column: 256 rows of W and
// BN values of x for 512 * BN flops, from L2, as blocks that run together share
// their rows or tokens. Bound by the issue rate of mma.sync.
//
// FP8 block scales: accumulators stand in units of the scale of the block of
// columns at hand, and are multiplied by the ratio of two scales between blocks.
// Scales below 2^-60 of the largest of their row of blocks count as that, so no
// ratio overflows. Everything else is exact but for the accumulation in f32 and
// int4 scales: f16 times 2^8, exact from 2^-22 to 32, clamped to 31.98.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm {

namespace large {

/// fp8_block: the scales of column block `block` for this warp's rows, of each
/// matrix.
Vs LargeLinear::scaleOf(V block) {
  Vs out;
  int64_t blocks = llvm::divideCeil(columns(), 128);
  for (int64_t part = 0; part < scaleCount(); ++part) {
    // Rows beyond the matrix have the last block's.
    V row = k.minimum(localRow, rows - 1) / 128;
    Ptr scales = weight[part] + k.to64(k.ceilDiv(rows, 16) * 4) * quadStride();
    out.push_back(k.loadF32(scales + k.to64(row * blocks + block) * 4));
  }
  return out;
}

/// The product of an m-tile and the first or second n-tile of fragments `b`.
Vs LargeLinear::multiply(ArrayRef<V> a, ArrayRef<V> b, ArrayRef<V> c,
                         int64_t mTile, int64_t nTile) {
  ArrayRef<V> A = a.slice(4 * mTile, 4), B = b.slice(2 * nTile, 2);
  if (!s.four)
    return isHalf() ? k.mmaF16(A, B, c) : k.mmaBF16(A, B, c);
  return k.mmaFp4(A, B, c, a[4 * mTiles + mTile], b[4 + nTile]);
}

/// One unit of columns. State: accumulators, packed words of this unit, the first
/// `ahead` token fragments; fp8_block: scales at hand, of the next block, floors.
/// Returns the state for the next unit. The tile's last unit has `next`, which starts
/// copies of the next tile: with -1 those of W, with n what may go ahead when chunk n
/// of the unit is at hand; it returns accumulators and scales.
Vs LargeLinear::unitBody(V unit, ArrayRef<V> state,
                         function_ref<void(int64_t)> next) {
  const bool last = bool(next);
  Vs acc(state.take_front(accCount()));
  Vs words(state.slice(accCount(), wordCount()));
  Vs queue(state.slice(accCount() + wordCount(), ahead * s.fragmentB()));
  Vs scales(state.drop_front(accCount() + wordCount() + ahead * s.fragmentB()));
  if (last)
    next(-1);
  else
    issueA(unit + 1);

  if (int64_t n = scaleCount()) {
    // A unit is a block of columns.
    Vs ratio;
    for (int64_t p = 0; p < n; ++p) {
      V scale = k.maximum(scales[n + p], scales[2 * n + p]);
      ratio.push_back(k.divide(scales[p], scale));
      scales[p] = scale;
    }
    for (int64_t i = 0; i < accCount(); ++i)
      acc[i] = acc[i] * ratio[partOf(i / (s.pairs() * 8))];
    if (!last) {
      Vs later = scaleOf(parts == 1 ? unit + 1 : (unit + 1) % unitsOfPart);
      llvm::copy(later, scales.begin() + n);
    }
  }

  int64_t perStep = s.pairs(), total = s.steps() * perStep,
          perChunk = s.stepsOfChunk() * perStep;
  V firstChunk = unit * s.chunks();
  Vs nextWords, a;
  /// Loads pair `at` of this unit's sequence, or of the next unit's.
  auto fetch = [&](int64_t at) {
    if (at >= total) {
      if (last)
        return;
      if (at == total)
        nextWords = loadWords(unit + 1);
    }
    V chunk = firstChunk + at / perChunk;
    int64_t within = at % perChunk;
    if (within == 0)
      waitB(chunk);
    queue.append(loadTokens(chunk, within / perStep, within % perStep));
    if (within == perChunk - 1) {
      k.syncWarp();
      k.when(lane == 0, [&] {
        k.mbarrierArrive(emptyB + slotOf(chunk) * 8);
      });
    }
  };
  for (int64_t at = 0; at < total; ++at) {
    if (!last && at % perChunk == 0) {
      V later = firstChunk + at / perChunk + s.aheadB();
      k.when(later < chunks(), [&] { issueB(later); });
    }
    if (last && at % perChunk == perChunk / 2)
      next(at / perChunk);
    fetch(at + ahead);
    int64_t step = at / perStep, pair = at % perStep;
    if (pair == 0)
      a = decode(words, step);
    for (int64_t mTile = 0; mTile < mTiles; ++mTile)
      for (int64_t n = 0; n < 2; ++n) {
        int64_t first = ((mTile * s.pairs() + pair) * 2 + n) * 4;
        Vs d = multiply(a, queue, ArrayRef(acc).slice(first, 4), mTile, n);
        llvm::copy(d, acc.begin() + first);
      }
    queue.erase(queue.begin(), queue.begin() + s.fragmentB());
  }
  Vs out(acc);
  if (!last) {
    out.append(nextWords);
    out.append(queue);
  }
  out.append(scales);
  return out;
}

/// Brings this block's part of the residual into L2 while the products run: a
/// token's 256 rows are 8 lines.
void LargeLinear::prefetchResidual() {
  V row = localRow - warp * warpRows + (k.thread() & 7) * warpRows;
  for (int64_t first = 0; first < s.tokens; first += blockThreads / 8) {
    V token = firstToken + (k.thread() >> 3) + first;
    k.when((row < rows) & (token < endToken), [&] {
      k.prefetchL2(k.buffer(3) +
                   (k.to64(token) * k.to64(rows) + k.to64(row)) * 4);
    });
  }
}

/// fp8_block: appends the scales of unitBody()'s state.
void LargeLinear::appendScales(Vs &state) {
  int64_t n = scaleCount();
  if (n == 0)
    return;
  int64_t blocks = llvm::divideCeil(columns(), 128);
  Vs largest = k.loop(lane, k.i32(blocks), 32, Vs(n, k.f32(0)),
                      [&](V block, ArrayRef<V> max) {
                        Vs out;
                        Vs at = scaleOf(block);
                        for (int64_t p = 0; p < n; ++p)
                          out.push_back(k.maximum(max[p], at[p]));
                        return out;
                      });
  Vs floor, first = scaleOf(k.i32(0));
  for (V v : largest)
    floor.push_back(
        k.maximum(k.warpMax(v) * k.f32(0x1p-60), k.f32(0x1p-126)));
  state.append(floor); // nothing is summed up yet, so any
  state.append(first);
  state.append(floor);
}

/// State of the loop over tiles: the tile, whether it is there, units done before,
/// then `from`. Its first copies are under way.
Vs LargeLinear::tileState(V tile, V there) {
  Vs state{tile, there, base};
  auto add = [&](Ptr p) { state.push_back({p.value, &k}); };
  for (int64_t i = 0; i < 2; ++i) {
    add(from.a[i]);
    if (!isWhole())
      state.push_back(from.bytesA[i]);
  }
  if (s.hasScales()) {
    add(from.scales);
    if (!isWhole())
      state.push_back(from.bytesScales);
  }
  state.push_back(from.copies);
  if (groups)
    state.append(std::begin(from.gathered), std::end(from.gathered));
  else
    add(from.x);
  return state;
}

/// Computes the tile of `state` and stores it; returns the next one's state.
Vs LargeLinear::tileBody(ArrayRef<V> state) {
  const V *at = state.begin();
  auto ptr = [&] { return Ptr{(at++)->value, &k}; };
  V tile = *at++;
  ++at;
  base = *at++;
  if (sameState())
    base = k.i32(0);
  for (int64_t i = 0; i < 2; ++i) {
    from.a[i] = ptr();
    from.bytesA[i] = isWhole() ? k.i32(16) : *at++;
  }
  if (s.hasScales()) {
    from.scales = ptr();
    from.bytesScales = isWhole() ? k.i32(16) : *at++;
  }
  from.copies = *at++;
  if (groups)
    for (V &offset : from.gathered)
      offset = *at++;
  else
    from.x = ptr();
  locate(tile, k.thread());
  if (spec.residual)
    prefetchResidual();

  Vs now(accCount(), k.f32(0));
  now.append(loadWords(k.i32(0)));
  waitB(k.i32(0));
  for (int64_t pair = 0; pair < ahead; ++pair)
    now.append(loadTokens(k.i32(0), pair / s.pairs(), pair % s.pairs()));
  appendScales(now);
  now = k.loop(k.i32(0), k.i32(units - 1), 1, now,
               [&](V unit, ArrayRef<V> in) { return unitBody(unit, in); });

  // The next tile's copies go ahead in the last unit of this one.
  Vs places = loadPlaces();
  V following = tile + k.blocks(), last = tiles() - 1, there;
  LargeLinear next = *this;
  if (!sameState())
    next.base = base + units;
  int64_t issued = 0;
  now = unitBody(k.i32(units - 1), now, [&](int64_t chunk) {
    if (chunk < 0) {
      next.locate(k.minimum(following, last), readAnew(k, "tid"));
      next.setUpSources();
      there = following < last + 1;
      if (groups)
        there = there & (next.firstToken < next.endToken);
      k.when(there, [&] { next.issueA(k.i32(0)); });
      return;
    }
    int64_t end =
        std::min(firstChunks(), s.aheadB() - s.chunks() + chunk + 1);
    k.when(there, [&] {
      for (int64_t c = issued; c < end; ++c)
        next.issueB(k.i32(c));
    });
    issued = std::max(issued, end);
  });
  locate(tile, readAnew(k, "tid"));
  store(ArrayRef(now).take_front(accCount()),
        ArrayRef(now).drop_front(accCount()), places);
  return next.tileState(following, there);
}

void LargeLinear::build() {
  parts = spec.exact ? 3 : 1;
  unitsOfPart = llvm::divideCeil(columns(), s.columns);
  units = unitsOfPart * parts;
  setUpBarriers();
  setUpFragments();
  zero = k.inlinePTX("mov.u32 $0, %ctaid.y;", "=r", k.i32Type(), {},
                     /*sideEffects=*/false);
  base = k.i32(0);
  V tile = k.block(), there = tile < tiles();
  auto start = [&] {
    locate(k.minimum(tile, tiles() - 1), k.thread());
    setUpSources();
    if (groups)
      there = there & (firstToken < endToken);
    k.when(there, [&] { issueA(k.i32(0)); });
  };
  if (!groups) // else tiles and order are of kernels before
    start();
  k.gridWait();
  k.gridTrigger();
  if (groups)
    start();
  k.when(there, [&] {
    for (int64_t c = 0; c < firstChunks(); ++c)
      issueB(k.i32(c));
  });
  k.loopWhile(
      tileState(tile, there), [](ArrayRef<V> state) { return state[1]; },
      [&](ArrayRef<V> state) {
        if (!groups)
          return tileBody(state);
        // Fewer tokens, fewer products; the last of these widths for the rest.
        SmallVector<Type> types =
            llvm::map_to_vector(state, [](V v) { return v.value.getType(); });
        locate(state[0], k.thread());
        V tokens = endToken - firstToken;
        auto narrow = [&](int64_t width) {
          LargeLinear copy = *this;
          copy.s.tokens = width;
          return copy.tileBody(state);
        };
        return k.ifElse(
            tokens > 64, types, [&] { return narrow(128); },
            [&] {
              return k.ifElse(
                  tokens > 32, types, [&] { return narrow(64); },
                  [&] { return narrow(32); });
            });
      });
}

} // namespace large

static Kernel makeLarge(KernelSite site, const LinearSpec &spec, bool four) {
  using namespace large;
  Shape shape = shapeFor(spec, site.gpu, four);
  std::string name = kernelName(four ? "linear_large_fp4" : "linear_large",
                                formatName(spec.segments[0].format));
  for (const MatrixShape &segment : spec.segments)
    name += "_" + std::to_string(segment.rows);
  name = kernelName(name, spec.segments[0].columns, "n", shape.tokens);
  if (spec.gated)
    name += "_gated";
  if (spec.residual)
    name += "_residual";
  if (spec.exact)
    name += "_exact";
  std::string tiles = std::to_string(rowTiles(spec)) + " * ceildiv(" +
                      (spec.outputs ? "outputs" : "tokens") + ", " +
                      std::to_string(shape.tokens) + ")";
  Kernel kernel{name, "min(" + tiles + ", " +
                          std::to_string(site.gpu.multiprocessors) + ")"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access{"read"};
  for (size_t i = 0; i < spec.segments.size(); ++i) {
    access.push_back("read");
    if (!spec.gated)
      access.push_back("write");
  }
  if (spec.gated)
    access.push_back("write");
  if (spec.residual)
    access.push_back("read");
  KernelBuilder k(site.kernels, site.loc, name, access, 1, {blockThreads});
  LargeLinear(k, spec, shape).build();
  k.finish();
  return kernel;
}

Kernel linearLarge(KernelSite site, const LinearSpec &spec) {
  return makeLarge(site, spec, /*four=*/false);
}
Kernel linearLargeFp4(KernelSite site, const LinearSpec &spec) {
  return makeLarge(site, spec, /*four=*/true);
}

} // namespace mla::nvvm
