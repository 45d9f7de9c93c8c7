//===- LargeLoads.cpp - operands of the products of many tokens -----------===//
//
// Part of mla. Which rows and tokens a tile of a linear has, the copies into shared
// memory, and packed words as fragments.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm::large {

int64_t rowTiles(const LinearSpec &spec) {
  int64_t warps = 0;
  if (spec.gated)
    warps = llvm::divideCeil(spec.segments[0].rows, warpRows / 2);
  else
    for (const MatrixShape &segment : spec.segments)
      warps += llvm::divideCeil(segment.rows, warpRows);
  return llvm::divideCeil(warps, warpCount);
}

Shape shapeFor(const LinearSpec &spec, const Gpu &gpu, bool four) {
  Format format = spec.segments[0].format;
  Shape s;
  s.format = format;
  s.four = four;
  bool scales = quant::unitBytes(format) > 256;
  s.quadBytes = scales ? 288 : 512;
  s.columns = quant::unitColumns(format) * (scales ? 1 : 2);
  s.slotsB = scales ? 5 : 4;
  // The tile whose waves take the least time; W costs as much as some tokens.
  int64_t tiles = rowTiles(spec), best = 0;
  for (int64_t tokens = 128; tokens >= 64; tokens -= 16) {
    int64_t blocks = tiles * llvm::divideCeil(spec.maxTokens, tokens);
    int64_t cost =
        llvm::divideCeil(blocks, gpu.multiprocessors) * (tokens + 16);
    if (!best || cost < best)
      best = cost, s.tokens = s.slotTokens = tokens;
  }
  return s;
}

/// Tiles of the launch; of experts' some at the end may be empty.
V LargeLinear::tiles() {
  V tokens = k.scalar32(0);
  if (!groups)
    return k.ceilDiv(tokens, s.tokens) * rowTiles(spec);
  V pairs = tokens * groups->topk;
  return (k.ceilDiv(pairs, expertTileTokens) +
          k.minimum(pairs, k.i32(groups->experts))) *
         rowTiles(spec);
}

/// Which rows and tokens are this warp's.
void LargeLinear::locate(V tile, V thread) {
  lane = thread & 31, warp = thread >> 5;
  if (groups)
    locateGroup(tile);
  else
    locateLinear(tile);
}

void LargeLinear::locateLinear(V tile) {
  // Blocks that run together: 8 row tiles times as many token tiles as fit.
  int64_t rowTileCount = rowTiles(spec), band = 8;
  V tokens = k.scalar32(0), tokenTiles = k.ceilDiv(tokens, s.tokens);
  V first = tile / (tokenTiles * band) * band;
  V within = tile % (tokenTiles * band);
  V height = k.minimum(k.i32(rowTileCount) - first, k.i32(band));
  V rowTile = first + within % height;
  firstToken = within / height * s.tokens;
  endToken = k.minimum(firstToken + s.tokens, tokens);

  V warpAt = rowTile * warpCount + warp;
  if (spec.gated) {
    localRow = warpAt * (warpRows / 2);
    rows = k.i32(spec.segments[0].rows);
    quadEnd = k.i32(quant::packedQuads(spec.segments[0].rows));
    weight = {k.buffer(1), k.buffer(2)};
    y = k.buffer(3);
  } else {
    int64_t at = 0;
    for (auto [i, segment] : llvm::enumerate(spec.segments)) {
      V local = (warpAt - at) * warpRows;
      Ptr w = k.buffer(1 + 2 * i), out = k.buffer(2 + 2 * i);
      V count = k.i32(segment.rows),
        quads = k.i32(quant::packedQuads(segment.rows));
      if (i == 0) {
        localRow = local, rows = count, quadEnd = quads, weight = {w}, y = out;
      } else {
        V here = warpAt >= at;
        localRow = k.select(here, local, localRow);
        rows = k.select(here, count, rows);
        quadEnd = k.select(here, quads, quadEnd);
        weight = {k.select(here, w, weight[0])};
        y = k.select(here, out, y);
      }
      at += llvm::divideCeil(segment.rows, warpRows);
    }
  }
}

