//===- KvScales.h - scales of an FP8 latent cache ---------------*- C++ -*-===//
//
// Part of mla. stored = e4m3(value / scale), value = stored * scale, one scale
// a layer. Checkpoints keep them as self_attn.k_proj.k_scale and v_proj.v_scale
// (ModelOpt; also self_attn.k_scale, attn.k_scale), although the modules k_proj
// and v_proj do not exist in latent attention; the latent cache uses k_scale.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CONFIG_KVSCALES_H
#define MLA_CONFIG_KVSCALES_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"

namespace mla {

struct KvScales {
  std::vector<float> scales;         ///< one a layer; 1 where there is none
  std::vector<bool> known;           ///< per layer: whether there was one
  std::vector<std::string> warnings; ///< k_scale and v_scale differ, ...
  std::string source;                ///< where they come from, for messages
  std::vector<std::string> tensors; ///< of the checkpoint: names that were read
  bool all() const;                 ///< every layer has one
  bool none() const;                ///< no layer has one
};

/// The scales that the checkpoint holds, which are one F32 or BF16 value each
/// (shape [] or [1]). Reads a few bytes of each tensor. A scale that is not
/// positive and finite, or a tensor of another dtype or shape, is an error that
/// lists all such tensors. Warnings: k_scale and v_scale of a layer differ;
/// some layers have no k_scale and others have.
Result<KvScales> checkpointKvScales(const ModelConfig &config,
                                    const Checkpoint &checkpoint);

/// The file that `mla-run calibrate` writes:
///   {"kv_scales": {"model.layers.0.self_attn": {"k_scale": 0.0123,
///                  "amax": 5.5}, ...}}
/// Every layer of the model must be in it and no other. "amax" may be absent
/// and is not used.
Result<KvScales> readKvScales(const std::filesystem::path &file,
                              int64_t layers);
/// The text of that file. `amax`: the largest magnitude of a latent row's value
/// in each layer, finite and not negative. The scale is the smallest f32 for
/// which amax / scale is at most 448, the largest e4m3 value, in f32; 1 if
/// amax / 448 is 0. Numbers read back as the same f32.
std::string printKvScales(const std::vector<float> &amax);

} // namespace mla

#endif // MLA_CONFIG_KVSCALES_H
