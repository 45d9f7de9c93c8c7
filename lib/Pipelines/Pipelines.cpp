//===- Pipelines.cpp - the stages in reading order ------------------------===//
//
// Part of mla. Start here: what happens to a model between config.json and the
// plan, in order, and why in this order. Every stage ends with a pass that
// checks its promise, so a mistake is reported where it was made and not three
// stages later, in machine code.
//
//===----------------------------------------------------------------------===//
#include "mla/Pipelines/Pipelines.h"
#include "mla/CodeGen/Host/Passes.h"
#include "mla/CodeGen/NVVM/Passes.h"
#include "mla/Plan/Plan.h"
#include "mla/Target/Lowering.h"
#include "mla/Transforms/Passes.h"
#include "mlir/Pass/PassManager.h"
#include "mlir/Pass/PassOptions.h"
#include "mlir/Pass/PassRegistry.h"
#include "mlir/Transforms/Passes.h"

using namespace mlir;
using namespace mla;

int64_t mla::tokensOfPage(const PipelineOptions &options) {
  return plan::pageTokens * (options.layout.shardCache ? options.ranks : 1);
}

int64_t mla::pagesFor(const PipelineOptions &options, int64_t context) {
  int64_t tokens = tokensOfPage(options);
  return (context + tokens - 1) / tokens;
}

//===----------------------------------------------------------------------===//
// import: config.json and safetensors headers -> plain graph
//===----------------------------------------------------------------------===//

void mla::buildImportPipeline(OpPassManager &pm) {
  // The graph itself is made by importModel() (lib/Import), one plain op for
  // each Hugging Face module. It is also what the fused graph is compared with,
  // so nothing is simplified here, not even common subexpressions.
  pm.addPass(createVerifyImportedPass());
}

//===----------------------------------------------------------------------===//
// fuse: plain ops -> ops that a kernel computes at once
//===----------------------------------------------------------------------===//

void mla::buildFusePipeline(OpPassManager &pm, const PipelineOptions &options) {
  if (!options.fuse)
    return;
  // Attention first: it moves kv_b across the cache and joins the linears that
  // read the layer's normed rows, and needs to see these linears one by one,
  // as the front end made them.
  pm.addPass(createFuseAttentionPass());

  // MLPs before experts: the shared expert of a router is an MLP, and
  // mla-fuse-moe takes it up in its fused form.
  pm.addPass(createFuseMLPPass());
  pm.addPass(createFuseMoEPass());

  // The fusions leave get_weight ops behind whose users are gone. CSE removes
  // these and joins equal ones; it moves nothing across a cache write, which
  // has a memory effect. No canonicalisation: there is nothing to simplify, and
  // its folding would be one more thing to know about the graph's shape.
  pm.addPass(createCSEPass());
  pm.addPass(createVerifyFusedPass());
}

//===----------------------------------------------------------------------===//
// distribute: the model -> what each of several ranks does of it
//===----------------------------------------------------------------------===//

void mla::buildDistributePipeline(OpPassManager &pm,
                                  const PipelineOptions &options) {
  // After the fusions, as it cuts the chains that they make: attention can be
  // cut by heads without an exchange only once the cache holds latents. Before
  // lowerings are chosen, since these depend on the sizes that a rank has.
  if (options.ranks != 1) {
    DistributePassOptions distribute;
    distribute.ranks = options.ranks;
    distribute.expertGroups = options.layout.expertGroups;
    distribute.shardDown = options.layout.shardDown;
    distribute.shardRouter = options.layout.shardRouter;
    distribute.shardCache = options.layout.shardCache;
    distribute.local = options.localCollectives;
    pm.addPass(createDistributePass(distribute));
  }
  pm.addPass(createVerifyDistributedPass());
}

//===----------------------------------------------------------------------===//
// collectives: what is exchanged, in few ops that overlap with others
//===----------------------------------------------------------------------===//

void mla::buildCollectivesPipeline(OpPassManager &pm) {
  // Apart from mla-distribute, which says where values cross ranks and need not
  // know what stands beside that. Before lowerings are chosen, since a fused
  // collective has its own. Without collectives nothing changes.
  pm.addPass(createFuseCollectivesPass());
  pm.addPass(createVerifyCollectivesPass());

  // Moving and fusing must not have changed what a rank has of each value.
  pm.addPass(createVerifyDistributedPass());
}

/// Whether the target is no host. What cannot be opened is refused by the passes.
static bool isGpu(const PipelineOptions &options) {
  auto on = TargetMachine::open(options.target);
  return on.ok() && (*on)->gpu();
}