/// Where this lane copies from.
void LargeLinear::setUpSources() {
  // Of a warp's 8 quads the last 4 may be of `up`. Rows are padded to 4 quads, rows
  // beyond become zeros.
  auto source = [&](V at, V &bytes) {
    V quad = localRow / 4 + (spec.gated ? at % (quadsOfWarp / 2) : at);
    Ptr base = weight[0];
    if (spec.gated)
      base = k.select(at >= quadsOfWarp / 2, weight[1], weight[0]);
    bytes = isWhole() ? k.i32(16)
                      : k.select(quad < quadEnd, k.i32(16), k.i32(0));
    return base + k.to64(quad) * quadStride();
  };
  for (int64_t half = 0; half < 2; ++half)
    if (s.hasScales()) // two quads an instruction
      from.a[half] = source((lane >> 4) + 4 * half, from.bytesA[half]) +
                     (lane & 15) * 16;
    else
      from.a[half] =
          source(k.i32(4 * half), from.bytesA[half]) + lane * 16;
  if (s.hasScales())
    from.scales =
        source(lane >> 1, from.bytesScales) + ((lane & 1) * 16 + 256);

  from.copies = warp * packedTokens < endToken - firstToken;
  if (!groups) {
    from.x = k.buffer(0) +
             k.to64(firstToken / packedTokens + warp) * bytesOfTokens() +
             lane * 16;
    return;
  }
  // Tokens 4 * i + lane / 8 of the warp's, 16 bytes each. Where these stand among
  // the token's 128 depends on its place in 16 tokens, there and here.
  for (int64_t i = 0; i < 4; ++i) {
    V at = (lane >> 3) + 4 * i;
    // Of an empty tile, which is not copied, the first.
    V place = k.maximum(k.minimum(firstToken + warp * packedTokens + at,
                                  endToken - 1),
                        k.i32(0));
    V row = place;
    if (groups->gather)
      row = k.loadI32(k.buffer(1) + k.to64(place) * 4) / groups->topk;
    from.gathered[i] = row / packedTokens * (bytesOfTokens() / 16) +
                       row % packedTokens * 8 +
                       (((lane ^ at ^ row) & 7));
  }
}

/// Where this lane loads its fragments.
void LargeLinear::setUpFragments() {
  // Row of a lane's half h: of 16 rows of gate or up 2 * g + h, else of 32 rows
  // 4 * g + 2 * mTile + h: rows of a lane are neighbours, and stored together. With
  // g odd the halves change places, so that lanes hit different banks.
  V g = k.lane() >> 2, t = k.lane() & 3;
  for (int64_t h = 0; h < 2; ++h) {
    V turned = (g & 1) ^ h;
    V quad = spec.gated ? g >> 1 : g;
    V row = spec.gated ? (g & 1) * 2 + turned : turned;
    Ptr at = slotA + quad * s.quadBytes;
    rawA[h] = at + (row * 64 + t * 16);
    scalesA[h] = at + (row * 8 + 256);
  }
  V matrix = k.lane() >> 3, row = (matrix >> 1) * 8 + (k.lane() & 7);
  int64_t pitch = s.four ? 64 : 2 * chunkColumns;
  V swizzle = s.four ? row >> 1 & 3 : row & 7;
  fragmentB = row * pitch + ((matrix & 1) ^ swizzle) * 16;
}

void LargeLinear::setUpBarriers() {
  V at = k.warp();
  slotA = k.shared(warpCount * s.bytesA(), 128) + at * s.bytesA();
  slotsB = k.shared(s.slotsB * s.bytesB(), 128);
  Ptr all = k.shared(8 * warpCount, 8);
  fullA = all + at * 8;
  fullB = k.shared(8 * s.slotsB, 8);
  emptyB = k.shared(8 * s.slotsB, 8);
  k.when(k.thread() == 0, [&] {
    for (int64_t i = 0; i < warpCount; ++i)
      k.mbarrierInit(all + 8 * i, 32);
    for (int64_t i = 0; i < s.slotsB; ++i) {
      k.mbarrierInit(fullB + 8 * i, blockThreads);
      k.mbarrierInit(emptyB + 8 * i, warpCount);
    }
    k.mbarrierInitFence();
  });
  k.barrier();
}

