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

//===----------------------------------------------------------------------===//
// ShardAttr: <[384, 2048, 7168] dim 0 in 2 by 4, dim 1 in 4>
//===----------------------------------------------------------------------===//

static int64_t valueOf(ArrayRef<int64_t> dims, ArrayRef<int64_t> values,
                       int64_t dim) {
  for (auto [d, value] : llvm::zip(dims, values))
    if (d == dim)
      return value;
  return 1;
}

int64_t ShardAttr::countOf(int64_t dim) const {
  return valueOf(getDims(), getCounts(), dim);
}

int64_t ShardAttr::strideOf(int64_t dim) const {
  return valueOf(getDims(), getStrides(), dim);
}

Attribute ShardAttr::parse(AsmParser &parser, Type) {
  SmallVector<int64_t> whole, dims, counts, strides;
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(
          AsmParser::Delimiter::Square,
          [&] { return parser.parseInteger(whole.emplace_back()); }) ||
      parser.parseCommaSeparatedList([&]() -> ParseResult {
        strides.push_back(1);
        if (parser.parseKeyword("dim") ||
            parser.parseInteger(dims.emplace_back()) ||
            parser.parseKeyword("in") ||
            parser.parseInteger(counts.emplace_back()))
          return failure();
        if (succeeded(parser.parseOptionalKeyword("by")))
          return parser.parseInteger(strides.back());
        return success();
      }) ||
      parser.parseGreater())
    return {};
  return ShardAttr::get(parser.getContext(), whole, dims, counts, strides);
}

void ShardAttr::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getWhole(), printer);
  printer << "] ";
  for (auto [i, dim] : llvm::enumerate(getDims())) {
    printer << (i ? ", " : "") << "dim " << dim << " in " << getCounts()[i];
    if (getStrides()[i] != 1)
      printer << " by " << getStrides()[i];
  }
  printer << ">";
}

bool mla::isRows(RankedTensorType type, int64_t rank) {
  return type.getRank() == rank && type.isDynamicDim(0) &&
         !type.getEncoding() &&
         llvm::none_of(type.getShape().drop_front(), ShapedType::isDynamic);
}
