//===- OutputConfig.h - how a config tells of quantization ------*- C++ -*-===//
//
// Part of mla. The forms in which other programs expect it: "fp8" (DeepSeek),
// "compressed-tensors" for int4 and for nvfp4 of its own naming, and "modelopt"
// for nvfp4 and for several formats at once, with hf_quant_config.json beside.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_QUANTIZE_OUTPUTCONFIG_H
#define MLA_RUNTIME_QUANTIZE_OUTPUTCONFIG_H

#include "runtime/quantize/Layout.h"

namespace mla::quantize {

struct ConfigTexts {
  std::string config;                       ///< config.json
  std::optional<std::string> hfQuantConfig; ///< hf_quant_config.json
};

/// The config.json of `file` with what `layout` makes of its quantization: in
/// its text_config where the input has it there, else at the top level.
/// Everything else stays, in the order of the keys.
Result<ConfigTexts> outputConfig(const std::filesystem::path &file,
                                 const Layout &layout, bool fp8Cache,
                                 bool ue8m0);

} // namespace mla::quantize

#endif // MLA_RUNTIME_QUANTIZE_OUTPUTCONFIG_H
