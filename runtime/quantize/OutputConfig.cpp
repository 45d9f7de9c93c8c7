//===- OutputConfig.cpp - how a config tells of quantization --------------===//
//
// Part of mla. Lists of modules are shortened: where all modules below a name
// have one format, the name stands for them.
//
//===----------------------------------------------------------------------===//
#include "runtime/quantize/OutputConfig.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

namespace mla::quantize {
namespace {
using nlohmann::ordered_json;

Choice formatOf(const Module &module) {
  return module.quantized ? Choice(module.format) : Choice();
}

//===----------------------------------------------------------------------===//
// Names of many modules
//===----------------------------------------------------------------------===//

/// Modules by the parts of their names.
class ModuleTree {
public:
  void add(std::string_view name, Choice format) {
    formats.insert(format);
    size_t dot = name.find('.');
    std::unique_ptr<ModuleTree> &child =
        children[std::string(name.substr(0, dot))];
    if (!child)
      child = std::make_unique<ModuleTree>();
    if (dot == std::string_view::npos)
      child->formats.insert(format);
    else
      child->add(name.substr(dot + 1), format);
  }

  /// Calls visit(name, whole, unlike) for the highest names below which every
  /// module has `format`. `whole`: there are modules below it. `unlike`: a
  /// pattern "name*" would also match one of its neighbours.
  template <typename Visit>
  void visit(const Choice &format, const Visit &visitor,
             const std::string &prefix = "") const {
    for (const auto &[key, child] : children) {
      if (!child->formats.count(format))
        continue;
      std::string name = prefix + key;
      if (child->formats.size() == 1) {
        auto next = children.upper_bound(key);
        bool neighbour = next != children.end() && next->first.starts_with(key);
        bool number = key.find_first_not_of("0123456789") == std::string::npos;
        visitor(name, !child->children.empty(), neighbour || number);
      } else {
        child->visit(format, visitor, name + ".");
      }
    }
  }

private:
  std::set<Choice> formats; ///< of all modules below
  std::map<std::string, std::unique_ptr<ModuleTree>> children;
};

/// The modules without a format, or those of one, as globs.
std::vector<std::string> globs(const ModuleTree &tree, const Choice &format) {
  std::vector<std::string> out;
  tree.visit(format, [&](const std::string &name, bool whole, bool unlike) {
    out.push_back(!whole ? name : unlike ? name + ".*" : name + "*");
  });
  return out;
}

/// The same as regular expressions of compressed-tensors.
std::vector<std::string> expressions(const ModuleTree &tree) {
  std::vector<std::string> out;
  tree.visit({}, [&](const std::string &name, bool whole, bool unlike) {
    if (!whole)
      return out.push_back(name);
    std::string text = "re:";
    for (char c : name)
      text += c == '.' ? std::string("\\.") : std::string(1, c);
    out.push_back(text + (unlike ? "\\..*" : ".*"));
  });
  return out;
}

/// The same one by one, as "fp8" wants it, but for experts, of which there are
/// thousands: their common name stands for them.
std::vector<std::string> names(const std::vector<Module> &modules) {
  std::vector<std::string> out;
  std::set<std::string> mixed; // Experts that are quantized in part.
  constexpr std::string_view experts = ".experts.";
  auto common = [&](const std::string &name) {
    size_t at = name.find(experts);
    return at == std::string::npos ? name
                                   : name.substr(0, at + experts.size() - 1);
  };
  for (const Module &m : modules)
    if (m.quantized)
      mixed.insert(common(m.name));
  for (const Module &m : modules) {
    if (m.quantized)
      continue;
    std::string name = mixed.count(common(m.name)) ? m.name : common(m.name);
    if (out.empty() || out.back() != name)
      out.push_back(std::move(name));
  }
  return out;
}

//===----------------------------------------------------------------------===//
// The forms
//===----------------------------------------------------------------------===//

ordered_json cacheScheme() {
  return {{"num_bits", 8}, {"type", "float"}, {"dynamic", false}};
}

ordered_json fp8Form(const std::vector<Module> &modules, bool ue8m0) {
  ordered_json out = {{"quant_method", "fp8"},
                      {"fmt", "e4m3"},
                      {"weight_block_size", {128, 128}},
                      {"activation_scheme", "dynamic"}};
  if (ue8m0)
    out["scale_fmt"] = "ue8m0";
  out["modules_to_not_convert"] = names(modules);
  return out;
}

ordered_json compressedForm(const ModuleTree &tree, bool nvfp4) {
  ordered_json weights = {{"num_bits", 4},
                          {"type", nvfp4 ? "float" : "int"},
                          {"symmetric", true},
                          {"strategy", nvfp4 ? "tensor_group" : "group"},
                          {"group_size", nvfp4 ? 16 : 32},
                          {"dynamic", false},
                          {"actorder", nullptr}};
  ordered_json group = {{"targets", {"Linear"}},
                        {"weights", std::move(weights)},
                        {"input_activations", nullptr},
                        {"output_activations", nullptr}};
  return {{"quant_method", "compressed-tensors"},
          {"format", nvfp4 ? "nvfp4-pack-quantized" : "pack-quantized"},
          {"config_groups", {{"group_0", std::move(group)}}},
          {"ignore", expressions(tree)},
          {"quantization_status", "compressed"}};
}

/// The keys that config.json and hf_quant_config.json have in common.
ordered_json modeloptForm(const ModuleTree &tree,
                          const std::set<Format> &formats) {
  ordered_json out = ordered_json::object();
  if (formats.empty()) { // Only the cache is quantized.
    out["quant_algo"] = nullptr;
  } else if (formats.size() == 1) {
    out["quant_algo"] = "NVFP4";
    out["group_size"] = 16;
  } else {
    out["quant_algo"] = "MIXED_PRECISION";
    auto layers = ordered_json::object();
    for (Format format : formats)
      for (const std::string &glob : globs(tree, format))
        layers[glob] = {{"quant_algo", format == Format::NVFP4 ? "NVFP4"
                                       : format == Format::FP8Block
                                           ? "FP8_PB_WO"
                                           : "W4A16_INT4"},
                        {"group_size", scaleGroup(format)}};
    out["quantized_layers"] = std::move(layers);
  }
  return out;
}

struct Forms {
  ordered_json config; ///< null if nothing is quantized
  std::optional<ordered_json> sidecar;
};

Forms makeForms(const Layout &layout, bool fp8Cache, bool ue8m0) {
  ModuleTree tree;
  std::set<Format> formats;
  for (const Module &module : layout.modules) {
    tree.add(module.name, formatOf(module));
    if (module.quantized)
      formats.insert(module.format);
  }
  if (formats.empty() && !fp8Cache)
    return {};
  Forms out;
  if (formats == std::set{Format::FP8Block}) {
    out.config = fp8Form(layout.modules, ue8m0);
  } else if (formats == std::set{Format::Int4G32}) {
    out.config = compressedForm(tree, /*nvfp4=*/false);
  } else if (formats == std::set{Format::NVFP4} && layout.packedNvfp4) {
    out.config = compressedForm(tree, /*nvfp4=*/true);
  } else {
    std::vector<std::string> ignore = globs(tree, {});
    ordered_json form = modeloptForm(tree, formats);
    out.config = {{"quant_method", "modelopt"}};
    out.config.update(form);
    if (formats.size() == 1) {
      ordered_json four = {{"dynamic", false},
                           {"num_bits", 4},
                           {"type", "float"},
                           {"group_size", 16}};
      ordered_json group = {{"weights", four}, {"targets", {"Linear"}}};
      if (layout.hasInputScales) // Without them activations stay in 16 bits.
        group["input_activations"] = std::move(four);
      out.config["config_groups"] = {{"group_0", std::move(group)}};
    }
    out.config["ignore"] = ignore;
    // Other programs know the form of the file by the name "modelopt".
    ordered_json quantization = form;
    quantization["kv_cache_quant_algo"] =
        fp8Cache ? ordered_json("FP8") : ordered_json(nullptr);
    quantization["exclude_modules"] = std::move(ignore);
    out.sidecar = {
        {"producer",
         {{"name", "modelopt"}, {"version", "mla-quantize " MLA_VERSION}}},
        {"quantization", std::move(quantization)}};
  }
  if (fp8Cache)
    out.config["kv_cache_scheme"] = cacheScheme();
  return out;
}

std::string print(const ordered_json &json) {
  return json.dump(2, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

/// What JsonDocument has read and checked, to be written again.
ordered_json copyOf(const JsonValue &value) {
  return ordered_json::parse(value.dump(), nullptr, /*allow_exceptions=*/false);
}
} // namespace

Result<ConfigTexts> outputConfig(const std::filesystem::path &file,
                                 const Layout &layout, bool fp8Cache,
                                 bool ue8m0) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseFile(file));
  constexpr const char *key = "quantization_config";
  constexpr const char *text = "text_config";
  JsonValue root = document->root();
  bool nested = root[text][key].present() && !root[key].present();
  Forms forms = makeForms(layout, fp8Cache, ue8m0);

  ordered_json config = copyOf(root);
  config.erase(key);
  if (root[text].isObject())
    config[text].erase(key);
  if (!forms.config.is_null())
    (nested ? config[text] : config)[key] = std::move(forms.config);
  ConfigTexts out;
  out.config = print(config);
  if (forms.sidecar)
    out.hfQuantConfig = print(*forms.sidecar);
  return out;
}

} // namespace mla::quantize
