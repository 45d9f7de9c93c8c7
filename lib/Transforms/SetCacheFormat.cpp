//===- SetCacheFormat.cpp - the format of the latent caches ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Transforms/Passes.h"

namespace mla {
#define GEN_PASS_DEF_SETCACHEFORMATPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

/// `cache` and the caches that its writes give, in the new type.
static void setType(Value cache, CacheType type) {
  cache.setType(type);
  for (Operation *user : cache.getUsers())
    if (isa<LatentCacheWriteOp, CacheWriteOp>(user))
      setType(user->getResult(0), type);
}

namespace {
struct SetCacheFormatPass
    : mla::impl::SetCacheFormatPassBase<SetCacheFormatPass> {
  using SetCacheFormatPassBase::SetCacheFormatPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto chosen = parseFormat(format);
    if (!chosen || !elementBytes(*chosen) || *chosen == Format::I32) {
      module.emitError("expected a cache format of f32, bf16, f16 or fp8_e4m3, "
                       "found '")
          << format << "'";
      return signalPassFailure();
    }
    SmallVector<CacheOp> caches;
    for (auto cache : module.getOps<CacheOp>())
      if (cast<CacheType>(cache.getType()).getKind() == CacheKind::Latent)
        caches.push_back(cache);
    bool scaled = *chosen == Format::FP8E4M3;
    if (!caches.empty() &&
        (scaled ? scales.size() != 1 && scales.size() != caches.size()
                : !scales.empty())) {
      module.emitError("expected ")
          << (scaled ? "one scale, or one for each of " : "no scales for ")
          << caches.size() << " latent caches in " << format << ", found "
          << scales.size();
      return signalPassFailure();
    }

    llvm::DenseMap<StringAttr, CacheType> types;
    for (auto [i, cache] : llvm::enumerate(caches)) {
      auto old = cast<CacheType>(cache.getType());
      auto type = CacheType::get(&getContext(), old.getKind(), old.getWidth(),
                                 *chosen);
      cache.setType(type);
      cache.removeScaleAttr();
      if (scaled) {
        auto scale =
            static_cast<float>(scales[scales.size() == 1 ? 0 : i]);
        if (!std::isfinite(scale) || !(scale > 0)) {
          cache.emitOpError("expected a positive, finite scale, found ")
              << scale;
          return signalPassFailure();
        }
        cache.setScaleAttr(Builder(&getContext()).getF32FloatAttr(scale));
      }
      types[cache.getSymNameAttr()] = type;
      ++numCaches;
    }
    module.walk([&](GetCacheOp get) {
      if (auto type = types.lookup(get.getNameAttr().getAttr()))
        setType(get.getResult(), type);
    });
  }
};
} // namespace
