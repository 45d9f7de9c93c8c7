//===- MatrixKernels.cpp - y = W x ----------------------------------------===//
//
// Part of mla. The kernel for weights in f32.
//
//===----------------------------------------------------------------------===//
#include "MatrixKernels.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {
namespace {

/// linearF32(): a block owns two rows of all segments together and a tile of 8
/// tokens (or 1); its threads split the columns, four at a time, and sums are made
/// over the block. 2 * tokens sums and as many values of x a thread; no shared
/// memory but the sums. Bound by reading: weights once a tile of tokens, x once a
/// block, from L2.
class F32Builder {
public:
  static constexpr int64_t rows = 2, warps = 8;

  F32Builder(KernelSite site, const LinearSpec &spec, int64_t tile,
             StringRef name)
      : spec(spec), tile(tile), columns(spec.segments[0].columns),
        operands(spec),
        k(site.kernels, site.loc, name, operands.access, 1, {warps * 32}) {}

  void build() {
    V tokens = k.scalar32(0);
    V row = k.block() * rows, firstToken = k.i32(0);
    if (spec.maxTokens > tile) {
      V tiles = k.ceilDiv(tokens, tile);
      row = k.block() / tiles * rows;
      firstToken = k.block() % tiles * tile;
    }
    Ptr sums = k.shared(warps * (rows + 1) * tile * 4);
    SmallVector<Ptr> weights;
    for (int64_t r = 0; r < rows; ++r)
      weights.push_back(weightRow(row + r));
    k.gridWait();
    k.gridTrigger();
    SmallVector<Ptr> x;
    for (int64_t i = 0; i < tile; ++i) {
      // A tile's tokens beyond the last repeat it and are not stored.
      V token = k.minimum(firstToken + i, tokens - 1);
      if (spec.outputs)
        token = k.loadI32(k.buffer(operands.outputs) + token * 4, Cached::L2);
      x.push_back(k.buffer(0) + k.to64(token) * (columns * 4));
    }
    // For each token the sums of the rows, then that of x's squares.
    Vs acc(tile * (rows + 1), k.f32(0));
    bool inside = columns % (warps * 128) == 0;
    acc = k.loop(k.thread() * 4, k.i32(columns), warps * 128, acc,
                 [&](V column, ArrayRef<V> in) {
                   Vs out(in.begin(), in.end());
                   SmallVector<Vs> w;
                   for (int64_t r = 0; r < rows; ++r)
                     w.push_back(loadFour(k, weights[r], column, columns,
                                          Format::F32, Cached::Stream, inside));
                   Vs gamma;
                   if (spec.norm)
                     gamma = loadFour(k, k.buffer(operands.gamma), column,
                                      columns, spec.gamma, Cached::Yes, inside);
                   for (int64_t i = 0; i < tile; ++i) {
                     Vs v = loadFour(k, x[i], column, columns, Format::F32,
                                     Cached::L2, inside);
                     V *sum = &out[i * (rows + 1)];
                     for (unsigned j = 0; j < 4; ++j) {
                       if (spec.norm) {
                         sum[rows] = k.fma(v[j], v[j], sum[rows]);
                         v[j] = v[j] * gamma[j];
                       }
                       for (int64_t r = 0; r < rows; ++r)
                         sum[r] = k.fma(w[r][j], v[j], sum[r]);
                     }
                   }
                   return out;
                 });
    for (int64_t i = 0; i < tile * (rows + 1); ++i) {
      if (!spec.norm && i % (rows + 1) == rows)
        continue;
      V sum = k.warpSum(acc[i]);
      k.when(k.lane() == 0, [&] {
        k.store(sums + (k.warp() * (tile * (rows + 1)) + i) * 4, sum);
      });
    }
    k.barrier();
    k.when(k.thread() < tile * rows, [&] {
      V i = k.thread() / rows, r = k.thread() % rows;
      store(firstToken + i, tokens, row + r, [&] {
        V y = total(sums, i * (rows + 1) + r);
        if (spec.norm) {
          V mean =
              total(sums, i * (rows + 1) + rows) * k.f32(1.0 / double(columns));
          y = y * k.reciprocal(k.sqrt(mean + k.f32(spec.eps)));
        }
        return y;
      });
    });
    k.finish();
  }

private:
  /// Row `row` of all segments together; the last one for those beyond.
  Ptr weightRow(V row) {
    Ptr from{Value(), &k};
    int64_t at = 0;
    for (const LinearSegment &segment : operands.segments) {
      V local =
          k.minimum(k.maximum(row - at, k.i32(0)), k.i32(segment.rows - 1));
      Ptr p = k.buffer(segment.weight) + k.to64(local) * (columns * 4);
      from = from.value ? k.select(row >= at, p, from) : p;
      at += segment.rows;
    }
    return from;
  }
  V total(Ptr sums, V index) {
    V sum = k.f32(0);
    for (int64_t w = 0; w < warps; ++w)
      sum = sum + k.loadF32(sums + (index + w * (tile * (rows + 1))) * 4);
    return sum;
  }
  void store(V token, V tokens, V row, function_ref<V()> value) {
    int64_t at = 0;
    for (const LinearSegment &segment : operands.segments) {
      V local = row - at;
      k.when((token < tokens) & (row >= at) & (local < segment.rows), [&] {
        V y = value();
        V to = k.to64(token) * (segment.rows * 4) + k.to64(local * 4);
        if (spec.residual)
          y = y + k.loadF32(k.buffer(operands.residual) + to, Cached::L2);
        k.store(k.buffer(segment.output) + to, y);
      });
      at += segment.rows;
    }
  }

  const LinearSpec &spec;
  int64_t tile, columns;
  LinearOperands operands;
  KernelBuilder k;
};

} // namespace

Kernel linearF32(KernelSite site, const LinearSpec &spec) {
  std::string name = linearName("linear_f32", spec);
  int64_t tile = spec.maxTokens == 1 ? 1 : 8, rows = 0;
  for (const MatrixShape &shape : spec.segments)
    rows += shape.rows;
  std::string grid = std::to_string(llvm::divideCeil(rows, F32Builder::rows));
  if (spec.maxTokens > tile)
    grid = std::string("ceildiv(") + (spec.outputs ? "outputs" : "tokens") +
           ", " + std::to_string(tile) + ") * " + grid;
  if (!exists(site, name))
    F32Builder(site, spec, tile, name).build();
  return {name, grid};
}

} // namespace mla::nvvm
