//===- LowerToNVVM.cpp - ops to launches on a GPU -------------------------===//
//
// Part of mla. Walks the step function in order; each op makes (or finds) its
// kernels and appends launches.
//
//===----------------------------------------------------------------------===//
#include "LowerToNVVM.h"
#include "AttentionPrefill.h"
#include "SideBySide.h"
#include "mla/CodeGen/NVVM/Passes.h"
#include "mla/Quant/Pack.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/StringSwitch.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace mla {
#define GEN_PASS_DEF_LOWERTONVVMPASS
#include "mla/CodeGen/NVVM/Passes.h.inc"
} // namespace mla

using namespace mla;
using namespace mla::nvvm;

//===----------------------------------------------------------------------===//
// Weights, launches
//===----------------------------------------------------------------------===//

Value ProgramLowering::view(Value v, ViewLayout layout, Format format,
                            int64_t first, int64_t blocks, int64_t blockRows,
                            int64_t stride, bool transposed) {
  auto get = v.getDefiningOp<GetWeightOp>();
  auto attr = ViewAttr::get(b.getContext(), layout,
                            StringRef(formatName(format)), first, blocks,
                            blockRows, stride, transposed);
  Value &known = views[{get.getNameAttr(), attr}];
  if (!known) {
    Operation *copy = b.clone(*get);
    copy->setAttr("view", attr);
    known = copy->getResult(0);
  }
  return known;
}

Value ProgramLowering::packed(Value v) {
  MatrixShape m = matrix(v);
  return view(v, ViewLayout::Packed, m.format, 0, 1, m.rows, m.rows, false);
}

Value ProgramLowering::rows(Value v) {
  WeightType type = weightType(v);
  int64_t count = type.getRank() == 1 ? 1 : type.getDim(type.getRank() - 2);
  return view(v, ViewLayout::Rows, type.getFormat(), 0, 1, count, count, false);
}

void ProgramLowering::launch(Operation *op, const Kernel &kernel,
                             ValueRange operands,
                             ArrayRef<std::string> scalars,
                             const std::string &weightBytes) {
  SmallVector<StringRef> texts(scalars.begin(), scalars.end());
  ProgramWriter::launch(op, kernel.name, kernel.grid, operands, texts,
                        weightBytes);
}

//===----------------------------------------------------------------------===//
// Norms that wait for a consumer, sums that a producer does
//===----------------------------------------------------------------------===//

Value ProgramLowering::get(Value v) {
  if (Norm norm = putOff.lookup(v)) {
    putOff.erase(v);
    launch(norm.op,
           rmsNorm(site(norm.op), rowWidth(norm.x), formatOf(norm.weight),
                   norm.eps),
           {get(norm.x), rows(norm.weight), result(v)}, {});
  }
  return mapped.lookup(v);
}

ProgramLowering::Input ProgramLowering::input(Value v) {
  // For one token each block norms the row itself, which costs it little; for
  // many it is done where rows are packed.
  if (Norm norm = putOff.lookup(v);
      norm && (maxTokens() == 1 || isLarge()))
    return {get(norm.x), norm};
  return {get(v), nullptr};
}

