//===- Weights.cpp - weight declarations and their formats ----------------===//
//
// Part of mla. The file decides the format of a weight: its dtype and the
// tensors beside it. The config's quantization section is only asked when there
// is no file, since real checkpoints contradict it (the router, for one, is in
// no exclusion list and yet not quantized).
//
//===----------------------------------------------------------------------===//
#include "Weights.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mla;

std::string mla::huggingFaceModule(StringRef path) {
  return path == "lm_head" ? path.str() : "model." + path.str();
}

StringRef mla::textName(StringRef name) {
  name.consume_front("language_model.");
  return name;
}

static std::string shapeText(ArrayRef<int64_t> shape) {
  std::string text;
  llvm::raw_string_ostream out(text);
  out << '[';
  llvm::interleaveComma(shape, out);
  out << ']';
  return text;
}

static std::optional<Format> directFormat(StringRef dtype) {
  if (dtype == "F32")
    return Format::F32;
  if (dtype == "BF16")
    return Format::BF16;
  if (dtype == "F16")
    return Format::F16;
  return std::nullopt;
}

static int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

WeightTable::WeightTable(ModuleOp module, const ModelConfig &config,
                         const Checkpoint *checkpoint,
                         const ImportOptions &options)
    : module(module), builder(module.getBodyRegion()), config(config),
      checkpoint(checkpoint), options(options) {
  if (checkpoint)
    used.resize(checkpoint->tensors().size());
}

//===----------------------------------------------------------------------===//
// Declarations
//===----------------------------------------------------------------------===//

WeightOp WeightTable::declare(const std::string &symbol,
                              ArrayRef<int64_t> shape, const Stored &stored) {
  auto type = WeightType::get(builder.getContext(), shape, stored.format);
  auto loc = NameLoc::get(builder.getStringAttr(symbol));
  auto op = WeightOp::create(builder, loc, builder.getStringAttr(symbol),
                             TypeAttr::get(type),
                             builder.getStringAttr(stored.tensor));
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
  std::string hf = huggingFaceModule(path);
  return declare(symbol, shape,
                 checkpoint ? stored(hf, suffix, shape, role)
                            : expected(hf, suffix, role));
}

WeightOp WeightTable::getStack(StringRef path, StringRef leaf, int64_t count,
                               ArrayRef<int64_t> shape) {
  auto member = [&](const std::string &number) {
    return huggingFaceModule(path) + "." + number + "." + leaf.str();
  };
  // Announced formats are asked for the first expert only: no config singles
  // one out, and matching every name against every pattern takes seconds.
  Stored first = checkpoint
                     ? stored(member("0"), ".weight", shape, WeightRole::Linear)
                     : expected(member("0"), ".weight", WeightRole::Linear);
  for (int64_t e = 1; checkpoint && e < count; ++e) {
    size_t problems = missing.size() + misfits.size();
    Stored other =
        stored(member(std::to_string(e)), ".weight", shape, WeightRole::Linear);
    // A kernel reads a whole stack in one format.
    if (other.format != first.format &&
        problems == missing.size() + misfits.size())
      misfits.push_back(other.tensor + ": expected " +
                        std::string(formatName(first.format)) +
                        " as in the stack's first expert, found " +
                        std::string(formatName(other.format)));
  }
  std::string suffix =
      first.tensor.substr(member("0").size()); // ".weight" or ".weight_packed"
  first.tensor = member("{}") + suffix;

  SmallVector<int64_t, 3> stackShape{count};
  stackShape.append(shape.begin(), shape.end());
  return declare((path + "." + leaf).str(), stackShape, first);
}

//===----------------------------------------------------------------------===//
// Formats
//===----------------------------------------------------------------------===//

WeightTable::Stored WeightTable::expected(const std::string &module,
                                          StringRef suffix,
                                          WeightRole role) const {
  Format format = options.syntheticWeights ? Format::BF16 : config.dtype;
  // Routing is decided in f32; the bias is stored so in every checkpoint.
  if (suffix == ".e_score_correction_bias")
    format = Format::F32;
  else if (role == WeightRole::Linear && !options.syntheticWeights)
    format = config.quantization.expectedFormat(module, format);
  std::string tensor = module + suffix.str();
  if (format == Format::Int4G32)
    tensor += "_packed";
  return {format, tensor};
}

