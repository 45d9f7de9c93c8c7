//===- Weights.h - the weights of a graph under construction ----*- C++ -*-===//
//
// Part of mla. Declares a `mla.weight` the first time a module path asks for
// it, in the format that the checkpoint holds. What does not fit is collected,
// so that one error can list everything, and the graph is built on with the
// expected type.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_IMPORT_WEIGHTS_H
#define MLA_LIB_IMPORT_WEIGHTS_H

#include "mla/Config/StoredWeight.h"
#include "mla/Dialect/MLA.h"
#include "mla/Import/Import.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/StringMap.h"

namespace mla {

class WeightTable {
public:
  WeightTable(mlir::ModuleOp module, const ModelConfig &config,
              const Checkpoint *checkpoint, const ImportOptions &options);

  /// Where declarations go from now on.
  void insertBefore(mlir::Operation *op) { builder.setInsertionPoint(op); }

  /// The weight of the module `path`, a path without "model.". `suffix` is what
  /// the tensor's name adds to the module's, ".weight" or ".bias" or nothing.
  WeightOp get(llvm::StringRef path, llvm::StringRef suffix,
               llvm::ArrayRef<int64_t> shape, WeightRole role);

  /// The stack of the weights `path`.0.`leaf`, `path`.1.`leaf`, ...
  WeightOp getStack(llvm::StringRef path, llvm::StringRef leaf, int64_t count,
                    llvm::ArrayRef<int64_t> shape);

  /// Whether the checkpoint holds `path`.weight; true if there is no
  /// checkpoint.
  bool holds(llvm::StringRef path) const;

  /// Everything that is missing or does not fit, as one error.
  llvm::Error takeErrors() const;

  /// Remarks and warnings about the tensors that no weight came from, and about
  /// formats that the config does not announce.
  void report(bool tiedHead);

private:
  /// Where a weight comes from: its format and the names of its tensors, values
  /// first.
  struct Source {
    Format format;
    llvm::SmallVector<std::string, 3> tensors;
    bool reciprocalGlobal = false;
    bool operator==(const Source &) const = default;
  };
  Source expected(const ModelWeight &weight) const;
  Source stored(const ModelWeight &weight);
  Source sourceOf(const ModelWeight &weight) {
    return finder ? stored(weight) : expected(weight);
  }
  WeightOp declare(const std::string &symbol, llvm::ArrayRef<int64_t> shape,
                   const Source &source);

  mlir::ModuleOp module;
  mlir::OpBuilder builder;
  const ModelConfig &config;
  std::optional<WeightFinder> finder; ///< none without a checkpoint
  ImportOptions options;
  llvm::StringMap<WeightOp> declared;
};

/// The Hugging Face name of the module `path`.
std::string huggingFaceModule(llvm::StringRef path);

} // namespace mla

#endif // MLA_LIB_IMPORT_WEIGHTS_H
