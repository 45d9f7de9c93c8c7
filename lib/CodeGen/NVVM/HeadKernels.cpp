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
//===----------------------------------------------------------------------===//
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

} // namespace mla::nvvm
