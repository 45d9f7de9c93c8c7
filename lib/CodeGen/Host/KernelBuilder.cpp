//===- KernelBuilder.cpp - writing host kernels in MLIR -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace mla::host {

int64_t lanesFor(int64_t width) {
  int64_t n = lanes;
  while (width % n)
    n /= 2;
  return n;
}

static bool isFloat(V v) { return isa<FloatType>(getElementTypeOrSelf(v.value)); }

static Type elementType(Builder &b, Format format) {
  switch (format) {
  case Format::BF16:
    return b.getBF16Type();
  case Format::F16:
    return b.getF16Type();
  case Format::I32:
    return b.getI32Type();
  default:
    return b.getF32Type();
  }
}

//===----------------------------------------------------------------------===//
// Operators
//===----------------------------------------------------------------------===//

template <typename FloatOp, typename IntOp> static V binary(V a, V b) {
  KernelBuilder *k = a.k;
  if (isFloat(a))
    return {FloatOp::create(k->b, a.value, b.value), k};
  return {IntOp::create(k->b, a.value, b.value), k};
}

static V compare(V a, V b, arith::CmpFPredicate f, arith::CmpIPredicate i) {
  KernelBuilder *k = a.k;
  if (isFloat(a))
    return {arith::CmpFOp::create(k->b, f, a.value, b.value), k};
  return {arith::CmpIOp::create(k->b, i, a.value, b.value), k};
}

V operator+(V a, V b) { return binary<arith::AddFOp, arith::AddIOp>(a, b); }
V operator-(V a, V b) { return binary<arith::SubFOp, arith::SubIOp>(a, b); }
V operator*(V a, V b) { return binary<arith::MulFOp, arith::MulIOp>(a, b); }
V operator/(V a, V b) { return binary<arith::DivFOp, arith::DivUIOp>(a, b); }
V operator%(V a, V b) { return binary<arith::RemFOp, arith::RemUIOp>(a, b); }
V operator+(V a, int64_t b) { return b == 0 ? a : a + a.k->index(b); }
V operator-(V a, int64_t b) { return b == 0 ? a : a - a.k->index(b); }
V operator*(V a, int64_t b) { return b == 1 ? a : a * a.k->index(b); }
V operator/(V a, int64_t b) { return b == 1 ? a : a / a.k->index(b); }
V operator%(V a, int64_t b) { return a % a.k->index(b); }
V operator<(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OLT, arith::CmpIPredicate::slt);
}
V operator<(V a, int64_t b) { return a < a.k->index(b); }
V operator==(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OEQ, arith::CmpIPredicate::eq);
}
V operator==(V a, int64_t b) { return a == a.k->index(b); }
V operator>(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OGT, arith::CmpIPredicate::sgt);
}
V operator>=(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OGE, arith::CmpIPredicate::sge);
}

//===----------------------------------------------------------------------===//
// Function and arguments
//===----------------------------------------------------------------------===//

KernelBuilder::KernelBuilder(ModuleOp kernels, Location loc, StringRef name,
                             ArrayRef<StringRef> access, int64_t scalars)
    : b(loc, kernels.getContext()), operandCount(access.size()) {
  b.setInsertionPointToEnd(kernels.getBody());
  Type ptr = LLVM::LLVMPointerType::get(b.getContext());
  Type i64 = b.getI64Type();
  function = func::FuncOp::create(b, name,
                                  b.getFunctionType({ptr, i64, i64}, {}));
  function->setAttr("mla.access", b.getStrArrayAttr(access));
  function->setAttr("mla.scalars", b.getI64IntegerAttr(scalars));
  b.setInsertionPointToStart(function.addEntryBlock());
}

void KernelBuilder::items(function_ref<void(V)> body) {
  auto asIndex = [&](unsigned i) {
    return V{arith::IndexCastOp::create(b, b.getIndexType(),
                                        function.getArgument(i)),
             this};
  };
  loop(asIndex(1), asIndex(2), 1, body);
  func::ReturnOp::create(b);
}

Value KernelBuilder::argument(unsigned slot, Type type) {
  Type ptr = LLVM::LLVMPointerType::get(b.getContext());
  Value address = LLVM::GEPOp::create(b, ptr, b.getI64Type(),
                                      function.getArgument(0),
                                      ArrayRef<LLVM::GEPArg>{int32_t(slot)});
  return LLVM::LoadOp::create(b, type, address);
}

