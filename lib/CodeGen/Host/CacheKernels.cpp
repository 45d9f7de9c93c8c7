//===- CacheKernels.cpp - rotary embedding and cache writes ---------------===//
//
// Part of mla. One work item is one token.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "mla/Support/Hash.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace mla::host {

std::string rotaryEmbedding(KernelSite site, ArrayRef<float> frequencies,
                            double factor) {
  int64_t half = frequencies.size();
  // Two sets of frequencies of the same length are two kernels.
  uint64_t hash = fnv1a64(std::string_view(
      reinterpret_cast<const char *>(frequencies.data()),
      frequencies.size() * sizeof(float)));
  std::string name = "rotary_embedding_" + std::to_string(half) + "_" +
                     llvm::utohexstr(hash) + "_" +
                     llvm::utohexstr(llvm::bit_cast<uint64_t>(factor));
  return kernelOnce(site, name, {"read", "write"}, 0, [&](KernelBuilder &k) {
    Mem positions = k.buffer(0, Format::I32), y = k.buffer(1, Format::F32);
    k.items([&](V t) {
      V position = k.toF32(k.load(positions, t));
      for (int64_t i = 0; i < half; ++i) {
        V angle = position * k.f32(frequencies[i]);
        V at = t * (2 * half) + i;
        k.store(y, at, k.cos(angle) * k.f32(factor));
        k.store(y, at + half, k.sin(angle) * k.f32(factor));
      }
    });
  });
}

void rotate(KernelBuilder &k, Mem from, V fromAt, Mem rotary, V rotaryAt,
            Mem to, V toAt, int64_t dim, bool interleaved) {
  int64_t half = dim / 2;
  k.loop(k.index(0), k.index(half), 1, [&](V i) {
    V first = k.load(from, interleaved ? fromAt + i * 2 : fromAt + i);
    V second =
        k.load(from, interleaved ? fromAt + i * 2 + 1 : fromAt + i + half);
    V c = k.load(rotary, rotaryAt + i), s = k.load(rotary, rotaryAt + i + half);
    k.store(to, toAt + i, first * c - second * s);
    k.store(to, toAt + i + half, second * c + first * s);
  });
}

std::string rope(KernelSite site, int64_t width, int64_t headDim,
                 int64_t offset, int64_t dim, bool interleaved) {
  std::string name = "rope_" + std::to_string(width) + "_" +
                     std::to_string(headDim) + "_" + std::to_string(offset) +
                     "_" + std::to_string(dim) +
                     (interleaved ? "_interleaved" : "_halves");
  return kernelOnce(
      site, name, {"read", "read", "write"}, 0, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), rotary = k.buffer(1, Format::F32);
        Mem y = k.buffer(2, Format::F32);
        k.items([&](V t) {
          k.loop(k.index(0), k.index(width), headDim, [&](V head) {
            V at = t * width + head;
            if (offset > 0)
              k.copy(x, at, y, at, offset);
            rotate(k, x, at + offset, rotary, t * dim, y, at + offset, dim,
                   interleaved);
            if (int64_t end = offset + dim; end < headDim)
              k.copy(x, at + end, y, at + end, headDim - end);
          });
        });
      });
}

std::string shardBatch(KernelSite site, int64_t ranks) {
  std::string name = "shard_batch_" + std::to_string(ranks);
  return kernelOnce(
      site, name, {"read", "write", "write"}, 1, [&](KernelBuilder &k) {
        Mem positions = k.buffer(0, Format::I32);
        Mem read = k.buffer(1, Format::I32), write = k.buffer(2, Format::I32);
        constexpr int64_t page = plan::pageTokens;
        V rank = k.scalar(0);
        k.items([&](V t) {
          V position = k.load(positions, t);
          // Of the blocks before those that the token is among, every rank has
          // as many; of those the ranks before its own have full ones.
          V row = position / (page * ranks), rest = position % (page * ranks);
          V visible = k.minimum(rest + 1 - rank * page, k.index(page));
          visible = k.select(visible < 0, k.index(0), visible);
          k.store(read, t, row * page + visible - 1);
          V own = row * page + rest % page;
          k.store(write, t, k.select(rest / page == rank, own, k.index(-1)));
        });
      });
}

V cacheRow(KernelBuilder &k, Mem pageTable, V pages, V sequence, V position,
           int64_t width) {
  V page = k.load(pageTable, sequence * pages + position / plan::pageTokens);
  return (page * plan::pageTokens + position % plan::pageTokens) * width;
}

