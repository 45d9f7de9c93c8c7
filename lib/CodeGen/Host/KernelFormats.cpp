//===- KernelFormats.cpp - storage formats in host kernels ----------------===//
//
// Part of mla. From what a file or a cache holds to f32 and back, 8 lanes at a
// time, inside the loops that use the values: memory holds what the file holds.
//
// What a conversion costs decides how much of the memory's rate a matrix-vector
// product reaches. For 8 values: bf16 takes 2 instructions, e4m3 3, the formats
// of 4 bits 4, and what comes from the memory for them is 16, 8 and 4 bytes.
// Scales are applied to sums over their group, not to each value.
//
//===----------------------------------------------------------------------===//
#include "KernelTypes.h"
#include "mla/Quant/Codec.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"

using namespace mlir;

namespace mla::host {

namespace {
/// Integer vectors with operators, for bits that are moved about.
struct Bits {
  ImplicitLocOpBuilder &b;
  Value v;
  Bits make(Value r) const { return {b, r}; }
  Value c(int64_t k) const { return integerLike(b, v.getType(), k); }
  Bits operator&(int64_t k) const { return make(arith::AndIOp::create(b, v, c(k))); }
  Bits operator|(int64_t k) const { return make(arith::OrIOp::create(b, v, c(k))); }
  Bits operator|(Bits o) const { return make(arith::OrIOp::create(b, v, o.v)); }
  Bits operator<<(int64_t k) const { return make(arith::ShLIOp::create(b, v, c(k))); }
  Bits operator>>(int64_t k) const { return make(arith::ShRUIOp::create(b, v, c(k))); }
  Bits operator+(Bits o) const { return make(arith::AddIOp::create(b, v, o.v)); }
  Bits operator+(int64_t k) const { return make(arith::AddIOp::create(b, v, c(k))); }
  Bits operator-(int64_t k) const { return make(arith::SubIOp::create(b, v, c(k))); }
  /// this where `condition` holds, else `other`
  Bits where(Value condition, Bits other) const {
    return make(arith::SelectOp::create(b, condition, v, other.v));
  }
  Bits extend(unsigned bits) const {
    return make(arith::ExtUIOp::create(b, integersLike(v.getType(), bits), v));
  }
  Value truncate(unsigned bits) const {
    return arith::TruncIOp::create(b, integersLike(v.getType(), bits), v);
  }
  Value as(Type element) const {
    return arith::BitcastOp::create(b, typeLike(v.getType(), element), v);
  }
};
} // namespace

static Bits bitsOf(ImplicitLocOpBuilder &b, Value v) {
  return {b, arith::BitcastOp::create(b, integersLike(v.getType(), 32), v)};
}

//===----------------------------------------------------------------------===//
// Elements that stand alone
//===----------------------------------------------------------------------===//

/// e4m3 times 2^-8, as f16: the bits of the one, shifted, are the bits of the
/// other, subnormals included. NaN stays NaN.
Value KernelBuilder::e4m3Bits(Value v) {
  Bits x = Bits{b, v}.extend(16);
  Bits magnitude = x & 0x7F;
  Value isNaN = arith::CmpIOp::create(b, arith::CmpIPredicate::eq, magnitude.v,
                                      magnitude.c(0x7F));
  Bits half = magnitude << 7, nan = half | 0x7E00;
  return (nan.where(isNaN, half) | ((x & 0x80) << 8)).as(b.getF16Type());
}

/// What e4m3Bits() is short of.
constexpr double e4m3Factor = 256;

/// f32 of a loaded element. The upper half of an f32 is a bf16, and bf16 is
/// moved as integers: x86-64 before AVX-512 has no conversion to it, and LLVM
/// calls a library it does not have where it spills such a value.
Value KernelBuilder::widen(Value v, Format format, Type type) {
  switch (format) {
  case Format::BF16:
    return (Bits{b, v}.extend(32) << 16).as(b.getF32Type());
  case Format::F16:
    return arith::ExtFOp::create(b, type, v);
  case Format::FP8E4M3: {
    V half = {arith::ExtFOp::create(b, type, e4m3Bits(v)), this};
    V factor = f32(e4m3Factor);
    if (auto vector = dyn_cast<VectorType>(type))
      factor = splat(factor, vector.getDimSize(0));
    return half * factor;
  }
  default:
    return v;
  }
}

/// e4m3 of f32, to nearest, ties to even; beyond 448 it is 448; NaN is 0x7f.
static Value narrowToE4M3(ImplicitLocOpBuilder &b, Value v) {
  Bits bits = bitsOf(b, v);
  Type f32 = b.getF32Type();
  auto real = [&](float x) {
    return Bits{b, integerLike(b, bits.v.getType(),
                               llvm::bit_cast<int32_t>(x))}
        .as(f32);
  };
  Value magnitude = arith::MinNumFOp::create(
      b, (bits & 0x7FFFFFFF).as(f32), real(quant::e4m3Max));
  // Normal: round the mantissa to 3 bits, carry into the exponent, rebias.
  Bits m = bitsOf(b, magnitude);
  Bits normal = ((m + 0x7FFFF + ((m >> 20) & 1)) >> 20) - (120 << 3);
  // Below 2^-6: the sum with 2^14 rounds to multiples of 2^-9.
  Value sum = arith::AddFOp::create(b, magnitude, real(16384.0F));
  Bits subnormal = bitsOf(b, sum) - llvm::bit_cast<int32_t>(16384.0F);
  Value isSmall = arith::CmpFOp::create(b, arith::CmpFPredicate::OLT, magnitude,
                                        real(0x1p-6F));
  Bits code = subnormal.where(isSmall, normal) | ((bits >> 24) & 0x80);
  Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, v, v);
  return Bits{b, code.c(0x7F)}.where(isNaN, code).truncate(8);
}

