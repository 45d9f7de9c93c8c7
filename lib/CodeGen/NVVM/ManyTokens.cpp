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
constexpr int64_t lanesPerToken = chunkColumns / 4;

int64_t ManyTokens::sharedBytes(int64_t tokenTiles) {
  return 2 * tokenTiles * 8 * tokenStride;
}

ManyTokens::ManyTokens(KernelBuilder &k, ProductShape shape, int64_t tokenTiles,
                       Ptr scratch)
    : k(k), shape(shape), tokenTiles(tokenTiles), scratch(scratch) {}

namespace {
/// Brings chunks of x to shared memory: position 16 t + 4 s of a chunk is what
/// thread t of a quad needs in step s.
class Staging {
public:
  Staging(KernelBuilder &k, const ProductShape &product, Ptr scratch, V tokens,
          int64_t tokenTiles, function_ref<Ptr(V)> xRow)
      : bufferBytes(tokenTiles * 8 * tokenStride), k(k), shape(product.matrix),
        aligned(product.xAligned) {
    V part = k.thread() % lanesPerToken, token = k.thread() / lanesPerToken;
    tokensAtOnce = k.threads() / lanesPerToken;
    count = llvm::divideCeil(tokenTiles * 8, tokensAtOnce);
    even = tokenTiles * 8 % tokensAtOnce == 0;
    V last = tokens - 1;
    for (int64_t i = 0; i < count; ++i)
      rows.push_back(xRow(k.minimum(token + i * tokensAtOnce, last)));
    t = part >> 2;
    s = part & 3;
    to = scratch + token * tokenStride + part * 8;
    inside = token + (count - 1) * tokensAtOnce < tokenTiles * 8;
  }
  /// Loads of a chunk that part `part` of two does.
  Vs load(V span, int64_t chunk, int64_t part) const {
    Format format = shape.format;
    V column = span * spanColumns(format);
    switch (format) { // columnAt() with a step that differs between lanes
    case Format::NVFP4:
      column = column + t * 16 + s * 4 + chunkColumns * chunk;
      break;
    case Format::Int4G32:
      column = column + t * 32 + s * 4 + 16 * chunk;
      break;
    default:
      column = column + t * 4 + s * 16 + chunkColumns * chunk;
    }
    Vs out;
    for (int64_t i = begin(part); i < begin(part + 1); ++i)
      llvm::append_range(out, loadTokens(k, rows[i], column, shape.columns,
                                         shape.columns % spanColumns(format) == 0,
                                         aligned));
    return out;
  }
  /// Puts what load() gave into the buffer at byte `buffer`.
  void store(V buffer, int64_t part, ArrayRef<V> values) const {
    for (int64_t i = begin(part); i < begin(part + 1); ++i) {
      auto [b0, b1] =
          packTokens(k, shape.format, values.slice((i - begin(part)) * 4, 4));
      auto put = [&, b0 = b0, b1 = b1] {
        k.storeWords(to + buffer + i * tokensAtOnce * tokenStride, {b0, b1});
      };
      if (i + 1 == count && !even)
        k.when(inside, put);
      else
        put();
    }
  }
  const int64_t bufferBytes;

private:
  int64_t begin(int64_t part) const { return count * part / 2; }
  KernelBuilder &k;
  MatrixShape shape;
  bool aligned, even;
  int64_t tokensAtOnce, count;
  SmallVector<Ptr> rows;
  V t, s, inside;
  Ptr to;
};
} // namespace

void ManyTokens::run(ArrayRef<Ptr> bases, V firstRow, V endRow, V tokens,
                     function_ref<Ptr(V)> xRow, EmitProduct emit) {
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
  auto loadWeights = [&](V span) {
    Vs words;
    for (const PackedTile &tile : tiles)
      llvm::append_range(words, tile.load(span));
    return words;
  };

  Staging staging(k, shape, scratch, tokens, tokenTiles, xRow);
  Ptr fragments = scratch + g * tokenStride + t * 32;
  V zero = k.i32(0);
  for (int64_t part = 0; part < 2; ++part)
    staging.store(zero, part, staging.load(zero, 0, part));
  const size_t sums = 2 * tokenTiles * 4;
  Vs state(sums, k.f32(0));
  llvm::append_range(state, loadWeights(zero));
  k.barrier();

  Vs end = k.loop(zero, k.i32(spans), 1, state, [&](V span, ArrayRef<V> in) {
    V next = k.minimum(span + 1, k.i32(spans - 1));
    Vs acc(in.begin(), in.begin() + sums), weights;
    SmallVector<PackedTile::Span> open;
    for (auto [i, tile] : llvm::enumerate(tiles))
      open.push_back(tile.open(in.slice(sums + i * perTile, perTile)));
    Vs part = acc;
    if (scaled)
      part.assign(sums, k.f32(0));
    for (int64_t j = 0; j < chunks; ++j) {
      if (j + 1 == chunks)
        weights = loadWeights(next);
      // Spans of two chunks have a buffer for each, others take turns.
      V from = chunks == 2 ? k.i32(j * staging.bufferBytes)
                           : (span & 1) * staging.bufferBytes;
      V to = k.i32(staging.bufferBytes) - from;
      bool lastChunk = j + 1 == chunks;
      for (int64_t half = 0; half < 2; ++half) {
        Vs x = staging.load(lastChunk ? next : span, lastChunk ? 0 : j + 1, half);
        Vs a[2][2];
        for (int64_t s = 0; s < 2; ++s)
          for (int64_t i = 0; i < 2; ++i)
            a[s][i] = open[i].fragment(j * chunkSteps + half * 2 + s);
        for (int64_t n = 0; n < tokenTiles; ++n) {
          Vs b = k.loadWords(
              fragments + from + (n * 8 * tokenStride + half * 16), 4);
          for (int64_t s = 0; s < 2; ++s)
            for (int64_t i = 0; i < 2; ++i) {
              size_t at = (i * tokenTiles + n) * 4;
              llvm::copy(multiply(k, format, a[s][i],
                                  ArrayRef<V>(b).slice(2 * s, 2),
                                  ArrayRef<V>(part).slice(at, 4)),
                         part.begin() + at);
            }
        }
        staging.store(to, half, x);
      }
      k.barrier();
    }
    for (auto [i, v] : llvm::enumerate(acc))
      v = scaled ? k.fma(part[i], open[i / (4 * tokenTiles)].scale, v) : part[i];
    llvm::append_range(acc, weights);
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
