//===- Cache.cpp - rotary embedding and caches ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"

using namespace mlir;
using namespace mla;

LogicalResult CacheOp::verify() {
  auto type = cast<CacheType>(getType());
  auto scale = getScale();
  if ((type.getFormat() == Format::FP8E4M3) != scale.has_value())
    return emitOpError("C1: expected a scale with fp8_e4m3 and only with it, "
                       "found ")
           << (scale ? "one" : "none") << " with " << type;
  if (scale && (!scale->isFiniteNonZero() || scale->isNegative()))
    return emitOpError("C1: expected a positive, finite scale, found ")
           << getScaleAttr();
  return success();
}

LogicalResult GetCacheOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto cache = symbols.lookupNearestSymbolFrom<CacheOp>(*this, getNameAttr());
  if (!cache)
    return emitOpError("C1: no mla.cache named ") << getNameAttr();
  return expectSameType(*this, "C1", "a result", cache.getType(),
                        getResult().getType());
}

LogicalResult RotaryEmbeddingOp::verify() {
  ArrayRef<float> frequencies = getFrequencies();
  if (failed(expectSize(*this, "C1", "a result row", 2 * frequencies.size(),
                        rowWidth(getResult()))))
    return failure();
  if (frequencies.empty())
    return emitOpError("C2: expected at least one frequency, found none");
  for (float f : frequencies)
    if (failed(expectPositive(*this, "C2", "each frequency", APFloat(f))))
      return failure();
  return success();
}

LogicalResult RopeOp::verify() {
  int64_t headDim = getHeadDim(), width = rowWidth(getX());
  if (headDim < 1 || width % headDim)
    return emitOpError("C1: expected a head_dim that divides ")
           << width << ", found " << headDim;
  int64_t offset = getOffset(), end = offset + rowWidth(getRotary());
  if (offset < 0 || end > headDim)
    return emitOpError("C2: expected the rotated values inside the ")
           << headDim << " of a head, found " << offset << " to " << end;
  return expectSameType(*this, "C3", "a result", getX().getType(),
                        getResult().getType());
}

LogicalResult ShardBatchOp::verify() {
  return expectAtLeast(*this, "C1", "a number of ranks", 2, getRanks());
}

LogicalResult CacheWriteOp::verify() {
  int64_t sum = 0;
  for (Value part : getParts())
    sum += rowWidth(part);
  if (failed(expectSize(*this, "C1", "part widths with a sum",
                        cast<CacheType>(getCache().getType()).getWidth(), sum)))
    return failure();
  return expectSameType(*this, "C2", "a result", getCache().getType(),
                        getResult().getType());
}

LogicalResult LatentCacheWriteOp::verify() {
  auto cache = cast<CacheType>(getCache().getType());
  int64_t width = rowWidth(getX());
  if (cache.getKind() != CacheKind::Latent)
    return emitOpError("C1: expected a latent cache, found ") << cache;
  if (failed(
          expectSize(*this, "C1", "a cache width", width, cache.getWidth())) ||
      failed(expectRank(*this, "C2", "norm", getNorm(), 1)) ||
      failed(expectSize(*this, "C2", "norm and rotary widths with a sum", width,
                        dim(getNorm(), 0) + rowWidth(getRotary()))) ||
      failed(expectSameType(*this, "C3", "a result", cache,
                            getResult().getType())))
    return failure();
  return expectPositive(*this, "C3", "eps", getEps());
}
