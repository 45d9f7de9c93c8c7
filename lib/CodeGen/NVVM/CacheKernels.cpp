//===- CacheKernels.cpp - rotary embedding and cache writes ---------------===//
//
// Part of mla. One block a token, 32 registers a thread at most, shared memory for
// one sum a warp. All move a few kilobytes a token, with 10 flops a value, and are
// bound by the latency of their loads: the longest chain is sequence and position,
// page table, store.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "mla/Support/Hash.h"

using namespace mlir;

namespace mla::nvvm {

static int64_t wholeWarps(int64_t threads, int64_t most) {
  return std::clamp<int64_t>(llvm::alignTo(threads, 32), 32, most);
}

//===----------------------------------------------------------------------===//
// Rotation
//===----------------------------------------------------------------------===//

/// A constant array of the module, made once.
static Ptr constants(KernelBuilder &k, ModuleOp kernels, StringRef name,
                     ArrayRef<float> values) {
  constexpr unsigned constantSpace = 4;
  auto type = LLVM::LLVMArrayType::get(k.f32Type(), values.size());
  if (!kernels.lookupSymbol(name)) {
    OpBuilder::InsertionGuard guard(k.b);
    k.b.setInsertionPointToStart(kernels.getBody());
    auto data = DenseElementsAttr::get(
        RankedTensorType::get({int64_t(values.size())}, k.f32Type()), values);
    LLVM::GlobalOp::create(k.b, type, /*isConstant=*/true,
                           LLVM::Linkage::Internal, name, data,
                           /*alignment=*/16, constantSpace);
  }
  Value address = LLVM::AddressOfOp::create(
      k.b, LLVM::LLVMPointerType::get(k.b.getContext(), constantSpace), name);
  return {address, &k};
}

Kernel rotaryEmbedding(KernelSite site, ArrayRef<float> frequencies,
                       double factor) {
  int64_t half = frequencies.size();
  // Two sets of frequencies of the same length are two kernels.
  uint64_t hash = fnv1a64(
      std::string_view(reinterpret_cast<const char *>(frequencies.data()),
                       frequencies.size() * sizeof(float)));
  std::string set = llvm::utohexstr(hash, true);
  std::string name =
      kernelName("rotary_embedding", half, set, nameOf(factor));
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 0,
                  {wholeWarps(half, 512)});
  Ptr table = constants(k, site.kernels,
                        kernelName("frequencies", half, set), frequencies);
  k.gridTrigger();
  k.gridWait();
  V position = k.toF32(k.loadI32(k.buffer(0) + k.to64(k.block()) * 4));
  Ptr y = k.buffer(1) + k.to64(k.block()) * (2 * half * 4);
  k.loop(k.thread(), k.i32(half), k.threads(), [&](V i) {
    auto [c, s] = k.cosSin(position * k.loadF32(table + i * 4));
    k.store(y + i * 4, c * k.f32(factor));
    k.store(y + i * 4 + half * 4, s * k.f32(factor));
  });
  k.finish();
  return kernel;
}

/// Pair i of the `dim` values at `from`, rotated by row `rotary`: values i and
/// i + dim / 2 of the result.
static std::pair<V, V> rotated(KernelBuilder &k, Ptr from, Ptr rotary, V i,
                               int64_t dim, bool interleaved) {
  int64_t half = dim / 2;
  V first = k.loadF32(from + (interleaved ? i * 2 : i) * 4);
  V second = k.loadF32(from + (interleaved ? i * 2 + 1 : i + half) * 4);
  V c = k.loadF32(rotary + i * 4), s = k.loadF32(rotary + (i + half) * 4);
  return {first * c - second * s, second * c + first * s};
}

