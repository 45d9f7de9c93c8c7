//===- Weights.cpp - weight declarations and their formats ----------------===//
//
// Part of mla. What the file holds decides (lib/Config/StoredWeight.cpp); the
// config's quantization section is asked when there is no file.
//
//===----------------------------------------------------------------------===//
#include "Weights.h"
#include "mla/Support/LLVMError.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mla;

std::string mla::huggingFaceModule(StringRef path) {
  return path == "lm_head" ? path.str() : "model." + path.str();
}

WeightTable::WeightTable(ModuleOp module, const ModelConfig &config,
                         const Checkpoint *checkpoint,
                         const ImportOptions &options)
    : module(module), builder(module.getBodyRegion()), config(config),
      options(options) {
  if (checkpoint)
    finder.emplace(config, *checkpoint);
}

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

WeightOp WeightTable::declare(const std::string &symbol,
                              ArrayRef<int64_t> shape, const Source &source) {
  auto type = WeightType::get(builder.getContext(), shape, source.format);
  auto loc = NameLoc::get(builder.getStringAttr(symbol));
  SmallVector<StringRef> scales;
  for (StringRef name : ArrayRef(source.tensors).drop_front())
    scales.push_back(name);
  auto op = WeightOp::create(
      builder, loc, builder.getStringAttr(symbol), TypeAttr::get(type),
      builder.getStringAttr(source.tensors.front()),
      scales.empty() ? ArrayAttr() : builder.getStrArrayAttr(scales),
      source.reciprocalGlobal ? builder.getUnitAttr() : UnitAttr(), ShardAttr());
  declared[symbol] = op;
  return op;
}

WeightOp WeightTable::get(StringRef path, StringRef suffix,
                          ArrayRef<int64_t> shape, WeightRole role) {
  std::string symbol = path.str();
  if (suffix != ".weight")
    symbol += suffix;
  if (auto found = declared.find(symbol); found != declared.end())
    return found->second;
  return declare(symbol, shape,
                 sourceOf({huggingFaceModule(path), suffix.str(),
                           std::vector<int64_t>(shape), role}));
}

WeightOp WeightTable::getStack(StringRef path, StringRef leaf, int64_t count,
                               ArrayRef<int64_t> shape) {
  auto member = [&](const std::string &number) {
    return ModelWeight{huggingFaceModule(path) + "." + number + "." +
                           leaf.str(),
                       ".weight", std::vector<int64_t>(shape),
                       WeightRole::Linear};
  };
  // Announced formats are asked for the first expert only: no config singles
  // one out, and matching every name against every pattern takes seconds.
  Source stack = sourceOf(member("0"));
  for (std::string &name : stack.tensors)
    name = member("{}").module + name.substr(member("0").module.size());
  for (int64_t e = 1; finder && e < count; ++e) {
    ModelWeight weight = member(std::to_string(e));
    size_t problems = finder->missing().size() + finder->misfits().size();
    Source other = stored(weight);
    if (problems != finder->missing().size() + finder->misfits().size())
      continue;
    for (std::string &name : other.tensors)
      name = member("{}").module + name.substr(weight.module.size());
    // A kernel reads a whole stack in one format.
    if (!(other == stack))
      finder->noteMisfit(weight.module + ": expected " +
                         std::string(formatName(stack.format)) +
                         " in the tensors of the stack's first expert, found " +
                         std::string(formatName(other.format)) +
                         (other.format == stack.format ? " in others" : ""));
  }
  SmallVector<int64_t, 3> stackShape{count};
  stackShape.append(shape.begin(), shape.end());
  return declare((path + "." + leaf).str(), stackShape, stack);
}

//===----------------------------------------------------------------------===//
// Formats
//===----------------------------------------------------------------------===//

WeightTable::Source WeightTable::expected(const ModelWeight &weight) const {
  Format format = options.syntheticWeights ? Format::BF16 : config.dtype;
  // Routing is decided in f32; the bias is stored so in every checkpoint.
  if (weight.suffix == ".e_score_correction_bias") {
    format = Format::F32;
  } else if (weight.role == WeightRole::Linear) {
    Format announced =
        config.quantization.expectedFormat(weight.module, format);
    // No quantizer cuts a group; what it cannot divide it leaves.
    if (announced == Format::FP8Block ||
        weight.shape.back() % scaleGroup(announced) == 0)
      format = announced;
  }
  switch (format) {
  case Format::FP8Block:
    return {format, {weight.name(), weight.module + ".weight_scale_inv"}};
  case Format::NVFP4:
    return {format,
            {weight.name(), weight.module + ".weight_scale",
             weight.module + ".weight_scale_2"}};
  case Format::Int4G32:
    return {format,
            {weight.module + ".weight_packed",
             weight.module + ".weight_scale"}};
  default:
    return {format, {weight.name()}};
  }
}

WeightTable::Source WeightTable::stored(const ModelWeight &weight) {
  StoredWeight found = finder->find(weight);
  Source out{found.format, {}};
  for (const StoredPart &part : found.parts) {
    out.tensors.emplace_back(Checkpoint::textName(part.tensor->name));
    out.reciprocalGlobal |= part.reciprocal;
  }
  // Something is missing, which is noted: the graph will not be used.
  if (out.tensors.empty())
    out.tensors.push_back(weight.name());
  return out;
}

//===----------------------------------------------------------------------===//
// Reports
//===----------------------------------------------------------------------===//

bool WeightTable::holds(StringRef path) const {
  return !finder || finder->holds(huggingFaceModule(path));
}

llvm::Error WeightTable::takeErrors() const {
  return finder ? toError(finder->status()) : llvm::Error::success();
}

void WeightTable::report(bool tiedHead) {
  if (!finder)
    return;
  auto loc = NameLoc::get(builder.getStringAttr("checkpoint"));
  WeightFinder::Unused unused = finder->unused(tiedHead);
  for (const WeightFinder::Skipped &skipped : unused.skipped)
    mlir::emitRemark(loc) << "skipped: " << skipped.tensors << " tensor"
                          << (skipped.tensors == 1 ? "" : "s") << " of "
                          << skipped.what;
  for (const FormatContradiction &c : finder->contradictions())
    mlir::emitRemark(loc) << "the config announces "
                          << StringRef(formatName(c.expected))
                          << ", the file has "
                          << StringRef(formatName(c.found)) << " for "
                          << c.weights << " weight"
                          << (c.weights == 1 ? "" : "s") << ", as "
                          << c.example << "; the file is followed";
  if (unused.unknown.empty())
    return;
  constexpr size_t shown = 5;
  auto warning = mlir::emitWarning(loc)
                 << "no use for " << unused.unknown.size() << " tensor"
                 << (unused.unknown.size() == 1 ? "" : "s") << ": ";
  for (auto [i, tensor] : llvm::enumerate(unused.unknown)) {
    if (i == shown) {
      warning << ", ...";
      break;
    }
    warning << (i ? ", " : "") << tensor->name;
  }
}
