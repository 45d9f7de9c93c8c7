//===- StreamCore.cpp - packed weights times one token --------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "StreamCore.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

//===----------------------------------------------------------------------===//
// Shape
//===----------------------------------------------------------------------===//

int64_t StreamShape::otherBytes() const {
  int64_t sums = warpsK * rowBlocks() * 16 * 4;
  int64_t scaleBytes = scaleColumns * rowBlocks() * 16;
  int64_t xSumBytes = format == Format::Int4G32 ? units * 16 : 0;
  // Squares of 32 warps, barriers, zeros, what a kernel adds, alignment.
  return xBytes() + sums + scaleBytes + xSumBytes + 128 + warps() * stages * 8 +
         64 + 512 + 256 + extraBytes;
}

/// The weights below are from measurements on an H200 with matrices of 1,536 to
/// 20,480 rows.
bool StreamShape::choose(int64_t multiple) {
  bool small = quant::unitColumns(format) == 128;
  double whole = double(quads * units * quant::unitBytes(format));
  bool large = whole > (small ? 1.5 : 4) * 80e3; ///< some rings full
  double wantedWarps = small ? 14 : 16, best = 1e30;
  StreamShape found = *this;
  for (warpsRow = 1; warpsRow <= std::min<int64_t>(4, rowBlocks()); ++warpsRow)
    for (warpsK = 1; warpsK * warpsRow <= int64_t(wantedWarps); ++warpsK) {
      if ((warpsK - 1) * unitsPerWarp() >= units)
        continue;
      for (stageUnits = 1; stageUnits <= std::min<int64_t>(unitsPerWarp(), 8);
           ++stageUnits) {
        if (multiple && (multiple % stageUnits || unitsPerWarp() % stageUnits))
          continue;
        if (folded && (stageUnits % 4 || !even()))
          continue;
        int64_t all = stagesPerRow() * llvm::divideCeil(rowBlocks(), warpsRow);
        for (stages = 1; stages < all; ++stages) {
          ++stages;
          bool fits = sharedBytes() <= streamShared;
          --stages;
          if (!fits)
            break;
        }
        // With one stage a warp waits for each copy, unless it has but one.
        if (sharedBytes() > streamShared || (stages == 1 && all > 1))
          continue;
        double ring = std::min(whole, double(ringBytes()));
        double cost =
            double(unitsPerWarp() * warpsK) / double(units) *
            double(llvm::divideCeil(rowBlocks(), warpsRow) * warpsRow) /
            double(rowBlocks());
        // What is not on its way when the kernel may begin.
        cost *= 1 + (large ? 0.15 : 0.4) *
                        std::max(0.0, 1 - ring / std::min(whole, 80e3));
        // Too few warps leave decoding unhidden.
        cost *= 1 + 0.02 * (wantedWarps - double(warps()));
        cost *= 1 + 0.03 * double(warpsRow - 1);
        // Each copy and each stage has its own cost, which 4-bit formats, bound
        // by their instructions, cannot hide.
        cost *= 1 + (large ? small ? 40.0 : 20.0 : 5.0) /
                        double(stageUnits * quant::unitBytes(format));
        if (!even())
          cost *= 1.08;
        if (cost < best) {
          best = cost;
          found = *this;
        }
      }
    }
  *this = found;
  return best < 1e30;
}

//===----------------------------------------------------------------------===//
// Copies
//===----------------------------------------------------------------------===//

StreamCore::StreamCore(KernelBuilder &k, const StreamShape &shape)
    : k(k), s(shape) {
  ring = k.shared(s.ringBytes(), 128);
  xs = k.shared(s.xBytes(), 128);
  sums = k.shared(s.warpsK * s.rowBlocks() * 16 * 4);
  if (s.format == Format::FP8Block)
    scales = k.shared(s.scaleColumns * s.rowBlocks() * 16);
  if (s.format == Format::Int4G32)
    xSums = k.shared(s.units * 16);
  squares = k.shared(128);
  barriers = k.shared(s.warps() * s.stages * 8, 8);
  zeros = k.shared(64);
  g = k.lane() >> 2;
  t = k.lane() & 3;
  warpK = s.warpsRow == 1 ? k.warp() : k.warp() % s.warpsK;
  warpRow = s.warpsRow == 1 ? k.i32(0) : k.warp() / s.warpsK;
  firstUnit = warpK * s.unitsPerWarp();
  even = s.even();
  unitCount = k.i32(s.unitsPerWarp());
  if (s.warpsK * s.unitsPerWarp() != s.units)
    unitCount = k.minimum(unitCount, k.i32(s.units) - firstUnit);
  ring = ring + k.warp() * (s.stages * s.stageBytes());
  barriers = barriers + k.warp() * (s.stages * 8);
}

