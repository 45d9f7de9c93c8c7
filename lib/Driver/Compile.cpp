//===- Compile.cpp - one run of the compiler ------------------------------===//
//
// Part of mla. Reads, imports, runs the stages, and writes the plan or the IR.
// Every failure becomes one error here, whatever form it has further down.
//
//===----------------------------------------------------------------------===//
#include "mla/Driver/Compile.h"
#include "CacheFormat.h"
#include "Diagnostics.h"
#include "Layouts.h"
#include "Report.h"
#include "StepFunction.h"
#include "mla/CodeGen/Host/Emit.h"
#include "mla/CodeGen/NVVM/Emit.h"
#include "mla/Dialect/MLA.h"
#include "mla/Import/Import.h"
#include "mla/Plan/Plan.h"
#include "mla/Target/Lowering.h"
#include "mla/Support/LLVMError.h"
#include "mla/Support/OutputFolder.h"
#include "mlir/IR/AsmState.h"
#include "mlir/Pass/PassManager.h"
#include "llvm/Support/Format.h"
#include <chrono>

using namespace mlir;
using namespace mla;

namespace {
/// The file by which an older plan is known, which may be replaced.
constexpr const char *planMarker = "plan.json";

/// Wall time since construction or the last lap.
class Clock {
public:
  double lap() {
    auto now = std::chrono::steady_clock::now();
    double seconds = std::chrono::duration<double>(now - last).count();
    last = now;
    return seconds;
  }

private:
  std::chrono::steady_clock::time_point last = std::chrono::steady_clock::now();
};

class Compilation {
public:
  Compilation(const CompileOptions &options, raw_ostream &out, raw_ostream &err)
      : options(options), out(out), err(err), diagnostics(context, err),
        layout(options.pipeline.layout) {}

  llvm::Error run();

private:
  llvm::Error readModel();
  llvm::Error limitContext();
  llvm::Error openCheckpoint();
  llvm::Error chooseCache();
  llvm::Error import();
  PipelineOptions pipelineOptions() const;
  void divide();
  llvm::Error runPasses(Stage stage);
  llvm::Error printModule();
  llvm::Error emit();
  llvm::Error emitPlan(const std::filesystem::path &folder,
                       std::string &report);
  void timed(StringRef what);
  /// `error`, or an error without text if diagnostics have told it.
  llvm::Error unlessTold(llvm::Error error);

  const CompileOptions &options;
  raw_ostream &out;
  raw_ostream &err;
  // One thread: the module is one function, and diagnostics keep their order.
  MLIRContext context{MLIRContext::Threading::DISABLED};
  DiagnosticPrinter diagnostics;
  Clock total, clock;
  ModelConfig config;
  std::optional<Checkpoint> checkpoint;
  CacheChoice cache;
  std::unique_ptr<TargetMachine> on;
  const Gpu *gpu = nullptr; ///< the target, if it is one
  RankLayout layout;
  OwningOpRef<ModuleOp> module;
};
} // namespace

void Compilation::timed(StringRef what) {
  double seconds = clock.lap();
  if (options.verbose)
    err << llvm::format("mla-compile: %-10s %7.3f s\n", what.str().c_str(),
                        seconds);
}

llvm::Error Compilation::unlessTold(llvm::Error error) {
  if (!error || !diagnostics.hadErrors())
    return error;
  llvm::consumeError(std::move(error));
  diagnostics.finish();
  return llvm::createStringError("");
}

llvm::Error Compilation::readModel() {
  if (options.model.extension() != ".mlir") {
    auto read = ModelConfig::read(options.model);
    if (!read.ok())
      return toError(read.status());
    config = *std::move(read);
    return llvm::Error::success();
  }
  if (!options.syntheticSeed)
    return llvm::createStringError(
        options.model.string() +
        " is a step function without a checkpoint: add --synthetic-weights SEED");
  auto read = readStepFunction(context, options.model, config);
  if (!read)
    return unlessTold(read.takeError());
  module = std::move(*read);
  return llvm::Error::success();
}

