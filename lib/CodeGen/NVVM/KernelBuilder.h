//===- KernelBuilder.h - writing GPU kernels in MLIR ------------*- C++ -*-===//
//
// Part of mla. A kernel is an llvm.func of nvvm, llvm, arith and scf ops, made
// through this builder: values with operators, loops as lambdas, and the
// instructions of SM120 under the names that PTX gives them. What a C++ loop
// repeats is unrolled in the kernel; loop() stays a loop.
//
// Integers are i32 (sizes, indices, byte offsets) unless something is a byte
// offset into a large buffer, which is i64. All are treated as non-negative by
// / % >>. Floats are f32. Registers of packed small floats are i32.
//
// A kernel's parameters are 8 bytes each: a device address for each operand of
// its launch, then the scalars as i64 (plan::cudaKernelAbi). It must call
// gridWait() before it touches what other kernels write or read.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_KERNELBUILDER_H
#define MLA_LIB_CODEGEN_NVVM_KERNELBUILDER_H

#include "mla/Support/Format.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mla::nvvm {

class KernelBuilder;

/// An i1, integer or f32 value with arithmetic. Integers mix with C++ constants.
struct V {
  mlir::Value value;
  KernelBuilder *k = nullptr;
  operator mlir::Value() const { return value; }
  explicit operator bool() const { return bool(value); }
};
using Vs = llvm::SmallVector<V>;

V operator+(V a, V b);
V operator-(V a, V b);
V operator*(V a, V b);
V operator/(V a, V b);
V operator%(V a, V b);
V operator+(V a, int64_t b);
V operator-(V a, int64_t b);
V operator*(V a, int64_t b);
V operator/(V a, int64_t b);
V operator%(V a, int64_t b);
V operator&(V a, V b); ///< also of i1
V operator|(V a, V b); ///< also of i1
V operator^(V a, V b);
V operator&(V a, int64_t b);
V operator|(V a, int64_t b);
V operator^(V a, int64_t b);
V operator<<(V a, int64_t b);
V operator>>(V a, int64_t b); ///< logical
V operator>>(V a, V b);       ///< logical
V operator<(V a, V b);
V operator<(V a, int64_t b);
V operator>(V a, V b);
V operator>(V a, int64_t b);
V operator>=(V a, V b);
V operator>=(V a, int64_t b);
V operator==(V a, V b);
V operator==(V a, int64_t b);
V operator!(V a); ///< of i1

/// An address, global or shared, with byte arithmetic.
struct Ptr {
  mlir::Value value;
  KernelBuilder *k = nullptr;
  bool isShared() const;
};
Ptr operator+(Ptr p, V bytes); ///< i32 or i64
Ptr operator+(Ptr p, int64_t bytes);

/// What a kernel's blocks look like.
struct BlockShape {
  int64_t threads;
  /// Blocks that must fit an SM by registers; limits what a thread may have.
  int64_t minBlocks = 1;
  /// Most registers of a thread, in place of what minBlocks allows. 0: not limited.
  int64_t maxRegisters = 0;
};

/// How a load goes through the caches.
enum class Cached {
  Yes,
  Stream,  ///< read-only data that is read once: ld.global.nc.L1::no_allocate
  L2       ///< written by other blocks or kernels: ld.global.cg
};

class KernelBuilder {
public:
  /// Starts kernel `name` in `kernels`. `access` has "read", "write" or
  /// "readwrite" for each operand; then come `scalars` integers.
  KernelBuilder(mlir::ModuleOp kernels, mlir::Location loc, llvm::StringRef name,
                llvm::ArrayRef<llvm::StringRef> access, int64_t scalars,
                BlockShape shape);
  /// Ends the function.
  void finish();

  // Arguments.
  Ptr buffer(unsigned operand);
  V scalar(unsigned index);    ///< i64
  V scalar32(unsigned index);  ///< its low half as i32
  V scalarF32(unsigned index); ///< its low half as the bits of an f32

  // Where am I.
  V thread();
  V lane();
  V warp();
  V block();
  V blocks(); ///< of the grid
  int64_t threads() const { return shape.threads; }
  int64_t warps() const { return shape.threads / 32; }

  /// Reserves shared memory; the sum of all is the kernel's sharedBytes.
  Ptr shared(int64_t bytes, int64_t alignment = 16);

  // Constants.
  V i32(int64_t v);
  V i64(int64_t v);
  V f32(double v);
  V yes();
  V no();

  // Conversions.
  V to64(V v); ///< zero-extended
  V to32(V v);
  V toF32(V i);         ///< of a non-negative i32
  V bits(V f);          ///< f32 -> i32
  V fromBits(V i);      ///< i32 -> f32
  V shift(V a, V n);    ///< a << n