/// The inverse of widen(), rounded to nearest, ties to even; NaN stays NaN.
Value KernelBuilder::narrow(Value v, Format format) {
  if (format == Format::F32)
    return v;
  if (format == Format::F16)
    return arith::TruncFOp::create(b, typeLike(v.getType(), b.getF16Type()), v);
  if (format == Format::FP8E4M3)
    return narrowToE4M3(b, v);
  Bits bits = bitsOf(b, v);
  Bits rounded = bits + ((bits >> 16) & 1) + 0x7FFF;
  Value isNaN = arith::CmpFOp::create(b, arith::CmpFPredicate::UNO, v, v);
  return (Bits{b, bits.c(0x7FC00000)}.where(isNaN, rounded) >> 16).truncate(16);
}

/// The bits of e4m3, moved to where f32 has them, are the number times the
/// square of 1 / e4m3Lift.
constexpr double e4m3Lift = 0x1p60;

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

int64_t columnsPerElement(Format format) {
  return format == Format::Int4G32 ? 8 : format == Format::NVFP4 ? 2 : 1;
}

int64_t leastColumns(Format format) {
  return format == Format::NVFP4 ? 16 : format == Format::Int4G32 ? 32 : lanes;
}

int64_t lineColumns(Format format) {
  constexpr int64_t most = 32;
  if (auto bytes = elementBytes(format))
    return std::clamp(int64_t(64 / *bytes), lanes, most);
  return most;
}

Matrix KernelBuilder::matrix(unsigned operand, MatrixShape shape, V entry) {
  size_t parts = storagePartCount(shape.format);
  Matrix m;
  m.columns = shape.columns;
  if (parts == 1) {
    m.values = entry.value ? tableEntry(operand, entry, shape.format)
                           : buffer(operand, shape.format);
    return m;
  }
  auto part = [&](int64_t i, Format format) {
    V at = entry.value ? entry * int64_t(parts) + i : index(i);
    return tableEntry(operand, at, format);
  };
  m.values = part(0, shape.format);
  switch (shape.format) {
  case Format::FP8Block:
    m.scales = part(1, Format::F32);
    m.lift = e4m3Lift;
    break;
  case Format::NVFP4:
    m.scales = part(1, Format::NVFP4); // Bytes; see scaleOf().
    m.factor = load(part(2, Format::F32), index(0)) * f32(0x1p-25);
    break;
  default:
    m.scales = part(1, Format::BF16);
    m.factor = f32(0x1p-24);
  }
  return m;
}