void StreamCore::init() {
  k.when(k.thread() < 4, [&] {
    k.storeWords(zeros + k.thread() * 16,
                 {k.i32(0), k.i32(0), k.i32(0), k.i32(0)});
  });
  k.when(k.lane() == 0, [&] {
    for (int64_t i = 0; i < s.stages; ++i)
      k.mbarrierInit(barriers + i * 8, s.copies());
    k.mbarrierInitFence();
  });
  k.syncWarp();
}

/// The first lanes fetch a quad each, or the first lane all.
void StreamCore::issue(V stage, V slot) {
  V perRow = k.ceilDiv(unitCount, s.stageUnits);
  V rowBlock = warpRow, at = k.i32(0);
  if (s.stagesPerRow() == 1) {
    rowBlock = warpRow + stage * s.warpsRow;
  } else if (s.rowBlocks() > 1) {
    rowBlock = warpRow + stage / perRow * s.warpsRow;
    at = stage % perRow * s.stageUnits;
  } else {
    at = stage * s.stageUnits;
  }
  V bytes = k.i32(s.stageUnits * quant::unitBytes(s.format));
  if (!even)
    bytes = k.minimum(bytes, (unitCount - at) * quant::unitBytes(s.format));
  Ptr barrier = barriers + slot * 8, to = ring + slot * s.stageBytes();
  k.when(k.lane() < s.copies(), [&] {
    V quad = rowBlock * 4 + k.lane();
    if (s.joined) {
      V count = k.minimum(quads - quad, k.i32(4));
      bytes = k.maximum(count, k.i32(0)) * bytes;
    } else {
      bytes = k.select(quad < quads, bytes, k.i32(0));
    }
    k.mbarrierExpect(barrier, bytes);
    k.when(bytes > 0, [&] {
      if (!s.joined)
        to = to + k.lane() * (s.stageUnits * quant::unitBytes(s.format));
      k.bulkCopy(to, weights(quad, firstUnit + at), bytes, barrier);
    });
  });
}

void StreamCore::fill() {
  rowBlocks = k.i32(s.rowBlocks());
  if (s.ragged)
    rowBlocks = k.ceilDiv(quads, 4);
  V mine = rowBlocks;
  if (s.warpsRow > 1)
    mine = (rowBlocks + (s.warpsRow - 1) - warpRow) / s.warpsRow;
  stageCount = mine * k.ceilDiv(unitCount, s.stageUnits);
  k.loop(k.i32(0), k.minimum(stageCount, k.i32(s.stages)), 1,
         [&](V i) { issue(i, i); });
}

void StreamCore::fetchScales(function_ref<Ptr(V, V)> from) {
  if (s.format != Format::FP8Block)
    return;
  k.loop(k.thread(), quads * s.scaleColumns, k.threads(), [&](V i) {
    k.store(scales + i * 4,
            k.loadF32(from(i / s.scaleColumns, i % s.scaleColumns)));
  });
}

//===----------------------------------------------------------------------===//
// x
//===----------------------------------------------------------------------===//

Vs StreamCore::loadX(const X &x, V column) {
  if (x.sources == 1)
    return loadFour(k, x.values, column, x.columns, Format::F32, Cached::L2,
                    x.columns % quant::unitColumns(s.format) == 0);
  int64_t padded = llvm::alignTo(x.columns, quant::unitColumns(s.format));
  V source = k.minimum(column / padded, k.i32(x.sources - 1));
  V local = column - source * padded;
  V last = source == x.sources - 1;
  V limit = k.select(last, k.i32(x.lastColumns), k.i32(x.columns));
  Ptr row = x.values + source * (x.columns * 4);
  Vs out;
  if (x.columns % 4 == 0 && x.lastColumns % 4 == 0) {
    V valid = local < limit;
    for (V v : k.loadFloats(row + k.select(valid, local, k.i32(0)) * 4, 4,
                            Cached::L2))
      out.push_back(k.select(valid, v, k.f32(0)));
    return out;
  }
  for (int64_t i = 0; i < 4; ++i) {
    V valid = local + i < limit;
    V v = k.loadF32(row + k.select(valid, local + i, k.i32(0)) * 4, Cached::L2);
    out.push_back(k.select(valid, v, k.f32(0)));
  }
  return out;
}

