//===- CacheFormat.h - which format the latent cache gets -------*- C++ -*-===//
//
// Part of mla. Precedence: command line, then checkpoint, then default. The
// files of a model are never edited for this.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_DRIVER_CACHEFORMAT_H
#define MLA_LIB_DRIVER_CACHEFORMAT_H

#include "mla/Config/Checkpoint.h"
#include "mla/Config/ModelConfig.h"
#include <optional>

namespace mla {

/// What the command line says.
struct CacheRequest {
  std::optional<Format> format; ///< none: auto
  /// A file of mla-run calibrate, or one number for all layers; "" for neither.
  std::string scales;
  bool plain = false; ///< the graph keeps its expanded caches
  Format fallback = Format::F32; ///< of the target, if nobody asks for another
};

struct CacheChoice {
  Format format = Format::F32;
  std::vector<float> scales;         ///< with fp8_e4m3, one a layer
  std::string reason;                ///< "the checkpoint asks for it (...)"
  std::string scaleSource;           ///< with fp8_e4m3, where scales come from
  std::vector<std::string> warnings; ///< without an end of line
};

/// Invalid if the request contradicts itself or its scales cannot be read.
/// `checkpoint` is null if no weights are read.
Result<CacheChoice> chooseCacheFormat(const CacheRequest &request,
                                      const ModelConfig &config,
                                      const Checkpoint *checkpoint);

} // namespace mla

#endif // MLA_LIB_DRIVER_CACHEFORMAT_H
