//===- HeadKernels.cpp - absorbed query, expanded value -------------------===//
//
// Part of mla. A small matrix for each head: y[t, h] = W_h x[t, h], W_h bf16
// [rows, columns], (latent, nope) for the query and (v, latent) for the value.
//
// Up to 64 tokens (FewTokens): a block has one head, 16 to 64 of its rows and
// 8, 16 or 32 tokens; its 4 to 8 warps have a span of 64 columns each if there
// are as many, so that all of W is under way before the wait for the kernel
// before. 8 heads of 512 x 128 are 128 blocks of 8 KB; 1 MB in all is 0.25 us
// of an H200's memory, so what bounds it is latency. 48 to 106 registers a
// thread; shared memory 144 bytes a token and warp: 4.6 to 37 KB. More tokens
// read W again, from L2: 64 tokens twice.
//
// More tokens (ManyTokens): 128 rows and 64 tokens a block of 128 threads, up
// to 216 registers, 18,688 bytes of shared memory, two blocks an SM. With 2 *
// tokens * heads * rows * columns flops against 4 * tokens * heads * rows bytes
// of y, columns of 128 make it memory-bound at 64 flops a byte, 512 about even.
//
// combineExpand, one token: the blocks of a head, 32 rows and 512 threads each, first
// join what the splits of attention found for the head, into shared memory: 41 KB
// with what joining takes. At 33 splits 34 KB a block from L2, one load in flight for
// each 16 bytes; 32 blocks for 8 heads. At 264 splits 270 KB a block: 2 us, which is
// what a kernel of its own takes at any length.
//
//===----------------------------------------------------------------------===//
#include "LatentDecode.h"
#include "PackedProduct.h"

using namespace mlir;

namespace mla::nvvm {

namespace {
/// One of the two products.
struct HeadProduct {
  HeadShape shape;
  int64_t rows, columns; ///< of a head's matrix
  int64_t xHead, yHead;  ///< values of a head in a token's x and y
  unsigned x, weight, y; ///< operands
  int64_t maxTokens;

  ProductShape product() const {
    return {{Format::BF16, shape.heads * rows, columns},
            1,
            rows % 16 == 0,
            columns % 4 == 0 && xHead % 4 == 0};
  }
  bool few() const { return maxTokens <= 64; }
  FewTokens::Split split() const {
    FewTokens::Split s;
    int64_t spans = spansOf(product().matrix);
    s.warpsK = spans >= 8 ? 8 : spans >= 4 ? 4 : spans >= 2 ? 2 : 1;
    s.warpsM = std::max<int64_t>(1, 4 / s.warpsK);
    s.warpsM = std::min<int64_t>(s.warpsM, llvm::divideCeil(rows, 16));
    s.tokenTiles = maxTokens <= 8 ? 1 : maxTokens <= 16 ? 2 : 4;
    // Each block brings the tokens to shared memory for itself.
    s.rowTiles = s.tokenTiles == 4 && rows > 16 ? 2 : 1;
    s.firstTokens = maxTokens <= 2 ? 2 : s.tokens();
    return s;
  }
  static constexpr int64_t manyTiles = 8;
  int64_t manyThreads() const {
    return 32 * std::min<int64_t>(4, llvm::divideCeil(rows, 32));
  }
  int64_t threads() const { return few() ? split().threads() : manyThreads(); }
  int64_t blockRows() const { return few() ? split().rows() : manyThreads(); }
  int64_t blockTokens() const {
    return few() ? split().tokens() : manyTiles * 8;
  }
  /// What a kernel's name says of maxTokens.
  std::string variant() const {
    if (maxTokens <= 2)
      return "2";
    return std::to_string(blockTokens()) +
           (maxTokens > blockTokens() ? "_tiled" : "");
  }
  int64_t chunks() const { return llvm::divideCeil(rows, blockRows()); }
  std::string grid() const {
    std::string grid = std::to_string(shape.heads * chunks());
    if (maxTokens > blockTokens())
      grid += " * ceildiv(tokens, " + std::to_string(blockTokens()) + ")";
    return grid;
  }
};
} // namespace

/// Computes the products. `after` gets the block's first token and their
/// number, head, and chunk of rows, for what a block does besides.
static void emitHeads(KernelBuilder &k, const HeadProduct &p,
                      function_ref<void(V, V, V, V)> after) {
  int64_t perTile = p.shape.heads * p.chunks();
  V tile = k.block() / perTile, head = k.block() % perTile / p.chunks();
  V chunk = k.block() % p.chunks();
  V firstToken = tile * p.blockTokens();
  V headRow = head * p.rows;
  V firstRow = headRow + chunk * p.blockRows(), endRow = headRow + p.rows;
  Ptr w = k.buffer(p.weight);
  auto rowOf = [&](V token) { return firstToken + token; };
  TokenRows x{k.buffer(p.x) + k.to64(head) * (p.xHead * 4),
              p.shape.heads * p.xHead * 4, rowOf};
  Ptr y = k.buffer(p.y) + (k.to64(firstToken) * (p.shape.heads * p.yHead * 4) +
                           k.to64(head) * (p.yHead * 4));
  auto emit = [&](V row, V token, ArrayRef<V> sum) {
    k.store(y + k.to64(token) * (p.shape.heads * p.yHead * 4) +
                (row - headRow) * 4,
            sum[0]);
  };
  auto start = [&] {
    k.gridTrigger();
    k.gridWait();
    return k.minimum(k.scalar32(0) - firstToken, k.i32(p.blockTokens()));
  };
  if (p.few()) {
    FewTokens product(k, p.product(), p.split());
    product.begin({w}, firstRow, endRow);
    V tokens = start();
    after(firstToken, tokens, head, chunk);
    product.run(tokens, x, emit);
    return;
  }
  Ptr scratch = k.shared(ManyTokens::sharedBytes(p.manyTiles));
  ManyTokens product(k, p.product(), p.manyTiles, scratch);
  V tokens = start();
  after(firstToken, tokens, head, chunk);
  product.run({w}, firstRow, endRow, tokens, x, emit);
}

Kernel absorbQuery(KernelSite site, HeadShape s, bool interleaved,
                   int64_t maxTokens) {
  HeadProduct p{
      s,       s.latent,     s.nope,  s.nope + s.rope, s.latent + s.rope,
      /*x=*/0, /*weight=*/1, /*y=*/3, maxTokens};
  std::string name =
      kernelName("absorb_query", s.heads, s.nope, s.rope, s.latent,
                 interleaved ? "interleaved" : "halves", p.variant());
  Kernel kernel{name, p.grid()};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name,
                  {"read", "read", "read", "write"}, 1, {p.threads()});
  emitHeads(k, p, [&](V firstToken, V tokens, V head, V chunk) {
    int64_t half = s.rope / 2;
    if (half == 0)
      return;
    k.when(chunk == 0, [&] {
      k.loop(k.thread(), tokens * half, k.threads(), [&](V i) {
        V token = k.to64(firstToken + i / half), pair = i % half;
        V row = token * s.heads + k.to64(head);
        Ptr q = k.buffer(0) + row * (p.xHead * 4) + s.nope * 4;
        Ptr y = k.buffer(3) + row * (p.yHead * 4) + s.latent * 4 + pair * 4;
        Ptr turn = k.buffer(2) + token * (s.rope * 4) + pair * 4;
        V first = k.loadF32(q + (interleaved ? pair * 8 : pair * 4));
        V second =
            k.loadF32(q + (interleaved ? pair * 8 + 4 : pair * 4 + half * 4));
        V c = k.loadF32(turn), sine = k.loadF32(turn + half * 4);
        k.store(y, first * c - second * sine);
        k.store(y + half * 4, second * c + first * sine);
      });
    });
  });
  k.finish();
  return kernel;
}

