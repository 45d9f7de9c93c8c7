//===- PackedTiles.cpp - packed weights as tensor-core operands -----------===//
//
// Part of mla. Cost of a fragment (4 registers, 16 rows x 16 columns) beside
// its load: bf16 nothing, fp8_block 4 conversions, nvfp4 11 integer
// instructions for two and 4 products, int4_g32 4 + 3 integer instructions for
// two, 4 sums and 4 products.
//
//===----------------------------------------------------------------------===//
#include "PackedTiles.h"

using namespace mlir;

namespace mla::nvvm {

constexpr int64_t scalesAt = 256, scaleBytes = 8;

PackedTile::PackedTile(KernelBuilder &k, MatrixShape shape, Ptr base, V first,
                       bool aligned)
    : k(k), shape(shape), base(base) {
  Format format = shape.format;
  int64_t quadBytes =
      quant::packedUnits(format, shape.columns) * quant::unitBytes(format);
  V g = k.lane() >> 2, t = k.lane() & 3;
  auto rowAt = [&](V row) {
    return base + k.to64(row >> 2) * quadBytes + ((row & 3) * 64 + t * 16);
  };
  if (aligned) {
    lowRow = base + k.to64(first >> 2) * quadBytes +
             ((g >> 2) * quadBytes + (g & 3) * 64 + t * 16);
    highRow = lowRow + 2 * quadBytes;
    toScales = (g & 3) * (scaleBytes - 64) - t * 16 + scalesAt;
    if (format == Format::Int4G32)
      toScales = toScales + t * 2;
  } else {
    V last = k.i32(shape.rows - 1);
    lowRow = rowAt(k.minimum(first + g, last));
    highRow = rowAt(k.minimum(first + g + 8, last));
  }
  if (format == Format::FP8Block)
    blockScales =
        base + quant::packedTail(format, shape.rows, shape.columns) +
        k.to64(first >> 7) * (llvm::divideCeil(shape.columns, 128) * 4);
}

unsigned PackedTile::words(Format format) {
  switch (format) {
  case Format::FP8Block:
    return 17;
  case Format::NVFP4:
    return 12;
  case Format::Int4G32:
    return 10;
  default:
    return 16;
  }
}

int64_t PackedTile::units(Format format) {
  return spanColumns(format) / quant::unitColumns(format);
}

Vs PackedTile::loadUnit(V span, int64_t unit) const {
  Format format = shape.format;
  int64_t perSpan = units(format), bytes = quant::unitBytes(format);
  int64_t all = quant::packedUnits(format, shape.columns);
  // The last span may have fewer units than others; what is not there is 0.
  bool missing = all % perSpan && unit >= all % perSpan;
  V there = missing ? span * perSpan + unit < all : V();
  V at = span * (perSpan * bytes);
  if (missing)
    at = k.select(there, at + unit * bytes, at);
  Vs out;
  for (Ptr row : {lowRow, highRow})
    for (V word : k.loadWords(row + at + (missing ? 0 : unit * bytes), 4,
                              Cached::Stream))
      out.push_back(missing ? k.select(there, word, k.i32(0)) : word);
  return out;
}

Vs PackedTile::loadScales(V span) const {
  V at = span * quant::unitBytes(shape.format);
  switch (shape.format) {
  case Format::FP8Block:
    return {k.loadI32(blockScales + span * 4)};
  case Format::NVFP4: {
    Vs out;
    for (Ptr row : {lowRow, highRow})
      llvm::append_range(out,
                         k.loadWords(row + (at + toScales), 2, Cached::Stream));
    return out;
  }
  case Format::Int4G32:
    return {k.loadI16(lowRow + (at + toScales), Cached::Stream),
            k.loadI16(highRow + (at + toScales), Cached::Stream)};
  default:
    return {};
  }
}

Vs PackedTile::load(V span) const {
  Vs out;
  for (int64_t unit = 0; unit < units(shape.format); ++unit)
    llvm::append_range(out, loadUnit(span, unit));
  llvm::append_range(out, loadScales(span));
  return out;
}

/// Two f16, both the low (or high) half of `pair`.
static V broadcastHalf(KernelBuilder &k, V pair, bool high) {
  return k.permuteBytes(pair, pair, high ? 0x3232 : 0x1010);
}

PackedTile::Span PackedTile::open(ArrayRef<V> words) const {
  Span span;
  span.tile = this;
  span.words.assign(words.begin(), words.end());
  switch (shape.format) {
  case Format::FP8Block:
    span.scale = k.fromBits(words[16]);
    break;
  case Format::NVFP4: {
    // Thread t has the blocks t and t + 4: bytes t of two words. With 2^6 they
    // are exact with any code, as f16.
    V t = k.lane() & 3;
    V selector = t | ((t + 4) << 4);
    auto scales = [&](V first, V second, Vs &out) {
      V bytes =
          k.intrinsic("llvm.nvvm.prmt", k.i32Type(), {first, second, selector});
      V pair = k.mulF16(k.e4m3ToF16(bytes), k.i32(0x54005400)); // 64, 64
      out.push_back(broadcastHalf(k, pair, false));
      out.push_back(broadcastHalf(k, pair, true));
    };
    scales(words[8], words[9], span.lowScales);
    scales(words[10], words[11], span.highScales);
    break;
  }
  case Format::Int4G32: {
    // With 2^8, scales of 2^-22 are still normal; 8 times 8000 is finite.
    auto scale = [&](V word, Vs &out) {
      V s = k.minimum(k.fromBits(word << 16) * k.f32(256), k.f32(8000));
      out.assign(2, k.packF16(s, s));
    };
    scale(words[8], span.lowScales);
    scale(words[9], span.highScales);
    break;
  }
  default:
    break;
  }
  return span;
}

/// Pairs 2 * half and 2 * half + 1 of a word of 8 nvfp4 codes: two registers of
/// f16, times 2^-14.
static std::pair<V, V> nvfp4Pairs(V word, unsigned half) {
  constexpr int64_t both = 0x8E008E00, sign = 0x80008000, rest = 0x0E000E00;
  if (half == 0)
    return {word & both, (word << 3) & both};
  return {((word << 6) & rest) | ((word << 1) & sign),
          ((word << 9) & rest) | ((word << 2) & sign)};
}
/// The same of int4_g32: f16 values of code - 8, as 1024 + code less 1032.
static std::pair<V, V> int4Pairs(V word, unsigned half) {
  KernelBuilder &k = *word.k;
  auto pair = [&](unsigned p) {
    V code = (word >> (4 * p)) & int64_t(0x000F000F);
    return k.subF16(code | int64_t(0x64006400), k.i32(0x64086408));
  };
  return {pair(2 * half), pair(2 * half + 1)};
}

Vs PackedTile::Span::fragment(unsigned step) const {
  KernelBuilder &k = tile->k;
  switch (tile->shape.format) {
  case Format::FP8Block: {
    unsigned unit = step / 4, w = step % 4;
    V low = words[8 * unit + w], high = words[8 * unit + 4 + w];
    return {k.e4m3ToF16(low), k.e4m3ToF16(high), k.e4m3ToF16(low >> 16),
            k.e4m3ToF16(high >> 16)};
  }
  case Format::NVFP4:
  case Format::Int4G32: {
    unsigned w = step / 2, half = step % 2, chunk = step / chunkSteps;
    bool fp4 = tile->shape.format == Format::NVFP4;
    auto [a0, a2] =
        fp4 ? nvfp4Pairs(words[w], half) : int4Pairs(words[w], half);
    auto [a1, a3] =
        fp4 ? nvfp4Pairs(words[4 + w], half) : int4Pairs(words[4 + w], half);
    V low = lowScales[chunk], high = highScales[chunk];
    return {k.mulF16(a0, low), k.mulF16(a1, high), k.mulF16(a2, low),
            k.mulF16(a3, high)};
  }
  default: {
    unsigned unit = step / 2, w = 2 * (step % 2);
    return {words[8 * unit + w], words[8 * unit + 4 + w],
            words[8 * unit + w + 1], words[8 * unit + 4 + w + 1]};
  }
  }
}

V PackedTile::factor() const {
  switch (shape.format) {
  case Format::FP8Block:
    return k.f32(16);
  case Format::NVFP4: // 2^4 of x, 2^14 of codes, 2^-6 of scales
    return k.loadF32(base + quant::packedTail(shape.format, shape.rows,
                                              shape.columns)) *
           k.f32(4096);
  case Format::Int4G32: // 2^4 of x, 2^-8 of scales
    return k.f32(1.0 / 16);
  default:
    return k.f32(1);
  }
}

std::pair<V, V> packTokens(KernelBuilder &k, Format format,
                           ArrayRef<V> values) {
  if (format == Format::BF16)
    return {k.packBF16(values[0], values[1]), k.packBF16(values[2], values[3])};
  V small = k.f32(1.0 / 16);
  auto pack = [&](V low, V high) {
    return k.inlinePTX("cvt.rn.satfinite.f16x2.f32 $0, $1, $2;", "=r,f,f",
                       k.i32Type(), {(high * small).value, (low * small).value},
                       /*sideEffects=*/false);
  };
  return {pack(values[0], values[1]), pack(values[2], values[3])};
}

Vs loadTokens(KernelBuilder &k, Ptr row, V column, int64_t columns, bool whole,
              bool aligned) {
  if (whole && aligned)
    return k.loadFloats(row + column * 4, 4);
  Vs out;
  if (aligned) {
    V there = column < columns;
    for (V v : k.loadFloats(row + k.select(there, column, k.i32(0)) * 4, 4))
      out.push_back(k.select(there, v, k.f32(0)));
    return out;
  }
  for (int64_t i = 0; i < 4; ++i) {
    V there = column + i < columns;
    V v = k.loadF32(row + k.select(there, column + i, k.i32(0)) * 4);
    out.push_back(k.select(there, v, k.f32(0)));
  }
  return out;
}

Vs multiply(KernelBuilder &k, Format format, ArrayRef<V> a, ArrayRef<V> b,
            ArrayRef<V> acc) {
  return format == Format::BF16 ? k.mmaBF16(a, b, acc) : k.mmaF16(a, b, acc);
}

} // namespace mla::nvvm
