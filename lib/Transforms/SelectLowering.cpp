//===- SelectLowering.cpp - one lowering for each op ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Lowering.h"
#include "mla/Transforms/Passes.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/Support/FormatVariadic.h"

#define DEBUG_TYPE "mla-select-lowering"

namespace mla {
#define GEN_PASS_DEF_SELECTLOWERINGPASS
#include "mla/Transforms/Passes.h.inc"
} // namespace mla

using namespace mlir;
using namespace mla;

/// "linear_tile: 4.3 us, bound by memory", or why it is not taken.
static std::string inWords(const Candidate &candidate) {
  std::string text = (candidate.lowering->name + ": ").str();
  if (candidate.refusal)
    return text + candidate.refusal->full();
  const cost::Estimate &e = *candidate.estimate;
  return text + llvm::formatv("{0:f1} us, bound by {1}", e.seconds * 1e6,
                              cost::boundName(e.bound))
                    .str();
}

namespace {
class Selector {
public:
  Selector(ModuleOp module, const TargetMachine &on) : module(module), on(on) {}

  std::vector<LoweringSite> sites;
  int64_t selected = 0, choices = 0;
  bool failed = false;

  LogicalResult readOverrides(ArrayRef<std::string> texts) {
    for (const std::string &text : texts) {
      auto [op, name] = StringRef(text).split('=');
      std::string fullOp = ("mla." + op).str();
      const Lowering *lowering = on.target().find(name);
      if (lowering && lowering->op == fullOp) {
        overrides.push_back({op.str(), name.str()});
        continue;
      }
      SmallVector<StringRef> known;
      for (const Lowering &one : on.target().lowerings)
        if (one.op == fullOp)
          known.push_back(one.name);
      InFlightDiagnostic error = module.emitError("--lower ");
      error << text << ": expected OP=LOWERING, ";
      if (known.empty())
        error << "but " << on.target().name << " lowers no op '" << op << "'";
      else
        error << "where LOWERING is one of " << llvm::join(known, ", ");
      return failure();
    }
    wishes.resize(overrides.size());
    return success();
  }

  /// Chooses for every program.
  void choose(Operation *op) {
    Builder b(op->getContext());
    SmallVector<NamedAttribute> names, words;
    for (const LoweringSite &site : sites) {
      Selection selection = select(on.target(), op, site, overrides);
      note(op, selection);
      const Candidate *chosen = selection.chosen();
      if (!chosen)
        return refuse(op, site, selection);
      StringRef program = site.program.name;
      names.emplace_back(program, b.getStringAttr(on.target().fullName(
                                      *chosen->lowering)));
      if (selection.candidates.size() < 2)
        continue;
      ++choices;
      SmallVector<std::string> texts;
      for (const Candidate &candidate : selection.candidates)
        texts.push_back(inWords(candidate));
      words.emplace_back(program,
                         b.getStrArrayAttr(SmallVector<StringRef>(texts.begin(),
                                                                  texts.end())));
    }
    bool same = llvm::all_of(names, [&](NamedAttribute one) {
      return one.getValue() == names[0].getValue();
    });
    op->setAttr(loweringAttr,
                same ? names[0].getValue() : b.getDictionaryAttr(names));
    op->removeAttr(candidatesAttr);
    if (!words.empty())
      op->setAttr(candidatesAttr, b.getDictionaryAttr(words));
    ++selected;
  }

  /// Overrides that no program of any op could follow.
  void checkOverrides() {
    for (auto [wish, state] : llvm::zip(overrides, wishes))
      if (state.op && !state.taken) {
        state.op->emitOpError("cannot be lowered as --lower ")
            << wish.op << "=" << wish.lowering << " demands: " << state.lacks;
        failed = true;
      }
  }

private:
  /// Whether an override was of use for `op`.
  void note(Operation *op, const Selection &selection) {
    for (auto [wish, state] : llvm::zip(overrides, wishes))
      for (const Candidate &candidate : selection.candidates) {
        if (candidate.lowering->name != wish.lowering ||
            candidate.lowering->op != op->getName().getStringRef())
          continue;
        state.op = op;
        if (!candidate.refusal)
          state.taken = true;
        else
          state.lacks = candidate.refusal->full();
      }
  }

  void refuse(Operation *op, const LoweringSite &site,
              const Selection &selection) {
    SmallVector<std::string> reasons;
    for (const Candidate &candidate : selection.candidates)
      reasons.push_back(on.target().fullName(*candidate.lowering) + ": " +
                        candidate.refusal->full());
    if (reasons.empty())
      reasons.push_back("none is made for this op");
    InFlightDiagnostic error =
        op->emitOpError("has no lowering on target '") << on.target().name
                                                       << "'";
    if (sites.size() > 1 && &site != &sites.front())
      error << " for the program " << site.program.name;
    error << ": " << llvm::join(reasons, "; ");
    failed = true;
  }

  ModuleOp module;
  const TargetMachine &on;
  std::vector<Override> overrides;
  struct Wish {
    Operation *op = nullptr; ///< one that it is for
    bool taken = false;
    std::string lacks;
  };
  std::vector<Wish> wishes;
};

struct SelectLoweringPass
    : mla::impl::SelectLoweringPassBase<SelectLoweringPass> {
  using SelectLoweringPassBase::SelectLoweringPassBase;

  void runOnOperation() override {
    ModuleOp module = getOperation();
    auto on = TargetMachine::open(target);
    if (!on.ok()) {
      module.emitError(on.status().message());
      return signalPassFailure();
    }
    if (activations != "16bit" && activations != "fp4") {
      module.emitError("expected activations in 16bit or fp4, found '")
          << activations << "'";
      return signalPassFailure();
    }
    std::optional<ExchangeBy> exchange = parseExchangeBy(collectives);
    if (!exchange) {
      module.emitError("expected collectives by exchange, p2p or nccl, found '")
          << collectives << "'";
      return signalPassFailure();
    }
    Selector selector(module, **on);
    if (mlir::failed(selector.readOverrides(lower)))
      return signalPassFailure();
    for (const Program &program :
         programsFor((*on)->machine(), stepTokens, maxSequences))
      selector.sites.emplace_back(**on, program, maxContext,
                                  activations == "fp4", *exchange);
    module.walk([&](Operation *op) {
      if (isTensorLevelOp(op))
        selector.choose(op);
    });
    selector.checkOverrides();
    numSelected += selector.selected;
    numChoices += selector.choices;
    if (selector.failed)
      signalPassFailure();
  }
};
} // namespace
