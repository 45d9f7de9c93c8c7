//===- KernelBuilder.cpp - writing GPU kernels in MLIR --------------------===//
//
// Part of mla. Values, memory and control flow; see KernelInstructions.cpp for
// the instructions.
//
//===----------------------------------------------------------------------===//
#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"

using namespace mlir;

namespace mla::nvvm {

constexpr unsigned globalSpace = 1, sharedSpace = 3;
constexpr llvm::StringLiteral sharedSymbol = "dynamic_shared";

static bool isFloat(V v) { return isa<FloatType>(v.value.getType()); }
static V constantLike(V a, int64_t c) {
  return a.value.getType().isInteger(64) ? a.k->i64(c) : a.k->i32(c);
}

//===----------------------------------------------------------------------===//
// Operators
//===----------------------------------------------------------------------===//

template <typename Op> static V fold(V a, V b) {
  return {a.k->b.createOrFold<Op>(a.value, b.value), a.k};
}
template <typename FloatOp, typename IntOp> static V binary(V a, V b) {
  return isFloat(a) ? fold<FloatOp>(a, b) : fold<IntOp>(a, b);
}
static V compare(V a, V b, arith::CmpFPredicate f, arith::CmpIPredicate i) {
  KernelBuilder *k = a.k;
  if (isFloat(a))
    return {k->b.createOrFold<arith::CmpFOp>(f, a.value, b.value), k};
  return {k->b.createOrFold<arith::CmpIOp>(i, a.value, b.value), k};
}

V operator+(V a, V b) { return binary<arith::AddFOp, arith::AddIOp>(a, b); }
V operator-(V a, V b) { return binary<arith::SubFOp, arith::SubIOp>(a, b); }
V operator*(V a, V b) { return binary<arith::MulFOp, arith::MulIOp>(a, b); }
V operator/(V a, V b) { return binary<arith::DivFOp, arith::DivUIOp>(a, b); }
V operator%(V a, V b) { return fold<arith::RemUIOp>(a, b); }
V operator+(V a, int64_t b) { return b == 0 ? a : a + constantLike(a, b); }
V operator-(V a, int64_t b) { return b == 0 ? a : a - constantLike(a, b); }
V operator*(V a, int64_t b) { return b == 1 ? a : a * constantLike(a, b); }
V operator/(V a, int64_t b) { return b == 1 ? a : a / constantLike(a, b); }
V operator%(V a, int64_t b) { return a % constantLike(a, b); }
V operator&(V a, V b) { return fold<arith::AndIOp>(a, b); }
V operator|(V a, V b) { return fold<arith::OrIOp>(a, b); }
V operator^(V a, V b) { return fold<arith::XOrIOp>(a, b); }
V operator&(V a, int64_t b) { return a & constantLike(a, b); }
V operator|(V a, int64_t b) { return a | constantLike(a, b); }
V operator^(V a, int64_t b) { return a ^ constantLike(a, b); }
V operator<<(V a, int64_t b) {
  return b == 0 ? a : fold<arith::ShLIOp>(a, constantLike(a, b));
}
V operator>>(V a, V b) { return fold<arith::ShRUIOp>(a, b); }
V operator>>(V a, int64_t b) { return b == 0 ? a : a >> constantLike(a, b); }
V operator<(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OLT, arith::CmpIPredicate::slt);
}
V operator>(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OGT, arith::CmpIPredicate::sgt);
}
V operator>=(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OGE, arith::CmpIPredicate::sge);
}
V operator==(V a, V b) {
  return compare(a, b, arith::CmpFPredicate::OEQ, arith::CmpIPredicate::eq);
}
V operator<(V a, int64_t b) { return a < constantLike(a, b); }
V operator>(V a, int64_t b) { return a > constantLike(a, b); }
V operator>=(V a, int64_t b) { return a >= constantLike(a, b); }
V operator==(V a, int64_t b) { return a == constantLike(a, b); }
V operator!(V a) { return a ^ a.k->yes(); }

