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

#include "mla/Dialect/MLA.h"
#include "mla/Import/Import.h"
#include "mlir/IR/Builders.h"
#include "llvm/ADT/BitVector.h"
#include "llvm/ADT/StringMap.h"

namespace mla {

/// What may be assumed of the format of a weight.
enum class WeightRole {
  Plain,  ///< norms, biases, the embedding: elements that stand alone
  Exempt, ///< router, lm_head, ...: quantized only if the file says so
  Linear  ///< quantized where the config says so
};

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

  /// Remarks and warnings about the tensors that no weight came from.
  void reportUnused(bool tiedHead);

private:
  /// Where a weight comes from: its format and the name of its main tensor.
  struct Stored {
    Format format;
    std::string tensor;
  };
  Stored expected(const std::string &module, llvm::StringRef suffix,
                  WeightRole role) const;
  Stored stored(const std::string &module, llvm::StringRef suffix,
                llvm::ArrayRef<int64_t> shape, WeightRole role);
  Stored storedFp8(const std::string &module, llvm::ArrayRef<int64_t> shape,
                   const TensorInfo &weight);
  Stored storedNvfp4(const std::string &module, llvm::ArrayRef<int64_t> shape,
                     const TensorInfo &weight, const char *globalScale);
  Stored storedInt4(const std::string &module, llvm::ArrayRef<int64_t> shape,
                    const TensorInfo &weight);

  const TensorInfo *use(const std::string &name);
  /// `tensor` has one of `dtypes` and the shape `shape`, or a problem is noted.
  bool check(const TensorInfo &tensor, llvm::ArrayRef<llvm::StringRef> dtypes,
             llvm::ArrayRef<int64_t> shape);
  /// The tensor `name` exists and passes check(), or a problem is noted.
  void require(const std::string &name, llvm::ArrayRef<llvm::StringRef> dtypes,
               llvm::ArrayRef<int64_t> shape);
  bool groupsDivide(const TensorInfo &tensor, int64_t columns, int64_t group);
  WeightOp declare(const std::string &symbol, llvm::ArrayRef<int64_t> shape,
                   const Stored &stored);

  mlir::ModuleOp module;
  mlir::OpBuilder builder;
  const ModelConfig &config;
  const Checkpoint *checkpoint;
  ImportOptions options;
  llvm::StringMap<WeightOp> declared;
  llvm::BitVector used; ///< of checkpoint->tensors()
  std::vector<std::string> missing;
  std::vector<std::string> misfits;
};

/// The Hugging Face name of the module `path`.
std::string huggingFaceModule(llvm::StringRef path);
/// `name` without the prefix of multimodal checkpoints.
llvm::StringRef textName(llvm::StringRef name);

} // namespace mla

#endif // MLA_LIB_IMPORT_WEIGHTS_H
