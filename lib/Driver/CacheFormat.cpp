//===- CacheFormat.cpp - which format the latent cache gets ---------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "CacheFormat.h"
#include "mla/Config/KvScales.h"
#include <algorithm>
#include <charconv>
#include <cmath>

namespace mla {

/// --kv-scales as a number, if it is one.
static std::optional<float> parseScale(const std::string &text) {
  float value = 0;
  const char *end = text.data() + text.size();
  auto parsed = std::from_chars(text.data(), end, value);
  if (parsed.ptr != end || parsed.ec == std::errc::invalid_argument)
    return std::nullopt;
  // Beyond f32, which is refused as 0 is.
  return parsed.ec == std::errc() ? value : 0;
}

/// The scales of an FP8 cache: given, or the checkpoint's, or 1 with a warning.
static Status findScales(const CacheRequest &request, const ModelConfig &config,
                         const Checkpoint *checkpoint, CacheChoice &choice) {
  auto layers = static_cast<size_t>(config.layers);
  if (std::optional<float> scale = parseScale(request.scales)) {
    if (!std::isfinite(*scale) || !(*scale > 0))
      return invalid("--kv-scales: expected a positive number of f32, found " +
                     request.scales);
    choice.scales.assign(layers, *scale);
    choice.scaleSource = "the command line";
    return {};
  }
  KvScales found;
  if (!request.scales.empty()) {
    MLA_ASSIGN_OR_RETURN(found, readKvScales(request.scales, config.layers));
  } else if (checkpoint) {
    MLA_ASSIGN_OR_RETURN(found, checkpointKvScales(config, *checkpoint));
  } else {
    found.scales.assign(layers, 1.0F);
    found.known.assign(layers, false);
  }
  choice.scales = found.scales;
  choice.scaleSource = found.source;
  choice.warnings = found.warnings;
  if (found.all())
    return {};
  if (found.none())
    choice.scaleSource = "none found: 1";
  if (checkpoint) {
    auto without = std::count(found.known.begin(), found.known.end(), false);
    choice.warnings.push_back(
        "the FP8 latent cache has no scale in " + std::to_string(without) +
        " of " + std::to_string(layers) +
        " layers, 1.0 is used there; values beyond 448 will be cut off (measure "
        "scales with 'mla-run calibrate', give them with --kv-scales)");
  }
  return {};
}

Result<CacheChoice> chooseCacheFormat(const CacheRequest &request,
                                      const ModelConfig &config,
                                      const Checkpoint *checkpoint) {
  CacheChoice choice;
  const QuantizationConfig &quantization = config.quantization;
  if (request.plain && (request.format.value_or(Format::F32) != Format::F32 ||
                        !request.scales.empty()))
    return invalid("--kv-cache-dtype and --kv-scales are about latent caches, "
                   "and --plain keeps expanded ones, in f32");
  if (request.format) {
    choice.format = *request.format;
    choice.reason = "--kv-cache-dtype";
    if (quantization.fp8KvCache && choice.format != Format::FP8E4M3)
      choice.reason += ", over the FP8 that " + quantization.source + " asks for";
  } else if (quantization.fp8KvCache && !request.plain) {
    choice.format = Format::FP8E4M3;
    choice.reason = quantization.source + " asks for it";
  } else {
    choice.format = request.fallback;
    choice.reason = "the default";
  }
  if (choice.format == Format::FP8E4M3)
    MLA_RETURN_IF_ERROR(findScales(request, config, checkpoint, choice));
  else if (!request.scales.empty())
    return invalid("--kv-scales needs an fp8_e4m3 cache, and " + choice.reason +
                   " gives " + std::string(formatName(choice.format)) +
                   "; add --kv-cache-dtype fp8_e4m3");
  return choice;
}

} // namespace mla
