//===- KernelBuilder.cpp - writing host kernels in MLIR -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
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
    return b.getI16Type(); // See widen().
  case Format::F16:
    return b.getF16Type();
  case Format::I32:
  case Format::Int4G32:
    return b.getI32Type();
  case Format::FP8E4M3:
  case Format::FP8Block:
  case Format::NVFP4:
    return b.getI8Type();
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

V KernelBuilder::scalarF32(unsigned i) {
  Value v = argument(operandCount + i, b.getI64Type());
  v = arith::TruncIOp::create(b, b.getI32Type(), v);
  return {arith::BitcastOp::create(b, b.getF32Type(), v), this};
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
  return {widen(v, m.format, b.getF32Type()), this};
}

void KernelBuilder::store(Mem m, V at, V value) {
  Value v = value.value;
  if (m.format == Format::I32) {
    if (!holdsIndices(m))
      v = arith::IndexCastOp::create(b, b.getI32Type(), v);
  } else {
    v = narrow(v, m.format);
  }
  memref::StoreOp::create(b, v, m.memref, ValueRange{at.value});
}

V KernelBuilder::loadVector(Mem m, V at, int64_t n) {
  auto stored = VectorType::get({n}, elementType(b, m.format));
  Value v = vector::LoadOp::create(b, stored, m.memref, ValueRange{at.value});
  return {widen(v, m.format, VectorType::get({n}, b.getF32Type())), this};
}

void KernelBuilder::storeVector(Mem m, V at, V value) {
  Value v = narrow(value.value, m.format);
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

} // namespace mla::host
