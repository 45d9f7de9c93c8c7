//===- PackRows.cpp - activations as large matrix products read them ------===//
//
// Part of mla. A block is a token; a thread turns 16 columns (one k of
// mma.m16n8k16) into two 16-byte stores. Bound by memory: 4 bytes read and 2
// written a value, against 2 * rows flops of the products that follow.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm {

static int64_t paddedColumns(const LinearSpec &spec) {
  return llvm::alignTo(spec.segments[0].columns, 128);
}
static int64_t partsOf(const LinearSpec &spec) { return spec.exact ? 3 : 1; }

int64_t packedRowsBytes(const LinearSpec &spec) {
  return packedTokens * 2 * paddedColumns(spec) * partsOf(spec);
}

std::string packedRowsName(const LinearSpec &spec) {
  Format format = spec.segments[0].format;
  std::string name =
      kernelName("pack_rows", formatName(format), spec.segments[0].columns);
  if (spec.norm)
    name = kernelName(name, "norm", formatName(spec.gamma), nameOf(spec.eps));
  if (spec.outputs)
    name += "_outputs";
  if (spec.exact)
    name += "_exact";
  return name;
}

/// Values 4 * t to 4 * t + 3 of step `step` (16 columns of a fragment) are the
/// columns from firstColumn(...) on: the inverse of quant/Pack.h.
static V firstColumn(Format format, V step, int64_t t) {
  switch (format) {
  case Format::NVFP4: {
    V unit = step / 8, word = step % 8 / 2, odd = step % 2;
    return unit * 128 + word / 2 * 64 + word % 2 * 8 + odd * 4 + 16 * t;
  }
  case Format::Int4G32: {
    V unit = step / 8, word = step % 8 / 2, odd = step % 2;
    return unit * 128 + word * 8 + odd * 4 + 32 * t;
  }
  default:
    return step * 16 + 4 * t;
  }
}

large::PackedWord large::packedWordOf(Format format, V column) {
  V half = column % 4 / 2, odd = column % 8 / 4, unit = column / 128 * 8;
  switch (format) {
  case Format::NVFP4: {
    V word = column % 128 / 64 * 2 + column % 16 / 8;
    return {unit + word * 2 + odd, half, column % 64 / 16};
  }
  case Format::Int4G32:
    return {unit + column % 32 / 8 * 2 + odd, half, column % 128 / 32};
  default:
    return {column / 16, half, column % 16 / 4};
  }
}

/// What f16 has for `v`.
static V scaled(KernelBuilder &k, V v) {
  return k.minimum(k.maximum(v * k.f32(0x1p-4), k.f32(-65504)), k.f32(65504));
}

V large::packColumns(KernelBuilder &k, Format format, ArrayRef<V> two) {
  if (format == Format::BF16)
    return k.packBF16(two[0], two[1]);
  return k.packF16(scaled(k, two[0]), scaled(k, two[1]));
}

/// Four values of a row, zeros from `columns` on.
static Vs loadRow(KernelBuilder &k, Ptr row, V column, int64_t columns,
                  bool aligned) {
  SmallVector<Type> four(4, k.f32Type());
  if (aligned)
    return k.ifElse(
        column < columns, four, [&] { return k.loadFloats(row + column * 4, 4); },
        [&] { return Vs(4, k.f32(0)); });
  Vs out;
  for (int64_t i = 0; i < 4; ++i)
    out.push_back(k.ifElse(
        column + i < columns, {k.f32Type()},
        [&] { return Vs{k.loadF32(row + (column + i) * 4)}; },
        [&] { return Vs{k.f32(0)}; })[0]);
  return out;
}

namespace {
/// The operands of a pack kernel and the row that a block reads.
struct RowSource {
  KernelBuilder &k;
  const LinearSpec &spec;
  int64_t columns;
  bool aligned;
  Ptr row, gamma, result;
  V token, valid, factor;

  static SmallVector<StringRef> access(const LinearSpec &spec) {
    SmallVector<StringRef> out{"read"};
    out.append((spec.norm ? 1 : 0) + (spec.outputs ? 1 : 0), "read");
    out.push_back("write");
    return out;
  }

