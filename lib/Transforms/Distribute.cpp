//===- Distribute.cpp - one rank's share of a model -----------------------===//
//
// Part of mla. Tensor parallelism: a chain of ops whose middle is wide is cut
// through the middle, so that each rank computes some of its heads or inner
// columns, and what comes out is a summand that one collective adds up. All
// chains are matched and all divisions checked before anything changes.
//
//===----------------------------------------------------------------------===//
#include "mla/Dialect/MLA.h"
#include "mla/Transforms/Passes.h"
#include "llvm/ADT/MapVector.h"

#define DEBUG_TYPE "mla-distribute"

namespace mla {
#define GEN_PASS_DEF_DISTRIBUTEPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

namespace {
/// The dimension of a matrix that is divided among the ranks.
enum class Axis { Rows, Columns };

/// Heads: the query's linear, attention in the latent space, o_proj.
struct AttentionShare {
  OpResult query; ///< of a mla.linear or mla.joined_linear
  AbsorbQueryOp absorb;
  LatentAttentionOp attention;
  ExpandValueOp expand;
  LinearOp out;
};

/// Inner columns: gate and up, down.
struct MLPShare {
  GatedLinearOp gated;
  LinearOp down;
};

/// Something whose `size` has to be a multiple of ranks times `unit`.
struct Division {
  Operation *op;
  std::string what; ///< "its 64 heads"
  int64_t size, unit;

  bool fits(int64_t ranks) const { return size % (ranks * unit) == 0; }
};

/// Numbers of ranks that are suggested.
constexpr int64_t mostSuggested = 64;

struct DistributePass : mla::impl::DistributePassBase<DistributePass> {
  using DistributePassBase::DistributePassBase;
  void runOnOperation() override;

private:
  LogicalResult checkOptions();
  void match(Operation *op);
  void matchAttention(LatentAttentionOp attention);
  void matchMLP(GatedLinearOp gated);
  void keep(Operation *op, const Twine &why);

  /// The operands are to be cut along `axis`; notes what must divide.
  void cut(MutableArrayRef<OpOperand> operands, Axis axis);
  LogicalResult checkDivisions();
  std::string numbers(llvm::function_ref<bool(int64_t)> fits);

  void share(AttentionShare &chain);
  void share(MLPShare &chain);
  void cutWeights();
  void cutDeclaration(WeightOp weight, Axis axis);
  void narrow(Value rows);
  void reduce(Value rows);
  void gather(LMHeadOp head);
  void joinReductions();