Matrix KernelBuilder::cacheRows(unsigned operand, Format format, V scale) {
  Matrix m{buffer(operand, format)};
  if (format == Format::FP8E4M3)
    m.factor = scale * f32(e4m3Factor);
  return m;
}

MatrixRow KernelBuilder::row(const Matrix &m, V row) {
  Format format = m.format();
  MatrixRow out{row * (m.columns / columnsPerElement(format))};
  int64_t group = scaleGroup(format);
  if (format == Format::FP8Block)
    out.scales = row / group * ((m.columns + group - 1) / group);
  else if (group > 1)
    out.scales = row * (m.columns / group);
  return out;
}

/// The f32 values of all e4m3 codes: one load where a scale is needed.
Mem KernelBuilder::e4m3Table() {
  constexpr StringLiteral name = "e4m3_values";
  auto module = function->getParentOfType<ModuleOp>();
  auto type = MemRefType::get({256}, b.getF32Type());
  if (!module.lookupSymbol(name)) {
    SmallVector<float> values;
    for (int code = 0; code < 256; ++code)
      values.push_back(quant::decodeE4M3(static_cast<uint8_t>(code)));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(module.getBody());
    auto data = DenseElementsAttr::get(
        RankedTensorType::get({256}, b.getF32Type()), ArrayRef(values));
    memref::GlobalOp::create(b, name, b.getStringAttr("private"), type, data,
                             /*constant=*/true, /*alignment=*/IntegerAttr());
  }
  auto dynamic = MemRefType::get({ShapedType::kDynamic}, b.getF32Type());
  Value table = memref::GetGlobalOp::create(b, type, name);
  return {memref::CastOp::create(b, dynamic, table), Format::F32};
}

V KernelBuilder::scaleOf(const Matrix &m, MatrixRow row, V c) {
  V at = row.scales + c / scaleGroup(m.format());
  if (m.format() != Format::NVFP4)
    return load(m.scales, at);
  Value code =
      memref::LoadOp::create(b, m.scales.memref, ValueRange{at.value});
  V number = {arith::IndexCastUIOp::create(b, b.getIndexType(), code), this};
  return load(e4m3Table(), number);
}

//===----------------------------------------------------------------------===//
// Bytes that become lanes
//===----------------------------------------------------------------------===//

/// `elements` of the matrix's memory from `at` on: 16 bytes, of which those
/// behind them are not used, twice. One load, to where permutations of bytes,
/// which do not cross the middle of a vector, can bring them to any lane.
static Value loadTwice(KernelBuilder &k, const Matrix &m, V at,
                       int64_t elements) {
  auto element = cast<MemRefType>(m.values.memref.getType()).getElementType();
  Value packed = vector::LoadOp::create(k.b, VectorType::get({elements}, element),
                                        m.values.memref, ValueRange{at.value});
  int64_t size = elements * element.getIntOrFloatBitWidth() / 8;
  packed = vector::BitCastOp::create(
      k.b, VectorType::get({size}, k.b.getI8Type()), packed);
  SmallVector<int64_t> mask;
  for (int64_t i = 0; i < 32; ++i)
    mask.push_back(i % 16 % size);
  return vector::ShuffleOp::create(k.b, packed, packed, mask);
}

/// Within each half of 16 bytes: byte i of the result is byte control[i] of
/// `bytes`, or 0 if control[i] is negative.
static Value permute(KernelBuilder &k, Value bytes, Value control) {
  return LLVM::CallIntrinsicOp::create(
             k.b, bytes.getType(), k.b.getStringAttr("llvm.x86.avx2.pshuf.b"),
             ValueRange{bytes, control})
      .getResult(0);
}

static Value bytesOf(KernelBuilder &k, ArrayRef<int8_t> values) {
  return arith::ConstantOp::create(
      k.b, DenseElementsAttr::get(VectorType::get({32}, k.b.getI8Type()),
                                  values));
}

/// Bytes 8 i to 8 i + 7 of each half of `bytes`, which are equal, as the upper
/// bytes of 8 lanes of 32 bits.
static Bits upperBytes(KernelBuilder &k, Value bytes, int64_t i) {
  SmallVector<int8_t> control(32, -1);
  for (int64_t lane = 0; lane < lanes; ++lane)
    control[4 * lane + 3] = static_cast<int8_t>(8 * i + lane);
  Value moved = permute(k, bytes, bytesOf(k, control));
  return {k.b, vector::BitCastOp::create(
                   k.b, VectorType::get({lanes}, k.b.getI32Type()), moved)};
}

