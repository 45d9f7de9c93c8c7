//===- Experts.cpp - experts of one token and of several ------------------===//
//
// Part of mla. Division of work: ExpertOneKernels.cpp, ExpertKernels.cpp in
// lib/CodeGen/NVVM.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"
#include <cmath>

namespace mla::cost {

static double unitsBytes(const Matrix &matrix) {
  return double(quant::packedUnits(matrix.format, matrix.columns) *
                quant::unitBytes(matrix.format));
}

/// blocksFor() of ExpertOneKernels.cpp.
static int64_t blocksFor(const Machine &m, int64_t items, int64_t most) {
  int64_t waves = ceilDiv(items, m.multiprocessors * most);
  return std::min(items, m.multiprocessors * waves);
}

/// The shared expert's matrix beside one of an expert's.
static Matrix sharedGate(const Experts &shape) {
  return {shape.gate.format, shape.sharedRows, shape.gate.columns};
}
static Matrix sharedDown(const Experts &shape) {
  return {shape.down.format, shape.down.rows, shape.sharedRows};
}

/// Gate and up, or down, of `distinct` experts and the shared one.
static Estimate gateUpOf(const Experts &shape, double distinct,
                         int64_t tokens) {
  Estimate e;
  e.launches = 1;
  e.weightBytes = 2 * distinct * matrixBytes(shape.gate);
  if (shape.sharedRows)
    e.weightBytes += 2 * matrixBytes(sharedGate(shape));
  e.flops = 4.0 * double(shape.topk * shape.gate.rows + shape.sharedRows) *
            double(shape.gate.columns) * double(tokens);
  return e;
}
static Estimate downOf(const Experts &shape, double distinct, int64_t tokens) {
  Estimate e;
  e.launches = 1;
  e.weightBytes = distinct * matrixBytes(shape.down);
  if (shape.sharedRows)
    e.weightBytes += matrixBytes(sharedDown(shape));
  e.flops = 2.0 * double(shape.topk * shape.down.columns + shape.sharedRows) *
            double(shape.down.rows) * double(tokens);
  return e;
}

//===----------------------------------------------------------------------===//
// One token
//===----------------------------------------------------------------------===//

/// The mean of `time` over how many experts the busiest group has: the time is not
/// that of the mean, since quads are dealt out in whole numbers.
template <typename Time>
static Estimate ofBusiest(const Experts &shape, Time time) {
  std::vector<double> probability = busiestGroup(shape);
  Estimate mean;
  double most = 0;
  for (size_t k = 1; k < probability.size(); ++k) {
    if (probability[k] < 1e-9)
      continue;
    Experts group = shape;
    group.experts /= shape.groups;
    group.topk = int64_t(k);
    group.groups = group.routingGroups = group.routingKept = 1;
    Estimate e = time(group);
    double p = probability[k];
    mean.seconds += p * e.seconds;
    mean.floorSeconds += p * e.floorSeconds;
    mean.weightBytes += p * e.weightBytes;
    mean.flops += p * e.flops;
    mean.launches = e.launches;
    if (p > most) {
      most = p;
      mean.bound = e.bound;
    }
  }
  return mean;
}

Estimate Model::expertsGateUpOne(const Experts &shape) const {
  if (shape.groups > 1)
    return ofBusiest(shape, [&](const Experts &group) { return expertsGateUpOne(group); });
  Terms t(m, c);
  Estimate e = gateUpOf(shape, double(shape.topk), 1);
  if (m.isHost() || !quant::canPack(shape.gate.format))
    return t.onHost(e);
  // Pairs of a gate and an up quad are dealt out to one block an SM.
  int64_t pairs =
      shape.topk * ceilDiv(shape.gate.rows, 4) + ceilDiv(shape.sharedRows, 4);
  int64_t blocks = blocksFor(m, pairs, 20);
  int64_t waves = ceilDiv(blocks, m.multiprocessors);
  int64_t quads = 2 * ceilDiv(pairs, blocks);
  double quadBytes = unitsBytes(shape.gate);
  StreamWork work;
  work.format = shape.gate.format;
  work.bytes = e.weightBytes;
  work.busiestBytes = quadBytes * double(quads * waves);
  // Up to two quads of the last four are computed alone.
  work.busiestDecoded = quadBytes * double(roundUp(quads, 2) * waves);
  work.columns = double(shape.gate.columns);
  double latency = t("experts.gate_latency");
  if (shape.chooses)
    latency += t("experts.choice_latency");
  t.finish(e, streamParts(t, work, latency));
  return e;
}

Estimate Model::expertsDownOne(const Experts &shape) const {
  if (shape.groups > 1)
    return ofBusiest(shape, [&](const Experts &group) { return expertsDownOne(group); });
  Terms t(m, c);
  Estimate e = downOf(shape, double(shape.topk), 1);
  if (m.isHost() || !quant::canPack(shape.down.format))
    return t.onHost(e);
  // Quads of rows, of all experts together.
  int64_t rows = ceilDiv(shape.down.rows, 4);
  int64_t quads = ceilDiv(rows, blocksFor(m, rows, 40));
  int64_t waves = ceilDiv(ceilDiv(rows, quads), m.multiprocessors);
  double quadBytes =
      double(shape.topk) * unitsBytes(shape.down) +
      (shape.sharedRows ? unitsBytes(sharedDown(shape)) : 0);
  StreamWork work;
  work.format = shape.down.format;
  work.bytes = e.weightBytes;
  work.busiestBytes = quadBytes * double(quads * waves);
  work.busiestDecoded = quadBytes * double(decodedQuads(quads) * waves);
  work.columns = double(shape.topk * shape.down.columns + shape.sharedRows);
  t.finish(e, streamParts(t, work, t("experts.down_latency")));
  return e;
}

Estimate Model::expertsOne(const Experts &shape) const {
  Estimate e = expertsGateUpOne(shape);
  return e += expertsDownOne(shape);
}

//===----------------------------------------------------------------------===//
// Several tokens
//===----------------------------------------------------------------------===//

namespace {
/// How grouped experts are computed, as ExpertProduct in ExpertKernels.cpp.
struct Grouping {
  double distinct; ///< experts
  double pairs;    ///< (token, choice)
  bool few;        ///< small tiles, weights straight to registers
  int64_t tile;    ///< pairs

