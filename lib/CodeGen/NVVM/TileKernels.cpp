//===- TileKernels.cpp - packed weights times up to 64 tokens -------------===//
//
// Part of mla. A block owns `groups` of 16 rows and a tile of 8, 16, 32 or 64
// tokens, and goes through the columns in steps of 128 to 1,024. Weights come by
// bulk copies into a ring of steps (mbarriers; the first ones before the wait for
// earlier kernels), x by way of registers one to four steps ahead, converted to 16
// bits, in two buffers. Eight or sixteen warps split a step's units of columns, then
// tokens and rows; sums over the units' warps are made in shared memory at the end.
// Rows are M of the instruction, tokens N.
//
//   bytes      weights once a tile of tokens; x once a block, from L2
//   flops      2 * rows * columns * tokens, of tokens rounded up to 8
//   registers  48 accumulators, 32 of x on its way, 32 of x in use: at most 128;
//              fp8_block 80, 32, 32 and 16 unscaled sums
//   shared     at most 98 KB: 2 to 4 steps of weights of up to 40 KB, x
//   bound by   reading the weights for few tokens and many rows; x, which every
//              block reads whole from L2 in f32, for few rows (8 tokens are as
//              many bytes as 16 rows of bf16; 64 tokens of 7,168 columns 1.8 MB);
//              decoding and shared memory for many tokens and rows, where
//              linearLarge is faster
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "MatrixKernels.h"

using namespace mlir;

namespace mla::nvvm {

namespace {

/// Bytes of shared memory, and how many of them barriers and factors take at most.
constexpr int64_t tileShared = 98 * 1024, extraShared = 1024;

/// How a block of the kernel is cut.
struct TileShape {
  int64_t warps;     ///< 8, or 16 from 32 tokens on; fp8_block: 8
  int64_t tokens;    ///< of a tile
  int64_t allGroups; ///< of 16 rows, over all segments
  int64_t groups;    ///< of a block
  int64_t columns;   ///< of a step
  int64_t units, unitsPerWarp,
      allUnits; ///< of a step, of a warp's step, in all
  int64_t steps, stages;
  int64_t warpsK, warpsRow, warpsToken;
  int64_t warpGroups, warpTiles; ///< groups and tiles of 8 tokens of a warp
  int64_t planes;                ///< of x: 2 if exact
  int64_t xStride, stageBytes;
  int64_t ahead; ///< steps whose x is on its way in registers

