//===- Import.h - from a model folder to a graph ----------------*- C++ -*-===//
//
// Part of mla. The front end: what config.json and the safetensors headers say
// becomes a module of plain mla ops, one for each Hugging Face module, nothing
// fused. The module holds the weights and caches as symbols and one function,
// @step, which computes logits for the tokens of a step.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_IMPORT_IMPORT_H
#define MLA_IMPORT_IMPORT_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"
#include "llvm/Support/Error.h"

namespace mla {

struct ImportOptions {
  /// Without a checkpoint: weights that the config's quantization does not name
  /// are in bf16, as synthetic weights are made, instead of the config's dtype.
  bool syntheticWeights = false;
};

/// Builds the graph of `config`. With a `checkpoint`, every weight takes the
/// format that the file holds and its shape is checked; all tensors that are
/// missing or do not fit are reported in one error. Tensors that the graph does
/// not use are counted in remarks and, where nothing explains them, warnings,
/// both through the context's diagnostics.
llvm::Expected<mlir::OwningOpRef<mlir::ModuleOp>>
importModel(mlir::MLIRContext &context, const ModelConfig &config,
            const Checkpoint *checkpoint, const ImportOptions &options = {});

} // namespace mla

#endif // MLA_IMPORT_IMPORT_H