/// Starts the copy of a unit of this warp's rows. The words of the one before must
/// be in registers.
void LargeLinear::issueA(V unit) {
  k.syncWarp();
  V at = parts == 1 ? unit : unit % unitsOfPart;
  V source = k.to64(at) * s.quadBytes;
  if (s.hasScales()) {
    Ptr to = slotA + (lane >> 4) * s.quadBytes + (lane & 15) * 16;
    for (int64_t i = 0; i < 4; ++i)
      k.cpAsync16(to + 2 * i * s.quadBytes,
                  from.a[i / 2] + source + i % 2 * 2 * quadStride(),
                  from.bytesA[i / 2]);
    k.when(lane < 16, [&] {
      k.cpAsync16(slotA + (lane >> 1) * s.quadBytes + ((lane & 1) * 16 + 256),
                  from.scales + source, from.bytesScales);
    });
  } else {
    for (int64_t i = 0; i < 8; ++i) {
      V bytes = from.bytesA[i / 4];
      // An odd number of packed units: the second half of the last is zeros.
      if (quant::packedUnits(s.format, columns()) % 2)
        bytes = k.select((at == unitsOfPart - 1) & (lane >= 16), k.i32(0), bytes);
      k.cpAsync16(slotA + lane * 16 + i * s.quadBytes,
                  from.a[i / 4] + source + i % 4 * quadStride(), bytes);
    }
  }
  k.cpAsyncArrive(fullA);
}

V LargeLinear::slotOf(V chunk) {
  return (base * s.chunks() + chunk) % s.slotsB;
}

/// Starts this warp's 16 tokens of a chunk of x16, when the slot is empty. Warps
/// without tokens arrive at once, which counts for this chunk: they have seen the
/// one that was in its slot.
void LargeLinear::issueB(V chunk) {
  V slot = slotOf(chunk);
  k.when(from.copies, [&] {
    V round = (base * s.chunks() + chunk) / s.slotsB;
    k.mbarrierWait(emptyB + slot * 8, (round & 1) ^ 1);
    V source = chunk;
    int64_t chunksOfPart = unitsOfPart * s.chunks();
    if (parts > 1) {
      // Parts of x16 are padded to 128 columns.
      int64_t stored = llvm::alignTo(columns(), 128) / chunkColumns;
      source = chunk / chunksOfPart * stored + chunk % chunksOfPart;
    }
    Ptr to = slotsB + slot * s.bytesB() + warp * s.pieceB() + lane * 16;
    if (groups) {
      for (int64_t i = 0; i < 4; ++i)
        k.cpAsync16(to + i * 512,
                    k.buffer(0) +
                        k.to64(from.gathered[i] + source * (s.pieceB() / 16)) *
                            16);
      return;
    }
    Ptr x = from.x + k.to64(source) * s.pieceB();
    for (int64_t i = 0; i < s.pieceB(); i += 512) {
      if (i + 512 <= s.pieceB())
        k.cpAsync16(to + i, x + i);
      else
        k.when(lane < (s.pieceB() - i) / 16,
               [&] { k.cpAsync16(to + i, x + i); });
    }
  });
  k.cpAsyncArrive(fullB + slot * 8);
}

void LargeLinear::waitB(V chunk) {
  V round = (base * s.chunks() + chunk) / s.slotsB;
  k.mbarrierWait(fullB + slotOf(chunk) * 8, round & 1);
}

/// The lane's packed words of a unit (and its scales) for each m-tile and half.
Vs LargeLinear::loadWords(V unit) {
  k.mbarrierWait(fullA, (base + unit) & 1);
  if (s.four)
    return loadWords4(unit);
  Vs words;
  for (int64_t i = 0; i < mTiles * 2; ++i)
    for (int64_t part = 0; part < s.rowWords() / 4; ++part)
      words.append(k.loadWords(
          rawA[i % 2] + (i / 2 * bytesOfMTile(64) + part * 256), 4));
  if (!s.hasScales())
    return words;
  V t = lane & 3;
  for (int64_t i = 0; i < mTiles * 2; ++i) {
    Ptr at = scalesA[i % 2] + i / 2 * bytesOfMTile(8);
    if (s.format == Format::NVFP4) {
      // Thread t has columns of blocks t and t + 4. e4m3 times 2^6 is f16.
      V both = k.loadI8(at + t) | k.loadI8(at + t + 4) << 8;
      words.push_back(k.mulF16(k.e4m3ToF16(both), k.i32(0x54005400)));
    } else {
      V scale = k.fromBits(k.loadI16(at + t * 2) << 16) * k.f32(256);
      scale = k.minimum(k.maximum(scale, k.f32(-8188)), k.f32(8188));
      words.push_back(k.packF16(scale, scale));
    }
  }
  return words;
}

