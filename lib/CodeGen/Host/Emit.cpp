//===- Emit.cpp - from launches to a plan on disk -------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CodeGen/Host/Emit.h"
#include "mla/Dialect/MLA.h"
#include "mla/Support/LLVMError.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"

using namespace mlir;
using namespace mla;

static llvm::Error makeError(const llvm::Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

/// The features of a CPU level that the runtime must find on the machine.
static std::optional<std::vector<std::string>> featuresOf(llvm::StringRef cpu) {
  std::vector<std::string> v3 = {"avx", "avx2", "bmi",  "bmi2",
                                 "f16c", "fma", "lzcnt", "movbe"};
  if (cpu == "x86-64-v3")
    return v3;
  if (cpu != "x86-64-v4")
    return std::nullopt;
  for (const char *f : {"avx512f", "avx512bw", "avx512cd", "avx512dq",
                        "avx512vl"})
    v3.push_back(f);
  return v3;
}

namespace {
/// Translates one lowered module.
class PlanBuilder {
public:
  PlanBuilder(ModuleOp module, const Checkpoint *checkpoint,
              const HostPlanOptions &options, plan::Plan &plan)
      : module(module), checkpoint(checkpoint), options(options), plan(plan) {}

  llvm::Error build() {
    for (auto weight : module.getOps<WeightOp>())
      if (llvm::Error error = addWeight(weight))
        return error;
    for (auto cache : module.getOps<CacheOp>()) {
      auto type = cast<CacheType>(cache.getType());
      cacheIndex[cache.getSymName()] = plan.caches.size();
      plan.caches.push_back({cache.getSymName().str(), type.getFormat(),
                             type.getWidth(),
                             stringifyCacheKind(type.getKind()).str()});
    }
    for (auto program : module.getOps<ProgramOp>())
      if (llvm::Error error = addProgram(program))
        return error;
    return llvm::Error::success();
  }

private:
  llvm::Error addWeight(WeightOp weight);
  llvm::Error addSources(llvm::StringRef pattern, int64_t count, bool stacked,
                         std::vector<plan::TensorSource> &out);
  llvm::Error addProgram(ProgramOp program);
  llvm::Error addLaunch(LaunchOp launch, plan::Program &program);
  llvm::Expected<uint32_t> kernelOf(LaunchOp launch);
  llvm::Expected<plan::Expr> parse(llvm::StringRef text) {
    auto expr = plan::Expr::parse(std::string_view(text));
    if (!expr.ok())
      return toError(expr.status());
    return *std::move(expr);
  }

  ModuleOp module;
  const Checkpoint *checkpoint;
  const HostPlanOptions &options;
  plan::Plan &plan;
  llvm::StringMap<uint32_t> weightIndex, cacheIndex, kernelIndex;
  llvm::DenseMap<Value, uint32_t> workspaceIndex;
};
} // namespace

llvm::Error PlanBuilder::addWeight(WeightOp weight) {
  auto type = cast<WeightType>(weight.getType());
  // A synthetic part is made like a whole tensor of its size.
  if (weight.getSlice() &&
      options.weights == plan::Checkpoint::Kind::Safetensors)
    return makeError("the weight " + weight.getSymName() +
                     " is a part of its tensor; the host reads whole ones");
  plan::Weight out;
  out.name = weight.getSymName().str();
  out.format = type.getFormat();
  out.shape.assign(type.getShape().begin(), type.getShape().end());
  out.stacked = type.getRank() == 3;
  int64_t count = out.stacked ? type.getDim(0) : 1;
  if (llvm::Error error =
          addSources(weight.getTensor(), count, out.stacked, out.sources))
    return error;
  auto scales = weight.getScales().value_or(ArrayAttr());
  for (size_t i = 0; scales && i < scales.size(); ++i) {
    plan::WeightScales &part = out.scales.emplace_back();
    part.reciprocal = i == 1 && weight.getReciprocalGlobal();
    if (llvm::Error error =
            addSources(cast<StringAttr>(scales[i]).getValue(), count,
                       out.stacked, part.sources))
      return error;
  }
  weightIndex[out.name] = plan.weights.size();
  plan.weights.push_back(std::move(out));
  return llvm::Error::success();
}

/// The tensor `pattern`, or those of a stack of `count`.
llvm::Error PlanBuilder::addSources(llvm::StringRef pattern, int64_t count,
                                    bool stacked,
                                    std::vector<plan::TensorSource> &out) {
  size_t hole = pattern.find("{}");
  for (int64_t i = 0; i < count; ++i) {
    plan::TensorSource source;
    source.tensor = pattern.str();
    if (stacked)
      source.tensor.replace(hole, 2, std::to_string(i));
    if (options.weights == plan::Checkpoint::Kind::Safetensors) {
      const TensorInfo *info =
          checkpoint ? checkpoint->find(source.tensor) : nullptr;
      if (!info)
        return makeError("the checkpoint has no tensor '" + source.tensor +
                         "'");
      source.file = info->file;
      source.offset = info->offset;
    }
    out.push_back(std::move(source));
  }
  return llvm::Error::success();
}

llvm::Expected<uint32_t> PlanBuilder::kernelOf(LaunchOp launch) {
  llvm::StringRef name = launch.getKernel();
  auto [it, isNew] = kernelIndex.try_emplace(name, plan.kernels.size());
  if (!isNew)
    return it->second;
  auto kernels = module.lookupSymbol<ModuleOp>("kernels");
  auto function = kernels.lookupSymbol<func::FuncOp>(name);
  plan::Kernel kernel{name.str(), {}};
  auto access = function->getAttrOfType<ArrayAttr>("mla.access");
  for (auto [operand, mode] : llvm::zip(launch.getOperands(), access)) {
    plan::Parameter p;
    llvm::StringRef text = cast<StringAttr>(mode).getValue();
    p.access = text == "read"    ? plan::Access::Read
               : text == "write" ? plan::Access::Write
                                 : plan::Access::ReadWrite;
    if (auto weight = dyn_cast<WeightType>(operand.getType())) {
      p.format = weight.getFormat();
      if (weight.getRank() == 3 || storagePartCount(weight.getFormat()) > 1)
        p.kind = plan::Parameter::Kind::Table;
    } else if (auto cache = dyn_cast<CacheType>(operand.getType())) {
      p.format = cache.getFormat();
    } else {
      p.format = cast<BufferType>(operand.getType()).getFormat();
    }
    kernel.parameters.push_back(p);
  }
  plan::Parameter scalar;
  scalar.kind = plan::Parameter::Kind::Scalar;
  kernel.parameters.insert(kernel.parameters.end(),
                           launch.getScalars().size(), scalar);
  plan.kernels.push_back(std::move(kernel));
  return it->second;
}

llvm::Error PlanBuilder::addLaunch(LaunchOp launch, plan::Program &program) {
  plan::Launch out;
  auto kernel = kernelOf(launch);
  if (!kernel)
    return kernel.takeError();
  out.kernel = *kernel;
  auto grid = parse(launch.getGrid());
  if (!grid)
    return grid.takeError();
  out.grid = *grid;
  out.origin = launch.getOrigin().str();
  for (Value operand : launch.getOperands()) {
    Operation *def = operand.getDefiningOp();
    if (auto weight = dyn_cast<GetWeightOp>(def)) {
      out.arguments.push_back({plan::WeightRef{weightIndex.at(weight.getName())}});
    } else if (auto cache = dyn_cast<GetCacheOp>(def)) {
      out.arguments.push_back({plan::CacheRef{cacheIndex.at(cache.getName())}});
    } else if (auto port = dyn_cast<PortOp>(def)) {
      for (size_t i = 0; i < plan::portCount; ++i)
        if (port.getName() ==
            llvm::StringRef(plan::portName(static_cast<plan::Port>(i))))
          out.arguments.push_back({static_cast<plan::Port>(i)});
    } else {
      out.arguments.push_back(
          {plan::WorkspaceRef{workspaceIndex.at(operand)}});
    }
  }
  for (Attribute scalar : launch.getScalars()) {
    auto expr = parse(cast<StringAttr>(scalar).getValue());
    if (!expr)
      return expr.takeError();
    out.arguments.push_back({*expr});
  }
  program.launches.push_back(std::move(out));
  return llvm::Error::success();
}

llvm::Error PlanBuilder::addProgram(ProgramOp op) {
  plan::Program program;
  program.name = op.getSymName().str();
  program.maxTokens = op.getMaxTokens();
  program.maxSequences = op.getMaxSequences();
  program.maxOutputs = op.getMaxOutputs();
  auto bytes = op.getWorkspaceBytes();
  if (!bytes)
    return makeError("the program " + program.name +
                     " has no workspace plan; run mla-plan-memory");
  program.workspaceBytes = *bytes;
  for (auto workspace : op.getBody().front().getOps<WorkspaceOp>()) {
    auto type = cast<BufferType>(workspace.getResult().getType());
    plan::Workspace out;
    out.name = "w" + std::to_string(program.workspaces.size());
    out.format = type.getFormat();
    for (StringAttr dim : type.getShape()) {
      auto expr = parse(dim.getValue());
      if (!expr)
        return expr.takeError();
      out.shape.push_back(*expr);
    }
    auto offset = workspace.getOffset();
    if (!offset)
      return makeError("a workspace of " + program.name +
                       " has no offset; run mla-plan-memory");
    out.offset = *offset;
    workspaceIndex[workspace.getResult()] = program.workspaces.size();
    program.workspaces.push_back(std::move(out));
  }
  for (auto launch : op.getBody().front().getOps<LaunchOp>())
    if (llvm::Error error = addLaunch(launch, program))
      return error;
  plan.programs.push_back(std::move(program));
  return llvm::Error::success();
}

llvm::Expected<plan::Plan> mla::buildPlan(ModuleOp module,
                                          const ModelConfig &config,
                                          const Checkpoint *checkpoint,
                                          const HostPlanOptions &options) {
  plan::Plan plan;
  auto features = featuresOf(options.cpu);
  if (!features)
    return makeError("expected a CPU of x86-64-v3 or x86-64-v4, found '" +
                     options.cpu + "'");
  plan.producer = options.producer;
  plan.target = {"host", options.cpu, *features, plan::hostKernelAbi};
  plan.model = {config.architectureName, config.vocabSize,
                config.layers,           config.hiddenSize,
                config.maxPositions,     config.bosToken,
                config.eosTokens};
  plan.checkpoint.kind = options.weights;
  plan.checkpoint.seed = options.seed;
  if (options.weights == plan::Checkpoint::Kind::Safetensors && checkpoint) {
    std::error_code ec;
    plan.checkpoint.folder =
        std::filesystem::canonical(checkpoint->folder(), ec).string();
    for (const CheckpointFile &file : checkpoint->files())
      plan.checkpoint.files.push_back(
          {file.name, file.size, file.headerBytes, file.headerHash});
  }
  plan.maxPages =
      (config.maxPositions + plan::pageTokens - 1) / plan::pageTokens;
  PlanBuilder builder(module, checkpoint, options, plan);
  if (llvm::Error error = builder.build())
    return error;
  return plan;
}

llvm::Expected<plan::Plan>
mla::emitHostPlan(ModuleOp module, const ModelConfig &config,
                  const Checkpoint *checkpoint, const HostPlanOptions &options,
                  const std::filesystem::path &folder) {
  auto plan = buildPlan(module, config, checkpoint, options);
  if (!plan)
    return plan.takeError();
  plan->library = "kernels.so";
  std::filesystem::path library = folder / plan->library;
  auto kernels = module.lookupSymbol<ModuleOp>("kernels");
  if (llvm::Error error = compileHostKernels(kernels, options.cpu, library))
    return error;
  auto hash = plan::hashFile(library);
  if (!hash.ok())
    return toError(hash.status());
  plan->libraryHash = *hash;
  std::filesystem::path model = config.file.parent_path();
  for (const char *name : {"tokenizer.json", "tiktoken.model",
                           "tokenizer_config.json", "generation_config.json"}) {
    std::error_code ec;
    if (!std::filesystem::is_regular_file(model / name, ec))
      continue;
    std::filesystem::copy_file(model / name, folder / name, ec);
    if (ec)
      return makeError("cannot copy " + (model / name).string() + ": " +
                       ec.message());
    plan->tokenizerFiles.push_back(name);
  }
  if (llvm::Error error = toError(plan::write(*plan, folder)))
    return error;
  return plan;
}