/// n numbers of e4m3 from byte `at` on, n a multiple of 8, lifted. NaN, of which
/// the runtime lets none into a weight, would be 480.
SmallVector<V> KernelBuilder::unpackE4M3(const Matrix &m, V at, int64_t n) {
  SmallVector<V> out;
  for (int64_t i = 0; i < n; i += 16) {
    Value bytes = loadTwice(*this, m, at + i, std::min<int64_t>(n - i, 16));
    for (int64_t j = 0; j < std::min<int64_t>((n - i) / lanes, 2); ++j) {
      Bits upper = upperBytes(*this, bytes, j);
      Value moved = arith::ShRSIOp::create(b, upper.v, upper.c(4));
      out.push_back(
          {(Bits{b, moved} & int64_t(0x87F00000)).as(b.getF32Type()), this});
    }
  }
  return out;
}

/// 2^24 times 16 or 32 numbers of 4 bits from element `at` on, the even column
/// in the low half of a byte. Each is looked up as a byte: twice an e2m1, or an
/// int4, which is stored plus 8.
SmallVector<V> KernelBuilder::unpackNibbles(const Matrix &m, V at, int64_t n) {
  SmallVector<int8_t> table;
  for (int code = 0; code < 32; ++code)
    table.push_back(m.format() == Format::NVFP4
                        ? int8_t(2 * quant::decodeE2M1(uint8_t(code)))
                        : int8_t(code % 16 - 8));
  Value values = bytesOf(*this, table);
  Bits codes{b, loadTwice(*this, m, at, n / columnsPerElement(m.format()))};
  Value even = permute(*this, values, (codes & 0xF).v);
  Value odd = permute(*this, values, (codes >> 4).v);
  SmallVector<V> out;
  for (int64_t half = 0; half < n / 16; ++half) {
    SmallVector<int64_t> mask;
    for (int64_t i = 0; i < 32; ++i)
      mask.push_back(i / 16 * 16 + half * 8 + i % 16 / 2 + (i % 2 ? 32 : 0));
    Value bytes = vector::ShuffleOp::create(b, even, odd, mask);
    for (int64_t j = 0; j < 2; ++j) {
      Value upper = upperBytes(*this, bytes, j).v;
      out.push_back({arith::SIToFPOp::create(
                         b, VectorType::get({lanes}, b.getF32Type()), upper),
                     this});
    }
  }
  return out;
}

SmallVector<V> KernelBuilder::loadRow(const Matrix &m, MatrixRow row, V c,
                                      int64_t n) {
  Format format = m.format();
  V at = row.values + c / columnsPerElement(format);
  if (format == Format::NVFP4 || format == Format::Int4G32)
    return unpackNibbles(m, at, n);
  if (format == Format::FP8Block && n >= lanes)
    return unpackE4M3(m, at, n);
  SmallVector<V> out;
  int64_t width = std::min(n, lanes);
  for (int64_t i = 0; i < n; i += width) {
    if (elementBytes(format) && format != Format::FP8E4M3) {
      out.push_back(loadVector(m.values, at + i, width));
      continue;
    }
    Value bytes = vector::LoadOp::create(
        b, VectorType::get({width}, b.getI8Type()), m.values.memref,
        ValueRange{(at + i).value});
    Value v = arith::ExtFOp::create(
        b, VectorType::get({width}, b.getF32Type()), e4m3Bits(bytes));
    if (format == Format::FP8Block)
      v = (V{v, this} *
           splat(f32(e4m3Factor / e4m3Lift / e4m3Lift), width))
              .value;
    out.push_back({v, this});
  }
  return out;
}

SmallVector<V> KernelBuilder::rowScales(const Matrix &m, MatrixRow row, V c,
                                        int64_t n) {
  SmallVector<V> out;
  if (m.scales.memref)
    for (int64_t i = 0; i < n; i += scaleGroup(m.format()))
      out.push_back(splat(scaleOf(m, row, c + i), std::min(n, lanes)));
  return out;
}

} // namespace mla::host
