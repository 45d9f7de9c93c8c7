//===- StepCost.cpp - the time of a step from its graph -------------------===//
//
// Part of mla. Equal ops are costed once. What an op takes besides its kernels is
// the gap behind each launch; exchanges stand between ops, by the figures of the
// machine's file.
//
//===----------------------------------------------------------------------===//
#include "StepCost.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/MapVector.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/Support/StringSaver.h"

using namespace mlir;
using namespace mla;

/// Of a value that is summed or merged by kernels of the plan. NCCL takes the rows as
/// they are, in f32, and what is gathered stays exact.
static constexpr int64_t exchangedBytes = 2;

//===----------------------------------------------------------------------===//
// The graph
//===----------------------------------------------------------------------===//

/// Equal for ops that every lowering treats alike.
static std::string keyOf(Operation *op) {
  std::string key;
  llvm::raw_string_ostream out(key);
  out << op->getName();
  for (Type type : op->getOperandTypes())
    out << ' ' << type;
  out << op->getAttrDictionary();
  // Whether a neighbour does the work, on which costs of sums and norms depend.
  for (Value result : op->getResults())
    out << ' '
        << (result.hasOneUse()
                ? (*result.getUsers().begin())->getName().getStringRef()
                : StringRef("-"));
  for (Value operand : op->getOperands())
    if (Operation *producer = operand.getDefiningOp())
      out << ' ' << producer->getName() << operand.hasOneUse();
  return key;
}

StepGraph::StepGraph(ModuleOp module) {
  llvm::MapVector<StringRef, unsigned> known;
  llvm::BumpPtrAllocator allocator;
  llvm::StringSaver saver(allocator);
  module.lookupSymbol<func::FuncOp>("step").walk([&](Operation *op) {
    if (!isTensorLevelOp(op))
      return;
    auto [it, isNew] = known.insert({saver.save(keyOf(op)), unsigned(groups_.size())});
    if (isNew)
      groups_.push_back({op, 0});
    ++groups_[it->second].count;
    order_.push_back({op, it->second});
  });
}

bool mla::isCollective(Operation *op) {
  return isa<AllReduceOp, AllReduceRMSNormOp, AllGatherOp, MergeAttentionOp>(op);
}

ExchangeCounts StepGraph::exchanges() const {
  ExchangeCounts counts;
  for (size_t i = 0; i < order_.size(); ++i) {
    Operation *op = order_[i].first;
    counts.reduces += isa<AllReduceOp, AllReduceRMSNormOp>(op);
    counts.fused += isa<AllReduceRMSNormOp>(op);
    counts.gathers += isa<AllGatherOp>(op);
    counts.merges += isa<MergeAttentionOp>(op);
    if (!isCollective(op) || i + 1 == order_.size())
      continue;
    Operation *next = order_[i + 1].first;
    counts.overlaps += llvm::none_of(next->getOperands(), [&](Value v) {
      return v.getDefiningOp() == op;
    });
  }
  return counts;
}

//===----------------------------------------------------------------------===//
// Work
//===----------------------------------------------------------------------===//

/// The part of a step's time that an op belongs to; null for collectives, and for
/// what costs nothing of its own.
static double *partOf(Operation *op, WorkCost &work) {
  return llvm::StringSwitch<double *>(op->getName().stripDialect())
      .Cases({"linear", "joined_linear", "gated_linear", "lm_head",
              "absorb_query", "expand_value"},
             &work.weights)
      .Cases({"latent_attention", "indexer"}, &work.attention)
      .Cases({"moe", "experts", "route"}, &work.experts)
      .Cases({"all_reduce", "all_reduce_rms_norm", "all_gather", "merge_attention",
              "shard_batch"},
             nullptr)
      .Default(&work.small);
}

static std::string refusalOf(Operation *op, const Selection &selection) {
  std::string name = op->getName().getStringRef().str();
  if (selection.candidates.empty())
    return name + " has no lowering";
  return name + " " + selection.candidates.front().refusal->full();
}

WorkCost mla::workOf(const StepGraph &graph, const StepSite &at,
                     const cost::Step &step) {
  WorkCost work;
  for (const OpGroup &group : graph.groups()) {
    work.ofGroup.push_back(0);
    if (isCollective(group.op))
      work.launches += group.count;
    double *part = partOf(group.op, work);
    if (!part)
      continue;
    Selection selection = select(at.on.target(), group.op, at.site, at.overrides);
    const Candidate *chosen = selection.chosen();
    if (!chosen) {
      work.notes.push_back("without " + group.op->getName().getStringRef().str() +
                           ", which has no lowering");
      continue;
    }
    cost::Estimate each = chosen->lowering->cost(group.op, at.site, step);
    double count = double(group.count);
    *part += count * each.seconds;
    work.weightBytes += count * each.weightBytes;
    work.cacheBytes += count * each.cacheBytes;
    work.launches += group.count * each.launches;
    work.ofGroup.back() = each.seconds + double(each.launches) *
                                             at.site.machine().launchGapSeconds;
  }
  return work;
}

