//===- UnusedTensors.cpp - tensors that no weight asked for ---------------===//
//
// Part of mla. A tensor that nothing reads is either explained (drafting
// layers, vision, scales of activations), or it is a sign that config and
// checkpoint do not belong together.
//
//===----------------------------------------------------------------------===//
#include "mla/Config/StoredWeight.h"
#include <array>
#include <set>

namespace mla {
namespace {
/// In the order in which they are told.
enum Reason { Drafting, Vision, Scales, Tables, TiedHead, None };

bool startsWithAny(std::string_view name,
                   std::initializer_list<std::string_view> prefixes) {
  for (std::string_view prefix : prefixes)
    if (name.starts_with(prefix))
      return true;
  return false;
}

bool endsWithAny(std::string_view name,
                 std::initializer_list<std::string_view> suffixes) {
  for (std::string_view suffix : suffixes)
    if (name.ends_with(suffix))
      return true;
  return false;
}

Reason reasonOf(std::string_view name, int64_t layer, const ModelConfig &config,
                bool tiedHead) {
  if (layer >= config.layers && layer < config.layers + config.nextnLayers)
    return Drafting;
  if (startsWithAny(name, {"vision_tower.", "mm_projector.", "visual.",
                           "multi_modal_projector."}))
    return Vision;
  if (endsWithAny(name, {".input_scale", ".input_global_scale", ".k_scale",
                         ".v_scale"}))
    return Scales;
  if (name.ends_with(".rotary_emb.inv_freq"))
    return Tables;
  return tiedHead && name.starts_with("lm_head.") ? TiedHead : None;
}
} // namespace

WeightFinder::Unused WeightFinder::unused(bool tiedHead) const {
  std::array<Skipped, None> groups;
  std::set<int64_t> draftingLayers;
  Unused out;
  for (size_t i = 0; i < used.size(); ++i) {
    if (used[i])
      continue;
    const TensorInfo &tensor = checkpoint.tensors()[i];
    std::string_view name = Checkpoint::textName(tensor.name);
    int64_t layer = Checkpoint::layerOf(name);
    Reason reason = reasonOf(name, layer, config, tiedHead);
    if (reason == None) {
      out.unknown.push_back(&tensor);
      continue;
    }
    if (reason == Drafting)
      draftingLayers.insert(layer);
    ++groups[reason].tensors;
    groups[reason].bytes += tensor.bytes;
  }
  groups[Drafting].what = std::to_string(draftingLayers.size()) +
                          " multi-token-prediction layer" +
                          (draftingLayers.size() == 1 ? "" : "s");
  groups[Vision].what = "the vision model";
  groups[Scales].what = "activation and cache scales";
  groups[Tables].what = "rotary tables, which are computed from the config";
  groups[TiedHead].what = "lm_head, which the config ties to the embedding";
  for (Skipped &group : groups)
    if (group.tensors != 0)
      out.skipped.push_back(std::move(group));
  return out;
}

} // namespace mla
