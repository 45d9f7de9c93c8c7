//===- Rewrite.h - what the fusions share -----------------------*- C++ -*-===//
//
// Part of mla. The matchers stand here because mla-verify-fused asks the same
// question as the fusions: is this a pattern that we claim to fuse?
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_TRANSFORMS_REWRITE_H
#define MLA_LIB_TRANSFORMS_REWRITE_H

#include "mla/Dialect/MLA.h"
#include "mlir/IR/PatternMatch.h"
#include <optional>
#include <string>

namespace mla {

/// Says at `op` why it stays as it is.
mlir::LogicalResult decline(mlir::RewriterBase &rewriter, mlir::Operation *op,
                            const llvm::Twine &why);

/// Erases those of `ops` that have no users and no effects, and then what only
/// they used. The fusions erase no other op, so values with users of their own
/// keep what computes them.
void eraseDead(mlir::RewriterBase &rewriter,
               llvm::ArrayRef<mlir::Operation *> ops);

/// The linears of an activation that can become one mla.gated_linear.
struct GatedChain {
  LinearOp gate, up;
};
std::optional<GatedChain> matchGated(SwiGLUOp activation);

/// Router and experts that can become one mla.moe; `add`, `down` and `gated`
/// are the shared expert, all null if it stays outside.
struct MoEChain {
  LinearOp router;
  RouteOp route;
  ExpertsOp experts;
  AddOp add;
  LinearOp down;
  GatedLinearOp gated;
};
/// Nothing, and the reason in `why`, if `experts` stay apart.
std::optional<MoEChain> matchMoE(ExpertsOp experts, std::string &why);

} // namespace mla

#endif // MLA_LIB_TRANSFORMS_REWRITE_H
