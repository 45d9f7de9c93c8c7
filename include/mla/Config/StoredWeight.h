//===- StoredWeight.h - which tensors a weight is made of -------*- C++ -*-===//
//
// Part of mla. The file decides the format of a weight: the dtype of its main
// tensor and the tensors beside it. The config's quantization section is asked
// only when there is no file, since real checkpoints contradict it (the router,
// for one, is in no exclusion list and yet not quantized).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CONFIG_STOREDWEIGHT_H
#define MLA_CONFIG_STOREDWEIGHT_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"

namespace mla {

/// Whether a weight in `format` has scales beside its values.
inline bool isQuantized(Format format) { return storagePartCount(format) > 1; }

/// What may be assumed of the format of a weight.
enum class WeightRole {
  Plain,  ///< norms, biases, the embedding: elements that stand alone
  Exempt, ///< router, lm_head, ...: quantized only if the file says so
  Linear  ///< quantized where the config says so
};

/// One weight of a model, before any file is looked at.
struct ModelWeight {
  std::string module; ///< Hugging Face name, "model.layers.0.mlp.up_proj"
  std::string suffix; ///< of the tensor's name: ".weight", ".bias" or nothing
  std::vector<int64_t> shape;
  WeightRole role = WeightRole::Plain;
  std::string name() const { return module + suffix; }
};

/// All weights that the text model of `config` needs (drafting layers are not
/// used and not listed), in the order of the layers. lm_head is left out if the
/// config ties it. The front end asks for exactly these.
std::vector<ModelWeight> modelWeights(const ModelConfig &config);

/// One tensor of a weight.
struct StoredPart {
  const TensorInfo *tensor = nullptr;
  /// The file has the reciprocal of what storageParts() means: the global scale
  /// of compressed-tensors (weight_global_scale).
  bool reciprocal = false;
};

/// Where a weight comes from. `parts` has as many entries as its format has
/// parts, in the order of storageParts(); it is empty if a part is missing or
/// does not fit.
struct StoredWeight {
  Format format = Format::BF16;
  std::vector<StoredPart> parts;
};

/// Weights that the config announces in one format and the file has in another.
/// The file wins; this is for a note, not an error.
struct FormatContradiction {
  Format expected, found;
  size_t weights = 0;
  std::string example; ///< name of the first weight's tensor
};

/// Finds weights in a checkpoint and notes what does not fit, so that one error
/// can list everything. Reads no file: headers are all it needs.
class WeightFinder {
public:
  /// Keeps references to both.
  WeightFinder(const ModelConfig &config, const Checkpoint &checkpoint);

  /// The tensors of `weight`. In a format as the file has it: f32, bf16, f16;
  /// fp8_block (F8_E4M3 with weight_scale_inv), nvfp4 (ModelOpt's weight,
  /// weight_scale, weight_scale_2, or weight_packed, weight_scale,
  /// weight_global_scale of compressed-tensors), int4_g32 (weight_packed,
  /// weight_scale, weight_shape). A missing part, one of the wrong dtype or
  /// shape is noted. Only a matrix that is not Plain may be quantized. Whose
  /// shards the parts are in does not matter.
  StoredWeight find(const ModelWeight &weight);

  /// Whether the checkpoint holds a main tensor of `module`.
  bool holds(const std::string &module) const;

  /// Everything noted by now, as one error that lists it.
  Status status() const;
  /// The notes: full names of tensors, and messages about misfits.
  const std::vector<std::string> &missing() const { return absent; }
  const std::vector<std::string> &misfits() const { return wrong; }
  /// Notes a misfit that only the caller can see.
  void noteMisfit(std::string message) { wrong.push_back(std::move(message)); }
  /// One entry for each pair of formats, in the order of finding.
  const std::vector<FormatContradiction> &contradictions() const {
    return contradicted;
  }

  /// Takes a tensor that is no part of a weight out of unused().
  void markUsed(const std::string &name) { use(name); }
  /// What the tensors are that no weight asked for: groups with a reason, and
  /// the rest, which is a sign that config and checkpoint do not belong
  /// together. `tiedHead`: lm_head is not used because the config ties it.
  struct Skipped {
    std::string what; ///< "1 multi-token-prediction layer", "the vision model"
    size_t tensors = 0;
    uint64_t bytes = 0;
  };
  struct Unused {
    std::vector<Skipped> skipped;
    std::vector<const TensorInfo *> unknown;
  };
  Unused unused(bool tiedHead) const;

private:
  struct Want;
  const TensorInfo *use(const std::string &name);
  bool check(const TensorInfo &tensor, const Want &want);
  bool noteOtherScale(const std::string &module, Format format,
                      const std::string &wanted);
  void noteContradiction(const ModelWeight &weight, const StoredWeight &stored);

  const ModelConfig &config;
  const Checkpoint &checkpoint;
  ExpectedFormats expectedFormats;
  std::vector<bool> used; ///< of checkpoint.tensors()
  std::vector<std::string> absent, wrong;
  std::vector<FormatContradiction> contradicted;
};

} // namespace mla

#endif // MLA_CONFIG_STOREDWEIGHT_H