/// Most tokens of the programs. Decoding steps are small, prompts come in large
/// chunks; a program for small steps has less scratch memory and finer grids. On a
/// GPU one token has kernels of its own, and up to 64 fit the small forms.
SmallVector<int64_t> mla::stepTokens(const PipelineOptions &options) {
  SmallVector<int64_t> tokens{16};
  if (isGpu(options))
    tokens = {1, 8, 64};
  llvm::erase_if(tokens, [&](int64_t n) { return n >= options.maxStepTokens; });
  tokens.push_back(options.maxStepTokens);
  return tokens;
}

/// What selecting, verifying and lowering for a GPU must agree on.
template <typename PassOptions>
static void setSite(PassOptions &pass, const PipelineOptions &options) {
  pass.target = options.target;
  pass.stepTokens = stepTokens(options);
  pass.maxSequences = options.maxSequences;
  pass.maxContext = options.maxContext;
  pass.activations = options.fp4Activations ? "fp4" : "16bit";
}

//===----------------------------------------------------------------------===//
// select: one lowering for each op, or a refusal with reasons
//===----------------------------------------------------------------------===//

void mla::buildSelectPipeline(OpPassManager &pm,
                              const PipelineOptions &options) {
  // Once the caches are latent, and before anything is chosen by their format.
  SetCacheFormatPassOptions cache;
  cache.format = std::string(formatName(options.cacheFormat));
  cache.scales.assign(options.cacheScales.begin(), options.cacheScales.end());
  pm.addPass(createSetCacheFormatPass(cache));

  // After all graph rewrites, since a choice made for an op is void once the op
  // changes. This is where a model that the target cannot run is refused,
  // before any code is generated, and by name: which op, which candidate, why.
  // A GPU has no kernel that attends to chosen positions, and needs none while
  // an indexer chooses all of them. The host keeps the indexer: it is the oracle.
  if (isGpu(options)) {
    FoldIndexerPassOptions fold;
    fold.maxContext = options.maxContext;
    pm.addPass(createFoldIndexerPass(fold));
  }

  // What costs least depends on how large a step is: the programs are those that
  // the next stage makes.
  SelectLoweringPassOptions select;
  setSite(select, options);
  select.lower.assign(options.lower.begin(), options.lower.end());
  select.collectives = exchangeByName(options.exchange).str();
  pm.addPass(createSelectLoweringPass(select));
  VerifySelectedPassOptions verify;
  setSite(verify, options);
  verify.collectives = select.collectives;
  pm.addPass(createVerifySelectedPass(verify));
}

//===----------------------------------------------------------------------===//
// lower: tensors -> launches over buffers, and the kernels they launch
//===----------------------------------------------------------------------===//

void mla::buildLowerPipeline(OpPassManager &pm,
                             const PipelineOptions &options) {
  if (isGpu(options)) {
    LowerToNVVMPassOptions lower;
    setSite(lower, options);
    lower.sampling = options.sampling;
    pm.addPass(createLowerToNVVMPass(lower));
  } else {
    LowerToHostPassOptions lower;
    lower.stepTokens = stepTokens(options);
    lower.maxSequences = options.maxSequences;
    pm.addPass(createLowerToHostPass(lower));
  }

  // Only now is it known which buffers there are and which launches use them.
  PlanMemoryPassOptions memory;
  memory.maxPages = options.maxPages;
  pm.addNestedPass<ProgramOp>(createPlanMemoryPass(memory));

  VerifyLoweredPassOptions verify;
  verify.planned = true;
  pm.addPass(createVerifyLoweredPass(verify));
}

//===----------------------------------------------------------------------===//
// The list of stages
//===----------------------------------------------------------------------===//

void mla::buildPipeline(Stage stage, OpPassManager &pm,
                        const PipelineOptions &options) {
  switch (stage) {
  case Stage::Import:
    return buildImportPipeline(pm);
  case Stage::Fuse:
    return buildFusePipeline(pm, options);
  case Stage::Distribute:
    return buildDistributePipeline(pm, options);
  case Stage::Collectives:
    return buildCollectivesPipeline(pm);
  case Stage::Select:
    return buildSelectPipeline(pm, options);
  case Stage::Lower:
    return buildLowerPipeline(pm, options);
  case Stage::Emit:
    return; // emitHostPlan() (lib/CodeGen/Host) writes files.
  }
}

ArrayRef<StageInfo> mla::stages() {
  static constexpr StageInfo list[] = {
      {Stage::Import, "import",
       "the model as one plain op for each Hugging Face module"},
      {Stage::Fuse, "fuse",
       "attention over latents, MLPs and experts as one op each"},
      {Stage::Distribute, "distribute",
       "what each of several ranks does, and what they exchange"},
      {Stage::Collectives, "collectives",
       "sums over the ranks with the norm behind them, overlapped"},
      {Stage::Select, "select",
       "the lowering of each op, chosen from the target's table"},
      {Stage::Lower, "lower", "launches over planned buffers, and kernels"},
      {Stage::Emit, "emit", "machine code and plan.json"}};
  return list;
}