void StreamCore::storeX(const X &x, ArrayRef<V> in, ArrayRef<V> gamma, V column,
                        V &square) {
  Vs four(in.begin(), in.end());
  for (unsigned j = 0; x.gamma.value && j < 4; ++j) {
    square = k.fma(four[j], four[j], square);
    four[j] = four[j] * gamma[j];
  }
  bool half = takesHalf(s.format);
  std::array<V, 2> packed = packX(k, four, half);
  std::optional<V> sum;
  if (s.format == Format::Int4G32) {
    // Of the rounded values, so that a code of 8 is zero. A group is 8 lanes'.
    auto [a, b] = k.unpackF16(packed[0]);
    auto [c, d] = k.unpackF16(packed[1]);
    sum = (a + b) + (c + d);
    for (int64_t mask = 1; mask < 8; mask *= 2)
      sum = *sum + k.shuffleXor(*sum, mask);
  }
  int64_t columns = s.units * quant::unitColumns(s.format);
  k.when(column < columns, [&] {
    k.storeWords(xs + column * 2, packed);
    if (s.planes == 2)
      k.storeWords(xs + columns * 2 + column * 2,
                   packRest(k, four, packed, half));
    if (sum)
      k.when((k.lane() & 7) == 0,
             [&] { k.store(xSums + (column >> 3), *sum * k.f32(8)); });
  });
}

void StreamCore::stageX(const X &x, function_ref<void()> wait,
                        function_ref<void()> meanwhile) {
  int64_t columns = s.units * quant::unitColumns(s.format);
  int64_t chunks = llvm::divideCeil(columns, 4 * k.threads());
  int64_t round = chunks <= 4 ? chunks : 2;
  V first = k.thread() * 4, square = k.f32(0);
  auto column = [&](V base, int64_t i) { return base + i * (k.threads() * 4); };
  // Columns of the last round beyond the end load column 0 and store nothing.
  bool whole = columns % (4 * k.threads() * round) == 0;
  auto inside = [&](V c) {
    return whole ? c : k.select(c < columns, c, k.i32(0));
  };
  auto loadGamma = [&](V base) {
    Vs out;
    for (int64_t i = 0; x.gamma.value && i < round; ++i)
      out.append(loadFour(k, x.gamma, inside(column(base, i)), x.columns,
                          x.gammaFormat, Cached::Yes,
                          x.columns % quant::unitColumns(s.format) == 0));
    return out;
  };
  auto loadValues = [&](V base) {
    Vs out;
    for (int64_t i = 0; i < round; ++i)
      out.append(loadX(x, inside(column(base, i))));
    return out;
  };
  auto store = [&](ArrayRef<V> values, ArrayRef<V> gamma, V base, V &sum) {
    for (int64_t i = 0; i < round; ++i) {
      Vs four(values.begin() + 4 * i, values.begin() + 4 * i + 4);
      V c = column(base, i);
      if (!whole && x.gamma.value)
        for (V &v : four) // its square counts
          v = k.select(c < columns, v, k.f32(0));
      storeX(x, four, x.gamma.value ? gamma.slice(4 * i, 4) : gamma, c, sum);
    }
  };
  if (chunks <= round) {
    Vs gamma = loadGamma(first);
    wait();
    Vs values = loadValues(first);
    meanwhile();
    store(values, gamma, first, square);
  } else {
    wait();
    meanwhile();
    square = k.loop(k.i32(0), k.i32(llvm::divideCeil(chunks, round)), 1,
                    {square}, [&](V i, ArrayRef<V> in) {
                      V base = first + i * (round * k.threads() * 4);
                      V sum = in[0];
                      Vs gamma = loadGamma(base);
                      Vs values = loadValues(base);
                      store(values, gamma, base, sum);
                      return Vs{sum};
                    })[0];
  }
  if (x.gamma.value) {
    V sum = k.warpSum(square);
    k.when(k.lane() == 0, [&] { k.store(squares + k.warp() * 4, sum); });
  }
}

/// The sum, by a tree.
static V addUp(Vs parts) {
  for (; parts.size() > 1; parts.truncate((parts.size() + 1) / 2))
    for (size_t i = 0; i < parts.size() / 2; ++i)
      parts[i] = parts[i] + parts[parts.size() - 1 - i];
  return parts[0];
}

