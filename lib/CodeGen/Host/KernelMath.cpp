//===- KernelMath.cpp - arithmetic of host kernels ------------------------===//
//
// Part of mla. Functions, sums and the tile of dot products that every matrix
// kernel is made of.
//
//===----------------------------------------------------------------------===//
#include "KernelTypes.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace mla::host {

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

V KernelBuilder::fma(V x, V y, V z) {
  return {math::FmaOp::create(b, x.value, y.value, z.value), this};
}

V KernelBuilder::maximum(V x, V y) {
  return {arith::MaximumFOp::create(b, x.value, y.value), this};
}

V KernelBuilder::minimum(V x, V y) {
  return {arith::MinSIOp::create(b, x.value, y.value), this};
}

V KernelBuilder::sqrt(V x) { return {math::SqrtOp::create(b, x.value), this}; }
V KernelBuilder::cos(V x) { return {math::CosOp::create(b, x.value), this}; }
V KernelBuilder::log(V x) { return {math::LogOp::create(b, x.value), this}; }
V KernelBuilder::sin(V x) { return {math::SinOp::create(b, x.value), this}; }

/// A constant of the type of `like`.
static V like(V like, double v) {
  V scalar = like.k->f32(v);
  if (auto vector = dyn_cast<VectorType>(like.value.getType()))
    return like.k->splat(scalar, vector.getDimSize(0));
  return scalar;
}

/// e^x = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2, and e^r by its
/// Taylor series: the first term left out is below 5e-9. Below -87 (where f32
/// leaves its normal range) the result is 0, above 88.7 infinity; NaN stays.
V KernelBuilder::exp(V x) {
  V low = like(x, -87.0), high = like(x, 88.72);
  V c = {arith::MinimumFOp::create(
             b, arith::MaximumFOp::create(b, x.value, low.value).getResult(),
             high.value),
         this};
  V n = {math::RoundEvenOp::create(b, (c * like(x, 1.4426950408889634)).value),
         this};
  // ln 2 in two parts, so that n * ln 2 is exact to f32.
  V r = fma(n, like(x, -0.693359375), c);
  r = fma(n, like(x, 2.12194440e-4), r);
  V p = like(x, 1.0 / 5040);
  for (double coefficient : {1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0,
                             1.0})
    p = fma(p, r, like(x, coefficient));
  // 2^n in two factors: n reaches 128, whose power is no f32.
  Type intType = integersLike(x.value.getType(), 32);
  auto intConstant = [&](int64_t v) { return integerLike(b, intType, v); };
  Value whole = arith::FPToSIOp::create(b, intType, n.value);
  Value half = arith::ShRSIOp::create(b, whole, intConstant(1));
  Value rest = arith::SubIOp::create(b, whole, half);
  auto power = [&](Value e) -> V {
    Value bits = arith::ShLIOp::create(
        b, arith::AddIOp::create(b, e, intConstant(127)).getResult(),
        intConstant(23));
    return {arith::BitcastOp::create(b, x.value.getType(), bits), this};
  };
  V y = p * power(half) * power(rest);
  auto choose = [&](arith::CmpFPredicate predicate, V bound, V yes, V no) {
    Value is = arith::CmpFOp::create(b, predicate, x.value, bound.value);
    return V{arith::SelectOp::create(b, is, yes.value, no.value), this};
  };
  y = choose(arith::CmpFPredicate::OLT, low, like(x, 0.0), y);
  y = choose(arith::CmpFPredicate::OGT, high,
             like(x, std::numeric_limits<double>::infinity()), y);
  return choose(arith::CmpFPredicate::UNO, x, x, y);
}

V KernelBuilder::sigmoid(V x) {
  V one = like(x, 1.0);
  return one / (one + exp(like(x, 0.0) - x));
}

V KernelBuilder::silu(V x) { return x / (like(x, 1.0) + exp(like(x, 0.0) - x)); }

V KernelBuilder::toF32(V i) {
  Value integer = arith::IndexCastOp::create(b, b.getI64Type(), i.value);
  return {arith::SIToFPOp::create(b, b.getF32Type(), integer), this};
}

V KernelBuilder::abs(V x) { return {math::AbsFOp::create(b, x.value), this}; }

V KernelBuilder::toIndex(V x) {
  Value integer = arith::FPToSIOp::create(b, b.getI64Type(), x.value);
  return {arith::IndexCastOp::create(b, b.getIndexType(), integer), this};
}

