//===- LowerToNVVM.cpp - ops to launches on a GPU -------------------------===//
//
// Part of mla. Walks the step function in order; each op makes (or finds) its
// kernels and appends launches.
//
//===----------------------------------------------------------------------===//
#include "LowerToNVVM.h"
#include "AttentionPrefill.h"
#include "LargeKernels.h"
#include "SideBySide.h"
#include "mla/CodeGen/NVVM/Passes.h"
#include "mla/Quant/Pack.h"
#include "mlir/Dialect/Arith/IR/Arith.h"
#include "mlir/Dialect/LLVMIR/NVVMDialect.h"
#include "mlir/Dialect/SCF/IR/SCF.h"
#include "llvm/ADT/StringSet.h"
#include "llvm/ADT/TypeSwitch.h"

using namespace mlir;

namespace mla {
#define GEN_PASS_DEF_LOWERTONVVMPASS
#include "mla/CodeGen/NVVM/Passes.h.inc"
} // namespace mla

using namespace mla;
using namespace mla::nvvm;

static WeightType weightType(Value v) { return cast<WeightType>(v.getType()); }
static Format formatOf(Value weight) { return weightType(weight).getFormat(); }
static MatrixShape matrix(Value weight) {
  WeightType type = weightType(weight);
  unsigned rank = type.getRank();
  return {type.getFormat(), type.getDim(rank - 2), type.getDim(rank - 1)};
}
static std::string text(int64_t n) { return std::to_string(n); }

/// Whether a matrix is multiplied by tensor cores, from packed memory; others
/// are in f32.
static bool isPacked(Format format) { return quant::canPack(format); }

static int64_t bytesInMemory(MatrixShape m) {
  return isPacked(m.format) ? quant::packedBytes(m.format, m.rows, m.columns)
                            : m.rows * m.columns * 4;
}

//===----------------------------------------------------------------------===//
// Buffers
//===----------------------------------------------------------------------===//

Value ProgramLowering::port(StringRef name, ArrayRef<StringRef> shape,
                            Format format) {
  Value &v = ports[name];
  if (!v) {
    SmallVector<StringAttr> dims;
    for (StringRef d : shape)
      dims.push_back(b.getStringAttr(d));
    OpBuilder::InsertionGuard guard(b);
    b.setInsertionPointToStart(b.getInsertionBlock());
    v = PortOp::create(b, b.getUnknownLoc(),
                       BufferType::get(b.getContext(), dims, format), name);
  }
  return v;
}

std::optional<std::string> ProgramLowering::cacheScale(Value cache) {
  auto get = cache.getDefiningOp<GetCacheOp>();
  auto module = kernels->getParentOfType<ModuleOp>();
  auto scale = module.lookupSymbol<CacheOp>(get.getName()).getScale();
  if (!scale)
    return std::nullopt;
  return std::to_string(scale->bitcastToAPInt().getZExtValue());
}

Value ProgramLowering::workspace(ArrayRef<std::string> shape, Format format) {
  SmallVector<StringAttr> dims;
  for (const std::string &d : shape)
    dims.push_back(b.getStringAttr(d));
  return WorkspaceOp::create(b, b.getUnknownLoc(),
                             BufferType::get(b.getContext(), dims, format),
                             IntegerAttr(), StringAttr());
}

Value ProgramLowering::result(Value v) {
  auto type = cast<RankedTensorType>(v.getType());
  Format format = type.getElementType().isF32() ? Format::F32 : Format::I32;
  Value buffer = workspace({"tokens", text(type.getDimSize(1))}, format);
  buffer.getDefiningOp<WorkspaceOp>().setValue(valueNames.lookup(v));
  return mapped[v] = buffer;
}

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
  LaunchOp::create(
      b, op->getLoc(), FlatSymbolRefAttr::get(b.getContext(), kernel.name),
      b.getStringAttr(kernel.grid), operands, b.getStrArrayAttr(texts),
      b.getStringAttr(originOf(op)),
      weightBytes.empty() ? StringAttr() : b.getStringAttr(weightBytes));
  ++launches;
}

//===----------------------------------------------------------------------===//
// Norms that wait for a consumer, sums that a producer does
//===----------------------------------------------------------------------===//

Value ProgramLowering::get(Value v) {
  if (RMSNormOp norm = putOff.lookup(v)) {
    putOff.erase(v);
    launch(norm,
           rmsNorm(site(norm), rowWidth(norm.getX()),
                   formatOf(norm.getWeight()), norm.getEps().convertToDouble()),
           {get(norm.getX()), rows(norm.getWeight()), result(v)}, {});
  }
  return mapped.lookup(v);
}

