//===- PackRows.cpp - activations as large matrix products read them ------===//
//
// Part of mla. A block is a token; a thread turns 16 columns (one k of
// mma.m16n8k16) into two 16-byte stores. Bound by memory: 4 bytes read and 2
// written a value, against 2 * rows flops of the products that follow.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "LargeKernels.h"
#include "mla/Quant/Pack.h"

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

Kernel packRows(KernelSite site, const LinearSpec &spec) {
  std::string name = packedRowsName(spec);
  std::string tokens = spec.outputs ? "outputs" : "tokens";
  Kernel kernel{name, "16 * ceildiv(" + tokens + ", 16)"};
  if (exists(site, name))
    return kernel;
  Format format = spec.segments[0].format;
  bool half = format != Format::BF16;
  int64_t columns = spec.segments[0].columns, padded = paddedColumns(spec);
  int64_t steps = padded / 16, parts = partsOf(spec);
  int64_t threads =
      std::clamp<int64_t>(llvm::alignTo(steps, 32), 64, 512);
  SmallVector<StringRef> access{"read"};
  unsigned gamma = access.size();
  if (spec.norm)
    access.push_back("read");
  unsigned outputs = access.size();
  if (spec.outputs)
    access.push_back("read");
  unsigned result = access.size();
  access.push_back("write");
  KernelBuilder k(site.kernels, site.loc, name, access, 1, {threads});
  Ptr scratch = k.shared(k.warps() * 4);
  k.gridWait();
  k.gridTrigger();
  V token = k.block();
  V valid = token < k.scalar32(0);
  bool aligned = columns % 4 == 0;
  // A padding token reads row 0 and keeps nothing of it.
  V source = k.select(valid, token, k.i32(0));
  if (spec.outputs)
    source = k.loadI32(k.buffer(outputs) + source * 4);
  Ptr row = k.buffer(0) + k.to64(source) * (columns * 4);
  V factor = k.f32(1);
  if (spec.norm) {
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

  auto pack = [&](V a, V b) { return half ? k.packF16(a, b) : k.packBF16(a, b); };
  auto unpack = [&](V p) { return half ? k.unpackF16(p) : k.unpackBF16(p); };
  constexpr int64_t width = chunkColumns, pitch = 2 * width;
  Ptr group = k.buffer(result) +
              k.to64(token / packedTokens) * packedRowsBytes(spec);
  V n = token % packedTokens;
  V swizzle = n & 7;
  k.loop(k.thread(), k.i32(steps), k.threads(), [&](V step) {
    Vs values;
    for (int64_t t = 0; t < 4; ++t) {
      V c = firstColumn(format, step, t);
      Vs four = loadRow(k, row, c, columns, aligned);
      for (auto [i, v] : llvm::enumerate(four)) {
        if (spec.norm) {
          V at = aligned ? c + i : k.minimum(c + i, k.i32(columns - 1));
          if (aligned)
            at = k.select(c < columns, at, k.i32(0));
          v = v * factor * k.loadElement(k.buffer(gamma), at, spec.gamma);
        }
        if (half)
          v = k.minimum(k.maximum(v * k.f32(0x1p-4), k.f32(-65504)),
                        k.f32(65504));
        values.push_back(k.select(valid, v, k.f32(0)));
      }
    }
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
        k.storeWords(p + ((at + j) ^ swizzle) * 16,
                     ArrayRef(words).slice(4 * j, 4));
    }
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
