//===- Collective.cpp - what ranks exchange -------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

LogicalResult AllReduceOp::verify() {
  return expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks());
}

LogicalResult AllGatherOp::verify() {
  if (failed(expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks())))
    return failure();
  // A product that overflows equals no width.
  int64_t width = 0;
  if (llvm::MulOverflow(static_cast<int64_t>(getRanks()), rowWidth(getX()),
                        width))
    width = -1;
  return expectSize(*this, "C2", "a result row", width, rowWidth(getResult()));
}
