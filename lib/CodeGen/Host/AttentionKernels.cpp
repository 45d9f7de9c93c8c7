//===- AttentionKernels.cpp - attention over a paged cache ----------------===//
//
// Part of mla. One work item is one token and a block of heads. The item walks
// the token's past in tiles of 64 rows (a page, or 64 selected rows) with a
// running softmax: scores of a tile, new maximum, rescale, weighted sum of
// values. Tiles begin at multiples of 64 positions whatever the chunking, so
// the order of every sum is fixed by the token's position alone.
//
// Over the latent cache all heads of a block share the rows: a row is read
// once for 4 heads, which is what makes latent attention cheap in bytes. Over
// an expanded cache (the plain graph) every head has rows of its own.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;

namespace mla::host {

namespace {
constexpr int64_t tileRows = plan::pageTokens;

/// A part of the score's dot product: `width` values at `queryAt` of a head's
/// query and at `rowAt` of its cache row.
struct ScorePart {
  int64_t queryAt, rowAt, width;
};

struct AttentionShape {
  int64_t heads;        ///< of the query
  int64_t block;        ///< heads of one work item
  int64_t queryWidth;   ///< values of one head's query
  int64_t rowWidth;     ///< values of a cache row
  SmallVector<ScorePart> parts;
  /// What a further head adds to the row offsets of parts[0] and of the value:
  /// 0 if all heads share the row.
  int64_t headStride;
  int64_t valueAt, valueWidth;
  double scale;
  int64_t selected;     ///< width of the selection, 0 if dense
  Format cache;
  /// Also the logarithm of the sum of the weights; a token may see nothing.
  bool partial = false;

