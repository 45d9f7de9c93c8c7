//===- PlanBuilder.cpp - from launches to a plan --------------------------===//
//
// Part of mla. The same for every target: what differs is where kernels come
// from, and whether weights are read through views.
//
//===----------------------------------------------------------------------===//
#include "mla/CodeGen/PlanBuilder.h"
#include "mla/Dialect/MLA.h"
#include "mla/Support/LLVMError.h"

using namespace mlir;
using namespace mla;

static llvm::Error makeError(const llvm::Twine &message) {
  return llvm::createStringError(llvm::inconvertibleErrorCode(), message);
}

namespace {
/// Translates one lowered module.
class PlanBuilder {
public:
  PlanBuilder(ModuleOp module, const Checkpoint *checkpoint,
              const PlanOptions &options, plan::Plan &plan)
      : module(module), checkpoint(checkpoint), options(options), plan(plan) {}

  llvm::Error build() {
    // In the order of the module, also those that no launch reads; of a GPU's
    // plan the views, as launches name them.
    if (plan.target.isHost())
      for (auto weight : module.getOps<WeightOp>())
        if (llvm::Error error = addWeight(weight, ViewAttr()).takeError())
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

  /// The kernel that benchmarks measure memory with, if the target has one. No
  /// program launches it.
  void addReadCeiling() {
    auto kernels = module.lookupSymbol<ModuleOp>("kernels");
    Operation *function = kernels.lookupSymbol("read_ceiling");
    if (!function || kernelIndex.contains("read_ceiling"))
      return;
    plan::Kernel kernel{"read_ceiling", {}};
    kernel.threads =
        function->getAttrOfType<IntegerAttr>("mla.threads").getInt();
    kernel.sharedBytes =
        function->getAttrOfType<IntegerAttr>("mla.shared").getInt();
    plan::Parameter buffer, sink, bytes;
    sink.format = Format::I32;
    sink.access = plan::Access::Write;
    bytes.kind = plan::Parameter::Kind::Scalar;
    kernel.parameters = {buffer, sink, bytes};
    plan.kernels.push_back(std::move(kernel));
  }

private:
  llvm::Expected<uint32_t> addWeight(WeightOp weight, ViewAttr view);
  llvm::Expected<uint32_t> weightOf(GetWeightOp get);
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
  const PlanOptions &options;
  plan::Plan &plan;
  llvm::DenseMap<std::pair<Attribute, Attribute>, uint32_t> weightIndex;
  llvm::StringMap<int> weightNames;
  llvm::StringMap<uint32_t> cacheIndex, kernelIndex;
  llvm::DenseMap<Value, uint32_t> workspaceIndex;
};
} // namespace

/// How `view` lies in memory, and which part of the weight it is.
static void applyView(ViewAttr view, WeightType type, plan::Weight &out) {
  unsigned rank = type.getRank();
  out.layout = view.getLayout() == ViewLayout::Packed ? plan::Layout::Packed
                                                      : plan::Layout::Rows;
  out.format = *parseFormat(std::string_view(view.getFormat()));
  plan::Slice &slice = out.slice;
  slice.format = type.getFormat();
  slice.rows = rank == 1 ? 1 : type.getDim(rank - 2);
  slice.columns = type.getDim(rank - 1);
  slice.firstRow = view.getFirst();
  slice.blocks = view.getBlocks();
  slice.blockRows = view.getBlockRows();
  slice.rowStride = view.getStride();
  slice.transposed = view.getTransposed();
  if (rank == 1)
    return;
  int64_t columns = type.getDim(rank - 1);
  out.shape[rank - 2] =
      slice.blocks * (slice.transposed ? columns : slice.blockRows);
  if (slice.transposed)
    out.shape[rank - 1] = slice.blockRows;
}

llvm::Expected<uint32_t> PlanBuilder::addWeight(WeightOp weight,
                                                ViewAttr view) {
  auto type = cast<WeightType>(weight.getType());
  plan::Weight out;
  out.name = weight.getSymName().str();
  if (int before = weightNames[out.name]++)
    out.name += "#" + std::to_string(before + 1);
  out.format = type.getFormat();
  out.shape.assign(type.getShape().begin(), type.getShape().end());
  out.stacked = type.getRank() == 3;
  int64_t count = out.stacked ? type.getDim(0) : 1;
  if (view)
    applyView(view, type, out);
  if (ShardAttr shard = weight.getShardAttr()) {
    plan::Shard &to = out.shard.emplace();
    to.whole.assign(shard.getWhole().begin(), shard.getWhole().end());
    to.part.assign(type.getShape().begin(), type.getShape().end());
    for (auto [dim, count, stride] : llvm::zip(
             shard.getDims(), shard.getCounts(), shard.getStrides()))
      to.splits.push_back({dim, count, stride});
    if (out.stacked)
      count = to.whole[0];
  }
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
  uint32_t index = plan.weights.size();
  weightIndex[{weight.getSymNameAttr(), view}] = index;
  plan.weights.push_back(std::move(out));
  return index;
}

llvm::Expected<uint32_t> PlanBuilder::weightOf(GetWeightOp get) {
  auto view = get->getAttrOfType<ViewAttr>("view");
  auto known = weightIndex.find({get.getNameAttr().getAttr(), view});
  if (known != weightIndex.end())
    return known->second;
  return addWeight(module.lookupSymbol<WeightOp>(get.getName()), view);
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
  Operation *function = kernels.lookupSymbol(name);
  plan::Kernel kernel{name.str(), {}};
  auto number = [&](StringRef attribute) {
    auto value = function->getAttrOfType<IntegerAttr>(attribute);
    return value ? value.getInt() : 0;
  };
  if (auto kind = function->getAttrOfType<StringAttr>("mla.collective"))
    kernel.collective = plan::parseCollective(std::string_view(kind.getValue()))
                            .value_or(plan::Collective::None);
  kernel.threads = number("mla.threads");
  kernel.sharedBytes = number("mla.shared");
  auto access = function->getAttrOfType<ArrayAttr>("mla.access");
  for (auto [operand, mode] : llvm::zip(launch.getOperands(), access)) {
    plan::Parameter p;
    llvm::StringRef text = cast<StringAttr>(mode).getValue();
    p.access = text == "read"    ? plan::Access::Read
               : text == "write" ? plan::Access::Write
                                 : plan::Access::ReadWrite;
    if (auto weight = dyn_cast<WeightType>(operand.getType())) {
      auto index = weightOf(operand.getDefiningOp<GetWeightOp>());
      if (!index)
        return index.takeError();
      p.format = plan.weights[*index].format;
      if (plan.weights[*index].isTable())
        p.kind = plan::Parameter::Kind::Table;
    } else if (isa<PeersType>(operand.getType())) {
      p = {};
      p.kind = plan::Parameter::Kind::Peers;
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
      auto index = weightOf(weight);
      if (!index)
        return index.takeError();
      out.arguments.push_back({plan::WeightRef{*index}});
    } else if (auto cache = dyn_cast<GetCacheOp>(def)) {
      out.arguments.push_back({plan::CacheRef{cacheIndex.at(cache.getName())}});
    } else if (isa<PeersOp>(def)) {
      out.arguments.push_back({plan::PeersRef{}});
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
  if (auto bytes = launch.getWeightBytes()) {
    auto expr = parse(*bytes);
    if (!expr)
      return expr.takeError();
    out.weightBytes = *expr;
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
  plan.exchangeBytes =
      std::max<uint64_t>(plan.exchangeBytes, op.getExchangeBytes().value_or(0));
  for (auto workspace : op.getBody().front().getOps<WorkspaceOp>()) {
    auto type = cast<BufferType>(workspace.getResult().getType());
    plan::Workspace out;
    out.name = workspace.getValue()
                   ? workspace.getValue()->str()
                   : "w" + std::to_string(program.workspaces.size());
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
  if (!op.getSampling())
    plan.programs.push_back(std::move(program));
  else if (plan.sampling)
    return makeError("the program " + program.name +
                     " is a second one that samples");
  else
    plan.sampling = std::move(program);
  return llvm::Error::success();
}

llvm::Expected<plan::Plan> mla::buildPlan(ModuleOp module,
                                          const ModelConfig &config,
                                          const Checkpoint *checkpoint,
                                          const PlanOptions &options,
                                          plan::Target target) {
  plan::Plan plan;
  plan.producer = options.producer;
  plan.target = std::move(target);
  plan.model = {config.architectureName, config.vocabSize,
                config.layers,           config.hiddenSize,
                config.maxPositions,     config.bosToken,
                config.eosTokens};
  if (auto ranks = module->getAttrOfType<IntegerAttr>(ranksAttr)) {
    plan.ranks = options.ranks;
    plan.ranks.count = ranks.getInt();
    if (auto layout = module->getAttrOfType<StringAttr>(layoutAttr))
      plan.ranks.layout = layout.str();
    if (auto pages = module->getAttrOfType<IntegerAttr>(pageRanksAttr))
      plan.ranks.pageRanks = pages.getInt();
  }
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
  plan.maxPages = (config.maxPositions + plan.tokensOfPage() - 1) /
                  plan.tokensOfPage();
  PlanBuilder builder(module, checkpoint, options, plan);
  if (llvm::Error error = builder.build())
    return error;
  builder.addReadCeiling();
  return plan;
}

llvm::Error mla::writePlan(plan::Plan &plan, const ModelConfig &config,
                           const std::filesystem::path &folder) {
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
    plan.tokenizerFiles.push_back(name);
  }
  return toError(plan::write(plan, folder));
}

llvm::Error mla::writeCode(const std::filesystem::path &path,
                           llvm::StringRef bytes, uint64_t &hash) {
  std::error_code ec;
  {
    llvm::raw_fd_ostream out(path.string(), ec);
    if (!ec) {
      out << bytes;
      out.flush();
      ec = out.error();
      out.clear_error();
    }
  }
  if (ec)
    return makeError(path.string() + ": " + ec.message());
  auto found = plan::hashFile(path);
  if (!found.ok())
    return toError(found.status());
  hash = *found;
  return llvm::Error::success();
}
