//===- GraphBuilder.h - the step function under construction ----*- C++ -*-===//
//
// Part of mla. Helpers that make one op for one Hugging Face module and place
// it under that module's path; Attention.cpp and MoE.cpp write the layers with
// them. A path has no "model." in front: "layers.3.self_attn.q_a_proj".
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_IMPORT_GRAPHBUILDER_H
#define MLA_LIB_IMPORT_GRAPHBUILDER_H

#include "Weights.h"
#include "mlir/IR/Builders.h"

namespace mla {

class GraphBuilder {
public:
  GraphBuilder(mlir::ModuleOp module, const ModelConfig &config,
               WeightTable &weights)
      : module(module), config(config), weights(weights),
        builder(module.getContext()), declarations(module.getBodyRegion()) {}

  /// Builds the whole of @step; Import.cpp.
  void buildStep();

private:
  /// Attention of layer `layer` on normed rows; Attention.cpp.
  mlir::Value attention(int64_t layer, mlir::Value x);
  /// Writes the keys and values of `x` and returns the cache.
  mlir::Value expandedCache(const std::string &path, mlir::Value x);
  /// The positions that layer `layer` looks at; none without an indexer.
  mlir::Value selection(int64_t layer, const std::string &path, mlir::Value x,
                        mlir::Value queryLatent);

  /// The MLP or experts of layer `layer` on normed rows; MoE.cpp.
  mlir::Value feedForward(int64_t layer, mlir::Value x);
  mlir::Value mlp(const std::string &path, mlir::Value x, int64_t width);
  mlir::Value experts(const std::string &path, mlir::Value x);

  /// One op a module.
  mlir::Value linear(const std::string &path, mlir::Value x, int64_t outputs,
                     WeightRole role = WeightRole::Linear);
  mlir::Value rmsNorm(const std::string &path, mlir::Value x, double eps);
  mlir::Value rope(const std::string &path, mlir::Value x, int64_t headDim,
                   int64_t offset, bool interleaved);
  mlir::Value add(const std::string &path, mlir::Value a, mlir::Value b);
  /// Declares the cache `path`, writes `parts` into it and returns it.
  mlir::Value writeCache(const std::string &path, CacheKind kind,
                         mlir::ValueRange parts);

  mlir::Value weight(WeightOp declaration);
  mlir::Value vector(const std::string &path, int64_t size,
                     llvm::StringRef suffix = ".weight");

  mlir::Location at(llvm::StringRef path);
  mlir::RankedTensorType rows(int64_t width);

  mlir::ModuleOp module;
  const ModelConfig &config;
  WeightTable &weights;
  mlir::OpBuilder builder;      ///< inside @step
  mlir::OpBuilder declarations; ///< of caches
  mlir::Value batch, rotary;
  mlir::Value selected; ///< by the last layer that ran an indexer
};

} // namespace mla

#endif // MLA_LIB_IMPORT_GRAPHBUILDER_H
