//===- KernelInstructions.cpp - the instructions of SM120 -----------------===//
//
// Part of mla. Arithmetic, small floats, warps, tensor cores, asynchronous
// copies: one function an instruction or a short idiom.
//
//===----------------------------------------------------------------------===//
#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"

using namespace mlir;

namespace mla::nvvm {

V KernelBuilder::intrinsic(StringRef name, Type type, ArrayRef<V> args) {
  SmallVector<Value> operands;
  for (V v : args)
    operands.push_back(v.value);
  return {LLVM::CallIntrinsicOp::create(b, type, b.getStringAttr(name),
                                        operands)
              .getResult(0),
          this};
}

V KernelBuilder::inlinePTX(StringRef text, StringRef constraints, Type type,
                           ArrayRef<Value> args, bool sideEffects) {
  std::string all = constraints.str();
  if (sideEffects)
    all += all.empty() ? "~{memory}" : ",~{memory}";
  auto op = LLVM::InlineAsmOp::create(
      b, type ? TypeRange(type) : TypeRange(), args, text, all,
      sideEffects, /*is_align_stack=*/false,
      LLVM::tailcallkind::TailCallKind::None, LLVM::AsmDialectAttr(),
      ArrayAttr());
  return {type ? op.getResult(0) : Value(), this};
}

//===----------------------------------------------------------------------===//
// Arithmetic
//===----------------------------------------------------------------------===//

V KernelBuilder::fma(V a, V b_, V c) {
  return {LLVM::FMAOp::create(b, a.value, b_.value, c.value), this};
}
V KernelBuilder::maximum(V a, V b_) {
  if (isa<FloatType>(a.value.getType()))
    return {LLVM::MaxNumOp::create(b, a.value, b_.value), this};
  return {b.createOrFold<arith::MaxSIOp>(a.value, b_.value), this};
}
V KernelBuilder::minimum(V a, V b_) {
  if (isa<FloatType>(a.value.getType()))
    return {LLVM::MinNumOp::create(b, a.value, b_.value), this};
  return {b.createOrFold<arith::MinSIOp>(a.value, b_.value), this};
}
V KernelBuilder::ceilDiv(V a, int64_t b_) { return (a + (b_ - 1)) / b_; }
V KernelBuilder::exp2(V x) {
  return intrinsic("llvm.nvvm.ex2.approx.ftz.f32", f32Type(), {x});
}
V KernelBuilder::log2(V x) {
  return intrinsic("llvm.nvvm.lg2.approx.ftz.f", f32Type(), {x});
}
V KernelBuilder::exp(V x) { return exp2(x * f32(1.4426950408889634)); }
V KernelBuilder::rsqrt(V x) {
  return intrinsic("llvm.nvvm.rsqrt.approx.ftz.f", f32Type(), {x});
}
V KernelBuilder::reciprocal(V x) {
  return {NVVM::RcpApproxFtzF32Op::create(b, f32Type(), x.value), this};
}
V KernelBuilder::divide(V a, V b_) {
  return {arith::DivFOp::create(b, a.value, b_.value), this};
}
V KernelBuilder::sqrt(V x) {
  return intrinsic("llvm.nvvm.sqrt.rn.f", f32Type(), {x});
}
V KernelBuilder::abs(V x) { return {LLVM::FAbsOp::create(b, x.value), this}; }
V KernelBuilder::sigmoid(V x) {
  return divide(f32(1), f32(1) + exp(f32(0) - x));
}
V KernelBuilder::silu(V x) { return divide(x, f32(1) + exp(f32(0) - x)); }

/// Cody-Waite reduction in f64, whose 53 bits leave x - n * pi / 2 exact enough
/// for any position and frequency; then Taylor series on [-pi/4, pi/4], whose
/// first terms left out are 2e-9 (sine) and 3e-8 (cosine).
std::pair<V, V> KernelBuilder::cosSin(V x) {
  Type f64 = b.getF64Type();
  auto constant = [&](double v) -> Value {
    return arith::ConstantOp::create(b, b.getF64FloatAttr(v));
  };
  Value wide = arith::ExtFOp::create(b, f64, x.value);
  // Adding 1.5 * 2^52 rounds to a whole number and leaves it in the low bits.
  Value magic = constant(6755399441055744.0);
  Value shifted = arith::AddFOp::create(
      b, arith::MulFOp::create(b, wide, constant(0.63661977236758134308)),
      magic);
  Value n = arith::SubFOp::create(b, shifted, magic);
  Value high = LLVM::FMAOp::create(b, n, constant(-1.5707963267948966), wide);
  Value rest =
      LLVM::FMAOp::create(b, n, constant(-6.123233995736766e-17), high);
  V r{arith::TruncFOp::create(b, f32Type(), rest), this};
  V quadrant = to32(
      {arith::BitcastOp::create(b, i64Type(), shifted), this});
  V z = r * r;
  V sine = fma(z * r,
               fma(z, fma(z, fma(z, f32(2.7557319e-6), f32(-1.9841270e-4)),
                          f32(8.3333333e-3)),
                   f32(-1.6666667e-1)),
               r);
  V cosine = fma(
      z,
      fma(z, fma(z, fma(z, f32(2.4801587e-5), f32(-1.3888889e-3)),
                 f32(4.1666667e-2)),
          f32(-0.5)),
      f32(1));
  V swap = (quadrant & 1) == 1;
  V c = select(swap, sine, cosine), s = select(swap, cosine, sine);
  V minus = f32(0);
  c = select(((quadrant + 1) & 2) == 2, minus - c, c);
  s = select((quadrant & 2) == 2, minus - s, s);
  return {c, s};
}

//===----------------------------------------------------------------------===//
// Small floats
//===----------------------------------------------------------------------===//

static Value asWord(KernelBuilder *k, Value v) {
  return LLVM::BitcastOp::create(k->b, k->i32Type(), v);
}
static Value asHalves(KernelBuilder *k, V word) {
  return LLVM::BitcastOp::create(
      k->b, VectorType::get({2}, k->b.getF16Type()), word.value);
}

V KernelBuilder::packBF16(V low, V high) {
  Value pair = NVVM::ConvertF32x2ToBF16x2Op::create(
      b, VectorType::get({2}, b.getBF16Type()), high.value, low.value, Value(),
      NVVM::FPRoundingMode::RN);
  return {asWord(this, pair), this};
}
V KernelBuilder::packF16(V low, V high) {
  Value pair = NVVM::ConvertF32x2ToF16x2Op::create(
      b, VectorType::get({2}, b.getF16Type()), high.value, low.value, Value(),
      NVVM::FPRoundingMode::RN);
  return {asWord(this, pair), this};
}
V KernelBuilder::packE4M3(V low, V high) {
  // The op's first operand becomes the high byte, as in PTX.
  Value pair = NVVM::ConvertF32x2ToF8x2Op::create(
      b, i16Type(), high.value, low.value, NVVM::FPRoundingMode::RN,
      NVVM::SaturationMode::SATFINITE, /*relu=*/false,
      Float8E4M3FNType::get(b.getContext()));
  return to32({pair, this});
}
V KernelBuilder::packE2M1(V low, V high) {
  return inlinePTX("{\n.reg .b8 p, z;\nmov.b16 {z, p}, 0;\n"
                   "cvt.rn.satfinite.e2m1x2.f32 p, $1, $2;\n"
                   "mov.b32 $0, {p, z, z, z};\n}",
                   "=r,f,f", i32Type(), {high.value, low.value},
                   /*sideEffects=*/false);
}
std::pair<V, V> KernelBuilder::unpackBF16(V pair) {
  return {fromBits(pair << 16), fromBits(pair & int64_t(0xFFFF0000))};
}
std::pair<V, V> KernelBuilder::unpackF16(V pair) {
  Value halves = asHalves(this, pair);
  auto part = [&](int64_t i) -> V {
    Value h = LLVM::ExtractElementOp::create(b, halves, i32(i).value);
    return {arith::ExtFOp::create(b, f32Type(), h), this};
  };
  return {part(0), part(1)};
}
V KernelBuilder::e4m3ToF16(V pair) {
  Value low = arith::TruncIOp::create(b, i16Type(), pair.value);
  Value bytes =
      LLVM::BitcastOp::create(b, VectorType::get({2}, i8Type()), low);
  Value halves = NVVM::ConvertF8x2ToF16x2Op::create(
      b, VectorType::get({2}, b.getF16Type()), bytes, /*relu=*/false,
      Float8E4M3FNType::get(b.getContext()));
  return {asWord(this, halves), this};
}
V KernelBuilder::mulF16(V a, V b_) {
  return {asWord(this, arith::MulFOp::create(b, asHalves(this, a),
                                             asHalves(this, b_))),
          this};
}
V KernelBuilder::addF16(V a, V b_) {
  return {asWord(this, arith::AddFOp::create(b, asHalves(this, a),
                                             asHalves(this, b_))),
          this};
}
V KernelBuilder::subF16(V a, V b_) {
  return {asWord(this, arith::SubFOp::create(b, asHalves(this, a),
                                             asHalves(this, b_))),
          this};
}
V KernelBuilder::fmaF16(V a, V b_, V c) {
  return {asWord(this, LLVM::FMAOp::create(b, asHalves(this, a),
                                           asHalves(this, b_),
                                           asHalves(this, c))),
          this};
}
V KernelBuilder::clampF16(V a) {
  auto limit = [&](int64_t bits) { return asHalves(this, i32(bits)); };
  Value above = LLVM::MaxNumOp::create(b, asHalves(this, a), limit(0xFBFFFBFF));
  return {asWord(this, LLVM::MinNumOp::create(b, above, limit(0x7BFF7BFF))),
          this};
}
V KernelBuilder::permuteBytes(V a, V b_, int64_t selector) {
  return intrinsic("llvm.nvvm.prmt", i32Type(), {a, b_, i32(selector)});
}

//===----------------------------------------------------------------------===//
// Warps and blocks
//===----------------------------------------------------------------------===//

static V shuffleOp(KernelBuilder *k, V v, V by, int64_t clamp,
                   NVVM::ShflKind kind) {
  return {NVVM::ShflOp::create(k->b, v.value.getType(), k->i32(-1).value,
                               v.value, by.value, k->i32(clamp).value, kind,
                               UnitAttr()),
          k};
}
V KernelBuilder::shuffleXor(V v, int64_t mask) {
  return shuffleOp(this, v, i32(mask), 31, NVVM::ShflKind::bfly);
}
V KernelBuilder::shuffle(V v, V lane) {
  return shuffleOp(this, v, lane, 31, NVVM::ShflKind::idx);
}
V KernelBuilder::shuffleUp(V v, int64_t by) {
  return shuffleOp(this, v, i32(by), 0, NVVM::ShflKind::up);
}
V KernelBuilder::any(V condition) {
  return {NVVM::VoteSyncOp::create(b, i1Type(), i32(-1).value, condition.value,
                                   NVVM::VoteSyncKind::any),
          this};
}
V KernelBuilder::ballot(V condition) {
  return {NVVM::VoteSyncOp::create(b, i32Type(), i32(-1).value,
                                   condition.value, NVVM::VoteSyncKind::ballot),
          this};
}
V KernelBuilder::popcount(V v) {
  return {LLVM::CtPopOp::create(b, v.value), this};
}
V KernelBuilder::trailingZeros(V v) {
  return {LLVM::CountTrailingZerosOp::create(b, i32Type(), v.value,
                                             /*is_zero_poison=*/false),
          this};
}
V KernelBuilder::warpSum(V v) {
  for (int64_t mask = 16; mask; mask /= 2)
    v = v + shuffleXor(v, mask);
  return v;
}
V KernelBuilder::warpMax(V v) {
  for (int64_t mask = 16; mask; mask /= 2)
    v = maximum(v, shuffleXor(v, mask));
  return v;
}
V KernelBuilder::reduxMax(V v) {
  return {NVVM::ReduxOp::create(b, i32Type(), v.value, NVVM::ReduxKind::UMAX,
                                i32(-1).value),
          this};
}
V KernelBuilder::reduxMin(V v) {
  return {NVVM::ReduxOp::create(b, i32Type(), v.value, NVVM::ReduxKind::UMIN,
                                i32(-1).value),
          this};
}
V KernelBuilder::reduxAdd(V v) {
  return {NVVM::ReduxOp::create(b, i32Type(), v.value, NVVM::ReduxKind::ADD,
                                i32(-1).value),
          this};
}
void KernelBuilder::syncWarp() { NVVM::SyncWarpOp::create(b, i32(-1).value); }
void KernelBuilder::barrier() { NVVM::Barrier0Op::create(b); }

void KernelBuilder::barrier(V id, int64_t threads) {
  inlinePTX("bar.sync $0, " + std::to_string(threads) + ";", "r", Type(),
            {id.value}, true);
}

V KernelBuilder::blockSum(V v, Ptr scratch) {
  v = warpSum(v);
  when(lane() == 0, [&] { store(scratch + warp() * 4, v); });
  barrier();
  V sum = f32(0);
  for (int64_t w = 0; w < warps(); ++w)
    sum = sum + loadF32(scratch + w * 4);
  barrier();
  return sum;
}

void KernelBuilder::atomicAdd(Ptr p, V v) {
  LLVM::AtomicRMWOp::create(b, LLVM::AtomicBinOp::add, p.value, v.value,
                            LLVM::AtomicOrdering::monotonic, "device");
}
void KernelBuilder::prefetchL2(Ptr p) {
  inlinePTX("prefetch.global.L2 [$0];", "l", Type(), {p.value}, true);
}

//===----------------------------------------------------------------------===//
// Memory of several devices
//===----------------------------------------------------------------------===//

// In PTX, since LLVM's atomics lose scope and order on the way to it. A vector of
// two b64 is two accesses of 8 bytes, of which neither is torn.

static V onPeer(KernelBuilder *k, const Twine &text, StringRef constraints,
                Type type, Ptr p, ArrayRef<V> words) {
  SmallVector<Value> operands{p.value};
  for (V word : words)
    operands.push_back(word.value);
  // The address is the first operand behind the results.
  unsigned results = constraints.count('=');
  std::string all = ("{\n.reg .b64 peer, pa, pb;\nmov.b64 peer, $" +
                     Twine(results) + ";\n" + text + "\n}")
                        .str();
  return k->inlinePTX(all, constraints, type, operands, /*sideEffects=*/true);
}

Ptr KernelBuilder::global(V address) {
  return {LLVM::IntToPtrOp::create(
              b, LLVM::LLVMPointerType::get(b.getContext(), 1), address.value),
          this};
}
void KernelBuilder::pushFlagged(Ptr p, V a, V b_, V flag) {
  onPeer(this,
         "mov.b64 pa, {$1, $3};\nmov.b64 pb, {$2, $3};\n"
         "st.relaxed.sys.global.v2.b64 [peer], {pa, pb};",
         "l,r,r,r", Type(), p, {a, b_, flag});
}
Vs KernelBuilder::pullFlagged(Ptr p) {
  SmallVector<Type> types(4, i32Type());
  V all = onPeer(this,
                 "ld.relaxed.sys.global.v2.b64 {pa, pb}, [peer];\n"
                 "mov.b64 {$0, $1}, pa;\nmov.b64 {$2, $3}, pb;",
                 "=r,=r,=r,=r,l",
                 LLVM::LLVMStructType::getLiteral(b.getContext(), types), p, {});
  return split(all.value, 4);
}
void KernelBuilder::pushWords(Ptr p, ArrayRef<V> words) {
  onPeer(this, "st.relaxed.sys.global.v4.b32 [peer], {$1, $2, $3, $4};",
         "l,r,r,r,r", Type(), p, words);
}
Vs KernelBuilder::pullWords(Ptr p) {
  SmallVector<Type> types(4, i32Type());
  V all = onPeer(this, "ld.relaxed.sys.global.v4.b32 {$0, $1, $2, $3}, [peer];",
                 "=r,=r,=r,=r,l",
                 LLVM::LLVMStructType::getLiteral(b.getContext(), types), p, {});
  return split(all.value, 4);
}
void KernelBuilder::push(Ptr p, V v) {
  bool wide = v.value.getType().isInteger(64);
  onPeer(this,
         wide ? "st.relaxed.sys.global.b64 [peer], $1;"
              : "st.relaxed.sys.global.b32 [peer], $1;",
         wide ? "l,l" : "l,r", Type(), p, {v});
}
V KernelBuilder::pull(Ptr p) {
  return onPeer(this, "ld.relaxed.sys.global.b32 $0, [peer];", "=r,l",
                i32Type(), p, {});
}
void KernelBuilder::pushRelease(Ptr p, V v) {
  onPeer(this, "st.release.sys.global.b32 [peer], $1;", "l,r", Type(), p, {v});
}
V KernelBuilder::pullAcquire(Ptr p) {
  return onPeer(this, "ld.acquire.sys.global.b32 $0, [peer];", "=r,l",
                i32Type(), p, {});
}
V KernelBuilder::swap(Ptr p, V v) {
  return onPeer(this, "atom.relaxed.sys.global.exch.b32 $0, [peer], $2;",
                "=r,l,r", i32Type(), p, {v});
}
V KernelBuilder::globalTimer() {
  return inlinePTX("mov.u64 $0, %globaltimer;", "=l", i64Type(), {},
                   /*sideEffects=*/true);
}

//===----------------------------------------------------------------------===//
// Tensor cores
//===----------------------------------------------------------------------===//

static Vs mma(KernelBuilder *k, ArrayRef<Value> a, ArrayRef<Value> b,
              ArrayRef<V> c, NVVM::MMATypes type) {
  SmallVector<Value> acc;
  for (V v : c)
    acc.push_back(v.value);
  SmallVector<Type> types(4, k->f32Type());
  Value d = NVVM::MmaOp::create(
      k->b, LLVM::LLVMStructType::getLiteral(k->b.getContext(), types), a, b,
      acc, ArrayRef<int64_t>{16, 8, 16}, std::nullopt, std::nullopt,
      std::array<NVVM::MMATypes, 2>{type, type},
      std::array<NVVM::MMALayout, 2>{NVVM::MMALayout::row,
                                     NVVM::MMALayout::col});
  Vs out;
  for (int64_t i = 0; i < 4; ++i)
    out.push_back({LLVM::ExtractValueOp::create(k->b, d, i), k});
  return out;
}
Vs KernelBuilder::mmaBF16(ArrayRef<V> a, ArrayRef<V> b_, ArrayRef<V> c) {
  return mma(this, llvm::map_to_vector(a, [](V v) { return v.value; }),
             llvm::map_to_vector(b_, [](V v) { return v.value; }), c,
             NVVM::MMATypes::bf16);
}
Vs KernelBuilder::mmaF16(ArrayRef<V> a, ArrayRef<V> b_, ArrayRef<V> c) {
  auto halves = [&](V v) { return asHalves(this, v); };
  return mma(this, llvm::map_to_vector(a, halves),
             llvm::map_to_vector(b_, halves), c, NVVM::MMATypes::f16);
}
Vs KernelBuilder::mmaFp4(ArrayRef<V> a, ArrayRef<V> b_, ArrayRef<V> c, V scaleA,
                         V scaleB) {
  SmallVector<Value> operands;
  for (ArrayRef<V> list : {a, b_, c})
    for (V v : list)
      operands.push_back(v.value);
  operands.append({scaleA.value, scaleB.value});
  SmallVector<Type> types(4, f32Type());
  V d = inlinePTX(
      "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X."
      "f32.e2m1.e2m1.f32.ue4m3 {$0, $1, $2, $3}, {$4, $5, $6, $7}, {$8, $9}, "
      "{$10, $11, $12, $13}, {$14}, {0, 0}, {$15}, {0, 0};",
      "=f,=f,=f,=f,r,r,r,r,r,r,f,f,f,f,r,r",
      LLVM::LLVMStructType::getLiteral(b.getContext(), types), operands,
      /*sideEffects=*/false);
  return split(d.value, 4);
}
Vs KernelBuilder::ldmatrix(Ptr rowAddress, bool transposed) {
  SmallVector<Type> types(4, i32Type());
  auto shape = NVVM::LdStMatrixShapeAttr::get(b.getContext(), 8, 8);
  Value all = NVVM::LdMatrixOp::create(
      b, LLVM::LLVMStructType::getLiteral(b.getContext(), types),
      rowAddress.value, 4u,
      transposed ? NVVM::MMALayout::col : NVVM::MMALayout::row, shape,
      NVVM::LdStMatrixEltType::B16);
  return split(all, 4);
}

//===----------------------------------------------------------------------===//
// Asynchronous copies, launches
//===----------------------------------------------------------------------===//

V KernelBuilder::sharedAddress(Ptr p) {
  return {LLVM::PtrToIntOp::create(b, i32Type(), p.value), this};
}
void KernelBuilder::cpAsync16(Ptr shared, Ptr global) {
  // The op has no L2 prefetch size.
  inlinePTX("cp.async.cg.shared.global.L2::128B [$0], [$1], 16;", "r,l", Type(),
            {sharedAddress(shared).value, global.value}, true);
}
void KernelBuilder::cpAsync16(Ptr shared, Ptr global, V bytes) {
  inlinePTX("cp.async.cg.shared.global.L2::128B [$0], [$1], 16, $2;", "r,l,r",
            Type(), {sharedAddress(shared).value, global.value, bytes.value},
            true);
}
void KernelBuilder::cpAsyncArrive(Ptr barrier) {
  inlinePTX("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];", "r", Type(),
            {sharedAddress(barrier).value}, true);
}
void KernelBuilder::cpAsyncCommit() { NVVM::CpAsyncCommitGroupOp::create(b); }
void KernelBuilder::cpAsyncWait(int64_t groupsLeft) {
  NVVM::CpAsyncWaitGroupOp::create(b, uint32_t(groupsLeft));
}
void KernelBuilder::mbarrierInit(Ptr barrier, int64_t arrivals) {
  NVVM::MBarrierInitOp::create(b, barrier.value, i32(arrivals).value, Value());
}
void KernelBuilder::mbarrierInitFence() {
  inlinePTX("fence.mbarrier_init.release.cluster;", "", Type(), {}, true);
}
void KernelBuilder::mbarrierExpect(Ptr barrier, V bytes) {
  inlinePTX("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;", "r,r",
            Type(), {sharedAddress(barrier).value, bytes.value}, true);
}
void KernelBuilder::mbarrierArrive(Ptr barrier) {
  inlinePTX("mbarrier.arrive.shared::cta.b64 _, [$0];", "r", Type(),
            {sharedAddress(barrier).value}, true);
}
void KernelBuilder::mbarrierWait(Ptr barrier, V parity) {
  inlinePTX("{\n.reg .pred p;\nretry:\n"
            "mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;\n"
            "@!p bra retry;\n}",
            "r,r", Type(), {sharedAddress(barrier).value, parity.value}, true);
}
void KernelBuilder::bulkCopy(Ptr shared, Ptr global, V bytes, Ptr barrier) {
  // With shared::cluster ptxas calls a function for sm_120a, and then ignores
  // setmaxnreg, too.
  inlinePTX("cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes "
            "[$0], [$1], $2, [$3];",
            "r,l,r,r", Type(),
            {sharedAddress(shared).value, global.value, bytes.value,
             sharedAddress(barrier).value},
            true);
}
void KernelBuilder::bulkPrefetchL2(Ptr global, V bytes) {
  inlinePTX("cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", Type(),
            {global.value, bytes.value}, true);
}
void KernelBuilder::gridWait() {
  NVVM::GriddepcontrolOp::create(b, NVVM::GridDepActionKind::wait);
}
void KernelBuilder::gridTrigger() {
  NVVM::GriddepcontrolOp::create(b, NVVM::GridDepActionKind::launch_dependents);
}

} // namespace mla::nvvm
