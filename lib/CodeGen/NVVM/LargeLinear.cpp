//===- LargeLinear.cpp - packed matrices times many tokens ----------------===//
//
// Part of mla. y[t] = W x[t] on mma.sync m16n8k16 with f32 accumulation; rows of W
// are M, tokens are N. A block of 8 warps computes 256 rows x BN tokens (64 to
// 128, whichever fills the machine's waves best at maxTokens):
//
//            warps     warp tile       columns a step    slots     bytes
//   bf16     4 x 2     64 x BN/2       W 32, x 32        3, 6      49152 + 768 BN
//   fp8      8 x 1     32 x BN         W 64, x 64        2, 4      32768 + 512 BN
//   4 bits   8 x 1     32 x BN         W 128, x 64       1, 5      18432 + 640 BN
//
// Quantized weights are decoded to f16 in registers, once a block, and are used
// BN times. Registers: 128 accumulators, at most 32 of packed W, 8 to 16 of
// fragments; one block an SM.
//
// Copies are cp.async of 16 bytes, each warp its own rows and 16 tokens; mbarriers
// tell a slot full and empty, so warps run up to a slot or two apart and no barrier
// of the block stands in the main loop. W goes ahead of gridWait(). (Bulk copies of
// a quad's unit take a warp some 40 cycles each, half as long again as all else in
// bf16.)
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
/// matrix; clamped from below by state `floor` when given.
Vs LargeLinear::scaleOf(V block) {
  Vs out;
  int64_t blocks = llvm::divideCeil(columns(), 128);
  for (int64_t part = 0; part < scaleCount(); ++part) {
    // Rows beyond the matrix have the last block's.
    V row = k.minimum(localRow, rows - 1) / 128;
    V tail = k.ceilDiv(rows, 16) * 4;
    Ptr scales =
        weight[part] +
        k.to64(tail) * (quant::packedUnits(s.format, columns()) * s.unitBytes);
    out.push_back(k.loadF32(scales + k.to64(row * blocks + block) * 4));
  }
  return out;
}

/// One unit of columns. State: accumulators, packed words of this unit, the first
/// `ahead` token fragments; fp8_block: scales at hand, of the next block, floors.
/// Returns the state for the next unit, or of the accumulators if `last`.
Vs LargeLinear::unitBody(V unit, ArrayRef<V> state, bool last) {
  Vs acc(state.take_front(accCount()));
  Vs words(state.slice(accCount(), wordCount()));
  Vs queue(state.slice(accCount() + wordCount(), ahead * 4));
  Vs scales(state.drop_front(accCount() + wordCount() + ahead * 4));
  k.when(unit + s.aheadA() < units, [&] { issueA(unit + s.aheadA()); });

  if (int64_t n = scaleCount()) {
    // Every second unit begins a block of columns.
    SmallVector<Type> types(accCount() + 3 * n, k.f32Type());
    V inPart = parts == 1 ? unit : unit % unitsOfPart;
    Vs all = k.ifElse(
        ((inPart & 1) == 0) & (unit > 0), types,
        [&] {
          Vs out;
          V block = inPart / 2;
          Vs ratio, next;
          for (int64_t p = 0; p < n; ++p) {
            next.push_back(k.maximum(scales[n + p], scales[2 * n + p]));
            ratio.push_back(k.divide(scales[p], next[p]));
          }
          for (int64_t i = 0; i < accCount(); ++i)
            out.push_back(acc[i] *
                          ratio[partOf(i / (s.pairs() * 8))]);
          out.append(next);
          int64_t blocks = llvm::divideCeil(columns(), 128);
          V following = k.select(block + 1 < blocks, block + 1, k.i32(0));
          out.append(scaleOf(following));
          out.append(scales.begin() + 2 * n, scales.end());
          return out;
        },
        [&] {
          Vs out(acc);
          out.append(scales);
          return out;
        });
    acc.assign(all.begin(), all.begin() + accCount());
    scales.assign(all.begin() + accCount(), all.end());
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
      if (at == total) {
        waitA(unit + 1);
        nextWords = loadWords(unit + 1);
      }
    }
    V chunk = firstChunk + at / perChunk;
    int64_t within = at % perChunk;
    if (within == 0)
      waitB(chunk);
    queue.append(loadTokens(chunk, within / perStep, within % perStep));
    if (within == perChunk - 1) {
      k.syncWarp();
      k.when(lane == 0, [&] {
        k.mbarrierArrive(emptyB + chunk % s.slotsB * 8);
      });
    }
  };
  for (int64_t at = 0; at < total; ++at) {
    if (at % perChunk == 0) {
      V next = firstChunk + at / perChunk + s.aheadB();
      k.when(next < units * s.chunks(), [&] { issueB(next); });
    }
    fetch(at + ahead);
    int64_t step = at / perStep, pair = at % perStep;
    if (pair == 0)
      a = decode(words, step);
    for (int64_t mTile = 0; mTile < s.mTiles(); ++mTile)
      for (int64_t n = 0; n < 2; ++n) {
        int64_t first = ((mTile * s.pairs() + pair) * 2 + n) * 4;
        ArrayRef<V> A = ArrayRef(a).slice(4 * mTile, 4);
        ArrayRef<V> B = ArrayRef(queue).slice(2 * n, 2);
        ArrayRef<V> C = ArrayRef(acc).slice(first, 4);
        Vs d = isHalf() ? k.mmaF16(A, B, C) : k.mmaBF16(A, B, C);
        llvm::copy(d, acc.begin() + first);
      }
    queue.erase(queue.begin(), queue.begin() + 4);
  }
  Vs out(acc);
  if (!last) {
    out.append(nextWords);
    out.append(queue);
  }
  out.append(scales);
  return out;
}