/// What the command line and the target leave of the model's context.
llvm::Error Compilation::limitContext() {
  if (options.maxContext > config.maxPositions)
    return llvm::createStringError(
        "--max-context: the model has " + std::to_string(config.maxPositions) +
        " positions, found " + std::to_string(options.maxContext));
  if (options.maxContext)
    config.maxPositions = options.maxContext;
  if (gpu && config.indexer && config.indexer->topk < config.maxPositions) {
    config.maxPositions = config.indexer->topk;
    err << "mla-compile: warning: the context is limited to "
        << config.maxPositions
        << " tokens (index_topk): beyond it attention is sparse, which "
        << gpu->name << " has no kernel for yet\n";
  }
  return llvm::Error::success();
}

llvm::Error Compilation::openCheckpoint() {
  if (options.noWeights || options.syntheticSeed)
    return llvm::Error::success();
  if (!std::filesystem::is_directory(options.model))
    return llvm::createStringError(
        options.model.string() +
        " has no weights beside it: give the model's folder, or one of "
        "--no-weights and --synthetic-weights");
  auto opened = Checkpoint::open(options.model);
  if (!opened.ok())
    return toError(opened.status());
  checkpoint.emplace(*std::move(opened));
  timed("read");
  return llvm::Error::success();
}

llvm::Error Compilation::chooseCache() {
  CacheRequest request{options.cacheFormat, options.cacheScales,
                       !options.pipeline.fuse, gpu ? Format::BF16 : Format::F32};
  auto choice = chooseCacheFormat(request, config,
                                  checkpoint ? &*checkpoint : nullptr);
  if (!choice.ok())
    return toError(choice.status());
  cache = *std::move(choice);
  for (const std::string &warning : cache.warnings)
    err << "mla-compile: warning: " << warning << "\n";
  return llvm::Error::success();
}

llvm::Error Compilation::import() {
  ImportOptions importOptions;
  importOptions.syntheticWeights = options.syntheticSeed.has_value();
  auto imported = importModel(
      context, config, checkpoint ? &*checkpoint : nullptr, importOptions);
  if (!imported)
    return unlessTold(imported.takeError());
  module = std::move(*imported);
  return llvm::Error::success();
}

PipelineOptions Compilation::pipelineOptions() const {
  PipelineOptions pipeline = options.pipeline;
  pipeline.layout = layout;
  pipeline.maxPages = pagesFor(pipeline, config.maxPositions);
  pipeline.maxContext = config.maxPositions;
  // A step function is there to be compared; its plan is the smaller one.
  pipeline.sampling = options.model.extension() != ".mlir";
  pipeline.cacheFormat = cache.format;
  pipeline.cacheScales = cache.scales;
  return pipeline;
}

/// Chooses what the command line leaves open of how the ranks divide the model.
void Compilation::divide() {
  if (options.pipeline.ranks == 1 || !gpu || !gpu->canLower)
    return;
  LayoutDecision decision = chooseLayout(*module, *on, pipelineOptions(),
                                         options.given, defaultContexts);
  layout = decision.choice().layout;
  timed("layout");
}

llvm::Error Compilation::runPasses(Stage stage) {
  PassManager pm(&context, ModuleOp::getOperationName());
  buildPipeline(stage, pm, pipelineOptions());
  // Passes explain what they leave alone in remarks.
  diagnostics.showRemarks(options.verbose);
  if (failed(pm.run(*module)))
    return unlessTold(llvm::createStringError("stage " + stageName(stage) +
                                              " failed and did not say why"));
  timed(stageName(stage));
  return llvm::Error::success();
}

