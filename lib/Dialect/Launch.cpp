//===- Launch.cpp - kernels over buffers ----------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Verify.h"
#include "mla/Plan/Plan.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"

using namespace mlir;
using namespace mla;

std::string mla::originOf(Operation *op) {
  if (auto name = op->getLoc()->findInstanceOf<NameLoc>())
    return name.getName().str();
  return op->getName().getStringRef().str();
}

/// What replacingLoc() noted, or origin, op and number.
static std::string nameOf(OpResult result) {
  Operation *op = result.getOwner();
  unsigned number = result.getResultNumber();
  if (auto fused = dyn_cast<FusedLoc>(op->getLoc()))
    if (auto names = dyn_cast_or_null<ArrayAttr>(fused.getMetadata());
        names && names.size() == op->getNumResults())
      if (auto name = dyn_cast<StringAttr>(names[number]))
        return name.str();
  return originOf(op) + "/" + op->getName().stripDialect().str() + ":" +
         std::to_string(number);
}

Location mla::replacingLoc(ArrayRef<Operation *> parts, ValueRange replaced) {
  SmallVector<Location> locs;
  for (Operation *part : parts)
    locs.push_back(part->getLoc());
  SmallVector<Attribute> names;
  MLIRContext *context = parts.front()->getContext();
  for (Value value : replaced) {
    names.push_back(StringAttr::get(context, nameOf(cast<OpResult>(value))));
    locs.push_back(value.getLoc());
  }
  return FusedLoc::get(locs, ArrayAttr::get(context, names), context);
}

llvm::DenseMap<Value, std::string> mla::nameValues(Block &block) {
  llvm::DenseMap<Value, std::string> names;
  llvm::StringMap<int> seen;
  for (Operation &op : block)
    for (OpResult result : op.getResults()) {
      std::string name = nameOf(result);
      if (int before = seen[name]++)
        name += "#" + std::to_string(before + 1);
      names[result] = std::move(name);
    }
  return names;
}

LogicalResult mla::checkLogits(func::FuncOp step) {
  auto end = cast<func::ReturnOp>(step.getBody().front().getTerminator());
  Value logits = end.getNumOperands() == 1 ? end.getOperand(0) : Value();
  if (auto gather = logits ? logits.getDefiningOp<AllGatherOp>() : AllGatherOp())
    logits = gather.getXs()[cast<OpResult>(logits).getResultNumber()];
  if (!logits || !logits.getDefiningOp<LMHeadOp>())
    return end.emitOpError("expected the step to return the logits of a "
                           "mla.lm_head");
  return success();
}

LogicalResult ProgramOp::verify() {
  int64_t tokens = getMaxTokens();
  if (failed(expectAtLeast(*this, "C1", "max_tokens", 1, tokens)) ||
      failed(
          expectAtLeast(*this, "C1", "max_sequences", 1, getMaxSequences())) ||
      failed(expectAtLeast(*this, "C1", "max_outputs", 1, getMaxOutputs())))
    return failure();
  int64_t larger = std::max<int64_t>(getMaxSequences(), getMaxOutputs());
  if (larger > tokens)
    return emitOpError("C1: expected max_sequences and max_outputs of at most ")
           << tokens << ", found " << larger;
  for (Operation &op : getBody().front())
    if (!isa<PortOp, WorkspaceOp, GetWeightOp, GetCacheOp, PeersOp, LaunchOp>(
            op))
      return op.emitOpError("C2: does not belong into a mla.program");
  return success();
}

LogicalResult PortOp::verify() {
  for (size_t i = 0; i < plan::portCount; ++i)
    if (getName() == StringRef(plan::portName(static_cast<plan::Port>(i))))
      return success();
  return emitOpError("C1: expected a port of the plan, found ")
         << getNameAttr();
}

LogicalResult WorkspaceOp::verify() {
  if (auto offset = getOffset();
      offset && (int64_t(*offset) < 0 || *offset % 64))
    return emitOpError(
               "C1: expected an offset that is a multiple of 64, found ")
           << int64_t(*offset);
  return success();
}

LogicalResult LaunchOp::verify() {
  SmallVector<StringRef> texts{getGrid()};
  for (Attribute scalar : getScalars())
    texts.push_back(cast<StringAttr>(scalar).getValue());
  if (auto bytes = getWeightBytes())
    texts.push_back(*bytes);
  for (StringRef text : texts)
    if (auto expr = plan::Expr::parse(std::string_view(text)); !expr.ok())
      return emitOpError("C3: ") << expr.status().message();
  return success();
}

LogicalResult LaunchOp::verifySymbolUses(SymbolTableCollection &symbols) {
  auto program = (*this)->getParentOfType<ProgramOp>();
  Operation *root = program ? program->getParentOp() : nullptr;
  auto kernels = root ? symbols.lookupSymbolIn<ModuleOp>(
                            root, StringAttr::get(getContext(), "kernels"))
                      : ModuleOp();
  Operation *kernel =
      kernels ? symbols.lookupSymbolIn(kernels, getKernelAttr().getAttr())
              : nullptr;
  auto access =
      kernel ? kernel->getAttrOfType<ArrayAttr>("mla.access") : ArrayAttr();
  if (!access)
    return emitOpError("C1: no kernel named ")
           << getKernelAttr() << " in the module @kernels";
  for (Attribute entry : access) {
    auto text = dyn_cast<StringAttr>(entry);
    if (!text ||
        !llvm::is_contained({"read", "write", "readwrite"}, text.getValue()))
      return emitOpError("C1: expected mla.access of 'read', 'write' and "
                         "'readwrite', found ")
             << entry;
  }
  if (failed(expectSize(*this, "C2", "a number of operands", access.size(),
                        getOperands().size())))
    return failure();
  auto scalars = kernel->getAttrOfType<IntegerAttr>("mla.scalars");
  return expectSize(*this, "C2", "a number of scalars",
                    scalars ? scalars.getInt() : 0, getScalars().size());
}