/// Accumulator (m-tile, n-tile): rows g and g + 8, tokens 2t and 2t + 1.
void LargeLinear::store(ArrayRef<V> acc, ArrayRef<V> scales) {
  Vs factor;
  for (int64_t part = 0; part < (spec.gated ? 2 : 1); ++part) {
    switch (s.format) {
    case Format::FP8Block:
      factor.push_back(scales[part] * k.f32(16));
      break;
    case Format::NVFP4: {
      V tail = k.ceilDiv(rows, 16) * 4;
      factor.push_back(
          k.loadF32(weight[part] +
                    k.to64(tail) * (quant::packedUnits(s.format, columns()) *
                                    s.unitBytes)) *
          k.f32(4096));
      break;
    }
    case Format::Int4G32:
      factor.push_back(k.f32(1.0 / 16));
      break;
    default:
      factor.push_back(k.f32(1));
    }
  }
  V g = lane >> 2, t = lane & 3;
  auto value = [&](int64_t mTile, int64_t nTile, int64_t i) {
    V v = acc[(mTile * s.pairs() * 2 + nTile) * 4 + i];
    return s.format == Format::BF16 ? v : v * factor[partOf(mTile)];
  };
  V firstRow = localRow + g;
  V token0 = firstToken + member * s.warpTokens() + t * 2;
  V width = k.to64(rows);
  V corner = (k.to64(token0) * width + k.to64(firstRow)) * 4;
  for (int64_t nTile = 0; nTile < 2 * s.pairs(); ++nTile)
    for (int64_t odd = 0; odd < 2; ++odd) {
      V inside = token0 + (8 * nTile + odd) < tokens;
      V line = corner + width * (4 * (8 * nTile + odd));
      for (int64_t mTile = 0; mTile < half(); ++mTile)
        for (int64_t high = 0; high < 2; ++high) {
          int64_t row = 16 * mTile + 8 * high;
          k.when(inside & (firstRow + row < rows), [&] {
            V v = value(mTile, nTile, 2 * high + odd);
            if (spec.gated)
              v = k.silu(v) * value(mTile + half(), nTile, 2 * high + odd);
            if (spec.residual)
              v = v + k.loadF32(k.buffer(3) + line + row * 4);
            k.store(y + line + row * 4, v);
          });
        }
    }
}

void LargeLinear::build() {
  parts = spec.exact ? 3 : 1;
  unitsOfPart = quant::packedUnits(s.format, columns());
  units = unitsOfPart * parts;
  tokens = k.scalar32(0);
  setUpBarriers();
  locate(k.block(), k.thread());
  setUpCopies();
  for (int64_t unit = 0; unit < std::min(s.aheadA(), units); ++unit)
    issueA(k.i32(unit));
  k.gridWait();
  k.gridTrigger();
  for (int64_t c = 0; c < std::min(s.aheadB(), units * s.chunks()); ++c)
    issueB(k.i32(c));

  Vs state(accCount(), k.f32(0));
  waitA(k.i32(0));
  state.append(loadWords(k.i32(0)));
  waitB(k.i32(0));
  for (int64_t pair = 0; pair < ahead; ++pair)
    state.append(loadTokens(k.i32(0), pair / s.pairs(), pair % s.pairs()));
  if (int64_t n = scaleCount()) {
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
    for (int64_t p = 0; p < n; ++p)
      state.push_back(k.maximum(first[p], floor[p]));
    state.append(scaleOf(k.i32(blocks > 1 ? 1 : 0)));
    state.append(floor);
  }
  Vs end = k.loop(k.i32(0), k.i32(units - 1), 1, state,
                  [&](V unit, ArrayRef<V> now) {
                    return unitBody(unit, now, false);
                  });
  end = unitBody(k.i32(units - 1), end, true);
  locate(readAnew(k, "ctaid"), readAnew(k, "tid"));
  store(ArrayRef(end).take_front(accCount()),
        ArrayRef(end).drop_front(accCount()));
}

} // namespace large

Kernel linearLarge(KernelSite site, const LinearSpec &spec) {
  using namespace large;
  Shape shape = shapeFor(spec, site.gpu);
  std::string name =
      kernelName("linear_large", formatName(spec.segments[0].format));
  for (const MatrixShape &segment : spec.segments)
    name += "_" + std::to_string(segment.rows);
  name = kernelName(name, spec.segments[0].columns, "n", shape.tokens);
  if (spec.gated)
    name += "_gated";
  if (spec.residual)
    name += "_residual";
  if (spec.exact)
    name += "_exact";
  std::string grid = std::to_string(rowTiles(spec, shape.groupRows())) +
                     " * ceildiv(" + (spec.outputs ? "outputs" : "tokens") +
                     ", " + std::to_string(shape.tokens) + ")";
  Kernel kernel{name, grid};
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

} // namespace mla::nvvm
