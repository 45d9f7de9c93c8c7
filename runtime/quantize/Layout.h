//===- Layout.h - where each tensor of the output comes from ----*- C++ -*-===//
//
// Part of mla. Everything that is decided before a tensor is read.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_QUANTIZE_LAYOUT_H
#define MLA_RUNTIME_QUANTIZE_LAYOUT_H

#include "mla/Config/SafetensorsWriter.h"
#include "runtime/quantize/Recipe.h"
#include <cstddef>

namespace mla::quantize {

/// A matrix that changes its format. Its outputs are consecutive and in the
/// order of storageParts().
struct Conversion {
  std::string tensor; ///< the main tensor's name in the input, for messages
  StoredWeight from;
  Format to = Format::BF16;
  int64_t rows = 0, columns = 0;
  size_t firstOutput = 0;
  uint64_t bytesBefore() const;
};

/// A tensor that is copied byte for byte.
struct Copy {
  const TensorInfo *tensor;
  size_t output;
};

/// A tensor whose bytes are known.
struct Literal {
  size_t output;
  std::vector<std::byte> bytes;
};

/// A linear module of the output. Also of what is no part of the text model:
/// drafting layers, a vision model.
struct Module {
  std::string name; ///< as the file has it, "language_model." included
  Format format = Format::BF16;
  bool quantized = false; ///< `format` has scales
  bool changed = false;
  bool text = false;     ///< of the text model: counted in the summary
  std::string whyKept;   ///< "" if its format is the one wanted
  uint64_t elements = 0; ///< 0 unless `text`, as are the bytes
  uint64_t bytesBefore = 0, bytesAfter = 0;
};

struct Layout {
  std::vector<TensorSpec> outputs;
  std::vector<Conversion> conversions;
  /// Indices of conversions. All of a group share their global scale, which
  /// only the gate_proj and up_proj of an MLP in nvfp4 do.
  std::vector<std::vector<size_t>> groups;
  std::vector<Copy> copies;
  std::vector<Literal> literals;
  std::vector<Module> modules;
  /// Kept nvfp4 weights have the names of compressed-tensors.
  bool packedNvfp4 = false;
  bool hasCacheScales = false;
  bool hasInputScales = false; ///< of kept nvfp4 weights, named as ModelOpt's
};

/// `checkpoint` must outlive the layout. `cacheScales` (one a layer, or none)
/// replace those of the input. Invalid if the checkpoint does not fit the
/// config or a glob of the recipe matches nothing.
Result<Layout> makeLayout(const ModelConfig &config,
                          const Checkpoint &checkpoint, const Recipe &recipe,
                          const std::vector<float> &cacheScales);

} // namespace mla::quantize

#endif // MLA_RUNTIME_QUANTIZE_LAYOUT_H