  /// Waits for the grid before; the norm's factor takes two barriers.
  RowSource(KernelBuilder &k, const LinearSpec &spec)
      : k(k), spec(spec), columns(spec.segments[0].columns),
        aligned(columns % 4 == 0) {
    Ptr scratch = k.shared(k.warps() * 4);
    k.gridWait();
    k.gridTrigger();
    unsigned next = 1;
    if (spec.norm)
      gamma = k.buffer(next++);
    token = k.block();
    valid = token < k.scalar32(0);
    // A padding token reads row 0 and keeps nothing of it.
    V source = k.select(valid, token, k.i32(0));
    if (spec.outputs)
      source = k.loadI32(k.buffer(next++) + source * 4);
    result = k.buffer(next);
    row = k.buffer(0) + k.to64(source) * (columns * 4);
    if (!spec.norm)
      return;
    Vs sum = k.loop(k.thread() * 4, k.i32(columns), k.threads() * 4, {k.f32(0)},
                    [&](V c, ArrayRef<V> acc) {
                      V s = acc[0];
                      for (V v : loadRow(k, row, c, columns, aligned))
                        s = k.fma(v, v, s);
                      return Vs{s};
                    });
    V mean = k.blockSum(sum[0], scratch) * k.f32(1.0 / double(columns));
    factor = k.reciprocal(k.sqrt(mean + k.f32(spec.eps)));
  }

  /// Four values from column c on, zeros beyond the row and for padding tokens.
  Vs four(V c) {
    Vs values = loadRow(k, row, c, columns, aligned);
    for (auto [i, v] : llvm::enumerate(values)) {
      if (spec.norm) {
        V at = aligned ? k.select(c < columns, c + i, k.i32(0))
                       : k.minimum(c + i, k.i32(columns - 1));
        v = v * factor * k.loadElement(gamma, at, spec.gamma);
      }
      v = k.select(valid, v, k.f32(0));
    }
    return values;
  }
};
} // namespace

Kernel packRows(KernelSite site, const LinearSpec &spec) {
  std::string name = packedRowsName(spec);
  std::string tokens = spec.outputs ? "outputs" : "tokens";
  Kernel kernel{name, "16 * ceildiv(" + tokens + ", 16)"};
  if (exists(site, name))
    return kernel;
  Format format = spec.segments[0].format;
  bool half = format != Format::BF16;
  int64_t padded = paddedColumns(spec), steps = padded / 16,
          parts = partsOf(spec);
  int64_t threads =
      std::clamp<int64_t>(llvm::alignTo(steps, 32), 64, 512);
  KernelBuilder k(site.kernels, site.loc, name, RowSource::access(spec), 1,
                  {threads});
  RowSource x(k, spec);
  auto pack = [&](V a, V b) { return half ? k.packF16(a, b) : k.packBF16(a, b); };
  auto unpack = [&](V p) { return half ? k.unpackF16(p) : k.unpackBF16(p); };
  constexpr int64_t width = chunkColumns, pitch = 2 * width;
  Ptr group =
      x.result + k.to64(x.token / packedTokens) * packedRowsBytes(spec);
  V n = x.token % packedTokens;
  k.loop(k.thread(), k.i32(steps), k.threads(), [&](V step) {
    Vs values;
    for (int64_t t = 0; t < 4; ++t)
      for (V v : x.four(firstColumn(format, step, t)))
        values.push_back(half ? scaled(k, v) : v);
    V chunk = step / (width / 16), at = step % (width / 16) * 2;
    for (int64_t part = 0; part < parts; ++part) {
      // Word j * 4 + t: columns 4 * t + 2 * j and + 1 of the step.
      Vs words(8);
      for (int64_t t = 0; t < 4; ++t)
        for (int64_t j = 0; j < 2; ++j) {
          V &a = values[4 * t + 2 * j], &b = values[4 * t + 2 * j + 1];
          V word = pack(a, b);
          words[4 * j + t] = word;
          auto [x, y] = unpack(word);
          a = a - x, b = b - y;
        }
      Ptr p = group + k.to64(chunk + part * (padded / width)) *
                          (packedTokens * pitch) +
              n * pitch;
      for (int64_t j = 0; j < 2; ++j)
        k.storeWords(p + ((at + j) ^ (n & 7)) * 16,
                     ArrayRef(words).slice(4 * j, 4));
    }
  });
  k.finish();
  return kernel;
}

