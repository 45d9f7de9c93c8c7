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
#include "KernelSupport.h"
#include "LargeKernels.h"
#include "mla/Quant/Pack.h"

using namespace mlir;

namespace mla::nvvm {

namespace {

constexpr int64_t blockRows = 256, blockThreads = 256;

/// Compile-time shape of a kernel.
struct Shape {
  Format format;
  int64_t tokens;             ///< of a block
  int64_t groups;             ///< of warps that share rows
  int64_t warpsOfGroup;       ///< they split the tokens
  int64_t slotsA, slotsB;
  int64_t unitBytes, unitColumns;
  int64_t chunk;              ///< columns of x a slot

  int64_t groupRows() const { return blockRows / groups; }
  int64_t mTiles() const { return groupRows() / 16; }
  int64_t warpTokens() const { return tokens / warpsOfGroup; }
  int64_t pairs() const { return warpTokens() / 16; } ///< of n-tiles
  int64_t quads() const { return groupRows() / 4; }
  int64_t steps() const { return unitColumns / 16; }
  int64_t chunks() const { return unitColumns / chunk; } ///< in a unit
  int64_t stepsOfChunk() const { return chunk / 16; }
  int64_t bytesA() const { return quads() * unitBytes; } ///< a group's slot
  int64_t pieceB() const { return packedTokens * chunk * 2; }
  int64_t bytesB() const { return tokens / packedTokens * pieceB(); }
  /// Units of W that are under way ahead of the one whose words are in registers.
  /// With two warps to a group the one before is left alone, as the other warp may
  /// still read it.
  int64_t aheadA() const { return warpsOfGroup == 1 ? slotsA : slotsA - 1; }
  int64_t aheadB() const { return slotsB - 2; }
};

int64_t rowTiles(const LinearSpec &spec, int64_t groupRows) {
  int64_t groups = 0;
  if (spec.gated)
    groups = llvm::divideCeil(spec.segments[0].rows, groupRows / 2);
  else
    for (const MatrixShape &segment : spec.segments)
      groups += llvm::divideCeil(segment.rows, groupRows);
  return llvm::divideCeil(groups * groupRows, blockRows);
}

Shape shapeFor(const LinearSpec &spec, const Gpu &gpu) {
  Format format = spec.segments[0].format;
  Shape s;
  s.format = format;
  bool wide = format == Format::BF16;
  s.groups = wide ? 4 : 8;
  s.warpsOfGroup = wide ? 2 : 1;
  s.unitBytes = quant::unitBytes(format);
  s.unitColumns = quant::unitColumns(format);
  s.chunk = chunkColumns(format);
  s.slotsA = wide ? 3 : format == Format::FP8Block ? 2 : 1;
  s.slotsB = wide ? 6 : format == Format::FP8Block ? 4 : 5;
  // The tile whose waves take the least time; W costs as much as some tokens.
  int64_t tiles = rowTiles(spec, s.groupRows()), best = 0;
  for (int64_t tokens = 128; tokens >= 64; tokens -= wide ? 32 : 16) {
    int64_t blocks = tiles * llvm::divideCeil(spec.maxTokens, tokens);
    int64_t cost =
        llvm::divideCeil(blocks, gpu.multiprocessors) * (tokens + 16);
    if (!best || cost < best)
      best = cost, s.tokens = tokens;
  }
  return s;
}

/// The kernel under construction.
struct LargeLinear {
  KernelBuilder &k;
  const LinearSpec &spec;
  const Shape &s;

  Ptr slotsA, slotsB, fullA, emptyA, fullB, emptyB;
  V lane, warp, group, member, tokens, firstToken;
  V localRow, rows, quadEnd; ///< this warp's first row in its segment, the ends
  SmallVector<Ptr> weight; ///< of gate and up, or the segment's
  Ptr y;
  int64_t unitsOfPart, units, parts;
  /// What this lane copies from: of gate and up, or twice the segment's; scales.
  Ptr sourceA[2], sourceScales, sourceB;
  V bytesA[2], bytesScales; ///< 16, or 0 beyond the matrix: of 16 rows each
  V rawOffset;            ///< of lane's words in a quad group
  SmallVector<V> fragmentB; ///< lane's offset in a piece for each step

  LargeLinear(KernelBuilder &k, const LinearSpec &spec, const Shape &s)
      : k(k), spec(spec), s(s) {}
  void build();

private:
  int64_t columns() const { return spec.segments[0].columns; }
  int64_t quadStride() const {
    return quant::packedUnits(s.format, columns()) * s.unitBytes;
  }
  bool isHalf() const { return s.format != Format::BF16; }
  int64_t half() const { return spec.gated ? s.mTiles() / 2 : s.mTiles(); }
  int64_t partOf(int64_t mTile) const { return mTile / half(); }