bool Ptr::isShared() const {
  return cast<LLVM::LLVMPointerType>(value.getType()).getAddressSpace() ==
         sharedSpace;
}
Ptr operator+(Ptr p, V bytes) {
  return {LLVM::GEPOp::create(p.k->b, p.value.getType(), p.k->i8Type(), p.value,
                              ArrayRef<LLVM::GEPArg>{bytes.value}),
          p.k};
}
Ptr operator+(Ptr p, int64_t bytes) {
  if (bytes == 0)
    return p;
  if (bytes != int32_t(bytes))
    return p + p.k->i64(bytes);
  return {LLVM::GEPOp::create(p.k->b, p.value.getType(), p.k->i8Type(), p.value,
                              ArrayRef<LLVM::GEPArg>{int32_t(bytes)}),
          p.k};
}

//===----------------------------------------------------------------------===//
// Function and arguments
//===----------------------------------------------------------------------===//

KernelBuilder::KernelBuilder(ModuleOp kernels, Location loc, StringRef name,
                             ArrayRef<StringRef> access, int64_t scalars,
                             BlockShape shape)
    : b(loc, kernels.getContext()), shape(shape), operandCount(access.size()) {
  MLIRContext *context = b.getContext();
  b.setInsertionPointToEnd(kernels.getBody());
  if (!kernels.lookupSymbol(sharedSymbol))
    LLVM::GlobalOp::create(
        b, LLVM::LLVMArrayType::get(b.getI8Type(), 0), /*isConstant=*/false,
        LLVM::Linkage::External, sharedSymbol, Attribute(), /*alignment=*/1024,
        sharedSpace);
  SmallVector<Type> types(access.size(),
                          LLVM::LLVMPointerType::get(context, globalSpace));
  types.append(scalars, b.getI64Type());
  function = LLVM::LLVMFuncOp::create(
      b, name,
      LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(context), types));
  function->setAttr("nvvm.kernel", b.getUnitAttr());
  function->setAttr("nvvm.maxntid",
                    b.getDenseI32ArrayAttr({int32_t(shape.threads)}));
  // ptxas takes one of the two.
  if (shape.maxRegisters)
    function->setAttr("nvvm.maxnreg", b.getI32IntegerAttr(shape.maxRegisters));
  else
    function->setAttr("nvvm.minctasm", b.getI32IntegerAttr(shape.minBlocks));
  function->setAttr("mla.access", b.getStrArrayAttr(access));
  function->setAttr("mla.scalars", b.getI64IntegerAttr(scalars));
  function->setAttr("mla.threads", b.getI64IntegerAttr(shape.threads));
  b.setInsertionPointToStart(function.addEntryBlock(b));
  tid = {NVVM::ThreadIdXOp::create(b, b.getI32Type()), this};
  bid = {NVVM::BlockIdXOp::create(b, b.getI32Type()), this};
}

void KernelBuilder::finish() {
  LLVM::ReturnOp::create(b, ValueRange());
  function->setAttr("mla.shared", b.getI64IntegerAttr(sharedBytes));
}

Ptr KernelBuilder::buffer(unsigned operand) {
  return {function.getArgument(operand), this};
}
V KernelBuilder::scalar(unsigned index) {
  return {function.getArgument(operandCount + index), this};
}
V KernelBuilder::scalar32(unsigned index) { return to32(scalar(index)); }
V KernelBuilder::scalarF32(unsigned index) { return fromBits(scalar32(index)); }

V KernelBuilder::thread() { return tid; }
V KernelBuilder::lane() { return tid & 31; }
V KernelBuilder::warp() { return tid >> 5; }
V KernelBuilder::block() { return bid; }
V KernelBuilder::blocks() {
  return {NVVM::GridDimXOp::create(b, b.getI32Type()), this};
}