std::optional<Stage> mla::parseStage(StringRef name) {
  for (const StageInfo &info : stages())
    if (info.name == name)
      return info.stage;
  return std::nullopt;
}

StringRef mla::stageName(Stage stage) {
  return stages()[static_cast<size_t>(stage)].name;
}

//===----------------------------------------------------------------------===//
// mla-opt
//===----------------------------------------------------------------------===//

namespace {
/// PipelineOptions as text.
struct StageOptions : PassPipelineOptions<StageOptions> {
  PipelineOptions defaults;
  Option<std::string> target{*this, "target",
                             llvm::cl::desc("Architecture or machine"),
                             llvm::cl::init(defaults.target)};
  Option<int64_t> maxStepTokens{*this, "max-step-tokens",
                                llvm::cl::desc("Bound of tokens in a step"),
                                llvm::cl::init(defaults.maxStepTokens)};
  Option<int64_t> maxSequences{*this, "max-sequences",
                               llvm::cl::desc("Bound of sequences in a step"),
                               llvm::cl::init(defaults.maxSequences)};
  Option<int64_t> maxPages{*this, "max-pages",
                           llvm::cl::desc("Bound of pages of a sequence"),
                           llvm::cl::init(defaults.maxPages)};

  Option<int64_t> maxContext{*this, "max-context",
                             llvm::cl::desc("Bound of tokens of a sequence"),
                             llvm::cl::init(defaults.maxContext)};
  Option<int64_t> ranks{*this, "ranks", llvm::cl::desc("Number of ranks"),
                        llvm::cl::init(defaults.ranks)};
  Option<int64_t> expertGroups{
      *this, "expert-groups",
      llvm::cl::desc("Groups of ranks that have experts of their own"),
      llvm::cl::init(defaults.layout.expertGroups)};
  Option<bool> shardDown{*this, "shard-down",
                         llvm::cl::desc("Divide the projections to latents"),
                         llvm::cl::init(defaults.layout.shardDown)};
  Option<bool> shardRouter{*this, "shard-router",
                           llvm::cl::desc("Divide the routers"),
                           llvm::cl::init(defaults.layout.shardRouter)};
  Option<bool> shardCache{*this, "shard-cache",
                          llvm::cl::desc("Spread the caches' tokens"),
                          llvm::cl::init(defaults.layout.shardCache)};
  Option<bool> localCollectives{
      *this, "local-collectives",
      llvm::cl::desc("Collectives exchange nothing"),
      llvm::cl::init(defaults.localCollectives)};

  Option<ExchangeBy> exchange{
      *this, "collectives", llvm::cl::desc("What exchanges rows on GPUs"),
      llvm::cl::init(defaults.exchange),
      llvm::cl::values(clEnumValN(ExchangeBy::Cost, "exchange", "by cost"),
                       clEnumValN(ExchangeBy::Peers, "p2p", "kernels alone"),
                       clEnumValN(ExchangeBy::Nccl, "nccl", "NCCL alone"))};

  ListOption<std::string> lower{*this, "lower",
                                llvm::cl::desc("OP=LOWERING, not the fastest")};
  Option<bool> fp4Activations{*this, "fp4-activations",
                              llvm::cl::desc("Activations in 4 bits"),
                              llvm::cl::init(defaults.fp4Activations)};

  Option<std::string> cacheFormat{*this, "cache-format",
                                  llvm::cl::desc("Format of latent caches"),
                                  llvm::cl::init("f32")};
  ListOption<double> cacheScales{*this, "cache-scales",
                                 llvm::cl::desc("Scales of FP8 caches")};

  PipelineOptions values() const {
    PipelineOptions options;
    options.target = target;
    options.lower.assign(lower.begin(), lower.end());
    options.fp4Activations = fp4Activations;
    options.maxStepTokens = maxStepTokens;
    options.maxSequences = maxSequences;
    options.maxPages = maxPages;
    options.maxContext = maxContext;
    options.ranks = ranks;
    options.layout = {expertGroups, shardDown, shardRouter, shardCache};
    options.localCollectives = localCollectives;
    options.exchange = exchange;
    // The pass refuses what is no format of a cache.
    options.cacheFormat =
        parseFormat(std::string_view(cacheFormat)).value_or(Format::I32);
    options.cacheScales.assign(cacheScales.begin(), cacheScales.end());
    return options;
  }
};
} // namespace

void mla::registerPipelines() {
  for (const StageInfo &info : stages()) {
    if (info.stage == Stage::Emit)
      continue;
    Stage stage = info.stage;
    // The registry keeps copies of both texts.
    std::string name = ("mla-" + info.name + "-pipeline").str();
    PassPipelineRegistration<StageOptions>(
        name, info.description,
        [stage](OpPassManager &pm, const StageOptions &options) {
          buildPipeline(stage, pm, options.values());
        });
  }
}
