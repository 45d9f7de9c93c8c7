//===- Attention.cpp - attention, plain and latent ------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

static LogicalResult verifyKind(Operation *op, StringRef label, Value cache,
                                CacheKind kind) {
  auto type = cast<CacheType>(cache.getType());
  if (type.getKind() == kind)
    return success();
  return op->emitOpError() << label << ": expected a cache of kind "
                           << stringifyCacheKind(kind) << ", found " << type;
}

/// Counts of heads and of their values, whose products the sizes must equal:
/// two negative ones would make a plausible product.
static LogicalResult
verifyCounts(Operation *op, StringRef label,
             ArrayRef<std::pair<StringRef, int64_t>> counts) {
  for (auto [name, count] : counts)
    if (failed(expectAtLeast(op, label, name, 1, count)))
      return failure();
  return success();
}

LogicalResult AttentionOp::verify() {
  int64_t heads = getHeads(), nope = getNope(), rope = getRope(), v = getV();
  if (failed(verifyCounts(
          *this, "C1",
          {{"heads", heads}, {"nope", nope}, {"rope", rope}, {"v", v}})) ||
      failed(expectSize(*this, "C1", "a q row", heads * (nope + rope),
                        rowWidth(getQ()))) ||
      failed(verifyKind(*this, "C2", getCache(), CacheKind::Expanded)) ||
      failed(expectSize(*this, "C2", "a cache width", heads * (nope + v) + rope,
                        cast<CacheType>(getCache().getType()).getWidth())))
    return failure();
  return expectSize(*this, "C3", "a result row", heads * v,
                    rowWidth(getResult()));
}

LogicalResult AbsorbQueryOp::verify() {
  int64_t heads = getHeads(), nope = getNope(), v = getV();
  int64_t rope = rowWidth(getRotary());
  if (failed(verifyCounts(*this, "C1",
                          {{"heads", heads}, {"nope", nope}, {"v", v}})) ||
      failed(expectRank(*this, "C1", "kv_b", getKvB(), 2)) ||
      failed(expectSize(*this, "C1", "kv_b rows", heads * (nope + v),
                        dim(getKvB(), 0))) ||
      failed(expectSize(*this, "C2", "a q row", heads * (nope + rope),
                        rowWidth(getQ()))))
    return failure();
  return expectSize(*this, "C3", "a result row",
                    heads * (dim(getKvB(), 1) + rope), rowWidth(getResult()));
}

LogicalResult LatentAttentionOp::verify() {
  int64_t heads = getHeads(), kvLora = getKvLora();
  int64_t width = cast<CacheType>(getCache().getType()).getWidth();
  if (failed(
          verifyCounts(*this, "C1", {{"heads", heads}, {"kv_lora", kvLora}})) ||
      failed(verifyKind(*this, "C1", getCache(), CacheKind::Latent)))
    return failure();
  if (width <= kvLora)
    return emitOpError("C1: expected a cache wider than kv_lora ")
           << kvLora << ", found " << width;
  if (failed(
          expectSize(*this, "C2", "a q row", heads * width, rowWidth(getQ()))))
    return failure();
  if (failed(expectSize(*this, "C3", "a result row", heads * kvLora,
                        rowWidth(getResult()))))
    return failure();
  if (!getLse())
    return success();
  if (getSelected())
    return emitOpError("C4: expected no lse with selected positions");
  return expectSize(*this, "C4", "an lse row", heads, rowWidth(getLse()));
}

LogicalResult MergeAttentionOp::verify() {
  int64_t heads = getHeads(), ranks = getRanks();
  if (failed(expectAtLeast(*this, "C1", "a number of ranks", 2, ranks)) ||
      failed(verifyCounts(*this, "C2", {{"heads", heads}})))
    return failure();
  if (heads % ranks)
    return emitOpError("C2: expected heads that ")
           << ranks << " ranks divide, found " << heads;
  if (failed(expectSize(*this, "C2", "an lse row", heads, rowWidth(getLse()))))
    return failure();
  // Without a product, which could overflow.
  int64_t all = rowWidth(getX()), part = rowWidth(getResult());
  if (all % heads)
    return emitOpError("C3: expected an x row of ")
           << heads << " heads, found " << all;
  return expectSize(*this, "C3", "a result row", all / ranks, part);
}

LogicalResult ExpandValueOp::verify() {
  int64_t heads = getHeads(), nope = getNope(), v = getV();
  if (failed(verifyCounts(*this, "C1",
                          {{"heads", heads}, {"nope", nope}, {"v", v}})) ||
      failed(expectRank(*this, "C1", "kv_b", getKvB(), 2)) ||
      failed(expectSize(*this, "C1", "kv_b rows", heads * (nope + v),
                        dim(getKvB(), 0))) ||
      failed(expectSize(*this, "C2", "an x row", heads * dim(getKvB(), 1),
                        rowWidth(getX()))))
    return failure();
  return expectSize(*this, "C3", "a result row", heads * v,
                    rowWidth(getResult()));
}

LogicalResult IndexerOp::verify() {
  int64_t heads = getHeads();
  if (failed(verifyCounts(*this, "C1", {{"heads", heads}})) ||
      failed(verifyKind(*this, "C1", getCache(), CacheKind::Index)) ||
      failed(
          expectSize(*this, "C1", "a q row",
                     heads * cast<CacheType>(getCache().getType()).getWidth(),
                     rowWidth(getQ()))) ||
      failed(expectSize(*this, "C2", "a weights row", heads,
                        rowWidth(getWeights()))) ||
      failed(expectAtLeast(*this, "C3", "a topk", 1, getTopk())))
    return failure();
  return expectSize(*this, "C3", "a result row", getTopk(),
                    rowWidth(getResult()));
}