  void locate(V block, V thread);
  void setUpCopies();
  void setUpBarriers();
  void issueA(V unit);
  void issueB(V chunk);
  void waitA(V unit);
  void waitB(V chunk);
  Vs loadWords(V unit);
  Vs loadTokens(V chunk, int64_t step, int64_t pair);
  Vs decode(ArrayRef<V> words, int64_t step);
  Vs scaleOf(V block);
  Vs unitBody(V unit, ArrayRef<V> state, bool last);
  void store(ArrayRef<V> acc, ArrayRef<V> scales);
  int64_t accCount() const { return s.mTiles() * s.pairs() * 2 * 4; }
  int64_t wordCount() const {
    return s.mTiles() * 2 * (s.unitBytes > 256 ? 5 : 4);
  }
  int64_t scaleCount() const {
    return s.format == Format::FP8Block ? (spec.gated ? 2 : 1) : 0;
  }
  static constexpr int64_t ahead = 2; ///< pairs of n-tiles loaded ahead
};

/// Which rows and tokens are this warp's.
void LargeLinear::locate(V block, V thread) {
  lane = thread & 31, warp = thread >> 5;
  group = warp / s.warpsOfGroup, member = warp % s.warpsOfGroup;
  // Blocks that run together: 8 row tiles times as many token tiles as fit.
  int64_t rowTileCount = rowTiles(spec, s.groupRows()), band = 8;
  V tokenTiles = k.ceilDiv(tokens, s.tokens);
  V first = block / (tokenTiles * band) * band;
  V within = block % (tokenTiles * band);
  V height = k.minimum(k.i32(rowTileCount) - first, k.i32(band));
  V rowTile = first + within % height;
  firstToken = within / height * s.tokens;

  V groupAt = rowTile * s.groups + group;
  if (spec.gated) {
    localRow = groupAt * (s.groupRows() / 2);
    rows = k.i32(spec.segments[0].rows);
    quadEnd = k.i32(quant::packedQuads(spec.segments[0].rows));
    weight = {k.buffer(1), k.buffer(2)};
    y = k.buffer(3);
  } else {
    int64_t at = 0;
    for (auto [i, segment] : llvm::enumerate(spec.segments)) {
      V local = (groupAt - at) * s.groupRows();
      Ptr w = k.buffer(1 + 2 * i), out = k.buffer(2 + 2 * i);
      V count = k.i32(segment.rows),
        quads = k.i32(quant::packedQuads(segment.rows));
      if (i == 0) {
        localRow = local, rows = count, quadEnd = quads, weight = {w}, y = out;
      } else {
        V here = groupAt >= at;
        localRow = k.select(here, local, localRow);
        rows = k.select(here, count, rows);
        quadEnd = k.select(here, quads, quadEnd);
        weight = {k.select(here, w, weight[0])};
        y = k.select(here, out, y);
      }
      at += llvm::divideCeil(segment.rows, s.groupRows());
    }
  }
}

/// Where this lane copies from and loads its fragments.
void LargeLinear::setUpCopies() {
  int64_t quadsOfMatrix = s.quads() / (spec.gated ? 2 : 1);
  // A warp copies 8 quads, two an instruction; the last 4 may be of `up`. Rows are
  // padded to 4 quads, rows beyond become zeros.
  V mine = member * 8 + (lane >> 4);
  for (int64_t half = 0; half < 2; ++half) {
    V at = mine + 4 * half, quad = localRow / 4 + at % quadsOfMatrix;
    Ptr base = weight[0];
    if (spec.gated)
      base = k.select(at >= quadsOfMatrix, weight[1], weight[0]);
    bytesA[half] = k.select(quad < quadEnd, k.i32(16), k.i32(0));
    sourceA[half] = base + k.to64(quad) * quadStride() + (lane & 15) * 16;
  }
  if (s.unitBytes > 256) {
    V at = lane >> 1, quad = localRow / 4 + at % quadsOfMatrix;
    Ptr base = weight[0];
    if (spec.gated)
      base = k.select(at >= quadsOfMatrix, weight[1], weight[0]);
    bytesScales = k.select(quad < quadEnd, k.i32(16), k.i32(0));
    sourceScales = base + k.to64(quad) * quadStride() + ((lane & 1) * 16 + 256);
  }
  // x16 has ceil(tokens / 16) groups; those beyond repeat the last.
  V packed = k.minimum(firstToken / packedTokens + warp,
                       k.ceilDiv(tokens, packedTokens) - 1);
  sourceB =
      k.buffer(0) + k.to64(packed) * packedRowsBytes(spec) + lane * 16;

  V g = lane >> 2, t = lane & 3;
  rawOffset = group * s.bytesA() + (g >> 2) * s.unitBytes + (g & 3) * 64 + t * 16;
  V matrix = lane >> 3, row = (matrix >> 1) * 8 + (lane & 7);
  V swizzle = isHalf() ? row & 7 : row >> 1 & 3;
  int64_t pitch = 2 * s.chunk;
  for (int64_t step = 0; step < s.stepsOfChunk(); ++step)
    fragmentB.push_back(member * (s.pairs() * s.pieceB()) + row * pitch +
                        (((matrix & 1) + 2 * step) ^ swizzle) * 16);
}

void LargeLinear::setUpBarriers() {
  slotsA = k.shared(s.slotsA * s.groups * s.bytesA(), 128);
  slotsB = k.shared(s.slotsB * s.bytesB(), 128);
  fullA = k.shared(8 * s.groups * s.slotsA, 8);
  emptyA = k.shared(8 * s.groups * s.slotsA, 8);
  fullB = k.shared(8 * s.slotsB, 8);
  emptyB = k.shared(8 * s.slotsB, 8);
  k.when(k.thread() == 0, [&] {
    for (int64_t i = 0; i < s.groups * s.slotsA; ++i) {
      k.mbarrierInit(fullA + 8 * i, 32 * s.warpsOfGroup);
      k.mbarrierInit(emptyA + 8 * i, s.warpsOfGroup);
    }
    for (int64_t i = 0; i < s.slotsB; ++i) {
      k.mbarrierInit(fullB + 8 * i, 32 * (s.tokens / packedTokens));
      k.mbarrierInit(emptyB + 8 * i, k.warps());
    }
    k.mbarrierInitFence();
  });
  k.barrier();
}

/// Starts this warp's part of a unit of its group's rows, when the slot is empty.
void LargeLinear::issueA(V unit) {
  V slot = unit % s.slotsA;
  V at = group * s.slotsA + slot;
  if (s.warpsOfGroup > 1)
    k.mbarrierWait(emptyA + at * 8, (unit / s.slotsA & 1) ^ 1);
  else
    k.syncWarp(); // all lanes have loaded the words of the slot
  V source = k.to64(parts == 1 ? unit : unit % unitsOfPart) * s.unitBytes;
  Ptr to = slotsA + slot * (s.groups * s.bytesA()) + group * s.bytesA() +
           member * (8 * s.unitBytes);
  Ptr quads = to + (lane >> 4) * s.unitBytes + (lane & 15) * 16;
  for (int64_t half = 0; half < 2; ++half) {
    Ptr from = sourceA[half] + source;
    for (int64_t i = 0; i < 2; ++i)
      k.cpAsync16(quads + (4 * half + 2 * i) * s.unitBytes,
                  from + 2 * i * quadStride(), bytesA[half]);
  }
  if (s.unitBytes > 256)
    k.when(lane < 16, [&] {
      k.cpAsync16(to + (lane >> 1) * s.unitBytes + ((lane & 1) * 16 + 256),
                  sourceScales + source, bytesScales);
    });
  k.cpAsyncArrive(fullA + at * 8);
}

/// Starts this warp's 16 tokens of a chunk of x16, when the slot is empty.
void LargeLinear::issueB(V chunk) {
  auto copy = [&] {
    V slot = chunk % s.slotsB;
    k.mbarrierWait(emptyB + slot * 8, (chunk / s.slotsB & 1) ^ 1);
    V source = chunk;
    int64_t chunksOfPart = unitsOfPart * s.chunks();
    if (parts > 1) {
      // Parts of x16 are padded to 128 columns.
      int64_t stored = llvm::alignTo(columns(), 128) / s.chunk;
      source = chunk / chunksOfPart * stored + chunk % chunksOfPart;
    }
    Ptr to = slotsB + slot * s.bytesB() + warp * s.pieceB() + lane * 16;
    Ptr from = sourceB + k.to64(source) * s.pieceB();
    for (int64_t i = 0; i < s.pieceB(); i += 512)
      k.cpAsync16(to + i, from + i);
    k.cpAsyncArrive(fullB + slot * 8);
  };
  if (s.tokens / packedTokens == k.warps())
    copy();
  else
    k.when(warp < s.tokens / packedTokens, copy);
}

void LargeLinear::waitA(V unit) {
  k.mbarrierWait(fullA + (group * s.slotsA + unit % s.slotsA) * 8,
                 unit / s.slotsA & 1);
}
void LargeLinear::waitB(V chunk) {
  k.mbarrierWait(fullB + chunk % s.slotsB * 8, chunk / s.slotsB & 1);
}

/// The lane's packed words of a unit (and its scales) for each m-tile and half,
/// after which the slot is empty.
Vs LargeLinear::loadWords(V unit) {
  Ptr base = slotsA + unit % s.slotsA * (s.groups * s.bytesA()) + rawOffset;
  Vs words;
  for (int64_t i = 0; i < s.mTiles() * 2; ++i)
    words.append(k.loadWords(base + 2 * i * s.unitBytes, 4));
  if (s.unitBytes > 256) {
    // Row g & 3 of the quad has its scales at 256 + 8 * (g & 3).
    V g = lane >> 2, t = lane & 3;
    Ptr scales = slotsA + unit % s.slotsA * (s.groups * s.bytesA()) +
                 group * s.bytesA() + (g >> 2) * s.unitBytes + (g & 3) * 8 + 256;
    for (int64_t i = 0; i < s.mTiles() * 2; ++i) {
      Ptr at = scales + 2 * i * s.unitBytes;
      if (s.format == Format::NVFP4) {
        // Thread t has columns of blocks t and t + 4. e4m3 times 2^6 is f16.
        V both = k.loadI8(at + t) | k.loadI8(at + t + 4) << 8;
        both = k.mulF16(k.e4m3ToF16(both), k.i32(0x54005400));
        words.push_back(both);
      } else {
        V scale = k.fromBits(k.loadI16(at + t * 2) << 16) * k.f32(256);
        scale = k.minimum(k.maximum(scale, k.f32(-8188)), k.f32(8188));
        words.push_back(k.packF16(scale, scale));
      }
    }
  }
  if (s.warpsOfGroup > 1) {
    k.syncWarp();
    k.when(lane == 0, [&] {
      k.mbarrierArrive(emptyA + (group * s.slotsA + unit % s.slotsA) * 8);
    });
  }
  return words;
}

/// Fragments of two n-tiles (16 tokens): b0, b1 of the first, of the second.
Vs LargeLinear::loadTokens(V chunk, int64_t step, int64_t pair) {
  return k.ldmatrix(slotsB + chunk % s.slotsB * s.bytesB() + fragmentB[step] +
                    pair * s.pieceB());
}

/// A fragments of step `step` of a unit: a0 to a3 of each m-tile.
Vs LargeLinear::decode(ArrayRef<V> words, int64_t step) {
  Vs a;
  for (int64_t mTile = 0; mTile < s.mTiles(); ++mTile) {
    Vs low(2), high(2); // rows g and g + 8: columns 4t, 4t + 1; 4t + 2, 4t + 3
    for (int64_t i = 0; i < 2; ++i) {
      int64_t row = 2 * mTile + i;
      auto word = [&](int64_t w) { return words[4 * row + w]; };
      switch (s.format) {
      case Format::BF16:
        low[i] = word(2 * step), high[i] = word(2 * step + 1);
        break;
      case Format::FP8Block:
        low[i] = k.e4m3ToF16(word(step) & 0xFFFF);
        high[i] = k.e4m3ToF16(word(step) >> 16);
        break;
      case Format::NVFP4: {
        V v = word(step / 2);
        V both = words[s.mTiles() * 8 + row];
        V scale =
            k.permuteBytes(both, both, step < s.steps() / 2 ? 0x1010 : 0x3232);
        int64_t value = int64_t(0x8E008E00), sign = int64_t(0x80008000),
                magnitude = 0x0E000E00;
        if (step % 2 == 0) {
          low[i] = v & value;
          high[i] = (v << 3) & value;
        } else {
          low[i] = ((v << 6) & magnitude) | ((v << 1) & sign);
          high[i] = ((v << 9) & magnitude) | ((v << 2) & sign);
        }
        low[i] = k.mulF16(low[i], scale), high[i] = k.mulF16(high[i], scale);
        break;
      }
      case Format::Int4G32: {
        V v = word(step / 2);
        V scale = words[s.mTiles() * 8 + row];
        auto value = [&](int64_t pair) {
          V code = ((v >> (4 * pair)) & 0x000F000F) | 0x64006400;
          return k.mulF16(k.subF16(code, k.i32(0x64086408)), scale);
        };
        low[i] = value(step % 2 * 2), high[i] = value(step % 2 * 2 + 1);
        break;
      }
      default:
        llvm_unreachable("a packed format");
      }
    }
    a.append({low[0], low[1], high[0], high[1]});
  }
  return a;
}

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

} // namespace

Kernel linearLarge(KernelSite site, const LinearSpec &spec) {
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