  TileShape(const LinearSpec &spec, const Gpu &gpu);
  int64_t xBytes() const { return planes * tokens * xStride; }
  int64_t sumStride() const { return groups * 16 + 4; }
  int64_t sumBytes() const { return warpsK * tokens * sumStride() * 4; }
  bool twoBlocks() const { return tokens <= 16; }
  bool whole() const { return allUnits % units == 0; }

private:
  void cut(const LinearSpec &spec, int64_t groups, int64_t columns);
};

TileShape::TileShape(const LinearSpec &spec, const Gpu &gpu) {
  tokens = 8;
  while (tokens < 64 && tokens < spec.maxTokens)
    tokens *= 2;
  bool fp8 = spec.segments[0].format == Format::FP8Block;
  warps = tokens >= 32 && !fp8 ? 16 : 8;
  planes = spec.exact ? 2 : 1;
  allGroups = 0;
  for (const MatrixShape &shape : spec.segments)
    allGroups += llvm::divideCeil(shape.rows, 16);
  // The widest step for each number of groups; then the most groups that fit,
  // without more waves of blocks than they need.
  int64_t pair = spec.gated ? 2 : 1;
  bool small = quant::unitColumns(spec.segments[0].format) == 128;
  int64_t wantedStage = small ? 24576 : 16384;
  auto best = [&](int64_t groups) {
    int64_t columns = 1024;
    int64_t padded = llvm::alignTo(spec.segments[0].columns, 128);
    while (columns > 128 && (columns / 2 >= padded || tokens * columns > 8192))
      columns /= 2;
    for (;; columns /= 2) {
      cut(spec, groups, columns);
      bool fits = 2 * stageBytes + 2 * xBytes() + extraShared <= tileShared &&
                  sumBytes() + extraShared <= tileShared &&
                  warpGroups * warpTiles <= (fp8 ? 20 : 12);
      if (fits && (stageBytes <= wantedStage || columns == 128))
        return true;
      if (columns == 128)
        return false;
    }
  };
  int64_t most = pair;
  // Few tokens: two blocks an SM, so that one computes while the other waits.
  int64_t limit = twoBlocks() ? 5 : 10;
  while (most + pair <= limit && best(most + pair))
    most += pair;
  int64_t waves = llvm::divideCeil(allGroups, most * gpu.multiprocessors);
  int64_t wanted = llvm::divideCeil(allGroups, waves * gpu.multiprocessors);
  wanted = llvm::alignTo(std::max<int64_t>(wanted, 1), pair);
  best(std::min(wanted, most));
}

void TileShape::cut(const LinearSpec &spec, int64_t groupsOfBlock,
                    int64_t columnsOfStep) {
  Format format = spec.segments[0].format;
  groups = groupsOfBlock;
  columns = columnsOfStep;
  units = columns / quant::unitColumns(format);
  allUnits = quant::packedUnits(format, spec.segments[0].columns);
  steps = llvm::divideCeil(allUnits, units);
  // x of a unit is in registers while a warp's groups go by: at most 32, or 16.
  int64_t xRegisters = quant::unitColumns(format) / 8 * planes;
  bool wide = quant::unitColumns(format) == 128;
  int64_t mostTiles = std::max<int64_t>((format == Format::BF16 ? 8
                                         : tokens >= 32         ? 32
                                                                : 16) /
                                            xRegisters,
                                        1);
  int64_t tiles = tokens / 8;
  warpsK =
      std::min<int64_t>(format == Format::BF16 && tokens >= 32 ? 2 : 8, units);
  unitsPerWarp = units / warpsK;
  int64_t others = warps / warpsK;
  warpsToken = 1;
  while (warpsToken < others && tiles / warpsToken > mostTiles)
    warpsToken *= 2;
  warpsRow = 1;
  while (warpsRow * warpsToken < others && warpsRow < groups)
    warpsRow *= 2;
  warpsToken = std::min(others / warpsRow, tiles);
  warpGroups = llvm::divideCeil(groups, warpsRow);
  warpTiles = tiles / warpsToken;
  // x of lane (token g, thread t): reads of 8 bytes 8 * t apart, or of 16 bytes
  // 16 * t apart, without bank conflicts.
  xStride = columns * 2 + (wide ? 64 : 32);
  stageBytes = groups * 4 * units * quant::unitBytes(format);
  int64_t values =
      tokens * columns / (warps * 32) + (spec.norm ? columns / 32 : 0);
  // What a thread has room for beside its sums, unless values come one by one.
  int64_t room = warps == 16 ? 16 : 32;
  if (spec.segments[0].columns % 4 != 0)
    room = 1;
  ahead = std::clamp<int64_t>(room / values, 1, 4);
  stages = 0;
  if (2 * xBytes() + extraShared < tileShared)
    stages = std::min<int64_t>(
        {4, steps, (tileShared - 2 * xBytes() - extraShared) / stageBytes});
}

/// Makes the kernel.
class TileBuilder {
public:
  TileBuilder(KernelSite site, const LinearSpec &spec, const TileShape &s,
              StringRef name)
      : spec(spec), s(s), format(spec.segments[0].format),
        columns(spec.segments[0].columns), operands(spec),
        k(site.kernels, site.loc, name, operands.access, 1,
          {s.warps * 32, s.twoBlocks() ? 2 : 1}) {}
  void build();

private:
  /// Segment of a group of the whole, and the group within it.
  void eachSegment(V group, function_ref<void(unsigned, V, V)> body);
  Ptr groupWeights(V group);
  Ptr groupScales(V group);
  void issue(V step, V slot);
  Vs loadX(V step);
  Vs storeX(ArrayRef<V> x, ArrayRef<V> squares, V step);
  Vs compute(ArrayRef<V> acc, V step, V slot);
  Vs computeUnit(ArrayRef<V> acc, V step, V slot, int64_t unit);
  void finish(ArrayRef<V> acc, ArrayRef<V> squares);

