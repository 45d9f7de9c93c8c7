//===- FewTokens.cpp - packed weights times a few tokens ------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "PackedProduct.h"

using namespace mlir;

namespace mla::nvvm {

/// Words between tokens of `rows` sums: 4 more, so that the lanes of a fragment
/// hit different banks.
static int64_t sumStride(int64_t rows) { return rows + 4; }

FewTokens::FewTokens(KernelBuilder &k, ProductShape shape, Split split)
    : k(k), shape(shape), split(split), spans(spansOf(shape.matrix)),
      perWarp(llvm::divideCeil(spans, split.warpsK)) {
  scratch = k.shared(split.warpsK * split.tokens() *
                     sumStride(split.rows() * shape.matrices) * 4);
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

/// The values of a span: for each tile of tokens, chunk and step, 4.
Vs FewTokens::loadX(V span, ArrayRef<Ptr> rows) const {
  Format format = shape.matrix.format;
  int64_t columns = shape.matrix.columns;
  bool whole = columns % spanColumns(format) == 0;
  V t = k.lane() & 3, first = span * spanColumns(format);
  Vs x;
  for (Ptr row : rows)
    for (int64_t j = 0; j < spanChunks(format); ++j)
      for (int64_t s = 0; s < chunkSteps; ++s)
        llvm::append_range(
            x, loadTokens(k, row, first + columnAt(format, t, j, s), columns,
                          whole, shape.xAligned));
  return x;
}

void FewTokens::accumulate(Vs &acc, ArrayRef<V> words, ArrayRef<V> x) const {
  Format format = shape.matrix.format;
  int64_t steps = spanChunks(format) * chunkSteps;
  unsigned perTile = PackedTile::words(format);
  SmallVector<PackedTile::Span> open;
  for (auto [i, tile] : llvm::enumerate(tiles))
    open.push_back(tile.open(words.slice(i * perTile, perTile)));
  Vs sums = acc;
  bool scaled = format == Format::FP8Block;
  if (scaled)
    sums.assign(acc.size(), k.f32(0));
  for (int64_t s = 0; s < steps; ++s) {
    SmallVector<Vs> b;
    for (int64_t n = 0; n < split.tokenTiles; ++n) {
      auto [b0, b1] = packTokens(k, format, x.slice((n * steps + s) * 4, 4));
      b.push_back({b0, b1});
    }
    for (auto [i, span] : llvm::enumerate(open)) {
      Vs a = span.fragment(s);
      for (int64_t n = 0; n < split.tokenTiles; ++n) {
        size_t at = (i * split.tokenTiles + n) * 4;
        llvm::copy(multiply(k, format, a, b[n], ArrayRef<V>(sums).slice(at, 4)),
                   sums.begin() + at);
      }
    }
  }
  for (auto [i, v] : llvm::enumerate(acc))
    v = scaled ? k.fma(sums[i], open[i / (4 * split.tokenTiles)].scale, v)
               : sums[i];
}

void FewTokens::run(V tokens, function_ref<Ptr(V)> xRow, EmitProduct emit) {
  V g = k.lane() >> 2, t = k.lane() & 3;
  SmallVector<Ptr> rows;
  // Columns of B do not mix: what stands in those of no token is not emitted.
  V lastToken = tokens - 1;
  for (int64_t n = 0; n < split.tokenTiles; ++n)
    rows.push_back(xRow(k.minimum(g + n * 8, lastToken)));
  Vs acc(tiles.size() * split.tokenTiles * 4, k.f32(0));
  // With few registers of x, the next span's are loaded ahead, as weights are.
  size_t words = first.size(), sums = acc.size();
  bool ahead = split.tokenTiles * spanColumns(shape.matrix.format) <= 128;
  if (perWarp == 1 && spans == split.warpsK) {
    accumulate(acc, first, loadX(low, rows));
  } else {
    V clamped = k.minimum(low, k.i32(spans - 1));
    Vs state = acc;
    llvm::append_range(state, first);
    if (ahead)
      llvm::append_range(state, loadX(clamped, rows));
    Vs end = k.loop(low, high, 1, state, [&](V span, ArrayRef<V> in) {
      V next = k.minimum(span + 1, high - 1);
      Vs now;
      if (!ahead)
        now = loadX(span, rows);
      Vs weights = loadWeights(next), x;
      if (ahead)
        x = loadX(next, rows);
      Vs out(in.begin(), in.begin() + sums);
      accumulate(out, in.slice(sums, words),
                 ahead ? in.drop_front(sums + words) : ArrayRef<V>(now));
      llvm::append_range(out, weights);
      llvm::append_range(out, x);
      return out;
    });
    llvm::copy(ArrayRef<V>(end).take_front(sums), acc.begin());
  }

  // Sums of all warps: [warpK][token][matrix][row].
  int64_t blockRows = split.rows(), stride = sumStride(blockRows * shape.matrices);
  V warpM = k.warp() % split.warpsM, warpK = k.warp() / split.warpsM;
  Ptr mine = scratch + warpK * (split.tokens() * stride * 4) +
             (t * 2 * stride + warpM * (split.rowTiles * 16) + g) * 4;
  for (int64_t m = 0; m < shape.matrices; ++m)
    for (int64_t i = 0; i < split.rowTiles; ++i)
      for (int64_t n = 0; n < split.tokenTiles; ++n)
        for (int64_t c = 0; c < 4; ++c)
          k.store(mine + ((n * 8 + c % 2) * stride + m * blockRows + i * 16 +
                          c / 2 * 8) *
                             4,
                  acc[((m * split.rowTiles + i) * split.tokenTiles + n) * 4 +
                      c]);
  Vs factors;
  for (int64_t m = 0; m < shape.matrices; ++m)
    factors.push_back(tiles[m * split.rowTiles].factor());
  k.barrier();
  k.loop(k.thread(), tokens * blockRows, k.threads(), [&](V i) {
    V token = i / blockRows, row = i % blockRows;
    Ptr from = scratch + (token * stride + row) * 4;
    Vs all;
    for (int64_t m = 0; m < shape.matrices; ++m) {
      V sum = k.loadF32(from + m * blockRows * 4);
      for (int64_t w = 1; w < split.warpsK; ++w)
        sum = sum + k.loadF32(from + (w * split.tokens() * stride +
                                      m * blockRows) *
                                         4);
      all.push_back(sum * factors[m]);
    }
    V at = firstRow + row;
    k.when(at < endRow, [&] { emit(at, token, all); });
  });
}

} // namespace mla::nvvm
