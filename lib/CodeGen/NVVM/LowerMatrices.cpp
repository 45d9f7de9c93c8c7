//===- LowerMatrices.cpp - linears and experts to launches ----------------===//
//
// Part of mla. The part of ProgramLowering that multiplies by weights.
//
//===----------------------------------------------------------------------===//
#include "LargeKernels.h"
#include "LowerToNVVM.h"

using namespace mlir;
using namespace mla;
using namespace mla::nvvm;

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

Value ProgramLowering::packRowsOnce(Operation *op, const LinearSpec &spec,
                                    Input x, SmallVector<Value> operands,
                                    bool fp4) {
  std::string count = spec.outputs ? "outputs" : "tokens";
  std::string name = packedRowsName(spec);
  if (fp4)
    name += "_fp4";
  Value &x16 = packedRows[{x.rows.getAsOpaquePointer(),
                           x.norm.op, name}];
  if (!x16) {
    // Bytes; there is no format for these alone.
    x16 = workspace({"ceildiv(" + count + ", 16)",
                     text(fp4 ? packedRowsFp4Bytes(spec)
                              : packedRowsBytes(spec))},
                    Format::FP8E4M3);
    operands.push_back(x16);
    launch(op, fp4 ? packRowsFp4(site(op), spec) : packRows(site(op), spec),
           operands, {count});
  }
  return x16;
}

void ProgramLowering::launchLinear(Operation *op, LinearSpec spec, Input x,
                                   ArrayRef<Value> operands,
                                   int64_t weightBytes) {
  std::string count = spec.outputs ? "outputs" : "tokens";
  SmallVector<Value> all{x.rows};
  if (x.norm) {
    spec.norm = true;
    spec.gamma = formatOf(x.norm.weight);
    spec.eps = x.norm.eps;
    all.push_back(rows(x.norm.weight));
  }
  LinearForm form = formOf(op, spec);
  if (form == LinearForm::Large || form == LinearForm::LargeFp4) {
    bool fp4 = form == LinearForm::LargeFp4;
    ArrayRef<Value> rest = operands;
    if (spec.outputs) {
      all.push_back(rest.back());
      rest = rest.drop_back();
    }
    all = {packRowsOnce(op, spec, x, all, fp4)};
    all.append(rest.begin(), rest.end());
    launch(op,
           fp4 ? linearLargeFp4(site(op), spec) : linearLarge(site(op), spec),
           all, {count}, text(weightBytes));
    return;
  }
  all.append(operands.begin(), operands.end());
  Kernel kernel = form == LinearForm::F32 ? linearF32(site(op), spec)
                  : form == LinearForm::Stream
                      ? linearStream(site(op), spec)
                      : linearTile(site(op), spec);
  launch(op, kernel, all, {count}, text(weightBytes));
}

