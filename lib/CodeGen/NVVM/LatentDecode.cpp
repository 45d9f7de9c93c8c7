//===- LatentDecode.cpp - decode attention on tensor cores ----------------===//
//
// Part of mla. A block is one split of one token and up to 32 heads: it reads
// its share of the token's rows once, through a ring of stages filled by
// cp.async. The products are m16n8k16 with rows of the cache as M and heads as
// N, so that 8 heads fill a fragment:
//
//   scores  S^T [tile, heads]   = K [tile, row] Q^T     k divided among warps
//   output  O^T [latent, heads] = V^T [latent, tile] P  M divided among warps
//
// Q and O stay in registers. The scores' partial sums go through shared memory
// (f32, two buffers) and come back as every warp needs them, with the tokens of
// a B fragment side by side; each warp computes the whole softmax. Sums are
// rescaled only where a maximum rises by more than 6 (a factor of 64, which
// bf16 and f16 bear). A loop iteration has the scores of one tile and the
// output of the one before, and one barrier.
//
// fp8 rows are two to a row of a stage. A fragment for K takes the 4 bytes that
// ldmatrix gives a lane as k = 4 t to 4 t + 3, in which order Q is read too;
// for V, ldmatrix.trans moves pairs of bytes and a byte permutation parts them,
// so that row g of a fragment is dimension 2 g and row g + 8 is 2 g + 1.
//
// Shapes (row 576, latent 512), registers as for sm_90a:
//
//   heads  threads  tokens a tile   stages      shared bytes  registers
//   8      128      16 (fp8: 32)    5 x 18,432   96,256       133 to 154
//   16     128      16 (fp8: 32)    5           100,352       200 to 242
//   24     128      16 (not fp8)    4            86,016       242 to 255
//   32     256      16 (fp8: 32)    4            90,112       235 to 254
//
// Blocks of 24 and 32 heads are for steps of several tokens; a single one takes
// blocks of 16. Other heads are other blocks'.
//
// Bytes: 1,152 or 576 a row and block of heads. Flops: 2 * (row + latent) *
// heads a row, and 2 * row * heads more in bf16, whose Q is in two parts. To 16
// heads memory bounds it (fp8: nearly; 144 conversions a tile and warp), beyond
// 24 the instructions do. Short contexts are bound by latency: positions, page
// numbers and an L2 prefetch of the first tiles come before the wait for
// earlier kernels.
//
//===----------------------------------------------------------------------===//
#include "LatentDecodeBuilder.h"

using namespace mlir;

