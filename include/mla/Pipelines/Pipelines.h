//===- Pipelines.h - the stages of the compiler -----------------*- C++ -*-===//
//
// Part of mla. Each stage is a list of passes that ends in one that verifies
// what the stage promises; Pipelines.cpp lists them in reading order. Import
// and emit read and write files, so their work is not done by passes, but they
// are stages like the others.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_PIPELINES_PIPELINES_H
#define MLA_PIPELINES_PIPELINES_H

#include "mla/Support/Format.h"
#include "mla/Target/ExchangeBy.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mlir {
class OpPassManager;
}

namespace mla {

/// In the order in which they run.
enum class Stage { Import, Fuse, Distribute, Collectives, Select, Lower, Emit };

struct StageInfo {
  Stage stage;
  llvm::StringLiteral name;        ///< of --stop-after
  llvm::StringLiteral description; ///< one line
};

llvm::ArrayRef<StageInfo> stages();
std::optional<Stage> parseStage(llvm::StringRef name);
llvm::StringRef stageName(Stage stage);

/// How several ranks divide a model, beside heads and inner columns.
struct RankLayout {
  /// Groups of ranks that have experts of their own; the ranks of a group divide
  /// the inner columns of each. 1: tensor parallel; as many as ranks: expert parallel.
  int64_t expertGroups = 1;
  bool shardDown = false;   ///< the projections to latents, q_a and kv_a
  bool shardRouter = false; ///< the routers
  bool shardCache = false;  ///< the caches, by token
};

/// What the stages need to know beside the module.
struct PipelineOptions {
  /// An architecture, a shipped machine, or a machine's file.
  std::string target = "host";
  /// OP=LOWERING each, to be taken instead of the fastest.
  std::vector<std::string> lower;
  bool fp4Activations = false; ///< 4 bits, where nvfp4 weights allow it
  bool fuse = true; ///< false: the plain graph goes on as it is, to compare
  /// Run the model together, divided so.
  int64_t ranks = 1;
  RankLayout layout;
  /// Collectives exchange nothing: one rank is measured alone.
  bool localCollectives = false;
  /// What may exchange rows on GPUs.
  ExchangeBy exchange = ExchangeBy::Cost;
  /// Of the latent caches; with fp8_e4m3 one scale a layer, or one for all.
  Format cacheFormat = Format::F32;
  std::vector<float> cacheScales;
  /// Bounds of a step, and with them of its scratch memory.
  int64_t maxStepTokens = 256;
  int64_t maxSequences = 64;
  int64_t maxPages = 1; ///< page numbers of one sequence
  int64_t maxContext = 1; ///< tokens of one sequence
  /// On a GPU: with kernels that choose tokens.
  bool sampling = true;
};

/// Tokens that a page number stands for, with a sharded cache on all ranks together,
/// and page numbers of a sequence of `context` tokens.
int64_t tokensOfPage(const PipelineOptions &options);
int64_t pagesFor(const PipelineOptions &options, int64_t context);

/// What follows after the front end has made the module.
void buildImportPipeline(mlir::OpPassManager &pm);
void buildFusePipeline(mlir::OpPassManager &pm, const PipelineOptions &options);
void buildDistributePipeline(mlir::OpPassManager &pm,
                             const PipelineOptions &options);
void buildCollectivesPipeline(mlir::OpPassManager &pm);
void buildSelectPipeline(mlir::OpPassManager &pm,
                         const PipelineOptions &options);
void buildLowerPipeline(mlir::OpPassManager &pm,
                        const PipelineOptions &options);

/// Most tokens of the programs that a plan has, ascending.
llvm::SmallVector<int64_t> stepTokens(const PipelineOptions &options);

/// The passes of `stage`; none for emit.
void buildPipeline(Stage stage, mlir::OpPassManager &pm,
                   const PipelineOptions &options);

/// Makes each stage known to mla-opt as a pipeline, e.g. `mla-fuse-pipeline`.
void registerPipelines();

} // namespace mla

#endif // MLA_PIPELINES_PIPELINES_H
