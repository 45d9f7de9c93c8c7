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