V StreamCore::normFactor(double eps, int64_t columns) {
  // Every thread all of them: sooner there than by shuffles.
  Vs parts;
  int64_t i = 0;
  for (; i + 4 <= k.warps(); i += 4)
    parts.append(k.loadFloats(squares + i * 4, 4));
  for (; i < k.warps(); ++i)
    parts.push_back(k.loadF32(squares + i * 4));
  return k.rsqrt(
      k.fma(addUp(parts), k.f32(1.0 / double(columns)), k.f32(eps)));
}

//===----------------------------------------------------------------------===//
// Products
//===----------------------------------------------------------------------===//

/// One unit of 16 rows: `a` is where quad g / 4 has it. Two more quads on are the
/// instruction's rows 8 to 15, which are left out if `half`.
Vs StreamCore::unit(ArrayRef<V> acc, Ptr a, V rowBlock, V u, bool half) {
  Ptr b = a + 2 * s.stageUnits * quant::unitBytes(s.format);
  V row = (g & 3) * 64 + t * 16;
  Vs wa = k.loadWords(a + row, 4), wb(4, k.i32(0));
  if (!half)
    wb = k.loadWords(b + row, 4);
  Vs zero(4, k.f32(0));
  Ptr x = xA + u * strideA;
  if (s.format == Format::BF16) {
    Vs x0 = k.loadWords(x, 2), x1 = k.loadWords(x + 32, 2);
    Vs c = k.mmaBF16({wa[0], wb[0], wa[1], wb[1]}, x0, acc);
    return k.mmaBF16({wa[2], wb[2], wa[3], wb[3]}, x1, c);
  }
  if (s.format == Format::FP8Block) {
    Vs c = zero;
    for (unsigned w = 0; w < 4; ++w)
      c = k.mmaF16({k.e4m3ToF16(wa[w]), k.e4m3ToF16(wb[w]),
                    k.e4m3ToF16(wa[w] >> 16), k.e4m3ToF16(wb[w] >> 16)},
                   k.loadWords(x + w * 32, 2), c);
    Ptr scale =
        scales +
        (((rowBlock * 4 + (g >> 2)) * s.scaleColumns) + scaleColumn(u)) * 4;
    V fa = k.loadF32(scale), fb = k.f32(0);
    if (!half)
      fb = k.loadF32(scale + 2 * s.scaleColumns * 4);
    return {k.fma(c[0], fa, acc[0]), k.fma(c[1], fa, acc[1]),
            k.fma(c[2], fb, acc[2]), k.fma(c[3], fb, acc[3])};
  }
  Vs c = zero, d = zero;
  if (s.format == Format::NVFP4) {
    Ptr x2 = xB + u * strideB;
    for (unsigned w = 0; w < 4; ++w) {
      Vs in = k.loadWords((w < 2 ? x : x2) + (w % 2) * 16, 4);
      Vs da = decodeFp4(k, wa[w]), db = half ? wb : decodeFp4(k, wb[w]);
      c = k.mmaF16({da[0], db[0], da[1], db[1]}, {in[0], in[1]}, c);
      d = k.mmaF16({da[2], db[2], da[3], db[3]}, {in[2], in[3]}, d);
    }
    // Columns 2 t and 2 t + 1 of the result are blocks: their scales.
    V at = (g & 3) * 8 + t * 2 + 256;
    auto [a0, a1] = k.unpackF16(k.e4m3ToF16(k.loadI16(a + at)));
    auto [b0, b1] = half ? std::pair(k.f32(0), k.f32(0))
                         : k.unpackF16(k.e4m3ToF16(k.loadI16(b + at)));
    return {k.fma(c[0] + d[0], a0, acc[0]), k.fma(c[1] + d[1], a1, acc[1]),
            k.fma(c[2] + d[2], b0, acc[2]), k.fma(c[3] + d[3], b1, acc[3])};
  }
  for (unsigned w = 0; w < 4; ++w) {
    Vs in = k.loadWords(x + w * 16, 4);
    Vs da = decodeInt4(k, wa[w]), db = half ? wb : decodeInt4(k, wb[w]);
    c = k.mmaF16({da[0], db[0], da[2], db[2]}, {in[0], in[2]}, c);
    d = k.mmaF16({da[1], db[1], da[3], db[3]}, {in[1], in[3]}, d);
  }
  // Groups 2 t and 2 t + 1; there are four, and the other columns are zero.
  V pair = t & 1;
  V at = (g & 3) * 8 + pair * 4 + 256;
  V sa = k.loadI32(a + at), sb = half ? k.i32(0) : k.loadI32(b + at);
  V live = t < 2;
  sa = k.select(live, sa, k.i32(0));
  sb = k.select(live, sb, k.i32(0));
  auto [a0, a1] = k.unpackBF16(sa);
  auto [b0, b1] = k.unpackBF16(sb);
  Vs sum = k.loadFloats(xSums + (u * 16 + pair * 8), 2);
  V one = k.f32(16777216.0), high = k.f32(1048576.0), minus = k.f32(-1);
  auto value = [&](unsigned i) {
    return k.fma(c[i], one, k.fma(d[i], high, sum[i % 2] * minus));
  };
  return {k.fma(value(0), a0, acc[0]), k.fma(value(1), a1, acc[1]),
          k.fma(value(2), b0, acc[2]), k.fma(value(3), b1, acc[3])};
}

