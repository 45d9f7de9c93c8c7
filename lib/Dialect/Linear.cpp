//===- Linear.cpp - weights, linears, norms, embeddings -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"
#include "llvm/ADT/DenseSet.h"

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
static LogicalResult verifyShard(WeightOp op, ShardAttr shard,
                                 WeightType type) {
  constexpr int64_t most = int64_t(1) << 31;
  ArrayRef<int64_t> shape = type.getShape(), whole = shard.getWhole();
  if (failed(expectSize(op, "C4", "a number of dimensions", shape.size(),
                        whole.size())))
    return failure();
  llvm::SmallDenseSet<int64_t> divided;
  for (auto [dim, count, stride] : llvm::zip(
           shard.getDims(), shard.getCounts(), shard.getStrides())) {
    if (dim < 0 || dim >= int64_t(shape.size()) || !divided.insert(dim).second)
      return op.emitOpError("C4: expected each dimension from 0 to ")
             << shape.size() - 1 << " once at the most, found " << dim;
    if (count < 2 || count > most || stride < 1 || stride > most)
      return op.emitOpError("C4: expected at least 2 parts by at least 1 rank, "
                            "found ")
             << count << " by " << stride;
  }
  int64_t group = scaleGroup(type.getFormat());
  bool blocks = type.getFormat() == Format::FP8Block;
  for (auto [i, size] : llvm::enumerate(shape)) {
    int64_t count = shard.countOf(i);
    if (whole[i] < 1 || whole[i] > most)
      return op.emitOpError("C4: expected sizes from 1 to 2^31, found ")
             << whole[i];
    if (count == 1 ? size != whole[i] : (whole[i] - 1) / count + 1 > size)
      return op.emitOpError("C5: expected parts that make up ")
             << whole[i] << ", found " << count << " of " << size;
    bool columns = i + 1 == shape.size(), rows = i + 2 == shape.size();
    if (count == 1 || group == 1 || !(columns || (rows && blocks)))
      continue;
    if (size % group && !(blocks && group % size == 0))
      return op.emitOpError("C6: expected ")
             << (rows ? "rows" : "columns") << " in whole groups of " << group
             << ", found " << size;
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
  if (ShardAttr shard = getShardAttr())
    return verifyShard(*this, shard, type);
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
  if (auto ranks = getRanks();
      ranks && failed(expectAtLeast(*this, "C3", "a number of ranks", 2, *ranks)))
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
