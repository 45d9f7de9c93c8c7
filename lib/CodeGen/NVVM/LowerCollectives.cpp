//===- LowerCollectives.cpp - collectives to launches on a GPU ------------===//
//
// Part of mla. One kernel a collective, with what stands behind it: a sum with the
// residual stream, a norm. What NCCL does is a launch that the runtime takes up, of the
// rows alone. With `local` nothing is exchanged.
//
//===----------------------------------------------------------------------===//
#include "LowerToNVVM.h"
#include "mlir/Dialect/LLVMIR/LLVMDialect.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

/// By the end of a lowering's name.
static Transport transportOf(StringRef chosen) {
  return chosen.ends_with("pull")   ? Transport::Pull
         : chosen.ends_with("bulk") ? Transport::Bulk
                                    : Transport::Flagged;
}

ExchangeSpec ProgramLowering::exchangeSpec(int64_t ranks) {
  ExchangeSpec with;
  with.layout.ranks = with.ranks = ranks;
  with.layout.blocks = exchangeBlocks
                           ? exchangeBlocks
                           : exchangeBlocksOf(gpu.multiprocessors);
  return with;
}

void ProgramLowering::launchExchange(Operation *op, const Kernel &kernel,
                                     ValueRange operands, StringRef symbol,
                                     int64_t exchangeBytes) {
  if (!peers) {
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(b.getInsertionBlock());
    peers = PeersOp::create(b, b.getUnknownLoc(),
                            PeersType::get(b.getContext()));
  }
  program.setExchangeBytes(std::max<int64_t>(
      exchangeBytes, program.getExchangeBytes().value_or(0)));
  SmallVector<Value> all{peers};
  llvm::append_range(all, operands);
  launch(op, kernel, all, {symbol.str(), text(launches)});
}

void ProgramLowering::launchCollective(Operation *op, plan::Collective kind,
                                       StringRef count, Value x, Value to,
                                       int64_t width) {
  std::string name = "exchange_" + std::string(plan::collectiveName(kind));
  if (!kernels.lookupSymbol(name)) {
    // A declaration: the runtime does it.
    OpBuilder at = OpBuilder::atBlockEnd(kernels.getBody());
    auto function = LLVM::LLVMFuncOp::create(
        at, op->getLoc(), name,
        LLVM::LLVMFunctionType::get(LLVM::LLVMVoidType::get(at.getContext()),
                                    {}));
    function->setAttr("mla.access", at.getStrArrayAttr({"read", "write"}));
    function->setAttr("mla.scalars", at.getI64IntegerAttr(3));
    function->setAttr("mla.collective",
                      at.getStringAttr(StringRef(plan::collectiveName(kind))));
  }
  launch(op, {name, "1"}, {get(x), to},
         {count.str(), text(rowWidth(x)), text(width)});
}

void ProgramLowering::lowerReduce(AllReduceOp op) {
  Value out = op.getResult();
  int64_t width = rowWidth(op.getX());
  if (chosen(op).ends_with("nccl"))
    // What is added to it has a launch of its own.
    return launchCollective(op, plan::Collective::AllReduce, "tokens", op.getX(),
                            result(out), width);
  Value residual = takeResidual(out, out);
  if (op.getLocal()) {
    if (residual)
      launch(op, add(site(op), width),
             {get(op.getX()), residual, result(out)}, {});
    else
      launch(op, repeat(site(op), width, width, "tokens"),
             {get(op.getX()), result(out)}, {});
    return;
  }
  bool twoShot = chosen(op).contains("two_shot");
  ExchangeSpec with = exchangeSpec(op.getRanks());
  ReduceSpec spec{width};
  spec.residual = !!residual;
  spec.pull = chosen(op).ends_with("pull");
  SmallVector<Value> operands{get(op.getX())};
  if (residual)
    operands.push_back(residual);
  operands.push_back(result(out));
  launchExchange(op,
                 twoShot ? allReduceTwoShot(site(op), with, spec, "tokens")
                         : allReduceOneShot(site(op), with, spec, "tokens"),
                 operands, "tokens", with.layout.bytes(twoShot || spec.pull));
}

