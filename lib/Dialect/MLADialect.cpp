//===- MLADialect.cpp - registration and generated code -------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mla;

#include "mla/Dialect/MLADialect.cpp.inc"
#include "mla/Dialect/MLAEnums.cpp.inc"
#define GET_ATTRDEF_CLASSES
#include "mla/Dialect/MLAAttrs.cpp.inc"
#define GET_OP_CLASSES
#include "mla/Dialect/MLAOps.cpp.inc"

void MLADialect::initialize() {
  registerTypes();
  registerAttributes();
  addOperations<
#define GET_OP_LIST
#include "mla/Dialect/MLAOps.cpp.inc"
      >();
}

void MLADialect::registerAttributes() {
  addAttributes<
#define GET_ATTRDEF_LIST
#include "mla/Dialect/MLAAttrs.cpp.inc"
      >();
}

bool mla::isRows(RankedTensorType type, int64_t rank) {
  return type.getRank() == rank && type.isDynamicDim(0) &&
         !type.getEncoding() &&
         llvm::none_of(type.getShape().drop_front(), ShapedType::isDynamic);
}