/// Halves a vector until one lane is left.
static V reduceTree(V vector, function_ref<V(V, V)> combine) {
  KernelBuilder &k = *vector.k;
  int64_t n = cast<VectorType>(vector.value.getType()).getDimSize(0);
  while (n > 1) {
    SmallVector<int64_t> low, high;
    for (int64_t i = 0; i < n / 2; ++i) {
      low.push_back(i);
      high.push_back(n / 2 + i);
    }
    auto part = [&](ArrayRef<int64_t> mask) -> V {
      return {vector::ShuffleOp::create(k.b, vector.value, vector.value, mask),
              &k};
    };
    vector = combine(part(low), part(high));
    n /= 2;
  }
  return {vector::ExtractOp::create(k.b, vector.value, int64_t(0)), &k};
}

V KernelBuilder::sum(V vector) {
  return reduceTree(vector, [](V x, V y) { return x + y; });
}

V KernelBuilder::maxElement(V vector) {
  return reduceTree(vector, [this](V x, V y) { return maximum(x, y); });
}

SmallVector<SmallVector<V>> dotTile(KernelBuilder &k, const Matrix &weights,
                                    ArrayRef<MatrixRow> rows, Mem x,
                                    ArrayRef<V> xAt, int64_t width,
                                    int64_t ahead) {
  size_t xs = xAt.size();
  SmallVector<V> sums(rows.size() * xs, k.zeros(lanes));
  // The first loop takes a cache line of a row at a time: rows that lie a
  // multiple of 4 KiB apart share a set of the L1 cache, and a line that is left
  // half used would be gone when its row comes round again.
  int64_t done = 0;
  for (int64_t part :
       {lineColumns(weights.format()), leastColumns(weights.format())}) {
    int64_t end = done + (width - done) / part * part;
    if (end == done)
      continue;
    sums = k.loop(
        k.index(done), k.index(end), part, sums,
        [&](V c, ArrayRef<V> carried) {
          SmallVector<V> acc(carried);
          SmallVector<SmallVector<V>> xv;
          for (int64_t j = 0; j < part; j += lanes) {
            xv.emplace_back();
            for (V at : xAt) {
              V v = k.loadVector(x, at + c + j, lanes);
              xv.back().push_back(
                  weights.lift == 1 ? v : v * like(v, weights.lift));
            }
          }
          for (auto [r, row] : llvm::enumerate(rows)) {
            if (ahead)
              k.prefetch(weights.values,
                         row.values + c / columnsPerElement(weights.format()) +
                             ahead);
            SmallVector<V> values = k.loadRow(weights, row, c, part);
            SmallVector<V> scales = k.rowScales(weights, row, c, part);
            // Without scales straight to the sums; with them through a sum over
            // each group.
            size_t groups = std::max<size_t>(scales.size(), 1);
            size_t each = values.size() / groups;
            for (size_t i = 0; i < xs; ++i)
              for (size_t g = 0; g < groups; ++g) {
                V &sum = acc[r * xs + i];
                V inner = sum;
                for (size_t j = g * each; j < (g + 1) * each; ++j)
                  inner = !scales.empty() && j == g * each
                              ? values[j] * xv[j][i]
                              : k.fma(values[j], xv[j][i], inner);
                if (weights.lift != 1)
                  inner = inner * like(inner, weights.lift);
                sum = scales.empty() ? inner : k.fma(scales[g], inner, sum);
              }
          }
          return acc;
        });
    done = end;
  }
  SmallVector<SmallVector<V>> out(rows.size());
  for (auto [r, row] : llvm::enumerate(rows))
    for (size_t i = 0; i < xs; ++i) {
      V total = done > 0 ? k.sum(sums[r * xs + i]) : k.f32(0);
      for (int64_t c = done; c < width; ++c) {
        V value = k.sum(k.loadRow(weights, row, k.index(c), 1)[0]);
        for (V scale : k.rowScales(weights, row, k.index(c), 1))
          value = value * k.f32(weights.lift * weights.lift) * k.sum(scale);
        total = k.fma(value, k.load(x, xAt[i] + c), total);
      }
      out[r].push_back(weights.factor.value ? total * weights.factor : total);
    }
  return out;
}

} // namespace mla::host