std::string cacheWrite(KernelSite site, ArrayRef<int64_t> widths,
                       Format cache) {
  std::string name = "cache_write_" + nameOf(cache);
  SmallVector<StringRef> access{"read", "read", "read", "write"};
  int64_t total = 0;
  for (int64_t w : widths) {
    name += "_" + std::to_string(w);
    access.push_back("read");
    total += w;
  }
  return kernelOnce(site, name, access, 1, [&](KernelBuilder &k) {
    Mem positions = k.buffer(0, Format::I32);
    Mem sequences = k.buffer(1, Format::I32);
    Mem table = k.buffer(2, Format::I32), rows = k.buffer(3, cache);
    V pages = k.scalar(0);
    SmallVector<Mem> parts;
    for (size_t i = 0; i < widths.size(); ++i)
      parts.push_back(k.buffer(4 + i, Format::F32));
    k.items([&](V t) {
      V position = k.load(positions, t);
      k.when(position >= k.index(0), [&] {
        V at = cacheRow(k, table, pages, k.load(sequences, t), position, total);
        int64_t offset = 0;
        for (auto [part, w] : llvm::zip(parts, widths)) {
          k.copy(part, t * w, rows, at + offset, w);
          offset += w;
        }
      });
    });
  });
}

/// Writes the f32 row `from` to the FP8 cache row at `toAt` and counts in entry
/// `t` of `saturated` the values that are cut off: those beyond 464, where a code
/// above that of 448 would be nearer if there were one.
static void quantizeRow(KernelBuilder &k, Mem from, int64_t width, V scale,
                        Mem rows, V toAt, Mem saturated, V t) {
  int64_t n = lanesFor(width);
  V scales = k.splat(scale, n), limit = k.splat(k.f32(464), n);
  V beyond = k.loop(k.index(0), k.index(width), n, {k.zeros(n)},
                    [&](V c, ArrayRef<V> count) {
                      V v = k.loadVector(from, c, n) / scales;
                      k.storeVector(rows, toAt + c, v);
                      V one = k.splat(k.f32(1), n);
                      V more = k.select(k.abs(v) > limit, one, k.zeros(n));
                      return SmallVector<V>{count[0] + more};
                    })[0];
  k.store(saturated, t, k.load(saturated, t) + k.toIndex(k.sum(beyond)));
}

std::string latentCacheWrite(KernelSite site, int64_t latent, int64_t rope,
                             Format norm, Format cache, double eps,
                             bool interleaved) {
  std::string name =
      "latent_cache_write_" + nameOf(norm) + "_" + nameOf(cache) + "_" +
      std::to_string(latent) + "_" + std::to_string(rope) + "_" +
      llvm::utohexstr(llvm::bit_cast<uint64_t>(eps)) +
      (interleaved ? "_interleaved" : "_halves");
  bool scaled = cache == Format::FP8E4M3;
  SmallVector<StringRef> access(6, "read");
  access.push_back("write");
  if (scaled)
    access.push_back("readwrite");
  return kernelOnce(site, name, access, scaled ? 2 : 1, [&](KernelBuilder &k) {
    Mem positions = k.buffer(0, Format::I32);
    Mem sequences = k.buffer(1, Format::I32);
    Mem table = k.buffer(2, Format::I32), x = k.buffer(3, Format::F32);
    Mem weight = k.buffer(4, norm), rotary = k.buffer(5, Format::F32);
    Mem rows = k.buffer(6, cache);
    V pages = k.scalar(0);
    int64_t width = latent + rope;
    Mem saturated = scaled ? k.buffer(7, Format::I32) : Mem();
    V scale = scaled ? k.scalarF32(1) : V();
    Mem row = scaled ? k.scratch(width, Format::F32) : rows;
    k.items([&](V t) {
      V position = k.load(positions, t);
      k.when(position >= k.index(0), [&] {
        V cacheAt =
            cacheRow(k, table, pages, k.load(sequences, t), position, width);
        V at = scaled ? k.index(0) : cacheAt;
        rmsNormRow(k, x, t * width, weight, row, at, latent, eps);
        rotate(k, x, t * width + latent, rotary, t * rope, row, at + latent,
               rope, interleaved);
        if (scaled)
          quantizeRow(k, row, width, scale, rows, cacheAt, saturated, t);
      });
    });
  });
}

} // namespace mla::host
