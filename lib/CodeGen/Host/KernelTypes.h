//===- KernelTypes.h - integer vectors of host kernels ----------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_HOST_KERNELTYPES_H
#define MLA_LIB_CODEGEN_HOST_KERNELTYPES_H

#include "KernelBuilder.h"
#include "mlir/Dialect/Arith/IR/Arith.h"

namespace mla::host {

/// The type with as many lanes as `type` has and elements of `element`.
inline mlir::Type typeLike(mlir::Type type, mlir::Type element) {
  if (auto vector = mlir::dyn_cast<mlir::VectorType>(type))
    return mlir::VectorType::get(vector.getShape(), element);
  return element;
}

/// The integer type of as many lanes as `type` has.
inline mlir::Type integersLike(mlir::Type type, unsigned bits) {
  return typeLike(type, mlir::IntegerType::get(type.getContext(), bits));
}

/// The constant `v` in every lane of the integer type `type`.
inline mlir::Value integerLike(mlir::ImplicitLocOpBuilder &b, mlir::Type type,
                               int64_t v) {
  mlir::Attribute attr =
      b.getIntegerAttr(mlir::getElementTypeOrSelf(type), v);
  if (auto vector = mlir::dyn_cast<mlir::VectorType>(type))
    attr = mlir::DenseElementsAttr::get(vector, attr);
  return mlir::arith::ConstantOp::create(b, mlir::cast<mlir::TypedAttr>(attr));
}

} // namespace mla::host

#endif // MLA_LIB_CODEGEN_HOST_KERNELTYPES_H
