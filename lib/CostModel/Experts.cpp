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

/// What `sources` experts and the shared one have of weights.
static double expertBytes(const Experts &shape, double sources) {
  double bytes = sources * (2 * matrixBytes(shape.gate) + matrixBytes(shape.down));
  if (shape.sharedRows) {
    Matrix gate = shape.gate, down = shape.down;
    gate.rows = down.columns = shape.sharedRows;
    bytes += 2 * matrixBytes(gate) + matrixBytes(down);
  }
  return bytes;
}

static double expertFlops(const Experts &shape, int64_t tokens) {
  double rows = double(shape.topk * shape.gate.rows + shape.sharedRows);
  return 6.0 * rows * double(shape.gate.columns) * double(tokens);
}

Estimate Model::expertsOne(const Experts &shape) const {
  Terms t(m, c);
  Estimate all;
  all.weightBytes = expertBytes(shape, double(shape.topk));
  all.flops = expertFlops(shape, 1);
  all.launches = 2;
  if (m.isHost() || !quant::canPack(shape.gate.format) ||
      !quant::canPack(shape.down.format))
    return t.onHost(all);

  // Gate and up: pairs of quads, dealt out to one block an SM.
  Estimate gate;
  gate.launches = 1;
  gate.weightBytes = all.weightBytes * 2 / 3;
  gate.flops = all.flops * 2 / 3;
  int64_t pairs =
      shape.topk * ceilDiv(shape.gate.rows, 4) + ceilDiv(shape.sharedRows, 4);
  int64_t blocks = blocksFor(m, pairs, 20);
  int64_t waves = ceilDiv(blocks, m.multiprocessors);
  int64_t quads = 2 * ceilDiv(pairs, blocks);
  double quadBytes = unitsBytes(shape.gate);
  StreamWork work;
  work.format = shape.gate.format;
  work.bytes = gate.weightBytes;
  work.busiestBytes = quadBytes * double(quads * waves);
  work.busiestDecoded = quadBytes * double(roundUp(quads, 2) * waves);
  work.columns = double(shape.gate.columns);
  t.finish(gate, streamParts(t, work, t("experts.gate_latency")));

  // Down: quads of rows, of all experts together.
  Estimate down;
  down.launches = 1;
  down.weightBytes = all.weightBytes / 3;
  down.flops = all.flops / 3;
  int64_t rows = ceilDiv(shape.down.rows, 4);
  blocks = blocksFor(m, rows, 40);
  quads = ceilDiv(rows, blocks);
  waves = ceilDiv(ceilDiv(rows, quads), m.multiprocessors);
  Matrix shared = shape.down;
  shared.columns = shape.sharedRows;
  quadBytes = double(shape.topk) * unitsBytes(shape.down) +
              (shape.sharedRows ? unitsBytes(shared) : 0);
  work.format = shape.down.format;
  work.bytes = down.weightBytes;
  work.busiestBytes = quadBytes * double(quads * waves);
  work.busiestDecoded = quadBytes * double(roundUp(quads, 4) * waves);
  work.columns =
      double(shape.topk * shape.down.columns + shape.sharedRows);
  t.finish(down, streamParts(t, work, t("experts.down_latency")));
  gate += down;
  return gate;
}

namespace {
/// A product of grouped experts.
struct Grouped {
  Matrix matrix;
  int64_t matrices; ///< 2: gate and up
  double latency;
};
} // namespace

/// Gate and up, or down, of `distinct` experts for `pairs` (token, choice) pairs.
static Estimate product(const Terms &t, const Grouped &g, double distinct,
                        double pairs, bool few, int64_t tile) {
  Estimate e;
  e.launches = 1;
  e.weightBytes =
      matrixBytes(g.matrix) * double(g.matrices) * distinct;
  double columns = double(g.matrix.columns), rows = double(g.matrix.rows);
  e.flops = 2 * rows * columns * double(g.matrices) * pairs;
  double each = pairs / distinct;
  double tiles = std::max(1.0, std::ceil(each / double(tile)));
  std::string_view format = weightName(g.matrix.format);
  Parts p;
  p.latency = g.latency;
  p.memory = t.reading(e.weightBytes, 0);
  double padded = tiles * double(tile) * distinct;
  double flops = 2 * rows * columns * double(g.matrices) * padded;
  double ofSM = flops / t.multiprocessors();
  if (few) {
    // Decoding is done again for every tile of pairs.
    p.decode = t.cycles(e.weightBytes * tiles / t.multiprocessors() /
                        t("few", format, "bytes_per_cycle"));
    p.matrix = t.products(flops, ofSM, t("few.mma_cycles"));
  } else {
    p.matrix = t.products(flops, ofSM, t("experts.many_mma_cycles"));
  }
  t.finish(e, p);
  return e;
}

Estimate Model::experts(const Experts &shape, int64_t tokens) const {
  Terms t(m, c);
  double distinct = distinctExperts(shape.experts, shape.topk, tokens);
  Estimate all;
  all.launches = 4;
  all.weightBytes = expertBytes(shape, distinct);
  all.flops = expertFlops(shape, tokens);
  if (m.isHost())
    return t.onHost(all);

  double pairs = double(tokens * shape.topk);
  int64_t most = ceilDiv(programTokens(tokens) * shape.topk, shape.experts);
  bool few = programTokens(tokens) <= 64 || most <= 12;
  int64_t tile = few ? (most > 4 ? 16 : 8)
                 : shape.gate.format == Format::FP8Block || most <= 64 ? 64
                                                                       : 128;
  Estimate e;
  e.launches = 1;
  Parts group;
  group.latency = t("experts.group_latency") +
                  t.cycles(pairs * t("experts.group_pair_cycles"));
  t.finish(e, group);
  double latency = few ? t("experts.few_latency") : t("experts.many_latency");
  e += product(t, {shape.gate, 2, latency}, distinct, pairs, few, tile);
  e += product(t, {shape.down, 1, latency}, distinct, pairs, few, tile);
  Estimate combine;
  combine.launches = 1;
  Parts q;
  q.latency = t("experts.combine_latency");
  q.memory = (pairs + double(tokens)) * double(shape.down.rows) * 4 /
             (m.readBytesPerSecond * t("rows.read_share"));
  t.finish(combine, q);
  e += combine;
  return e;
}

} // namespace mla::cost
