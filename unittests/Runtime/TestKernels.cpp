//===- TestKernels.cpp - kernels of the tests' little model ---------------===//
//
// Part of mla. A model that is easy to compute by hand and that notices every
// mistake of paging, positions and batching: its hidden state at position p is
// the sum over q <= p of (q + 1) * embedding(token at q), read from the cache.
// All values are small integers, so f32 is exact in any order.
//
//===----------------------------------------------------------------------===//
#include "mla/Quant/Codec.h"
#include <bit>
#include <cmath>
#include <cstdint>

namespace {

constexpr int64_t pageTokens = 64;

template <typename T> T *pointer(uint64_t argument) {
  return reinterpret_cast<T *>(static_cast<uintptr_t>(argument));
}
int64_t scalar(uint64_t argument) { return static_cast<int64_t>(argument); }

/// Where `position` of a sequence with page table row `row` lies in the cache.
template <typename T>
T *cell(T *cache, const int32_t *row, int64_t position, int64_t width) {
  int64_t page = row[position / pageTokens];
  return cache + (page * pageTokens + position % pageTokens) * width;
}

/// Writes encode(value, token) of every value to a cache of T.
template <typename T, typename Encode>
void store(const uint64_t *args, int64_t begin, int64_t end, Encode encode) {
  const float *x = pointer<const float>(args[0]);
  const int32_t *positions = pointer<const int32_t>(args[2]);
  const int32_t *sequence = pointer<const int32_t>(args[3]);
  const int32_t *table = pointer<const int32_t>(args[4]);
  int64_t pages = scalar(args[5]);
  int64_t width = scalar(args[6]);
  for (int64_t t = begin; t < end; ++t) {
    T *to = cell(pointer<T>(args[1]), table + sequence[t] * pages, positions[t],
                 width);
    for (int64_t w = 0; w < width; ++w)
      to[w] = encode(x[t * width + w], t);
  }
}

} // namespace

/// Of `width` logits the one that `better` prefers.
template <typename Better>
void route(const uint64_t *args, int64_t begin, int64_t end, Better better) {
  const float *logits = pointer<const float>(args[0]);
  int32_t *experts = pointer<int32_t>(args[1]);
  float *weights = pointer<float>(args[2]);
  int64_t width = scalar(args[3]);
  for (int64_t t = begin; t < end; ++t) {
    const float *row = logits + t * width;
    int64_t best = 0;
    for (int64_t e = 1; e < width; ++e)
      best = better(row[e], row[best]) ? e : best;
    experts[t] = static_cast<int32_t>(best);
    weights[t] = row[best];
  }
}

extern "C" {

// (logits, experts, weights, width): the names say how, the second one lies.
void route_softmax_greedy_4_1_1_1_0_right(const uint64_t *args, int64_t begin,
                                          int64_t end) {
  route(args, begin, end, [](float a, float b) { return a > b; });
}
void route_softmax_greedy_4_1_1_1_0_wrong(const uint64_t *args, int64_t begin,
                                          int64_t end) {
  route(args, begin, end, [](float a, float b) { return a < b; });
}
// (experts, weights, y, width)
void test_expert(const uint64_t *args, int64_t begin, int64_t end) {
  const int32_t *experts = pointer<const int32_t>(args[0]);
  const float *weights = pointer<const float>(args[1]);
  float *y = pointer<float>(args[2]);
  int64_t width = scalar(args[3]);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t w = 0; w < width; ++w)
      y[t * width + w] =
          weights[t] * static_cast<float>(100 * (experts[t] + 1) + w);
}

// (x, y, factor): y = factor * y + x
void test_accumulate(const uint64_t *args, int64_t begin, int64_t end) {
  const float *x = pointer<const float>(args[0]);
  float *y = pointer<float>(args[1]);
  auto factor = static_cast<float>(scalar(args[2]));
  for (int64_t i = begin; i < end; ++i)
    y[i] = factor * y[i] + x[i];
}

// (embedding, ids, x, width)
void test_embed(const uint64_t *args, int64_t begin, int64_t end) {
  const float *embedding = pointer<const float>(args[0]);
  const int32_t *ids = pointer<const int32_t>(args[1]);
  float *x = pointer<float>(args[2]);
  int64_t width = scalar(args[3]);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t w = 0; w < width; ++w)
      x[t * width + w] = embedding[ids[t] * width + w];
}

// (embedding, ids, x, width, rank, ranks): tokens of other ranks are zeros.
void test_embed_part(const uint64_t *args, int64_t begin, int64_t end) {
  const int32_t *ids = pointer<const int32_t>(args[1]);
  float *x = pointer<float>(args[2]);
  int64_t width = scalar(args[3]);
  for (int64_t t = begin; t < end; ++t) {
    if (ids[t] % scalar(args[5]) == scalar(args[4]))
      test_embed(args, t, t + 1);
    else
      for (int64_t w = 0; w < width; ++w)
        x[t * width + w] = 0;
  }
}

