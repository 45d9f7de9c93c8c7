//===- KernelBuilder.h - writing host kernels in MLIR -----------*- C++ -*-===//
//
// Part of mla. A kernel is a function
//
//   func.func @name(%args: !llvm.ptr, %begin: i64, %end: i64)
//
// that does the work items begin <= i < end (the kernel ABI of the plan). Its
// body is vector, scf, arith and memref code, made through this builder:
// values with operators, loops as lambdas, loads that turn any storage format
// into f32.
//
// Two properties of every kernel rest on the code here. Results do not depend
// on how work is split: a row of the output is summed in an order that is
// fixed by the weight's shape alone, so that logits are the same, to the bit,
// for any chunking of a prompt and any batch. And nothing is reassociated by
// LLVM: no fast-math flag is ever set, sums over vectors are explicit trees.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_HOST_KERNELBUILDER_H
#define MLA_LIB_CODEGEN_HOST_KERNELBUILDER_H

#include "Kernels.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/ImplicitLocOpBuilder.h"

namespace mla::host {

class KernelBuilder;

/// An index, integer, f32 or f32 vector value with arithmetic. Integers mix
/// with C++ constants.
struct V {
  mlir::Value value;
  KernelBuilder *k = nullptr;
  operator mlir::Value() const { return value; }
};

V operator+(V a, V b);
V operator-(V a, V b);
V operator*(V a, V b);
V operator/(V a, V b); ///< floats; on indices: quotient of non-negatives
V operator%(V a, V b); ///< indices: remainder of non-negatives
V operator+(V a, int64_t b);
V operator-(V a, int64_t b);
V operator*(V a, int64_t b);
V operator/(V a, int64_t b);
V operator%(V a, int64_t b);
V operator<(V a, V b); ///< i1
V operator<(V a, int64_t b);
V operator==(V a, V b);
V operator==(V a, int64_t b);
V operator>(V a, V b);
V operator>=(V a, V b);

/// Memory seen as a row of elements of one storage format.
struct Mem {
  mlir::Value memref; ///< memref<?xT>
  Format format = Format::F32;
};

/// Rows in a storage format that may have scales beside its values: a weight
/// matrix, or the rows of a cache. A value of a row is what loadRow() gives,
/// times what rowScales() gives if there are scales, times `factor`, and twice
/// times `lift`: a sum of products takes it once with what the row is multiplied
/// with and once with the sum, so that nothing on the way is too small for f32.
struct Matrix {
  Mem values; ///< counted in bytes for fp8 and nvfp4, in words for int4_g32
  Mem scales = {};
  V factor = {};   ///< absent where it is 1
  double lift = 1; ///< a power of 2
  int64_t columns = 0;
  Format format() const { return values.format; }
};

/// Where a row of a Matrix begins, in elements of its memory.
struct MatrixRow {
  V values;
  V scales = {};
};

/// The vector width of f32 arithmetic: 8 lanes of x86-64-v3.
constexpr int64_t lanes = 8;

/// The widest power of two up to `lanes` that divides `width`.
int64_t lanesFor(int64_t width);

class KernelBuilder {
public:
  /// Starts kernel `name` in `kernels`. Operands of a launch come first, then
  /// `scalars` integers. `access` has "read", "write" or "readwrite" for each
  /// operand.
  KernelBuilder(mlir::ModuleOp kernels, mlir::Location loc,
                llvm::StringRef name, llvm::ArrayRef<llvm::StringRef> access,
                int64_t scalars);

  /// Calls `body` with each work item and ends the function.
  void items(llvm::function_ref<void(V)> body);

  // Arguments.
  Mem buffer(unsigned operand, Format format);
  V scalar(unsigned index);
  /// Entry `index` of the address table that is operand `operand`.
  Mem tableEntry(unsigned operand, V index, Format format);

  /// A scalar that holds the bits of an f32.
  V scalarF32(unsigned index);
  /// The weight that is operand `operand`; with `index`, tensor `index` of the
  /// stack that it is.
  Matrix matrix(unsigned operand, MatrixShape shape, V index = {});

  /// The rows of the cache that is operand `operand`, of which values are
  /// `scale` times what is stored if a scale is given.
  Matrix cacheRows(unsigned operand, Format format, V scale = {});

  // Scratch on the stack of the worker; call before items().
  Mem scratch(int64_t elements, Format format);
  Mem scratchIndices(int64_t elements); ///< of 64 bits

  // Constants.
  V index(int64_t v);
  V f32(double v);
  V splat(V scalar, int64_t n);
  V zeros(int64_t n);