  // Memory. Alignment is that of what is loaded unless given.
  V load(Ptr p, mlir::Type type, Cached cached = Cached::Yes);
  V loadI32(Ptr p, Cached cached = Cached::Yes);
  V loadF32(Ptr p, Cached cached = Cached::Yes);
  V loadI8(Ptr p, Cached cached = Cached::Yes);  ///< zero-extended to i32
  V loadI16(Ptr p, Cached cached = Cached::Yes); ///< zero-extended to i32
  V loadI64(Ptr p);
  /// `n` (2 or 4) adjacent words, as one access aligned to its size.
  Vs loadWords(Ptr p, unsigned n, Cached cached = Cached::Yes);
  Vs loadFloats(Ptr p, unsigned n, Cached cached = Cached::Yes);
  void store(Ptr p, V v); ///< i32, i64, f32
  void storeI8(Ptr p, V v);  ///< low bits of an i32
  void storeI16(Ptr p, V v); ///< low bits of an i32
  void storeWords(Ptr p, llvm::ArrayRef<V> words); ///< 2 or 4, i32 or f32
  /// One element of a standalone format as f32, or i32 of Format::I32.
  V loadElement(Ptr base, V index, Format format, Cached cached = Cached::Yes);
  void storeElement(Ptr base, V index, Format format, V value);
  void atomicAdd(Ptr p, V v); ///< i32, relaxed, device scope
  void prefetchL2(Ptr p);

  // Memory that other devices, or the host, read and write: of system scope and
  // relaxed, and no access is torn: words of 4 bytes where none are said. PTX calls
  // the address "peer", so that tests find all of these.
  /// The memory at an address, an i64.
  Ptr global(V address);
  /// Stores {a, flag} and {b, flag}, each as one word of 8 bytes.
  void pushFlagged(Ptr p, V a, V b, V flag);
  /// a, its flag, b, its flag.
  Vs pullFlagged(Ptr p);
  void pushWords(Ptr p, llvm::ArrayRef<V> words); ///< 4, 16 bytes aligned
  Vs pullWords(Ptr p);                            ///< 4, 16 bytes aligned
  void push(Ptr p, V v);        ///< i32 or i64
  V pull(Ptr p);                ///< i32
  void pushRelease(Ptr p, V v); ///< i32, behind all that the thread has seen
  V pullAcquire(Ptr p);         ///< i32, before all that the thread does then
  V swap(Ptr p, V v);           ///< i32: stores v, returns what was there
  V globalTimer();              ///< i64, nanoseconds

  // Control flow.
  void loop(V low, V high, int64_t step, llvm::function_ref<void(V)> body);
  void loop(V low, V high, V step, llvm::function_ref<void(V)> body);
  Vs loop(V low, V high, int64_t step, llvm::ArrayRef<V> init,
          llvm::function_ref<Vs(V, llvm::ArrayRef<V>)> body);
  Vs loopWhile(llvm::ArrayRef<V> init,
               llvm::function_ref<V(llvm::ArrayRef<V>)> condition,
               llvm::function_ref<Vs(llvm::ArrayRef<V>)> body);
  void when(V condition, llvm::function_ref<void()> body);
  void ifElse(V condition, llvm::function_ref<void()> yes,
              llvm::function_ref<void()> no);
  Vs ifElse(V condition, llvm::ArrayRef<mlir::Type> types,
            llvm::function_ref<Vs()> yes, llvm::function_ref<Vs()> no);
  V select(V condition, V yes, V no);
  Ptr select(V condition, Ptr yes, Ptr no);

  // Arithmetic.
  V fma(V a, V b, V c);
  V maximum(V a, V b); ///< f32: the number if one is NaN; integers: signed
  V minimum(V a, V b);
  V ceilDiv(V a, int64_t b);
  V exp2(V x);  ///< ex2.approx.ftz
  V log2(V x);  ///< lg2.approx.ftz
  V exp(V x);   ///< exp2(x * log2(e)), relative error about 2^-21 for |x| < 16
  V rsqrt(V x); ///< rsqrt.approx.ftz
  V reciprocal(V x); ///< rcp.approx.ftz
  V divide(V a, V b); ///< div.rn
  V sqrt(V x);
  V abs(V x);
  V sigmoid(V x);
  V silu(V x);
  /// Cosine and sine of a finite f32 of any size below 2^40, to 1e-6 absolute.
  std::pair<V, V> cosSin(V x);