namespace mla::nvvm {

/// Where 16-byte chunk `chunk` of the tile's token `token` is in a stage:
/// within each line of 128 bytes, chunks are permuted by the row, so that
/// ldmatrix and cp.async meet no bank twice.
V DecodeBuilder::chunkOffset(V token, V chunk) {
  V row = fp8 ? token >> 1 : token;
  V at = fp8 ? (token & 1) * (s.row / 16) + chunk : chunk;
  return row * s.pitch + (at >> 3) * 128 + (((at & 7) ^ (row & 7)) << 4);
}

void DecodeBuilder::setUp() {
  V lane = k.lane();
  team = s.teams == 1 ? k.i32(0) : k.warp() >> 2;
  w = s.teams == 1 ? k.warp() : k.warp() & 3;
  g = lane >> 2;
  t = lane & 3;
  groupHead =
      s.groups == 1 ? k.i32(0) : (k.block() % s.groups) * s.blockHeads();
  teamHead = groupHead + team * s.teamHeads();

  stages = k.shared(s.stages * s.stageBytes(), 128);
  scoreMemory = k.shared(2 * s.teams * s.scoreBytes(), 128);

  copyRow = (k.thread() >> 3) & 15;
  copyChunk = k.thread() & 7;
  copyFrom = copyRow * s.pitch + copyChunk * 16;
  copyTo = stages + (copyRow * s.pitch + ((copyChunk ^ (copyRow & 7)) << 4));

  // Scores: lanes 0 to 15 address tokens, the upper half the next chunk.
  V token = lane & 15, next = lane >> 4;
  if (fp8) {
    V block = w >> 1, part = w & 1;
    keyA = stages + chunkOffset(block * 16 + token, part * 2 + next);
    keyB = stages + chunkOffset(block * 16 + token, part * 2 + 4 + next);
    for (int64_t b = 0; b < 2; ++b)
      valueAt.push_back(stages + chunkOffset(token + b * 16, w * 2 + next));
  } else {
    keyA = stages + chunkOffset(token, w * 2 + next);
    V across = (lane & 7) + ((lane >> 4) << 3);
    valueAt.push_back(stages + chunkOffset(across, w * 2 + ((lane >> 3) & 1)));
  }

  // A score buffer is [4 warps][8 pairs of tokens][heads] of {g, g + 8} of two
  // tokens, heads permuted by the pair. Lanes of every other pair store their
  // two heads in the other order: no bank conflicts.
  int64_t heads = s.teamHeads();
  Ptr own = scoreMemory + team * (2 * s.scoreBytes());
  swapped = ((g >> 1) & 1) == 1;
  V pair = g >> 1;
  V even = (t * 2) ^ (pair * 2), odd = (t * 2 + 1) ^ (pair * 2);
  V at = w * (heads * 64) + pair * (heads * 16) + (g & 1) * 8;
  scoreStore = own + (at + k.select(swapped, odd, even) * 16);
  scoreStore2 = own + (at + k.select(swapped, even, odd) * 16);
  scoreLoad = own + (t * (heads * 16) + (g ^ (t * 2)) * 16);
}

V DecodeBuilder::pageOf(V tile) {
  // A block without work looks at a page, too: at the first, if there is no row.
  V last = s.spec.ranks > 1 ? k.maximum(work.position, k.i32(0)) : work.position;
  V page = k.minimum(tile / (plan::pageTokens / s.tile),
                     last / plan::pageTokens);
  return k.loadI32(table + k.to64(page) * 4);
}

/// Where tile `tile`, which lies in `page`, is in the cache.
Ptr DecodeBuilder::tileAt(V tile, V page) {
  int64_t perPage = plan::pageTokens / s.tile;
  return k.buffer(4) + (k.to64(page) * (perPage * s.stageBytes()) +
                        k.to64((tile & (perPage - 1)) * s.stageBytes()));
}

/// Starts copying a tile, which lies in `page`, to the stage at byte `stage`.
void DecodeBuilder::copyStage(V stage, V tile, V page) {
  Ptr from = tileAt(tile, page) + copyFrom;
  Ptr to = copyTo + stage;
  int64_t lines = s.pitch / 128;
  if (s.teams == 1) {
    for (int64_t i = 0; i < lines; ++i)
      k.cpAsync16(to + i * 128, from + i * 128);
    return;
  }
  // Teams take every other line.
  from = from + team * 128;
  to = to + team * 128;
  for (int64_t i = 0; i + 1 < lines; i += 2)
    k.cpAsync16(to + i * 128, from + i * 128);
  if (lines % 2)
    k.when(team == 0, [&] {
      k.cpAsync16(to + (lines - 1) * 128, from + (lines - 1) * 128);
    });
}

/// Zeroes the tokens of a stage from `rows` on. What the cache holds behind the
/// last token may be anything, and 0 * NaN is NaN.
void DecodeBuilder::clearBehind(V stage, V rows) {
  V zero = k.i32(0);
  for (int64_t line = 0; line < s.pitch / 128; ++line) {
    V token = copyRow;
    if (fp8)
      token = copyRow * 2 +
              k.select(copyChunk + line * 8 >= s.row / 16, k.i32(1), k.i32(0));
    k.when(token >= rows, [&] {
      k.storeWords(copyTo + stage + line * 128, {zero, zero, zero, zero});
    });
  }
}

/// Starts copying the block's rows of Q to the last stages, 8 heads each, with
/// chunks permuted by the head.
void DecodeBuilder::copyQuery() {
  V thread = s.teams == 1 ? k.thread() : k.thread() & 127;
  V head = thread >> 4, chunk = thread & 15;
  V offset =
      head * (s.row * 4) + (chunk >> 3) * 128 + (((chunk & 7) ^ head) << 4);
  for (int64_t n = 0; n < n8; ++n) {
    // Heads that do not exist repeat the last one.
    V from = k.minimum(teamHead + head + n * 8, k.i32(s.spec.heads - 1));
    Ptr row =
        k.buffer(0) + (k.to64(work.token * s.spec.heads + from) * (s.row * 4) +
                       k.to64(chunk * 16));
    Ptr to = queryStage(n) + offset;
    for (int64_t i = 0; i < s.row / 64; ++i)
      k.cpAsync16(to + i * 256, row + i * 256);
  }
}

/// The stage of the team's heads 8 n to 8 n + 7, during the start.
Ptr DecodeBuilder::queryStage(int64_t n) {
  int64_t first = s.stages - s.queryStages();
  return stages + (team * (n8 * s.stageBytes()) + (first + n) * s.stageBytes());
}

/// Reads the B fragments of Q, which the warp keeps. Step i of the scores has k
/// from 16 (w + 4 i) on; for fp8, two steps from 32 (w % 2 + c) on, where c is
/// 0, 4, 8, ... and then 2, 6, ..., so that all of a warp's are in two columns
/// of 128-byte lines. In bf16, what rounding takes is a second fragment: keys
/// times both are as exact as keys times f32.
void DecodeBuilder::readQuery() {
  int64_t kSteps = fp8 ? 2 * steps : steps;
  q = Vs(kSteps * n8 * 2);
  if (s.exact())
    qRest = q;
  for (int64_t n = 0; n < n8; ++n) {
    Ptr row = queryStage(n) + g * (s.row * 4);
    auto keep = [&](int64_t i, ArrayRef<V> v) {
      for (int64_t j = 0; j < 2; ++j) {
        V x = v[2 * j], y = v[2 * j + 1];
        V &packed = q[(i * n8 + n) * 2 + j];
        packed = pack(x, y);
        if (!s.exact())
          continue;
        auto [low, high] = k.unpackBF16(packed);
        qRest[(i * n8 + n) * 2 + j] = pack(x - low, y - high);
      }
    };
    if (fp8) {
      int64_t first = (steps + 1) / 2;
      Ptr at = row + (w & 1) * 128;
      Ptr half[2] = {at + ((t ^ g) << 4), at + (((t + 4) ^ g) << 4)};
      for (int64_t i = 0; i < steps; ++i) {
        int64_t chunk = i < first ? 4 * i : 2 + 4 * (i - first);
        for (int64_t h = 0; h < 2; ++h)
          keep(2 * i + h, k.loadFloats(half[h] + chunk * 128, 4));
      }
    } else {
      V chunk = (w & 1) * 4 + (t >> 1);
      Ptr at = row + ((w >> 1) * 128 + (t & 1) * 8);
      Ptr half[2] = {at + ((chunk ^ g) << 4), at + (((chunk + 2) ^ g) << 4)};
      for (int64_t i = 0; i < steps; ++i) {
        Vs v = k.loadFloats(half[0] + i * 256, 2);
        v.append(k.loadFloats(half[1] + i * 256, 2));
        keep(i, v);
      }
    }
  }
}

//===----------------------------------------------------------------------===//
// The kernel
//===----------------------------------------------------------------------===//

void DecodeBuilder::build() {
  V tokens =
      s.spec.maxTokens == 1 ? k.i32(1) : k.blocks() / s.groups - s.splits;
  work = findWork(k, s, positionsOf(k, s.spec, k.buffer(1), fp8 ? 2 : 1), tokens,
                  k.block() / s.groups);
  setUp();
  V firstTile = work.firstTile, tiles = work.tiles;
  // Page numbers are inputs of the step, too. Earlier kernels may still write
  // the rows of this step's tokens, but the L2 cache can have what it may
  // prefetch.
  table = k.buffer(3) +
          k.to64(k.loadI32(k.buffer(2) + work.token * 4) * k.scalar32(0)) * 4;
  int64_t ahead = s.stages - 1;
  Vs pages;
  for (int64_t i = 0; i <= ahead; ++i)
    pages.push_back(pageOf(firstTile + i));
  k.when(k.thread() == 0, [&] {
    for (int64_t i = 0; i < ahead; ++i)
      k.when(tiles > i, [&] {
        k.bulkPrefetchL2(tileAt(firstTile + i, pages[i]),
                         k.i32(s.stageBytes()));
      });
  });
  k.gridTrigger();
  k.gridWait();
  k.when(work.active, [&] {
    toLog2 = k.f32(s.spec.scale * 1.4426950408889634);
    valueScale = k.f32(1);
    if (fp8) {
      valueScale = k.scalarF32(1);
      toLog2 = toLog2 * valueScale;
    }
    auto start = [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) {
        k.when(tiles > i, [&] {
          copyStage(k.i32(i * s.stageBytes()), firstTile + i, pages[i]);
        });
        k.cpAsyncCommit();
      }
    };
    int64_t beside = std::min(ahead, s.stages - s.queryStages());
    copyQuery();
    k.cpAsyncCommit();
    start(0, beside);
    k.cpAsyncWait(beside);
    k.barrier();
    readQuery();
    if (beside < ahead) {
      k.barrier();
      start(beside, ahead);
    }

    k.cpAsyncWait(ahead - 1);
    k.barrier();
    storeScores(scores(k.i32(0)), k.i32(0));
    k.cpAsyncWait(ahead - 2);
    k.barrier();

    State empty{Vs(outTiles * n8 * 4, k.f32(0)), Vs(n8, k.f32(noScore)),
                Vs(n8, k.f32(0))};
    // {this stage, next stage, stage to fill, score buffer, page} and the
    // state.
    Vs init{k.i32(0), k.i32(s.stageBytes()), k.i32(ahead * s.stageBytes()),
            k.i32(0), pages[ahead]};
    init.append(empty.flat());
    Vs last =
        k.loop(k.i32(0), tiles - 1, 1, init, [&](V i, ArrayRef<V> carried) {
          V stage = carried[0], next = carried[1], fill = carried[2];
          V buffer = carried[3], page = carried[4];
          State state = unflatten(carried.drop_front(5));
          V coming = i + ahead;
          k.when(coming < tiles,
                 [&] { copyStage(fill, firstTile + coming, page); });
          k.cpAsyncCommit();
          page = pageOf(firstTile + coming + 1);
          Vs v = loadScores(buffer, V());
          state = rescale(state, v);
          Vs c = scores(next);
          state = addValues(state, v, stage);
          V other = k.i32(s.scoreBytes()) - buffer;
          storeScores(c, other);
          k.cpAsyncWait(ahead - 2);
          k.barrier();
          auto after = [&](V at) {
            V up = at + s.stageBytes();
            return k.select(up == s.stages * s.stageBytes(), k.i32(0), up);
          };
          Vs result{next, after(next), after(fill), other, page};
          result.append(state.flat());
          return result;
        });
    State state = unflatten(ArrayRef<V>(last).drop_front(5));
    // The last tile may be the token's last, with rows behind its own.
    V stage = last[0],
      left = work.position + 1 - (firstTile + tiles - 1) * s.tile;
    k.when(left < s.tile, [&] { clearBehind(stage, left); });
    k.barrier();
    Vs v = loadScores(last[3], left);
    state = rescale(state, v);
    writeResult(addValues(state, v, stage));
  });
}

Kernel decodeAttention(KernelSite site, const DecodeShape &s) {
  std::string name = s.name("latent_attention");
  // Only blocks with work do more than find out.
  std::string splits = std::to_string(s.splits);
  Kernel kernel{name, s.spec.maxTokens == 1
                          ? std::to_string(s.splits * s.groups)
                          : "(tokens + " + splits + ") * " +
                                std::to_string(s.groups)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, attentionAccess(s.spec),
                  (s.fp8() ? 2 : 1) + (s.spec.ranks > 1 ? 1 : 0),
                  {s.teams * 128, s.teams == 1 ? 2 : 1});
  DecodeBuilder(k, s).build();
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
