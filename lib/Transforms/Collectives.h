//===- Collectives.h - what is done about collectives -----------*- C++ -*-===//
//
// Part of mla. The matchers stand here because mla-verify-collectives asks the
// same questions as mla-fuse-collectives.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_TRANSFORMS_COLLECTIVES_H
#define MLA_LIB_TRANSFORMS_COLLECTIVES_H

#include "mla/Dialect/MLA.h"
#include <optional>
#include <string>

namespace mla {

/// Waits for what other ranks send. With `local` a collective is like other ops.
bool isExchange(mlir::Operation *op);

/// Names of weights and caches, which are no work and stand before their users.
bool isName(mlir::Operation *op);

/// A sum over the ranks that can take up what follows it; without `add` the norm
/// reads the sum itself.
struct SumAndNorm {
  AllReduceOp reduce;
  AddOp add;
  RMSNormOp norm;
};
/// Nothing, and the reason in `why`, if `reduce` stays as it is.
std::optional<SumAndNorm> matchSumAndNorm(AllReduceOp reduce, std::string &why);

/// Whether the logits come from other ranks, so that the shared expert, which does
/// not need them, could run meanwhile.
bool hidesSharedExpert(MoEOp moe);

/// Whether `second`, with nothing but names between it and `first`, could be part
/// of it: rows of the same tokens, of the same ranks, and none made of the other's.
bool areJoinable(AllGatherOp first, AllGatherOp second);

/// The op before or after `op` in its block that is no name, or null.
mlir::Operation *workBefore(mlir::Operation *op);
mlir::Operation *workAfter(mlir::Operation *op);

/// For each op of a block that is no name and no terminator those before it that
/// have to stay there: what defines its operands, writes of caches that it reads,
/// reads of caches that it writes. Different caches share no memory. What has
/// effects of another kind stays where it is among all others.
class Dependences {
public:
  explicit Dependences(mlir::Block &block);

  llvm::ArrayRef<mlir::Operation *> ops() const { return order; }
  /// The numbers in ops() of what has to stay before the i-th op.
  llvm::ArrayRef<unsigned> before(unsigned i) const { return edges[i]; }

private:
  llvm::SmallVector<mlir::Operation *> order;
  llvm::SmallVector<llvm::SmallVector<unsigned, 4>> edges;
};

/// Puts exchanges as early as they can be and independent ops behind them, before
/// their first users; see mla-fuse-collectives. Returns how many ops came to stand
/// there.
int64_t overlapExchanges(mlir::Block &block);

} // namespace mla

#endif // MLA_LIB_TRANSFORMS_COLLECTIVES_H
