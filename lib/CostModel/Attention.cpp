//===- Attention.cpp - attention over the latent cache --------------------===//
//
// Part of mla. How rows are divided among blocks is that of decodeShape() and
// divideStep() in lib/CodeGen/NVVM/LatentCombine.cpp; prompts:
// PrefillAttention.cpp.
//
//===----------------------------------------------------------------------===//
#include "Terms.h"

namespace mla::cost {

namespace {
/// decodeShape() for a step.
struct DecodeSplit {
  int64_t tile;       ///< rows
  int64_t blockHeads; ///< heads of a block
  int64_t groups;     ///< of heads, a block each
  int64_t splits;     ///< most of all tokens together, for each group
  int64_t perSM;      ///< blocks at a time

  DecodeSplit(const Attention &shape, int64_t tokens, const Machine &m);
};

DecodeSplit::DecodeSplit(const Attention &shape, int64_t tokens,
                         const Machine &m) {
  bool fp8 = shape.cache == Format::FP8E4M3;
  tile = fp8 ? 32 : 16;
  blockHeads = shape.blockHeads;
  if (blockHeads == 0)
    blockHeads = shape.heads <= 8                       ? 8
                 : shape.heads <= 16 || tokens == 1     ? 16
                 : !fp8 && shape.heads <= 24            ? 24
                                                        : 32;
  int64_t teams = blockHeads == 32 ? 2 : 1,
          headTiles = blockHeads / 8 / teams,
          stages = blockHeads <= 16 ? 5 : 4;
  groups = ceilDiv(shape.heads, blockHeads);
  int64_t bytes = stages * 16 * 2 * (shape.latent + shape.rope) +
                  2 * teams * 4 * 16 * headTiles * 8 * 4;
  const Capability *capability = m.capability();
  int64_t shared = capability ? capability->sharedBytesPerSM : 102400;
  perSM = teams == 1 && 2 * (bytes + 1024) <= shared ? 2 : 1;
  splits = std::max<int64_t>(1, m.multiprocessors * perSM / groups);
}
} // namespace

/// New tokens of a sequence, and rows that one of them sees on average: what is behind
/// it, half of the new ones.
static int64_t newTokens(const Step &step) {
  return std::max<int64_t>(step.tokens / std::max<int64_t>(step.sequences, 1), 1);
}
static int64_t meanRows(const Step &step) {
  return step.context + (newTokens(step) + 1) / 2;
}

/// Tiles of the longest split, and how many splits there are: every token has
/// `rows` rows.
static std::pair<int64_t, int64_t>
divide(const DecodeSplit &d, int64_t tokens, int64_t rows) {
  int64_t tiles = ceilDiv(rows, d.tile);
  if (tokens >= d.splits)
    return {tiles, tokens};
  int64_t free = tokens == 1 ? d.splits : std::max<int64_t>(d.splits - tokens, 1);
  int64_t most = ceilDiv(tiles * tokens, free);
  int64_t own = ceilDiv(tiles, most);
  return {ceilDiv(tiles, own), ceilDiv(tiles, ceilDiv(tiles, own)) * tokens};
}

/// What the splits of a step write and the second kernel reads: in 16 bits, or
/// whole results in 32.
static double writtenBytes(const Attention &shape, int64_t tokens,
                           int64_t splits) {
  auto values = double(shape.heads * shape.latent);
  return splits > tokens ? 2 * values * double(splits)
                         : 4 * values * double(tokens);
}

/// Cycles of a tile of a block. Measurements say little of those of few heads, which
/// memory bounds: a block of half the heads does not take less than half of them, as
/// it loads the same rows.
static double cycles(const Terms &t, const Attention &shape,
                     const DecodeSplit &d) {
  auto fitted = [&](std::string_view size) {
    return t("attention", cacheName(shape.cache), size);
  };
  double of32 = fitted("cycles_32");
  double of16 = std::max(fitted("cycles_16"), 0.5 * of32);
  double of8 = std::max(fitted("cycles_8"), 0.75 * of16);
  return d.blockHeads <= 8 ? of8 : d.blockHeads <= 16 ? of16 : of32;
}

Estimate Model::attentionDecode(const Attention &shape,
                                const Step &step) const {
  Terms t(m, c);
  int64_t rows = meanRows(step);
  double rowBytes = cacheRowBytes(shape);
  double all = double(step.sequences) *
               double(step.context + newTokens(step)) * rowBytes;
  Estimate e;
  e.launches = 1;
  e.cacheBytes = all;
  e.flops = 2.0 * double(2 * shape.latent + shape.rope) *
            double(shape.heads) * double(step.tokens) * double(rows);
  if (m.isHost())
    return t.onHost(e);

  DecodeSplit d(shape, step.tokens, m);
  auto [longest, splits] = divide(d, step.tokens, rows);
  int64_t blocks = splits * d.groups;
  // Blocks beyond those that run at once begin as others end.
  int64_t waves = ceilDiv(blocks, m.multiprocessors * d.perSM);
  double tilesOfSM =
      double(longest * waves) *
      double(std::min(d.perSM, ceilDiv(blocks, m.multiprocessors)));
  double busiest = tilesOfSM * double(d.tile) * rowBytes;
  Parts p;
  // Reading gets going while the first rows are computed.
  double ramp = busiest / t("attention.ramp_bytes");
  p.latency = t("attention.latency") +
              t("attention.head_latency") *
                  double(std::min(d.blockHeads, shape.heads)) +
              t("attention.ramp_latency") * ramp / (1 + ramp) +
              writtenBytes(shape, step.tokens, splits) /
                  (m.readBytesPerSecond * t("attention.partial_share"));
  if (step.tokens > 1)
    p.latency += t("attention.several_latency"); // to find a block's token
  // Groups of heads read the same rows, all but the first from L2.
  p.memory = t.reading(all, busiest / double(std::min(d.groups, d.perSM)));
  // A block's last tile is computed when all are read.
  double tileTime = t.cycles(cycles(t, shape, d));
  double last =
      double(std::min(d.perSM, ceilDiv(blocks, m.multiprocessors)));
  p.latency += last * tileTime;
  p.decode = (tilesOfSM - last) * tileTime;
  t.finish(e, p);
  return e += attentionCombine(shape, step);
}

Estimate Model::attentionCombine(const Attention &shape,
                                 const Step &step) const {
  if (m.isHost())
    return {};
  Terms t(m, c);
  DecodeSplit d(shape, step.tokens, m);
  int64_t splits = divide(d, step.tokens, meanRows(step)).second;
  bool joined = splits > step.tokens;
  auto values = double(shape.heads * shape.latent);
  Estimate e;
  e.launches = 1;
  Parts p;
  // combineShape(): groups of threads that have the same values and share splits; a
  // thread has 8 values.
  int64_t most = d.splits / (programTokens(step.tokens) / 2 + 1), groups = 1;
  while (groups < 32 && groups * 9 < most)
    groups *= 2;
  int64_t threads = groups >= 8 ? 256 : groups >= 2 ? 128 : 64;
  int64_t chunks = ceilDiv(shape.heads * shape.latent / 8, threads / groups);
  p.latency = t("attention.combine_latency");
  // Warps that find nothing to do take time, too.
  p.decode = t.cycles(double(step.tokens * chunks * threads / 32) /
                      t.multiprocessors() * t("attention.warp_cycles"));
  if (joined)
    p.memory = (writtenBytes(shape, step.tokens, splits) +
                4 * values * double(step.tokens)) /
               (m.readBytesPerSecond * t("attention.combine_share"));
  t.finish(e, p);
  return e;
}

Estimate Model::attentionCombineExpand(const Attention &shape, int64_t v,
                                       const Step &step) const {
  Terms t(m, c);
  Estimate e = heads(shape.heads, {Format::BF16, v, shape.latent}, step.tokens);
  if (m.isHost())
    return e;
  DecodeSplit d(shape, step.tokens, m);
  int64_t splits = divide(d, step.tokens, meanRows(step)).second;
  Parts p;
  // Blocks of a head read its splits each for themselves, and its matrix before.
  int64_t blocks = shape.heads * ceilDiv(v, 32);
  p.latency = (t("attention.combine_latency") + t("attention.expand_latency") +
               t("attention.expand_split_latency") * double(splits)) *
              double(ceilDiv(blocks, m.multiprocessors));
  p.memory = std::max(e.floorSeconds,
                      writtenBytes(shape, step.tokens, splits) /
                          (m.readBytesPerSecond * t("attention.combine_share")));
  t.finish(e, p);
  return e;
}

Estimate Model::attentionPrefill(const Attention &shape,
                                 const Step &step) const {
  Terms t(m, c);
  double rowBytes = cacheRowBytes(shape);
  double own = double(step.tokens) / double(std::max<int64_t>(step.sequences, 1));
  // A token sees what is behind it: half of its own prompt.
  double mean = double(step.context) + (own + 1) / 2;
  Estimate e;
  e.launches = 1;
  e.cacheBytes =
      double(step.sequences) * (double(step.context) + own) * rowBytes;
  e.flops = 2.0 * double(2 * shape.latent + shape.rope) *
            double(shape.heads) * double(step.tokens) * mean;
  if (m.isHost())
    return t.onHost(e);
  // Blocks of 64 (token, head) pairs over tiles of 16 rows, one an SM.
  double pairs = double(step.tokens) * double(shape.heads);
  double blocks = pairs / 64;
  double tiles = mean / 16 + 1;
  double busiest = std::max(1.0, blocks / t.multiprocessors());
  // The last blocks have most to do.
  double last = (double(step.context) + own) / 16;
  double tilesOfSM = busiest * tiles + (last - tiles) / 2;
  double flopsOfTile = 2.0 * 64 * 16 * double(2 * shape.latent + shape.rope);
  double scale = double(2 * shape.latent + shape.rope) / 1088;
  Parts p;
  p.latency = t("prefill.latency");
  p.memory = t.reading(e.cacheBytes, 0);
  p.matrix = std::max(
      t.products(flopsOfTile * blocks * tiles, flopsOfTile * tilesOfSM, 0),
      t.cycles(tilesOfSM * scale *
               t("prefill", cacheName(shape.cache), "cycles")));
  t.finish(e, p);
  return e;
}

} // namespace mla::cost