std::string mla::layoutRefusal(const StepGraph &graph, const StepSite &at,
                               ArrayRef<Program> programs) {
  for (const OpGroup &group : graph.groups()) {
    if (isCollective(group.op) && !isa<MergeAttentionOp>(group.op))
      continue;
    for (const Program &program : programs) {
      LoweringSite site = at.site;
      site.program = program;
      Selection selection = select(at.on.target(), group.op, site, at.overrides);
      if (!selection.chosen())
        return refusalOf(group.op, selection);
    }
  }
  return "";
}

//===----------------------------------------------------------------------===//
// Exchanges
//===----------------------------------------------------------------------===//

StringRef mla::exchangeName(ExchangeMethod method) {
  static constexpr StringLiteral names[] = {"nccl", "one_shot", "two_shot", "fused",
                                            "overlapped"};
  return names[size_t(method)];
}

ArrayRef<ExchangeMethod> mla::exchangeMethods() {
  using enum ExchangeMethod;
  static constexpr ExchangeMethod all[] = {Nccl, OneShot, TwoShot, Fused, Overlapped};
  return all;
}

bool mla::isOfFusedGraph(ExchangeMethod method) {
  return method == ExchangeMethod::Fused || method == ExchangeMethod::Overlapped;
}

bool mla::isAllowed(ExchangeMethod method, ExchangeBy by) {
  switch (by) {
  case ExchangeBy::Cost:
    return true;
  case ExchangeBy::Peers:
    return method != ExchangeMethod::Nccl;
  case ExchangeBy::Nccl: // whose kernels let nothing begin beside them
    return method == ExchangeMethod::Nccl;
  }
  llvm_unreachable("all are named");
}

/// Bytes that a rank has after a gather, or sends and has in a merge.
static int64_t gatheredBytes(Operation *op) {
  if (auto merge = dyn_cast<MergeAttentionOp>(op))
    return rowWidth(merge.getX()) * exchangedBytes + rowWidth(merge.getLse()) * 4;
  int64_t bytes = 0;
  for (Value to : cast<AllGatherOp>(op).getAlls())
    bytes += rowWidth(to) * 4;
  return bytes;
}

/// The faster of those that there are figures for.
static Result<cost::Estimate> fastest(llvm::ArrayRef<cost::Collective> methods,
                                      llvm::function_ref<Result<cost::Estimate>(
                                          cost::Collective)> time) {
  std::optional<Result<cost::Estimate>> best;
  for (cost::Collective method : methods) {
    Result<cost::Estimate> one = time(method);
    if (!best || (one.ok() && (!best->ok() || one->seconds < (*best)->seconds)))
      best = std::move(one);
  }
  return *std::move(best);
}

/// One exchange of `tokens` rows.
static Result<cost::Estimate> timeOf(Operation *op, const cost::Model &model,
                                     int64_t tokens, ExchangeMethod method,
                                     ExchangeBy by) {
  using cost::Collective;
  static constexpr Collective separate[] = {Collective::OneShot, Collective::TwoShot,
                                            Collective::Nccl};
  int64_t ranks = op->getAttrOfType<IntegerAttr>("ranks").getInt();
  ArrayRef<Collective> methods = separate;
  if (by == ExchangeBy::Peers)
    methods = methods.drop_back();
  Collective one = method == ExchangeMethod::Nccl      ? Collective::Nccl
                   : method == ExchangeMethod::OneShot ? Collective::OneShot
                                                       : Collective::TwoShot;
  if (!isOfFusedGraph(method))
    methods = one;
  if (isa<AllGatherOp, MergeAttentionOp>(op)) {
    int64_t bytes = tokens * gatheredBytes(op);
    return fastest(methods, [&](Collective with) {
      return model.allGather(with, ranks, bytes);
    });
  }
  int64_t width = rowWidth(op->getOperand(0));
  auto joined = dyn_cast<AllReduceRMSNormOp>(op);
  auto kernel = [&](int64_t rows) {
    return model.rows(tokens, width * 4 * rows).seconds +
           model.machine().launchGapSeconds;
  };
  auto reduce = [&](Collective with) {
    bool nccl = with == Collective::Nccl;
    auto one = model.allReduce(with, ranks, tokens * width * (nccl ? 4 : exchangedBytes));
    if (!one.ok())
      return one;
    // What other kernels of a plan do within theirs.
    if (nccl && addsResidual(op))
      one->seconds += kernel(3);
    // Of one token, what reads the rows norms them.
    if (joined && with != Collective::Fused && tokens > 1)
      one->seconds += kernel(2);
    return one;
  };
  if (method == ExchangeMethod::Fused && joined)
    return reduce(Collective::Fused);
  SmallVector<Collective> all(methods);
  if (joined && tokens > 1)
    all.push_back(Collective::Fused);
  return fastest(all, reduce);
}

