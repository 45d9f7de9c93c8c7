//===- DistributeWeights.cpp - parts of weights ---------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "DistributeWeights.h"
#include <map>

using namespace mlir;
using namespace mla;

bool mla::areDeclared(ValueRange weights) {
  return llvm::all_of(weights, [](Value weight) {
    return weight.getDefiningOp<GetWeightOp>();
  });
}

static int64_t dimIndex(WeightType type, Axis axis) {
  int64_t rank = type.getRank();
  return axis == Axis::Columns ? rank - 1 : axis == Axis::Rows ? rank - 2 : 0;
}

int64_t mla::dimOf(OpOperand &operand, Axis axis) {
  auto type = cast<WeightType>(operand.get().getType());
  return type.getDim(dimIndex(type, axis));
}

int64_t mla::weightRows(Value weight) {
  auto type = cast<WeightType>(weight.getType());
  return type.getDim(type.getRank() - 2);
}

/// Whether parts of `size` elements along `axis` cut no group of scales, or lie in
/// one.
static bool keepsScales(WeightType type, Axis axis, int64_t size) {
  bool blocks = type.getFormat() == Format::FP8Block;
  int64_t group = scaleGroup(type.getFormat());
  if (group == 1 || axis == Axis::Experts || (axis == Axis::Rows && !blocks))
    return true;
  return size % group == 0 || (blocks && group % size == 0);
}

int64_t WeightCuts::addTogether(Operation *op, StringRef what,
                                const Operands &operands, int64_t size,
                                Division division, int64_t steps) {
  auto fits = [&](int64_t part) {
    if (part % steps != 0 && part < size)
      return false;
    return llvm::all_of(operands, [&](const CutOperand &o) {
      return keepsScales(cast<WeightType>(o.operand->get().getType()), o.axis,
                         part * o.unit);
    });
  };
  // A multiple of every group's size fits in any case.
  int64_t part = (size - 1) / division.count + 1;
  while (!fits(part))
    ++part;
  for (const CutOperand &o : operands)
    parts[o.operand].push_back(
        {dimIndex(cast<WeightType>(o.operand->get().getType()), o.axis),
         part * o.unit, division});
  if (part * division.count != size)
    uneven.push_back({op, what.str(), size, part, division.count});
  return part;
}

int64_t WeightCuts::remarkUneven() const {
  std::map<std::tuple<std::string, int64_t, int64_t>, int64_t> seen;
  for (const Uneven &u : uneven)
    if (seen[{u.what, u.size, u.part}]++ == 0)
      u.op->emitRemark() << "divided unevenly: " << u.count
                         << " parts of at most " << u.part << " of "
                         << u.size << " " << u.what;
  return seen.size();
}

int64_t WeightCuts::wholeRows(Value weight) const {
  auto get = weight.getDefiningOp<GetWeightOp>();
  auto declared = SymbolTable::lookupNearestSymbolFrom<WeightOp>(
      get, get.getNameAttr());
  ArrayRef<int64_t> whole = declared.getShardAttr().getWhole();
  return whole[whole.size() - 2];
}

void WeightCuts::apply(ModuleOp module) {
  SymbolTable symbols(module);
  DenseMap<StringAttr, size_t> uses;
  module.walk([&](GetWeightOp get) {
    uses[get.getNameAttr().getAttr()] +=
        std::distance(get->use_begin(), get->use_end());
  });
  // Operands by weight and by what they want of it.
  struct Wanted {
    SmallVector<Part, 2> part;
    SmallVector<OpOperand *> operands;
  };
  llvm::MapVector<StringAttr, SmallVector<Wanted, 1>> byWeight;
  for (auto &[operand, part] : parts) {
    auto get = operand->get().getDefiningOp<GetWeightOp>();
    auto &wanted = byWeight[get.getNameAttr().getAttr()];
    auto same =
        llvm::find_if(wanted, [&](const Wanted &w) { return w.part == part; });
    if (same == wanted.end())
      same = wanted.insert(wanted.end(), Wanted{part, {}});
    same->operands.push_back(operand);
  }
  auto declare = [&](WeightOp weight, ArrayRef<Part> part) {
    auto type = cast<WeightType>(weight.getType());
    SmallVector<int64_t> shape(type.getShape()), dims, counts, strides;
    for (const Part &p : part) {
      shape[p.dim] = p.size;
      dims.push_back(p.dim);
      counts.push_back(p.division.count);
      strides.push_back(p.division.stride);
    }
    weight.setShardAttr(ShardAttr::get(module.getContext(), type.getShape(),
                                       dims, counts, strides));
    weight.setType(
        WeightType::get(module.getContext(), shape, type.getFormat()));
  };
  for (auto &[name, wanted] : byWeight) {
    auto weight = symbols.lookup<WeightOp>(name);
    if (wanted.size() == 1 && wanted[0].operands.size() == uses[name]) {
      declare(weight, wanted[0].part);
      for (OpOperand *operand : wanted[0].operands)
        operand->get().setType(cast<WeightType>(weight.getType()));
      continue;
    }
    // Others read all of it, or another part.
    for (Wanted &w : wanted) {
      auto part = cast<WeightOp>(weight->clone());
      part.setSymName((name.getValue() + ".part").str());
      symbols.insert(part, std::next(weight->getIterator()));
      declare(part, w.part);
      for (OpOperand *operand : w.operands) {
        OpBuilder b(operand->getOwner());
        operand->set(GetWeightOp::create(b, part.getLoc(), part.getType(),
                                         FlatSymbolRefAttr::get(part)));
      }
    }
  }
}
