//===- Lowering.cpp - the targets and their lowerings ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Lowering.h"
#include "Targets.h"
#include "mla/Dialect/MLA.h"
#include "mla/Target/Gpu.h"

using namespace mlir;
using namespace mla;

ArrayRef<const Target *> mla::targets() {
  static const std::vector<Target> gpuTargets = [] {
    std::vector<Target> list;
    for (const Gpu &gpu : gpus())
      if (gpu.canLower)
        list.push_back({gpu.name, gpuLowerings()});
    return list;
  }();
  static const std::vector<const Target *> all = [] {
    std::vector<const Target *> list{&hostTarget()};
    for (const Target &target : gpuTargets)
      list.push_back(&target);
    return list;
  }();
  return all;
}

const Target *mla::lookupTarget(StringRef name) {
  for (const Target *target : targets())
    if (target->name == name)
      return target;
  return nullptr;
}

std::pair<const Target *, const Lowering *>
mla::lookupLowering(StringRef name) {
  auto [targetName, loweringName] = name.split('.');
  if (const Target *target = lookupTarget(targetName))
    for (const Lowering &lowering : target->lowerings)
      if (lowering.name == loweringName)
        return {target, &lowering};
  return {nullptr, nullptr};
}

bool mla::isTensorLevelOp(Operation *op) {
  return isa_and_present<MLADialect>(op->getDialect()) &&
         !isa<WeightOp, GetWeightOp, CacheOp, GetCacheOp, ProgramOp, PortOp,
              WorkspaceOp, LaunchOp>(op);
}

Refusal mla::needsPlainWeights(Operation *op) {
  for (Type type : op->getOperandTypes())
    if (auto weight = dyn_cast<WeightType>(type))
      if (!elementBytes(weight.getFormat()))
        return "needs weights in f32, bf16 or f16, found " +
               std::string(formatName(weight.getFormat()));
  return std::nullopt;
}

Refusal mla::needsLocalCollective(Operation *op) {
  if (op->hasAttr("local"))
    return std::nullopt;
  auto ranks = op->getAttrOfType<IntegerAttr>("ranks");
  return "needs local collectives, found an exchange among " +
         std::to_string(ranks ? ranks.getInt() : 0) + " ranks";
}
