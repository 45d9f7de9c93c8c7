//===- FewTokens.cpp - packed weights times a few tokens ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "PackedProduct.h"

using namespace mlir;

namespace mla::nvvm {

/// Bytes of a token's span in shared memory: 16 more, so that the lanes of a
/// fragment hit different banks.
static int64_t tokenBytes(Format format) {
  return spanColumns(format) * 2 + 16;
}
/// Bytes of a token's sums of a warp; 16 more for the same reason.
static int64_t sumBytes(const ProductShape &shape,
                        const FewTokens::Split &split) {
  return (16 * split.rowTiles * shape.matrices + 4) * 4;
}

FewTokens::FewTokens(KernelBuilder &k, ProductShape shape, Split split)
    : k(k), shape(shape), split(split), spans(spansOf(shape.matrix)),
      perWarp(llvm::divideCeil(spans, split.warpsK)),
      warpBytes(split.tokens() * std::max(tokenBytes(shape.matrix.format),
                                          sumBytes(shape, split))) {
  scratch = k.shared(split.warpsM * split.warpsK * warpBytes);
}

Vs FewTokens::loadWeights(V span) const {
  Vs words;
  for (const PackedTile &tile : tiles)
    llvm::append_range(words, tile.load(span));
  return words;
}

void FewTokens::begin(ArrayRef<Ptr> bases, V first_, V end_) {
  firstRow = first_;
  endRow = end_;
  tiles.clear();
  V warpM = k.warp() % split.warpsM, warpK = k.warp() / split.warpsM;
  low = warpK * perWarp;
  high = k.minimum(low + perWarp, k.i32(spans));
  // Tiles behind the end are loaded as the block's first, and not emitted.
  for (Ptr base : bases)
    for (int64_t i = 0; i < split.rowTiles; ++i) {
      V row = firstRow + (warpM * split.rowTiles + i) * 16;
      if (shape.aligned)
        row = k.select(row < endRow, row, firstRow);
      tiles.emplace_back(k, shape.matrix, base, row, shape.aligned);
    }
  first = loadWeights(k.minimum(low, k.i32(spans - 1)));
}

namespace {
/// Brings spans of tokens to a warp's shared memory, as fragments: position 16
/// t + 4 s of a chunk is what thread t of a quad needs in step s.
class WarpStaging {
public:
  /// `rows` has the row of x of token i in lane i.
  WarpStaging(KernelBuilder &k, const ProductShape &product, const TokenRows &x,
              V rows, Ptr buffer)
      : k(k), product(product), x(x), rows(rows) {
    int64_t lanes = spanColumns(product.matrix.format) / 4;
    part = k.lane() % lanes;
    lane = k.lane() / lanes; // of the tokens that are loaded at once
    atOnce = 32 / lanes;
    to = buffer + lane * tokenBytes(product.matrix.format) + part * 8;
  }
  /// The values of tokens first to last - 1.
  Vs load(V span, int64_t first, int64_t last) const {
    Format format = product.matrix.format;
    V chunk = part >> 4, t = (part >> 2) & 3, s = part & 3;
    V column = span * spanColumns(format);
    switch (
        format) { // columnAt() with chunk and step that differ between lanes
    case Format::NVFP4:
      column = column + part * 4;
      break;
    case Format::Int4G32:
      column = column + t * 32 + chunk * 16 + s * 4;
      break;
    default:
      column = column + chunk * tileColumns + t * 4 + s * 16;
    }
    int64_t columns = product.matrix.columns;
    Vs values;
    for (int64_t i = first; i < last; i += atOnce) {
      V row = k.shuffle(rows, lane + i);
      llvm::append_range(values,
                         loadTokens(k, x.base + k.to64(row) * x.stride, column,
                                    columns, columns % spanColumns(format) == 0,
                                    product.xAligned));
    }
    return values;
  }
  void store(int64_t first, ArrayRef<V> values) const {
    Format format = product.matrix.format;
    for (int64_t i = 0; 4 * i < int64_t(values.size()); ++i) {
      auto [b0, b1] = packTokens(k, format, values.slice(4 * i, 4));
      k.storeWords(to + (first + i * atOnce) * tokenBytes(format), {b0, b1});
    }
  }
  /// Stores the values of the first `loaded` of `tokens`, then loads and stores
  /// the others of `most`, eight at a time. What no token has is left as it is:
  /// columns of B do not mix.
  void finish(V span, V tokens, int64_t most, int64_t loaded,
              ArrayRef<V> values) const {
    k.syncWarp();
    store(0, values);
    for (int64_t first = loaded; first < most;) {
      int64_t last = first / 8 * 8 + 8;
      k.when(tokens > first, [&] { store(first, load(span, first, last)); });
      first = last;
    }
    k.syncWarp();
  }

private:
  KernelBuilder &k;
  const ProductShape &product;
  const TokenRows &x;
  V rows, part, lane;
  int64_t atOnce;
  Ptr to;
};
} // namespace

/// Adds the products of a span, staged in `buffer`. Calls `halfway` when half
/// of the words are done with.
void FewTokens::accumulate(Vs &acc, ArrayRef<V> words, Ptr buffer,
                           function_ref<void()> halfway) const {
  Format format = shape.matrix.format;
  unsigned perTile = PackedTile::words(format);
  V g = k.lane() >> 2, t = k.lane() & 3;
  Ptr fragments = buffer + g * tokenBytes(format) + t * 32;
  SmallVector<PackedTile::Span> open;
  for (auto [i, tile] : llvm::enumerate(tiles))
    open.push_back(tile.open(words.slice(i * perTile, perTile)));
  Vs sums = acc;
  bool scaled = format == Format::FP8Block;
  if (scaled)
    sums.assign(acc.size(), k.f32(0));
  int64_t twos = spanChunks(format) * chunkSteps / 2;
  for (int64_t two = 0; two < twos; ++two) {
    if (two == twos / 2)
      halfway();
    SmallVector<Vs> b;
    for (int64_t n = 0; n < split.tokenTiles; ++n)
      b.push_back(k.loadWords(fragments + (n * 8 * tokenBytes(format) +
                                           two / 2 * 128 + two % 2 * 16),
                              4));
    for (int64_t s = 0; s < 2; ++s)
      for (auto [i, span] : llvm::enumerate(open)) {
        Vs a = span.fragment(two * 2 + s);
        for (int64_t n = 0; n < split.tokenTiles; ++n) {
          size_t at = (i * split.tokenTiles + n) * 4;
          llvm::copy(multiply(k, format, a, ArrayRef<V>(b[n]).slice(2 * s, 2),
                              ArrayRef<V>(sums).slice(at, 4)),
                     sums.begin() + at);
        }
      }
  }
  for (auto [i, v] : llvm::enumerate(acc))
    v = scaled ? k.fma(sums[i], open[i / (4 * split.tokenTiles)].scale, v)
               : sums[i];
}

void FewTokens::run(V tokens, TokenRows x, EmitProduct emit) {
  V g = k.lane() >> 2, t = k.lane() & 3;
  V rows = x.rowOf(k.minimum(k.lane(), tokens - 1));
  Ptr buffer = scratch + k.warp() * warpBytes;
  Vs acc(tiles.size() * split.tokenTiles * 4, k.f32(0));
  size_t sums = acc.size();
  WarpStaging staging(k, shape, x, rows, buffer);
  const int64_t ahead = split.firstTokens;
  auto finish = [&](V span, ArrayRef<V> values) {
    staging.finish(span, tokens, split.tokens(), ahead, values);
  };
  if (perWarp <= 2 && spans == split.warpsK * perWarp) {
    Vs values = staging.load(low, 0, ahead), second;
    if (perWarp == 2)
      second = loadWeights(low + 1);
    finish(low, values);
    accumulate(acc, first, buffer, [] {});
    if (perWarp == 2) {
      finish(low + 1, staging.load(low + 1, 0, ahead));
      accumulate(acc, second, buffer, [] {});
    }
  } else {
    // Spans of two units are loaded unit by unit, into the registers of the one
    // that is done with. Others, and the next span's first tokens, are loaded
    // ahead where registers allow it.
    bool units = PackedTile::units(shape.matrix.format) == 2;
    bool early = split.tokenTiles == 1 && !units;
    bool xEarly = ahead <= 2;
    Vs state = acc;
    llvm::append_range(state, first);
    if (xEarly)
      llvm::append_range(
          state, staging.load(k.minimum(low, k.i32(spans - 1)), 0, ahead));
    Vs end = k.loop(low, high, 1, state, [&](V span, ArrayRef<V> in) {
      V next = k.minimum(span + 1, high - 1);
      Vs weights, later, out(in.begin(), in.begin() + sums);
      Vs values(in.begin() + sums + first.size(), in.end());
      if (xEarly)
        later = staging.load(next, 0, ahead);
      else
        values = staging.load(span, 0, ahead);
      if (early)
        weights = loadWeights(next);
      finish(span, values);
      if (!early && !units)
        weights = loadWeights(next);
      SmallVector<Vs> unit0;
      accumulate(out, in.slice(sums, first.size()), buffer, [&] {
        if (units)
          for (const PackedTile &tile : tiles)
            unit0.push_back(tile.loadUnit(next, 0));
      });
      if (units)
        for (auto [tile, words] : llvm::zip(tiles, unit0)) {
          llvm::append_range(weights, words);
          llvm::append_range(weights, tile.loadUnit(next, 1));
          llvm::append_range(weights, tile.loadScales(next));
        }
      llvm::append_range(out, weights);
      llvm::append_range(out, later);
      return out;
    });
    llvm::copy(ArrayRef<V>(end).take_front(sums), acc.begin());
  }

  // Sums: [warp][token][matrix][row].
  k.syncWarp();
  int64_t perToken = sumBytes(shape, split), warpRows = 16 * split.rowTiles;
  Ptr mine = buffer + t * (2 * perToken) + g * 4;
  for (int64_t i = 0; i < int64_t(tiles.size()); ++i)
    for (int64_t n = 0; n < split.tokenTiles; ++n)
      for (int64_t c = 0; c < 4; ++c)
        k.store(mine + ((n * 8 + c % 2) * perToken + (i * 16 + c / 2 * 8) * 4),
                acc[(i * split.tokenTiles + n) * 4 + c]);
  Vs factors;
  for (int64_t m = 0; m < shape.matrices; ++m)
    factors.push_back(tiles[m * split.rowTiles].factor());
  k.barrier();
  int64_t blockRows = split.rows();
  k.loop(k.thread(), tokens * blockRows, k.threads(), [&](V i) {
    V token = i / blockRows, row = i % blockRows;
    Ptr from = scratch + row / warpRows * warpBytes + token * perToken +
               row % warpRows * 4;
    Vs all;
    for (int64_t m = 0; m < shape.matrices; ++m) {
      V sum = k.loadF32(from + m * warpRows * 4);
      for (int64_t w = 1; w < split.warpsK; ++w)
        sum =
            sum +
            k.loadF32(from + (w * split.warpsM * warpBytes + m * warpRows * 4));
      all.push_back(sum * factors[m]);
    }
    V at = firstRow + row;
    k.when(at < endRow, [&] { emit(at, token, all); });
  });
}

} // namespace mla::nvvm