  /// An FP8 cache has a scale, which is the kernel's last scalar.
  bool scaled() const { return cache == Format::FP8E4M3; }
};
} // namespace

int64_t headBlocks(int64_t heads) {
  int64_t block = heads % 4 == 0 ? 4 : heads % 2 == 0 ? 2 : 1;
  return heads / block;
}

/// Scores of the tile's rows for every head of the block, -inf beyond `count`.
static void emitScores(KernelBuilder &k, const AttentionShape &s, Mem q,
                       V queryAt, const Matrix &rows, Mem rowAt, V head,
                       V count, Mem scores) {
  k.fill(scores, k.f32(-std::numeric_limits<double>::infinity()),
         s.block * tileRows);
  auto tile = [&](V row, int64_t n) {
    SmallVector<SmallVector<V>> total;
    for (auto [p, part] : llvm::enumerate(s.parts)) {
      SmallVector<MatrixRow> weightAt;
      SmallVector<V> xAt;
      for (int64_t r = 0; r < n; ++r) {
        V at = k.load(rowAt, row + r) + part.rowAt;
        weightAt.push_back(
            {p == 0 && s.headStride ? at + head * s.headStride : at});
      }
      for (int64_t h = 0; h < s.block; ++h)
        xAt.push_back(queryAt + (h * s.queryWidth + part.queryAt));
      auto dots = dotTile(k, rows, weightAt, q, xAt, part.width);
      if (p == 0) {
        total = dots;
        continue;
      }
      for (int64_t r = 0; r < n; ++r)
        for (int64_t h = 0; h < s.block; ++h)
          total[r][h] = total[r][h] + dots[r][h];
    }
    for (int64_t r = 0; r < n; ++r)
      for (int64_t h = 0; h < s.block; ++h)
        k.store(scores, row + (h * tileRows + r),
                total[r][h] * k.f32(s.scale));
  };
  V whole = count / 2 * 2;
  k.loop(k.index(0), whole, 2, [&](V row) { tile(row, 2); });
  k.loop(whole, count, 1, [&](V row) { tile(row, 1); });
}

/// Turns a head's scores into exp(score - maximum). Returns {new maximum, new
/// sum of weights, factor on what was summed before}.
static SmallVector<V> emitSoftmax(KernelBuilder &k, Mem scores, int64_t at,
                                  V maximum, V sum) {
  V low = k.splat(k.f32(-std::numeric_limits<double>::infinity()), lanes);
  V tileMax = k.maxElement(
      k.loop(k.index(0), k.index(tileRows), lanes, {low},
             [&](V c, ArrayRef<V> acc) {
               return SmallVector<V>{
                   k.maximum(acc[0], k.loadVector(scores, c + at, lanes))};
             })[0]);
  V next = k.maximum(maximum, tileMax);
  V nexts = k.splat(next, lanes);
  V tileSum = k.sum(k.loop(k.index(0), k.index(tileRows), lanes,
                           {k.zeros(lanes)}, [&](V c, ArrayRef<V> acc) {
                             V p = k.exp(k.loadVector(scores, c + at, lanes) -
                                         nexts);
                             k.storeVector(scores, c + at, p);
                             return SmallVector<V>{acc[0] + p};
                           })[0]);
  V factor = k.exp(maximum - next);
  return {next, k.fma(sum, factor, tileSum), factor};
}

/// out = out * factor + weights * values, for every head of the block. The
/// values are those of the rows without the cache's own factor.
static void emitValues(KernelBuilder &k, const AttentionShape &s,
                       const Matrix &rows, Mem rowAt, V head, V count,
                       Mem weights, Mem out,
                       ArrayRef<V> factors) {
  int64_t n = lanesFor(s.valueWidth);
  k.loop(k.index(0), k.index(s.valueWidth), n, [&](V c) {
    SmallVector<V> sums;
    for (int64_t h = 0; h < s.block; ++h)
      sums.push_back(k.loadVector(out, c + h * s.valueWidth, n) *
                     k.splat(factors[h], n));
    sums = k.loop(k.index(0), count, 1, sums, [&](V r, ArrayRef<V> acc) {
      V at = k.load(rowAt, r) + c + s.valueAt;
      if (s.headStride)
        at = at + head * s.headStride;
      V value = k.loadRow(rows, {at}, k.index(0), n)[0];
      SmallVector<V> next;
      for (int64_t h = 0; h < s.block; ++h)
        next.push_back(k.fma(
            k.splat(k.load(weights, r + h * tileRows), n), value, acc[h]));
      return next;
    });
    for (int64_t h = 0; h < s.block; ++h)
      k.storeVector(out, c + h * s.valueWidth, sums[h]);
  });
}

/// The row starts of a tile: positions `first`.. or the selection's entries.
static void emitRowStarts(KernelBuilder &k, const AttentionShape &s, Mem table,
                          V pages, V sequence, V first, V count, Mem selected,
                          V selectedAt, Mem rowAt) {
  k.loop(k.index(0), count, 1, [&](V r) {
    V position = s.selected ? k.load(selected, selectedAt + first + r)
                            : first + r;
    k.store(rowAt, r, cacheRow(k, table, pages, sequence, position,
                               s.rowWidth));
  });
}

static std::string buildAttention(KernelSite site, const std::string &name,
                                  const AttentionShape &s) {
  SmallVector<StringRef> access(s.selected ? 6 : 5, "read");
  access.push_back("write");
  if (s.partial)
    access.push_back("write");
  int64_t scalars = s.scaled() ? 2 : 1;
  return kernelOnce(site, name, access, scalars, [&](KernelBuilder &k) {
    Mem q = k.buffer(0, Format::F32), positions = k.buffer(1, Format::I32);
    Mem sequences = k.buffer(2, Format::I32), table = k.buffer(3, Format::I32);
    Matrix rows = k.cacheRows(4, s.cache, s.scaled() ? k.scalarF32(1) : V());
    Mem selected = s.selected ? k.buffer(5, Format::I32) : Mem();
    Mem y = k.buffer(s.selected ? 6 : 5, Format::F32);
    Mem lse = s.partial ? k.buffer(access.size() - 1, Format::F32) : Mem();
    V pages = k.scalar(0);
    Mem scores = k.scratch(s.block * tileRows, Format::F32);
    Mem rowAt = k.scratchIndices(tileRows);
    Mem out = k.scratch(s.block * s.valueWidth, Format::F32);
    int64_t blocks = s.heads / s.block;
    k.items([&](V item) {
      V token = item / blocks, head = item % blocks * s.block;
      V sequence = k.load(sequences, token);
      V count = k.load(positions, token) + 1;
      if (s.selected)
        count = k.minimum(count, k.index(s.selected));
      V queryAt = (token * s.heads + head) * s.queryWidth;
      k.fill(out, k.f32(0), s.block * s.valueWidth);
      SmallVector<V> state;
      for (int64_t h = 0; h < s.block; ++h)
        state.append(
            {k.f32(-std::numeric_limits<double>::infinity()), k.f32(0)});
      state = k.loop(
          k.index(0), count, tileRows, state,
          [&](V first, ArrayRef<V> carried) {
            V inTile = k.minimum(count - first, k.index(tileRows));
            emitRowStarts(k, s, table, pages, sequence, first, inTile,
                          selected, token * s.selected, rowAt);
            emitScores(k, s, q, queryAt, rows, rowAt, head, inTile, scores);
            SmallVector<V> next, factors;
            for (int64_t h = 0; h < s.block; ++h) {
              auto soft = emitSoftmax(k, scores, h * tileRows, carried[2 * h],
                                      carried[2 * h + 1]);
              next.append({soft[0], soft[1]});
              factors.push_back(soft[2]);
            }
            emitValues(k, s, rows, rowAt, head, inTile, scores, out, factors);
            return next;
          });
      int64_t n = lanesFor(s.valueWidth);
      V outAt = (token * s.heads + head) * s.valueWidth;
      for (int64_t h = 0; h < s.block; ++h) {
        V maximum = state[2 * h], sum = state[2 * h + 1];
        V inverse = (rows.factor.value ? rows.factor : k.f32(1.0)) / sum;
        if (s.partial) {
          // The maximum's own weight is 1, so only nothing has a sum of 0. Then
          // the maximum is -inf and the logarithm, too.
          inverse = k.select(sum == k.f32(0), k.f32(0), inverse);
          k.store(lse, token * s.heads + head + h, maximum + k.log(sum));
        }
        inverse = k.splat(inverse, n);
        k.loop(k.index(0), k.index(s.valueWidth), n, [&](V c) {
          V at = c + h * s.valueWidth;
          k.storeVector(y, outAt + at, k.loadVector(out, at, n) * inverse);
        });
      }
    });
  });
}

static std::string shapeName(const char *kind, HeadShape s, Format cache,
                             double scale, int64_t selected) {
  std::string name = kind;
  name += "_" + nameOf(cache);
  for (int64_t d : {s.heads, s.nope, s.rope, s.v, s.latent})
    name += "_" + std::to_string(d);
  name += "_" + llvm::utohexstr(llvm::bit_cast<uint64_t>(scale));
  if (selected)
    name += "_selected_" + std::to_string(selected);
  return name;
}

std::string latentAttention(KernelSite site, HeadShape s, Format cache,
                            double scale, int64_t selected, bool partial) {
  int64_t width = s.latent + s.rope;
  AttentionShape shape{s.heads, s.heads / headBlocks(s.heads),
                       width,   width,
                       {{0, 0, width}}, /*headStride=*/0,
                       /*valueAt=*/0,   s.latent,
                       scale,           selected,
                       cache,           partial};
  const char *kind = partial ? "latent_attention_partial" : "latent_attention";
  return buildAttention(site, shapeName(kind, s, cache, scale, selected), shape);
}

std::string mergeAttention(KernelSite site, int64_t heads, int64_t latent,
                           int64_t ranks) {
  std::string name = "merge_attention_" + std::to_string(heads) + "_" +
                     std::to_string(latent) + "_" + std::to_string(ranks);
  return kernelOnce(
      site, name, {"read", "read", "write"}, 0, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), lse = k.buffer(1, Format::F32);
        Mem y = k.buffer(2, Format::F32);
        V ranksV = k.index(ranks);
        Mem weights = k.scratch(ranks, Format::F32);
        int64_t n = lanesFor(latent);
        k.items([&](V item) {
          V token = item / heads, head = item % heads;
          // A rank's part of the token's row.
          auto part = [&](V rank) {
            return (token * ranks + rank) * heads + head;
          };
          V low = k.f32(-std::numeric_limits<double>::infinity());
          V maximum = k.loop(k.index(0), ranksV, 1, {low},
                             [&](V r, ArrayRef<V> acc) {
                               return SmallVector<V>{
                                   k.maximum(acc[0], k.load(lse, part(r)))};
                             })[0];
          // -inf - -inf is NaN: where no rank sees anything, 0 is the maximum.
          maximum = k.select(maximum == low, k.f32(0), maximum);
          V sum = k.loop(k.index(0), ranksV, 1, {k.f32(0)},
                         [&](V r, ArrayRef<V> acc) {
                           V w = k.exp(k.load(lse, part(r)) - maximum);
                           k.store(weights, r, w);
                           return SmallVector<V>{acc[0] + w};
                         })[0];
          V inverse =
              k.select(sum == k.f32(0), k.f32(0), k.f32(1) / sum);
          k.loop(k.index(0), k.index(latent), n, [&](V c) {
            V out = k.loop(k.index(0), ranksV, 1, {k.zeros(n)},
                           [&](V r, ArrayRef<V> acc) {
                             V w = k.load(weights, r) * inverse;
                             V v = k.loadVector(x, part(r) * latent + c, n);
                             return SmallVector<V>{
                                 k.fma(k.splat(w, n), v, acc[0])};
                           })[0];
            k.storeVector(y, item * latent + c, out);
          });
        });
      });
}

