//===- Lowering.cpp - the targets and the choice between lowerings --------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Target/Lowering.h"
#include "Targets.h"
#include "mla/Dialect/MLA.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "llvm/Support/FormatVariadic.h"

using namespace mlir;
using namespace mla;

StringRef mla::needName(Need need) {
  switch (need) {
  case Need::Instruction:
    return "instruction";
  case Need::SharedMemory:
    return "shared memory";
  case Need::Heads:
    return "heads";
  case Need::CacheFormat:
    return "cache format";
  case Need::WeightFormat:
    return "weight format";
  case Need::Activations:
    return "activations";
  case Need::StepSize:
    return "step size";
  case Need::Shape:
    return "shape";
  case Need::Exchange:
    return "exchange";
  case Need::Cost:
    return "cost";
  case Need::Override:
    return "override";
  }
  llvm_unreachable("all needs are named");
}

std::string Refusal::full() const {
  return remedy.empty() ? text : text + " (" + remedy + ")";
}

//===----------------------------------------------------------------------===//
// Programs
//===----------------------------------------------------------------------===//

std::vector<Program> mla::programsFor(const Machine &machine,
                                      ArrayRef<int64_t> stepTokens,
                                      int64_t maxSequences) {
  // Most tokens of a GPU's small forms, and most sequences of a step of prompts.
  constexpr int64_t smallTokens = 64, promptSequences = 8;
  // Logits of more than 256 tokens are what only a perplexity wants.
  constexpr int64_t mostSequences = 256;
  static constexpr int64_t ofGpu[] = {1, 8, 64, 2048}, ofHost[] = {16, 256};
  if (stepTokens.empty())
    stepTokens = machine.isHost() ? ArrayRef(ofHost) : ArrayRef(ofGpu);
  std::vector<Program> programs;
  for (int64_t tokens : stepTokens) {
    int64_t sequences = std::min(tokens, maxSequences);
    std::string number = std::to_string(tokens);
    if (machine.isHost()) {
      programs.push_back({"step" + number, tokens, sequences});
      continue;
    }
    sequences = std::min(sequences, mostSequences);
    if (tokens > smallTokens)
      programs.push_back({"prefill" + number, tokens,
                          std::min(sequences, promptSequences), true});
    if (tokens <= smallTokens || sequences > promptSequences)
      programs.push_back({"step" + number, tokens, sequences});
  }
  return programs;
}

cost::Step LoweringSite::step() const {
  cost::Step step;
  step.tokens = program.maxTokens;
  step.sequences = program.prompts ? 1 : program.maxSequences;
  step.context = std::min<int64_t>(maxContext, 8192);
  return step;
}

//===----------------------------------------------------------------------===//
// Targets
//===----------------------------------------------------------------------===//

/// The host first.
static std::vector<Target> &allTargets() {
  static std::vector<Target> all{hostTarget()};
  return all;
}

void mla::registerGpuLowerings(ArrayRef<Lowering> lowerings) {
  allTargets() = {hostTarget()};
  for (const Gpu &gpu : gpus())
    allTargets().push_back({gpu.name, lowerings});
}

ArrayRef<Target> mla::targets() { return allTargets(); }

const Target *mla::lookupTarget(StringRef name) {
  for (const Target &target : targets())
    if (target.name == name)
      return &target;
  return nullptr;
}

const Lowering *Target::find(StringRef name) const {
  for (const Lowering &lowering : lowerings)
    if (lowering.name == name)
      return &lowering;
  return nullptr;
}

std::pair<const Target *, const Lowering *>
mla::lookupLowering(StringRef name) {
  auto [targetName, loweringName] = name.split('.');
  if (const Target *target = lookupTarget(targetName))
    if (const Lowering *lowering = target->find(loweringName))
      return {target, lowering};
  return {nullptr, nullptr};
}

Result<std::unique_ptr<TargetMachine>> TargetMachine::open(StringRef text) {
  std::string names = "host";
  for (const Gpu &gpu : gpus())
    names += ", " + gpu.name.str();
  bool isArchitecture = text == "host" || lookupGpu(text);
  Result<Machine> machine = isArchitecture ? defaultMachine(text.str())
                                           : findMachine(text.str());
  if (!machine.ok())
    return machine.status().withContext("no target is called '" + text.str() +
                                        "' (" + names + ")");
  const Target *target = lookupTarget(machine->architecture);
  if (!target)
    return Status(StatusCode::Unsupported, "no lowerings are known for " +
                           machine->architecture);
  return std::unique_ptr<TargetMachine>(new TargetMachine(*machine, *target));
}

//===----------------------------------------------------------------------===//
// The choice
//===----------------------------------------------------------------------===//

