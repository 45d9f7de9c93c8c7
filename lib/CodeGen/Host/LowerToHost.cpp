//===- LowerToHost.cpp - ops to launches ----------------------------------===//
//
// Part of mla. Walks the step function in order; each op makes (or finds) its
// kernels and appends launches. Values of the function map one to one to
// buffers of the program.
//
//===----------------------------------------------------------------------===//
#include "Kernels.h"
#include "lib/CodeGen/Emit/ProgramWriter.h"
#include "mla/CodeGen/Host/Passes.h"
#include "mla/Target/Lowering.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"
#include "mlir/Dialect/Math/IR/Math.h"
#include "mlir/Dialect/MemRef/IR/MemRef.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "mlir/Dialect/Vector/IR/VectorOps.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace mla {
#define GEN_PASS_DEF_LOWERTOHOSTPASS
#include "mla/CodeGen/Host/Passes.h.inc"
} // namespace mla

using namespace mla;

namespace {

WeightType weightType(Value v) { return cast<WeightType>(v.getType()); }

host::MatrixShape matrix(Value weight) {
  WeightType type = weightType(weight);
  unsigned rank = type.getRank();
  return {type.getFormat(), type.getDim(rank - 2), type.getDim(rank - 1)};
}

/// Lowers the step function into one program.
class ProgramLowering : public ProgramWriter {
public:
  ProgramLowering(ProgramOp program, ModuleOp kernels)
      : ProgramWriter(program, kernels), program(program) {}

  LogicalResult lower(func::FuncOp step);

private:
  ProgramOp program;

  LogicalResult lowerOp(Operation *op);
  void lowerLinear(Operation *op, Value x, ValueRange weights,
                   ValueRange results);
  void lowerExperts(Operation *op, Value x, Value indices, Value weights,
                    Value gate, Value up, Value down, Value shared, Value out);
  void lowerMoE(MoEOp op);
  void exchange(Operation *op, plan::Collective kind, StringRef count,
                bool local, Value x, Value y);
  void exchange(Operation *op, plan::Collective kind, StringRef count, Value x,
                Value to, int64_t width);
  void lowerSumAndNorm(AllReduceRMSNormOp op);
  void lowerMerge(MergeAttentionOp op);
  /// Where the positions of a batch are: the step's, or a mla.shard_batch's.
  Value positionsOf(Value batch) {
    Value own = get(batch);
    return own ? own : positions();
  }
  /// Attention of either kind: `items` work items a token of the kernel for
  /// the cache's type and the width of the selection (0: none).
  template <typename Op>
  void
  lowerAttention(Op op, int64_t items,
                 function_ref<std::string(CacheType, int64_t selected)> kernel);

  host::KernelSite site(Operation *op) { return {kernels, op->getLoc()}; }
  Format format(Value weight) { return weightType(weight).getFormat(); }

