//===- ExplainGraph.h - the graph that a report is about --------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_EXPLAINGRAPH_H
#define MLA_LIB_DRIVER_EXPLAINGRAPH_H

#include "CacheFormat.h"
#include "Explain.h"
#include "Layouts.h"
#include "mla/Dialect/MLA.h"
#include "mla/Plan/Plan.h"
#include "mla/Target/Lowering.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/OwningOpRef.h"

namespace mla::explain {

/// The model as one rank has it. Diagnostics of passes are collected, since
/// most of them are what the report is to say.
class Graph {
public:
  explicit Graph(const Options &options);

  /// Reads the config, and headers where the model is a folder with weights;
  /// chooses the cache's format; imports, fuses, shares among the ranks.
  llvm::Error build();

  const Options &options;
  ModelConfig config;
  std::optional<Checkpoint> checkpoint;
  CacheChoice cache;
  int64_t ranks = 1;
  std::string ranksReason;
  RankLayout layout;
  /// How it was chosen; none on the host and where there are no kernels.
  std::optional<LayoutDecision> decision;
  std::unique_ptr<TargetMachine> on;
  /// Of a plan that is only laid out: `on`, or a GPU that code is generated for
  /// in place of one that it is not.
  std::unique_ptr<TargetMachine> standIn;
  /// Most tokens of a sequence in a plan, and what limits it.
  int64_t planContext = 1;
  std::string contextLimit;

  const Machine &machine() const { return on->machine(); }
  bool isHost() const { return machine().isHost(); }
  bool hasKernels() const { return !standIn; }
  /// Whose plan is laid out.
  const TargetMachine &planned() const { return standIn ? *standIn : *on; }
  /// The share with its caches in `format`, and without indexers where a plan's
  /// contexts do not need them; its exchanges as ops of their own or, with `join`, as
  /// mla-fuse-collectives leaves them. Null, with `problems`, if a pass fails.
  mlir::OwningOpRef<mlir::ModuleOp>
  withCache(Format format, std::vector<std::string> &problems, bool join = false);
  /// The plan with the cache in the chosen format, without machine code. None,
  /// with `problems`, if an op has no lowering.
  std::optional<plan::Plan> lower(std::vector<std::string> &problems);
  /// The programs that a plan has.
  std::vector<Program> programs() const;
  std::vector<Override> overrides() const;
  /// The options of its stages.
  PipelineOptions pipeline() const;

private:
  llvm::Error readModel();
  llvm::Error shareAmongRanks();
  /// Runs `build`'s passes; false, with `problems`, if one fails.
  bool run(mlir::ModuleOp module,
           llvm::function_ref<void(mlir::OpPassManager &)> build,
           std::vector<std::string> &problems);

  mlir::MLIRContext context{mlir::MLIRContext::Threading::DISABLED};
  mlir::OwningOpRef<mlir::ModuleOp> fused;  ///< before it is divided
  mlir::OwningOpRef<mlir::ModuleOp> module; ///< a rank's share
};

} // namespace mla::explain

#endif // MLA_LIB_DRIVER_EXPLAINGRAPH_H
