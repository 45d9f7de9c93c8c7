//===- LinearKernels.cpp - matrix times rows ------------------------------===//
//
// Part of mla. One work item is a block of matrix rows; all tokens of the step
// pass over it. With one token (decode) the kernel is a matrix-vector product
// that reads each weight once, 8 rows at a time; bytes bound it, since 8 chains
// of multiply-adds could take in 32 bytes of bf16 a cycle, several times what
// memory gives. With more tokens, tiles of 4 rows by 3 tokens fill the 16 vector
// registers (12 sums, 3 inputs, 1 weight) and turn a weight from its storage
// format once for 3 tokens; multiply-adds bound it.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::host {

int64_t rowsPerItem(int64_t rows) {
  // Enough items for a few threads, blocks of at most 32 rows.
  int64_t block = (rows / 16 + 7) / 8 * 8;
  return std::clamp<int64_t>(block, 8, 32);
}

std::string kernelOnce(KernelSite site, const std::string &name,
                       ArrayRef<StringRef> access, int64_t scalars,
                       function_ref<void(KernelBuilder &)> build) {
  if (site.kernels.lookupSymbol(name))
    return name;
  KernelBuilder k(site.kernels, site.loc, name, access, scalars);
  build(k);
  return name;
}

/// One tile: `rows` matrix rows from `row` on, `tokens` tokens from `token` on.
static void emitTile(KernelBuilder &k, const RowProduct &p, V row, int64_t rows,
                     V token, int64_t tokens) {
  SmallVector<V> xAt;
  for (int64_t t = 0; t < tokens; ++t)
    xAt.push_back(p.xAt(token + t));
  SmallVector<SmallVector<SmallVector<V>>> products;
  // Several short rows side by side are more streams than the hardware's
  // prefetcher follows: the next tile is asked for while this one is used.
  for (const Matrix &w : p.weights) {
    SmallVector<MatrixRow> at;
    V first = p.firstRow.value ? p.firstRow + row : row;
    for (int64_t r = 0; r < rows; ++r)
      at.push_back(k.row(w, first + r));
    int64_t elements = w.columns / columnsPerElement(w.format());
    int64_t ahead = tokens == 1 ? rows * elements : 0;
    products.push_back(dotTile(k, w, at, p.x, xAt, w.columns, ahead));
  }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t t = 0; t < tokens; ++t) {
      SmallVector<V> values;
      for (auto &product : products)
        values.push_back(product[r][t]);
      p.emit(token + t, row + r, values);
    }
}

void rowProduct(KernelBuilder &k, const RowProduct &p, V rowLow, V rowHigh,
                V tokenLow, V tokenHigh) {
  auto rowsOver = [&](V token, int64_t tokens, int64_t tileRows) {
    V whole = rowLow + (rowHigh - rowLow) / tileRows * tileRows;
    k.loop(rowLow, whole, tileRows,
           [&](V row) { emitTile(k, p, row, tileRows, token, tokens); });
    k.loop(whole, rowHigh, 1,
           [&](V row) { emitTile(k, p, row, 1, token, tokens); });
  };
  constexpr int64_t tile = 3;
  V whole = tokenLow + (tokenHigh - tokenLow) / tile * tile;
  k.loop(tokenLow, whole, tile, [&](V token) { rowsOver(token, tile, 4); });
  // Rows with scales need registers for their conversion.
  bool scaled = llvm::any_of(
      p.weights, [](const Matrix &w) { return scaleGroup(w.format()) > 1; });
  k.loop(whole, tokenHigh, 1,
         [&](V token) { rowsOver(token, 1, scaled ? 4 : 8); });
}

std::string linear(KernelSite site, ArrayRef<MatrixShape> segments) {
  std::string name = "linear_" + std::to_string(segments[0].columns);
  SmallVector<StringRef> access{"read"};
  for (const MatrixShape &s : segments) {
    name += "_" + nameOf(s.format) + "_" + std::to_string(s.rows);
    access.append({"read", "write"});
  }
  return kernelOnce(site, name, access, 1, [&](KernelBuilder &k) {
    Mem x = k.buffer(0, Format::F32);
    V tokens = k.scalar(0);
    SmallVector<Matrix> ws;
    SmallVector<Mem> ys;
    for (auto [i, s] : llvm::enumerate(segments)) {
      ws.push_back(k.matrix(1 + 2 * i, s));
      ys.push_back(k.buffer(2 + 2 * i, Format::F32));
    }
    k.items([&](V item) {
      int64_t first = 0;
      for (auto [i, s] : llvm::enumerate(segments)) {
        int64_t last = first + rowBlocks(s.rows), rows = s.rows;
        int64_t columns = s.columns;
        Mem y = ys[i];
        V inside = k.both(item >= k.index(first), item < last);
        k.when(inside, [&] {
          auto [low, high] = blockRows(k, item - first, rows);
          auto xAt = [&](V t) { return t * columns; };
          auto emit = [&](V t, V r, ArrayRef<V> v) {
            k.store(y, t * rows + r, v[0]);
          };
          rowProduct(k, {x, xAt, {ws[i]}, {}, emit}, low, high, k.index(0),
                     tokens);
        });
        first = last;
      }
    });
  });
}

std::string lmHead(KernelSite site, MatrixShape s) {
  std::string name = "lm_head_" + nameOf(s.format) + "_" +
                     std::to_string(s.rows) + "x" + std::to_string(s.columns);
  return kernelOnce(
      site, name, {"read", "read", "read", "write"}, 1, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32);
        Matrix w = k.matrix(1, s);
        Mem outputs = k.buffer(2, Format::I32), y = k.buffer(3, Format::F32);
        V count = k.scalar(0);
        k.items([&](V item) {
          auto [low, high] = blockRows(k, item, s.rows);
          auto xAt = [&](V i) { return k.load(outputs, i) * s.columns; };
          auto emit = [&](V i, V r, ArrayRef<V> v) {
            k.store(y, i * s.rows + r, v[0]);
          };
          rowProduct(k, {x, xAt, {w}, {}, emit}, low, high, k.index(0), count);
        });
      });
}

std::string gatedLinear(KernelSite site, MatrixShape gate, Format up) {
  std::string name = "gated_linear_" + nameOf(gate.format) + "_" + nameOf(up) +
                     "_" + std::to_string(gate.rows) + "x" +
                     std::to_string(gate.columns);
  return kernelOnce(
      site, name, {"read", "read", "read", "write"}, 1, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), y = k.buffer(3, Format::F32);
        Matrix g = k.matrix(1, gate);
        Matrix u = k.matrix(2, {up, gate.rows, gate.columns});
        V tokens = k.scalar(0);
        k.items([&](V item) {
          auto [low, high] = blockRows(k, item, gate.rows);
          auto xAt = [&](V t) { return t * gate.columns; };
          auto emit = [&](V t, V r, ArrayRef<V> v) {
            k.store(y, t * gate.rows + r, k.silu(v[0]) * v[1]);
          };
          rowProduct(k, {x, xAt, {g, u}, {}, emit}, low, high, k.index(0),
                     tokens);
        });
      });
}

} // namespace mla::host