ProgramLowering::Input ProgramLowering::input(Value v) {
  // For one token each block norms the row itself, which costs it little; for
  // many it is done where rows are packed.
  if (RMSNormOp norm = putOff.lookup(v);
      norm && (maxTokens() == 1 || isLarge()))
    return {get(norm.getX()), norm};
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
// Matrices
//===----------------------------------------------------------------------===//

void ProgramLowering::lowerLinear(Operation *op, Input x, ValueRange weights,
                                  ValueRange results, Value residual,
                                  bool gated, bool exact) {
  if (gated && !isPacked(formatOf(weights[0]))) {
    // In f32 both halves are linears of one launch, the activation another.
    int64_t width = matrix(weights[0]).rows;
    Value gate = workspace({"tokens", text(width)}, Format::F32);
    Value up = workspace({"tokens", text(width)}, Format::F32);
    lowerLinear(op, x, weights, {gate, up}, {});
    launch(op, swiglu(site(op), width), {gate, up, results[0]}, {});
    return;
  }
  LinearSpec spec;
  spec.maxTokens = maxTokens();
  spec.gated = gated;
  spec.exact = exact;
  spec.residual = !!residual;
  SmallVector<Value> operands;
  int64_t bytes = 0;
  bool isF32 = !isPacked(formatOf(weights[0]));
  for (auto [i, w] : llvm::enumerate(weights)) {
    MatrixShape m = matrix(w);
    bytes += bytesInMemory(m);
    if (isF32) {
      m.format = Format::F32;
      operands.push_back(
          view(w, ViewLayout::Rows, Format::F32, 0, 1, m.rows, m.rows, false));
    } else {
      operands.push_back(packed(w));
    }
    spec.segments.push_back(m);
    if (!gated)
      operands.push_back(results[i]);
  }
  if (gated)
    operands.push_back(results[0]);
  if (residual)
    operands.push_back(residual);
  launchLinear(op, spec, x, operands, bytes);
}

void ProgramLowering::launchLinear(Operation *op, LinearSpec spec, Input x,
                                   ArrayRef<Value> operands,
                                   int64_t weightBytes) {
  std::string count = spec.outputs ? "outputs" : "tokens";
  SmallVector<Value> all{x.rows};
  if (x.norm) {
    spec.norm = true;
    spec.gamma = formatOf(x.norm.getWeight());
    spec.eps = x.norm.getEps().convertToDouble();
    all.push_back(rows(x.norm.getWeight()));
  }
  int64_t weightRows = 0;
  for (const MatrixShape &m : spec.segments)
    weightRows += m.rows;
  // Tens of tokens too, if there are rows enough for a block of these on every
  // other multiprocessor: measured on an H200, twice as fast as tiles at 20,480
  // rows, as fast at 2,112.
  bool large = isLarge() || (maxTokens() > 16 && weightRows >= 8192);
  if (large && isPacked(spec.segments[0].format)) {
    ArrayRef<Value> rest = operands;
    if (spec.outputs) {
      all.push_back(rest.back());
      rest = rest.drop_back();
    }
    std::string name = packedRowsName(spec);
    Value &x16 = packedRows[{x.rows.getAsOpaquePointer(),
                             x.norm ? x.norm.getOperation() : nullptr, name}];
    if (!x16) {
      // Bytes; there is no format for these alone.
      x16 = workspace({"ceildiv(" + count + ", 16)",
                       text(packedRowsBytes(spec))},
                      Format::FP8E4M3);
      all.push_back(x16);
      launch(op, packRows(site(op), spec), all, {count});
    }
    all = {x16};
    all.append(rest.begin(), rest.end());
    launch(op, linearLarge(site(op), spec), all, {count}, text(weightBytes));
    return;
  }
  all.append(operands.begin(), operands.end());
  bool isF32 = spec.segments[0].format == Format::F32;
  launch(op, isF32 ? linearF32(site(op), spec) : linear(site(op), spec), all,
         {count}, text(weightBytes));
}

void ProgramLowering::lowerHead(LMHeadOp op) {
  MatrixShape m = matrix(op.getWeight());
  LinearSpec spec;
  spec.maxTokens = maxTokens();
  spec.outputs = true;
  Input x = input(op.getX());
  std::string vocab = text(m.rows);
  // A rank's part of the vocabulary is gathered first.
  bool whole = llvm::any_of(op->getUsers(), llvm::IsaPred<func::ReturnOp>);
  Value logits = whole ? port("logits", {"outputs", vocab}, Format::F32)
                       : workspace({"outputs", vocab}, Format::F32);
  mapped[op.getResult()] = logits;
  int64_t bytes = bytesInMemory(m);
  bool isF32 = !isPacked(m.format);
  if (isF32)
    m.format = Format::F32;
  spec.segments.push_back(m);
  Value weight = isF32 ? view(op.getWeight(), ViewLayout::Rows, Format::F32, 0,
                              1, m.rows, m.rows, false)
                       : packed(op.getWeight());
  launchLinear(op, spec, x,
               {weight, logits, port("outputs", {"outputs"}, Format::I32)},
               bytes);
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

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
  Kernel kernel =
      latentCacheWrite(site(op), rowWidth(op.getX()) - rope, rope,
                       formatOf(op.getNorm()),
                       cast<CacheType>(cache.getType()).getFormat(),
                       op.getEps().convertToDouble(), op.getInterleaved());
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

void ProgramLowering::lowerAttention(LatentAttentionOp op) {
  flushCacheWrite();
  Value cache = get(op.getCache());
  auto type = cast<CacheType>(cache.getType());
  AttentionSpec spec;
  spec.heads = op.getHeads();
  spec.latent = op.getKvLora();
  spec.rope = type.getWidth() - spec.latent;
  spec.cache = type.getFormat();
  spec.scale = op.getScale().convertToDouble();
  spec.maxTokens = maxTokens();
  spec.maxSequences = program.getMaxSequences();
  spec.maxContext = maxContext;
  Value y = result(op.getResult());
  SmallVector<std::string> scalars{"pages"};
  if (std::optional<std::string> scale = cacheScale(cache))
    scalars.push_back(*scale);
  bool many = prefill && canPrefill(spec);
  if (many)
    scalars.push_back("tokens");
  AttentionKernels kernels = many ? latentAttentionPrefill(site(op), spec)
                                  : latentAttention(site(op), spec);
  Value partial = workspace({kernels.partialRows, text(kernels.partialWidth)},
                            kernels.partialFormat);
  Value lse =
      workspace({kernels.lseRows, text(kernels.lseWidth)}, Format::F32);
  launch(op, kernels.first,
         {get(op.getQ()), positions(), sequence(), pageTable(), cache, partial,
          lse, y},
         scalars);
  if (kernels.combine)
    launch(op, *kernels.combine, {positions(), partial, lse, y}, {});
}

//===----------------------------------------------------------------------===//
// Experts
//===----------------------------------------------------------------------===//

void ProgramLowering::lowerExperts(Operation *op, Input x, Value indices,
                                   Value weights, Value gate, Value up,
                                   Value down, ValueRange shared,
                                   Value residual, Value out) {
  auto topkText = cast<BufferType>(indices.getType()).getShape()[1].getValue();
  ExpertSpec spec;
  spec.gate = matrix(gate);
  spec.down = matrix(down);
  spec.experts = weightType(gate).getDim(0);
  spec.topk = std::stoll(topkText.str());
  spec.maxTokens = maxTokens();
  int64_t gateBytes = 2 * bytesInMemory(spec.gate);
  int64_t downBytes = bytesInMemory(spec.down);
  if (maxTokens() == 1) {
    SmallVector<Value> first{x.rows};
    if (x.norm) {
      spec.norm = true;
      spec.gamma = formatOf(x.norm.getWeight());
      spec.eps = x.norm.getEps().convertToDouble();
      first.push_back(rows(x.norm.getWeight()));
    }
    first.append({indices, weights, packed(gate), packed(up)});
    SmallVector<Value> second{Value(), indices, packed(down)};
    bool joined = !shared.empty() && formatOf(shared[0]) == spec.gate.format &&
                  formatOf(shared[1]) == spec.gate.format &&
                  formatOf(shared[2]) == spec.down.format;
    int64_t sharedGate = 0, sharedDown = 0;
    if (joined) {
      spec.sharedRows = matrix(shared[0]).rows;
      sharedGate = 2 * bytesInMemory(matrix(shared[0]));
      sharedDown = bytesInMemory(matrix(shared[2]));
      first.append({packed(shared[0]), packed(shared[1])});
      second.push_back(packed(shared[2]));
    }
    Value h = workspace(
        {text(spec.topk * spec.gate.rows + spec.sharedRows)}, Format::F32);
    first.push_back(h);
    second[0] = h;
    if (!joined && !shared.empty()) {
      Value sum = workspace({"tokens", text(spec.down.rows)}, Format::F32);
      Value inner =
          workspace({"tokens", text(matrix(shared[0]).rows)}, Format::F32);
      lowerLinear(op, x, shared.take_front(2), {inner}, {}, /*gated=*/true);
      lowerLinear(op, {inner, nullptr}, {shared[2]}, {sum}, residual);
      residual = sum;
    }
    launch(op, expertsGateUpOne(site(op), spec), first, {},
           text(spec.topk * gateBytes + sharedGate));
    if (residual)
      second.push_back(residual);
    second.push_back(out);
    launch(op, expertsDownOne(site(op), spec, !!residual), second, {},
           text(spec.topk * downBytes + sharedDown));
    return;
  }
  std::string pairs = "tokens * " + text(spec.topk);
  std::string slots = "min(" + pairs + ", " + text(spec.experts) + ")";
  SmallVector<Value> addends;
  if (!shared.empty()) {
    Value sum = workspace({"tokens", text(spec.down.rows)}, Format::F32);
    Value inner =
        workspace({"tokens", text(matrix(shared[0]).rows)}, Format::F32);
    lowerLinear(op, x, shared.take_front(2), {inner}, {}, /*gated=*/true);
    lowerLinear(op, {inner, nullptr}, {shared[2]}, {sum}, residual);
    addends.push_back(sum);
  } else if (residual) {
    addends.push_back(residual);
  }
  Value order = workspace({pairs}, Format::I32);
  Value active = workspace({slots}, Format::I32);
  Value offsets = workspace({slots + " + 1"}, Format::I32);
  Value count = workspace({"1"}, Format::I32);
  launch(op, moeGroup(site(op), spec.experts, spec.topk, maxTokens()),
         {indices, order, active, offsets, count}, {"tokens"});
  Value h = workspace({pairs, text(spec.gate.rows)}, Format::F32);
  launch(op, expertsGateUp(site(op), spec),
         {x.rows, order, active, offsets, count, packed(gate), packed(up), h},
         {"tokens"}, slots + " * " + text(gateBytes));
  Value y = workspace({pairs, text(spec.down.rows)}, Format::F32);
  launch(op, expertsDown(site(op), spec),
         {h, order, active, offsets, count, packed(down), y}, {"tokens"},
         slots + " * " + text(downBytes));
  SmallVector<Value> operands{y, weights};
  operands.append(addends);
  operands.push_back(out);
  launch(op,
         moeCombine(site(op), spec.down.rows, spec.topk, addends.size()),
         operands, {});
}

void ProgramLowering::lowerMoE(MoEOp op) {
  RoutingAttr routing = op.getRouting();
  int64_t experts = weightType(op.getRouter()).getDim(0);
  std::string topk = text(routing.getTopk());
  Value logits = workspace({"tokens", text(experts)}, Format::F32);
  Input x =
      maxTokens() == 1 ? input(op.getX()) : Input{get(op.getX()), nullptr};
  lowerLinear(op, x, {op.getRouter()}, {logits}, {}, /*gated=*/false,
              /*exact=*/true);
  Value indices = workspace({"tokens", topk}, Format::I32);
  Value weights = workspace({"tokens", topk}, Format::F32);
  std::optional<Format> bias;
  SmallVector<Value> operands{logits};
  if (op.getBias()) {
    bias = formatOf(op.getBias());
    operands.push_back(rows(op.getBias()));
  }
  operands.append({indices, weights});
  launch(op, route(site(op), routing, experts, bias), operands, {});
  Value out = op.getResult();
  Value residual = takeResidual(out, out);
  lowerExperts(op, x, indices, weights, op.getGate(), op.getUp(), op.getDown(),
               op.getShared(), residual, result(out));
}

//===----------------------------------------------------------------------===//
// Ops
//===----------------------------------------------------------------------===//

LogicalResult ProgramLowering::lowerOp(Operation *op) {
  return TypeSwitch<Operation *, LogicalResult>(op)
      .Case([&](GetWeightOp) { return success(); }) // Views are made by users.
      .Case([&](GetCacheOp o) {
        mapped[o.getResult()] = b.clone(*op)->getResult(0);
        return success();
      })
      .Case([&](EmbeddingOp o) {
        launch(op, embedding(site(op), matrix(o.getTable())),
               {get(o.getIds()), rows(o.getTable()), result(o.getResult())},
               {});
        return success();
      })
      .Case([&](RMSNormOp o) {
        putOff[o.getResult()] = o;
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
        // Without an exchange; the sum that follows is done on the way.
        Value out = o.getResult();
        if (Value residual = takeResidual(out, out))
          launch(op, add(site(op), rowWidth(o.getX())),
                 {get(o.getX()), residual, result(out)}, {});
        else
          launch(op, repeat(site(op), rowWidth(o.getX()), 1, "tokens"),
                 {get(o.getX()), result(out)}, {});
        return success();
      })
      .Case([&](AllGatherOp o) {
        Value logits =
            port("logits", {"outputs", text(rowWidth(o.getResult()))},
                 Format::F32);
        mapped[o.getResult()] = logits;
        launch(op,
               repeat(site(op), rowWidth(o.getX()), o.getRanks(), "outputs"),
               {get(o.getX()), logits}, {});
        return success();
      })
      .Case([&](LatentCacheWriteOp o) {
        lowerCacheWrite(o);
        return success();
      })
      .Case([&](AbsorbQueryOp o) {
        int64_t latent = weightType(o.getKvB()).getDim(1);
        HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()),
                        rowWidth(o.getRotary()), int64_t(o.getV()), latent};
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
        int64_t latent = weightType(o.getKvB()).getDim(1);
        HeadShape shape{int64_t(o.getHeads()), int64_t(o.getNope()), 0,
                        int64_t(o.getV()), latent};
        Value values =
            view(o.getKvB(), ViewLayout::Packed, Format::BF16, shape.nope,
                 shape.heads, shape.v, shape.nope + shape.v, false);
        launch(op, expandValue(site(op), shape, maxTokens()),
               {get(o.getX()), values, result(o.getResult())}, {"tokens"},
               text(quant::packedBytes(Format::BF16, shape.heads * shape.v,
                                       latent)));
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
        lowerExperts(op, {get(o.getX()), nullptr}, get(o.getIndices()),
                     get(o.getWeights()), o.getGate(), o.getUp(), o.getDown(),
                     {}, {}, result(o.getResult()));
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
      auto lowering = op.getAttrOfType<StringAttr>("lowering");
      if (!lowering || !lowering.getValue().starts_with(prefix))
        return op.emitOpError("expected a lowering to ")
               << gpu.name << ", found "
               << (lowering ? lowering.getValue() : "none")
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
    const Gpu *gpu = lookupGpu(target);
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
    OpBuilder b = OpBuilder::atBlockEnd(module.getBody());
    auto kernels = ModuleOp::create(b, module.getLoc(), "kernels");
    SmallVector<int64_t> buckets(stepTokens.begin(), stepTokens.end());
    if (buckets.empty())
      buckets = {1, 8, 64};
    for (auto [i, tokens] : llvm::enumerate(buckets)) {
      if (tokens < 1 || (i > 0 && tokens <= buckets[i - 1])) {
        module.emitOpError("expected ascending, positive step-tokens, found ")
            << tokens;
        return signalPassFailure();
      }
      int64_t sequences =
          std::min({tokens, int64_t(maxSequences), maxOutputs});
      // Many tokens are prompts, or one token each of many sequences.
      if (tokens > smallTokens &&
          failed(addProgram(step, kernels, *gpu, tokens,
                            std::min(sequences, prefillSequences), true)))
        return signalPassFailure();
      if ((tokens <= smallTokens || sequences > prefillSequences) &&
          failed(addProgram(step, kernels, *gpu, tokens, sequences, false)))
        return signalPassFailure();
    }
    // Not launched by a step: benchmarks measure the memory with it.
    readCeiling({kernels, module.getLoc(), *gpu});
    eraseUnused(kernels);
    numKernels += llvm::count_if(kernels.getOps<LLVM::LLVMFuncOp>(),
                                 [](auto) { return true; });
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

  /// Most tokens of the small forms, and most sequences of a step of prompts.
  static constexpr int64_t smallTokens = 64, prefillSequences = 8;
  /// Most rows of logits: those of 2048 tokens would take 1.3 GB with Kimi's
  /// vocabulary, for what only a perplexity wants.
  static constexpr int64_t maxOutputs = 256;

  LogicalResult addProgram(func::FuncOp step, ModuleOp kernels, const Gpu &gpu,
                           int64_t tokens, int64_t sequences, bool prefill) {
    OpBuilder b(step);
    std::string name = (prefill ? "prefill" : "step") + std::to_string(tokens);
    auto program =
        ProgramOp::create(b, step.getLoc(), b.getStringAttr(name), tokens,
                          sequences, std::min(tokens, maxOutputs),
                          IntegerAttr());
    program.getBody().emplaceBlock();
    ProgramLowering lowering(program, kernels, gpu, maxContext, prefill);
    if (failed(lowering.lower(step)))
      return failure();
    numLaunches += lowering.launches;
    return success();
  }
};
} // namespace
