//===- Matrices.cpp - linears, and matrices of heads ----------------------===//
//
// Part of mla. How work is divided follows lib/CodeGen/NVVM: StreamKernels.cpp (one
// token), TileKernels.cpp (up to 64), LargeLinear.cpp, HeadKernels.cpp.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"

namespace mla::cost {

/// Most shared memory of a block, as the kernels limit themselves.
static double sharedBytes(const Machine &m) {
  const Capability *capability = m.capability();
  return std::min<double>(
      101376, capability ? double(capability->sharedBytesPerBlock) : 101376);
}

int64_t decodedQuads(int64_t quads) {
  return quads <= 2 ? 2 : roundUp(quads, 4);
}

Parts streamParts(const Terms &t, const StreamWork &work, double latency) {
  double ring = std::max(sharedBytes(t.m) - 2 * work.columns - 2048, 8192.0);
  double busiest = work.busiestBytes;
  Parts p;
  p.latency = latency + t("stream.column_latency") * work.columns;
  // The ring was filled while the kernel before was running. What a block reads
  // beyond it comes after the wait, in which memory is idle; a little more than the
  // ring is hidden by working it off.
  double beyond = std::clamp((busiest / ring - t("stream.refill_begin")) /
                                 t("stream.refill_width"),
                             0.0, 1.0);
  double idle = t("stream.refill_latency") * beyond;
  // Where two blocks do not fit a multiprocessor, the ring is filled in that wait.
  const Capability *capability = t.m.capability();
  if (capability && capability->sharedBytesPerSM < 2 * (ring + 2048))
    idle -= std::min(busiest, ring) / t.m.readBytesPerSecond *
            t.multiprocessors();
  p.latency += std::max(idle, 0.0);
  p.memory = t.reading(work.bytes, busiest);
  // A stage of less than four quads has fewer bytes on their way.
  double decoded = work.busiestDecoded;
  if (quant::unitColumns(work.format) < 128 && busiest > 0)
    decoded = std::min(busiest, ring) +
              std::max(busiest - ring, 0.0) * decoded / busiest;
  p.decode =
      t.cycles(decoded / t("stream", weightName(work.format), "bytes_per_cycle"));
  return p;
}

/// Bytes and flops of segments for `tokens` tokens.
static Estimate segmentsOf(std::span<const Matrix> segments, int64_t tokens) {
  Estimate e;
  e.launches = 1;
  for (const Matrix &s : segments) {
    e.weightBytes += matrixBytes(s);
    e.flops += 2.0 * double(s.rows) * double(s.columns) * double(tokens);
  }
  return e;
}

Estimate Model::linearStream(std::span<const Matrix> segments,
                             Prologue prologue) const {
  Terms t(m, c);
  Estimate e = segmentsOf(segments, 1);
  if (m.isHost() || segments.empty())
    return t.onHost(e);
  Format format = segments[0].format;
  if (!quant::canPack(format))
    return linearF32(segments, 1);
  // streamShape(): at most 40 quads a block.
  int64_t quads = 0;
  for (const Matrix &s : segments)
    quads += ceilDiv(s.rows, 4);
  int64_t blocks = m.multiprocessors * ceilDiv(quads, m.multiprocessors * 40);
  int64_t ofBlock = ceilDiv(quads, blocks);
  int64_t waves = ceilDiv(ceilDiv(quads, ofBlock), m.multiprocessors);
  double quadBytes =
      double(quant::packedUnits(format, segments[0].columns)) *
      double(quant::unitBytes(format));
  StreamWork work;
  work.format = format;
  work.bytes = e.weightBytes;
  work.busiestBytes = quadBytes * double(ofBlock * waves);
  // bf16, one quad a block: an instruction has four of its units.
  bool folded = format == Format::BF16 && ofBlock == 1;
  work.busiestDecoded =
      quadBytes * double((folded ? 1 : decodedQuads(ofBlock)) * waves);
  work.columns = double(segments[0].columns);
  double latency = t("stream.latency");
  if (prologue.norm)
    latency += t("stream.norm_latency");
  if (prologue.exact)
    latency += t("stream.exact_latency");
  t.finish(e, streamParts(t, work, latency));
  return e;
}

Estimate Model::linearTile(std::span<const Matrix> segments,
                           int64_t tokens) const {
  Terms t(m, c);
  Estimate e = segmentsOf(segments, tokens);
  if (m.isHost() || segments.empty())
    return t.onHost(e);
  Format format = segments[0].format;
  if (!quant::canPack(format))
    return linearF32(segments, tokens);
  // TileShape: groups of 16 rows, as many a block as its accumulators hold.
  int64_t groups = 0;
  for (const Matrix &s : segments)
    groups += ceilDiv(s.rows, 16);
  bool few = programTokens(tokens) <= 8;
  int64_t most = few ? 5 : 6;
  int64_t waves = ceilDiv(groups, most * m.multiprocessors);
  int64_t ofBlock = ceilDiv(groups, waves * m.multiprocessors);
  int64_t blocks = ceilDiv(groups, ofBlock);
  int64_t tile = few ? 8 : 64;
  int64_t busiest = ceilDiv(blocks, m.multiprocessors); // blocks
  double columns = double(segments[0].columns);
  double groupBytes = 4 *
                      double(quant::packedUnits(format, segments[0].columns)) *
                      double(quant::unitBytes(format));
  double weights = groupBytes * double(ofBlock * busiest);
  double x = 4 * columns * double(tile * busiest);
  double mma = double(ofBlock * busiest) * columns / 16 * double(tile) / 8;
  // Every block brings all of x to shared memory, masked tokens too, and each step
  // of columns has a barrier.
  double staging =
      t.cycles(x / t("tile.x_bytes_per_cycle") +
               columns * double(busiest) * t("tile.column_cycles"));
  double matrix = t.products(flopsOfMma * mma * double(blocks) / double(busiest),
                             flopsOfMma * mma, t("tile.mma_cycles"));
  Parts p;
  p.latency = t("tile.latency");
  p.memory = t.reading(e.weightBytes, weights);
  // A tile that is not full is fetched row by row.
  if (!few && tokens % tile != 0)
    staging *= t("tile.partial_factor");
  if (few) {
    // What is largest hides the rest.
    p.decode = std::max(
        staging,
        t.cycles(weights / t("tile", weightName(format), "bytes_per_cycle")));
    p.matrix = matrix;
  } else {
    // All warps do both.
    p.decode = staging;
    p.latency += matrix;
  }
  t.finish(e, p);
  if (!few && e.bound == Bound::Latency)
    e.bound = Bound::Matrix;
  return e;
}

Estimate Model::linearLarge(std::span<const Matrix> segments, int64_t tokens,
                            Prologue prologue) const {
  Terms t(m, c);
  Estimate e = segmentsOf(segments, tokens);
  if (m.isHost() || segments.empty())
    return t.onHost(e);
  Format format = segments[0].format;
  if (!quant::canPack(format))
    return linearF32(segments, tokens);
  // shapeFor(): blocks of 256 rows and 64 to 128 tokens, as waves are filled best by
  // the most tokens that the program is for.
  int64_t tiles = 0;
  for (const Matrix &s : segments)
    tiles += ceilDiv(s.rows, 32);
  tiles = ceilDiv(tiles, 8);
  int64_t best = 0, ofBlock = 128,
          most = tokens <= 64 ? 64 : std::max<int64_t>(tokens, 4096);
  for (int64_t n = 128; n >= 64; n -= 16) {
    int64_t cost =
        ceilDiv(tiles * ceilDiv(most, n), m.multiprocessors) * (n + 16);
    if (!best || cost < best)
      best = cost, ofBlock = n;
  }
  // An exact x is three 16-bit ones, each a pass over W.
  double passes = prologue.exact ? 3 : 1;
  double columns =
      double(quant::packedUnits(format, segments[0].columns) *
             quant::unitColumns(format));
  double blockFlops = 2.0 * 256 * double(ofBlock) * columns * passes;
  double weights = double(quant::packedUnits(format, segments[0].columns) *
                          quant::unitBytes(format)) *
                   64 * passes;
  double blocks = double(tiles * ceilDiv(tokens, ofBlock));
  double waves = double(ceilDiv(int64_t(blocks), m.multiprocessors));
  double rows = 0;
  for (const Matrix &s : segments)
    rows += double(s.rows);
  Parts p;
  // The first copies of a block and its results are not hidden.
  p.latency = t("large.latency") + t("large.wave_latency") * waves;
  p.memory = t.reading(e.weightBytes, 0) + t.moving(8 * rows * double(tokens));
  p.matrix =
      t.products(blockFlops * blocks, blockFlops * waves,
                 t("large.mma_cycles")) +
      t.cycles(weights / 1024 * waves *
               t("large", weightName(format), "decode_cycles"));
  t.finish(e, p);
  return e += packRows(segments[0].columns, tokens, prologue);
}

Estimate Model::packRows(int64_t columns, int64_t tokens,
                         Prologue prologue) const {
  if (m.isHost())
    return {};
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  Parts p;
  // Read in 32 bits, written in 16, or three times that; a norm reads twice.
  double bytes = 6;
  if (prologue.norm)
    bytes += 4;
  if (prologue.exact)
    bytes += 4;
  p.latency = t("large.pack_latency");
  p.memory = t.moving(double(tokens) * double(roundUp(columns, 128)) * bytes);
  t.finish(e, p);
  return e;
}

Estimate Model::linearF32(std::span<const Matrix> segments,
                          int64_t tokens) const {
  Terms t(m, c);
  Estimate e = segmentsOf(segments, tokens);
  if (m.isHost() || segments.empty())
    return t.onHost(e);
  // A warp a row, tokens eight at a time; x from L2 for each.
  double columns = double(segments[0].columns);
  double rows = 0;
  for (const Matrix &s : segments)
    rows += double(s.rows);
  double rounds = double(ceilDiv(tokens, 8));
  Parts p;
  p.latency = t("stream.latency") + t("stream.refill_latency");
  p.memory = t.reading(e.weightBytes * rounds, 0);
  // 256 multiply-adds of f32 a cycle and multiprocessor, half of the units' rate.
  p.decode = t.cycles(rows * columns * double(tokens) /
                      (64 * t.multiprocessors()));
  t.finish(e, p);
  return e;
}

Estimate Model::heads(int64_t heads, const Matrix &matrix,
                      int64_t tokens) const {
  Terms t(m, c);
  Estimate e;
  e.launches = 1;
  e.weightBytes = matrixBytes(matrix) * double(heads);
  e.flops = 2.0 * double(matrix.rows) * double(matrix.columns) *
            double(heads) * double(tokens);
  if (m.isHost())
    return t.onHost(e);
  Parts p;
  double columns = double(matrix.columns);
  if (tokens <= 64) {
    // HeadProduct: blocks of 16 or 32 rows of a head and up to 32 tokens.
    int64_t tile = tokens <= 8 ? 8 : 32, rows = tokens <= 8 ? 16 : 32;
    double blocks = double(heads * ceilDiv(matrix.rows, rows) *
                           ceilDiv(tokens, tile));
    double busiest = std::max(1.0, blocks / t.multiprocessors());
    double w = 2 * columns * double(rows) * busiest;
    double x = 4 * columns * double(std::min(tokens, tile)) * busiest;
    p.latency = t("heads.latency");
    p.memory = t.reading(e.weightBytes, w);
    p.decode = t.cycles((w + x) / t("heads.bytes_per_cycle"));
  } else {
    // ManyTokens: blocks of 128 rows and 64 tokens, two an SM.
    double blocks =
        double(heads * ceilDiv(matrix.rows, 128) * ceilDiv(tokens, 64));
    double blockFlops = 2.0 * 128 * 64 * columns;
    double y = double(tokens) * double(heads) * double(matrix.rows) * 4;
    double x = double(tokens) * double(heads) * columns * 4;
    p.latency = t("heads.many_latency");
    p.memory = t.moving(e.weightBytes + x + y);
    p.matrix = t.products(blockFlops * blocks,
                          blockFlops *
                              std::max(1.0, blocks / t.multiprocessors()),
                          t("heads.many_mma_cycles"));
  }
  t.finish(e, p);
  return e;
}

} // namespace mla::cost