  // Small floats. A pair register has the first value in its low half.
  V packBF16(V low, V high); ///< cvt.rn.bf16x2.f32
  V packF16(V low, V high);  ///< cvt.rn.f16x2.f32
  V packE4M3(V low, V high); ///< cvt.rn.satfinite.e4m3x2.f32, in the low 16 bits
  V packE2M1(V low, V high); ///< rn.satfinite, in the low 8 bits; targets with fp4
  std::pair<V, V> unpackBF16(V pair); ///< two f32
  std::pair<V, V> unpackF16(V pair);
  V e4m3ToF16(V pair); ///< the low 16 bits, two e4m3, as two f16
  V mulF16(V a, V b);  ///< two products
  V addF16(V a, V b);
  V subF16(V a, V b);
  V fmaF16(V a, V b, V c);
  V clampF16(V a); ///< to +-65504, which is what infinities become
  V permuteBytes(V a, V b, int64_t selector); ///< prmt.b32

  // Warps.
  V shuffleXor(V v, int64_t mask); ///< i32 or f32
  V shuffle(V v, V lane);
  V shuffleUp(V v, int64_t by);
  V any(V condition);
  V ballot(V condition); ///< i32
  V popcount(V v);
  V trailingZeros(V v); ///< 32 for 0
  V warpSum(V v);
  V warpMax(V v); ///< f32
  V reduxMax(V v); ///< u32: redux.sync.max
  V reduxMin(V v); ///< u32
  V reduxAdd(V v); ///< i32
  void syncWarp();

  // Blocks.
  void barrier();
  /// Of `threads` threads, whole warps, that give the same id (1 to 15).
  void barrier(V id, int64_t threads);
  /// Sum over the block of an f32; every thread gets it. Uses `scratch`, warps()
  /// f32 of shared memory, and two barriers.
  V blockSum(V v, Ptr scratch);

  // Tensor cores: D = A B + C with m16n8k16, A row major, B column major.
  /// `a` 4 registers, `b` 2, `c` 4 f32; see the PTX ISA for which lane has what.
  Vs mmaBF16(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c);
  Vs mmaF16(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c);
  /// e2m1 with m16n8k64 and e4m3 scales for each 16 of k, four in a register:
  /// `scaleA` of row g + 8 * (lane & 1), `scaleB` of column g. Targets with fp4.
  Vs mmaFp4(llvm::ArrayRef<V> a, llvm::ArrayRef<V> b, llvm::ArrayRef<V> c,
            V scaleA, V scaleB);
  /// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8
  /// of matrix i / 8.
  Vs ldmatrix(Ptr rowAddress, bool transposed = false);

  // Asynchronous copies.
  V sharedAddress(Ptr p); ///< as i32
  /// 16 bytes; L2 fetches 128.
  void cpAsync16(Ptr shared, Ptr global);
  /// 16 bytes of which the first `bytes` (0 or 16) are read, zeros the rest.
  void cpAsync16(Ptr shared, Ptr global, V bytes);
  /// This thread's copies so far arrive at `barrier` when they have landed; it
  /// counts one arrival for each thread.
  void cpAsyncArrive(Ptr barrier);
  void cpAsyncCommit();
  void cpAsyncWait(int64_t groupsLeft);
  void mbarrierInit(Ptr barrier, int64_t arrivals);
  void mbarrierInitFence(); ///< makes inits visible to the copy engine
  void mbarrierExpect(Ptr barrier, V bytes);
  void mbarrierArrive(Ptr barrier); ///< releases what this thread did before
  void mbarrierWait(Ptr barrier, V parity);
  /// `bytes` is a multiple of 16, as the addresses are; completes on `barrier`.
  void bulkCopy(Ptr shared, Ptr global, V bytes, Ptr barrier);
  void bulkPrefetchL2(Ptr global, V bytes);

  // Launches.
  void gridWait(); ///< until all earlier launches have ended
  /// The next launch may begin, once all blocks of this one are here. It waits
  /// itself, so that only what the next kernel does before its wait matters: small
  /// kernels trigger before their own wait, and the weights of what follows are
  /// under way while they wait.
  void gridTrigger();

  mlir::Type i1Type(), i8Type(), i16Type(), i32Type(), i64Type(), f32Type();
  V intrinsic(llvm::StringRef name, mlir::Type type, llvm::ArrayRef<V> args);
  /// PTX where no op exists; `constraints` as LLVM has them.
  V inlinePTX(llvm::StringRef text, llvm::StringRef constraints, mlir::Type type,
              llvm::ArrayRef<mlir::Value> args, bool sideEffects);

  mlir::ImplicitLocOpBuilder b;

private:
  Vs split(mlir::Value structOrVector, unsigned n);
  mlir::LLVM::LLVMFuncOp function;
  BlockShape shape;
  unsigned operandCount;
  int64_t sharedBytes = 0;
  V tid, bid;
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_KERNELBUILDER_H