llvm::Error Compilation::printModule() {
  OpPrintingFlags flags;
  flags.enableDebugInfo(options.printLocations, /*prettyForm=*/false);
  if (options.output.empty()) {
    module->print(out, flags);
    return llvm::Error::success();
  }
  std::string text;
  llvm::raw_string_ostream stream(text);
  module->print(stream, flags);
  return toError(writeFileAtomically(options.output, text));
}

llvm::Error Compilation::emit() {
  auto folder = OutputFolder::create(options.output, planMarker);
  if (!folder.ok())
    return toError(folder.status());

  // Before the kernels are consumed.
  std::string report;
  llvm::raw_string_ostream reportStream(report);
  printReport(*module, config, cache, reportStream);

  std::string resources;
  if (llvm::Error error = emitPlan(folder->path(), resources))
    return unlessTold(std::move(error));
  if (Status status = folder->commit(); !status.ok())
    return toError(status);
  timed(stageName(Stage::Emit));

  out << "plan     " << options.output.string() << "\n"
      << report << resources
      << llvm::format("time     %.2f s\n", total.lap());
  return llvm::Error::success();
}

/// Writes the plan for the target; `report` gets what the machine code takes.
llvm::Error Compilation::emitPlan(const std::filesystem::path &folder,
                                  std::string &report) {
  PlanOptions plan;
  plan.producer = options.producer;
  if (options.pipeline.localCollectives)
    plan.ranks.collectives = plan::Ranks::Collectives::Local;
  plan.weights = options.noWeights       ? plan::Checkpoint::Kind::None
                 : options.syntheticSeed ? plan::Checkpoint::Kind::Synthetic
                                         : plan::Checkpoint::Kind::Safetensors;
  plan.seed = options.syntheticSeed.value_or(0);
  const Checkpoint *files = checkpoint ? &*checkpoint : nullptr;
  if (!gpu)
    return emitHostPlan(*module, config, files, options.cpu, plan, folder)
        .takeError();
  auto emitted = emitGpuPlan(*module, config, files, *gpu, plan, folder);
  if (!emitted)
    return emitted.takeError();
  llvm::raw_string_ostream out(report);
  if (emitted->plan.binary.empty())
    out << "code     PTX; no ptxas was found, so the driver will compile it\n";
  else
    out << "code     machine code and PTX for " << gpu->name << "\n";
  if (options.verbose)
    out << resourceTable(emitted->resources, *gpu);
  return llvm::Error::success();
}

llvm::Error Compilation::run() {
  auto opened = TargetMachine::open(options.pipeline.target);
  if (!opened.ok())
    return toError(opened.status());
  on = std::move(*opened);
  gpu = on->gpu();
  if (gpu && !gpu->canLower && !options.stopAfter)
    return llvm::createStringError("no code is generated for " +
                                   gpu->name.str() +
                                   ", only for sm_120a, sm_90a and host");
  if (llvm::Error error = readModel())
    return error;
  if (options.printConfig) {
    out << config.print();
    return llvm::Error::success();
  }

  // Before the work that would be in vain.
  if (!options.stopAfter) {
    if (Status status = OutputFolder::check(options.output, planMarker); !status.ok())
      return toError(status);
  }
  if (llvm::Error error = limitContext())
    return error;
  if (llvm::Error error = openCheckpoint())
    return error;
  if (llvm::Error error = chooseCache())
    return error;
  bool isMLIR = !!module; // whose stages before this one are done
  if (!isMLIR)
    if (llvm::Error error = import())
      return error;
  for (const StageInfo &info : stages()) {
    if (isMLIR && info.stage == Stage::Import)
      continue;
    if (info.stage == Stage::Emit)
      return emit();
    if (info.stage == Stage::Distribute)
      divide();
    if (llvm::Error error = runPasses(info.stage))
      return error;
    if (options.stopAfter == info.stage)
      return printModule();
  }
  llvm_unreachable("emit is the last stage");
}

llvm::Error mla::compile(const CompileOptions &options, raw_ostream &out,
                         raw_ostream &err) {
  return Compilation(options, out, err).run();
}