  Grouping(const Experts &shape, int64_t tokens)
      : distinct(busiestExperts(shape, tokens)),
        pairs(double(tokens * shape.topk)) {
    // Pairs go with the experts: the busiest group has as large a part of them.
    if (shape.groups > 1)
      pairs *= distinct / distinctExperts(shape.experts, shape.topk, tokens);
    int64_t program = programTokens(tokens);
    int64_t most = ceilDiv(program * shape.topk, shape.experts);
    few = program <= 64 || most <= 12;
    tile = few ? (most > 4 ? 16 : 8)
               : (shape.gate.format == Format::FP8Block || most <= 64 ? 64
                                                                      : 128);
  }
};
} // namespace

/// The time of `e`, whose matrices have `columns` columns and rows times matrices
/// of `rows`.
static void product(const Terms &t, Estimate &e, const Grouping &g,
                    Format format, double rows, double columns) {
  double tiles = std::max(
      1.0, std::ceil(g.pairs / g.distinct / double(g.tile) - 0.01));
  double flops = 2 * rows * columns * tiles * double(g.tile) * g.distinct;
  double ofSM = flops / t.multiprocessors();
  Parts p;
  p.memory = t.reading(e.weightBytes, 0);
  if (g.few) {
    // Weights are decoded again for every tile of pairs.
    p.latency = t("experts.few_latency");
    p.decode = t.cycles(e.weightBytes * tiles / t.multiprocessors() /
                        t("few", weightName(format), "bytes_per_cycle"));
    p.matrix = t.products(flops, ofSM, t("few.mma_cycles"));
  } else {
    p.latency = t("experts.many_latency");
    p.matrix = t.products(flops, ofSM, t("experts.many_mma_cycles"));
  }
  t.finish(e, p);
}

/// Grouped experts have no shared one among them.
static Experts withoutShared(Experts shape) {
  shape.sharedRows = 0;
  return shape;
}

Estimate Model::expertsGateUp(const Experts &given, int64_t tokens) const {
  Terms t(m, c);
  Experts shape = withoutShared(given);
  Grouping g(shape, tokens);
  Estimate e = gateUpOf(shape, g.distinct, tokens);
  if (m.isHost())
    return t.onHost(e);
  product(t, e, g, shape.gate.format, 2 * double(shape.gate.rows),
          double(shape.gate.columns));
  return e;
}

Estimate Model::expertsDown(const Experts &given, int64_t tokens) const {
  Terms t(m, c);
  Experts shape = withoutShared(given);
  Grouping g(shape, tokens);
  Estimate e = downOf(shape, g.distinct, tokens);
  if (m.isHost())
    return t.onHost(e);
  product(t, e, g, shape.down.format, double(shape.down.rows),
          double(shape.down.columns));
  return e;
}

Estimate Model::expertsGroup(const Experts &shape, int64_t tokens) const {
  if (m.isHost())
    return {};
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  Parts p;
  p.latency = t("experts.group_latency") +
              t.cycles(double(tokens * shape.topk) *
                       t("experts.group_pair_cycles"));
  t.finish(e, p);
  return e;
}

Estimate Model::expertsCombine(const Experts &shape, int64_t tokens) const {
  if (m.isHost())
    return {};
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  Parts p;
  p.latency = t("experts.combine_latency");
  p.memory = t.moving(double(tokens * (shape.topk + 1)) *
                      double(shape.down.rows) * 4);
  t.finish(e, p);
  return e;
}

Estimate Model::experts(const Experts &shape, int64_t tokens) const {
  Estimate e = expertsGroup(shape, tokens);
  e += expertsGateUp(shape, tokens);
  e += expertsDown(shape, tokens);
  e += expertsCombine(shape, tokens);
  return e;
}

} // namespace mla::cost
