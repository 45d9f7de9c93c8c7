//===- KernelFormats.cpp - storage formats in host kernels ----------------===//
//
// Part of mla. From what a file or a cache holds to f32 and back, 8 lanes at a
// time, inside the loops that use the values: memory holds what the file holds.
//
// What a conversion costs decides how much of the memory's rate a matrix-vector
// product reaches. For 8 values: bf16 2 instructions, e4m3 about 6, e2m1 5,
// int4 4, and one more for the scale. The products e2m1 * scale and int4 *
// scale are exact in f32.
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

//===----------------------------------------------------------------------===//
// Matrices
//===----------------------------------------------------------------------===//

int64_t columnsPerElement(Format format) {
  return format == Format::Int4G32 ? 8 : format == Format::NVFP4 ? 2 : 1;
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
    m.factor = f32(e4m3Factor);
    break;
  case Format::NVFP4:
    m.scales = part(1, Format::NVFP4); // Bytes; see scaleOf().
    m.factor = load(part(2, Format::F32), index(0));
    break;
  default:
    m.scales = part(1, Format::BF16);
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

/// `bits`, an i32, in 8 lanes.
V KernelBuilder::word(Value bits) {
  auto type = VectorType::get({lanes}, b.getI32Type());
  return {vector::BroadcastOp::create(b, type, bits), this};
}

/// A vector constant of first, first + step, ...
static Value ramp(ImplicitLocOpBuilder &b, int32_t first, int32_t step) {
  SmallVector<int32_t> values;
  for (int64_t i = 0; i < lanes; ++i)
    values.push_back(first + step * static_cast<int32_t>(i));
  return arith::ConstantOp::create(
      b, DenseElementsAttr::get(VectorType::get({lanes}, b.getI32Type()),
                                ArrayRef(values)));
}

/// 8 e2m1 values from byte `at` on. A permutation looks the magnitude up by the
/// low three bits of each lane; the fourth is the sign.
V KernelBuilder::unpackE2M1(const Matrix &m, V at) {
  // Loaded as bytes, since a row may begin at any address.
  Value bytes = vector::LoadOp::create(
      b, VectorType::get({4}, b.getI8Type()), m.values.memref,
      ValueRange{at.value});
  Value one = vector::BitCastOp::create(
      b, VectorType::get({1}, b.getI32Type()), bytes);
  Value codes = word(vector::ExtractOp::create(b, one, int64_t(0)));
  SmallVector<float> magnitudes;
  for (int code = 0; code < 8; ++code)
    magnitudes.push_back(quant::decodeE2M1(static_cast<uint8_t>(code)));
  auto floats = VectorType::get({lanes}, b.getF32Type());
  Value table = arith::ConstantOp::create(
      b, DenseElementsAttr::get(floats, ArrayRef(magnitudes)));
  Value lane = arith::ShRUIOp::create(b, codes, ramp(b, 0, 4));
  Value magnitude =
      LLVM::CallIntrinsicOp::create(b, floats,
                                    b.getStringAttr("llvm.x86.avx2.permps"),
                                    ValueRange{table, lane})
          .getResult(0);
  Bits sign =
      Bits{b, arith::ShLIOp::create(b, codes, ramp(b, 28, -4)).getResult()} &
      int64_t(0x80000000);
  return {(sign | bitsOf(b, magnitude)).as(b.getF32Type()), this};
}

/// 8 int4 values, stored plus 8, from word `at` on: in the mantissa of 2^23
/// they are 2^23 more than they should be.
V KernelBuilder::unpackInt4(const Matrix &m, V at) {
  Value codes = word(
      memref::LoadOp::create(b, m.values.memref, ValueRange{at.value}));
  Bits lane{b, arith::ShRUIOp::create(b, codes, ramp(b, 0, 4)).getResult()};
  V stored = {((lane & 0xF) | 0x4B000000).as(b.getF32Type()), this};
  return stored - splat(f32(0x1p23 + 8), lanes);
}

SmallVector<V> KernelBuilder::loadRow(const Matrix &m, MatrixRow row, V c,
                                      int64_t n) {
  Format format = m.format();
  V at = row.values + c / columnsPerElement(format);
  SmallVector<V> out;
  switch (format) {
  case Format::FP8E4M3:
  case Format::FP8Block: {
    // 16 bytes at a time where there are so many: 16 lanes of 16 bits.
    int64_t step = n % 16 == 0 ? 16 : n;
    for (int64_t i = 0; i < n; i += step) {
      Value bytes = vector::LoadOp::create(
          b, VectorType::get({step}, b.getI8Type()), m.values.memref,
          ValueRange{(at + i).value});
      Value wide = arith::ExtFOp::create(
          b, VectorType::get({step}, b.getF32Type()), e4m3Bits(bytes));
      for (int64_t j = 0; j < step; j += lanes)
        out.push_back({step <= lanes
                           ? wide
                           : vector::ExtractStridedSliceOp::create(
                                 b, wide, ArrayRef<int64_t>{j},
                                 ArrayRef<int64_t>{lanes},
                                 ArrayRef<int64_t>{1}),
                       this});
    }
    break;
  }
  case Format::NVFP4:
    for (int64_t i = 0; i < n; i += lanes)
      out.push_back(unpackE2M1(m, at + i / 2));
    break;
  case Format::Int4G32:
    for (int64_t i = 0; i < n; i += lanes)
      out.push_back(unpackInt4(m, at + i / lanes));
    break;
  default:
    for (int64_t i = 0; i < n; i += std::min(n, lanes))
      out.push_back(loadVector(m.values, at + i, std::min(n, lanes)));
  }
  if (!m.scales.memref)
    return out;
  int64_t group = scaleGroup(format), width = std::min(n, lanes);
  for (int64_t i = 0; i < n; i += std::min(n, group)) {
    V scales = splat(scaleOf(m, row, c + i), width);
    for (int64_t j = i; j < std::min(n, i + group); j += width)
      out[j / width] = out[j / width] * scales;
  }
  return out;
}

} // namespace mla::host