Mem KernelBuilder::memoryAt(Value pointer, Format format) {
  auto type = MemRefType::get({ShapedType::kDynamic}, elementType(b, format));
  Type ptr = LLVM::LLVMPointerType::get(b.getContext());
  Type i64 = b.getI64Type();
  Type one = LLVM::LLVMArrayType::get(i64, 1);
  Type descriptor = LLVM::LLVMStructType::getLiteral(b.getContext(),
                                                     {ptr, ptr, i64, one, one});
  auto constant = [&](int64_t v) -> Value {
    return LLVM::ConstantOp::create(b, i64, b.getI64IntegerAttr(v));
  };
  Value d = LLVM::UndefOp::create(b, descriptor);
  auto insert = [&](Value v, ArrayRef<int64_t> at) {
    d = LLVM::InsertValueOp::create(b, d, v, at);
  };
  insert(pointer, {0});
  insert(pointer, {1});
  insert(constant(0), {2});
  insert(constant(0), {3, 0}); // The size is not looked at.
  insert(constant(1), {4, 0});
  Value memref =
      UnrealizedConversionCastOp::create(b, TypeRange{type}, ValueRange{d})
          .getResult(0);
  return {memref, format};
}

Mem KernelBuilder::buffer(unsigned operand, Format format) {
  return memoryAt(
      argument(operand, LLVM::LLVMPointerType::get(b.getContext())), format);
}

V KernelBuilder::scalar(unsigned i) {
  Value v = argument(operandCount + i, b.getI64Type());
  return {arith::IndexCastOp::create(b, b.getIndexType(), v), this};
}

Mem KernelBuilder::tableEntry(unsigned operand, V index, Format format) {
  Type ptr = LLVM::LLVMPointerType::get(b.getContext());
  Value table = argument(operand, ptr);
  Value at = arith::IndexCastOp::create(b, b.getI64Type(), index.value);
  Value slot = LLVM::GEPOp::create(b, ptr, ptr, table,
                                   ArrayRef<LLVM::GEPArg>{at});
  return memoryAt(LLVM::LoadOp::create(b, ptr, slot), format);
}

static Mem allocate(ImplicitLocOpBuilder &b, int64_t elements, Type element,
                    Format format) {
  auto type = MemRefType::get({elements}, element);
  Value m = memref::AllocaOp::create(b, type, b.getI64IntegerAttr(64));
  auto dynamic = MemRefType::get({ShapedType::kDynamic}, element);
  return {memref::CastOp::create(b, dynamic, m), format};
}

Mem KernelBuilder::scratch(int64_t elements, Format format) {
  return allocate(b, elements, elementType(b, format), format);
}

Mem KernelBuilder::scratchIndices(int64_t elements) {
  return allocate(b, elements, b.getIndexType(), Format::I32);
}

static bool holdsIndices(Mem m) {
  return cast<MemRefType>(m.memref.getType()).getElementType().isIndex();
}

//===----------------------------------------------------------------------===//
// Constants and memory
//===----------------------------------------------------------------------===//

V KernelBuilder::index(int64_t v) {
  return {arith::ConstantIndexOp::create(b, v), this};
}

V KernelBuilder::f32(double v) {
  return {arith::ConstantOp::create(
              b, b.getF32FloatAttr(static_cast<float>(v))),
          this};
}

V KernelBuilder::splat(V scalar, int64_t n) {
  return {vector::BroadcastOp::create(b, VectorType::get({n}, b.getF32Type()),
                                      scalar.value),
          this};
}

V KernelBuilder::zeros(int64_t n) { return splat(f32(0), n); }

V KernelBuilder::load(Mem m, V at) {
  Value v = memref::LoadOp::create(b, m.memref, ValueRange{at.value});
  if (holdsIndices(m))
    return {v, this};
  if (m.format == Format::I32)
    return {arith::IndexCastOp::create(b, b.getIndexType(), v), this};
  if (m.format != Format::F32)
    v = arith::ExtFOp::create(b, b.getF32Type(), v);
  return {v, this};
}

