//===- StepCost.h - the time of a step from its graph -----------*- C++ -*-===//
//
// Part of mla. What the ops of a rank take by the cost model, for the lowerings
// that would be chosen, and what its exchanges with other ranks take. --explain and
// the choice of a layout (Layouts.h) ask it.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_STEPCOST_H
#define MLA_LIB_DRIVER_STEPCOST_H

#include "ExchangeCounts.h"
#include "mla/Dialect/MLA.h"
#include "mla/Target/Lowering.h"
#include "mlir/IR/BuiltinOps.h"
#include <array>
#include <map>
#include <string>
#include <vector>

namespace mla {

/// Ops of a step function that every lowering treats alike.
struct OpGroup {
  mlir::Operation *op = nullptr; ///< the first
  int64_t count = 0;
};

/// The step function of a module, its ops in order and in groups. The module has to
/// outlive it.
class StepGraph {
public:
  explicit StepGraph(mlir::ModuleOp module);

  llvm::ArrayRef<OpGroup> groups() const { return groups_; }
  /// Each op with the number of its group.
  llvm::ArrayRef<std::pair<mlir::Operation *, unsigned>> order() const { return order_; }
  ExchangeCounts exchanges() const;

private:
  std::vector<OpGroup> groups_;
  std::vector<std::pair<mlir::Operation *, unsigned>> order_;
};

/// Whether the op waits for other ranks, or stands for a wait (local collectives).
bool isCollective(mlir::Operation *op);

/// What ops but collectives take.
struct WorkCost {
  double weights = 0;   ///< linears, head, kv_b
  double attention = 0; ///< scores, values, combining, indexer
  double experts = 0;   ///< router, choice, experts
  double small = 0;     ///< norms, cache writes, embedding, sums
  double weightBytes = 0, cacheBytes = 0;
  int64_t launches = 0;           ///< of collectives, one each
  std::vector<double> ofGroup;    ///< one op of each group, with gaps behind launches
  std::vector<std::string> notes; ///< what cannot be lowered, or not yet

  double seconds() const { return weights + attention + experts + small; }
};

/// Where a step is costed: `on` has the lowerings, `site` its program.
struct StepSite {
  const TargetMachine &on;
  LoweringSite site;
  std::vector<Override> overrides;
};

/// Ops without a lowering count for nothing, with a note.
WorkCost workOf(const StepGraph &graph, const StepSite &at, const cost::Step &step);

/// Why the graph cannot be lowered in all of `programs`, or "". Collectives but those
/// that a layout brings are not asked: every layout has them.
std::string layoutRefusal(const StepGraph &graph, const StepSite &at,
                          llvm::ArrayRef<Program> programs);

/// How all exchanges of a step are done.
enum class ExchangeMethod {
  Nccl,
  OneShot,
  TwoShot,
  Fused,     ///< sums with residual and norm in one kernel
  Overlapped ///< each in the fastest way, beside work that does not depend on it
};
llvm::StringRef exchangeName(ExchangeMethod method);
/// The methods in the order in which they are reported; whether a method is for the
/// graph that mla-fuse-collectives makes; whether a plan may use it.
llvm::ArrayRef<ExchangeMethod> exchangeMethods();
bool isOfFusedGraph(ExchangeMethod method);
bool isAllowed(ExchangeMethod method, ExchangeBy by);

struct ExchangeCost {
  double seconds = 0; ///< that the step is longer for them
  double floor = 0;   ///< bytes over the link's rate
};

/// Error: the machine's file has no figures for the method. `tokens` of a step. Rows
/// that are summed and merged pass in 16 bits between kernels; all else, and what NCCL
/// takes, in f32.
Result<ExchangeCost> exchangesOf(const StepGraph &graph, const WorkCost &work,
                                 const cost::Model &model, int64_t tokens,
                                 ExchangeMethod method,
                                 ExchangeBy by = ExchangeBy::Cost);

/// A step by its fastest method, and with each.
struct StepCost {
  WorkCost work;        ///< of the graph of that method
  ExchangeCost exchange;
  double gaps = 0;      ///< between launches
  std::string method;   ///< "": one rank, or no figures
  std::map<std::string, double> exchanges, totals; ///< with each method
  std::string missing;  ///< why there is no method
  double total() const { return work.seconds() + gaps + exchange.seconds; }
};

/// `fused` is null for one rank. `launches`: of the plan, which is that of `fused` where
/// there is one, if it is known.
StepCost stepCost(const StepGraph &plain, const StepGraph *fused, const StepSite &at,
                  const cost::Model &model, const cost::Step &step,
                  std::optional<int64_t> launches);

} // namespace mla

#endif // MLA_LIB_DRIVER_STEPCOST_H