void ProgramLowering::lowerReduceNorm(AllReduceRMSNormOp op) {
  double eps = op.getEps().convertToDouble();
  if (chosen(op).ends_with("nccl")) {
    int64_t width = rowWidth(op.getX());
    Value residual = op.getResidual() ? get(op.getResidual()) : Value();
    Value sum = result(op.getSum()), reduced = sum;
    if (residual) {
      reduced = workspace({"tokens", text(width)}, Format::F32);
      reduced.getDefiningOp<WorkspaceOp>().setValue(originOf(op) +
                                                    "/all_reduce:0");
    }
    launchCollective(op, plan::Collective::AllReduce, "tokens", op.getX(), reduced,
                     width);
    if (residual)
      launch(op, add(site(op), width), {reduced, residual, sum}, {});
    putOff[op.getNormed()] = {op, op.getSum(), op.getWeight(), eps};
    return;
  }
  bool twoShot = chosen(op).contains("two_shot");
  ExchangeSpec with = exchangeSpec(op.getRanks());
  ReduceSpec spec{rowWidth(op.getX())};
  spec.residual = !!op.getResidual();
  spec.pull = chosen(op).ends_with("pull");
  SmallVector<Value> operands{get(op.getX())};
  if (spec.residual)
    operands.push_back(get(op.getResidual()));
  Value sum = result(op.getSum());
  operands.push_back(sum);
  // For one token and for many, what reads the rows norms them; see input().
  bool norms = !twoShot && !spec.pull && maxTokens() != 1 && !isLarge() &&
               canReduceNorm(with, spec, gpu);
  Kernel kernel;
  if (norms) {
    operands.append({rows(op.getWeight()), result(op.getNormed())});
    kernel = allReduceNorm(site(op), with, {spec, formatOf(op.getWeight()), eps},
                           "tokens");
  } else {
    putOff[op.getNormed()] = {op, op.getSum(), op.getWeight(), eps};
    kernel = twoShot ? allReduceTwoShot(site(op), with, spec, "tokens")
                     : allReduceOneShot(site(op), with, spec, "tokens");
  }
  launchExchange(op, kernel, operands, "tokens", with.layout.bytes(twoShot || spec.pull));
}

void ProgramLowering::lowerMerge(MergeAttentionOp op) {
  Transport transport = transportOf(chosen(op));
  MergeSpec spec = mergeSpec(op, transport);
  SmallVector<Value> operands{get(op.getX()), get(op.getLse()),
                              result(op.getResult())};
  if (op.getLocal()) {
    launch(op, mergeAttentionLocal(site(op), spec.heads, spec.latent, op.getRanks()),
           operands, {});
    return;
  }
  ExchangeSpec with = exchangeSpec(op.getRanks());
  launchExchange(op, mergeAttention(site(op), with, spec, "tokens"), operands,
                 "tokens", with.layout.bytes(transport != Transport::Flagged));
}

void ProgramLowering::lowerGather(AllGatherOp op) {
  // One launch for rows of the step's tokens, one for those that want logits.
  struct Rows {
    StringRef symbol;
    GatherSpec spec;
    SmallVector<Value> operands;
  };
  Rows kinds[2] = {{"tokens", {}, {}}, {"outputs", {}, {}}};
  Transport transport = transportOf(chosen(op));
  for (auto [x, all] : llvm::zip(op.getXs(), op.getAlls())) {
    bool logits = llvm::any_of(all.getUsers(), llvm::IsaPred<func::ReturnOp>);
    Rows &kind = kinds[logits];
    if (logits)
      mapped[all] = port("logits", {"outputs", text(rowWidth(all))},
                         Format::F32);
    Value to = logits ? get(all) : result(all);
    if (op.getLocal()) {
      launch(op, repeat(site(op), rowWidth(x), rowWidth(all), kind.symbol),
             {get(x), to}, {});
      continue;
    }
    if (chosen(op).ends_with("nccl")) {
      launchCollective(op, plan::Collective::AllGather, kind.symbol, x, to,
                       rowWidth(all));
      continue;
    }
    kind.spec.segments.push_back({rowWidth(x), rowWidth(all)});
    kind.operands.append({get(x), to});
  }
  ExchangeSpec with = exchangeSpec(op.getRanks());
  for (Rows &kind : kinds) {
    if (kind.operands.empty())
      continue;
    kind.spec.transport = transport;
    launchExchange(op, allGather(site(op), with, kind.spec, kind.symbol),
                   kind.operands, kind.symbol,
                   with.layout.bytes(transport != Transport::Flagged));
  }
}