void KernelBuilder::store(Mem m, V at, V value) {
  Value v = value.value;
  if (m.format == Format::I32) {
    if (!holdsIndices(m))
      v = arith::IndexCastOp::create(b, b.getI32Type(), v);
  } else if (m.format != Format::F32) {
    v = arith::TruncFOp::create(b, elementType(b, m.format), v);
  }
  memref::StoreOp::create(b, v, m.memref, ValueRange{at.value});
}

V KernelBuilder::loadVector(Mem m, V at, int64_t n) {
  auto stored = VectorType::get({n}, elementType(b, m.format));
  Value v = vector::LoadOp::create(b, stored, m.memref, ValueRange{at.value});
  if (m.format != Format::F32)
    v = arith::ExtFOp::create(b, VectorType::get({n}, b.getF32Type()), v);
  return {v, this};
}

void KernelBuilder::storeVector(Mem m, V at, V value) {
  Value v = value.value;
  if (m.format != Format::F32) {
    auto type = cast<VectorType>(v.getType());
    v = arith::TruncFOp::create(
        b, VectorType::get(type.getShape(), elementType(b, m.format)), v);
  }
  vector::StoreOp::create(b, v, m.memref, ValueRange{at.value});
}

void KernelBuilder::prefetch(Mem m, V at) {
  memref::PrefetchOp::create(b, m.memref, ValueRange{at.value},
                             /*isWrite=*/false, /*localityHint=*/2,
                             /*isDataCache=*/true);
}

void KernelBuilder::copy(Mem from, V fromAt, Mem to, V toAt, int64_t count) {
  if (from.format == Format::I32) {
    loop(index(0), index(count), 1,
         [&](V i) { store(to, toAt + i, load(from, fromAt + i)); });
    return;
  }
  int64_t n = lanesFor(count);
  loop(index(0), index(count), n, [&](V i) {
    storeVector(to, toAt + i, loadVector(from, fromAt + i, n));
  });
}

void KernelBuilder::fill(Mem m, V value, int64_t count) {
  if (m.format == Format::I32) {
    loop(index(0), index(count), 1, [&](V i) { store(m, i, value); });
    return;
  }
  int64_t n = lanesFor(count);
  V v = splat(value, n);
  loop(index(0), index(count), n, [&](V i) { storeVector(m, i, v); });
}

//===----------------------------------------------------------------------===//
// Control flow
//===----------------------------------------------------------------------===//

void KernelBuilder::loop(V low, V high, int64_t step,
                         function_ref<void(V)> body) {
  loop(low, high, step, {}, [&](V i, ArrayRef<V>) {
    body(i);
    return SmallVector<V>();
  });
}

static SmallVector<Value> plainValues(ArrayRef<V> vs) {
  SmallVector<Value> out;
  for (V v : vs)
    out.push_back(v.value);
  return out;
}

static SmallVector<V> wrap(KernelBuilder *k, ValueRange values) {
  SmallVector<V> out;
  for (Value v : values)
    out.push_back({v, k});
  return out;
}

SmallVector<V> KernelBuilder::loop(
    V low, V high, int64_t step, ArrayRef<V> init,
    function_ref<SmallVector<V>(V, ArrayRef<V>)> body) {
  auto loop = scf::ForOp::create(b, low.value, high.value, index(step).value,
                                 plainValues(init));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(loop.getBody());
  SmallVector<V> next = body(V{loop.getInductionVar(), this},
                             wrap(this, loop.getRegionIterArgs()));
  // A loop without values has its terminator already.
  if (!init.empty())
    scf::YieldOp::create(b, plainValues(next));
  return wrap(this, loop.getResults());
}

SmallVector<V> KernelBuilder::loopWhile(
    ArrayRef<V> init, function_ref<V(ArrayRef<V>)> condition,
    function_ref<SmallVector<V>(ArrayRef<V>)> body) {
  SmallVector<Value> start = plainValues(init);
  SmallVector<Type> types;
  for (Value v : start)
    types.push_back(v.getType());
  auto loop = scf::WhileOp::create(b, types, start);
  SmallVector<Location> locs(types.size(), b.getLoc());
  OpBuilder::InsertionGuard guard(b);
  Block *before = b.createBlock(&loop.getBefore(), {}, types, locs);
  V go = condition(wrap(this, before->getArguments()));
  scf::ConditionOp::create(b, go.value, before->getArguments());
  Block *after = b.createBlock(&loop.getAfter(), {}, types, locs);
  SmallVector<V> next = body(wrap(this, after->getArguments()));
  scf::YieldOp::create(b, plainValues(next));
  return wrap(this, loop.getResults());
}

