//===- Lowering.h - what each target can lower ------------------*- C++ -*-===//
//
// Part of mla. A lowering says which op it is for, what it needs and what it costs;
// a target is a table of them. The choice is made by mla-select-lowering from these
// tables alone, so that it can be explained and nothing falls back silently: see
// select() below. To add a lowering, add its row to a table of its target
// (lib/Target/Host.cpp, lib/CodeGen/NVVM/*Lowerings.cpp).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_TARGET_LOWERING_H
#define MLA_TARGET_LOWERING_H

#include "mla/CostModel/CostModel.h"
#include "mla/Target/ExchangeBy.h"
#include "mla/Target/Gpu.h"
#include "mlir/IR/Operation.h"
#include "llvm/ADT/ArrayRef.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringRef.h"
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mla {

/// What a lowering lacks.
enum class Need {
  Instruction,  ///< of the target
  SharedMemory, ///< of a block
  Heads,        ///< their number
  CacheFormat,
  WeightFormat,
  Activations, ///< their format, --activations
  StepSize,    ///< tokens of the program
  Shape,       ///< other dimensions
  Exchange,    ///< between ranks
  Cost,        ///< another one is faster
  Override     ///< the command line names another one
};
llvm::StringRef needName(Need need); ///< "shared memory"

/// Why a lowering is not taken: "needs ..., found ...", and what would change it.
struct Refusal {
  Need need;
  std::string text;
  std::string remedy; ///< "--kv-cache-dtype bf16", or empty

  /// Both, the remedy in parentheses.
  std::string full() const;
};

/// One of the programs of a plan. Each op is lowered for each of them.
struct Program {
  std::string name;  ///< "step8", "prefill2048"
  int64_t maxTokens; ///< of a step
  int64_t maxSequences;
  bool prompts = false; ///< few sequences with many tokens each
};
/// The programs for these bounds of a step, ascending (none: 16 and 256 on the host;
/// 1, 8, 64 and 2048). A GPU has two for more than
/// 64 tokens: prompts, and a token each of many sequences.
std::vector<Program> programsFor(const Machine &machine,
                                 llvm::ArrayRef<int64_t> stepTokens,
                                 int64_t maxSequences);

/// A machine that is compiled for, and what follows from it.
class TargetMachine {
public:
  /// An architecture ("sm_120a": the machine that stands for it), a shipped
  /// machine or a machine's file.
  static Result<std::unique_ptr<TargetMachine>> open(llvm::StringRef text);

  const Machine &machine() const { return model_.machine(); }
  const cost::Model &model() const { return model_; }
  const Gpu *gpu() const { return gpu_ ? &*gpu_ : nullptr; }
  const struct Target &target() const { return *target_; }

private:
  TargetMachine(const Machine &machine, const struct Target &target)
      : model_(machine), gpu_(gpuOf(machine)), target_(&target) {}
  cost::Model model_;
  std::optional<Gpu> gpu_;
  const struct Target *target_;
};

/// What a lowering is judged for.
struct LoweringSite {
  LoweringSite(const TargetMachine &on, Program program,
               int64_t maxContext = 131072, bool fp4Activations = false,
               ExchangeBy exchange = ExchangeBy::Cost)
      : model(on.model()), gpu(on.gpu()), program(std::move(program)),
        maxContext(maxContext), fp4Activations(fp4Activations),
        exchange(exchange) {}

  const cost::Model &model; ///< and with it the machine
  const Gpu *gpu;           ///< null on the host
  Program program;
  int64_t maxContext;
  bool fp4Activations; ///< --activations fp4
  ExchangeBy exchange; ///< --collectives

  const Machine &machine() const { return model.machine(); }
  /// The step that costs are compared for: as large as the program's.
  cost::Step step() const;
};

struct Lowering {
  llvm::StringRef name; ///< "linear_tile"; in full, "sm_120a.linear_tile"
  llvm::StringRef op;   ///< the op it lowers, "mla.linear"
  /// What it lacks, or nothing.
  std::optional<Refusal> (*refuses)(mlir::Operation *op,
                                    const LoweringSite &site);
  cost::Estimate (*cost)(mlir::Operation *op, const LoweringSite &site,
                         const cost::Step &step);
};

struct Target {
  llvm::StringRef name; ///< of an architecture
  /// Of those whose costs the model cannot tell apart (10%), the first is taken.
  llvm::ArrayRef<Lowering> lowerings;

  std::string fullName(const Lowering &lowering) const {
    return (name + "." + lowering.name).str();
  }
  const Lowering *find(llvm::StringRef name) const;
};

/// All targets: the host, and the GPUs whose table has been registered.
llvm::ArrayRef<Target> targets();
const Target *lookupTarget(llvm::StringRef name);
/// Gives the table to every GPU; select() refuses all for those that no code is
/// generated for. Once, at the start of a
/// program that compiles.
void registerGpuLowerings(llvm::ArrayRef<Lowering> lowerings);

/// The lowering with the full name `name` ("host.linear") and its target, or
/// null twice.
std::pair<const Target *, const Lowering *>
lookupLowering(llvm::StringRef name);

//===--- The choice -----------------------------------------------------------===//

/// `--lower OP=LOWERING`: both without prefix ("latent_attention=prefill").
struct Override {
  std::string op, lowering;
};

struct Candidate {
  const Lowering *lowering;
  /// Of those that are not refused for a need of their own.
  std::optional<cost::Estimate> estimate;
  /// Why it is not taken; none for the one that is.
  std::optional<Refusal> refusal;
};

struct Selection {
  /// The one that is taken first, then by cost, then those with a need.
  llvm::SmallVector<Candidate> candidates;
  const Candidate *chosen() const {
    return candidates.empty() || candidates.front().refusal
               ? nullptr
               : &candidates.front();
  }
};

/// Costs up to this many times the least are no more than it: the model is not better.
constexpr double withinError = 1.1;

/// Judges every lowering of `target` for `op`. An override decides where its
/// lowering has all it needs, else cost: the first in the table whose cost is within
/// a tenth of the least.
Selection select(const Target &target, mlir::Operation *op,
                 const LoweringSite &site,
                 llvm::ArrayRef<Override> overrides = {});

/// The attribute that holds an op's full lowering name, or a dictionary from
/// programs to names where they differ; and the one with the candidates of each
/// program, in words, where there was a choice.
constexpr llvm::StringLiteral loweringAttr = "lowering";
constexpr llvm::StringLiteral candidatesAttr = "candidates";

/// The full name chosen for `op` in the program `program`; empty if none was.
llvm::StringRef loweringOf(mlir::Operation *op, llvm::StringRef program);

/// True for ops that compute on rows and caches, which a target must lower;
/// false for declarations, for what makes values of them, and for launches.
bool isTensorLevelOp(mlir::Operation *op);

//===--- Needs that tables share ----------------------------------------------===//

/// Weights in f32, bf16 or f16: elements that stand alone.
std::optional<Refusal> needsPlainWeights(mlir::Operation *op,
                                         const LoweringSite &site);
/// A collective that exchanges nothing.
std::optional<Refusal> needsLocalCollective(mlir::Operation *op,
                                            const LoweringSite &site);
/// A kernel whose blocks take so much shared memory.
std::optional<Refusal> needsSharedMemory(int64_t bytes, const Gpu &gpu);
std::optional<Refusal> needsNothing(mlir::Operation *op,
                                    const LoweringSite &site);

} // namespace mla

#endif // MLA_TARGET_LOWERING_H
