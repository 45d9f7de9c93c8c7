//===- LargeStore.cpp - sums of the products of many tokens ---------------===//
//
// Part of mla. A lane has neighbouring rows (LargeLinear::setUpFragments()): of 32
// rows of a warp four, of 16 of gate and up two. So a warp stores whole lines of
// four tokens at a time, or pairs of columns of x16.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm::large {

/// What the sums of each part are multiplied with.
Vs LargeLinear::factors(ArrayRef<V> scales) {
  Vs factor;
  for (int64_t part = 0; part < (spec.gated ? 2 : 1); ++part) {
    switch (s.format) {
    case Format::FP8Block:
      factor.push_back(scales[part] * k.f32(16));
      break;
    case Format::NVFP4: {
      int64_t tail =
          quant::packedTail(s.format, spec.segments[0].rows, columns());
      V at = spec.segments.size() == 1 || spec.gated
                 ? k.i64(tail)
                 : k.to64(k.ceilDiv(rows, 16) * 4) * quadStride();
      factor.push_back(k.loadF32(weight[part] + at) *
                       k.f32(s.four ? 1 : 4096));
      break;
    }
    case Format::Int4G32:
      factor.push_back(k.f32(1.0 / 16));
      break;
    default:
      factor.push_back(k.f32(1));
    }
  }
  return factor;
}

/// Stores 1, 2 or 4 words to global memory if `condition`, without a branch: the
/// arithmetic of all tokens stays in one block, where it overlaps. For gated sums;
/// others have little to compute, and would only take more registers.
static void storeIf(KernelBuilder &k, V condition, Ptr to,
                    ArrayRef<V> words) {
  std::string type = words.size() == 1
                         ? ".b32"
                         : ".v" + std::to_string(words.size()) + ".b32";
  std::string list, constraints = "r,l";
  SmallVector<Value> args{k.select(condition, k.i32(1), k.i32(0)).value,
                          to.value};
  for (auto [i, word] : llvm::enumerate(words)) {
    list += (i ? ", $" : "$") + std::to_string(i + 2);
    constraints += word.value.getType().isF32() ? ",f" : ",r";
    args.push_back(word.value);
  }
  k.inlinePTX("{\n.reg .pred p;\nsetp.ne.b32 p, $0, 0;\n@p st.global" + type +
                  (words.size() == 1 ? " [$1], " + list : " [$1], {" + list + "}") + ";\n}",
              constraints, Type(), args, /*sideEffects=*/true);
}

/// The results of token 2t + `odd` of an n-tile: of rows 4g to 4g + 3, or gated, of
/// 2g and 2g + 1. Accumulator (m-tile, n-tile) has rows of both halves, tokens 2t and
/// 2t + 1.
Vs LargeLinear::rowsOf(ArrayRef<V> acc, ArrayRef<V> factor, int64_t nTile,
                       int64_t odd) {
  V turned = (lane & 4) == 4;
  Vs out;
  for (int64_t mTile = 0; mTile < mTiles; ++mTile) {
    ArrayRef<V> sums =
        acc.slice((mTile * s.pairs() * 2 + nTile) * 4, 4);
    for (int64_t h = 0; h < 2; ++h) {
      V v = k.select(turned, sums[(1 - h) * 2 + odd], sums[h * 2 + odd]);
      out.push_back(s.format == Format::BF16 ? v
                                             : v * factor[partOf(mTile)]);
    }
  }
  if (!spec.gated || s.four)
    return out;
  return {quickSilu(k, out[0]) * out[2], quickSilu(k, out[1]) * out[3]};
}

/// Grouping::scatter: the rows of y of the tile's tokens, of token 32 * i + lane in
/// value i.
Vs LargeLinear::loadPlaces() {
  Vs places;
  if (groups && groups->scatter)
    for (int64_t first = 0; first < s.tokens; first += 32) {
      V place = k.minimum(firstToken + lane + first, endToken - 1);
      places.push_back(k.loadI32(k.buffer(1) + k.to64(place) * 4));
    }
  return places;
}

