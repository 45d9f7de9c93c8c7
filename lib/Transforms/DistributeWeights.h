//===- DistributeWeights.h - parts of weights -------------------*- C++ -*-===//
//
// Part of mla. Collects which operands of a graph are to be parts of weights, and
// then makes the parts: declarations with a shard, and what reads them.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_TRANSFORMS_DISTRIBUTEWEIGHTS_H
#define MLA_LIB_TRANSFORMS_DISTRIBUTEWEIGHTS_H

#include "mla/Dialect/MLA.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/ADT/MapVector.h"

namespace mla {

/// The dimension of a weight that is divided among the ranks.
enum class Axis { Rows, Columns, Experts };

/// Parts of single rows or columns are multiples of this, so that 16-byte loads and
/// vectors fit.
constexpr int64_t lanes = 8;

/// Into `count` parts; `stride` ranks in a row have the same one.
struct Division {
  int64_t count = 1, stride = 1;
};

/// An operand whose weight is divided, in steps of `unit` elements: a head's rows.
struct CutOperand {
  mlir::OpOperand *operand;
  Axis axis;
  int64_t unit = 1;
};
using Operands = llvm::SmallVector<CutOperand, 4>;

bool areDeclared(mlir::ValueRange weights);
/// Elements of `operand`'s weight along `axis`.
int64_t dimOf(mlir::OpOperand &operand, Axis axis);
int64_t weightRows(mlir::Value weight);

class WeightCuts {
public:
  /// Divides what `operands` have `size` units of each; returns the units of a part,
  /// the fewest, in whole `steps` unless it is all, with which every weight is cut
  /// between its groups of scales. `what` they are ("heads") is for remarks on `op`.
  int64_t addTogether(mlir::Operation *op, llvm::StringRef what,
                      const Operands &operands, int64_t size,
                      Division division, int64_t steps = 1);

  struct Single {
    Axis axis;
    int64_t count, stride;
  };
  /// Divides `size` elements of one weight.
  void add(mlir::OpOperand &operand, Single cut, int64_t size) {
    addTogether(operand.getOwner(), "rows", {{&operand, cut.axis}}, size,
                {cut.count, cut.stride}, lanes);
  }

  bool has(mlir::OpOperand &operand) const { return parts.contains(&operand); }

  /// A remark for each kind of division that leaves ranks with less than others.
  /// Returns how many.
  int64_t remarkUneven() const;

  /// Changes declarations, where all users read the same part, or adds some, and
  /// the operands.
  void apply(mlir::ModuleOp module);

  /// Of the whole of a weight that is a part by now.
  int64_t wholeRows(mlir::Value weight) const;

private:
  struct Part {
    int64_t dim, size;
    Division division;
    bool operator==(const Part &o) const {
      return dim == o.dim && size == o.size &&
             division.count == o.division.count &&
             division.stride == o.division.stride;
    }
  };
  struct Uneven {
    mlir::Operation *op;
    std::string what;
    int64_t size, part, count;
  };
  llvm::MapVector<mlir::OpOperand *, llvm::SmallVector<Part, 2>> parts;
  llvm::SmallVector<Uneven> uneven;
};

} // namespace mla

#endif // MLA_LIB_TRANSFORMS_DISTRIBUTEWEIGHTS_H