Kernel expandValue(KernelSite site, HeadShape s, int64_t maxTokens) {
  HeadProduct p{s,       s.v,          s.latent, s.latent, s.v,
                /*x=*/0, /*weight=*/1, /*y=*/2,  maxTokens};
  std::string name =
      kernelName("expand_value", s.heads, s.v, s.latent, p.variant());
  Kernel kernel{name, p.grid()};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 1,
                  {p.threads()});
  emitHeads(k, p, [](V, V, V, V) {});
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Expanded value of attention in splits
//===----------------------------------------------------------------------===//

static HeadProduct combinedProduct(HeadShape s) {
  return {s,       s.v,          s.latent, s.latent, s.v,
          /*x=*/3, /*weight=*/4, /*y=*/5,  1};
}
/// 16 warps, if there are as many rows and columns.
static FewTokens::Split combinedSplit(const HeadProduct &p) {
  FewTokens::Split s = p.split();
  s.warpsM = 16 / s.warpsK;
  return s;
}

bool canCombineInExpand(const AttentionSpec &spec, DecodeForm form,
                        HeadShape shape, const Gpu &gpu) {
  // What ranks found is merged before it is expanded.
  return spec.maxTokens == 1 && spec.ranks == 1 && !spec.lse &&
         fitsDecodeTiles(spec) &&
         spec.heads == shape.heads && spec.latent == shape.latent &&
         canCombineHead(decodeShape(spec, form, gpu),
                        combinedSplit(combinedProduct(shape)).threads());
}

Kernel combineExpand(KernelSite site, const AttentionSpec &spec, DecodeForm form,
                     HeadShape shape) {
  DecodeShape s = decodeShape(spec, form, site.gpu);
  HeadProduct p = combinedProduct(shape);
  FewTokens::Split split = combinedSplit(p);
  std::string name = kernelName(s.name("combine_expand"), shape.v);
  int64_t chunks = llvm::divideCeil(p.rows, split.rows());
  Kernel kernel{name, std::to_string(shape.heads * chunks)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name,
                  {"read", "read", "read", "readwrite", "read", "write"}, 0,
                  {split.threads()});
  V head = k.block() / chunks, chunk = k.block() % chunks;
  V firstRow = head * p.rows + chunk * split.rows();
  Ptr x = k.shared(shape.latent * 4);
  FewTokens product(k, p.product(), split);
  product.begin({k.buffer(p.weight)}, firstRow, head * p.rows + p.rows);
  V splits = splitsOfOne(k, s, Positions(k, k.buffer(0)));
  k.gridTrigger();
  k.gridWait();
  V firstValue = head * shape.latent;
  Ptr y = k.buffer(p.x);
  k.ifElse(
      splits > 1,
      [&] {
        combineHead(k, s, head, splits, k.buffer(1), k.buffer(2),
                    [&](V value, ArrayRef<V> v) {
                      for (auto [i, one] : llvm::enumerate(v)) {
                        V at = value + int64_t(i);
                        k.store(x + (at - firstValue) * 4, one);
                        k.when(chunk == 0, [&] { k.store(y + at * 4, one); });
                      }
                    });
      },
      [&] {
        k.loop(k.thread(), k.i32(shape.latent), k.threads(), [&](V i) {
          k.store(x + i * 4, k.loadF32(y + (firstValue + i) * 4, Cached::L2));
        });
      });
  k.barrier();
  auto rowOf = [&](V) { return k.i32(0); };
  Ptr out = k.buffer(p.y);
  product.run(k.i32(1), {x, 0, rowOf}, [&](V row, V, ArrayRef<V> sum) {
    k.store(out + row * 4, sum[0]);
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