Selection mla::select(const Target &target, Operation *op,
                      const LoweringSite &site, ArrayRef<Override> overrides) {
  Selection selection;
  cost::Step step = site.step();
  StringRef name = op->getName().stripDialect();
  const Override *wish = nullptr;
  for (const Override &one : overrides)
    if (one.op == name)
      wish = &one;
  for (const Lowering &lowering : target.lowerings) {
    if (op->getName().getStringRef() != lowering.op)
      continue;
    Candidate candidate{&lowering, std::nullopt, std::nullopt};
    if (site.gpu && !site.gpu->canLower)
      candidate.refusal = {Need::Instruction,
                           "needs a target that code is generated for, found " +
                               site.gpu->name.str(),
                           ""};
    else
      candidate.refusal = lowering.refuses(op, site);
    if (!candidate.refusal)
      candidate.estimate = lowering.cost(op, site, step);
    selection.candidates.push_back(std::move(candidate));
  }
  // 0: wished for, 1: possible, 2: not.
  auto rank = [&](const Candidate &c) {
    return c.refusal ? 2 : wish && c.lowering->name == wish->lowering ? 0 : 1;
  };
  auto before = [&](const Candidate &a, const Candidate &b) {
    if (rank(a) != rank(b) || rank(a) == 2)
      return rank(a) < rank(b);
    return a.estimate->seconds < b.estimate->seconds;
  };
  SmallVector<Candidate> &all = selection.candidates;
  auto best = llvm::min_element(all, before);
  if (best == all.end() || best->refusal)
    return selection;
  bool wished = rank(*best) == 0;
  if (!wished) {
    double enough = withinError * best->estimate->seconds;
    best = llvm::find_if(all, [&](const Candidate &c) {
      return !c.refusal && c.estimate->seconds <= enough;
    });
  }
  std::rotate(all.begin(), best, best + 1);
  std::stable_sort(all.begin() + 1, all.end(), before);
  double least = all.front().estimate->seconds;
  for (Candidate &c : llvm::drop_begin(all)) {
    if (c.refusal)
      continue;
    double seconds = c.estimate->seconds;
    std::string takes = llvm::formatv("takes {0:f1} us, ", seconds * 1e6);
    if (wished)
      c.refusal = {Need::Override,
                   "--lower " + wish->op + "=" + wish->lowering + " is given",
                   ""};
    else if (seconds > least)
      c.refusal = {
          Need::Cost,
          takes + llvm::formatv("{0:f2} times as long", seconds / least).str(),
          ""};
    else
      c.refusal = {Need::Cost,
                   takes + (seconds < least ? "not so much less that the model's "
                                              "error could not make it"
                                            : "no less"),
                   ""};
  }
  return selection;
}

StringRef mla::loweringOf(Operation *op, StringRef program) {
  Attribute attr = op->getAttr(loweringAttr);
  if (auto names = dyn_cast_or_null<DictionaryAttr>(attr))
    attr = names.get(program);
  auto name = dyn_cast_or_null<StringAttr>(attr);
  return name ? name.getValue() : StringRef();
}

bool mla::isTensorLevelOp(Operation *op) {
  return isa_and_present<MLADialect>(op->getDialect()) &&
         !isa<WeightOp, GetWeightOp, CacheOp, GetCacheOp, ProgramOp, PortOp,
              WorkspaceOp, PeersOp, LaunchOp>(op);
}

//===----------------------------------------------------------------------===//
// Needs that tables share
//===----------------------------------------------------------------------===//

std::optional<Refusal> mla::needsNothing(Operation *, const LoweringSite &) {
  return std::nullopt;
}

std::optional<Refusal> mla::needsSharedMemory(int64_t bytes, const Gpu &gpu) {
  if (bytes <= gpu.sharedBytesPerBlock)
    return std::nullopt;
  return Refusal{Need::SharedMemory,
                 "needs " + std::to_string(bytes) +
                     " bytes of shared memory, found " +
                     std::to_string(gpu.sharedBytesPerBlock) + " on " +
                     gpu.name.str(),
                 ""};
}

std::optional<Refusal> mla::needsPlainWeights(Operation *op,
                                              const LoweringSite &) {
  for (Type type : op->getOperandTypes())
    if (auto weight = dyn_cast<WeightType>(type))
      if (!elementBytes(weight.getFormat()))
        return Refusal{Need::WeightFormat,
                       "needs weights in f32, bf16 or f16, found " +
                           std::string(formatName(weight.getFormat())),
                       ""};
  return std::nullopt;
}

std::optional<Refusal> mla::needsLocalCollective(Operation *op,
                                                 const LoweringSite &) {
  if (op->hasAttr("local"))
    return std::nullopt;
  auto ranks = op->getAttrOfType<IntegerAttr>("ranks");
  return Refusal{Need::Exchange,
                 "needs local collectives, found an exchange among " +
                     std::to_string(ranks ? ranks.getInt() : 0) + " ranks",
                 ""};
}