Value ProgramLowering::takeResidual(Value v, Value &result) {
  if (!v.hasOneUse())
    return {};
  auto sum = dyn_cast<AddOp>(*v.getUsers().begin());
  if (!sum)
    return {};
  Value other = sum.getLhs() == v ? sum.getRhs() : sum.getLhs();
  if (other == v || !mapped.contains(other))
    return {};
  done.insert(sum);
  result = sum.getResult();
  return mapped.lookup(other);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// No launch: what reads the step's positions computes the rank's own of them, since
/// positions are inputs that kernels may read before they wait for others.
LogicalResult ProgramLowering::lowerShare(ShardBatchOp op) {
  for (Operation *user : op->getUsers()) {
    auto attention = dyn_cast<LatentAttentionOp>(user);
    auto write = dyn_cast<LatentCacheWriteOp>(user);
    if ((attention && attention.getBatch() == op.getRead()) ||
        (write && write.getBatch() == op.getWrite()))
      continue;
    return user->emitOpError("expected to read at `read` or to write at `write` of "
                             "a mla.shard_batch, which is all that ")
           << gpu.name << " does with them";
  }
  return success();
}

void ProgramLowering::lowerCacheWrite(LatentCacheWriteOp op) {
  Value cache = get(op.getCache());
  mapped[op.getResult()] = cache;
  int64_t rope = rowWidth(op.getRotary());
  SmallVector<Value> operands{positions(),
                              sequence(),
                              pageTable(),
                              get(op.getX()),
                              rows(op.getNorm()),
                              get(op.getRotary()),
                              cache};
  SmallVector<std::string> scalars{"pages"};
  if (std::optional<std::string> scale = cacheScale(cache)) {
    operands.push_back(port("saturated", {"tokens"}, Format::I32));
    scalars.push_back(*scale);
  }
  int64_t ranks = 1;
  if (auto some = op.getBatch().getDefiningOp<ShardBatchOp>()) {
    ranks = some.getRanks();
    scalars.push_back("rank");
  }
  Kernel kernel =
      latentCacheWrite(site(op), rowWidth(op.getX()) - rope, rope,
                       formatOf(op.getNorm()),
                       cast<CacheType>(cache.getType()).getFormat(),
                       op.getEps().convertToDouble(), op.getInterleaved(), ranks);
  flushCacheWrite();
  cacheWrite = {op, kernel, operands, scalars};
  if (maxTokens() != 1)
    flushCacheWrite();
}

void ProgramLowering::flushCacheWrite() {
  if (cacheWrite)
    launch(cacheWrite->op, cacheWrite->kernel, cacheWrite->operands,
           cacheWrite->scalars);
  cacheWrite.reset();
}

void ProgramLowering::declare(GetCacheOp op) {
  Value &cache = mapped[op.getResult()];
  if (!cache)
    cache = b.clone(*op)->getResult(0);
}

void ProgramLowering::takeCacheWrite(Operation *op) {
  while ((op = op->getNextNode()) && !isa<LatentAttentionOp>(op)) {
    auto write = dyn_cast<LatentCacheWriteOp>(op);
    if (!write || done.contains(op))
      continue;
    auto cache = write.getCache().getDefiningOp<GetCacheOp>();
    if (!cache || !mapped.contains(write.getX()) ||
        !mapped.contains(write.getRotary()))
      return;
    declare(cache);
    done.insert(write);
    return lowerCacheWrite(write);
  }
}

void ProgramLowering::launchWithCacheWrite(Operation *op, const Kernel &kernel,
                                           SmallVector<Value> operands,
                                           SmallVector<std::string> scalars,
                                           const std::string &weightBytes) {
  std::optional<Kernel> both;
  if (cacheWrite)
    both = sideBySide(site(op), kernel, cacheWrite->kernel);
  if (!both) {
    flushCacheWrite();
    launch(op, kernel, operands, scalars, weightBytes);
    return;
  }
  operands.append(cacheWrite->operands);
  scalars.append(cacheWrite->scalars);
  cacheWrite.reset();
  launch(op, *both, operands, scalars, weightBytes);
}

static HeadShape headShape(ExpandValueOp op) {
  return {int64_t(op.getHeads()), int64_t(op.getNope()), 0, int64_t(op.getV()),
          weightType(op.getKvB()).getDim(1)};
}

void ProgramLowering::lowerAttention(LatentAttentionOp op) {
  flushCacheWrite();
  Value cache = get(op.getCache());
  AttentionSpec spec = attentionSpec(op, where);
  Value y = result(op.getResult());
  Value all = op.getLse() ? result(op.getLse()) : Value();
  SmallVector<std::string> scalars{"pages"};
  if (std::optional<std::string> scale = cacheScale(cache))
    scalars.push_back(*scale);
  StringRef form = chosen(op);
  auto split = llvm::StringSwitch<DecodeForm>(form)
                   .Case("split_kv_wide", DecodeForm::Wide)
                   .Case("split_kv_teams", DecodeForm::Teams)
                   .Case("split_kv_deep", DecodeForm::Deep)
                   .Default(DecodeForm::Narrow);
  AttentionKernels kernels;
  if (form == "prefill") {
    scalars.push_back("tokens");
    kernels = latentAttentionPrefill(site(op), spec);
  } else if (form == "simple") {
    kernels = latentAttentionSimple(site(op), spec);
  } else {
    kernels = latentAttentionSplit(site(op), spec, split);
  }
  Value partial = workspace({kernels.partialRows, text(kernels.partialWidth)},
                            kernels.partialFormat);
  Value lse =
      workspace({kernels.lseRows, text(kernels.lseWidth)}, Format::F32);
  SmallVector<Value> operands{get(op.getQ()), positions(), sequence(), pageTable(),
                              cache, partial, lse, y};
  SmallVector<Value> combined{positions(), partial, lse, y};
  SmallVector<std::string> combinedScalars;
  if (op.getLse())
    for (SmallVector<Value> *list : {&operands, &combined})
      list->push_back(all);
  if (spec.ranks > 1)
    for (SmallVector<std::string> *list : {&scalars, &combinedScalars})
      list->push_back("rank");
  launch(op, kernels.first, operands, scalars);
  if (!kernels.combine)
    return;
  auto expand = op.getResult().hasOneUse()
                    ? dyn_cast<ExpandValueOp>(*op.getResult().getUsers().begin())
                    : ExpandValueOp();
  if (expand && canCombineInExpand(spec, split, headShape(expand), gpu))
    uncombined[op.getResult()] = {spec, split, partial, lse};
  else
    launch(op, *kernels.combine, combined, combinedScalars);
}

void ProgramLowering::lowerExpand(ExpandValueOp op) {
  HeadShape shape = headShape(op);
  Value values =
      view(op.getKvB(), ViewLayout::Packed, Format::BF16, shape.nope,
           shape.heads, shape.v, shape.nope + shape.v, false);
  std::string bytes = text(
      quant::packedBytes(Format::BF16, shape.heads * shape.v, shape.latent));
  Value x = get(op.getX());
  auto splits = uncombined.find(op.getX());
  if (splits == uncombined.end()) {
    launch(op, expandValue(site(op), shape, maxTokens()),
           {x, values, result(op.getResult())}, {"tokens"}, bytes);
    return;
  }
  auto [spec, form, partial, lse] = splits->second;
  launch(op, combineExpand(site(op), spec, form, shape),
         {positions(), partial, lse, x, values, result(op.getResult())}, {},
         bytes);
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

LogicalResult ProgramLowering::lowerOp(Operation *op) {
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](GetWeightOp) { return success(); }) // Views are made by users.
      .Case([&](GetCacheOp o) {
        declare(o);
        return success();
      })
      .Case([&](EmbeddingOp o) {
        MatrixShape table = matrix(o.getTable());
        bool part = o.getRanks().has_value();
        std::string first = "rank * " + text(table.rows);
        launch(op, embedding(site(op), table, part),
               {get(o.getIds()), rows(o.getTable()), result(o.getResult())},
               part ? ArrayRef<std::string>(first) : ArrayRef<std::string>());
        return success();
      })
      .Case([&](RMSNormOp o) {
        putOff[o.getResult()] = {op, o.getX(), o.getWeight(),
                                 o.getEps().convertToDouble()};
        return success();
      })
      .Case([&](LinearOp o) {
        Input x = input(o.getX());
        Value out = o.getResult();
        Value residual = takeResidual(out, out);
        lowerLinear(op, x, {o.getWeight()}, {result(out)}, residual);
        return success();
      })
      .Case([&](JoinedLinearOp o) {
        Input x = input(o.getX());
        // One launch for each run of weights of one format.
        SmallVector<Value> weights, results;
        auto flush = [&] {
          if (!weights.empty())
            lowerLinear(op, x, weights, results, {});
          weights.clear();
          results.clear();
        };
        for (auto [w, y] : llvm::zip(o.getWeights(), o.getResults())) {
          if (!weights.empty() && formatOf(weights[0]) != formatOf(w))
            flush();
          weights.push_back(w);
          results.push_back(result(y));
        }
        flush();
        return success();
      })
      .Case([&](GatedLinearOp o) {
        lowerLinear(op, input(o.getX()), {o.getGate(), o.getUp()},
                    {result(o.getResult())}, {}, /*gated=*/true);
        return success();
      })
      .Case([&](SwiGLUOp o) {
        launch(op, swiglu(site(op), rowWidth(o.getGate())),
               {get(o.getGate()), get(o.getUp()), result(o.getResult())}, {});
        return success();
      })
      .Case([&](AddOp o) {
        if (!done.contains(op))
          launch(op, add(site(op), rowWidth(o.getLhs())),
                 {get(o.getLhs()), get(o.getRhs()), result(o.getResult())}, {});
        return success();
      })
      .Case([&](SplitOp o) {
        SmallVector<int64_t> widths;
        SmallVector<Value> operands{get(o.getX())};
        for (Value part : o.getResults()) {
          widths.push_back(rowWidth(part));
          operands.push_back(result(part));
        }
        launch(op, split(site(op), widths), operands, {});
        return success();
      })
      .Case([&](LMHeadOp o) {
        lowerHead(o);
        return success();
      })
      .Case([&](RotaryEmbeddingOp o) {
        launch(op,
               rotaryEmbedding(site(op), o.getFrequencies(),
                               o.getFactor().convertToDouble()),
               {positions(), result(o.getResult())}, {});
        return success();
      })
      .Case([&](RopeOp o) {
        launch(op,
               rope(site(op), rowWidth(o.getX()), o.getHeadDim(), o.getOffset(),
                    rowWidth(o.getRotary()), o.getInterleaved()),
               {get(o.getX()), get(o.getRotary()), result(o.getResult())}, {});
        return success();
      })
      .Case([&](AllReduceOp o) {
        lowerReduce(o);
        return success();
      })
      .Case([&](AllReduceRMSNormOp o) {
        lowerReduceNorm(o);
        return success();
      })
      .Case([&](AllGatherOp o) {
        lowerGather(o);
        return success();
      })
      .Case([&](MergeAttentionOp o) {
        lowerMerge(o);
        return success();
      })
      .Case([&](ShardBatchOp o) { return lowerShare(o); })
      .Case([&](LatentCacheWriteOp o) {
        if (!done.contains(op))
          lowerCacheWrite(o);
        return success();
      })
      .Case([&](AbsorbQueryOp o) {
        int64_t latent = weightType(o.getKvB()).getDim(1);
        HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()),
                        rowWidth(o.getRotary()), int64_t(o.getV()), latent};
        if (maxTokens() == 1 && !cacheWrite)
          takeCacheWrite(op);
        // Transposed, kv_b cannot keep scales: bf16 whatever the file has.
        Value keys = view(o.getKvB(), ViewLayout::Packed, Format::BF16, 0,
                          shape.heads, shape.nope, shape.nope + shape.v, true);
        launchWithCacheWrite(
            op, absorbQuery(site(op), shape, o.getInterleaved(), maxTokens()),
            {get(o.getQ()), keys, get(o.getRotary()), result(o.getResult())},
            {"tokens"},
            text(quant::packedBytes(Format::BF16, shape.heads * latent,
                                    shape.nope)));
        return success();
      })
      .Case([&](ExpandValueOp o) {
        lowerExpand(o);
        return success();
      })
      .Case([&](LatentAttentionOp o) {
        lowerAttention(o);
        return success();
      })
      .Case([&](RouteOp o) {
        std::optional<Format> bias;
        SmallVector<Value> operands{get(o.getLogits())};
        if (o.getBias()) {
          bias = formatOf(o.getBias());
          operands.push_back(rows(o.getBias()));
        }
        operands.append({result(o.getIndices()), result(o.getWeights())});
        launch(op,
               route(site(op), o.getRouting(), rowWidth(o.getLogits()), bias),
               operands, {});
        return success();
      })
      .Case([&](ExpertsOp o) {
        lowerExperts(op, {get(o.getX()), nullptr}, {}, get(o.getIndices()),
                     get(o.getWeights()), rowWidth(o.getIndices()), o.getGate(),
                     o.getUp(), o.getDown(), {}, {}, result(o.getResult()));
        return success();
      })
      .Case([&](MoEOp o) {
        lowerMoE(o);
        return success();
      })
      .Default([&](Operation *op) {
        return op->emitOpError("has no lowering to ") << gpu.name;
      });
}