Ptr KernelBuilder::shared(int64_t bytes, int64_t alignment) {
  int64_t at = llvm::alignTo(sharedBytes, alignment);
  sharedBytes = at + bytes;
  Value base = LLVM::AddressOfOp::create(
      b, LLVM::LLVMPointerType::get(b.getContext(), sharedSpace), sharedSymbol);
  return Ptr{base, this} + at;
}

//===----------------------------------------------------------------------===//
// Constants, conversions
//===----------------------------------------------------------------------===//

V KernelBuilder::i32(int64_t v) {
  return {arith::ConstantOp::create(
              b, b.getIntegerAttr(b.getI32Type(),
                                  llvm::APInt(32, uint64_t(v), false, true))),
          this};
}
V KernelBuilder::i64(int64_t v) {
  return {arith::ConstantOp::create(b, b.getI64IntegerAttr(v)), this};
}
V KernelBuilder::f32(double v) {
  return {arith::ConstantOp::create(b, b.getF32FloatAttr(float(v))), this};
}
V KernelBuilder::yes() {
  return {arith::ConstantOp::create(b, b.getBoolAttr(true)), this};
}
V KernelBuilder::no() {
  return {arith::ConstantOp::create(b, b.getBoolAttr(false)), this};
}
V KernelBuilder::to64(V v) {
  if (v.value.getType().isInteger(64))
    return v;
  return {b.createOrFold<arith::ExtUIOp>(b.getI64Type(), v.value), this};
}
V KernelBuilder::to32(V v) {
  if (v.value.getType().isInteger(32))
    return v;
  if (v.value.getType().getIntOrFloatBitWidth() < 32)
    return {b.createOrFold<arith::ExtUIOp>(b.getI32Type(), v.value), this};
  return {b.createOrFold<arith::TruncIOp>(b.getI32Type(), v.value), this};
}
V KernelBuilder::toF32(V i) {
  return {arith::SIToFPOp::create(b, b.getF32Type(), i.value), this};
}
V KernelBuilder::bits(V f) {
  return {b.createOrFold<arith::BitcastOp>(b.getI32Type(), f.value), this};
}
V KernelBuilder::fromBits(V i) {
  return {b.createOrFold<arith::BitcastOp>(b.getF32Type(), i.value), this};
}
V KernelBuilder::shift(V a, V n) { return fold<arith::ShLIOp>(a, n); }

Type KernelBuilder::i1Type() { return b.getI1Type(); }
Type KernelBuilder::i8Type() { return b.getI8Type(); }
Type KernelBuilder::i16Type() { return b.getI16Type(); }
Type KernelBuilder::i32Type() { return b.getI32Type(); }
Type KernelBuilder::i64Type() { return b.getI64Type(); }
Type KernelBuilder::f32Type() { return b.getF32Type(); }

//===----------------------------------------------------------------------===//
// Memory
//===----------------------------------------------------------------------===//

static unsigned bytesOf(Type type) {
  if (auto vector = dyn_cast<VectorType>(type))
    return vector.getNumElements() * bytesOf(vector.getElementType());
  return type.getIntOrFloatBitWidth() / 8;
}

Vs KernelBuilder::split(Value v, unsigned n) {
  Vs out;
  for (unsigned i = 0; i < n; ++i) {
    if (isa<VectorType>(v.getType()))
      out.push_back(
          {LLVM::ExtractElementOp::create(b, v, i32(i).value), this});
    else
      out.push_back({LLVM::ExtractValueOp::create(b, v, int64_t(i)), this});
  }
  return out;
}

