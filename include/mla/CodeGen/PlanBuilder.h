//===- PlanBuilder.h - from launches to a plan ------------------*- C++ -*-===//
//
// Part of mla. What the emitters of all targets share.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CODEGEN_PLANBUILDER_H
#define MLA_CODEGEN_PLANBUILDER_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"
#include "mla/Plan/Plan.h"
#include "mlir/IR/BuiltinOps.h"
#include "llvm/Support/Error.h"

namespace mla {

struct PlanOptions {
  plan::Checkpoint::Kind weights = plan::Checkpoint::Kind::Safetensors;
  int64_t seed = 0; ///< of synthetic weights
  std::string producer;
  /// How ranks exchange; the rest is the module's.
  plan::Ranks ranks = {};
};

/// The plan of a lowered module, without kernels and tokenizer.
llvm::Expected<plan::Plan> buildPlan(mlir::ModuleOp module,
                                     const ModelConfig &config,
                                     const Checkpoint *checkpoint,
                                     const PlanOptions &options,
                                     plan::Target target);

/// Copies the tokenizer's files from the model's folder and writes plan.json.
llvm::Error writePlan(plan::Plan &plan, const ModelConfig &config,
                      const std::filesystem::path &folder);

/// Writes `bytes` to `path` and sets `hash` to their hash.
llvm::Error writeCode(const std::filesystem::path &path, llvm::StringRef bytes,
                      uint64_t &hash);

} // namespace mla

#endif // MLA_CODEGEN_PLANBUILDER_H
