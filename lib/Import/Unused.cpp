//===- Unused.cpp - tensors that the graph does not read ------------------===//
//
// Part of mla. A tensor that nothing reads is either explained (drafting
// layers, vision, scales of activations) and counted in a remark, or it is a
// sign that config and checkpoint do not belong together, and a warning.
//
//===----------------------------------------------------------------------===//
#include "Weights.h"
#include "llvm/ADT/SmallSet.h"
#include "llvm/ADT/StringExtras.h"

using namespace mlir;
using namespace mla;

/// The number of the layer of a text tensor, or -1.
static int64_t layerOf(StringRef name) {
  int64_t layer;
  if (name.consume_front("model.layers.") && !name.consumeInteger(10, layer))
    return layer;
  return -1;
}

static std::string count(size_t n, const char *what) {
  return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
}

void WeightTable::reportUnused(bool tiedHead) {
  if (!checkpoint)
    return;
  size_t drafting = 0, vision = 0, scales = 0, tables = 0, head = 0;
  llvm::SmallSet<int64_t, 4> draftingLayers;
  std::vector<StringRef> unknown;
  for (auto [index, tensor] : llvm::enumerate(checkpoint->tensors())) {
    if (used.test(index))
      continue;
    StringRef name = textName(tensor.name);
    int64_t layer = layerOf(name);
    if (layer >= config.layers && layer < config.layers + config.nextnLayers) {
      ++drafting;
      draftingLayers.insert(layer);
    } else if (name.starts_with("vision_tower.") ||
               name.starts_with("mm_projector.") ||
               name.starts_with("visual.") ||
               name.starts_with("multi_modal_projector.")) {
      ++vision;
    } else if (name.ends_with(".input_scale") ||
               name.ends_with(".input_global_scale") ||
               name.ends_with(".k_scale") || name.ends_with(".v_scale")) {
      ++scales;
    } else if (name.ends_with(".rotary_emb.inv_freq")) {
      ++tables;
    } else if (tiedHead && name.starts_with("lm_head.")) {
      ++head;
    } else {
      unknown.push_back(tensor.name);
    }
  }

  auto loc = NameLoc::get(builder.getStringAttr("checkpoint"));
  auto skipped = [&](size_t n, const std::string &what) {
    if (n)
      mlir::emitRemark(loc)
          << "skipped: " << count(n, "tensor") << " of " << what;
  };
  skipped(drafting,
          count(draftingLayers.size(), "multi-token-prediction layer"));
  skipped(vision, "the vision model");
  skipped(scales, "activation and cache scales");
  skipped(tables, "rotary tables, which are computed from the config");
  skipped(head, "lm_head, which the config ties to the embedding");
  if (unknown.empty())
    return;
  constexpr size_t shown = 5;
  size_t listed = std::min(shown, unknown.size());
  auto warning = mlir::emitWarning(loc)
                 << "no use for " << count(unknown.size(), "tensor") << ": "
                 << llvm::join(ArrayRef(unknown).take_front(listed), ", ");
  if (unknown.size() > listed)
    warning << ", ...";
}