/// The same for fp4: for each m-tile and half 2 words a step of 64 columns, then for
/// each m-tile the scales of a step (row g or, in odd lanes, g + 8). A block of 16
/// columns takes two lanes: thread t has half t % 2 of blocks t / 2 and t / 2 + 2.
Vs LargeLinear::loadWords4(V unit) {
  V t = lane & 3;
  V within = (t >> 1) * 16 + (t & 1) * 4 - t * 16;
  Vs words;
  for (int64_t i = 0; i < mTiles * 2; ++i)
    for (int64_t step = 0; step < 2; ++step)
      for (int64_t high = 0; high < 2; ++high) {
        V v = k.loadI32(rawA[i % 2] + within +
                        (i / 2 * bytesOfMTile(64) + high * 32 + step * 8));
        // Signs and magnitudes to the nibbles that they make up.
        V out = v & int64_t(0x80008000);
        for (auto [left, mask] :
             std::initializer_list<std::pair<int64_t, int64_t>>{
                 {3, 0x70007000}, {-1, 0x08000800}, {2, 0x07000700},
                 {-7, 0x00800080}, {1, 0x00700070}, {-10, 0x00080008},
                 {0, 0x00070007}})
          out = out | ((left < 0 ? v >> -left : v << left) & mask);
        words.push_back(out);
      }
  Ptr scales = k.select((t & 1) == 1, scalesA[1], scalesA[0]);
  for (int64_t mTile = 0; mTile < mTiles; ++mTile)
    words.append(k.loadWords(scales + mTile * bytesOfMTile(8), 2));
  return words;
}

/// Fragments of two n-tiles (16 tokens): b0, b1 of the first, of the second; fp4:
/// then the scales of each.
Vs LargeLinear::loadTokens(V chunk, int64_t step, int64_t pair) {
  V offset = slotOf(chunk) * s.bytesB();
  // 16-byte pieces 2 * step and 2 * step + 1 of a row, turned as the row has it.
  Vs out = k.ldmatrix(slotsB + ((offset + fragmentB) ^ (step * 32)) +
                      pair * s.pieceB());
  Ptr slot = slotsB + offset + pair * s.pieceB();
  if (s.four)
    for (int64_t n = 0; n < 2; ++n)
      out.push_back(k.loadI32(slot + (lane >> 2) * 8 +
                              (1024 + n * 64 + step * 4)));
  return out;
}

/// A fragments of step `step` of a unit: a0 to a3 of each m-tile.
Vs LargeLinear::decode(ArrayRef<V> words, int64_t step) {
  Vs a;
  if (s.four) {
    // a0 to a3, then the scales of all m-tiles.
    for (int64_t mTile = 0; mTile < mTiles; ++mTile)
      for (int64_t i : {0, 4, 1, 5})
        a.push_back(words[mTile * 8 + step * 2 + i]);
    for (int64_t mTile = 0; mTile < mTiles; ++mTile)
      a.push_back(words[mTiles * 8 + mTile * 2 + step]);
    return a;
  }
  for (int64_t mTile = 0; mTile < mTiles; ++mTile) {
    Vs low(2), high(2); // rows g and g + 8: columns 4t, 4t + 1; 4t + 2, 4t + 3
    for (int64_t i = 0; i < 2; ++i) {
      int64_t row = 2 * mTile + i;
      auto word = [&](int64_t w) { return words[s.rowWords() * row + w]; };
      switch (s.format) {
      case Format::BF16:
        // Not a copy for ptxas, which would make it again for each product.
        low[i] = word(2 * step) ^ zero, high[i] = word(2 * step + 1) ^ zero;
        break;
      case Format::FP8Block:
        low[i] = k.e4m3ToF16(word(step) & 0xFFFF);
        high[i] = k.e4m3ToF16(word(step) >> 16);
        break;
      case Format::NVFP4: {
        V v = word(step / 2);
        V both = words[mTiles * 2 * s.rowWords() + row];
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
        V scale = words[mTiles * 2 * s.rowWords() + row];
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