WeightTable::Stored WeightTable::stored(const std::string &module,
                                        StringRef suffix,
                                        ArrayRef<int64_t> shape,
                                        WeightRole role) {
  bool mayBePacked = role != WeightRole::Plain;
  std::string name = module + suffix.str();
  if (const TensorInfo *weight = use(name)) {
    if (mayBePacked && weight->dtype == "F8_E4M3")
      return storedFp8(module, shape, *weight);
    if (mayBePacked && weight->dtype == "U8")
      return storedNvfp4(module, shape, *weight, ".weight_scale_2");
    if (mayBePacked)
      check(*weight, {"F32", "BF16", "F16", "F8_E4M3", "U8"}, shape);
    else
      check(*weight, {"F32", "BF16", "F16"}, shape);
    return {directFormat(weight->dtype).value_or(config.dtype), name};
  }
  if (mayBePacked)
    if (const TensorInfo *packed = use(module + ".weight_packed"))
      return packed->dtype == "U8"
                 ? storedNvfp4(module, shape, *packed, ".weight_global_scale")
                 : storedInt4(module, shape, *packed);
  missing.push_back(name);
  return {config.dtype, name};
}

WeightTable::Stored WeightTable::storedFp8(const std::string &module,
                                           ArrayRef<int64_t> shape,
                                           const TensorInfo &weight) {
  check(weight, {"F8_E4M3"}, shape);
  require(module + ".weight_scale_inv", {"F32"},
          {ceilDiv(shape[0], 128), ceilDiv(shape[1], 128)});
  return {Format::FP8Block, module + ".weight"};
}

WeightTable::Stored WeightTable::storedNvfp4(const std::string &module,
                                             ArrayRef<int64_t> shape,
                                             const TensorInfo &weight,
                                             const char *globalScale) {
  if (groupsDivide(weight, shape[1], 16)) {
    check(weight, {"U8"}, {shape[0], shape[1] / 2});
    require(module + ".weight_scale", {"F8_E4M3"}, {shape[0], shape[1] / 16});
  }
  // One producer writes a scalar, the other one element.
  std::string name = module + globalScale;
  const TensorInfo *scale = checkpoint->find(name);
  if (scale && scale->shape.size() == 1)
    require(name, {"F32"}, {1});
  else
    require(name, {"F32"}, {});
  return {Format::NVFP4, textName(weight.name).str()};
}

WeightTable::Stored WeightTable::storedInt4(const std::string &module,
                                            ArrayRef<int64_t> shape,
                                            const TensorInfo &weight) {
  if (groupsDivide(weight, shape[1], 32)) {
    check(weight, {"I32"}, {shape[0], shape[1] / 8});
    require(module + ".weight_scale", {"BF16"}, {shape[0], shape[1] / 32});
  }
  require(module + ".weight_shape", {"I32", "I64"}, {2});
  return {Format::Int4G32, module + ".weight_packed"};
}

//===----------------------------------------------------------------------===//
// Checks
//===----------------------------------------------------------------------===//

bool WeightTable::holds(StringRef path) const {
  std::string module = huggingFaceModule(path);
  return !checkpoint || checkpoint->find(module + ".weight") ||
         checkpoint->find(module + ".weight_packed");
}

const TensorInfo *WeightTable::use(const std::string &name) {
  const TensorInfo *tensor = checkpoint->find(name);
  if (tensor)
    used.set(tensor - checkpoint->tensors().data());
  return tensor;
}

bool WeightTable::check(const TensorInfo &tensor, ArrayRef<StringRef> dtypes,
                        ArrayRef<int64_t> shape) {
  if (!llvm::is_contained(dtypes, tensor.dtype)) {
    misfits.push_back(tensor.name + ": expected " + llvm::join(dtypes, " or ") +
                      ", found " + tensor.dtype);
    return false;
  }
  if (ArrayRef<int64_t>(tensor.shape) != shape) {
    misfits.push_back(tensor.name + ": expected " + shapeText(shape) +
                      ", found " + shapeText(tensor.shape));
    return false;
  }
  return true;
}

void WeightTable::require(const std::string &name, ArrayRef<StringRef> dtypes,
                          ArrayRef<int64_t> shape) {
  if (const TensorInfo *tensor = use(name))
    check(*tensor, dtypes, shape);
  else
    missing.push_back(name);
}

bool WeightTable::groupsDivide(const TensorInfo &tensor, int64_t columns,
                               int64_t group) {
  if (columns % group == 0)
    return true;
  misfits.push_back(tensor.name + ": groups of " + std::to_string(group) +
                    " columns do not divide its " + std::to_string(columns) +
                    " columns");
  return false;
}

llvm::Error WeightTable::takeErrors() const {
  if (missing.empty() && misfits.empty())
    return llvm::Error::success();
  // A wrong config can make every tensor wrong; the first few say so.
  constexpr size_t shown = 40;
  std::string text;
  size_t lines = 0;
  auto line = [&](const std::string &message) {
    if (++lines <= shown)
      text += "\n  " + message;
  };
  for (const std::string &name : missing)
    line("missing: " + name);
  for (const std::string &message : misfits)
    line(message);
  if (lines > shown)
    text += "\n  ... and " + std::to_string(lines - shown) + " more";
  return llvm::createStringError("the checkpoint in %s does not fit %s:%s",
                                 checkpoint->folder().string().c_str(),
                                 config.file.filename().string().c_str(),
                                 text.c_str());
}
