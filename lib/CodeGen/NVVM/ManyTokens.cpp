//===- ManyTokens.cpp - packed weights times many tokens ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "PackedProduct.h"

using namespace mlir;

namespace mla::nvvm {

/// Bytes of a token's 64 columns in shared memory.
constexpr int64_t tokenStride = 144;
/// Lanes that load a token's chunk, 4 columns each.
constexpr int64_t lanesPerToken = tileColumns / 4;

int64_t ManyTokens::sharedBytes(int64_t tokenTiles) {
  return 2 * tokenTiles * 8 * tokenStride + tokenTiles * 8 * 4;
}

ManyTokens::ManyTokens(KernelBuilder &k, ProductShape shape, int64_t tokenTiles,
                       Ptr scratch)
    : k(k), shape(shape), tokenTiles(tokenTiles), scratch(scratch) {}

namespace {
/// Brings chunks of x to shared memory. A token's row has 32 bytes for each
/// step: the first registers of threads t = 0 to 3 of a quad, then their second
/// ones, which are rows of 16 bytes for ldmatrix.
class Staging {
public:
  Staging(KernelBuilder &k, const ProductShape &product, Ptr scratch, V tokens,
          int64_t tokenTiles, TokenRows x)
      : bufferBytes(tokenTiles * 8 * tokenStride), k(k), shape(product.matrix),
        aligned(product.xAligned), x(x.base), stride(x.stride) {
    V part = k.thread() % lanesPerToken, token = k.thread() / lanesPerToken;
    tokensAtOnce = k.threads() / lanesPerToken;
    count = llvm::divideCeil(tokenTiles * 8, tokensAtOnce);
    even = tokenTiles * 8 % tokensAtOnce == 0;
    // Which rows of x they are is not worth registers.
    Ptr rows = scratch + 2 * bufferBytes;
    k.loop(k.thread(), k.i32(tokenTiles * 8), k.threads(), [&](V i) {
      k.store(rows + i * 4, x.rowOf(k.minimum(i, tokens - 1)));
    });
    k.barrier();
    row = rows + token * 4;
    t = part >> 2;
    s = part & 3;
    to = scratch + token * tokenStride + (s * 32 + t * 4);
    inside = token + (count - 1) * tokensAtOnce < tokenTiles * 8;
  }
  /// This thread's part of a chunk.
  Vs load(V span, int64_t chunk) const {
    Format format = shape.format;
    V column = span * spanColumns(format);
    switch (format) { // columnAt() with a step that differs between lanes
    case Format::NVFP4:
      column = column + t * 16 + s * 4 + tileColumns * chunk;
      break;
    case Format::Int4G32:
      column = column + t * 32 + s * 4 + 16 * chunk;
      break;
    default:
      column = column + t * 4 + s * 16 + tileColumns * chunk;
    }
    Vs out;
    for (int64_t i = 0; i < count; ++i) {
      Ptr at = row + i * tokensAtOnce * 4;
      if (i + 1 == count && !even) // the last row may not be there
        at = k.select(inside, at, row);
      llvm::append_range(
          out, loadTokens(k, x + k.to64(k.loadI32(at)) * stride, column,
                          shape.columns,
                          shape.columns % spanColumns(format) == 0, aligned));
    }
    return out;
  }
  /// Puts what load() gave into the buffer at byte `buffer`.
  void store(V buffer, ArrayRef<V> values) const {
    for (int64_t i = 0; i < count; ++i) {
      auto [b0, b1] = packTokens(k, shape.format, values.slice(i * 4, 4));
      auto put = [&, b0 = b0, b1 = b1] {
        Ptr at = to + buffer + i * tokensAtOnce * tokenStride;
        k.store(at, b0);
        k.store(at + 16, b1);
      };
      if (i + 1 == count && !even)
        k.when(inside, put);
      else
        put();
    }
  }
  const int64_t bufferBytes;

private:
  KernelBuilder &k;
  MatrixShape shape;
  bool aligned, even;
  int64_t tokensAtOnce, count;
  Ptr x, row;
  int64_t stride;
  V t, s, inside;
  Ptr to;
};
} // namespace

void ManyTokens::run(ArrayRef<Ptr> bases, V firstRow, V endRow, V tokens,
                     TokenRows x, EmitProduct emit) {
  Format format = shape.matrix.format;
  const int64_t chunks = spanChunks(format), spans = spansOf(shape.matrix);
  const int64_t rowTiles = 2 / shape.matrices;
  const unsigned perTile = PackedTile::words(format);
  const bool scaled = format == Format::FP8Block;
  V g = k.lane() >> 2, t = k.lane() & 3;

  V warpRow = firstRow + k.warp() * (16 * rowTiles);
  SmallVector<PackedTile> tiles;
  for (Ptr base : bases)
    for (int64_t i = 0; i < rowTiles; ++i) {
      V row = warpRow + 16 * i;
      // Tiles behind the end are loaded as the block's first, and not emitted.
      if (shape.aligned)
        row = k.select(row < endRow, row, firstRow);
      tiles.emplace_back(k, shape.matrix, base, row, shape.aligned);
    }
  Staging staging(k, shape, scratch, tokens, tokenTiles, x);
  // Lanes 0-7 and 8-15 give the rows of eight tokens, 16-31 of the next eight.
  Ptr fragments = scratch +
                  ((k.lane() & 7) + (k.lane() >> 4) * 8) * tokenStride +
                  ((k.lane() >> 3) & 1) * 16;
  V zero = k.i32(0);
  staging.store(zero, staging.load(zero, 0));
  const size_t sums = 2 * tokenTiles * 4;
  Vs state(sums, k.f32(0));
  for (const PackedTile &tile : tiles)
    llvm::append_range(state, tile.load(zero));
  k.barrier();

  Vs end = k.loop(zero, k.i32(spans), 1, state, [&](V span, ArrayRef<V> in) {
    V next = k.minimum(span + 1, k.i32(spans - 1));
    Vs acc(in.begin(), in.begin() + sums);
    SmallVector<PackedTile::Span> open;
    for (auto [i, tile] : llvm::enumerate(tiles))
      open.push_back(tile.open(in.slice(sums + i * perTile, perTile)));
    Vs part = acc;
    if (scaled)
      part.assign(sums, k.f32(0));
    SmallVector<Vs> weights(tiles.size());
    auto loadNext = [&](int64_t unit, bool scales) {
      for (auto [tile, words] : llvm::zip(tiles, weights)) {
        llvm::append_range(words, tile.loadUnit(next, unit));
        if (scales) // bf16 has none
          llvm::append_range(words, tile.loadScales(next));
      }
    };
    for (int64_t j = 0; j < chunks; ++j) {
      // Spans of two chunks have a buffer for each, others take turns.
      V from = chunks == 2 ? k.i32(j * staging.bufferBytes)
                           : (span & 1) * staging.bufferBytes;
      V to = k.i32(staging.bufferBytes) - from;
      bool lastChunk = j + 1 == chunks;
      // The next chunk's loads have all of this one to arrive.
      Vs x = staging.load(lastChunk ? next : span, lastChunk ? 0 : j + 1);
      for (int64_t s = 0; s < chunkSteps; ++s) {
        Vs a[2];
        for (int64_t i = 0; i < 2; ++i)
          a[i] = open[i].fragment(j * chunkSteps + s);
        // The next span's words, when most of this one's are done with. Not so
        // bf16's: they are fragments as they are, and would be moved about.
        if (s == 0 && lastChunk)
          loadNext(0, format != Format::FP8Block);
        if (s == 0 && format == Format::BF16)
          loadNext(1, false);
        if (s == 3 && lastChunk && format == Format::FP8Block)
          loadNext(1, true);
        for (int64_t n = 0; n < tokenTiles; n += 2) {
          Vs b = k.ldmatrix(fragments + from + (n * 8 * tokenStride + s * 32));
          for (int64_t c = 0; c < 2; ++c)
            for (int64_t i = 0; i < 2; ++i) {
              size_t at = (i * tokenTiles + n + c) * 4;
              llvm::copy(multiply(k, format, a[i],
                                  ArrayRef<V>(b).slice(2 * c, 2),
                                  ArrayRef<V>(part).slice(at, 4)),
                         part.begin() + at);
            }
        }
      }
      staging.store(to, x);
      k.barrier();
    }
    for (auto [i, v] : llvm::enumerate(acc))
      v = scaled ? k.fma(part[i], open[i / (4 * tokenTiles)].scale, v)
                 : part[i];
    for (const Vs &words : weights)
      llvm::append_range(acc, words);
    return acc;
  });

  Vs factors;
  for (const PackedTile &tile : tiles)
    factors.push_back(tile.factor());
  for (int64_t n = 0; n < tokenTiles; ++n)
    for (int64_t column = 0; column < 2; ++column) {
      V token = t * 2 + (n * 8 + column);
      k.when(token < tokens, [&] {
        for (int64_t i = 0; i < rowTiles; ++i)
          for (int64_t half = 0; half < 2; ++half) {
            V row = warpRow + g + (16 * i + 8 * half);
            Vs all;
            for (int64_t m = 0; m < shape.matrices; ++m) {
              int64_t tile = m * rowTiles + i;
              all.push_back(
                  end[(tile * tokenTiles + n) * 4 + half * 2 + column] *
                  factors[tile]);
            }
            k.when(row < endRow, [&] { emit(row, token, all); });
          }
      });
    }
}

} // namespace mla::nvvm