/// Four units of the one quad from `u` on, which lie one behind the other at `a`: the
/// instruction's quads. x of unit i is in column i, or 2 i and 2 i + 1 if exact.
Vs StreamCore::foldedUnits(ArrayRef<V> acc, Ptr a, V u) {
  int64_t unitBytes = quant::unitBytes(s.format);
  a = a + (g >> 2) * unitBytes + (g & 3) * 64 + t * 16;
  Vs wa = k.loadWords(a, 4), wb = k.loadWords(a + 2 * unitBytes, 4);
  Ptr x = xA + u * strideA;
  Vs x0 = k.loadWords(x, 2), x1 = k.loadWords(x + 32, 2);
  // Apart, so that one does not wait for the other.
  Vs c = k.mmaBF16({wa[0], wb[0], wa[1], wb[1]}, x0, acc);
  Vs d = k.mmaBF16({wa[2], wb[2], wa[3], wb[3]}, x1, Vs(4, k.f32(0)));
  for (unsigned i = 0; i < 4; ++i)
    c[i] = c[i] + d[i];
  return c;
}

/// The sum of row g % 4: of the result's rows and columns those that belong together.
V StreamCore::foldedSum(ArrayRef<V> acc) {
  V zero = k.f32(0), quad = g >> 2, low, high;
  if (s.planes == 2) {
    low = k.select(t == quad, acc[0] + acc[1], zero);
    high = k.select(t == quad + 2, acc[2] + acc[3], zero);
  } else {
    V first = quad == 0;
    low = k.select(t == 0, k.select(first, acc[0], acc[1]), zero);
    high = k.select(t == 1, k.select(first, acc[2], acc[3]), zero);
  }
  V sum = low + high;
  for (int64_t mask : {1, 2, 16})
    sum = sum + k.shuffleXor(sum, mask);
  return sum;
}

void StreamCore::flush(ArrayRef<V> acc, V rowBlock) {
  if (s.folded) {
    V sum = foldedSum(acc);
    k.when((t == 0) & (g < 4),
           [&] { k.store(sums + (warpK * 16 + g) * 4, sum); });
    return;
  }
  V low = acc[0], high = acc[2];
  bool apart = quant::unitColumns(s.format) == 128;
  if (apart || s.planes == 2) {
    low = low + acc[1];
    high = high + acc[3];
  }
  if (apart)
    for (int64_t mask = 1; mask < 4; mask *= 2) {
      low = low + k.shuffleXor(low, mask);
      high = high + k.shuffleXor(high, mask);
    }
  k.when(t == 0, [&] {
    Ptr to = sums + (warpK * (s.rowBlocks() * 16) + rowBlock * 16 + g) * 4;
    k.store(to, low);
    k.store(to + 32, high);
  });
}