std::string attention(KernelSite site, HeadShape s, Format cache, double scale,
                      int64_t selected) {
  int64_t perHead = s.nope + s.v;
  AttentionShape shape{s.heads,
                       /*block=*/1,
                       s.nope + s.rope,
                       s.heads * perHead + s.rope,
                       {{0, 0, s.nope}, {s.nope, s.heads * perHead, s.rope}},
                       /*headStride=*/perHead,
                       /*valueAt=*/s.nope,
                       s.v,
                       scale,
                       selected,
                       cache};
  return buildAttention(site, shapeName("attention", s, cache, scale, selected),
                        shape);
}

//===----------------------------------------------------------------------===//
// Into and out of the latent space
//===----------------------------------------------------------------------===//

std::string absorbQuery(KernelSite site, HeadShape s, Format kvB,
                        bool interleaved) {
  std::string name =
      shapeName("absorb_query", s, kvB, interleaved ? 1.0 : 0.0, 0);
  return kernelOnce(
      site, name, {"read", "read", "read", "write"}, 1, [&](KernelBuilder &k) {
        Mem q = k.buffer(0, Format::F32), y = k.buffer(3, Format::F32);
        Matrix w =
            k.matrix(1, {kvB, s.heads * (s.nope + s.v), s.latent});
        Mem rotary = k.buffer(2, Format::F32);
        V tokens = k.scalar(0);
        int64_t n = lanesFor(s.latent);
        // Rows of kv_b are added up a few at a time into the result, which
        // stays in the L1 cache: so kv_b is read front to back, once.
        int64_t block = s.nope % 4 == 0 ? 4 : s.nope % 2 == 0 ? 2 : 1;
        int64_t line = lineColumns(kvB);
        if (s.latent % line)
          line = leastColumns(kvB) > lanes ? leastColumns(kvB) : n;
        int64_t ahead = block * (s.latent / columnsPerElement(kvB));
        int64_t queryRow = s.heads * (s.nope + s.rope);
        int64_t outRow = s.heads * (s.latent + s.rope);
        k.items([&](V head) {
          auto queryAt = [&](V t) {
            return t * queryRow + head * (s.nope + s.rope);
          };
          auto outAt = [&](V t) {
            return t * outRow + head * (s.latent + s.rope);
          };
          k.loop(k.index(0), tokens, 1, [&](V t) {
            k.loop(k.index(0), k.index(s.latent), n, [&](V c) {
              k.storeVector(y, outAt(t) + c, k.zeros(n));
            });
            rotate(k, q, queryAt(t) + s.nope, rotary, t * s.rope, y,
                   outAt(t) + s.latent, s.rope, interleaved);
          });
          k.loop(k.index(0), k.index(s.nope), block, [&](V i) {
            SmallVector<MatrixRow> rows;
            for (int64_t j = 0; j < block; ++j)
              rows.push_back(k.row(w, head * (s.nope + s.v) + i + j));
            k.loop(k.index(0), tokens, 1, [&](V t) {
              SmallVector<V> xs;
              for (int64_t j = 0; j < block; ++j) {
                V x = k.load(q, queryAt(t) + i + j);
                x = w.factor.value ? x * w.factor : x;
                xs.push_back(k.splat(x, n));
              }
              k.loop(k.index(0), k.index(s.latent), line, [&](V c) {
                SmallVector<SmallVector<V>> values;
                for (const MatrixRow &row : rows) {
                  k.prefetch(w.values,
                             row.values + c / columnsPerElement(kvB) + ahead);
                  values.push_back(k.loadRow(w, row, c, line));
                  SmallVector<V> scales = k.rowScales(w, row, c, line);
                  for (auto [v, value] : llvm::enumerate(values.back())) {
                    if (w.lift != 1)
                      value = value * k.splat(k.f32(w.lift * w.lift), n);
                    if (!scales.empty())
                      value = value *
                              scales[v * scales.size() / values.back().size()];
                  }
                }
                for (int64_t v = 0; v < line; v += n) {
                  V at = outAt(t) + c + v;
                  V sum = k.loadVector(y, at, n);
                  for (int64_t j = 0; j < block; ++j)
                    sum = k.fma(xs[j], values[j][v / n], sum);
                  k.storeVector(y, at, sum);
                }
              });
            });
          });
        });
      });
}

std::string expandValue(KernelSite site, HeadShape s, Format kvB) {
  std::string name = shapeName("expand_value", s, kvB, 0.0, 0);
  return kernelOnce(
      site, name, {"read", "read", "write"}, 1, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), y = k.buffer(2, Format::F32);
        Matrix w = k.matrix(1, {kvB, s.heads * (s.nope + s.v), s.latent});
        V tokens = k.scalar(0);
        int64_t blocks = rowBlocks(s.v);
        k.items([&](V item) {
          V head = item / blocks;
          auto [low, high] = blockRows(k, item % blocks, s.v);
          auto xAt = [&](V t) { return (t * s.heads + head) * s.latent; };
          V firstRow = head * (s.nope + s.v) + s.nope;
          auto emit = [&](V t, V r, ArrayRef<V> v) {
            k.store(y, (t * s.heads + head) * s.v + r, v[0]);
          };
          rowProduct(k, {x, xAt, {w}, firstRow, emit}, low, high, k.index(0),
                     tokens);
        });
      });
}

} // namespace mla::host
