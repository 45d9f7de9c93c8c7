//===- Harness.h - kernels compiled and run by themselves -------*- C++ -*-===//
//
// Part of mla. A test makes the kernels of all its cases in one module, which
// is compiled as a plan's kernels are, and runs each through the ABI of the
// plan. Every run is made twice, whole and cut into pieces in random order,
// and must give the same bits; what a kernel only reads, and what lies around
// its buffers, must be as before.
//
// References are computed in double from the values as stored. They give, with
// each value, its magnitude: the sum of the absolute values of what is added up
// to it. An f32 sum of n terms is off by at most n * 2^-24 of that, and by far
// less when it is made in 8 lanes and a tree: 2e-6 is what 33 roundings in a
// row may do, while a term left out or taken twice shows at any of our sizes.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_CODEGEN_HARNESS_H
#define MLA_UNITTESTS_CODEGEN_HARNESS_H

#include "lib/CodeGen/Host/Kernels.h"
#include "unittests/TempFolder.h"
#include <cmath>
#include <functional>
#include <gtest/gtest.h>
#include <numeric>
#include <random>

namespace mla::test {

using Random = std::mt19937_64;
int64_t randomInt(Random &random, int64_t low, int64_t high); ///< both included

/// A buffer as a kernel sees it, between guard zones. It is aligned to its
/// elements and no further: weights lie anywhere in a file.
class Buffer {
public:
  /// For a kernel to write: NaN, or 0x7f7f7f7f in every element.
  static Buffer output(Format format, int64_t count);
  static Buffer uniform(Format format, int64_t count, Random &random,
                        double low = -1, double high = 1);
  static Buffer of(Format format, const std::vector<double> &values);
  static Buffer ints(const std::vector<int64_t> &values);
  /// 8-bit codes, read as e4m3 by operator[].
  static Buffer codes(const std::vector<uint8_t> &values);

  int64_t size() const { return count; }
  double operator[](int64_t i) const;
  void set(int64_t i, double value); ///< rounded to the format
  std::byte *data() const;
  size_t bytes() const;
  /// Values as stored, from `at` on.
  std::vector<double> values(int64_t at, int64_t n) const;
  std::vector<double> values() const { return values(0, count); }

  std::vector<std::byte> snapshot() const;
  void restore(const std::vector<std::byte> &snapshot);
  bool guardsIntact() const;

private:
  Buffer(Format format, int64_t count);
  Format format;
  size_t elementSize;
  int64_t count;
  std::unique_ptr<std::byte[]> memory;
};

/// A weight matrix in any storage format, with values that were computed here,
/// from the definition of the format.
class Matrix {
public:
  /// Random values. Of the quantized formats all codes but NaN, and scales among
  /// which are zero, negative zero's neighbours and large ones.
  Matrix(host::MatrixShape shape, Random &random);
  /// The value at a flat, row-major index, as stored.
  double operator[](int64_t i) const { return values[i]; }

  host::MatrixShape shape;
  std::vector<Buffer> parts;

private:
  std::vector<double> values;
};

/// An operand of a launch: a buffer or the address table of a weight.
struct Operand {
  Operand(Buffer &buffer) : buffer(&buffer) {}
  Operand(Matrix &weight);
  Operand(const std::vector<Matrix> &stack);
  Buffer *buffer = nullptr;
  std::vector<uint64_t> table;
};

/// A compiled kernel.
class Kernel {
public:
  using Function = void (*)(const uint64_t *, int64_t, int64_t);
  /// Runs the kernel as described at the head of this file.
  void operator()(int64_t grid, std::vector<Operand> operands,
                  std::vector<int64_t> scalars = {}) const;

  std::string name;
  std::vector<std::string> access;
  Function function = nullptr;
  Random *random = nullptr; ///< of the cuts
};

/// The kernels of one test.
class Kernels {
public:
  Kernels();
  ~Kernels();
  host::KernelSite site() { return {*module, location}; }
  mlir::MLIRContext &context() { return mlirContext; }

  /// What to do with kernel `name` when all are compiled. The same name may
  /// come several times.
  using Check = std::function<void(const Kernel &, Random &)>;
  void check(const std::string &name, Check check);
  /// As check(), for a test over several kernels.
  using ChainCheck = std::function<void(const std::vector<Kernel> &, Random &)>;
  void check(const std::vector<std::string> &names, ChainCheck check);
  /// Compiles the module and makes all checks, each with a seed of its own.
  void run();

private:
  mlir::MLIRContext mlirContext;
  mlir::Location location;
  mlir::OwningOpRef<mlir::ModuleOp> module;
  std::vector<std::pair<std::vector<std::string>, ChainCheck>> checks;
  TempFolder folder;
  void *library = nullptr;
};

//===--- References
//---------------------------------------------------------===//

struct Expected {
  double value = 0, magnitude = 0;
  void add(double term) { value += term, magnitude += std::abs(term); }
};

/// sum_i a[aAt + i] * b[bAt + i]
template <typename A>
Expected dot(const A &a, int64_t aAt, const Buffer &b, int64_t bAt, int64_t n) {
  Expected e;
  for (int64_t i = 0; i < n; ++i)
    e.add(a[aAt + i] * b[bAt + i]);
  return e;
}
double silu(double x);

/// A row per token and head of a rotary part: see rotate() in the kernels.
std::vector<Expected> rotated(const std::vector<double> &x,
                              const std::vector<double> &rotary,
                              bool interleaved);

constexpr double tolerance = 2e-6;
void expectNear(const Buffer &found, const std::vector<Expected> &expected,
                double relative = tolerance);
void expectEqual(const Buffer &found, const std::vector<double> &expected);
/// The same bits in `n` elements of two f32 buffers.
void expectSameBits(const Buffer &a, int64_t aAt, const Buffer &b, int64_t bAt,
                    int64_t n);

} // namespace mla::test

#endif // MLA_UNITTESTS_CODEGEN_HARNESS_H
