//===- SideBySide.cpp - two kernels in one launch -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "SideBySide.h"
#include "KernelSupport.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/IR/IRMapping.h"

using namespace mlir;

namespace mla::nvvm {

namespace {
/// A kernel as it was built: one block of ops.
struct Part {
  explicit Part(LLVM::LLVMFuncOp function) : function(function) {
    access = llvm::to_vector(
        function->getAttrOfType<ArrayAttr>("mla.access").getAsValueRange<StringAttr>());
    scalars = function->getAttrOfType<IntegerAttr>("mla.scalars").getInt();
    threads = function->getAttrOfType<IntegerAttr>("mla.threads").getInt();
    shared = function->getAttrOfType<IntegerAttr>("mla.shared").getInt();
  }
  LLVM::LLVMFuncOp function;
  SmallVector<StringRef> access;
  int64_t scalars, threads, shared;
};
} // namespace

/// The number of blocks that `grid` says for one token.
static std::optional<int64_t> blocksOf(const std::string &grid) {
  auto expr = plan::Expr::parse(grid);
  plan::SymbolValues one;
  for (int64_t &value : one.values)
    value = 1;
  if (!expr.ok())
    return std::nullopt;
  auto value = expr->evaluate(one);
  return value.ok() ? std::optional(*value) : std::nullopt;
}

/// Copies the body of `part` to where `k` is; its block number is `block`, its
/// arguments are `arguments`. Threads beyond its own do nothing and end; barriers
/// wait for those that have not ended.
static void copyBody(KernelBuilder &k, Part &part, V block,
                     ArrayRef<Value> arguments) {
  k.when(k.thread() < part.threads, [&] {
    IRMapping mapping;
    mapping.map(ValueRange(part.function.getArguments()),
                ValueRange(arguments));
    for (Operation &op :
         part.function.getBody().front().without_terminator()) {
      if (auto id = dyn_cast<NVVM::BlockIdXOp>(op))
        mapping.map(id.getResult(), block.value);
      else
        k.b.clone(op, mapping);
    }
  });
}

std::optional<Kernel> sideBySide(KernelSite site, const Kernel &first,
                                 const Kernel &second) {
  std::optional<int64_t> firstBlocks = blocksOf(first.grid),
                         secondBlocks = blocksOf(second.grid);
  auto find = [&](const Kernel &kernel) {
    return site.kernels.lookupSymbol<LLVM::LLVMFuncOp>(kernel.name);
  };
  if (!firstBlocks || !secondBlocks || !find(first) || !find(second))
    return std::nullopt;
  Part a(find(first)), b(find(second));
  for (Part *part : {&a, &b})
    if (part->function
            .walk([](NVVM::GridDimXOp) { return WalkResult::interrupt(); })
            .wasInterrupted())
      return std::nullopt;
  Kernel kernel{first.name + "_and_" + second.name,
                std::to_string(*firstBlocks + *secondBlocks)};
  if (exists(site, kernel.name))
    return kernel;
  SmallVector<StringRef> access(a.access);
  access.append(b.access);
  KernelBuilder k(site.kernels, site.loc, kernel.name, access,
                  a.scalars + b.scalars, {std::max(a.threads, b.threads)});
  // Blocks of either use the same shared memory.
  k.shared(std::max(a.shared, b.shared));
  SmallVector<Value> argumentsA, argumentsB;
  unsigned operands = 0, scalars = 0;
  for (auto [part, arguments] : {std::pair{&a, &argumentsA}, {&b, &argumentsB}})
    for (size_t i = 0; i < part->access.size(); ++i)
      arguments->push_back(k.buffer(operands++).value);
  for (auto [part, arguments] : {std::pair{&a, &argumentsA}, {&b, &argumentsB}})
    for (int64_t i = 0; i < part->scalars; ++i)
      arguments->push_back(k.scalar(scalars++).value);
  k.ifElse(
      k.block() < *firstBlocks,
      [&] { copyBody(k, a, k.block(), argumentsA); },
      [&] { copyBody(k, b, k.block() - *firstBlocks, argumentsB); });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