  /// The program's value for a value of the function.
  Value get(Value v) { return mapped.lookup(v); }
};

void ProgramLowering::lowerLinear(Operation *op, Value x, ValueRange weights,
                                  ValueRange results) {
  SmallVector<host::MatrixShape> segments;
  SmallVector<Value> operands{x};
  int64_t grid = 0;
  for (auto [w, y] : llvm::zip(weights, results)) {
    segments.push_back(matrix(w));
    grid += host::rowBlocks(segments.back().rows);
    operands.append({w, y});
  }
  launch(op, host::linear(site(op), segments), std::to_string(grid), operands,
         {"tokens"});
}

void ProgramLowering::lowerExperts(Operation *op, Value x, Value indices,
                                   Value weights, Value gate, Value up,
                                   Value down, Value shared, Value out) {
  int64_t experts = weightType(gate).getDim(0);
  // The first expert of the rank's group, if the ranks have different ones.
  std::string first;
  if (auto ranks = op->getAttrOfType<IntegerAttr>("group_ranks"))
    first = "(ceildiv(rank + 1, " + std::to_string(ranks.getInt()) +
            ") - 1) * " + std::to_string(experts);
  bool part = !first.empty();
  auto topkText = cast<BufferType>(indices.getType()).getShape()[1].getValue();
  int64_t topk = std::stoll(topkText.str());
  host::MatrixShape gateShape = matrix(gate), downShape = matrix(down);
  std::string pairs = "tokens * " + std::to_string(topk);
  std::string slots = "min(" + pairs + ", " + std::to_string(experts) + ")";
  Value order = workspace({pairs}, Format::I32);
  Value active = workspace({slots}, Format::I32);
  Value offsets = workspace({slots + " + 1"}, Format::I32);
  Value count = workspace({"1"}, Format::I32);
  SmallVector<StringRef> grouped{"tokens"}, combined;
  if (part) {
    grouped.push_back(first);
    combined.push_back(first);
  }
  launch(op, host::moeGroup(site(op), experts, topk, part), "1",
         {indices, order, active, offsets, count}, grouped);
  Value h = workspace({pairs, std::to_string(gateShape.rows)}, Format::F32);
  auto grid = [&](int64_t rows) {
    return slots + " * " + std::to_string(host::rowBlocks(rows));
  };
  launch(op, host::moeGateUp(site(op), gateShape, format(up), topk),
         grid(gateShape.rows), {x, order, active, offsets, count, gate, up, h});
  Value y = workspace({pairs, std::to_string(downShape.rows)}, Format::F32);
  launch(op, host::moeDown(site(op), downShape), grid(downShape.rows),
         {h, order, active, offsets, count, down, y});
  SmallVector<Value> operands{y, weights};
  if (shared)
    operands.push_back(shared);
  if (part)
    operands.push_back(indices);
  operands.push_back(out);
  launch(op,
         host::moeCombine(site(op), downShape.rows, topk, !!shared,
                          part ? experts : 0),
         "tokens", operands, combined);
}

void ProgramLowering::lowerMoE(MoEOp op) {
  RoutingAttr routing = op.getRouting();
  int64_t experts = op.getNumExperts();
  std::string topk = std::to_string(routing.getTopk());
  Value x = get(op.getX()), logits = get(op.getLogits());
  if (!logits) {
    logits = inner(op.getResult(), ".logits",
                   {"tokens", std::to_string(experts)}, Format::F32);
    lowerLinear(op, x, {get(op.getRouter())}, {logits});
  }
  Value indices =
      inner(op.getResult(), ".experts", {"tokens", topk}, Format::I32);
  Value weights =
      inner(op.getResult(), ".weights", {"tokens", topk}, Format::F32);
  std::optional<Format> biasFormat;
  SmallVector<Value> operands{logits};
  if (op.getBias()) {
    biasFormat = format(op.getBias());
    operands.push_back(get(op.getBias()));
  }
  operands.append({indices, weights});
  launch(op, host::route(site(op), routing, experts, biasFormat), "tokens",
         operands);
  Value shared;
  if (auto parts = op.getShared(); !parts.empty()) {
    host::MatrixShape gate = matrix(parts[0]), down = matrix(parts[2]);
    Value inner = workspace({"tokens", std::to_string(gate.rows)}, Format::F32);
    launch(op, host::gatedLinear(site(op), gate, format(parts[1])),
           std::to_string(host::rowBlocks(gate.rows)),
           {x, get(parts[0]), get(parts[1]), inner}, {"tokens"});
    shared = workspace({"tokens", std::to_string(down.rows)}, Format::F32);
    lowerLinear(op, inner, {get(parts[2])}, {shared});
  }
  lowerExperts(op, x, indices, weights, get(op.getGate()), get(op.getUp()),
               get(op.getDown()), shared, result(op.getResult()));
}

template <typename Op>
void ProgramLowering::lowerAttention(
    Op op, int64_t items,
    function_ref<std::string(CacheType, int64_t selected)> kernel) {
  SmallVector<Value> operands{get(op.getQ()), positionsOf(op.getBatch()),
                              sequence(), pageTable(), get(op.getCache())};
  int64_t selected = 0;
  if (op.getSelected()) {
    selected = rowWidth(op.getSelected());
    operands.push_back(get(op.getSelected()));
  }
  for (Value v : op->getResults())
    operands.push_back(result(v));
  SmallVector<StringRef> scalars{"pages"};
  std::optional<std::string> scale = cacheScale(get(op.getCache()));
  if (scale)
    scalars.push_back(*scale);
  launch(op, kernel(cast<CacheType>(op.getCache().getType()), selected),
         "tokens * " + std::to_string(items), operands, scalars);
}

/// What the ranks have of `x` becomes `y`, of `count` rows; `local`: without them.
void ProgramLowering::exchange(Operation *op, plan::Collective kind,
                               StringRef count, bool local, Value x, Value y) {
  Value to = mapped.contains(y) ? get(y) : result(y);
  if (local)
    return launch(op, host::repeat(site(op), rowWidth(x), rowWidth(y)), count,
                  {get(x), to});
  exchange(op, kind, count, x, to, rowWidth(y));
}

/// Into the buffer `to`, whose rows have `width` values.
void ProgramLowering::exchange(Operation *op, plan::Collective kind,
                               StringRef count, Value x, Value to,
                               int64_t width) {
  launch(op, host::collective(site(op), kind), "1", {get(x), to},
         {count, std::to_string(rowWidth(x)), std::to_string(width)});
}

/// Three launches: the host's collectives are the runtime's.
void ProgramLowering::lowerSumAndNorm(AllReduceRMSNormOp op) {
  int64_t width = rowWidth(op.getX());
  Value sum = result(op.getSum()), reduced = sum;
  if (op.getResidual()) {
    reduced = workspace({"tokens", std::to_string(width)}, Format::F32);
    reduced.getDefiningOp<WorkspaceOp>().setValue(originOf(op) +
                                                  "/all_reduce:0");
  }
  exchange(op, plan::Collective::AllReduce, "tokens", op.getX(), reduced, width);
  if (op.getResidual())
    launch(op, host::add(site(op), width), "tokens",
           {get(op.getResidual()), reduced, sum});
  launch(op,
         host::rmsNorm(site(op), width, format(op.getWeight()),
                       op.getEps().convertToDouble()),
         "tokens", {sum, get(op.getWeight()), result(op.getNormed())});
}

void ProgramLowering::lowerMerge(MergeAttentionOp op) {
  int64_t ranks = op.getRanks(), heads = int64_t(op.getHeads()) / ranks;
  SmallVector<Value> parts{get(op.getX()), get(op.getLse())};
  // What has come from the ranks lies as what is sent to them.
  if (!op.getLocal())
    for (unsigned i : {0U, 1U}) {
      std::string width = std::to_string(rowWidth(op->getOperand(i)));
      Value all = inner(op.getResult(), i == 0 ? ".parts" : ".lses",
                        {"tokens", width}, Format::F32);
      exchange(op, plan::Collective::AllToAll, "tokens", op->getOperand(i), all,
               rowWidth(op->getOperand(i)));
      parts[i] = all;
    }
  launch(op,
         host::mergeAttention(site(op), heads, rowWidth(op.getResult()) / heads,
                              ranks),
         "tokens * " + std::to_string(heads),
         {parts[0], parts[1], result(op.getResult())});
}

LogicalResult ProgramLowering::lowerOp(Operation *op) {
  auto rows = [](Value v) { return rowWidth(v); };
  auto one = [](int64_t n) { return std::to_string(n); };
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](GetWeightOp o) {
        mapped[o.getResult()] = b.clone(*op)->getResult(0);
        return success();
      })
      .Case([&](GetCacheOp o) {
        mapped[o.getResult()] = b.clone(*op)->getResult(0);
        return success();
      })
      .Case([&](EmbeddingOp o) {
        host::MatrixShape table = matrix(o.getTable());
        bool part = o.getRanks().has_value();
        std::string first = "rank * " + one(table.rows);
        launch(op, host::embedding(site(op), table, part), "tokens",
               {get(o.getIds()), get(o.getTable()), result(o.getResult())},
               part ? ArrayRef<StringRef>(first) : ArrayRef<StringRef>());
        return success();
      })
      .Case([&](RMSNormOp o) {
        launch(op,
               host::rmsNorm(site(op), rows(o.getX()), format(o.getWeight()),
                             o.getEps().convertToDouble()),
               "tokens",
               {get(o.getX()), get(o.getWeight()), result(o.getResult())});
        return success();
      })
      .Case([&](LayerNormOp o) {
        launch(op,
               host::layerNorm(site(op), rows(o.getX()), format(o.getWeight()),
                               format(o.getBias()),
                               o.getEps().convertToDouble()),
               "tokens",
               {get(o.getX()), get(o.getWeight()), get(o.getBias()),
                result(o.getResult())});
        return success();
      })
      .Case([&](LinearOp o) {
        lowerLinear(op, get(o.getX()), {get(o.getWeight())},
                    {result(o.getResult())});
        return success();
      })
      .Case([&](JoinedLinearOp o) {
        SmallVector<Value> weights, results;
        for (auto [w, y] : llvm::zip(o.getWeights(), o.getResults())) {
          weights.push_back(get(w));
          results.push_back(result(y));
        }
        lowerLinear(op, get(o.getX()), weights, results);
        return success();
      })
      .Case([&](GatedLinearOp o) {
        host::MatrixShape gate = matrix(o.getGate());
        launch(op, host::gatedLinear(site(op), gate, format(o.getUp())),
               one(host::rowBlocks(gate.rows)),
               {get(o.getX()), get(o.getGate()), get(o.getUp()),
                result(o.getResult())},
               {"tokens"});
        return success();
      })
      .Case([&](SwiGLUOp o) {
        launch(op, host::swiglu(site(op), rows(o.getGate())), "tokens",
               {get(o.getGate()), get(o.getUp()), result(o.getResult())});
        return success();
      })
      .Case([&](AddOp o) {
        launch(op, host::add(site(op), rows(o.getLhs())), "tokens",
               {get(o.getLhs()), get(o.getRhs()), result(o.getResult())});
        return success();
      })
      .Case([&](SplitOp o) {
        SmallVector<int64_t> widths;
        SmallVector<Value> operands{get(o.getX())};
        for (Value part : o.getResults()) {
          widths.push_back(rows(part));
          operands.push_back(result(part));
        }
        launch(op, host::split(site(op), widths), "tokens", operands);
        return success();
      })
      .Case([&](LMHeadOp o) {
        host::MatrixShape w = matrix(o.getWeight());
        std::string vocab = one(w.rows);
        // A rank's part of the vocabulary is gathered first.
        bool whole = llvm::any_of(o->getUsers(), llvm::IsaPred<func::ReturnOp>);
        Value logits = whole
                           ? port("logits", {"outputs", vocab}, Format::F32)
                           : workspace({"outputs", vocab}, Format::F32);
        mapped[o.getResult()] = logits;
        launch(op, host::lmHead(site(op), w), one(host::rowBlocks(w.rows)),
               {get(o.getX()), get(o.getWeight()),
                port("outputs", {"outputs"}, Format::I32), logits},
               {"outputs"});
        return success();
      })
      .Case([&](AllReduceOp o) {
        exchange(op, plan::Collective::AllReduce, "tokens", o.getLocal(),
                 o.getX(), o.getResult());
        return success();
      })
      .Case([&](AllReduceRMSNormOp o) {
        lowerSumAndNorm(o);
        return success();
      })
      .Case([&](AllGatherOp o) {
        for (auto [x, all] : llvm::zip(o.getXs(), o.getAlls())) {
          bool logits =
              llvm::any_of(all.getUsers(), llvm::IsaPred<func::ReturnOp>);
          if (logits)
            mapped[all] =
                port("logits", {"outputs", one(rows(all))}, Format::F32);
          exchange(op, plan::Collective::AllGather,
                   logits ? "outputs" : "tokens", o.getLocal(), x, all);
        }
        return success();
      })
      .Case([&](RotaryEmbeddingOp o) {
        launch(op,
               host::rotaryEmbedding(site(op), o.getFrequencies(),
                                     o.getFactor().convertToDouble()),
               "tokens",
               {positionsOf(o.getBatch()), result(o.getResult())});
        return success();
      })
      .Case([&](RopeOp o) {
        launch(op,
               host::rope(site(op), rows(o.getX()), o.getHeadDim(),
                          o.getOffset(), rows(o.getRotary()),
                          o.getInterleaved()),
               "tokens",
               {get(o.getX()), get(o.getRotary()), result(o.getResult())});
        return success();
      })
      .Case([&](ShardBatchOp o) {
        SmallVector<Value> operands{positionsOf(o.getBatch())};
        for (Value batch : o.getResults())
          operands.push_back(mapped[batch] =
                                 inner(batch, "", {"tokens"}, Format::I32));
        launch(op, host::shardBatch(site(op), o.getRanks()), "tokens", operands,
               {"rank"});
        return success();
      })
      .Case([&](CacheWriteOp o) {
        Value cache = get(o.getCache());
        mapped[o.getResult()] = cache;
        SmallVector<int64_t> widths;
        SmallVector<Value> operands{positionsOf(o.getBatch()), sequence(),
                                    pageTable(), cache};
        for (Value part : o.getParts()) {
          widths.push_back(rows(part));
          operands.push_back(get(part));
        }
        launch(op,
               host::cacheWrite(site(op), widths,
                                cast<CacheType>(cache.getType()).getFormat()),
               "tokens", operands, {"pages"});
        return success();
      })
      .Case([&](LatentCacheWriteOp o) {
        Value cache = get(o.getCache());
        mapped[o.getResult()] = cache;
        int64_t rope = rows(o.getRotary());
        SmallVector<Value> operands{positionsOf(o.getBatch()),
                                    sequence(),
                                    pageTable(),
                                    get(o.getX()),
                                    get(o.getNorm()),
                                    get(o.getRotary()),
                                    cache};
        SmallVector<StringRef> scalars{"pages"};
        std::optional<std::string> scale = cacheScale(cache);
        if (scale) {
          operands.push_back(port("saturated", {"tokens"}, Format::I32));
          scalars.push_back(*scale);
        }
        launch(op,
               host::latentCacheWrite(
                   site(op), rows(o.getX()) - rope, rope, format(o.getNorm()),
                   cast<CacheType>(cache.getType()).getFormat(),
                   o.getEps().convertToDouble(), o.getInterleaved()),
               "tokens", operands, scalars);
        return success();
      })
      .Case([&](AbsorbQueryOp o) {
        int64_t latent = weightType(o.getKvB()).getDim(1);
        host::HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()),
                              rows(o.getRotary()), int64_t(o.getV()), latent};
        launch(op,
               host::absorbQuery(site(op), shape, format(o.getKvB()),
                                 o.getInterleaved()),
               one(shape.heads),
               {get(o.getQ()), get(o.getKvB()), get(o.getRotary()),
                result(o.getResult())},
               {"tokens"});
        return success();
      })
      .Case([&](ExpandValueOp o) {
        int64_t latent = weightType(o.getKvB()).getDim(1);
        host::HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()), 0,
                              int64_t(o.getV()), latent};
        launch(op, host::expandValue(site(op), shape, format(o.getKvB())),
               one(shape.heads * host::rowBlocks(shape.v)),
               {get(o.getX()), get(o.getKvB()), result(o.getResult())},
               {"tokens"});
        return success();
      })
      .Case([&](IndexerOp o) {
        auto cache = cast<CacheType>(o.getCache().getType());
        launch(op,
               host::indexer(site(op), o.getHeads(), cache.getWidth(),
                             o.getTopk(), cache.getFormat(),
                             o.getScale().convertToDouble()),
               "tokens",
               {get(o.getQ()), get(o.getWeights()), positionsOf(o.getBatch()),
                sequence(), pageTable(), get(o.getCache()),
                result(o.getResult())},
               {"pages"});
        return success();
      })
      .Case([&](RouteOp o) {
        std::optional<Format> bias;
        SmallVector<Value> operands{get(o.getLogits())};
        if (o.getBias()) {
          bias = format(o.getBias());
          operands.push_back(get(o.getBias()));
        }
        operands.append({result(o.getIndices()), result(o.getWeights())});
        launch(op,
               host::route(site(op), o.getRouting(), rows(o.getLogits()), bias),
               "tokens", operands);
        return success();
      })
      .Case([&](ExpertsOp o) {
        lowerExperts(op, get(o.getX()), get(o.getIndices()),
                     get(o.getWeights()), get(o.getGate()), get(o.getUp()),
                     get(o.getDown()), Value(), result(o.getResult()));
        return success();
      })
      .Case([&](LatentAttentionOp o) {
        int64_t heads = o.getHeads(), latent = o.getKvLora();
        lowerAttention(o, host::headBlocks(heads),
                       [&](CacheType cache, int64_t selected) {
                         host::HeadShape shape{heads, 0,
                                               cache.getWidth() - latent, 0,
                                               latent};
                         return host::latentAttention(
                             site(op), shape, cache.getFormat(),
                             o.getScale().convertToDouble(), selected,
                             !!o.getLse());
                       });
        return success();
      })
      .Case([&](MergeAttentionOp o) {
        lowerMerge(o);
        return success();
      })
      .Case([&](AttentionOp o) {
        host::HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()),
                              int64_t(o.getRope()), int64_t(o.getV()), 0};
        lowerAttention(o, shape.heads, [&](CacheType cache, int64_t selected) {
          return host::attention(site(op), shape, cache.getFormat(),
                                 o.getScale().convertToDouble(), selected);
        });
        return success();
      })
      .Case([&](MoEOp o) {
        lowerMoE(o);
        return success();
      })
      .Default([](Operation *op) {
        return op->emitOpError("has no lowering to the host");
      });
}

