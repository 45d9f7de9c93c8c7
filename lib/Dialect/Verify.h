//===- Verify.h - checks that the op families share -------------*- C++ -*-===//
//
// Part of mla. Each returns a diagnostic that carries the label of the
// constraint in the op's description.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DIALECT_VERIFY_H
#define MLA_LIB_DIALECT_VERIFY_H

#include "mla/Dialect/MLA.h"
#include "llvm/ADT/SmallString.h"

namespace mla {

/// `found` is `expected`, or "label: expected <what> of <expected>, found ...".
inline mlir::LogicalResult expectSize(mlir::Operation *op,
                                      llvm::StringRef label,
                                      llvm::StringRef what, int64_t expected,
                                      int64_t found) {
  if (expected == found)
    return mlir::success();
  return op->emitOpError() << label << ": expected " << what << " of "
                           << expected << ", found " << found;
}

inline mlir::LogicalResult expectRank(mlir::Operation *op,
                                      llvm::StringRef label,
                                      llvm::StringRef what, mlir::Value weight,
                                      unsigned rank) {
  unsigned found = llvm::cast<WeightType>(weight.getType()).getRank();
  return expectSize(op, label, (what + " rank").str(), rank, found);
}

inline mlir::LogicalResult
expectSameType(mlir::Operation *op, llvm::StringRef label, llvm::StringRef what,
               mlir::Type expected, mlir::Type found) {
  if (expected == found)
    return mlir::success();
  return op->emitOpError() << label << ": expected " << what << " of type "
                           << expected << ", found " << found;
}

inline mlir::LogicalResult expectPositive(mlir::Operation *op,
                                          llvm::StringRef label,
                                          llvm::StringRef what,
                                          const llvm::APFloat &value) {
  if (!value.isNegative() && !value.isZero() && value.isFinite())
    return mlir::success();
  llvm::SmallString<16> text;
  value.toString(text);
  return op->emitOpError() << label << ": expected " << what
                           << " to be positive, found " << text;
}

inline mlir::LogicalResult expectAtLeast(mlir::Operation *op,
                                         llvm::StringRef label,
                                         llvm::StringRef what, int64_t least,
                                         int64_t found) {
  if (found >= least)
    return mlir::success();
  return op->emitOpError() << label << ": expected " << what << " of at least "
                           << least << ", found " << found;
}

/// `weight` is a matrix from rows of `x` to rows of `result`.
mlir::LogicalResult verifyMatrix(mlir::Operation *op, llvm::StringRef inLabel,
                                 llvm::StringRef outLabel, llvm::StringRef name,
                                 mlir::Value x, mlir::Value weight,
                                 mlir::Value result);

inline int64_t dim(mlir::Value weight, unsigned i) {
  return llvm::cast<WeightType>(weight.getType()).getDim(i);
}

} // namespace mla

#endif // MLA_LIB_DIALECT_VERIFY_H
