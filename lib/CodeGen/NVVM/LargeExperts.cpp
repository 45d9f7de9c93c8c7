//===- LargeExperts.cpp - experts of many tokens --------------------------===//
//
// Part of mla. The products of LargeLinear.cpp for experts: a tile is 256 rows of one
// expert (of gate and of up 128 each) and up to 128 of its pairs, from the list that
// moeGroup() makes. Blocks that run together have all rows of some experts, so that
// weights come from memory once.
//
// Gate and up gather packed rows of x by the pairs' tokens, 16 bytes a lane, and
// store h in 16 bits, packed as down reads it; down stores f32 where the pair is.
// Registers and shared memory are those of linearLarge(); tiles of up to 64 and 32
// pairs have products of as many. What 256 rows and 128 pairs read from L2 is 768
// bytes a column of bf16 for 65,536 flops; few pairs are bound by reading weights.
//
//===----------------------------------------------------------------------===//
#include "LargeLinear.h"

using namespace mlir;

namespace mla::nvvm {

namespace large {

/// Entry i of tiles: expert, first place, last place + 1.
void LargeLinear::locateGroup(V tile) {
  int64_t perExpert = rowTiles(spec);
  const MatrixShape &m = spec.segments[0];
  Vs entry = k.loadWords(k.buffer(2) + k.to64(tile / perExpert) * 16, 4);
  firstToken = entry[1], endToken = entry[2];
  localRow = (tile % perExpert * warpCount + warp) *
             (spec.gated ? warpRows / 2 : warpRows);
  rows = k.i32(m.rows);
  quadEnd = k.i32(quant::packedQuads(m.rows));
  V stack = k.to64(entry[0]) *
            quant::packedBytes(m.format, m.rows, m.columns);
  weight.clear();
  for (size_t i = 0; i < spec.segments.size(); ++i)
    weight.push_back(k.buffer(3 + i) + stack);
  y = k.buffer(3 + spec.segments.size());
}

} // namespace large

bool expertsAreLarge(const ExpertSpec &spec) {
  return spec.maxTokens > 64 && spec.maxTokens * spec.topk > 12 * spec.experts;
}

LinearSpec expertRows(const ExpertSpec &spec) {
  LinearSpec linear;
  linear.segments = {spec.gate};
  linear.maxTokens = spec.maxTokens;
  return linear;
}
LinearSpec expertHidden(const ExpertSpec &spec) {
  LinearSpec linear;
  linear.segments = {spec.down};
  linear.maxTokens = spec.maxTokens;
  return linear;
}

static Kernel makeExperts(KernelSite site, StringRef family,
                          const ExpertSpec &spec, const LinearSpec &product,
                          const large::Grouping &groups) {
  const MatrixShape &m = product.segments[0];
  std::string name =
      kernelName(family, formatName(m.format), m.rows, m.columns, spec.experts,
                 spec.topk, "large");
  if (groups.next)
    name = kernelName(name, formatName(groups.next->segments[0].format));
  std::string pairs = "tokens * " + std::to_string(spec.topk);
  std::string tiles = "(ceildiv(" + pairs + ", " +
                      std::to_string(expertTileTokens) + ") + min(" + pairs +
                      ", " + std::to_string(spec.experts) + ")) * " +
                      std::to_string(large::rowTiles(product));
  Kernel kernel{name, "min(" + tiles + ", " +
                          std::to_string(site.gpu.multiprocessors) + ")"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access(3 + product.segments.size(), "read");
  access.push_back("write");
  KernelBuilder k(site.kernels, site.loc, name, access, 1,
                  {large::blockThreads});
  large::Shape shape = large::shapeFor(product, site.gpu);
  shape.tokens = shape.slotTokens = expertTileTokens;
  large::LargeLinear(k, product, shape, &groups).build();
  k.finish();
  return kernel;
}

Kernel expertsGateUpLarge(KernelSite site, const ExpertSpec &spec) {
  LinearSpec product = expertRows(spec);
  product.segments.push_back(spec.gate);
  product.gated = true;
  return makeExperts(site, "experts_gate_up", spec, product,
                     {spec.experts, spec.topk, /*gather=*/true,
                      /*scatter=*/false, expertHidden(spec)});
}
Kernel expertsDownLarge(KernelSite site, const ExpertSpec &spec) {
  return makeExperts(site, "experts_down", spec, expertHidden(spec),
                     {spec.experts, spec.topk, /*gather=*/false,
                      /*scatter=*/true, std::nullopt});
}

} // namespace mla::nvvm