void StreamCore::run() {
  bool wide = quant::unitColumns(s.format) == 128;
  int64_t unitX = quant::unitColumns(s.format) * 2;
  if (!wide) {
    xA = xs + t * 8;
    if (s.folded && s.planes == 2)
      xA = xA + (g >> 1) * unitX + (g & 1) * (s.units * unitX);
    else if (s.folded)
      xA = xA + (g & 3) * unitX;
    else if (s.planes == 2)
      xA = xA + k.select(g == 1, k.i32(s.units * unitX), k.i32(0));
    strideA = k.i32(unitX);
  } else {
    bool fp4 = s.format == Format::NVFP4;
    xA = k.select(g == t, xs + t * (fp4 ? 32 : 64), zeros);
    strideA = k.select(g == t, k.i32(unitX), k.i32(0));
    xB = k.select(g == t + 4, xs + (t + 4) * 32, zeros);
    strideB = k.select(g == t + 4, k.i32(unitX), k.i32(0));
  }
  int64_t unitBytes = quant::unitBytes(s.format);
  V perRow =
      even ? k.i32(s.stagesPerRow()) : k.ceilDiv(unitCount, s.stageUnits);
  int64_t mostRows = llvm::divideCeil(s.rowBlocks(), s.warpsRow);
  bool refills = s.stagesPerRow() * mostRows > s.stages;
  // Up to two quads are rows 0 to 7; decoding others would be for nothing.
  bool alwaysHalf = s.quads <= 2;
  bool lastHalf =
      wide && !alwaysHalf && s.ragged && (s.quads % 4 == 1 || s.quads % 4 == 2);
  // Slot, its parity, stage.
  Vs state = {k.i32(0), k.i32(0), k.i32(0)};
  k.loop(
      warpRow, rowBlocks, s.warpsRow, state, [&](V rowBlock, ArrayRef<V> in) {
        Vs carried(4, k.f32(0));
        carried.append(in.begin(), in.end());
        carried =
            k.loop(k.i32(0), perRow, 1, carried, [&](V at, ArrayRef<V> now) {
              Vs acc(now.begin(), now.begin() + 4);
              V slot = now[4], parity = now[5], stage = now[6];
              k.mbarrierWait(barriers + slot * 8, parity);
              Ptr from = ring + slot * s.stageBytes();
              if (!s.folded)
                from = from + (g >> 2) * (s.stageUnits * unitBytes);
              V u = firstUnit + at * s.stageUnits;
              Vs before = acc;
              if (stageFactor)
                acc = Vs(4, k.f32(0));
              auto units = [&](bool half) {
                if (s.folded) {
                  Vs c = acc;
                  for (int64_t i = 0; i < s.stageUnits; i += 4)
                    c = foldedUnits(c, from + i * unitBytes, u + i);
                  return c;
                }
                if (even && s.stageUnits <= 2) {
                  Vs c = acc;
                  for (int64_t i = 0; i < s.stageUnits; ++i)
                    c = unit(c, from + i * unitBytes, rowBlock, u + i, half);
                  return c;
                }
                V count = k.i32(s.stageUnits);
                if (!even)
                  count = k.minimum(count, unitCount - at * s.stageUnits);
                return k.loop(k.i32(0), count, 1, acc, [&](V i, ArrayRef<V> c) {
                  return unit(c, from + i * unitBytes, rowBlock, u + i, half);
                });
              };
              if (lastHalf)
                acc = k.ifElse(
                    rowBlock * 4 + 2 < quads, SmallVector<Type>(4, k.f32Type()),
                    [&] { return units(false); }, [&] { return units(true); });
              else
                acc = units(alwaysHalf);
              if (stageFactor) {
                V factor = stageFactor(u);
                for (unsigned i = 0; i < 4; ++i)
                  acc[i] = k.fma(acc[i], factor, before[i]);
              }
              k.syncWarp();
              if (refills)
                k.when(stage + s.stages < stageCount,
                       [&] { issue(stage + s.stages, slot); });
              V wraps = slot == s.stages - 1;
              acc.push_back(k.select(wraps, k.i32(0), slot + 1));
              acc.push_back(k.select(wraps, parity ^ 1, parity));
              acc.push_back(stage + 1);
              return acc;
            });
        ArrayRef<V> out = carried;
        flush(out.take_front(4), rowBlock);
        return Vs(out.begin() + 4, out.end());
      });
}

V StreamCore::sum(V row) {
  Vs parts;
  for (int64_t w = 0; w < s.warpsK; ++w)
    parts.push_back(k.loadF32(sums + (row + w * (s.rowBlocks() * 16)) * 4));
  V sum = addUp(parts);
  double factor = s.format == Format::BF16    ? 1
                  : s.format == Format::NVFP4 ? 16.0 * 16384
                                              : 16;
  return factor == 1 ? sum : sum * k.f32(factor);
}

} // namespace mla::nvvm