LinearForm ProgramLowering::formOf(Operation *op, const LinearSpec &spec) {
  // A run of weights in f32 beside others has the one kernel that can do it.
  if (isa<LinearOp, JoinedLinearOp, GatedLinearOp, LMHeadOp>(op) &&
      isPacked(spec.segments[0].format))
    return parseLinearForm(chosen(op));
  return bestForm(spec, where);
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
// Experts
//===----------------------------------------------------------------------===//

void ProgramLowering::lowerExperts(Operation *op, Input x,
                                   std::optional<Choice> choice, Value indices,
                                   Value weights, int64_t topk, Value gate,
                                   Value up, Value down, ValueRange shared,
                                   Value residual, Value out) {
  ExpertSpec spec;
  spec.gate = matrix(gate);
  spec.down = matrix(down);
  spec.experts = weightType(gate).getDim(0);
  spec.topk = topk;
  spec.maxTokens = maxTokens();
  int64_t gateBytes = 2 * bytesInMemory(spec.gate);
  int64_t downBytes = bytesInMemory(spec.down);
  // The shared expert by itself, with the residual stream.
  auto lowerShared = [&] {
    Value sum = workspace({"tokens", text(spec.down.rows)}, Format::F32);
    Value inner =
        workspace({"tokens", text(matrix(shared[0]).rows)}, Format::F32);
    lowerLinear(op, x, shared.take_front(2), {inner}, {}, /*gated=*/true);
    lowerLinear(op, {inner, nullptr}, {shared[2]}, {sum}, residual);
    return sum;
  };
  // The first expert of the rank's group, if groups of ranks have their own. Their
  // choices are sorted out by grouping, whatever the number of tokens.
  std::string first;
  if (auto ranks = op->getAttrOfType<IntegerAttr>("group_ranks"))
    first = "(ceildiv(rank + 1, " + text(ranks.getInt()) + ") - 1) * " +
            text(spec.experts);
  bool part = !first.empty();
  bool chooses =
      choice && !part && canChooseInExperts(spec, choice->routing);
  if (choice && !chooses)
    std::tie(indices, weights) = launchRoute(op, *choice);
  if (maxTokens() == 1 && !part) {
    SmallVector<Value> which{indices}, how{indices, weights};
    if (chooses) {
      spec.routing = choice->routing;
      which = {choice->logits};
      if (choice->bias) {
        spec.bias = formatOf(choice->bias);
        which.push_back(rows(choice->bias));
      }
      how = which;
    }
    SmallVector<Value> first{x.rows};
    if (x.norm) {
      spec.norm = true;
      spec.gamma = formatOf(x.norm.weight);
      spec.eps = x.norm.eps;
      first.push_back(rows(x.norm.weight));
    }
    first.append(how);
    first.append({packed(gate), packed(up)});
    SmallVector<Value> second{Value()};
    second.append(which);
    second.push_back(packed(down));
    bool joined = joinsShared(gate, down, shared);
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
    if (!joined && !shared.empty())
      residual = lowerShared();
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
  if (!shared.empty())
    addends.push_back(lowerShared());
  else if (residual)
    addends.push_back(residual);
  Value order = workspace({pairs}, Format::I32);
  Value active = workspace({slots}, Format::I32);
  Value offsets = workspace({slots + " + 1"}, Format::I32);
  Value count = workspace({"1"}, Format::I32);
  Value y = workspace({pairs, text(spec.down.rows)}, Format::F32);
  SmallVector<Value> groups{indices, order, active, offsets, count};
  SmallVector<std::string> grouped{"tokens"}, combined;
  if (part) {
    grouped.push_back(first);
    combined.push_back(first);
  }
  std::string gateRead = slots + " * " + text(gateBytes),
              downRead = slots + " * " + text(downBytes);
  if (chosen(op).ends_with("_large")) {
    Value tiles = workspace({"ceildiv(" + pairs + ", " +
                                 text(expertTileTokens) + ") + " + slots,
                             "4"},
                            Format::I32);
    groups.push_back(tiles);
    launch(op,
           moeGroup(site(op), spec.experts, spec.topk, maxTokens(),
                    expertTileTokens, part),
           groups, grouped);
    Value x16 = packRowsOnce(op, expertRows(spec), {x.rows, nullptr},
                             {x.rows});
    Value h16 = workspace({"ceildiv(" + pairs + ", 16)",
                           text(packedRowsBytes(expertHidden(spec)))},
                          Format::FP8E4M3);
    launch(op, expertsGateUpLarge(site(op), spec),
           {x16, order, tiles, packed(gate), packed(up), h16}, {"tokens"},
           gateRead);
    launch(op, expertsDownLarge(site(op), spec),
           {h16, order, tiles, packed(down), y}, {"tokens"}, downRead);
  } else {
    launch(op,
           moeGroup(site(op), spec.experts, spec.topk, maxTokens(),
                    /*tileTokens=*/0, part),
           groups, grouped);
    Value h = workspace({pairs, text(spec.gate.rows)}, Format::F32);
    launch(op, expertsGateUp(site(op), spec),
           {x.rows, order, active, offsets, count, packed(gate), packed(up), h},
           {"tokens"}, gateRead);
    launch(op, expertsDown(site(op), spec),
           {h, order, active, offsets, count, packed(down), y}, {"tokens"},
           downRead);
  }
  SmallVector<Value> operands{y, weights};
  if (part)
    operands.push_back(indices);
  operands.append(addends);
  operands.push_back(out);
  launch(op,
         moeCombine(site(op), spec.down.rows, spec.topk, addends.size(),
                    part ? spec.experts : 0),
         operands, combined);
}

std::pair<Value, Value> ProgramLowering::launchRoute(Operation *op,
                                                     Choice choice) {
  std::string topk = text(choice.routing.getTopk());
  auto experts = cast<BufferType>(choice.logits.getType()).getShape()[1];
  Value indices =
      inner(op->getResult(0), ".experts", {"tokens", topk}, Format::I32);
  Value weights =
      inner(op->getResult(0), ".weights", {"tokens", topk}, Format::F32);
  SmallVector<Value> operands{choice.logits};
  std::optional<Format> bias;
  if (choice.bias) {
    bias = formatOf(choice.bias);
    operands.push_back(rows(choice.bias));
  }
  operands.append({indices, weights});
  launch(op,
         route(site(op), choice.routing, std::stoll(experts.getValue().str()),
               bias),
         operands, {});
  return {indices, weights};
}

void ProgramLowering::lowerMoE(MoEOp op) {
  RoutingAttr routing = op.getRouting();
  Input x = maxTokens() == 1 && !op.getGroups() ? input(op.getX())
                                                : Input{get(op.getX()), nullptr};
  Value logits = op.getLogits() ? get(op.getLogits()) : Value();
  if (!logits) {
    logits = inner(op.getResult(), ".logits",
                   {"tokens", text(op.getNumExperts())}, Format::F32);
    lowerLinear(op, x, {op.getRouter()}, {logits}, {}, /*gated=*/false,
                /*exact=*/true);
  }
  Value out = op.getResult();
  Value residual = takeResidual(out, out);
  lowerExperts(op, x, Choice{routing, logits, op.getBias()}, {}, {},
               routing.getTopk(), op.getGate(), op.getUp(), op.getDown(),
               op.getShared(), residual, result(out));
}