LogicalResult ProgramLowering::lower(func::FuncOp step) {
  if (step.getNumArguments() != 2 || !step.getBody().hasOneBlock())
    return step.emitOpError("expected the arguments ids and batch and one "
                            "block");
  valueNames = nameValues(step.getBody().front());
  mapped[step.getArgument(0)] = port("ids", {"tokens"}, Format::I32);
  for (Operation &op : step.getBody().front().without_terminator()) {
    if (!isa<GetWeightOp, GetCacheOp>(op)) {
      StringRef lowering = loweringOf(&op, program.getSymName());
      if (!lowering.starts_with("host."))
        return op.emitOpError("expected a lowering to the host, found ")
               << (lowering.empty() ? "none" : lowering)
               << "; run mla-select-lowering first";
    }
    if (failed(lowerOp(&op)))
      return failure();
  }
  return checkLogits(step);
}

struct LowerToHostPass : mla::impl::LowerToHostPassBase<LowerToHostPass> {
  using LowerToHostPassBase::LowerToHostPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step) {
      module.emitOpError("expected a function @step");
      return signalPassFailure();
    }
    OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
    auto kernels = ModuleOp::create(b, module.getLoc(), "kernels");
    SmallVector<int64_t> buckets(stepTokens.begin(), stepTokens.end());
    if (buckets.empty())
      buckets = {16, 256};
    for (auto [i, tokens] : llvm::enumerate(buckets)) {
      if (tokens < 1 || (i > 0 && tokens <= buckets[i - 1])) {
        module.emitOpError("expected ascending, positive step-tokens, found ")
            << tokens;
        return signalPassFailure();
      }
      b.setInsertionPoint(step);
      auto program = ProgramOp::create(
          b, step.getLoc(), b.getStringAttr("step" + std::to_string(tokens)),
          tokens, std::min<int64_t>(tokens, maxSequences), tokens,
          IntegerAttr(), IntegerAttr());
      program.getBody().emplaceBlock();
      ProgramLowering lowering(program, kernels);
      if (failed(lowering.lower(step)))
        return signalPassFailure();
      numLaunches += lowering.launches;
    }
    numKernels += llvm::count_if(kernels.getOps<func::FuncOp>(), [](auto) { return true; });
    step.erase();
  }
};

} // namespace