  SmallVector<AttentionShare> attentions;
  SmallVector<MLPShare> mlps;
  SmallVector<Operation *> experts;
  SmallVector<LMHeadOp> heads;
  SmallVector<Division> divisions;
  /// Operands that are weights, by symbol and axis.
  llvm::MapVector<std::pair<StringAttr, Axis>, SmallVector<OpOperand *>> cuts;
};
} // namespace

//===----------------------------------------------------------------------===//
// Matching
//===----------------------------------------------------------------------===//

static bool areDeclared(ValueRange weights) {
  return llvm::all_of(weights, [](Value weight) {
    return weight.getDefiningOp<GetWeightOp>();
  });
}

/// The only user of `rows` if it is an Op that reads them as its `x`.
template <typename Op> static Op onlyReader(Value rows) {
  if (!rows.hasOneUse())
    return {};
  auto op = dyn_cast<Op>(*rows.getUsers().begin());
  return op && op.getX() == rows ? op : Op();
}

void DistributePass::keep(Operation *op, const Twine &why) {
  op->emitRemark() << "not distributed: " << why;
  ++numKept;
}

void DistributePass::match(Operation *op) {
  if (auto attention = dyn_cast<LatentAttentionOp>(op)) {
    matchAttention(attention);
  } else if (auto gated = dyn_cast<GatedLinearOp>(op)) {
    matchMLP(gated);
  } else if (auto moe = dyn_cast<MoEOp>(op)) {
    auto shared = moe.getSharedMutable();
    if (!areDeclared({moe.getGate(), moe.getUp(), moe.getDown()}) ||
        !areDeclared(moe.getShared()))
      return keep(op, "expected declared weights");
    cut(moe.getGateMutable(), Axis::Rows);
    cut(moe.getUpMutable(), Axis::Rows);
    cut(moe.getDownMutable(), Axis::Columns);
    for (auto [i, operand] : llvm::enumerate(shared))
      cut(operand, i < 2 ? Axis::Rows : Axis::Columns);
    experts.push_back(op);
  } else if (auto all = dyn_cast<ExpertsOp>(op)) {
    if (!areDeclared({all.getGate(), all.getUp(), all.getDown()}))
      return keep(op, "expected declared weights");
    cut(all.getGateMutable(), Axis::Rows);
    cut(all.getUpMutable(), Axis::Rows);
    cut(all.getDownMutable(), Axis::Columns);
    experts.push_back(op);
  } else if (auto head = dyn_cast<LMHeadOp>(op)) {
    if (!areDeclared(head.getWeight()))
      return keep(op, "expected declared weights");
    cut(head.getWeightMutable(), Axis::Rows);
    heads.push_back(head);
  } else if (isa<AttentionOp>(op)) {
    keep(op, "only attention over latents is, which mla-fuse-attention makes");
  }
}

void DistributePass::matchAttention(LatentAttentionOp attention) {
  auto no = [&](const Twine &why) { keep(attention, why); };
  AttentionShare chain{};
  chain.attention = attention;
  chain.absorb = attention.getQ().getDefiningOp<AbsorbQueryOp>();
  if (!chain.absorb || !chain.absorb->hasOneUse())
    return no("expected queries of a mla.absorb_query with no other user");
  chain.query = dyn_cast<OpResult>(chain.absorb.getQ());
  if (!chain.query || !isa<LinearOp, JoinedLinearOp>(chain.query.getOwner()) ||
      !chain.query.hasOneUse())
    return no("expected queries of a linear with no other user");
  chain.expand = onlyReader<ExpandValueOp>(attention.getResult());
  if (!chain.expand)
    return no("expected a mla.expand_value as the only user");
  if (chain.absorb.getHeads() != attention.getHeads() ||
      chain.expand.getHeads() != attention.getHeads() ||
      chain.absorb.getNope() != chain.expand.getNope() ||
      chain.absorb.getV() != chain.expand.getV())
    return no("its mla.absorb_query and mla.expand_value have other heads");
  chain.out = onlyReader<LinearOp>(chain.expand.getResult());
  if (!chain.out)
    return no("expected a mla.linear as the only user of its values");

  // Operand 0 is x, then there is a weight for each result.
  OpOperand &queryWeight =
      chain.query.getOwner()->getOpOperand(1 + chain.query.getResultNumber());
  if (!areDeclared({queryWeight.get(), chain.absorb.getKvB(),
                    chain.expand.getKvB(), chain.out.getWeight()}))
    return no("expected declared weights");

  int64_t count = attention.getHeads();
  divisions.push_back(
      {attention, "its " + std::to_string(count) + " heads", count, 1});
  cut(queryWeight, Axis::Rows);
  cut(chain.absorb.getKvBMutable(), Axis::Rows);
  cut(chain.expand.getKvBMutable(), Axis::Rows);
  cut(chain.out.getWeightMutable(), Axis::Columns);
  attentions.push_back(chain);
}

void DistributePass::matchMLP(GatedLinearOp gated) {
  LinearOp down = onlyReader<LinearOp>(gated.getResult());
  if (!down)
    return keep(gated, "expected a mla.linear as the only user");
  if (!areDeclared({gated.getGate(), gated.getUp(), down.getWeight()}))
    return keep(gated, "expected declared weights");
  cut(gated.getGateMutable(), Axis::Rows);
  cut(gated.getUpMutable(), Axis::Rows);
  cut(down.getWeightMutable(), Axis::Columns);
  mlps.push_back({gated, down});
}

//===----------------------------------------------------------------------===//
// What must divide
//===----------------------------------------------------------------------===//

void DistributePass::cut(MutableArrayRef<OpOperand> operands, Axis axis) {
  for (OpOperand &operand : operands) {
    auto get = operand.get().getDefiningOp<GetWeightOp>();
    auto type = cast<WeightType>(get.getType());
    ArrayRef<int64_t> shape = type.getShape();
    bool rows = axis == Axis::Rows;
    // Only blocks of FP8 have scales over several rows.
    int64_t group = rows && type.getFormat() != Format::FP8Block
                        ? 1
                        : scaleGroup(type.getFormat());
    int64_t size = rows ? shape[shape.size() - 2] : shape.back();
    std::string what = "the " + std::to_string(size) +
                       (rows ? " rows of @" : " columns of @") +
                       get.getName().str();
    if (group > 1)
      what += ", in whole groups of " + std::to_string(group) + " (" +
              std::string(formatName(type.getFormat())) + "),";
    auto &uses = cuts[{get.getNameAttr().getAttr(), axis}];
    if (uses.empty())
      divisions.push_back({operand.getOwner(), what, size, group});
    uses.push_back(&operand);
  }
}

/// The numbers of ranks from 2 on that fit, "2, 4, 8".
std::string DistributePass::numbers(llvm::function_ref<bool(int64_t)> fits) {
  std::string text;
  for (int64_t n = 2; n <= mostSuggested; ++n)
    if (fits(n))
      text += (text.empty() ? "" : ", ") + std::to_string(n);
  return text.empty() ? "no number from 2 to " + std::to_string(mostSuggested)
                      : text;
}

LogicalResult DistributePass::checkDivisions() {
  // Layers are alike: one message for all that fail for the same reason.
  llvm::MapVector<std::pair<int64_t, int64_t>, SmallVector<const Division *>>
      failures;
  for (const Division &division : divisions)
    if (!division.fits(ranks))
      failures[{division.size, division.unit}].push_back(&division);
  if (failures.empty())
    return success();
  bool isFirst = true;
  for (const auto &entry : failures) {
    ArrayRef<const Division *> alike = entry.second;
    const Division &first = *alike.front();
    InFlightDiagnostic error =
        first.op->emitOpError("cannot be shared among ")
        << int64_t(ranks) << " ranks: " << first.what << " can be divided by "
        << numbers([&](int64_t n) { return first.fits(n); });
    if (alike.size() > 1)
      error << " (and " << alike.size() - 1 << " more alike)";
    if (std::exchange(isFirst, false))
      error.attachNote() << "the whole model can be shared among "
                         << numbers([&](int64_t n) {
                              return llvm::all_of(
                                  divisions, [&](const Division &division) {
                                    return division.fits(n);
                                  });
                            })
                         << " ranks";
  }
  return failure();
}

//===----------------------------------------------------------------------===//
// Changing the graph
//===----------------------------------------------------------------------===//

/// Makes `rows` those that one rank has.
void DistributePass::narrow(Value rows) {
  auto type = cast<RankedTensorType>(rows.getType());
  rows.setType(
      RankedTensorType::get({ShapedType::kDynamic, type.getDimSize(1) / ranks},
                            type.getElementType()));
}

/// "<path>.<what>" if `loc` is a path, so that each launch has its own name.
static Location under(Location loc, StringRef what) {
  auto name = dyn_cast<NameLoc>(loc);
  if (!name)
    return loc;
  return NameLoc::get(StringAttr::get(loc.getContext(),
                                      name.getName().getValue() + "." + what));
}

/// The users of `rows`, a summand, get the sum.
void DistributePass::reduce(Value rows) {
  OpBuilder b(&getContext());
  b.setInsertionPointAfterValue(rows);
  auto sum = AllReduceOp::create(
      b, under(rows.getLoc(), "all_reduce"), rows.getType(), rows,
      b.getI64IntegerAttr(ranks), local ? b.getUnitAttr() : UnitAttr());
  rows.replaceAllUsesExcept(sum.getResult(), sum);
  ++numReductions;
}

/// Logits of all of the vocabulary from those of the rank's part.
void DistributePass::gather(LMHeadOp head) {
  OpBuilder b(&getContext());
  b.setInsertionPointAfter(head);
  Type whole = head.getType();
  narrow(head.getResult());
  auto all = AllGatherOp::create(b, under(head.getLoc(), "all_gather"), whole,
                                 head.getResult(), b.getI64IntegerAttr(ranks),
                                 local ? b.getUnitAttr() : UnitAttr());
  head.getResult().replaceAllUsesExcept(all.getResult(), all);
  ++numGathers;
}

void DistributePass::share(AttentionShare &chain) {
  uint64_t part = chain.attention.getHeads() / ranks;
  chain.absorb.setHeads(part);
  chain.attention.setHeads(part);
  chain.expand.setHeads(part);
  for (Value rows :
       {Value(chain.query), Value(chain.absorb.getResult()),
        Value(chain.attention.getResult()), Value(chain.expand.getResult())})
    narrow(rows);
  reduce(chain.out.getResult());
  ++numAttentions;
}

void DistributePass::share(MLPShare &chain) {
  narrow(chain.gated.getResult());
  reduce(chain.down.getResult());
  ++numMLPs;
}

/// Where two sums meet, as those of experts and of a shared expert beside them,
/// the summands are added and one collective is left.
void DistributePass::joinReductions() {
  SmallVector<AddOp> adds;
  getOperation().walk([&](AddOp add) { adds.push_back(add); });
  for (AddOp add : adds) {
    auto lhs = add.getLhs().getDefiningOp<AllReduceOp>();
    auto rhs = add.getRhs().getDefiningOp<AllReduceOp>();
    if (!lhs || !rhs || lhs == rhs || !lhs->hasOneUse() || !rhs->hasOneUse())
      continue;
    add->setOperands({lhs.getX(), rhs.getX()});
    lhs.erase();
    rhs.erase();
    reduce(add.getResult());
    numReductions -= 2;
  }
}

/// The declaration becomes that of the rank's part.
void DistributePass::cutDeclaration(WeightOp weight, Axis axis) {
  auto type = cast<WeightType>(weight.getType());
  SmallVector<int64_t> shape(type.getShape());
  int64_t rows = shape[shape.size() - 2], columns = shape.back();
  bool byRows = axis == Axis::Rows;
  int64_t &size = byRows ? shape[shape.size() - 2] : shape.back();
  size /= ranks;
  int64_t first = rank * size;
  weight.setSliceAttr(SliceAttr::get(
      &getContext(), rows, columns, byRows ? first : 0, byRows ? 0 : first,
      /*blocks=*/1, /*block_rows=*/byRows ? size : rows, /*row_stride=*/0));
  weight.setType(WeightType::get(&getContext(), shape, type.getFormat()));
}

void DistributePass::cutWeights() {
  ModuleOp module = getOperation();
  SymbolTable symbols(module);
  DenseMap<StringAttr, size_t> uses;
  module.walk([&](GetWeightOp get) {
    uses[get.getNameAttr().getAttr()] +=
        std::distance(get->use_begin(), get->use_end());
  });
  for (auto &entry : cuts) {
    auto [name, axis] = entry.first;
    ArrayRef<OpOperand *> operands = entry.second;
    auto weight = symbols.lookup<WeightOp>(name);
    if (operands.size() == uses[name]) {
      cutDeclaration(weight, axis);
      for (OpOperand *operand : operands)
        operand->get().setType(cast<WeightType>(weight.getType()));
      continue;
    }
    // Others read it as it is, as the embedding does a head that is tied to it.
    auto part = cast<WeightOp>(weight->clone());
    part.setSymName((name.getValue() + ".part").str());
    symbols.insert(part, std::next(weight->getIterator()));
    cutDeclaration(part, axis);
    for (OpOperand *operand : operands) {
      OpBuilder b(operand->getOwner());
      operand->set(GetWeightOp::create(b, part.getLoc(), part.getType(),
                                       FlatSymbolRefAttr::get(part)));
    }
  }
}

LogicalResult DistributePass::checkOptions() {
  ModuleOp module = getOperation();
  if (ranks < 1 || ranks > maxRanks)
    return module.emitError("expected from 1 to ")
           << maxRanks << " ranks, found " << int64_t(ranks);
  if (rank < 0 || rank >= ranks)
    return module.emitError("expected a rank from 0 to ")
           << ranks - 1 << ", found " << int64_t(rank);
  if (module->hasAttr(ranksAttr))
    return module.emitError("is distributed already");
  for (auto weight : module.getOps<WeightOp>())
    if (weight.getSlice())
      return weight.emitOpError("is a part already, where a whole weight is "
                                "expected");
  return success();
}

void DistributePass::runOnOperation() {
  attentions.clear();
  mlps.clear();
  experts.clear();
  heads.clear();
  divisions.clear();
  cuts.clear();
  if (failed(checkOptions()))
    return signalPassFailure();
  if (ranks == 1)
    return markAllAnalysesPreserved();
  ModuleOp module = getOperation();
  module.walk([&](Operation *op) { match(op); });
  if (failed(checkDivisions()))
    return signalPassFailure();

  cutWeights();
  for (AttentionShare &chain : attentions)
    share(chain);
  for (MLPShare &chain : mlps)
    share(chain);
  for (Operation *op : experts)
    reduce(op->getResult(0));
  numExperts += experts.size();
  for (LMHeadOp head : heads)
    gather(head);
  joinReductions();
  Builder b(&getContext());
  module->setAttr(ranksAttr, b.getI64IntegerAttr(ranks));
  module->setAttr(rankAttr, b.getI64IntegerAttr(rank));
}
