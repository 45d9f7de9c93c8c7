//===- Quantization.cpp - quantization_config and its sidecar -------------===//
//
// Part of mla. Three producers describe the same few formats: "fp8" (DeepSeek,
// GLM), "compressed-tensors" (Kimi) and "modelopt" (NVIDIA), the last in
// config.json, in hf_quant_config.json, or in both. The format of the KV cache
// is read apart from that of the weights: either may be there without the
// other.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"
#include <algorithm>
#include <set>

namespace mla::config {
using Method = QuantizationConfig::Method;

static void readExclude(ConfigReader &reader, const JsonValue &list,
                        QuantizationConfig &out) {
  if (!list.present())
    return;
  for (const JsonValue &entry : list.elements()) {
    if (!entry.isString())
      entry.fail("a module name or pattern");
    else if (!appendExclude(entry.string(), out.exclude))
      reader.refuse(entry, "unsupported regular expression in an exclude list "
                           "(supported: letters, \\., ., .*, (a|b)), found " +
                               entry.describe());
  }
}

/// Fails unless `v` is absent, null or the integer `value`.
static void expectInteger(ConfigReader &reader, const JsonValue &v,
                          int64_t value, std::string_view what) {
  if (v.present() && v.dump() != std::to_string(value))
    reader.refuse(v, "unsupported " + std::string(what) + " (" + v.describe() +
                         ", supported: " + std::to_string(value) + ")");
}

/// kv_cache_scheme: null or a description of FP8.
static bool readCacheScheme(ConfigReader &reader, const JsonValue &v) {
  if (!v.present())
    return false;
  if (!v.isObject()) {
    v.fail("an object or null");
    return false;
  }
  expectInteger(reader, v["num_bits"], 8, "KV cache width");
  if (JsonValue type = v["type"]; type.present() && type.string() != "float")
    reader.refuse(type, "unsupported KV cache type (" + type.describe() +
                            ", supported: float)");
  return true;
}

//===----------------------------------------------------------------------===//
// fp8
//===----------------------------------------------------------------------===//

static void readFp8(ConfigReader &reader, const JsonValue &v,
                    QuantizationConfig &out) {
  out.method = Method::Fp8Block;
  out.groupSize = 128;
  if (JsonValue fmt = v["fmt"]; fmt.present() && fmt.string() != "e4m3")
    reader.refuse(fmt, "unsupported FP8 format (" + fmt.describe() +
                           ", supported: e4m3)");
  if (JsonValue scheme = v["activation_scheme"];
      scheme.present() && scheme.string() != "dynamic")
    reader.refuse(scheme, "unsupported activation scheme (" +
                              scheme.describe() + ", supported: dynamic)");
  JsonValue block = v["weight_block_size"];
  if (!block.isArray() || block.dump() != "[128,128]")
    reader.refuse(block,
                  "unsupported weight_block_size (" +
                      (block.isArray() ? block.dump() : block.describe()) +
                      ", supported: [128,128])");
  if (JsonValue scale = v["scale_fmt"]; scale.present()) {
    std::string text = scale.string();
    out.scaleUe8m0 = text == "ue8m0";
    if (scale.isString() && text != "ue8m0" && text != "float")
      reader.refuse(scale, "unsupported scale_fmt (" + scale.describe() +
                               ", supported: ue8m0)");
  }
  readExclude(reader, v["modules_to_not_convert"], out);
  readExclude(reader, v["ignored_layers"], out);
  out.fp8KvCache = readCacheScheme(reader, v["kv_cache_scheme"]);
}

//===----------------------------------------------------------------------===//
// Groups of compressed-tensors and of modelopt's mirror
//===----------------------------------------------------------------------===//

/// Checks each config group against what one method of ours means.
static void readGroups(ConfigReader &reader, const JsonValue &groups,
                       std::string_view type, int64_t groupSize) {
  for (const auto &[name, group] : groups.members()) {
    JsonValue weights = group["weights"];
    if (!weights.isObject()) {
      weights.fail("an object");
      continue;
    }
    expectInteger(reader, weights["num_bits"], 4, "weight width");
    expectInteger(reader, weights["group_size"], groupSize,
                  "weight group size");
    if (JsonValue t = weights["type"]; !t.isString() || t.string() != type)
      reader.refuse(t, "unsupported weight type (" + t.describe() +
                           ", supported: " + std::string(type) + ")");
    if (JsonValue s = weights["symmetric"]; s.present() && !s.boolean())
      reader.refuse(s, "unsupported asymmetric weights");
    JsonValue order = weights["actorder"];
    if (order.present() && order.dump() != "false" &&
        order.dump() != "\"static\"" && order.dump() != "\"weight\"")
      reader.refuse(order, "unsupported actorder (" + order.describe() + ")");
    if (JsonValue targets = group["targets"];
        targets.present() && targets.dump() != "[\"Linear\"]")
      reader.refuse(targets, "unsupported targets (" + targets.dump() +
                                 ", supported: [\"Linear\"])");
  }
}

static void readCompressedTensors(ConfigReader &reader, const JsonValue &v,
                                  QuantizationConfig &out) {
  JsonValue format = v["format"];
  out.algorithm = format.string();
  if (out.algorithm == "pack-quantized") {
    out.method = Method::Int4Group;
    out.groupSize = 32;
    readGroups(reader, v["config_groups"], "int", 32);
    for (const auto &[name, group] : v["config_groups"].members())
      if (JsonValue in = group["input_activations"]; in.present())
        reader.refuse(in, "unsupported quantized activations beside int4 "
                          "weights");
  } else if (out.algorithm == "nvfp4-pack-quantized") {
    out.method = Method::Nvfp4;
    out.groupSize = 16;
    readGroups(reader, v["config_groups"], "float", 16);
  } else if (format.isString()) {
    reader.refuse(format, "unsupported compressed-tensors format (" +
                              format.describe() +
                              ", supported: pack-quantized, "
                              "nvfp4-pack-quantized)");
  }
  readExclude(reader, v["ignore"], out);
  out.fp8KvCache = readCacheScheme(reader, v["kv_cache_scheme"]);
}

//===----------------------------------------------------------------------===//
// modelopt
//===----------------------------------------------------------------------===//

namespace {
/// The algorithms of modelopt whose weights are in a format of ours. What they
/// do with activations is no matter of the file.
struct Algorithm {
  std::string_view name;
  Method method;
  Format format;
  int64_t groupSize;
};
constexpr Algorithm algorithms[] = {
    {"NVFP4", Method::Nvfp4, Format::NVFP4, 16},
    {"W4A16_NVFP4", Method::Nvfp4, Format::NVFP4, 16},
    {"FP8_PB_WO", Method::Fp8Block, Format::FP8Block, 128},
    {"W4A16_INT4", Method::Int4Group, Format::Int4G32, 32},
};
constexpr std::string_view mixedAlgorithm = "MIXED_PRECISION";
} // namespace

/// The row of "quant_algo" in `v`, null after a mistake. Its group size is
/// checked.
static const Algorithm *readAlgorithm(ConfigReader &reader, const JsonValue &v,
                                      bool mayBeMixed) {
  JsonValue algo = v["quant_algo"];
  std::string name = algo.string(), supported;
  for (const Algorithm &row : algorithms) {
    if (row.name == name) {
      expectInteger(reader, v["group_size"], row.groupSize,
                    "weight group size");
      return &row;
    }
    supported.append(supported.empty() ? "" : ", ").append(row.name);
  }
  if (mayBeMixed)
    supported.append(", ").append(mixedAlgorithm);
  if (algo.isString())
    reader.refuse(algo, "unsupported quantization algorithm (" +
                            algo.describe() + ", supported: " + supported +
                            ")");
  return nullptr;
}

/// quantized_layers: module or glob -> {quant_algo, group_size}.
static void readMixed(ConfigReader &reader, const JsonValue &v,
                      QuantizationConfig &out) {
  out.method = Method::Mixed;
  for (const auto &[key, value] : v["quantized_layers"].members()) {
    if (!value.isObject()) {
      value.fail("an object");
      continue;
    }
    const Algorithm *row = readAlgorithm(reader, value, /*mayBeMixed=*/false);
    std::vector<std::string> patterns;
    if (!appendExclude(key, patterns))
      reader.refuse(value, "unsupported regular expression as a key");
    if (!row)
      continue;
    for (std::string &pattern : patterns) {
      if (pattern.find_first_of("*?[") == std::string::npos)
        out.modules.emplace(std::move(pattern), row->format);
      else
        out.globs.emplace_back(std::move(pattern), row->format);
    }
  }
  std::stable_sort(out.globs.begin(), out.globs.end(),
                   [](const auto &a, const auto &b) {
                     return a.first.size() > b.first.size();
                   });
}

/// Both spellings: the sidecar's (exclude_modules, kv_cache_quant_algo) and the
/// mirror's in config.json (ignore, kv_cache_scheme, config_groups).
static void readModelopt(ConfigReader &reader, const JsonValue &v,
                         QuantizationConfig &out) {
  JsonValue algo = v["quant_algo"];
  if (algo.absent() && v["kv_cache_quant_algo"].absent())
    algo.fail("a string");
  if (algo.present())
    out.algorithm = algo.string();
  if (out.algorithm == mixedAlgorithm) {
    readMixed(reader, v, out);
  } else if (algo.present()) {
    const Algorithm *row = readAlgorithm(reader, v, /*mayBeMixed=*/true);
    if (!row)
      return;
    out.method = row->method;
    out.groupSize = row->groupSize;
  }
  if (JsonValue groups = v["config_groups"];
      groups.present() && out.method == Method::Nvfp4)
    readGroups(reader, groups, "float", 16);
  readExclude(reader, v["exclude_modules"], out);
  readExclude(reader, v["ignore"], out);

  out.fp8KvCache = readCacheScheme(reader, v["kv_cache_scheme"]);
  if (JsonValue kv = v["kv_cache_quant_algo"]; kv.present()) {
    if (kv.string() == "FP8")
      out.fp8KvCache = true;
    else if (kv.isString())
      reader.refuse(kv, "unsupported KV cache algorithm (" + kv.describe() +
                            ", supported: FP8)");
  }
}

//===----------------------------------------------------------------------===//
// Entry points
//===----------------------------------------------------------------------===//

QuantizationConfig readQuantization(ConfigReader &reader, const JsonValue &v) {
  QuantizationConfig out;
  if (!v.present())
    return out;
  if (!v.isObject()) {
    v.fail("an object or null");
    return out;
  }
  out.source = v.file() + " at " + v.pointer();
  JsonValue method = v["quant_method"];
  std::string name;
  if (method.present())
    name = method.string();
  else if (v["quant_algo"].present() || v["quantization"].isObject())
    name = "modelopt"; // Its older versions name only the algorithm.
  else
    method.fail("a string");

  if (name == "fp8") {
    out.algorithm = name;
    readFp8(reader, v, out);
  } else if (name == "compressed-tensors") {
    readCompressedTensors(reader, v, out);
  } else if (name == "modelopt" || name == "modelopt_fp4") {
    JsonValue nested = v["quantization"];
    readModelopt(reader, nested.isObject() ? nested : v, out);
  } else if (!name.empty()) {
    reader.refuse(method, "unsupported quantization method (" +
                              method.describe() +
                              ", supported: fp8, compressed-tensors, "
                              "modelopt)");
  }
  return out;
}

QuantizationConfig readSidecar(ConfigReader &reader, const JsonValue &root) {
  QuantizationConfig out;
  JsonValue v = root["quantization"];
  if (!v.isObject()) {
    v.fail("an object");
    return out;
  }
  out.source = root.file();
  readModelopt(reader, v, out);
  return out;
}

std::string quantizationDifference(const QuantizationConfig &a,
                                   const QuantizationConfig &b) {
  if (a.method != b.method)
    return "method " + std::string(methodName(a.method)) + " and " +
           std::string(methodName(b.method));
  if (a.groupSize != b.groupSize)
    return "group size " + std::to_string(a.groupSize) + " and " +
           std::to_string(b.groupSize);
  if (a.scaleUe8m0 != b.scaleUe8m0)
    return std::string("scale_fmt ") + (a.scaleUe8m0 ? "ue8m0" : "none") +
           " and " + (b.scaleUe8m0 ? "ue8m0" : "none");
  if (a.fp8KvCache != b.fp8KvCache)
    return std::string("KV cache ") + (a.fp8KvCache ? "FP8" : "unquantized") +
           " and " + (b.fp8KvCache ? "FP8" : "unquantized");
  if (a.modules != b.modules || a.globs != b.globs)
    return "the quantized_layers differ";
  std::set<std::string> left(a.exclude.begin(), a.exclude.end());
  std::set<std::string> right(b.exclude.begin(), b.exclude.end());
  std::vector<std::string> only;
  std::set_symmetric_difference(left.begin(), left.end(), right.begin(),
                                right.end(), std::back_inserter(only));
  if (!only.empty())
    return "the exclude lists differ in " + std::to_string(only.size()) +
           " entries, first \"" + only.front() + "\"";
  return "";
}

} // namespace mla::config