Result<ExchangeCost> mla::exchangesOf(const StepGraph &graph, const WorkCost &work,
                                      const cost::Model &model, int64_t tokens,
                                      ExchangeMethod method, ExchangeBy by) {
  ExchangeCost sum;
  std::vector<double> seconds(graph.groups().size());
  for (auto [i, group] : llvm::enumerate(graph.groups())) {
    if (!isCollective(group.op))
      continue;
    auto one = timeOf(group.op, model, tokens, method, by);
    if (!one.ok())
      return one.status();
    seconds[i] = one->seconds;
    sum.seconds += double(group.count) * one->seconds;
    sum.floor += double(group.count) * one->floorSeconds;
  }
  if (method != ExchangeMethod::Overlapped)
    return sum;
  cost::Timeline timeline;
  llvm::DenseMap<Operation *, size_t> going;
  double alone = 0; // the work without exchanges
  for (auto [op, group] : graph.order()) {
    for (Value operand : op->getOperands())
      if (auto it = going.find(operand.getDefiningOp()); it != going.end())
        timeline.wait(it->second);
    if (isCollective(op)) {
      going[op] = timeline.exchange(seconds[group]);
    } else {
      timeline.work(work.ofGroup[group]);
      alone += work.ofGroup[group];
    }
  }
  sum.seconds = std::max(timeline.end() - alone, 0.0);
  return sum;
}

/// What may exchange here: what the command line leaves, and NCCL alone where kernels
/// are refused for what they need.
static ExchangeBy exchangeByOf(const StepGraph &graph, const StepSite &at) {
  if (at.site.exchange != ExchangeBy::Cost)
    return at.site.exchange;
  for (const OpGroup &group : graph.groups()) {
    if (!isa<AllReduceOp, AllReduceRMSNormOp, AllGatherOp>(group.op))
      continue;
    Selection selection = select(at.on.target(), group.op, at.site, at.overrides);
    if (selection.chosen() &&
        llvm::none_of(selection.candidates, [](const Candidate &c) {
          return c.estimate && !c.lowering->name.ends_with("_nccl");
        }))
      return ExchangeBy::Nccl;
  }
  return ExchangeBy::Cost;
}

StepCost mla::stepCost(const StepGraph &plain, const StepGraph *fused,
                       const StepSite &at, const cost::Model &model,
                       const cost::Step &step, std::optional<int64_t> launches) {
  double gap = at.site.machine().launchGapSeconds;
  StepCost best;
  best.work = workOf(plain, at, step);
  WorkCost ofPlain = best.work, ofFused;
  if (fused)
    ofFused = workOf(*fused, at, step);
  int64_t unseen =
      launches ? *launches - (fused ? ofFused : ofPlain).launches : 0;
  auto gapsOf = [&](const WorkCost &work) {
    return double(work.launches + unseen) * gap;
  };
  best.gaps = gapsOf(best.work);
  best.work.launches += unseen;
  if (!fused)
    return best;
  ExchangeBy by = exchangeByOf(*fused, at);
  for (ExchangeMethod method : exchangeMethods()) {
    if (!isAllowed(method, by))
      continue;
    bool isFused = isOfFusedGraph(method);
    const WorkCost &work = isFused ? ofFused : ofPlain;
    auto exchange =
        exchangesOf(isFused ? *fused : plain, work, model, step.tokens, method, by);
    if (!exchange.ok()) {
      if (best.missing.empty())
        best.missing = exchange.status().message();
      continue;
    }
    double total = work.seconds() + gapsOf(work) + exchange->seconds;
    std::string name = exchangeName(method).str();
    best.exchanges[name] = exchange->seconds;
    best.totals[name] = total;
    if (best.method.empty() || total < best.total()) {
      best.work = work;
      best.work.launches += unseen;
      best.gaps = gapsOf(work);
      best.exchange = *exchange;
      best.method = std::move(name);
    }
  }
  return best;
}