  // Memory. `at` counts elements.
  V load(Mem m, V at); ///< any format -> f32, i32 -> index
  void store(Mem m, V at, V value);
  V loadVector(Mem m, V at, int64_t n); ///< any format -> vector<n x f32>
  void storeVector(Mem m, V at, V value);
  MatrixRow row(const Matrix &m, V row);
  /// `n` numbers of a row from column `c` on, as stored: one vector of n <= 8, or
  /// n / 8 vectors of 8. `c` is a multiple of n; of the formats with 4 bits, n is
  /// 16 or 32.
  llvm::SmallVector<V> loadRow(const Matrix &m, MatrixRow row, V c, int64_t n);
  /// The scales of these columns, in each lane of a vector of min(n, 8): one for
  /// each group, or one if the n columns lie in one group; none if the format
  /// has no scales.
  llvm::SmallVector<V> rowScales(const Matrix &m, MatrixRow row, V c,
                                 int64_t n);
  /// Asks for the cache line at `at` to be brought into the L2 cache. Never
  /// faults; `at` may lie beyond the end.
  void prefetch(Mem m, V at);
  /// Copies `count` f32 or i32 elements.
  void copy(Mem from, V fromAt, Mem to, V toAt, int64_t count);
  void fill(Mem m, V value, int64_t count);

  // Control flow.
  void loop(V low, V high, int64_t step, llvm::function_ref<void(V)> body);
  llvm::SmallVector<V>
  loop(V low, V high, int64_t step, llvm::ArrayRef<V> init,
       llvm::function_ref<llvm::SmallVector<V>(V, llvm::ArrayRef<V>)> body);
  /// while (cond(state)) state = body(state)
  llvm::SmallVector<V>
  loopWhile(llvm::ArrayRef<V> init,
            llvm::function_ref<V(llvm::ArrayRef<V>)> condition,
            llvm::function_ref<llvm::SmallVector<V>(llvm::ArrayRef<V>)> body);
  void when(V condition, llvm::function_ref<void()> body);
  void ifElse(V condition, llvm::function_ref<void()> yes,
              llvm::function_ref<void()> no);
  V select(V condition, V yes, V no);
  V both(V a, V b);
  V either(V a, V b);

  // Arithmetic on f32 and f32 vectors.
  V fma(V a, V b, V c);
  V maximum(V a, V b); ///< NaN if either is
  V exp(V x);
  V sqrt(V x);
  V cos(V x); ///< scalar, of the C library
  V sin(V x); ///< scalar, of the C library
  V log(V x); ///< scalar, of the C library
  V minimum(V a, V b); ///< indices
  V silu(V x);
  V sigmoid(V x);
  V abs(V x);
  V toF32(V index);
  V toIndex(V wholeNumber); ///< of an f32 from 0 to 2^24
  V sum(V vector);        ///< to a scalar, in a fixed tree
  V maxElement(V vector); ///< to a scalar

  mlir::ImplicitLocOpBuilder b;

private:
  mlir::Value argument(unsigned slot, mlir::Type type);
  Mem memoryAt(mlir::Value pointer, Format format);
  mlir::Value widen(mlir::Value v, Format format, mlir::Type type);
  mlir::Value narrow(mlir::Value v, Format format);
  mlir::Value e4m3Bits(mlir::Value v);
  V scaleOf(const Matrix &m, MatrixRow row, V c);
  llvm::SmallVector<V> unpackE4M3(const Matrix &m, V at, int64_t n);
  llvm::SmallVector<V> unpackNibbles(const Matrix &m, V at, int64_t n);
  Mem e4m3Table();
  mlir::func::FuncOp function;
  unsigned operandCount;
};

/// A block of matrix rows times `xs` vectors of `width` values: element [r][x]
/// of the result is row r times vector x. The vectors start at xAt[x] of `x`.
/// The sum runs over lanes of 8 first, then over the tree, then over the tail.
/// If `ahead` is not 0, what lies so many elements of the matrix's memory
/// behind each row is prefetched.
llvm::SmallVector<llvm::SmallVector<V>>
dotTile(KernelBuilder &k, const Matrix &weights, llvm::ArrayRef<MatrixRow> rows,
        Mem x, llvm::ArrayRef<V> xAt, int64_t width, int64_t ahead = 0);

/// Columns that one element of a matrix's memory holds: 8, 2 or 1.
int64_t columnsPerElement(Format format);
/// Columns that kernels take at a time: those of a cache line, 32 at most; and
/// those that they take at least: 8, or 16 in nvfp4, which has no shorter rows.
int64_t lineColumns(Format format);
int64_t leastColumns(Format format);

} // namespace mla::host

#endif // MLA_LIB_CODEGEN_HOST_KERNELBUILDER_H