Kernel rope(KernelSite site, int64_t width, int64_t headDim, int64_t offset,
            int64_t dim, bool interleaved) {
  std::string name = kernelName("rope", width, headDim, offset, dim,
                                interleaved ? "interleaved" : "halves");
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  int64_t heads = width / headDim, half = dim / 2, kept = headDim - dim;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 0,
                  {wholeWarps(heads * std::max(half, kept), 256)});
  k.gridTrigger();
  k.gridWait();
  V token = k.to64(k.block());
  Ptr x = k.buffer(0) + token * (width * 4);
  Ptr rotary = k.buffer(1) + token * (dim * 4);
  Ptr y = k.buffer(2) + token * (width * 4);
  k.loop(k.thread(), k.i32(heads * half), k.threads(), [&](V i) {
    V at = (i / half * headDim + offset) * 4, pair = i % half;
    auto [first, second] = rotated(k, x + at, rotary, pair, dim, interleaved);
    k.store(y + at + pair * 4, first);
    k.store(y + at + (pair + half) * 4, second);
  });
  if (kept > 0)
    k.loop(k.thread(), k.i32(heads * kept), k.threads(), [&](V i) {
      V within = i % kept;
      V at = i / kept * headDim +
             k.select(within < offset, within, within + dim);
      k.store(y + at * 4, k.loadF32(x + at * 4));
    });
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Cache writes
//===----------------------------------------------------------------------===//

namespace {
/// A row of the cache that takes f32 values and counts those that are cut off:
/// beyond 464 times the scale, where a code above that of 448 would be nearer if
/// there were one.
struct CacheRow {
  KernelBuilder &k;
  Ptr row;
  Format format;
  V scale, inverse; ///< of fp8_e4m3; `inverse` is 1 / scale, rounded

  /// Value `v` as it is stored; adds to `count`.
  V scaled(V v, V &count) const {
    if (format != Format::FP8E4M3)
      return v;
    // The rounded quotient, as the host divides, without div.rn's branches: two
    // corrections by what is left (Markstein). Where they would overflow, the
    // value is cut off anyway.
    V first = v * inverse, quotient = first;
    for (int i = 0; i < 2; ++i) {
      V left = k.fma(k.f32(0) - quotient, scale, v);
      quotient = k.fma(left, inverse, quotient);
    }
    v = k.select(k.abs(first) < k.f32(1e4), quotient, first);
    count = k.select(k.abs(v) > k.f32(464), count + 1, count);
    return v;
  }
  void storeOne(V at, V v) const { k.storeElement(row, at, format, v); }
  /// 4 values from `at`, a multiple of 4, on.
  void storeFour(V at, ArrayRef<V> v) const {
    switch (format) {
    case Format::FP8E4M3:
      return k.store(row + at, k.packE4M3(v[0], v[1]) |
                                   k.packE4M3(v[2], v[3]) << 16);
    case Format::BF16:
      return k.storeWords(row + at * 2, {k.packBF16(v[0], v[1]),
                                         k.packBF16(v[2], v[3])});
    case Format::F16:
      return k.storeWords(row + at * 2,
                          {k.packF16(v[0], v[1]), k.packF16(v[2], v[3])});
    default:
      return k.storeWords(row + at * 4, v);
    }
  }
};
} // namespace