/// Stores the sums of the tile that locate() was called with.
void LargeLinear::store(ArrayRef<V> acc, ArrayRef<V> scales,
                        ArrayRef<V> places) {
  Vs factor = factors(scales);
  if (groups && groups->next)
    return storePacked(acc, factor);
  const int64_t rowsOfLane = 2 * half();
  bool together = llvm::all_of(spec.segments, [&](const MatrixShape &m) {
    return m.rows % rowsOfLane == 0;
  });
  V t = lane & 3, row = localRow + (lane >> 2) * rowsOfLane;
  struct Token {
    V inside, factor;
    Ptr line;
    Vs residual;
  };
  auto load = [&](int64_t i) {
    V within = t * 2 + (i / 2 * 8 + i % 2), token = firstToken + within;
    Token to;
    to.inside = token < endToken;
    V at = k.select(to.inside, token, endToken - 1);
    V place = token;
    if (!places.empty())
      place = k.shuffle(places[i / 8], within & 31);
    else if (spec.residual)
      place = at;
    Ptr line = y + (k.to64(place) * k.to64(rows) + k.to64(row)) * 4;
    to.line = line;
    if (s.four)
      to.factor = k.loadF32(
          k.buffer(0) + k.to64(at / packedTokens) * bytesOfTokens() +
          at % packedTokens * 4 + (bytesOfTokens() - 4 * packedTokens));
    if (!spec.residual)
      return to;
    auto address = [&](V row) {
      return k.buffer(3) + (k.to64(place) * k.to64(rows) + k.to64(row)) * 4;
    };
    // L2: stays where it is, ahead of its use.
    if (together)
      to.residual = k.loadFloats(address(k.minimum(row, rows - rowsOfLane)),
                                 rowsOfLane, Cached::L2);
    else
      for (int64_t r = 0; r < rowsOfLane; ++r)
        to.residual.push_back(k.loadF32(
            address(k.minimum(row + r, rows - 1)), Cached::L2));
    return to;
  };
  auto store = [&](V condition, Ptr to, ArrayRef<V> words) {
    if (spec.gated)
      return storeIf(k, condition, to, words);
    k.when(condition, [&] {
      if (words.size() == 1)
        k.store(to, words[0]);
      else
        k.storeWords(to, words);
    });
  };
  auto put = [&](int64_t i, const Token &to) {
    Vs values = rowsOf(acc, factor, i / 2, i % 2);
    if (s.four) {
      for (V &v : values)
        v = v * to.factor;
      if (spec.gated)
        values = {quickSilu(k, values[0]) * values[2],
                  quickSilu(k, values[1]) * values[3]};
    }
    for (auto [v, r] : llvm::zip(values, to.residual))
      v = v + r;
    if (together)
      store(to.inside & (row < rows), to.line, values);
    else
      for (auto [r, v] : llvm::enumerate(values))
        store(to.inside & (row + int64_t(r) < rows), to.line + int64_t(r) * 4,
              v);
  };
  // What is loaded for the next tokens is under way while some are stored.
  constexpr int64_t some = 4;
  SmallVector<Token> now, later;
  for (int64_t i = 0; i < 4 * s.pairs() + some; ++i) {
    if (i < 4 * s.pairs())
      later.push_back(load(i));
    if (i % some < some - 1)
      continue;
    for (auto [n, to] : llvm::enumerate(now))
      put(i - 2 * some + 1 + n, to);
    now = std::move(later);
    later.clear();
  }
}

/// Stores pairs of gated rows as words of x16 (PackRows.cpp), zeros beyond the last
/// row up to where x16's columns end.
void LargeLinear::storePacked(ArrayRef<V> acc, ArrayRef<V> factor) {
  const LinearSpec &next = *groups->next;
  int64_t bytes = packedRowsBytes(next);
  V t = lane & 3, row = localRow + (lane >> 2) * 2;
  PackedWord word = packedWordOf(next.segments[0].format, row);
  V chunk = word.step / (chunkColumns / 16);
  V piece = word.step % (chunkColumns / 16) * 2 + word.half;
  for (int64_t n = 0; n < 2; ++n)
    for (int64_t odd = 0; odd < 2; ++odd) {
      V place = firstToken + t * 2 + (8 * n + odd);
      Ptr to = y + k.to64(place / packedTokens) * bytes +
               chunk * (packedTokens * chunkColumns * 2) +
               place % packedTokens * (2 * chunkColumns) +
               ((piece ^ (place & 7)) * 16 + word.t * 4);
      for (int64_t pair = 0; pair < s.pairs(); ++pair) {
        Vs values = rowsOf(acc, factor, 2 * pair + n, odd);
        for (auto [i, v] : llvm::enumerate(values))
          v = k.select(row + int64_t(i) < rows, v, k.f32(0));
        V packed = packColumns(k, next.segments[0].format, values);
        storeIf(k, place + 16 * pair < endToken, to + pair * bytes, packed);
      }
    }
}

} // namespace mla::nvvm::large
