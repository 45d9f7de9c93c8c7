//===- StoredWeight.cpp - which tensors a weight is made of ---------------===//
//
// Part of mla. One table of what a weight in each format consists of, and the
// checks of dtype and shape. Notes about misfits name the tensor, what was
// expected and what was found.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/StoredWeight.h"
#include <algorithm>

namespace mla {
namespace {
using Shape = std::vector<int64_t>;

std::string shapeText(const Shape &shape) {
  std::string text;
  for (int64_t dim : shape)
    text += (text.empty() ? "" : ", ") + std::to_string(dim);
  return "[" + text + "]";
}

std::optional<Format> plainFormat(std::string_view dtype) {
  if (dtype == "F32")
    return Format::F32;
  if (dtype == "BF16")
    return Format::BF16;
  if (dtype == "F16")
    return Format::F16;
  return std::nullopt;
}

int64_t ceilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
} // namespace

/// What is asked of one tensor.
struct WeightFinder::Want {
  std::string name;
  std::vector<std::string_view> dtypes;
  Shape shape;
  bool orOneElement = false; ///< a scalar, for which [1] will do too
  bool isPart = true;        ///< or only there to be checked
  bool reciprocal = false;
};

WeightFinder::WeightFinder(const ModelConfig &config,
                           const Checkpoint &checkpoint)
    : config(config), checkpoint(checkpoint),
      expectedFormats(config.quantization), used(checkpoint.tensors().size()) {}

bool WeightFinder::holds(const std::string &module) const {
  return checkpoint.find(module + ".weight") ||
         checkpoint.find(module + ".weight_packed");
}

const TensorInfo *WeightFinder::use(const std::string &name) {
  const TensorInfo *tensor = checkpoint.find(name);
  if (tensor)
    used[static_cast<size_t>(tensor - checkpoint.tensors().data())] = true;
  return tensor;
}

bool WeightFinder::check(const TensorInfo &tensor, const Want &want) {
  if (std::find(want.dtypes.begin(), want.dtypes.end(), tensor.dtype) ==
      want.dtypes.end()) {
    std::string expected;
    for (std::string_view dtype : want.dtypes)
      expected.append(expected.empty() ? "" : " or ").append(dtype);
    wrong.push_back(tensor.name + ": expected " + expected + ", found " +
                    tensor.dtype);
    return false;
  }
  if (tensor.shape == want.shape ||
      (want.orOneElement && tensor.shape == Shape{1}))
    return true;
  wrong.push_back(tensor.name + ": expected " + shapeText(want.shape) +
                  ", found " + shapeText(tensor.shape));
  return false;
}

/// FP8 with one scale a tensor, a row, or in another producer's blocks: a
/// format that is not read, rather than a tensor that got lost.
bool WeightFinder::noteOtherScale(const std::string &module, Format format,
                                  const std::string &wanted) {
  const TensorInfo *other =
      format == Format::FP8Block ? use(module + ".weight_scale") : nullptr;
  if (!other)
    return false;
  wrong.push_back(wanted +
                  ": expected one scale for each block of 128 x 128, "
                  "found only " +
                  other->name + " " + shapeText(other->shape));
  return true;
}

StoredWeight WeightFinder::find(const ModelWeight &weight) {
  const std::string &module = weight.module;
  bool mayBePacked =
      weight.role != WeightRole::Plain && weight.shape.size() == 2;
  const TensorInfo *main = checkpoint.find(weight.name());
  const TensorInfo *packed = mayBePacked && !main
                                 ? checkpoint.find(module + ".weight_packed")
                                 : nullptr;
  if (!main && !packed) {
    absent.push_back(weight.name());
    return {config.dtype, {}};
  }
  const std::string &dtype = (main ? main : packed)->dtype;

  StoredWeight out;
  if (packed)
    out.format = dtype == "U8" ? Format::NVFP4 : Format::Int4G32;
  else if (mayBePacked && dtype == "F8_E4M3")
    out.format = Format::FP8Block;
  else if (mayBePacked && dtype == "U8")
    out.format = Format::NVFP4;
  else
    out.format = plainFormat(dtype).value_or(config.dtype);

  std::vector<Want> wants;
  int64_t rows = weight.shape.front(), columns = weight.shape.back();
  switch (out.format) {
  case Format::FP8Block:
    wants = {{weight.name(), {"F8_E4M3"}, weight.shape},
             {module + ".weight_scale_inv",
              {"F32"},
              {ceilDiv(rows, 128), ceilDiv(columns, 128)}}};
    break;
  case Format::NVFP4:
    wants = {{packed ? module + ".weight_packed" : weight.name(),
              {"U8"},
              {rows, columns / 2}},
             {module + ".weight_scale", {"F8_E4M3"}, {rows, columns / 16}},
             {module + (packed ? ".weight_global_scale" : ".weight_scale_2"),
              {"F32"},
              {},
              /*orOneElement=*/true,
              /*isPart=*/true,
              /*reciprocal=*/packed != nullptr}};
    break;
  case Format::Int4G32:
    // The words already tell the shape, so weight_shape's values are not read.
    wants = {{module + ".weight_packed", {"I32"}, {rows, columns / 8}},
             {module + ".weight_scale", {"BF16"}, {rows, columns / 32}},
             {module + ".weight_shape",
              {"I32", "I64"},
              {2},
              /*orOneElement=*/false,
              /*isPart=*/false}};
    break;
  default:
    wants = {{weight.name(), {"F32", "BF16", "F16"}, weight.shape}};
    if (mayBePacked)
      wants[0].dtypes.insert(wants[0].dtypes.end(), {"F8_E4M3", "U8"});
  }

  // FP8 blocks may be cut at the edges; the other groups may not.
  int64_t group = out.format == Format::FP8Block ? 1 : scaleGroup(out.format);
  bool divides = columns % group == 0;
  if (!divides)
    wrong.push_back((main ? main : packed)->name + ": groups of " +
                    std::to_string(group) + " columns do not divide its " +
                    std::to_string(columns) + " columns");
  bool good = divides;
  for (const Want &want : wants) {
    const TensorInfo *tensor = use(want.name);
    if (!tensor && !noteOtherScale(module, out.format, want.name))
      absent.push_back(want.name);
    // Without whole groups there is no right shape to compare with.
    good &= tensor && (!divides || check(*tensor, want));
    if (want.isPart)
      out.parts.push_back({tensor, want.reciprocal});
  }
  if (!good)
    out.parts.clear();
  else
    noteContradiction(weight, out);
  return out;
}

void WeightFinder::noteContradiction(const ModelWeight &weight,
                                     const StoredWeight &stored) {
  if (weight.role == WeightRole::Plain)
    return;
  Format expected = expectedFormats.of(weight.module, config.dtype);
  bool quantized = isQuantized(stored.format);
  // What is exempt need not be quantized, whatever the config says.
  if (expected == stored.format || (!quantized && !isQuantized(expected)) ||
      (!quantized && weight.role == WeightRole::Exempt))
    return;
  for (FormatContradiction &known : contradicted)
    if (known.expected == expected && known.found == stored.format) {
      ++known.weights;
      return;
    }
  contradicted.push_back(
      {expected, stored.format, 1, stored.parts.front().tensor->name});
}

Status WeightFinder::status() const {
  if (absent.empty() && wrong.empty())
    return {};
  // A wrong config can make every tensor wrong; the first few say so.
  constexpr size_t shown = 40;
  std::string text;
  size_t lines = 0;
  auto line = [&](const std::string &message) {
    if (++lines <= shown)
      text += "\n  " + message;
  };
  for (const std::string &name : absent)
    line("missing: " + name);
  for (const std::string &message : wrong)
    line(message);
  if (lines > shown)
    text += "\n  ... and " + std::to_string(lines - shown) + " more";
  return invalid("the checkpoint in " + checkpoint.folder().string() +
                 " does not fit " + config.file.filename().string() + ":" +
                 text);
}

} // namespace mla