/// The last warp rotates while the others sum up the squares of the latent, 4
/// values (or 1, if a row's places are no multiples of 4) a thread and piece, kept
/// in registers. Kimi: 160 threads, 2.3 KB in, 1.2 KB (bf16) or 0.6 KB (fp8) out.
Kernel latentCacheWrite(KernelSite site, int64_t latent, int64_t rope,
                        Format norm, Format cache, double eps,
                        bool interleaved, int64_t ranks) {
  std::string name =
      kernelName("latent_cache_write", formatName(norm), formatName(cache),
                 latent, rope, nameOf(eps),
                 interleaved ? "interleaved" : "halves");
  bool spread = ranks > 1;
  if (spread)
    name = kernelName(name, "of", ranks);
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  bool isScaled = cache == Format::FP8E4M3;
  SmallVector<StringRef> access(6, "read");
  access.push_back("write");
  if (isScaled)
    access.push_back("readwrite");
  int64_t width = latent + rope, half = rope / 2;
  int64_t lanes = latent % 4 == 0 && width % 4 == 0 ? 4 : 1;
  int64_t places = latent / lanes, normThreads = wholeWarps(places, 512);
  int64_t pieces = llvm::divideCeil(places, normThreads);
  KernelBuilder k(site.kernels, site.loc, name, access,
                  (isScaled ? 2 : 1) + (spread ? 1 : 0), {normThreads + 32});
  Ptr scratch = k.shared(k.warps() * 4);

  // The place of a piece; threads that have none look at place 0.
  V isNorm = k.thread() < normThreads;
  Vs inside, place, gamma;
  for (int64_t p = 0; p < pieces; ++p) {
    V at = k.thread() + p * normThreads;
    inside.push_back(isNorm & (at < places));
    place.push_back(k.select(inside[p], at, k.i32(0)));
    for (int64_t i = 0; i < lanes; ++i)
      gamma.push_back(k.loadElement(k.buffer(4), place[p] * lanes + i, norm));
  }
  V scale = isScaled ? k.scalarF32(1) : V();
  V inverse = isScaled ? k.divide(k.f32(1), scale) : V();
  k.gridTrigger();
  k.gridWait();
  V token = k.to64(k.block());
  Positions positions(k, k.buffer(0), ranks,
                      spread ? k.scalar32(isScaled ? 2 : 1) : V());
  auto where = positions.write(token);
  V own = where.first;
  auto write = [&] {
    V sequence = k.loadI32(k.buffer(1) + token * 4);
    Ptr x = k.buffer(3) + token * (width * 4);
    Vs values;
    V squares = k.f32(0);
    for (int64_t p = 0; p < pieces; ++p) {
      Vs loaded = lanes == 4 ? k.loadFloats(x + place[p] * 16, 4)
                             : Vs{k.loadF32(x + place[p] * 4)};
      for (V v : loaded) {
        V mine = k.select(inside[p], v, k.f32(0));
        squares = k.fma(mine, mine, squares);
        values.push_back(mine);
      }
    }
    V index = k.to64(cacheRow(k, own, sequence, k.buffer(2), k.scalar32(0)));
    int64_t bytes = int64_t(*elementBytes(cache));
    CacheRow row{k, k.buffer(6) + index * (width * bytes), cache,
                 scale, inverse};
    V count = k.i32(0);
    V mean = k.divide(k.blockSum(squares, scratch), k.f32(double(latent)));
    V factor = k.divide(k.f32(1), k.sqrt(mean + k.f32(eps)));
    for (int64_t p = 0; p < pieces; ++p) {
      V cut = k.i32(0);
      Vs out;
      for (int64_t i = p * lanes; i < (p + 1) * lanes; ++i)
        out.push_back(row.scaled(gamma[i] * (values[i] * factor), cut));
      count = count + k.select(inside[p], cut, k.i32(0));
      k.when(inside[p], [&] {
        if (lanes == 4)
          row.storeFour(place[p] * 4, out);
        else
          row.storeOne(place[p], out[0]);
      });
    }
    Ptr rotary = k.buffer(5) + token * (rope * 4);
    V first = k.select(isNorm, k.i32(half), k.lane());
    count = k.loop(first, k.i32(half), 32, {count}, [&](V i, ArrayRef<V> acc) {
      auto [a, b] =
          rotated(k, x + latent * 4, rotary, i, rope, interleaved);
      V cut = acc[0];
      a = row.scaled(a, cut);
      b = row.scaled(b, cut);
      row.storeOne(i + latent, a);
      row.storeOne(i + (latent + half), b);
      return Vs{cut};
    })[0];
    if (isScaled) {
      V all = k.reduxAdd(count);
      k.when((k.lane() == 0) & (all > 0),
             [&] { k.atomicAdd(k.buffer(7) + token * 4, all); });
    }
  };
  // All of a block's threads have one token: they meet at its barriers, or none does.
  if (spread)
    k.when(where.second, write);
  else
    write();
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