int64_t packedRowsFp4Bytes(const LinearSpec &spec) {
  return paddedColumns(spec) / 128 * fp4ChunkBytes + packedTokens * 4;
}

Kernel packRowsFp4(KernelSite site, const LinearSpec &spec) {
  LinearSpec name4 = spec;
  name4.exact = false;
  std::string name = packedRowsName(name4) + "_fp4";
  std::string tokens = spec.outputs ? "outputs" : "tokens";
  Kernel kernel{name, "16 * ceildiv(" + tokens + ", 16)"};
  if (exists(site, name))
    return kernel;
  int64_t blocks = paddedColumns(spec) / 16; // of 16 columns, one a thread
  int64_t threads =
      std::clamp<int64_t>(llvm::alignTo(blocks, 32), 64, 512);
  KernelBuilder k(site.kernels, site.loc, name, RowSource::access(spec), 1,
                  {threads});
  Ptr maxima = k.shared(k.warps() * 4);
  RowSource x(k, spec);
  auto load = [&](V block) {
    Vs values;
    for (int64_t i = 0; i < 16; i += 4)
      values.append(x.four(block * 16 + i));
    return values;
  };
  auto largest = [&](ArrayRef<V> values) {
    V m = k.f32(0);
    for (V v : values)
      m = k.maximum(m, k.abs(v));
    return m;
  };
  // The token's scale: the largest block's becomes 448.
  V mine = k.loop(k.thread(), k.i32(blocks), k.threads(), {k.f32(0)},
                  [&](V block, ArrayRef<V> m) {
                    return Vs{k.maximum(m[0], largest(load(block)))};
                  })[0];
  mine = k.warpMax(mine);
  k.when(k.lane() == 0, [&] { k.store(maxima + k.warp() * 4, mine); });
  k.barrier();
  V all = k.f32(0);
  for (int64_t w = 0; w < k.warps(); ++w)
    all = k.maximum(all, k.loadF32(maxima + w * 4));
  V scale = k.select(all > k.f32(0), all * k.f32(1.0 / (6 * 448)), k.f32(1));
  Ptr group =
      x.result + k.to64(x.token / packedTokens) * packedRowsFp4Bytes(spec);
  V n = x.token % packedTokens;
  k.when(k.thread() == 0, [&] {
    k.store(group + (packedRowsFp4Bytes(spec) - 4 * packedTokens) + n * 4,
            scale);
  });
  k.loop(k.thread(), k.i32(blocks), k.threads(), [&](V block) {
    Vs values = load(block);
    V code = k.packE4M3(
        k.maximum(k.divide(largest(values), scale * k.f32(6)), k.f32(0x1p-9)),
        k.f32(0));
    V inverse = k.divide(
        k.f32(1), k.unpackF16(k.e4m3ToF16(code)).first * scale);
    // Nibble j of half h of word w is column 8 w + 2 * (3 - j) + h.
    Vs words;
    for (int64_t w = 0; w < 2; ++w) {
      V word = k.i32(0);
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t j = 0; j < 4; j += 2) {
          V low = values[8 * w + 2 * (3 - j) + h] * inverse,
            high = values[8 * w + 2 * (2 - j) + h] * inverse;
          word = word | k.packE2M1(low, high) << (16 * h + 4 * j);
        }
      words.push_back(word);
    }
    V within = block % 8;
    Ptr chunk = group + k.to64(block / 8) * fp4ChunkBytes;
    k.storeWords(chunk + n * 64 + ((within >> 1) ^ (n >> 1 & 3)) * 16 +
                     (within & 1) * 8,
                 words);
    k.storeI8(chunk + n * 8 + within + 1024, code);
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
