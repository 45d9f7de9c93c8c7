//===- Lowering.cpp - the targets and their lowerings ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Lowering.h"
#include "Targets.h"
#include "mla/Dialect/MLA.h"

using namespace mlir;
using namespace mla;

ArrayRef<const Target *> mla::targets() {
  static const Target *const all[] = {&hostTarget()};
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
