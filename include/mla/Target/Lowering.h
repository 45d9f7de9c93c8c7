//===- Lowering.h - what each target can lower ------------------*- C++ -*-===//
//
// Part of mla. A lowering says which op it is for and why it refuses one; a
// target is a table of them. The choice is made by mla-select-lowering from
// these tables alone, so that it can be explained and nothing falls back
// silently. To add a lowering, add its row to the table of its target.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TARGET_LOWERING_H
#define MLA_TARGET_LOWERING_H

#include "mlir/IR/Operation.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/StringRef.h"
#include <optional>
#include <string>

namespace mla {

/// Why a lowering does not fit, "needs ..., found ..."; nothing if it does.
using Refusal = std::optional<std::string>;

struct Lowering {
  llvm::StringRef name; ///< "linear"; in full, with its target, "host.linear"
  llvm::StringRef op;   ///< the op it lowers, "mla.linear"
  Refusal (*refuses)(mlir::Operation *op);
};

struct Target {
  llvm::StringRef name;
  /// In order of preference for ops that have several.
  llvm::ArrayRef<Lowering> lowerings;

  std::string fullName(const Lowering &lowering) const {
    return (name + "." + lowering.name).str();
  }
};

/// All targets, and the one called `name` or null.
llvm::ArrayRef<const Target *> targets();
const Target *lookupTarget(llvm::StringRef name);

/// The lowering with the full name `name` ("host.linear") and its target, or
/// null twice.
std::pair<const Target *, const Lowering *>
lookupLowering(llvm::StringRef name);

/// The attribute that holds an op's full lowering name.
constexpr llvm::StringLiteral loweringAttr = "lowering";

/// True for ops that compute on rows and caches, which a target must lower;
/// false for declarations, for what makes values of them, and for launches.
bool isTensorLevelOp(mlir::Operation *op);

} // namespace mla

#endif // MLA_TARGET_LOWERING_H