  const LinearSpec &spec;
  const TileShape &s;
  Format format;
  int64_t columns;
  LinearOperands operands;
  KernelBuilder k;
  Ptr ring, xs, barriers, factors, rowOf;
  V firstGroup, firstToken, tokens, wk, wr, wt;
  SmallVector<Ptr> copyFrom; ///< of this lane's quads
  SmallVector<Ptr> xRows;
  SmallVector<V> xValid;
  int64_t chunks() const { return s.columns / 128; }
  int64_t tokensOfWarp() const { return s.tokens / s.warps; }
};

void TileBuilder::eachSegment(V group,
                              function_ref<void(unsigned, V, V)> body) {
  if (spec.gated) {
    body(0, (group & 1) == 0, group >> 1);
    body(1, (group & 1) == 1, group >> 1);
    return;
  }
  int64_t at = 0;
  for (auto [i, segment] : llvm::enumerate(operands.segments)) {
    int64_t count = llvm::divideCeil(segment.rows, 16);
    V inside = group < at + count;
    if (at > 0)
      inside = inside & (group >= at);
    body(i, inside, group - at);
    at += count;
  }
}

/// Where the first quad of a group begins.
Ptr TileBuilder::groupWeights(V group) {
  Ptr from{Value(), &k};
  eachSegment(group, [&](unsigned i, V inside, V local) {
    Ptr p = k.buffer(operands.segments[i].weight) +
            k.to64(k.select(inside, local, k.i32(0))) *
                (4 * s.allUnits * quant::unitBytes(format));
    from = from.value ? k.select(inside, p, from) : p;
  });
  return from;
}

/// fp8_block: the block scales of a group's rows, from its first column.
Ptr TileBuilder::groupScales(V group) {
  Ptr from{Value(), &k};
  int64_t perRow = llvm::divideCeil(columns, 128);
  eachSegment(group, [&](unsigned i, V inside, V local) {
    int64_t tail =
        quant::packedTail(format, operands.segments[i].rows, columns);
    Ptr p = k.buffer(operands.segments[i].weight) + tail +
            (k.select(inside, local, k.i32(0)) >> 3) * (perRow * 4);
    from = from.value ? k.select(inside, p, from) : p;
  });
  return from;
}

/// Lanes of the first warp fetch a step's units of the block's quads.
void TileBuilder::issue(V step, V slot) {
  int64_t quads = s.groups * 4, unitBytes = quant::unitBytes(format);
  V bytes = k.i32(s.units * unitBytes);
  if (!s.whole())
    bytes = k.minimum(bytes, (k.i32(s.allUnits) - step * s.units) * unitBytes);
  Ptr barrier = barriers + slot * 8;
  V left = (k.i32(s.allGroups) - firstGroup) * 4;
  V valid = k.minimum(left, k.i32(quads));
  k.when(k.lane() == 0, [&] { k.mbarrierExpect(barrier, valid * bytes); });
  k.syncWarp();
  for (auto [i, from] : llvm::enumerate(copyFrom)) {
    V quad = k.lane() + int64_t(i) * 32;
    k.when(quad < valid, [&] {
      k.bulkCopy(ring + slot * s.stageBytes + quad * (s.units * unitBytes),
                 from + k.to64(step) * (s.units * unitBytes), bytes, barrier);
    });
  }
}

/// A step's x of this warp's tokens, then gamma: chunks of 128 columns, four
/// values a lane.
Vs TileBuilder::loadX(V step) {
  bool inside = columns % s.columns == 0;
  Vs out;
  V column = step * s.columns + k.lane() * 4;
  for (int64_t i = 0; i < tokensOfWarp(); ++i)
    for (int64_t c = 0; c < chunks(); ++c)
      for (V v : loadFour(k, xRows[i], column + c * 128, columns, Format::F32,
                          Cached::L2, inside))
        out.push_back(k.select(xValid[i], v, k.f32(0)));
  if (spec.norm)
    for (int64_t c = 0; c < chunks(); ++c)
      out.append(loadFour(k, k.buffer(operands.gamma), column + c * 128,
                          columns, spec.gamma, Cached::Yes, inside));
  return out;
}

/// Writes what loadX() gave into the step's buffer; gives the sums of squares.
Vs TileBuilder::storeX(ArrayRef<V> x, ArrayRef<V> squares, V step) {
  Vs next(squares.begin(), squares.end());
  int64_t plane = s.tokens * s.xStride;
  Ptr buffer = xs + (step & 1) * s.xBytes();
  // Words of 128-column units lie as the lanes read them: 16 bytes a (word,
  // thread).
  V l = k.lane(), at = l * 8;
  if (format == Format::NVFP4)
    at = (((l >> 4) << 1) | ((l >> 1) & 1)) * 64 + ((l >> 2) & 3) * 16 +
         (l & 1) * 8;
  if (format == Format::Int4G32)
    at = ((l >> 1) & 3) * 64 + (l >> 3) * 16 + (l & 1) * 8;
  ArrayRef<V> gamma = x.drop_front(tokensOfWarp() * chunks() * 4);
  for (int64_t i = 0; i < tokensOfWarp(); ++i) {
    V token = k.warp() + i * s.warps;
    for (int64_t c = 0; c < chunks(); ++c) {
      ArrayRef<V> in = x.slice((i * chunks() + c) * 4, 4);
      Vs four(in.begin(), in.end());
      for (unsigned j = 0; spec.norm && j < 4; ++j) {
        next[i] = k.fma(four[j], four[j], next[i]);
        four[j] = four[j] * gamma[c * 4 + j];
      }
      std::array<V, 2> packed = packX(k, four, takesHalf(format));
      Ptr to = buffer + token * s.xStride + at + c * 256;
      k.storeWords(to, packed);
      if (s.planes == 2)
        k.storeWords(to + plane, packRest(k, four, packed, takesHalf(format)));
    }
  }
  return next;
}

Vs TileBuilder::computeUnit(ArrayRef<V> acc, V step, V slot, int64_t unit) {
  int64_t unitBytes = quant::unitBytes(format);
  int64_t unitColumns = quant::unitColumns(format);
  bool wide = unitColumns == 128, fp8 = format == Format::FP8Block;
  V g = k.lane() >> 2, t = k.lane() & 3;
  V u = wk * s.unitsPerWarp + unit;
  int64_t quadBytes = s.units * unitBytes;
  Ptr x = xs + (step & 1) * s.xBytes() +
          ((wt * (s.warpTiles * 8) + g) * s.xStride + u * (unitColumns * 2)) +
          t * (wide ? 16 : 8);
  Ptr weights =
      ring + (slot * s.stageBytes + u * unitBytes) + (g >> 2) * quadBytes;
  // The unit's x for all groups: 8 bytes a step, two steps at once where a word
  // has two.
  SmallVector<Vs> xOf;
  for (int64_t n = 0; n < s.warpTiles; ++n)
    for (int64_t plane = 0; plane < s.planes; ++plane) {
      Ptr from = x + (plane * s.tokens + n * 8) * s.xStride;
      Vs &words = xOf.emplace_back();
      for (int64_t at = 0; at < unitColumns * 2; at += wide ? 64 : 32)
        words.append(k.loadWords(from + at, wide ? 4 : 2));
    }
  Vs next(acc.begin(), acc.end());
  for (int64_t i = 0; i < s.warpGroups; ++i) {
    // A warp without a group of its own here repeats one; finish() drops it.
    V group = k.minimum(wr + i * s.warpsRow, k.i32(s.groups - 1));
    if (s.groups % s.warpsRow == 0)
      group = wr + i * s.warpsRow;
    Ptr a = weights + group * (4 * quadBytes), b = a + 2 * quadBytes;
    V row = g & 3;
    V scale;
    if (fp8) {
      V all = k.minimum(firstGroup + group, k.i32(s.allGroups - 1));
      scale = k.loadF32(groupScales(all) +
                        ((step * s.units + u) * unitColumns >> 7) * 4);
    }
    Vs sums = next;
    if (fp8)
      for (V &v : sums)
        v = k.f32(0);
    unitSteps(
        k, format, a + row * 64, b + row * 64, a + 256 + row * 8,
        b + 256 + row * 8, [&](unsigned number, ArrayRef<V> fragment) {
          for (int64_t n = 0; n < s.warpTiles; ++n)
            for (int64_t plane = 0; plane < s.planes; ++plane) {
              int64_t at = (i * s.warpTiles + n) * 4;
              ArrayRef<V> c = ArrayRef<V>(sums).slice(at, 4);
              ArrayRef<V> in =
                  ArrayRef<V>(xOf[n * s.planes + plane]).slice(number * 2, 2);
              Vs d = takesHalf(format) ? k.mmaF16(fragment, in, c)
                                       : k.mmaBF16(fragment, in, c);
              std::copy(d.begin(), d.end(), sums.begin() + at);
            }
        });
    int64_t first = i * s.warpTiles * 4, last = first + s.warpTiles * 4;
    for (int64_t at = first; at < last; ++at)
      next[at] = fp8 ? k.fma(sums[at], scale, next[at]) : sums[at];
  }
  return next;
}

Vs TileBuilder::compute(ArrayRef<V> acc, V step, V slot) {
  Vs next(acc.begin(), acc.end());
  for (int64_t unit = 0; unit < s.unitsPerWarp; ++unit) {
    if (s.whole()) {
      next = computeUnit(next, step, slot, unit);
      continue;
    }
    // Units behind the last are not copied: what lies there may be anything.
    SmallVector<Type> types(next.size(), k.f32Type());
    V u = step * s.units + wk * s.unitsPerWarp + unit;
    Vs before = next;
    next = k.ifElse(
        u < s.allUnits, types,
        [&] { return computeUnit(before, step, slot, unit); },
        [&] { return before; });
  }
  return next;
}

void TileBuilder::finish(ArrayRef<V> acc, ArrayRef<V> squares) {
  // Ring and x have been read: sums of the warps take their place.
  int64_t rows = s.groups * 16;
  Ptr sums = ring;
  V g = k.lane() >> 2, t = k.lane() & 3;
  k.barrier();
  if (spec.norm)
    for (int64_t i = 0; i < tokensOfWarp(); ++i) {
      V mean = k.warpSum(squares[i]) * k.f32(1.0 / double(columns));
      V factor = k.reciprocal(k.sqrt(mean + k.f32(spec.eps)));
      k.when(k.lane() == 0,
             [&] { k.store(factors + (k.warp() + i * s.warps) * 4, factor); });
    }
  V active = wk >= 0;
  if (s.warpsK * s.warpsRow * s.warpsToken < s.warps)
    active = k.warp() < s.warpsK * s.warpsRow * s.warpsToken;
  for (int64_t i = 0; i < s.warpGroups; ++i) {
    V group = wr + i * s.warpsRow;
    k.when(active & (group < s.groups), [&] {
      for (int64_t n = 0; n < s.warpTiles; ++n) {
        V token = (wt * s.warpTiles + n) * 8 + t * 2;
        Ptr to = sums +
                 ((wk * s.tokens + token) * s.sumStride() + group * 16 + g) * 4;
        ArrayRef<V> c = acc.slice((i * s.warpTiles + n) * 4, 4);
        k.store(to, c[0]);
        k.store(to + s.sumStride() * 4, c[1]);
        k.store(to + 32, c[2]);
        k.store(to + s.sumStride() * 4 + 32, c[3]);
      }
    });
  }
  k.barrier();
  auto sumOf = [&](V token, V row) {
    V sum = k.f32(0);
    for (int64_t w = 0; w < s.warpsK; ++w)
      sum = sum + k.loadF32(sums +
                            ((token + w * s.tokens) * s.sumStride() + row) * 4);
    return sum;
  };
  auto factorOf = [&](unsigned segment, V token) {
    V factor = k.f32(resultFactor(format));
    const LinearSegment &seg = operands.segments[segment];
    if (format == Format::NVFP4)
      factor = factor * k.loadF32(k.buffer(seg.weight) +
                                  quant::packedTail(format, seg.rows, columns));
    if (spec.norm)
      factor = factor * k.loadF32(factors + token * 4);
    return factor;
  };
  int64_t outRows = spec.gated ? rows / 2 : rows;
  k.loop(k.thread(), k.i32(outRows * s.tokens), s.warps * 32, [&](V i) {
    V token = i / outRows, row = i % outRows;
    V real = firstToken + token;
    V live = real < tokens;
    if (spec.gated) {
      const LinearSegment &seg = operands.segments[0];
      V place = (firstGroup >> 1) * 16 + row;
      V gateRow = (row >> 4) * 32 + (row & 15);
      k.when(live & (place < seg.rows), [&] {
        V gate = sumOf(token, gateRow) * factorOf(0, token);
        V up = sumOf(token, gateRow + 16) * factorOf(1, token);
        k.store(k.buffer(seg.output) + k.to64(real) * (seg.rows * 4) +
                    place * 4,
                k.silu(gate) * up);
      });
      return;
    }
    eachSegment(firstGroup + (row >> 4), [&](unsigned n, V inside, V local) {
      const LinearSegment &seg = operands.segments[n];
      V place = local * 16 + (row & 15);
      k.when(live & inside & (place < seg.rows), [&] {
        V y = sumOf(token, row) * factorOf(n, token);
        V at = k.to64(real) * (seg.rows * 4) + k.to64(place * 4);
        if (spec.residual)
          y = y + k.loadF32(k.buffer(operands.residual) + at, Cached::L2);
        k.store(k.buffer(seg.output) + at, y);
      });
    });
  });
}

void TileBuilder::build() {
  int64_t ringBytes = llvm::alignTo(s.stages * s.stageBytes, 128);
  ring = k.shared(std::max(ringBytes + 2 * s.xBytes(), s.sumBytes()), 128);
  xs = ring + ringBytes;
  barriers = k.shared(8 * s.stages, 8);
  factors = k.shared(4 * s.tokens, 4);
  tokens = k.scalar32(0);
  firstGroup = k.block() * s.groups;
  firstToken = k.i32(0);
  if (spec.maxTokens > s.tokens) {
    // Tiles of tokens are next to each other, so that weights come from L2 but
    // once.
    V tiles = k.ceilDiv(tokens, s.tokens);
    firstGroup = k.block() / tiles * s.groups;
    firstToken = k.block() % tiles * s.tokens;
  }
  wk = k.warp() % s.warpsK;
  V other = k.warp() / s.warpsK;
  wr = other % s.warpsRow;
  wt = other / s.warpsRow;
  if (s.warpsK * s.warpsRow * s.warpsToken < s.warps)
    wt = k.minimum(wt, k.i32(s.warpsToken - 1));

  V first = k.warp() == 0;
  int64_t quadBytes = s.allUnits * quant::unitBytes(format);
  for (int64_t q = 0; q < s.groups * 4; q += 32) {
    V quad = k.lane() + q;
    V group = k.minimum(firstGroup + (quad >> 2), k.i32(s.allGroups - 1));
    copyFrom.push_back(groupWeights(group) + k.to64(quad & 3) * quadBytes);
  }
  k.when(first, [&] {
    k.when(k.lane() == 0, [&] {
      for (int64_t i = 0; i < s.stages; ++i)
        k.mbarrierInit(barriers + i * 8, 1);
      k.mbarrierInitFence();
    });
    k.syncWarp();
    k.loop(k.i32(0), k.i32(s.stages), 1, [&](V i) { issue(i, i); });
  });
  k.gridWait();
  k.gridTrigger();

  for (int64_t i = 0; i < tokensOfWarp(); ++i) {
    V token = firstToken + k.warp() + i * s.warps;
    V valid = token < tokens;
    V row = k.select(valid, token, k.i32(0));
    if (spec.outputs)
      row = k.loadI32(k.buffer(operands.outputs) + row * 4, Cached::L2);
    xRows.push_back(k.buffer(0) + k.to64(row) * (columns * 4));
    xValid.push_back(valid);
  }
  auto loadStep = [&](V step) {
    return loadX(k.minimum(step, k.i32(s.steps - 1)));
  };
  Vs carried = loadStep(k.i32(0));
  size_t one = carried.size(), xCount = one * s.ahead;
  for (int64_t i = 1; i < s.ahead; ++i)
    carried.append(loadStep(k.i32(i)));
  size_t accCount = s.warpGroups * s.warpTiles * 4;
  size_t squareCount = spec.norm ? tokensOfWarp() : 0;
  carried.append(accCount + squareCount, k.f32(0));
  carried.append({k.i32(0), k.i32(0)}); // slot, parity
  carried =
      k.loop(k.i32(0), k.i32(s.steps), 1, carried, [&](V step, ArrayRef<V> in) {
        ArrayRef<V> acc = in.slice(xCount, accCount);
        V slot = in[in.size() - 2], parity = in[in.size() - 1];
        Vs squares = storeX(in.take_front(one),
                            in.slice(xCount + accCount, squareCount), step);
        k.barrier();
        // Every warp is done with the step before: its slot is free.
        V ahead = step + (s.stages - 1);
        k.when(first & (step > 0) & (ahead < s.steps), [&] {
          issue(ahead, k.select(slot == 0, k.i32(s.stages - 1), slot - 1));
        });
        Vs next(in.begin() + one, in.begin() + xCount);
        next.append(loadStep(step + s.ahead));
        k.mbarrierWait(barriers + slot * 8, parity);
        next.append(compute(acc, step, slot));
        next.append(squares);
        V wraps = slot == s.stages - 1;
        next.push_back(k.select(wraps, k.i32(0), slot + 1));
        next.push_back(k.select(wraps, parity ^ 1, parity));
        return next;
      });
  ArrayRef<V> out = carried;
  finish(out.slice(xCount, accCount),
         out.slice(xCount + accCount, squareCount));
  k.finish();
}

} // namespace

Kernel linearTile(KernelSite site, const LinearSpec &spec) {
  std::string name = linearName("linear_tile", spec);
  TileShape shape(spec, site.gpu);
  std::string grid =
      std::to_string(llvm::divideCeil(shape.allGroups, shape.groups));
  if (spec.maxTokens > shape.tokens)
    grid = std::string("ceildiv(") + (spec.outputs ? "outputs" : "tokens") +
           ", " + std::to_string(shape.tokens) + ") * " + grid;
  if (!exists(site, name))
    TileBuilder(site, spec, shape, name).build();
  return {name, grid};
}

} // namespace mla::nvvm