V KernelBuilder::load(Ptr p, Type type, Cached cached) {
  if (cached == Cached::Yes || p.isShared())
    return {LLVM::LoadOp::create(b, type, p.value, bytesOf(type)), this};
  // No op has these cache operators.
  bool stream = cached == Cached::Stream;
  StringRef op = stream ? "ld.global.nc.L1::no_allocate" : "ld.global.cg";
  std::string suffix = ".b" + std::to_string(8 * bytesOf(type));
  StringRef constraint = type.isInteger(64)          ? "=l,l"
                         : type.isF32()              ? "=f,l"
                         : bytesOf(type) < 4         ? "=h,l"
                                                     : "=r,l";
  Type result = bytesOf(type) == 1 ? i16Type() : type;
  V v = inlinePTX((op + suffix + " $0, [$1];").str(), constraint, result,
                  {p.value}, /*sideEffects=*/!stream);
  if (bytesOf(type) == 1)
    v = {arith::TruncIOp::create(b, type, v.value), this};
  return v;
}
V KernelBuilder::loadI32(Ptr p, Cached cached) {
  return load(p, i32Type(), cached);
}
V KernelBuilder::loadF32(Ptr p, Cached cached) {
  return load(p, f32Type(), cached);
}
V KernelBuilder::loadI8(Ptr p, Cached cached) {
  return to32(load(p, i8Type(), cached));
}
V KernelBuilder::loadI16(Ptr p, Cached cached) {
  return to32(load(p, i16Type(), cached));
}
V KernelBuilder::loadI64(Ptr p) { return load(p, i64Type()); }

Vs KernelBuilder::loadWords(Ptr p, unsigned n, Cached cached) {
  if (cached == Cached::Yes || p.isShared())
    return split(LLVM::LoadOp::create(b, VectorType::get({n}, i32Type()),
                                      p.value, 4 * n),
                 n);
  bool stream = cached == Cached::Stream;
  std::string text = stream ? "ld.global.nc.L1::no_allocate" : "ld.global.cg";
  text += n == 2 ? ".v2.b32 {$0, $1}, [$2];"
                 : ".v4.b32 {$0, $1, $2, $3}, [$4];";
  SmallVector<Type> types(n, i32Type());
  V all = inlinePTX(text, n == 2 ? "=r,=r,l" : "=r,=r,=r,=r,l",
                    LLVM::LLVMStructType::getLiteral(b.getContext(), types),
                    {p.value}, !stream);
  return split(all.value, n);
}
Vs KernelBuilder::loadFloats(Ptr p, unsigned n, Cached cached) {
  Vs out = loadWords(p, n, cached);
  for (V &v : out)
    v = fromBits(v);
  return out;
}

void KernelBuilder::store(Ptr p, V v) {
  LLVM::StoreOp::create(b, v.value, p.value, bytesOf(v.value.getType()));
}
void KernelBuilder::storeI8(Ptr p, V v) {
  store(p, {arith::TruncIOp::create(b, i8Type(), v.value), this});
}
void KernelBuilder::storeI16(Ptr p, V v) {
  store(p, {arith::TruncIOp::create(b, i16Type(), v.value), this});
}
void KernelBuilder::storeWords(Ptr p, ArrayRef<V> words) {
  Type element = words[0].value.getType();
  Value all = LLVM::PoisonOp::create(
      b, VectorType::get({int64_t(words.size())}, element));
  for (auto [i, word] : llvm::enumerate(words))
    all = LLVM::InsertElementOp::create(b, all, word.value, i32(i).value);
  LLVM::StoreOp::create(b, all, p.value, 4 * words.size());
}

V KernelBuilder::loadElement(Ptr base, V index, Format format, Cached cached) {
  switch (format) {
  case Format::F32:
    return loadF32(base + index * 4, cached);
  case Format::I32:
    return loadI32(base + index * 4, cached);
  case Format::BF16:
    return fromBits(loadI16(base + index * 2, cached) << 16);
  case Format::F16:
    return unpackF16(loadI16(base + index * 2, cached)).first;
  case Format::FP8E4M3:
    return unpackF16(e4m3ToF16(loadI8(base + index, cached))).first;
  default:
    llvm_unreachable("a format whose elements stand alone");
  }
}
void KernelBuilder::storeElement(Ptr base, V index, Format format, V value) {
  switch (format) {
  case Format::F32:
  case Format::I32:
    return store(base + index * 4, value);
  case Format::BF16:
    return storeI16(base + index * 2, packBF16(value, f32(0)));
  case Format::F16:
    return storeI16(base + index * 2, packF16(value, f32(0)));
  case Format::FP8E4M3:
    return storeI8(base + index, packE4M3(value, f32(0)));
  default:
    llvm_unreachable("a format whose elements stand alone");
  }
}

