//===- ProgramWriter.cpp - launches of a program --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "ProgramWriter.h"

using namespace mlir;
using namespace mla;

Value ProgramWriter::port(StringRef name, ArrayRef<StringRef> shape,
                            Format format) {
  Value &v = ports[name];
  if (!v) {
    SmallVector<StringAttr> dims;
    for (StringRef d : shape)
      dims.push_back(b.getStringAttr(d));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(b.getInsertionBlock());
    v = PortOp::create(b, b.getUnknownLoc(),
                       BufferType::get(b.getContext(), dims, format), name);
  }
  return v;
}

std::optional<std::string> ProgramWriter::cacheScale(Value cache) {
  auto get = cache.getDefiningOp<GetCacheOp>();
  auto module = kernels->getParentOfType<ModuleOp>();
  auto scale = module.lookupSymbol<CacheOp>(get.getName()).getScale();
  if (!scale)
    return std::nullopt;
  return std::to_string(scale->bitcastToAPInt().getZExtValue());
}

Value ProgramWriter::workspace(ArrayRef<std::string> shape, Format format) {
  SmallVector<StringAttr> dims;
  for (const std::string &d : shape)
    dims.push_back(b.getStringAttr(d));
  return WorkspaceOp::create(b, b.getUnknownLoc(),
                             BufferType::get(b.getContext(), dims, format),
                             IntegerAttr(), StringAttr());
}

Value ProgramWriter::inner(Value v, StringRef suffix,
                           ArrayRef<std::string> shape, Format format) {
  Value buffer = workspace(shape, format);
  buffer.getDefiningOp<WorkspaceOp>().setValue(
      (valueNames.lookup(v) + suffix).str());
  return buffer;
}

Value ProgramWriter::result(Value v) {
  auto type = cast<RankedTensorType>(v.getType());
  Format format =
      type.getElementType().isF32() ? Format::F32 : Format::I32;
  Value buffer =
      workspace({"tokens", std::to_string(type.getDimSize(1))}, format);
  buffer.getDefiningOp<WorkspaceOp>().setValue(valueNames.lookup(v));
  return mapped[v] = buffer;
}

void ProgramWriter::launch(Operation *op, StringRef kernel, StringRef grid,
                           ValueRange operands, ArrayRef<StringRef> scalars,
                           StringRef weightBytes) {
  LaunchOp::create(
      b, op->getLoc(), FlatSymbolRefAttr::get(b.getContext(), kernel),
      b.getStringAttr(grid), operands, b.getStrArrayAttr(scalars),
      b.getStringAttr(originOf(op)),
      weightBytes.empty() ? StringAttr() : b.getStringAttr(weightBytes));
  ++launches;
}
