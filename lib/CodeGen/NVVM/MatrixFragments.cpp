//===- MatrixFragments.cpp - packed weights as fragments ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "MatrixKernels.h"

using namespace mlir;

namespace mla::nvvm {

LinearOperands::LinearOperands(const LinearSpec &spec) {
  access.push_back("read"); // x
  if (spec.norm) {
    gamma = access.size();
    access.push_back("read");
  }
  for (const MatrixShape &shape : spec.segments) {
    segments.push_back({shape.rows, unsigned(access.size()), 0});
    access.push_back("read");
    if (!spec.gated) {
      segments.back().output = access.size();
      access.push_back("write");
    }
  }
  if (spec.gated) {
    for (LinearSegment &segment : segments)
      segment.output = access.size();
    access.push_back("write");
  }
  if (spec.outputs) {
    outputs = access.size();
    access.push_back("read");
  }
  if (spec.residual) {
    residual = access.size();
    access.push_back("read");
  }
}

std::string linearName(StringRef family, const LinearSpec &spec) {
  std::string name = kernelName(family, formatName(spec.segments[0].format));
  for (const MatrixShape &shape : spec.segments)
    name += "_" + std::to_string(shape.rows);
  name = kernelName(name, spec.segments[0].columns, spec.maxTokens);
  if (spec.norm)
    name = kernelName(name, "norm", formatName(spec.gamma), nameOf(spec.eps));
  if (spec.residual)
    name += "_residual";
  if (spec.gated)
    name += "_gated";
  if (spec.outputs)
    name += "_outputs";
  if (spec.exact)
    name += "_exact";
  return name;
}

double resultFactor(Format format) {
  switch (format) {
  case Format::BF16:
    return 1;
  case Format::FP8Block:
    return 16;
  case Format::NVFP4: // fragments: value * 2^-14 * scale * 2^6
    return 16 * 256;
  default: // int4_g32: scale * 2^8
    return 16.0 / 256;
  }
}

Vs loadFour(KernelBuilder &k, Ptr row, V column, int64_t columns, Format format,
            Cached cached, bool inside) {
  int64_t bytes = int64_t(*elementBytes(format));
  Vs out;
  if (columns % 4 != 0) {
    for (int64_t i = 0; i < 4; ++i) {
      V c = column + i;
      V valid = c < columns;
      V v = k.loadElement(row, k.select(valid, c, k.i32(0)), format, cached);
      out.push_back(k.select(valid, v, k.f32(0)));
    }
    return out;
  }
  V valid = column < columns;
  V c = inside ? column : k.select(valid, column, k.i32(0));
  if (format == Format::F32) {
    out = k.loadFloats(row + c * bytes, 4, cached);
  } else {
    for (V word : k.loadWords(row + c * bytes, 2, cached)) {
      auto [low, high] =
          format == Format::BF16 ? k.unpackBF16(word) : k.unpackF16(word);
      out.push_back(low);
      out.push_back(high);
    }
  }
  if (!inside)
    for (V &v : out)
      v = k.select(valid, v, k.f32(0));
  return out;
}

std::array<V, 2> packX(KernelBuilder &k, ArrayRef<V> four, bool half) {
  if (!half)
    return {k.packBF16(four[0], four[1]), k.packBF16(four[2], four[3])};
  std::array<V, 2> out;
  V factor = k.f32(1.0 / 16);
  for (unsigned i = 0; i < 2; ++i)
    out[i] =
        k.clampF16(k.packF16(four[2 * i] * factor, four[2 * i + 1] * factor));
  return out;
}
std::array<V, 2> packRest(KernelBuilder &k, ArrayRef<V> four,
                          std::array<V, 2> packed, bool half) {
  std::array<V, 2> out;
  V factor = k.f32(half ? 1.0 / 16 : 1);
  for (unsigned i = 0; i < 2; ++i) {
    auto [low, high] = half ? k.unpackF16(packed[i]) : k.unpackBF16(packed[i]);
    V restLow = four[2 * i] * factor - low;
    V restHigh = four[2 * i + 1] * factor - high;
    out[i] = half ? k.clampF16(k.packF16(restLow, restHigh))
                  : k.packBF16(restLow, restHigh);
  }
  return out;
}

Vs decodeFp4(KernelBuilder &, V w) {
  constexpr int64_t both = 0x8E008E00, magnitude = 0x0E000E00,
                    sign = 0x80008000;
  return {w & both, (w << 3) & both, ((w << 6) & magnitude) | ((w << 1) & sign),
          ((w << 9) & magnitude) | ((w << 2) & sign)};
}
Vs decodeInt4(KernelBuilder &, V w) {
  constexpr int64_t low = 0x000F000F, high = 0x00F000F0;
  V rest = w >> 8;
  return {w & low, w & high, rest & low, rest & high};
}
Vs decodeInt4Signed(KernelBuilder &k, V word) {
  // 0x6400 is 1024: with the code in its lowest bits it is 1024 + code, four bits
  // higher 1024 + 16 * code.
  V one = k.i32(0x64006400), offset = k.i32(0xE408E408 /* -1032 */);
  V sixteenth = k.i32(0x2C002C00), offset16 = k.i32(0xD480D480 /* -72 */);
  Vs out = decodeInt4(k, word);
  for (unsigned p = 0; p < 4; ++p)
    out[p] = p % 2 == 0 ? k.addF16(out[p] | one, offset)
                        : k.fmaF16(out[p] | one, sixteenth, offset16);
  return out;
}

/// The scales of a row's words as pairs of the same f16: nvfp4 two (of words 0, 1
/// and of words 2, 3), int4 one.
static Vs scalePairs(KernelBuilder &k, Format format, Ptr scales) {
  V t = k.lane() & 3;
  if (format == Format::NVFP4) {
    V bytes = k.loadI8(scales + t) | (k.loadI8(scales + t + 4) << 8);
    V pair = k.mulF16(k.e4m3ToF16(bytes), k.i32(0x54005400 /* 2^6 */));
    return {k.permuteBytes(pair, pair, 0x1010),
            k.permuteBytes(pair, pair, 0x3232)};
  }
  V scale = k.fromBits(k.loadI16(scales + t * 2) << 16) * k.f32(256);
  scale = k.minimum(k.maximum(scale, k.f32(-8188)), k.f32(8188));
  return {k.packF16(scale, scale)};
}

void unitSteps(KernelBuilder &k, Format format, Ptr rowA, Ptr rowB, Ptr scalesA,
               Ptr scalesB, function_ref<void(unsigned, ArrayRef<V>)> step) {
  V at = (k.lane() & 3) << 4;
  Vs a = k.loadWords(rowA + at, 4), b = k.loadWords(rowB + at, 4);
  switch (format) {
  case Format::BF16:
    for (unsigned s = 0; s < 2; ++s)
      step(s, {a[2 * s], b[2 * s], a[2 * s + 1], b[2 * s + 1]});
    return;
  case Format::FP8Block:
    for (unsigned w = 0; w < 4; ++w)
      step(w, {k.e4m3ToF16(a[w]), k.e4m3ToF16(b[w]), k.e4m3ToF16(a[w] >> 16),
               k.e4m3ToF16(b[w] >> 16)});
    return;
  default:
    break;
  }
  bool fp4 = format == Format::NVFP4;
  Vs sa = scalePairs(k, format, scalesA), sb = scalePairs(k, format, scalesB);
  for (unsigned w = 0; w < 4; ++w) {
    Vs da = fp4 ? decodeFp4(k, a[w]) : decodeInt4Signed(k, a[w]);
    Vs db = fp4 ? decodeFp4(k, b[w]) : decodeInt4Signed(k, b[w]);
    V fa = sa[fp4 ? w / 2 : 0], fb = sb[fp4 ? w / 2 : 0];
    for (unsigned p = 0; p < 4; ++p) {
      da[p] = k.mulF16(da[p], fa);
      db[p] = k.mulF16(db[p], fb);
    }
    step(2 * w, {da[0], db[0], da[1], db[1]});
    step(2 * w + 1, {da[2], db[2], da[3], db[3]});
  }
}

} // namespace mla::nvvm
