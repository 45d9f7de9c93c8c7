//===- LargeLoads.cpp - operands of the products of many tokens -----------===//
//
// Part of mla. Which rows and tokens a block has, the copies into shared memory,
// and packed words as fragments.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm::large {

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

} // namespace mla::nvvm::large