//===----------------------------------------------------------------------===//
// Control flow
//===----------------------------------------------------------------------===//

void KernelBuilder::loop(V low, V high, int64_t step,
                         function_ref<void(V)> body) {
  loop(low, high, constantLike(low, step), body);
}
void KernelBuilder::loop(V low, V high, V step, function_ref<void(V)> body) {
  auto loop = scf::ForOp::create(b, low.value, high.value, step.value);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(loop.getBody()->getTerminator());
  body({loop.getInductionVar(), this});
}
static SmallVector<Value> values(ArrayRef<V> vs) {
  return llvm::map_to_vector(vs, [](V v) { return v.value; });
}
static Vs wrap(ValueRange range, KernelBuilder *k) {
  Vs out;
  for (Value v : range)
    out.push_back({v, k});
  return out;
}
Vs KernelBuilder::loop(V low, V high, int64_t step, ArrayRef<V> init,
                       function_ref<Vs(V, ArrayRef<V>)> body) {
  auto loop = scf::ForOp::create(b, low.value, high.value,
                                 constantLike(low, step).value, values(init));
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(loop.getBody());
  Vs next = body({loop.getInductionVar(), this},
                 wrap(loop.getRegionIterArgs(), this));
  scf::YieldOp::create(b, values(next));
  return wrap(loop.getResults(), this);
}
Vs KernelBuilder::loopWhile(ArrayRef<V> init,
                            function_ref<V(ArrayRef<V>)> condition,
                            function_ref<Vs(ArrayRef<V>)> body) {
  SmallVector<Type> types =
      llvm::map_to_vector(init, [](V v) { return v.value.getType(); });
  SmallVector<Location> locs(init.size(), b.getLoc());
  auto loop = scf::WhileOp::create(b, types, values(init));
  OpBuilder::InsertionGuard guard(b);
  Block *before = b.createBlock(&loop.getBefore(), {}, types, locs);
  V go = condition(wrap(before->getArguments(), this));
  scf::ConditionOp::create(b, go.value, before->getArguments());
  Block *after = b.createBlock(&loop.getAfter(), {}, types, locs);
  scf::YieldOp::create(b, values(body(wrap(after->getArguments(), this))));
  return wrap(loop.getResults(), this);
}
void KernelBuilder::when(V condition, function_ref<void()> body) {
  auto op = scf::IfOp::create(b, condition.value, /*withElse=*/false);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(op.thenYield());
  body();
}
void KernelBuilder::ifElse(V condition, function_ref<void()> yes,
                           function_ref<void()> no) {
  auto op = scf::IfOp::create(b, condition.value, /*withElse=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPoint(op.thenYield());
  yes();
  b.setInsertionPoint(op.elseYield());
  no();
}
Vs KernelBuilder::ifElse(V condition, ArrayRef<Type> types,
                         function_ref<Vs()> yes, function_ref<Vs()> no) {
  auto op = scf::IfOp::create(b, TypeRange(types), condition.value,
                              /*withElse=*/true);
  OpBuilder::InsertionGuard guard(b);
  b.setInsertionPointToEnd(op.thenBlock());
  scf::YieldOp::create(b, values(yes()));
  b.setInsertionPointToEnd(op.elseBlock());
  scf::YieldOp::create(b, values(no()));
  return wrap(op.getResults(), this);
}
V KernelBuilder::select(V condition, V yes, V no) {
  return {b.createOrFold<arith::SelectOp>(condition.value, yes.value, no.value),
          this};
}
Ptr KernelBuilder::select(V condition, Ptr yes, Ptr no) {
  return {LLVM::SelectOp::create(b, condition.value, yes.value, no.value),
          this};
}

} // namespace mla::nvvm
