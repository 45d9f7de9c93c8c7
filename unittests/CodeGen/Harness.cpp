//===- Harness.cpp - kernels compiled and run by themselves ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "mla/CodeGen/Host/Emit.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include <dlfcn.h>
#include <filesystem>
#include <map>

namespace mla::test {

int64_t randomInt(Random &random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

//===----------------------------------------------------------------------===//
// Kernels
//===----------------------------------------------------------------------===//

Kernels::Kernels()
    : location(mlir::UnknownLoc::get(&mlirContext)),
      module(mlir::ModuleOp::create(location)) {
  mlirContext.loadDialect<MLADialect, mlir::arith::ArithDialect,
                          mlir::func::FuncDialect, mlir::LLVM::LLVMDialect,
                          mlir::math::MathDialect, mlir::memref::MemRefDialect,
                          mlir::scf::SCFDialect, mlir::vector::VectorDialect>();
}

Kernels::~Kernels() {
  if (library)
    dlclose(library);
}

void Kernels::check(const std::string &name, Check check) {
  this->check(std::vector{name},
              [check](const std::vector<Kernel> &kernels, Random &random) {
                check(kernels[0], random);
              });
}

void Kernels::check(const std::vector<std::string> &names, ChainCheck check) {
  checks.emplace_back(names, std::move(check));
}

void Kernels::run() {
  // Lowering replaces the functions and their attributes.
  std::map<std::string, std::vector<std::string>> access;
  for (auto f : module->getOps<mlir::func::FuncOp>())
    for (auto a : f->getAttrOfType<mlir::ArrayAttr>("mla.access")
                      .getAsRange<mlir::StringAttr>())
      access[f.getName().str()].push_back(a.str());
  std::string path = (folder / "kernels.so").string();
  llvm::Error error = compileHostKernels(*module, "x86-64-v3", path);
  ASSERT_FALSE(error) << llvm::toString(std::move(error));
  library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_TRUE(library) << dlerror();
  for (size_t seed = 0; seed < checks.size(); ++seed) {
    const auto &[names, check] = checks[seed];
    SCOPED_TRACE("kernel " + names[0] + ", seed " + std::to_string(seed));
    Random random(seed);
    std::vector<Kernel> kernels;
    for (const std::string &name : names) {
      void *symbol = dlsym(library, name.c_str());
      ASSERT_TRUE(symbol) << name;
      kernels.push_back({name, access[name],
                         reinterpret_cast<Kernel::Function>(symbol), &random});
    }
    check(kernels, random);
  }
}

Operand::Operand(Matrix &weight) {
  if (weight.parts.size() == 1)
    buffer = &weight.parts[0];
  for (const Buffer &b : weight.parts)
    table.push_back(reinterpret_cast<uint64_t>(b.data()));
}

Operand::Operand(const std::vector<Matrix> &stack) {
  for (const Matrix &m : stack)
    for (const Buffer &b : m.parts)
      table.push_back(reinterpret_cast<uint64_t>(b.data()));
}

/// [0, grid) cut at random places, in random order.
static std::vector<std::pair<int64_t, int64_t>> pieces(int64_t grid,
                                                       Random &random) {
  std::vector<int64_t> cuts{0, grid};
  for (int64_t i = randomInt(random, 0, 5); i > 0; --i)
    cuts.push_back(randomInt(random, 0, grid));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::pair<int64_t, int64_t>> out;
  for (size_t i = 1; i < cuts.size(); ++i)
    out.emplace_back(cuts[i - 1], cuts[i]); // Empty pieces are fine.
  std::shuffle(out.begin(), out.end(), random);
  return out;
}

void Kernel::operator()(int64_t grid, std::vector<Operand> operands,
                        std::vector<int64_t> scalars) const {
  ASSERT_EQ(operands.size(), access.size());
  std::vector<uint64_t> arguments;
  std::vector<std::vector<std::byte>> before;
  for (const Operand &o : operands) {
    before.push_back(o.buffer ? o.buffer->snapshot()
                              : std::vector<std::byte>());
    arguments.push_back(reinterpret_cast<uint64_t>(
        o.buffer ? static_cast<const void *>(o.buffer->data())
                 : o.table.data()));
  }
  arguments.insert(arguments.end(), scalars.begin(), scalars.end());

  function(arguments.data(), 0, grid);
  std::vector<std::vector<std::byte>> whole;
  for (const auto &[o, start] : llvm::zip(operands, before)) {
    whole.push_back(o.buffer ? o.buffer->snapshot() : start);
    if (o.buffer)
      o.buffer->restore(start);
  }
  for (auto [begin, end] : pieces(grid, *random))
    function(arguments.data(), begin, end);
  for (size_t i = 0; i < operands.size(); ++i) {
    Buffer *buffer = operands[i].buffer;
    if (!buffer)
      continue;
    EXPECT_TRUE(buffer->guardsIntact())
        << "operand " << i << " was written out of bounds";
    EXPECT_TRUE(buffer->snapshot() == whole[i])
        << "operand " << i << " depends on how the grid is cut";
    if (access[i] == "read") {
      EXPECT_TRUE(buffer->snapshot() == before[i])
          << "operand " << i << " is said to be only read";
    }
  }
}

//===----------------------------------------------------------------------===//
// References
//===----------------------------------------------------------------------===//

double silu(double x) { return x / (1 + std::exp(-x)); }

std::vector<Expected> rotated(const std::vector<double> &x,
                              const std::vector<double> &rotary,
                              bool interleaved) {
  size_t half = x.size() / 2;
  std::vector<Expected> out(x.size());
  for (size_t i = 0; i < half; ++i) {
    double first = interleaved ? x[2 * i] : x[i];
    double second = interleaved ? x[2 * i + 1] : x[i + half];
    out[i].add(first * rotary[i]);
    out[i].add(-second * rotary[i + half]);
    out[i + half].add(second * rotary[i]);
    out[i + half].add(first * rotary[i + half]);
  }
  return out;
}

void expectNear(const Buffer &found, const std::vector<Expected> &expected,
                double relative) {
  ASSERT_EQ(found.size(), int64_t(expected.size()));
  int64_t wrong = 0;
  for (int64_t i = 0; i < found.size(); ++i) {
    double difference = std::abs(found[i] - expected[i].value);
    double bound = relative * expected[i].magnitude;
    // Written so that NaN is wrong.
    if (difference <= bound || ++wrong > 3)
      continue;
    ADD_FAILURE() << "element " << i << ": expected " << expected[i].value
                  << ", found " << found[i] << ", off by " << difference
                  << " where " << bound << " is allowed";
  }
  EXPECT_LE(wrong, 3) << "of " << found.size() << " elements in all";
}

void expectEqual(const Buffer &found, const std::vector<double> &expected) {
  std::vector<Expected> exact;
  for (double v : expected)
    exact.push_back({v, 0});
  expectNear(found, exact);
}

void expectSameBits(const Buffer &a, int64_t aAt, const Buffer &b, int64_t bAt,
                    int64_t n) {
  EXPECT_EQ(0, memcmp(a.data() + 4 * aAt, b.data() + 4 * bAt, 4 * n))
      << "rows at " << aAt << " and " << bAt;
}

} // namespace mla::test
