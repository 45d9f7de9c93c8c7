//===- Linear.cpp - weights, linears, norms, embeddings -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

LogicalResult mla::verifyMatrix(Operation *op, StringRef inLabel,
                                StringRef outLabel, StringRef name, Value x,
                                Value weight, Value result) {
  if (failed(expectRank(op, inLabel, name, weight, 2)) ||
      failed(expectSize(op, inLabel, (name + " columns").str(), rowWidth(x),
                        dim(weight, 1))))
    return failure();
  return expectSize(op, outLabel, "a result row", dim(weight, 0),
                    rowWidth(result));
}

/// A vector weight (norm, bias) over rows of `x`.
static LogicalResult verifyVector(Operation *op, StringRef label,
                                  StringRef name, Value x, Value weight) {
  if (failed(expectRank(op, label, name, weight, 1)))
    return failure();
  return expectSize(op, label, (name + " length").str(), rowWidth(x),
                    dim(weight, 0));
}

/// C4 to C6 of mla.weight.
static LogicalResult verifySlice(WeightOp op, SliceAttr slice,
                                 WeightType type) {
  constexpr int64_t most = int64_t(1) << 31;
  int64_t blocks = slice.getBlocks(), blockRows = slice.getBlockRows();
  int64_t stride = slice.getRowStride(), firstRow = slice.getFirstRow();
  int64_t firstColumn = slice.getFirstColumn();
  for (int64_t size : {slice.getRows(), slice.getColumns(), blocks, blockRows})
    if (size < 1 || size > most)
      return op.emitOpError("C4: expected sizes from 1 to 2^31, found ")
             << slice;
  for (int64_t place : {firstRow, firstColumn, stride})
    if (place < 0 || place > most)
      return op.emitOpError("C4: expected places from 0 to 2^31, found ")
             << slice;
  if (blocks > 1 && stride < blockRows)
    return op.emitOpError("C4: expected runs that do not overlap, found ")
           << blockRows << " rows at a stride of " << stride;
  int64_t lastRow = firstRow + (blocks - 1) * stride + blockRows;
  if (lastRow > slice.getRows())
    return op.emitOpError("C4: expected rows inside of ")
           << slice.getRows() << ", found the slice to end at " << lastRow;

  ArrayRef<int64_t> shape = type.getShape();
  int64_t rows = shape.size() == 1 ? 1 : shape[shape.size() - 2];
  int64_t lastColumn = firstColumn + shape.back();
  if (failed(expectSize(op, "C5", "a number of rows", blocks * blockRows, rows)))
    return failure();
  if (lastColumn > slice.getColumns())
    return op.emitOpError("C5: expected columns inside of ")
           << slice.getColumns() << ", found the slice to end at "
           << lastColumn;

  int64_t group = scaleGroup(type.getFormat());
  auto cut = [&](int64_t first, int64_t last, int64_t size) {
    return first % group || (last % group && last != size);
  };
  if (cut(firstColumn, lastColumn, slice.getColumns()))
    return op.emitOpError("C6: expected columns in whole groups of ")
           << group << ", found " << firstColumn << " to " << lastColumn;
  if (type.getFormat() != Format::FP8Block)
    return success();
  for (int64_t b = 0; b < blocks; ++b) {
    int64_t first = firstRow + b * stride;
    if (cut(first, first + blockRows, slice.getRows()))
      return op.emitOpError("C6: expected rows in whole groups of ")
             << group << ", found " << first << " to " << first + blockRows;
  }
  return success();
}

LogicalResult WeightOp::verify() {
  auto type = cast<WeightType>(getType());
  SmallVector<StringRef> names{getTensor()};
  if (ArrayAttr scales = getScalesAttr())
    for (StringAttr name : scales.getAsRange<StringAttr>())
      names.push_back(name.getValue());
  size_t expected = type.getRank() == 3 ? 1 : 0;
  for (StringRef name : names)
    if (size_t holes = name.count("{}"); holes != expected)
      return emitOpError("C1: expected ")
             << expected << " '{}' in the tensor name of a weight of rank "
             << type.getRank() << ", found " << holes;
  if (failed(expectSize(*this, "C2", "a number of tensors",
                        storagePartCount(type.getFormat()), names.size())))
    return failure();
  if (getReciprocalGlobal() && type.getFormat() != Format::NVFP4)
    return emitOpError("C3: reciprocal_global is of nvfp4, found ") << type;
  if (SliceAttr slice = getSliceAttr())
    return verifySlice(*this, slice, type);
  return success();
}

LogicalResult GetWeightOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto weight = symbols.lookupNearestSymbolFrom<WeightOp>(*this, getNameAttr());
  if (!weight)
    return emitOpError("C1: no mla.weight named ") << getNameAttr();
  return expectSameType(*this, "C1", "a result", weight.getType(),
                        getResult().getType());
}

LogicalResult EmbeddingOp::verify() {
  if (failed(expectRank(*this, "C1", "table", getTable(), 2)))
    return failure();
  return expectSize(*this, "C2", "a result row", dim(getTable(), 1),
                    rowWidth(getResult()));
}

LogicalResult RMSNormOp::verify() {
  if (failed(verifyVector(*this, "C1", "weight", getX(), getWeight())) ||
      failed(expectSameType(*this, "C2", "a result", getX().getType(),
                            getResult().getType())))
    return failure();
  return expectPositive(*this, "C3", "eps", getEps());
}

LogicalResult LayerNormOp::verify() {
  if (failed(verifyVector(*this, "C1", "weight", getX(), getWeight())) ||
      failed(verifyVector(*this, "C1", "bias", getX(), getBias())) ||
      failed(expectSameType(*this, "C2", "a result", getX().getType(),
                            getResult().getType())))
    return failure();
  return expectPositive(*this, "C3", "eps", getEps());
}

LogicalResult LinearOp::verify() {
  return verifyMatrix(*this, "C1", "C2", "weight", getX(), getWeight(),
                      getResult());
}

LogicalResult JoinedLinearOp::verify() {
  if (failed(expectAtLeast(*this, "C1", "a number of weights", 2,
                           getWeights().size())) ||
      failed(expectSize(*this, "C1", "a number of results", getWeights().size(),
                        getResults().size())))
    return failure();
  for (auto [weight, result] : llvm::zip(getWeights(), getResults()))
    if (failed(
            verifyMatrix(*this, "C2", "C3", "weight", getX(), weight, result)))
      return failure();
  return success();
}

LogicalResult GatedLinearOp::verify() {
  if (failed(verifyMatrix(*this, "C1", "C2", "gate", getX(), getGate(),
                          getResult())) ||
      failed(expectRank(*this, "C1", "up", getUp(), 2)) ||
      failed(expectSize(*this, "C1", "up rows", dim(getGate(), 0),
                        dim(getUp(), 0))))
    return failure();
  return expectSize(*this, "C1", "up columns", rowWidth(getX()),
                    dim(getUp(), 1));
}

LogicalResult SplitOp::verify() {
  if (failed(expectAtLeast(*this, "C1", "a number of results", 2,
                           getResults().size())))
    return failure();
  int64_t sum = 0;
  for (Value part : getResults())
    sum += rowWidth(part);
  return expectSize(*this, "C1", "result widths with a sum", rowWidth(getX()),
                    sum);
}

LogicalResult LMHeadOp::verify() {
  return verifyMatrix(*this, "C1", "C2", "weight", getX(), getWeight(),
                      getResult());
}
