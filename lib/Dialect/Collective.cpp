//===- Collective.cpp - what ranks exchange -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

bool mla::addsResidual(Operation *reduce) {
  if (auto joined = dyn_cast<AllReduceRMSNormOp>(reduce))
    return bool(joined.getResidual());
  return reduce->hasOneUse() && isa<AddOp>(*reduce->user_begin());
}

LogicalResult AllReduceOp::verify() {
  return expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks());
}

LogicalResult AllGatherOp::verify() {
  if (failed(expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks())))
    return failure();
  if (getXs().empty())
    return emitOpError("C2: expected rows, found none");
  if (failed(expectSize(*this, "C2", "a number of results", getXs().size(),
                        getAlls().size())))
    return failure();
  for (auto [x, result] : llvm::zip(getXs(), getAlls())) {
    // Without a product, which could overflow.
    int64_t width = rowWidth(x), all = rowWidth(result);
    if ((all - 1) / int64_t(getRanks()) + 1 > width)
      return emitOpError("C2: expected at most ")
             << int64_t(getRanks()) << " times " << width
             << " values in a result row, found " << all;
  }
  return success();
}

LogicalResult AllReduceRMSNormOp::verify() {
  Type type = getX().getType();
  if (failed(expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks())) ||
      failed(expectRank(*this, "C2", "weight", getWeight(), 1)) ||
      failed(expectSize(*this, "C2", "a weight length", rowWidth(getX()),
                        dim(getWeight(), 0))))
    return failure();
  if (getResidual() && failed(expectSameType(*this, "C3", "a residual", type,
                                             getResidual().getType())))
    return failure();
  for (Value result : getResults())
    if (failed(expectSameType(*this, "C3", "a result", type, result.getType())))
      return failure();
  return expectPositive(*this, "C4", "eps", getEps());
}