// (x, cache, positions, sequence, page table, pages, width)
void test_store(const uint64_t *args, int64_t begin, int64_t end) {
  store<float>(args, begin, end, [](float value, int64_t) { return value; });
}
void test_store_bf16(const uint64_t *args, int64_t begin, int64_t end) {
  store<uint16_t>(args, begin, end, [](float value, int64_t) {
    return mla::quant::encodeBF16(value);
  });
}
void test_store_f16(const uint64_t *args, int64_t begin, int64_t end) {
  store<uint16_t>(args, begin, end, [](float value, int64_t) {
    return mla::quant::encodeF16(value);
  });
}

// (as above, saturated, bits of the scale)
void test_store_fp8_e4m3(const uint64_t *args, int64_t begin, int64_t end) {
  auto *saturated = pointer<int32_t>(args[7]);
  auto scale = std::bit_cast<float>(static_cast<uint32_t>(args[8]));
  store<uint8_t>(args, begin, end, [=](float value, int64_t t) {
    saturated[t] += std::fabs(value / scale) > mla::quant::e4m3Max ? 1 : 0;
    return mla::quant::encodeE4M3(value / scale);
  });
}

// (buffer, sink, bytes)
void read_ceiling(const uint64_t *args, int64_t begin, int64_t end) {
  const volatile float *x = pointer<const float>(args[0]);
  for (int64_t i = begin; i < end; ++i)
    (void)x[i];
}

// (cache, positions, sequence, page table, y, pages, width)
void test_recall(const uint64_t *args, int64_t begin, int64_t end) {
  const int32_t *positions = pointer<const int32_t>(args[1]);
  const int32_t *sequence = pointer<const int32_t>(args[2]);
  const int32_t *table = pointer<const int32_t>(args[3]);
  float *y = pointer<float>(args[4]);
  int64_t pages = scalar(args[5]);
  int64_t width = scalar(args[6]);
  for (int64_t t = begin; t < end; ++t)
    for (int64_t w = 0; w < width; ++w) {
      float sum = 0;
      for (int64_t q = 0; q <= positions[t]; ++q)
        sum += static_cast<float>(q + 1) * cell(pointer<float>(args[0]),
                                                table + sequence[t] * pages, q,
                                                width)[w];
      y[t * width + w] = sum;
    }
}

// (logits, sampling, top k, seen, sampled, vocab): the first of the largest at
// temperature 0, else a number in which each parameter shows.
void test_sample(const uint64_t *args, int64_t begin, int64_t end) {
  const float *logits = pointer<const float>(args[0]);
  const float *sampling = pointer<const float>(args[1]);
  const int32_t *topK = pointer<const int32_t>(args[2]);
  int32_t *seen = pointer<int32_t>(args[3]);
  int32_t *sampled = pointer<int32_t>(args[4]);
  int64_t vocab = scalar(args[5]);
  for (int64_t o = begin; o < end; ++o) {
    const float *row = logits + o * vocab, *s = sampling + o * 4;
    int64_t best = 0;
    bool bad = false;
    for (int64_t v = 0; v < vocab; ++v) {
      bad |= !(row[v] < INFINITY);
      best = row[v] > row[best] ? v : best;
    }
    if (s[0] > 0)
      best = (static_cast<int64_t>(s[3] * 100) + topK[o] * 3 +
              static_cast<int64_t>(s[1] * 10) + static_cast<int64_t>(s[2] * 4)) %
             vocab;
    seen[o] = 1;
    sampled[o] = bad ? -1 : static_cast<int32_t>(best);
  }
}

// (y, outputs, experts, logits, vocab, width, experts' number)
void test_head(const uint64_t *args, int64_t begin, int64_t end) {
  const float *y = pointer<const float>(args[0]);
  const int32_t *outputs = pointer<const int32_t>(args[1]);
  const uint64_t *experts = pointer<const uint64_t>(args[2]);
  float *logits = pointer<float>(args[3]);
  int64_t vocab = scalar(args[4]);
  int64_t width = scalar(args[5]);
  int64_t count = scalar(args[6]);
  for (int64_t o = begin; o < end; ++o)
    for (int64_t v = 0; v < vocab; ++v) {
      const float *expert = pointer<const float>(experts[v % count]);
      float sum = static_cast<float>(v);
      for (int64_t w = 0; w < width; ++w)
        sum += expert[w] * y[outputs[o] * width + w];
      logits[o * vocab + v] = sum;
    }
}

// (y, outputs, experts, part, columns, width, experts' number, rank, vocab): the
// columns of the logits that are the rank's. None of the vocabulary's are NaN.
void test_head_part(const uint64_t *args, int64_t begin, int64_t end) {
  const float *y = pointer<const float>(args[0]);
  const int32_t *outputs = pointer<const int32_t>(args[1]);
  const uint64_t *experts = pointer<const uint64_t>(args[2]);
  float *part = pointer<float>(args[3]);
  int64_t columns = scalar(args[4]);
  int64_t width = scalar(args[5]);
  for (int64_t o = begin; o < end; ++o)
    for (int64_t c = 0; c < columns; ++c) {
      int64_t v = scalar(args[7]) * columns + c;
      const float *expert = pointer<const float>(experts[v % scalar(args[6])]);
      float sum = v < scalar(args[8]) ? static_cast<float>(v) : NAN;
      for (int64_t w = 0; w < width; ++w)
        sum += expert[w] * y[outputs[o] * width + w];
      part[o * columns + c] = sum;
    }
}
}
