//===- MLATypes.cpp - weights, caches, buffers ----------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Plan/Expr.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/DialectImplementation.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;
using namespace mla;

/// Parses the name of a storage format.
static FailureOr<Format> parseFormatKeyword(AsmParser &parser) {
  SMLoc loc = parser.getCurrentLocation();
  StringRef keyword;
  if (parser.parseKeyword(&keyword))
    return failure();
  if (auto format = parseFormat(std::string_view(keyword)))
    return *format;
  parser.emitError(loc, "expected a storage format, found '") << keyword << "'";
  return failure();
}

static StringRef nameOf(Format format) { return StringRef(formatName(format)); }

//===----------------------------------------------------------------------===//
// WeightType
//===----------------------------------------------------------------------===//

Type WeightType::parse(AsmParser &parser) {
  SmallVector<int64_t> shape;
  if (parser.parseLess() ||
      parser.parseDimensionList(shape, /*allowDynamic=*/false))
    return {};
  auto format = parseFormatKeyword(parser);
  if (failed(format) || parser.parseGreater())
    return {};
  return parser.getChecked<WeightType>(parser.getContext(), shape, *format);
}

void WeightType::print(AsmPrinter &printer) const {
  printer << "<";
  for (int64_t d : getShape())
    printer << d << "x";
  printer << nameOf(getFormat()) << ">";
}

LogicalResult WeightType::verify(function_ref<InFlightDiagnostic()> emitError,
                                 ArrayRef<int64_t> shape, Format format) {
  if (shape.empty() || shape.size() > 3)
    return emitError() << "a weight has 1 to 3 dimensions, found "
                       << shape.size();
  for (int64_t d : shape)
    if (d < 1 || d > (int64_t(1) << 31))
      return emitError() << "a dimension of a weight is from 1 to 2^31, found "
                         << d;
  if (format == Format::I32 || format == Format::FP8E4M3)
    return emitError() << nameOf(format) << " is no storage format of a weight";
  int64_t group = scaleGroup(format);
  if (group > 1 && shape.size() < 2)
    return emitError() << nameOf(format) << " is a storage format of matrices, "
                       << "found 1 dimension";
  if (group > 1 && format != Format::FP8Block && shape.back() % group)
    return emitError() << nameOf(format) << " needs columns in groups of "
                       << group << ", found " << shape.back();
  return success();
}

//===----------------------------------------------------------------------===//
// CacheType
//===----------------------------------------------------------------------===//

Type CacheType::parse(AsmParser &parser) {
  StringRef keyword;
  SMLoc loc = parser.getCurrentLocation();
  if (parser.parseLess() || parser.parseKeyword(&keyword))
    return {};
  auto kind = symbolizeCacheKind(keyword);
  if (!kind) {
    parser.emitError(loc, "expected 'expanded', 'latent' or 'index', found '")
        << keyword << "'";
    return {};
  }
  SmallVector<int64_t, 1> shape;
  if (parser.parseComma() ||
      parser.parseDimensionList(shape, /*allowDynamic=*/false))
    return {};
  if (shape.size() != 1) {
    parser.emitError(loc, "expected one width, found ") << shape.size();
    return {};
  }
  auto format = parseFormatKeyword(parser);
  if (failed(format) || parser.parseGreater())
    return {};
  return parser.getChecked<CacheType>(parser.getContext(), *kind, shape[0],
                                      *format);
}

void CacheType::print(AsmPrinter &printer) const {
  printer << "<" << stringifyCacheKind(getKind()) << ", " << getWidth() << "x"
          << nameOf(getFormat()) << ">";
}

LogicalResult CacheType::verify(function_ref<InFlightDiagnostic()> emitError,
                                CacheKind kind, int64_t width, Format format) {
  if (width < 1 || width > (int64_t(1) << 24))
    return emitError() << "the width of a cache is from 1 to 2^24, found "
                       << width;
  if (!elementBytes(format) || format == Format::I32)
    return emitError() << nameOf(format) << " is no storage format of a cache";
  return success();
}

//===----------------------------------------------------------------------===//
// BufferType
//===----------------------------------------------------------------------===//

Type BufferType::parse(AsmParser &parser) {
  SmallVector<StringAttr> shape;
  auto parseDim = [&]() -> ParseResult {
    std::string text;
    if (parser.parseString(&text))
      return failure();
    shape.push_back(StringAttr::get(parser.getContext(), text));
    return success();
  };
  if (parser.parseLess() ||
      parser.parseCommaSeparatedList(AsmParser::Delimiter::Square, parseDim) ||
      parser.parseComma())
    return {};
  auto format = parseFormatKeyword(parser);
  if (failed(format) || parser.parseGreater())
    return {};
  return parser.getChecked<BufferType>(parser.getContext(), shape, *format);
}

void BufferType::print(AsmPrinter &printer) const {
  printer << "<[";
  llvm::interleaveComma(getShape(), printer, [&](StringAttr dim) {
    printer << "\"" << dim.getValue() << "\"";
  });
  printer << "], " << nameOf(getFormat()) << ">";
}

LogicalResult BufferType::verify(function_ref<InFlightDiagnostic()> emitError,
                                 ArrayRef<StringAttr> shape, Format format) {
  for (StringAttr dim : shape)
    if (auto expr = plan::Expr::parse(std::string_view(dim.getValue()));
        !expr.ok())
      return emitError() << expr.status().message();
  if (!elementBytes(format))
    return emitError() << nameOf(format) << " is no element type of a buffer";
  return success();
}

#define GET_TYPEDEF_CLASSES
#include "mla/Dialect/MLATypes.cpp.inc"

void MLADialect::registerTypes() {
  addTypes<
#define GET_TYPEDEF_LIST
#include "mla/Dialect/MLATypes.cpp.inc"
      >();
}
