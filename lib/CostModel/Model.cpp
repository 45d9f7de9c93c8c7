//===- Model.cpp - terms of all kernels, and kernels of rows --------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"
#include <cmath>

namespace mla::cost {

std::string_view boundName(Bound bound) {
  switch (bound) {
  case Bound::Memory:
    return "memory";
  case Bound::Decode:
    return "decode";
  case Bound::Matrix:
    return "matrix";
  case Bound::Latency:
    return "latency";
  case Bound::Link:
    return "link";
  }
  return "";
}

Estimate &Estimate::operator+=(const Estimate &other) {
  if (other.seconds > seconds)
    bound = other.bound;
  seconds += other.seconds;
  weightBytes += other.weightBytes;
  cacheBytes += other.cacheBytes;
  flops += other.flops;
  launches += other.launches;
  floorSeconds += other.floorSeconds;
  return *this;
}

//===----------------------------------------------------------------------===//
// Terms
//===----------------------------------------------------------------------===//

double Terms::operator()(std::string_view name) const {
  auto found = c.values.find(std::string(name));
  return found == c.values.end() ? 0 : found->second;
}

double Terms::operator()(std::string_view family, std::string_view format,
                         std::string_view what) const {
  std::string name(family);
  (name += '.') += format;
  (name += '.') += what;
  return (*this)(name);
}

double Terms::reading(double all, double busiest) const {
  // A multiprocessor may get more than its share while others have nothing to read,
  // up to what its loads in flight allow.
  double share = m.readBytesPerSecond / multiprocessors();
  double alone =
      std::max(share, (*this)("sm.read_bytes_per_cycle") * m.clockHz);
  return std::max(all / m.readBytesPerSecond, busiest / alone);
}

double Terms::moving(double bytes) const {
  double near = std::min(bytes, double(m.l2Bytes) / 2);
  return near / (m.readBytesPerSecond * (*this)("rows.l2_share")) +
         (bytes - near) / (m.readBytesPerSecond * (*this)("rows.read_share"));
}

double Terms::products(double all, double busiest, double cyclesOfMma) const {
  double peak = m.bf16FlopsPerSecond;
  double hardware = peak > 0 ? std::max(all / peak,
                                        busiest * multiprocessors() / peak)
                             : 0;
  return std::max(hardware, cycles(busiest / flopsOfMma * cyclesOfMma));
}

void Terms::finish(Estimate &e, const Parts &p) const {
  double power = (*this)("overlap.power");
  double most = std::max({p.memory, p.decode, p.matrix});
  double busy = 0;
  if (most > 0)
    busy = most * std::pow(std::pow(p.memory / most, power) +
                               std::pow(p.decode / most, power) +
                               std::pow(p.matrix / most, power),
                           1 / power);
  e.floorSeconds = (e.weightBytes + e.cacheBytes) / m.readBytesPerSecond;
  e.seconds = std::max(p.latency + busy, e.floorSeconds);
  e.bound = p.latency > most     ? Bound::Latency
            : p.memory == most   ? Bound::Memory
            : p.decode == most   ? Bound::Decode
                                 : Bound::Matrix;
}

Estimate Terms::onHost(Estimate e) const {
  double memory = (e.weightBytes + e.cacheBytes) / m.readBytesPerSecond;
  double rate = m.bf16FlopsPerSecond;
  double compute = rate > 0 ? e.flops / rate : 0;
  e.floorSeconds = memory;
  e.seconds = std::max(memory, compute);
  e.bound = compute > memory ? Bound::Matrix
            : memory > 0     ? Bound::Memory
                             : Bound::Latency;
  return e;
}

std::string_view weightName(Format format) {
  switch (format) {
  case Format::FP8Block:
  case Format::NVFP4:
  case Format::Int4G32:
    return formatName(format);
  default:
    return "bf16";
  }
}

std::string_view cacheName(Format format) {
  return format == Format::FP8E4M3 ? "fp8_e4m3" : "bf16";
}

double matrixBytes(const Matrix &matrix) {
  if (quant::canPack(matrix.format))
    return double(
        quant::packedBytes(matrix.format, matrix.rows, matrix.columns));
  double element = double(elementBytes(matrix.format).value_or(0));
  return double(matrix.rows) * double(matrix.columns) * element;
}

double cacheRowBytes(const Attention &shape) {
  return double(shape.latent + shape.rope) *
         double(elementBytes(shape.cache).value_or(0));
}

double distinctExperts(int64_t experts, int64_t topk, int64_t tokens) {
  if (tokens <= 1)
    return double(std::min(experts, topk));
  double missed = 1 - double(topk) / double(experts);
  return double(experts) *
         (1 - std::pow(std::max(missed, 0.0), double(tokens)));
}

int64_t programTokens(int64_t tokens) {
  return tokens <= 1 ? 1 : tokens <= 8 ? 8 : tokens <= 64 ? 64 : tokens;
}

//===----------------------------------------------------------------------===//
// Model
//===----------------------------------------------------------------------===//

Model::Model(const Machine &machine, const Calibration &calibration)
    : m(machine), c(calibration) {}

Estimate Model::rows(int64_t tokens, int64_t bytesPerToken) const {
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  double bytes = double(tokens) * double(bytesPerToken);
  if (m.isHost()) {
    e = t.onHost(e);
    e.seconds = bytes / m.readBytesPerSecond;
    e.bound = Bound::Memory;
    return e;
  }
  Parts p;
  p.latency = t("rows.latency");
  p.memory = t.moving(bytes);
  t.finish(e, p);
  return e;
}

Estimate Model::route(int64_t experts, int64_t tokens) const {
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  if (m.isHost())
    return t.onHost(e);
  // A block a token, some of which an SM has at a time.
  double blocks = double(ceilDiv(tokens, m.multiprocessors));
  Parts p;
  p.latency = t("route.latency") +
              t.cycles(t("route.cycles_per_expert") * double(experts)) +
              t.cycles(t("route.cycles_per_block") * (blocks - 1));
  t.finish(e, p);
  return e;
}

double Model::gaps(int64_t launches) const {
  Terms t(m, c);
  return m.isHost() ? 0
                    : double(launches) * m.launchGapSeconds *
                          t("step.gap_share");
}

} // namespace mla::cost
