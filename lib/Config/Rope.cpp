//===- Rope.cpp - rotary position embedding -------------------------------===//
//
// Part of mla. Reads the two spellings of the RoPE keys and computes what YaRN
// makes of them. transformers 4 writes rope_theta beside rope_scaling, 5 writes
// rope_parameters with both in it; a re-saved file may hold either or both.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"
#include <algorithm>
#include <cmath>
#include <numbers>

namespace mla {
using namespace config;

/// YaRN's m(s, k): the temperature for context stretched s times.
static double yarnScale(double factor, double k) {
  return factor <= 1.0 ? 1.0 : 0.1 * k * std::log(factor) + 1.0;
}

std::vector<float> RopeConfig::inverseFrequencies(int64_t dim) const {
  int64_t half = dim / 2;
  std::vector<float> out(static_cast<size_t>(std::max<int64_t>(half, 0)));
  double low = 0.0, high = 0.0;
  if (yarn) {
    // The dimension whose wave turns `rotations` times in the original context.
    auto correction = [&](double rotations) {
      return dim *
             std::log(yarn->originalMaxPositions /
                      (rotations * 2.0 * std::numbers::pi)) /
             (2.0 * std::log(theta));
    };
    low = std::max(std::floor(correction(yarn->betaFast)), 0.0);
    high = std::min(std::ceil(correction(yarn->betaSlow)), double(dim - 1));
    if (low == high)
      high += 0.001; // As the reference does, against a division by zero.
  }
  for (int64_t i = 0; i < half; ++i) {
    double plain = std::pow(theta, -2.0 * double(i) / double(dim));
    double value = plain;
    if (yarn) {
      double ramp = std::clamp((double(i) - low) / (high - low), 0.0, 1.0);
      value = plain / yarn->factor * ramp + plain * (1.0 - ramp);
    }
    out[static_cast<size_t>(i)] = static_cast<float>(value);
  }
  return out;
}

double RopeConfig::attentionFactor() const {
  if (!yarn)
    return 1.0;
  return yarnScale(yarn->factor, yarn->mscale) /
         yarnScale(yarn->factor, yarn->mscaleAllDim);
}

double RopeConfig::softmaxFactor() const {
  if (!yarn)
    return 1.0;
  double m = yarnScale(yarn->factor, yarn->mscaleAllDim);
  return m * m;
}

namespace {
/// One of the two objects that may describe the scaling.
struct RopeObject {
  bool present = false;
  std::optional<double> theta;
  std::optional<RopeConfig::Yarn> yarn;
};

/// The type under its two names, "default" if there is none.
std::string readType(const JsonValue &v) {
  JsonValue older = v["type"], newer = v["rope_type"];
  std::string type = "default";
  if (newer.present())
    type = newer.string();
  else if (older.present())
    type = older.string();
  if (newer.isString() && older.isString() && older.string() != type)
    older.failWith("contradicts rope_type: " + older.describe() + " and " +
                   newer.describe());
  return type;
}

/// An optional number; `other` if it is absent or null.
double optional(ConfigReader &reader, const JsonValue &v, double low,
                double high, double other) {
  return v.present() ? reader.number(v, low, high, other) : other;
}

double readTheta(ConfigReader &reader, const JsonValue &v) {
  return reader.number(v, 2.0, 1e15, RopeConfig().theta);
}

RopeConfig::Yarn readYarn(ConfigReader &reader, const JsonValue &v) {
  RopeConfig::Yarn yarn;
  yarn.factor = reader.number(v["factor"], 1.0, 1e6, 1.0);
  yarn.originalMaxPositions =
      v["original_max_position_embeddings"].integer(1, maxPositionCount);
  yarn.betaFast = optional(reader, v["beta_fast"], 1e-3, 1e6, yarn.betaFast);
  yarn.betaSlow = optional(reader, v["beta_slow"], 1e-3, 1e6, yarn.betaSlow);
  if (yarn.betaFast < yarn.betaSlow)
    v["beta_fast"].fail("a number of at least beta_slow (" +
                        v["beta_slow"].describe() + ")");
  yarn.mscale = optional(reader, v["mscale"], 1e-6, 1e6, yarn.mscale);
  yarn.mscaleAllDim =
      optional(reader, v["mscale_all_dim"], 0.0, 1e6, yarn.mscaleAllDim);
  // transformers and DeepSeek's own code disagree about these.
  if (yarn.mscaleAllDim == 0.0 && yarn.mscale != 1.0)
    reader.refuse(v["mscale"], "unsupported mscale without mscale_all_dim");
  if (yarn.mscaleAllDim != 0.0 && !v["mscale"].present())
    reader.refuse(v["mscale_all_dim"],
                  "unsupported mscale_all_dim without mscale");
  if (JsonValue own = v["attention_factor"]; own.present())
    reader.refuse(own, "unsupported YaRN option attention_factor (" +
                           own.describe() + ")");
  if (JsonValue truncate = v["truncate"];
      truncate.present() && !truncate.boolean())
    reader.refuse(truncate, "unsupported YaRN option truncate (" +
                                truncate.describe() + ")");
  return yarn;
}

/// In these models the whole of the rotary part rotates.
void refusePartial(ConfigReader &reader, const JsonValue &owner) {
  JsonValue part = owner["partial_rotary_factor"];
  if (part.present() && part.number() != 1.0)
    reader.refuse(part, "unsupported partial_rotary_factor (" +
                            part.describe() + ", supported: 1)");
}

RopeObject readObject(ConfigReader &reader, const JsonValue &v) {
  RopeObject out;
  if (!v.present())
    return out;
  if (!v.isObject()) {
    v.fail("an object or null");
    return out;
  }
  out.present = true;
  if (v["rope_theta"].present())
    out.theta = readTheta(reader, v["rope_theta"]);
  refusePartial(reader, v);
  std::string type = readType(v);
  if (type == "yarn")
    out.yarn = readYarn(reader, v);
  else if (type != "default" && type != "none" && !type.empty())
    reader.refuse(v[v["rope_type"].present() ? "rope_type" : "type"],
                  "unsupported RoPE scaling \"" + type +
                      "\" (supported: yarn, default, none)");
  return out;
}

bool sameYarn(const std::optional<RopeConfig::Yarn> &a,
              const std::optional<RopeConfig::Yarn> &b) {
  if (!a || !b)
    return !a && !b;
  return a->factor == b->factor &&
         a->originalMaxPositions == b->originalMaxPositions &&
         a->betaFast == b->betaFast && a->betaSlow == b->betaSlow &&
         a->mscale == b->mscale && a->mscaleAllDim == b->mscaleAllDim;
}
} // namespace

RopeConfig config::readRope(ConfigReader &reader,
                            const ArchitectureInfo &info) {
  RopeConfig rope;
  JsonValue older = reader["rope_scaling"], newer = reader["rope_parameters"];
  RopeObject scaling = readObject(reader, older);
  RopeObject parameters = readObject(reader, newer);
  rope.yarn = parameters.present ? parameters.yarn : scaling.yarn;
  if (scaling.present && parameters.present &&
      !sameYarn(scaling.yarn, parameters.yarn))
    older.failWith("contradicts rope_parameters: " + older.dump() + " and " +
                   newer.dump());

  // theta may stand at the top, in either object, or in several places.
  JsonValue top = reader["rope_theta"];
  std::optional<double> theta;
  if (top.present())
    theta = readTheta(reader, top);
  for (const auto &[object, where] :
       {std::pair{&parameters, newer}, std::pair{&scaling, older}}) {
    if (!object->theta)
      continue;
    if (theta && *theta != *object->theta)
      where["rope_theta"].failWith(
          "contradicts another rope_theta of this file: " +
          where["rope_theta"].dump() + " and " +
          (top.present() ? top : newer["rope_theta"]).dump());
    if (!theta)
      theta = object->theta;
  }
  rope.theta =
      theta ? *theta
            : readTheta(reader, newer.isObject() ? newer["rope_theta"] : top);

  refusePartial(reader, reader.text);
  if (JsonValue v = reader["rope_interleave"]; v.present())
    rope.interleaved = v.boolean();
  rope.indexerInterleaved = info.indexerInterleaved;
  if (JsonValue v = reader["indexer_rope_interleave"]; v.present())
    rope.indexerInterleaved = v.boolean();
  return rope;
}

} // namespace mla