LogicalResult ProgramLowering::lower(func::FuncOp step) {
  if (failed(checkLogits(step)))
    return failure();
  if (step.getNumArguments() != 2 || !step.getBody().hasOneBlock())
    return step.emitOpError("expected the arguments ids and batch and one "
                            "block");
  Block &body = step.getBody().front();
  valueNames = nameValues(body);
  mapped[step.getArgument(0)] = port("ids", {"tokens"}, Format::I32);
  std::string prefix = (gpu.name + ".").str();
  for (Operation &op : body.without_terminator()) {
    if (!isa<GetWeightOp, GetCacheOp>(op)) {
      StringRef lowering = loweringOf(&op, where.program.name);
      if (!lowering.starts_with(prefix))
        return op.emitOpError("expected a lowering to ")
               << gpu.name << " for " << where.program.name << ", found "
               << (lowering.empty() ? "none" : lowering)
               << "; run mla-select-lowering first";
    }
    if (failed(lowerOp(&op)))
      return failure();
  }
  flushCacheWrite();
  return success();
}

namespace {
struct LowerToNVVMPass : mla::impl::LowerToNVVMPassBase<LowerToNVVMPass> {
  using LowerToNVVMPassBase::LowerToNVVMPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto on = TargetMachine::open(target);
    if (!on.ok()) {
      module.emitError(on.status().message());
      return signalPassFailure();
    }
    const Gpu *gpu = (*on)->gpu();
    if (!gpu || !gpu->canLower) {
      module.emitOpError("expected a GPU target that kernels are made for, "
                         "found '")
          << target << "'";
      return signalPassFailure();
    }
    auto step = module.lookupSymbol<func::FuncOp>("step");
    if (!step) {
      module.emitOpError("expected a function @step");
      return signalPassFailure();
    }
    for (auto [i, tokens] : llvm::enumerate(stepTokens))
      if (tokens < 1 || (i > 0 && tokens <= stepTokens[i - 1])) {
        module.emitOpError("expected ascending, positive step-tokens, found ")
            << int64_t(tokens);
        return signalPassFailure();
      }
    if (exchangeBlocks < 0 || exchangeBlocks > ExchangeLayout::maxBlocks) {
      module.emitOpError("expected exchange-blocks from 0 to ")
          << ExchangeLayout::maxBlocks << ", found " << int64_t(exchangeBlocks);
      return signalPassFailure();
    }
    OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
    auto kernels = ModuleOp::create(b, module.getLoc(), "kernels");
    int64_t mostOutputs = 1; ///< of the last program
    for (const Program &program :
         programsFor((*on)->machine(), stepTokens, maxSequences))
      if (failed(addProgram(step, kernels,
                            LoweringSite(**on, program, maxContext,
                                         activations == "fp4"))))
        return signalPassFailure();
      else
        mostOutputs = std::min(program.maxTokens, maxOutputs);
    if (sampling) {
      auto end = cast<func::ReturnOp>(step.getBody().front().getTerminator());
      numLaunches += addSampling(
          module, kernels, *gpu,
          cast<RankedTensorType>(end.getOperand(0).getType()).getDimSize(1),
          mostOutputs);
    }
    // Not launched by a step: benchmarks measure the memory with it.
    readCeiling({kernels, module.getLoc(), *gpu});
    eraseUnused(kernels);
    numKernels += llvm::count_if(
        kernels.getOps<LLVM::LLVMFuncOp>(),
        [](LLVM::LLVMFuncOp function) { return !function.isExternal(); });
    step.erase();
  }

private:
  /// Kernels that stand beside others only.
  void eraseUnused(ModuleOp kernels) {
    llvm::StringSet<> launched{"read_ceiling"};
    getOperation().walk(
        [&](LaunchOp op) { launched.insert(op.getKernel()); });
    for (auto function : llvm::make_early_inc_range(
             kernels.getOps<LLVM::LLVMFuncOp>()))
      if (function->hasAttr("mla.access") &&
          !launched.contains(function.getName()))
        function.erase();
  }

  /// Most rows of logits: those of 2048 tokens would take 1.3 GB with Kimi's
  /// vocabulary, for what only a perplexity wants.
  static constexpr int64_t maxOutputs = 256;

  LogicalResult addProgram(func::FuncOp step, ModuleOp kernels,
                           const LoweringSite &where) {
    OpBuilder b(step);
    const Program &kind = where.program;
    auto program = ProgramOp::create(
        b, step.getLoc(), b.getStringAttr(kind.name), kind.maxTokens,
        kind.maxSequences, std::min(kind.maxTokens, maxOutputs), IntegerAttr(),
        IntegerAttr());
    program.getBody().emplaceBlock();
    ProgramLowering lowering(program, kernels, where, exchangeBlocks);
    if (failed(lowering.lower(step)))
      return failure();
    numLaunches += lowering.launches;
    return success();
  }
};
} // namespace
