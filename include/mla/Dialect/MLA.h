//===- MLA.h - the mla dialect ----------------------------------*- C++ -*-===//
//
// Part of mla. Types, attributes and ops; see docs/generated/dialect.md.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_DIALECT_MLA_H
#define MLA_DIALECT_MLA_H

#include "mla/Support/Format.h"
#include "mlir/Bytecode/BytecodeOpInterface.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Dialect.h"
#include "mlir/IR/OpDefinition.h"
#include "mlir/IR/OpImplementation.h"
#include "mlir/IR/RegionKindInterface.h"
#include "mlir/IR/SymbolTable.h"
#include "mlir/Interfaces/InferTypeOpInterface.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"

namespace mlir::func {
class FuncOp;
} // namespace mlir::func

namespace mla {
/// True if `type` is `rank` dimensions with only the first (tokens) dynamic.
bool isRows(mlir::RankedTensorType type, int64_t rank);
/// The width of rows, N of tensor<?xNxf32>.
inline int64_t rowWidth(mlir::Value rows) {
  return llvm::cast<mlir::RankedTensorType>(rows.getType()).getDimSize(1);
}

/// Attributes of a module that several ranks run together: how many (i64), and how
/// the model is divided, for people (a string). A module for one rank has neither.
constexpr llvm::StringLiteral ranksAttr = "mla.ranks", layoutAttr = "mla.layout";
/// As many as ranks (i64) if the tokens of the caches are spread over them
/// (mla.shard_batch); else it is not there.
constexpr llvm::StringLiteral pageRanksAttr = "mla.page_ranks";
/// Most ranks that a model is shared among.
constexpr int64_t maxRanks = 1024;
} // namespace mla

#include "mla/Dialect/MLADialect.h.inc"
#include "mla/Dialect/MLAEnums.h.inc"
#define GET_ATTRDEF_CLASSES
#include "mla/Dialect/MLAAttrs.h.inc"
#define GET_TYPEDEF_CLASSES
#include "mla/Dialect/MLATypes.h.inc"
#define GET_OP_CLASSES
#include "mla/Dialect/MLAOps.h.inc"

namespace mla {
/// "layers.3.self_attn.o_proj": the name in an op's location, or the op's own.
std::string originOf(mlir::Operation *op);
/// A name for every result of the ops of a step function, by which plans for
/// different targets can be compared: origin, op, number of the result, and from
/// the second on which of those with this name it is.
llvm::DenseMap<mlir::Value, std::string> nameValues(mlir::Block &block);
/// The location of an op whose results take the place of `replaced`, one by one:
/// nameValues() gives them the names of those. `parts` are ops that it replaces
/// beside those of `replaced`, the first of which gives it its own name.
mlir::Location replacingLoc(llvm::ArrayRef<mlir::Operation *> parts,
                            mlir::ValueRange replaced);
/// Whether something is added to the sum of `reduce`, mla.all_reduce or
/// mla.all_reduce_rms_norm.
bool addsResidual(mlir::Operation *reduce);
/// An error unless the step returns the logits of a head, perhaps gathered, which
/// go to their port.
llvm::LogicalResult checkLogits(mlir::func::FuncOp step);
} // namespace mla

#endif // MLA_DIALECT_MLA_H
