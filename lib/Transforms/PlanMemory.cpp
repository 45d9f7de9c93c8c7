//===- PlanMemory.cpp - places for the workspaces of a program ------------===//
//
// Part of mla. Greedy by size: the largest workspace first, each into the
// smallest gap between the already placed ones that are live with it. In the
// models of test/data the arena is at most a quarter larger than what is live
// at once, in most of them not at all. Quadratic in the number of workspaces.
//
//===----------------------------------------------------------------------===//
#include "mla/Plan/Plan.h"
#include "mla/Transforms/Passes.h"
#include "llvm/Support/MathExtras.h"

#define DEBUG_TYPE "mla-plan-memory"

namespace mla {
#define GEN_PASS_DEF_PLANMEMORYPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

/// Offsets and sizes are multiples of a cache line, as the plan demands.
constexpr uint64_t alignment = 64;

namespace {
/// A workspace with its life, the launches `first` to `last`.
struct Placement {
  WorkspaceOp op;
  uint64_t size = 0;
  size_t first = 0, last = 0;
  uint64_t offset = 0;

  bool livesWith(const Placement &other) const {
    return first <= other.last && other.first <= last;
  }
};

struct PlanMemoryPass : mla::impl::PlanMemoryPassBase<PlanMemoryPass> {
  using PlanMemoryPassBase::PlanMemoryPassBase;
  void runOnOperation() override;

private:
  FailureOr<uint64_t> sizeOf(WorkspaceOp op);
};
} // namespace

/// The size of `op` at the bounds of its program.
FailureOr<uint64_t> PlanMemoryPass::sizeOf(WorkspaceOp op) {
  ProgramOp program = getOperation();
  plan::SymbolValues bounds;
  bounds[plan::Symbol::Tokens] = program.getMaxTokens();
  bounds[plan::Symbol::Sequences] = program.getMaxSequences();
  bounds[plan::Symbol::Outputs] = program.getMaxOutputs();
  bounds[plan::Symbol::Pages] = maxPages;

  auto type = cast<BufferType>(op.getType());
  std::vector<plan::Expr> shape;
  for (StringAttr dim : type.getShape()) {
    auto expr = plan::Expr::parse(std::string_view(dim.getValue()));
    if (!expr.ok())
      return op.emitOpError() << expr.status().message();
    if (expr->uses(plan::Symbol::Capacity))
      return op.emitOpError("expected a size that is known at compile time, "
                            "found one that depends on 'capacity'");
    shape.push_back(std::move(*expr));
  }
  auto bytes = plan::bufferBytes(type.getFormat(), shape, bounds);
  if (!bytes.ok())
    return op.emitOpError("has no size at the bounds of the program: ")
           << bytes.status().message();
  if (*bytes > uint64_t(INT64_MAX) / 2)
    return op.emitOpError("is too large, ") << *bytes << " bytes";
  return std::max(alignment, llvm::alignTo(*bytes, alignment));
}

/// The start of the smallest gap of at least `size` bytes between `taken`,
/// which are sorted by offset and may overlap, or their end.
static uint64_t bestFit(ArrayRef<const Placement *> taken, uint64_t size) {
  uint64_t end = 0, best = 0, bestGap = UINT64_MAX;
  for (const Placement *block : taken) {
    if (block->offset > end) {
      uint64_t gap = block->offset - end;
      if (gap >= size && gap < bestGap) {
        bestGap = gap;
        best = end;
      }
    }
    end = std::max(end, block->offset + block->size);
  }
  return bestGap == UINT64_MAX ? end : best;
}

void PlanMemoryPass::runOnOperation() {
  DenseMap<Operation *, size_t> launches;
  SmallVector<Placement> blocks;
  SmallVector<WorkspaceOp> unused;
  for (Operation &op : getOperation().getBody().front())
    if (isa<LaunchOp>(op))
      launches.try_emplace(&op, launches.size());
  for (auto op : getOperation().getBody().getOps<WorkspaceOp>()) {
    if (op->use_empty()) {
      unused.push_back(op);
      continue;
    }
    FailureOr<uint64_t> size = sizeOf(op);
    if (failed(size))
      return signalPassFailure();
    Placement block{op, *size, SIZE_MAX, 0, 0};
    for (Operation *user : op->getUsers()) {
      size_t index = launches.lookup(user);
      block.first = std::min(block.first, index);
      block.last = std::max(block.last, index);
    }
    blocks.push_back(block);
  }
  for (WorkspaceOp op : unused)
    op.erase();

  // Stable, so that the same program always gets the same places.
  SmallVector<Placement *> order;
  for (Placement &block : blocks)
    order.push_back(&block);
  llvm::stable_sort(
      order, [](Placement *a, Placement *b) { return a->size > b->size; });
  uint64_t arena = 0, sum = 0;
  SmallVector<const Placement *> placed; // sorted by offset
  for (Placement *block : order) {
    SmallVector<const Placement *> taken;
    llvm::copy_if(
        placed, std::back_inserter(taken),
        [&](const Placement *other) { return other->livesWith(*block); });
    block->offset = bestFit(taken, block->size);
    block->op.setOffset(block->offset);
    placed.insert(llvm::upper_bound(placed, block,
                                    [](const Placement *a, const Placement *b) {
                                      return a->offset < b->offset;
                                    }),
                  block);
    arena = std::max(arena, block->offset + block->size);
    sum += block->size;
    if (arena > uint64_t(INT64_MAX) / 2) {
      getOperation().emitOpError("needs more workspace than can be addressed");
      return signalPassFailure();
    }
  }
  getOperation().setWorkspaceBytes(arena);
  numWorkspaces += blocks.size();
  arenaBytes += arena;
  sumBytes += sum;
}