void KernelBuilder::when(V condition, function_ref<void()> body) {
  auto op = scf::IfOp::create(b, condition.value, /*withElseRegion=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(op.thenBlock());
  body();
}

void KernelBuilder::ifElse(V condition, function_ref<void()> yes,
                           function_ref<void()> no) {
  auto op = scf::IfOp::create(b, condition.value, /*withElseRegion=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToStart(op.thenBlock());
  yes();
  b.setInsertionPointToStart(op.elseBlock());
  no();
}

V KernelBuilder::select(V condition, V yes, V no) {
  return {arith::SelectOp::create(b, condition.value, yes.value, no.value),
          this};
}

V KernelBuilder::both(V a, V c) {
  return {arith::AndIOp::create(b, a.value, c.value), this};
}

V KernelBuilder::either(V a, V c) {
  return {arith::OrIOp::create(b, a.value, c.value), this};
}

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
  Type i32 = b.getI32Type();
  Type intType = i32;
  if (auto vector = dyn_cast<VectorType>(x.value.getType()))
    intType = VectorType::get(vector.getShape(), i32);
  auto intConstant = [&](int32_t v) -> Value {
    TypedAttr attr = b.getI32IntegerAttr(v);
    if (auto vector = dyn_cast<VectorType>(intType))
      attr = DenseElementsAttr::get(vector, b.getI32IntegerAttr(v));
    return arith::ConstantOp::create(b, attr);
  };
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

int64_t lineElements(Format format) {
  auto bytes = static_cast<int64_t>(elementBytes(format).value());
  return std::max(64 / bytes, lanes);
}

SmallVector<SmallVector<V>> dotTile(KernelBuilder &k, Mem weights,
                                    ArrayRef<V> rowAt, Mem x, ArrayRef<V> xAt,
                                    int64_t width, int64_t ahead) {
  size_t rows = rowAt.size(), xs = xAt.size();
  SmallVector<V> sums(rows * xs, k.zeros(lanes));
  auto step = [&](V c, MutableArrayRef<V> acc, size_t r, ArrayRef<V> xv) {
    V w = k.loadVector(weights, rowAt[r] + c, lanes);
    for (size_t i = 0; i < xs; ++i)
      acc[r * xs + i] = k.fma(w, xv[i], acc[r * xs + i]);
  };
  // The first loop takes a cache line of a row at a time: rows that lie a
  // multiple of 4 KiB apart share a set of the L1 cache, and a line that is left
  // half used would be gone when its row comes round again.
  int64_t done = 0;
  for (int64_t part : {lineElements(weights.format), lanes}) {
    int64_t end = done + (width - done) / part * part;
    if (end == done)
      continue;
    sums = k.loop(k.index(done), k.index(end), part, sums,
                  [&](V c, ArrayRef<V> carried) {
                    SmallVector<V> acc(carried);
                    SmallVector<SmallVector<V>> xv;
                    for (int64_t j = 0; j < part; j += lanes) {
                      xv.emplace_back();
                      for (V at : xAt)
                        xv.back().push_back(k.loadVector(x, at + c + j, lanes));
                    }
                    for (size_t r = 0; r < rows; ++r) {
                      if (ahead)
                        k.prefetch(weights, rowAt[r] + c + ahead);
                      for (int64_t j = 0; j < part; j += lanes)
                        step(c + j, acc, r, xv[j / lanes]);
                    }
                    return acc;
                  });
    done = end;
  }
  SmallVector<SmallVector<V>> out(rows);
  for (size_t r = 0; r < rows; ++r)
    for (size_t i = 0; i < xs; ++i) {
      V total = done > 0 ? k.sum(sums[r * xs + i]) : k.f32(0);
      for (int64_t c = done; c < width; ++c)
        total = k.fma(k.load(weights, rowAt[r] + c), k.load(x, xAt[i] + c),
                      total);
      out[r].push_back(total);
    }
  return out;
}

} // namespace mla::host
