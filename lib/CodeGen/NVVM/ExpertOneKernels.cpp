//===- ExpertOneKernels.cpp - the experts of one token --------------------===//
//
// Part of mla. Every chosen expert and the shared one in one pass over their
// weights; StreamCore.h has how.
//
// Gate and up: rows of all experts together, in pairs of a gate and an up quad, are
// dealt out to one block an SM. Every block makes the choice of experts from the
// logits, its first warp while the others bring x to shared memory: 1.4 us, where a
// kernel between takes 2.3 and what is between kernels. Then the ring is filled; the
// shared expert's weights are fetched to L2 before.
// Down: a block owns rows, its warps split experts and their columns; it makes the
// same choice, and all its weights are on their way, before the wait for gate and up,
// since expertsGateUpOne lets its successors begin only after its own wait, when the
// kernel that wrote the logits has ended.
//
//   bytes      the matrices of topk experts and the shared one, once
//   shared     at most 99 KB: x in 16 bits, the ring with what is left
//   bound by   reading; decoding for nvfp4 and int4 as in StreamKernels.cpp; 1 to 2
//              us each of latency
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "Router.h"
#include "StreamCore.h"
#include <numeric>

using namespace mlir;

namespace mla::nvvm {

static std::string expertName(StringRef family, const ExpertSpec &spec,
                              const MatrixShape &shape) {
  std::string name =
      kernelName(family, formatName(shape.format), shape.rows, shape.columns,
                 spec.experts, spec.topk, spec.sharedRows);
  if (spec.routing)
    name =
        kernelName(name, Router::name(spec.routing, spec.experts, spec.bias));
  return name;
}

bool canChooseInExperts(const ExpertSpec &spec, RoutingAttr routing) {
  // The first warp has a key of every 32 experts in registers; the kernel for the
  // product has few to spare.
  return spec.maxTokens == 1 && spec.experts <= 512 &&
         routing.getTopk() <= spec.experts;
}

/// What the choice takes of shared memory, for any number of threads.
static int64_t choiceBytes(const ExpertSpec &spec) {
  if (!spec.routing)
    return 0;
  return Router::sharedBytes(spec.routing, spec.experts, 512) + 4 * spec.topk;
}

/// Blocks of `items` equal pieces, at most `most` a block: a multiple of the SMs
/// unless there are fewer items.
static int64_t blocksFor(const Gpu &gpu, int64_t items, int64_t most) {
  int64_t waves = llvm::divideCeil(items, gpu.multiprocessors * most);
  return std::min<int64_t>(items, gpu.multiprocessors * waves);
}

/// Copies the ids of the token's experts to shared memory. A barrier must follow.
static void fetchIds(KernelBuilder &k, Ptr ids, Ptr from, int64_t topk) {
  k.loop(k.thread(), k.i32(topk), k.threads(), [&](V i) {
    k.store(ids + i * 4, k.loadI32(from + i * 4, Cached::L2));
  });
}

//===----------------------------------------------------------------------===//
// Gate and up
//===----------------------------------------------------------------------===//

StreamShape gateUpOneShape(const ExpertSpec &spec, const Gpu &gpu) {
  StreamShape s;
  s.format = spec.gate.format;
  s.units = quant::packedUnits(s.format, spec.gate.columns);
  if (s.format == Format::FP8Block)
    s.scaleColumns = llvm::divideCeil(spec.gate.columns, 128);
  int64_t pairs = spec.topk * llvm::divideCeil(spec.gate.rows, 4) +
                  llvm::divideCeil(spec.sharedRows, 4);
  int64_t blocks = blocksFor(gpu, pairs, 20);
  s.quads = 2 * llvm::divideCeil(pairs, blocks);
  s.ragged = pairs % blocks != 0;
  s.extraBytes = choiceBytes(spec);
  s.choose(0);
  return s;
}

Kernel expertsGateUpOne(KernelSite site, const ExpertSpec &spec,
                        const StreamShape &s) {
  Format format = s.format;
  int64_t columns = spec.gate.columns, unitBytes = quant::unitBytes(format);
  int64_t expertPairs = llvm::divideCeil(spec.gate.rows, 4);
  int64_t sharedPairs = llvm::divideCeil(spec.sharedRows, 4);
  int64_t pairs = spec.topk * expertPairs + sharedPairs;
  int64_t blocks = blocksFor(site.gpu, pairs, s.quads / 2);
  std::string name = expertName("experts_gate_up_one", spec, spec.gate);
  if (spec.norm)
    name = kernelName(name, "norm", formatName(spec.gamma), nameOf(spec.eps));
  Kernel kernel{name, std::to_string(blocks)};
  if (exists(site, name))
    return kernel;
  // Ids and weights, or logits and perhaps a bias.
  const unsigned idsAt = spec.norm ? 2 : 1, weightsAt = idsAt + 1,
                 gateAt = weightsAt + (spec.routing && !spec.bias ? 0 : 1),
                 sharedAt = gateAt + 2;
  SmallVector<StringRef> access(sharedAt + (sharedPairs ? 2 : 0), "read");
  access.push_back("write");
  // Right behind the router, its blocks are to be there before the router's have
  // ended, beside them, and one on each SM: two where the router has no block would
  // leave other SMs without, and take twice the time. So its registers are all but
  // those of the router, 16 warps of 56, which is more than half.
  int64_t registers = 0;
  if (spec.routing)
    registers = std::min<int64_t>(
        (65536 - 512 * 56) / (s.warps() * 32) / 8 * 8, 255);
  KernelBuilder k(site.kernels, site.loc, name, access, 0,
                  {s.warps() * 32, 1, registers});
  StreamCore core(k, s);
  Ptr ids = k.shared(4 * spec.topk), chosenWeights = k.buffer(weightsAt);
  std::optional<Router> router;
  if (spec.routing) {
    chosenWeights = k.shared(4 * spec.topk);
    router.emplace(k, spec.routing, spec.experts, spec.bias);
  }
  core.quads = (k.i32(pairs + blocks - 1) - k.block()) / blocks * 2;
  int64_t stride = quant::packedBytes(format, spec.gate.rows, columns);
  int64_t tail = quant::packedTail(format, spec.gate.rows, columns);
  int64_t sharedTail = quant::packedTail(format, spec.sharedRows, columns);

  /// Where the matrix of a slot's quad begins (gate and up take turns), the quad in
  /// it, and where the matrix' tail begins. Needs the ids.
  struct Place {
    Ptr matrix, tail;
    V quad, source;
    V isShared; ///< null: no shared expert
  };
  auto place = [&](V pair, V up) {
    Place p;
    V ofExperts = sharedPairs ? pair - sharedPairs : pair;
    if (sharedPairs) {
      p.isShared = pair < sharedPairs;
      ofExperts = k.select(p.isShared, k.i32(0), ofExperts);
    }
    p.source = ofExperts / expertPairs;
    p.quad = ofExperts % expertPairs;
    V id = k.loadI32(ids + p.source * 4);
    p.matrix = k.select(up, k.buffer(gateAt + 1), k.buffer(gateAt)) +
               k.to64(id) * stride;
    p.tail = p.matrix + tail;
    if (sharedPairs) {
      Ptr shared = k.select(up, k.buffer(sharedAt + 1), k.buffer(sharedAt));
      p.matrix = k.select(p.isShared, shared, p.matrix);
      p.tail = k.select(p.isShared, shared + sharedTail, p.tail);
      p.quad = k.select(p.isShared, pair, p.quad);
    }
    return p;
  };
  auto ofSlot = [&](V slot) {
    return place(k.block() + (slot >> 1) * blocks, (slot & 1) == 1);
  };
  core.weights = [&](V slot, V unit) {
    Place p = ofSlot(slot);
    return p.matrix + k.to64(p.quad * s.units + unit) * unitBytes;
  };
  core.scaleColumn = [](V unit) { return unit >> 1; };

  // A row of h, its thread's in what it needs besides the sums.
  int64_t rows = s.quads * 2;
  bool early = rows <= k.threads();
  V lastPair = (core.quads >> 1) - 1;
  auto factors = [&](V row) {
    V pair = k.block() + k.minimum(row >> 2, lastPair) * blocks;
    Place gate = place(pair, k.no()), up = place(pair, k.yes());
    V weight = k.loadF32(chosenWeights + gate.source * 4,
                         router ? Cached::Yes : Cached::L2);
    if (gate.isShared)
      weight = k.select(gate.isShared, k.f32(1), weight);
    Vs out = {weight};
    if (format == Format::NVFP4) {
      out.push_back(k.loadF32(gate.tail));
      out.push_back(k.loadF32(up.tail));
    }
    return out;
  };

  core.init();
  if (sharedPairs)
    k.when((k.block() < sharedPairs) & (k.thread() < 2), [&] {
      Ptr shared =
          k.select(k.thread() == 1, k.buffer(sharedAt + 1), k.buffer(sharedAt));
      k.bulkPrefetchL2(shared + k.to64(k.block()) * (s.units * unitBytes),
                       k.i32(s.units * unitBytes));
    });
  StreamCore::X x;
  x.values = k.buffer(0);
  x.columns = x.lastColumns = columns;
  if (spec.norm)
    x.gamma = k.buffer(1);
  x.gammaFormat = spec.gamma;
  Vs mine;
  auto begin = [&] { // once the ids are there
    core.fill();
    core.fetchScales([&](V slot, V column) {
      Place p = ofSlot(slot);
      return p.tail + ((p.quad >> 5) * s.scaleColumns + column) * 4;
    });
    if (early)
      mine = factors(k.minimum(k.thread(), k.i32(rows - 1)));
  };
  if (router && spec.bias)
    router->fetchBias(k.buffer(weightsAt));
  core.stageX(
      x,
      [&] {
        k.gridWait();
        k.gridTrigger(); // after the wait: see expertsDownOne
        if (router)
          router->fetchLogits(k.buffer(idsAt));
      },
      [&] {
        if (router) {
          router->score();
          k.when(k.warp() == 0, [&] { router->choose(ids, chosenWeights); });
          return;
        }
        fetchIds(k, ids, k.buffer(idsAt), spec.topk);
        k.barrier();
        begin();
      });
  k.barrier();
  if (router) {
    begin();
    if (format == Format::FP8Block)
      k.barrier(); // the scales
  }
  core.run();
  k.barrier();
  V norm;
  if (spec.norm)
    norm = core.normFactor(spec.eps, columns);
  auto finishRow = [&](V row, ArrayRef<V> factor) {
    V pair = k.block() + (row >> 2) * blocks;
    k.when(pair < pairs, [&] {
      V at = (row >> 2) * 8 + (row & 3);
      V gate = core.sum(at), up = core.sum(at + 4);
      if (norm) {
        gate = gate * norm;
        up = up * norm;
      }
      if (format == Format::NVFP4) {
        gate = gate * factor[1];
        up = up * factor[2];
      }
      V h = k.silu(gate) * up * factor[0];
      Ptr out = k.buffer(access.size() - 1);
      V ofExperts = sharedPairs ? pair - sharedPairs : pair;
      V source = ofExperts / expertPairs;
      V local = ofExperts % expertPairs * 4 + (row & 3);
      auto storeExpert = [&] {
        k.when(local < spec.gate.rows, [&] {
          k.store(out + (source * spec.gate.rows + local) * 4, h);
        });
      };
      if (!sharedPairs)
        return storeExpert();
      k.ifElse(
          pair < sharedPairs,
          [&] {
            V place = pair * 4 + (row & 3);
            k.when(place < spec.sharedRows, [&] {
              k.store(out + (place + spec.topk * spec.gate.rows) * 4, h);
            });
          },
          storeExpert);
    });
  };
  if (early)
    k.when(k.thread() < rows, [&] { finishRow(k.thread(), mine); });
  else
    k.loop(k.thread(), k.i32(rows), k.threads(),
           [&](V row) { finishRow(row, factors(row)); });
  k.finish();
  return kernel;
}

Kernel expertsGateUpOne(KernelSite site, const ExpertSpec &spec) {
  return expertsGateUpOne(site, spec, gateUpOneShape(spec, site.gpu));
}

//===----------------------------------------------------------------------===//
// Down
//===----------------------------------------------------------------------===//

StreamShape downOneShape(const ExpertSpec &spec, const Gpu &gpu) {
  StreamShape s;
  s.format = spec.down.format;
  int64_t units = quant::packedUnits(s.format, spec.down.columns);
  int64_t sharedUnits = quant::packedUnits(s.format, spec.sharedRows);
  s.units = spec.topk * units + sharedUnits;
  if (s.format == Format::FP8Block)
    s.scaleColumns = spec.topk * llvm::divideCeil(units, 2) +
                     llvm::divideCeil(sharedUnits, 2);
  int64_t quads = llvm::divideCeil(spec.down.rows, 4);
  s.quads = llvm::divideCeil(quads, blocksFor(gpu, quads, 40));
  s.extraBytes = choiceBytes(spec);
  s.choose(std::gcd(units, sharedUnits));
  // A warp an expert, if those are short: few large copies, in two stages.
  int64_t sources = spec.topk + (sharedUnits ? 1 : 0);
  if (units <= 4 && sources <= 14 && (!sharedUnits || sharedUnits == units)) {
    StreamShape each = s;
    each.warpsK = sources;
    each.warpsRow = 1;
    each.stageUnits = units;
    each.stages = std::min<int64_t>(2, each.rowBlocks());
    if (each.sharedBytes() <= streamShared)
      s = each;
  }
  s.joined = s.stageUnits == units && (!sharedUnits || sharedUnits == units);
  return s;
}

Kernel expertsDownOne(KernelSite site, const ExpertSpec &spec, bool residual,
                      const StreamShape &s) {
  Format format = s.format;
  int64_t rows = spec.down.rows, columns = spec.down.columns;
  int64_t unitBytes = quant::unitBytes(format);
  int64_t units = quant::packedUnits(format, columns);
  int64_t sharedUnits = quant::packedUnits(format, spec.sharedRows);
  int64_t sources = spec.topk + (sharedUnits ? 1 : 0);
  int64_t quads = llvm::divideCeil(rows, 4);
  std::string name = expertName("experts_down_one", spec, spec.down);
  if (residual)
    name += "_residual";
  Kernel kernel{name, std::to_string(llvm::divideCeil(quads, s.quads))};
  if (exists(site, name))
    return kernel;
  // Ids, or logits and perhaps a bias.
  const unsigned downAt = spec.routing && spec.bias ? 3 : 2;
  SmallVector<StringRef> access(downAt + 1 + (sharedUnits ? 1 : 0) + residual,
                                "read");
  access.push_back("write");
  unsigned residualAt = access.size() - 2, yAt = access.size() - 1;
  bool twoFit = s.twoFit(site.gpu);
  // At most 72 registers: fits beside gate and up, whose successor it is.
  KernelBuilder k(
      site.kernels, site.loc, name, access, 0,
      {s.warps() * 32, twoFit ? std::max<int64_t>(28 / s.warps(), 2) : 1});
  StreamCore core(k, s);
  Ptr ids = k.shared(4 * spec.topk), globals = k.shared(4 * sources);
  std::optional<Router> router;
  if (spec.routing)
    router.emplace(k, spec.routing, spec.experts, spec.bias);
  V firstQuad = k.block() * s.quads;
  core.quads = k.minimum(k.i32(quads) - firstQuad, k.i32(s.quads));
  int64_t stride = quant::packedBytes(format, rows, columns);
  int64_t tail = quant::packedTail(format, rows, columns);
  int64_t sharedTail = quant::packedTail(format, rows, spec.sharedRows);

  /// The matrix of a source, from byte `at` (of the shared one: `sharedAt`).
  auto matrix = [&](V source, V at, V sharedAt) {
    V expert = sharedUnits ? k.minimum(source, k.i32(spec.topk - 1)) : source;
    V id = k.loadI32(ids + expert * 4);
    Ptr p = k.buffer(downAt) + (k.to64(id) * stride + at);
    if (sharedUnits)
      p = k.select(source == spec.topk, k.buffer(downAt + 1) + sharedAt, p);
    return p;
  };
  auto sourceOf = [&](V index, int64_t each) {
    return k.minimum(index / each, k.i32(sources - 1));
  };
  core.weights = [&](V slot, V unit) {
    V source = sourceOf(unit, units), local = unit - source * units;
    V quad = firstQuad + slot;
    return matrix(source, k.to64(quad * units + local) * unitBytes,
                  k.to64(quad * std::max<int64_t>(sharedUnits, 1) + local) *
                      unitBytes);
  };
  int64_t scaleColumns = llvm::divideCeil(units, 2);
  int64_t sharedScaleColumns = llvm::divideCeil(sharedUnits, 2);
  core.scaleColumn = [&](V unit) {
    V source = sourceOf(unit, units);
    return source * scaleColumns + ((unit - source * units) >> 1);
  };
  if (format == Format::NVFP4)
    core.stageFactor = [&](V unit) {
      return k.loadF32(globals + sourceOf(unit, units) * 4);
    };

  if (!twoFit)
    k.gridTrigger();
  core.init();
  if (router) {
    if (spec.bias)
      router->fetchBias(k.buffer(2));
    router->fetchLogits(k.buffer(1));
    router->score();
    k.when(k.warp() == 0, [&] { router->choose(ids, Ptr()); });
  } else {
    fetchIds(k, ids, k.buffer(1), spec.topk);
  }
  k.barrier();
  core.fill();
  core.fetchScales([&](V slot, V column) {
    V source = sourceOf(column, scaleColumns);
    V local = column - source * scaleColumns, row = (firstQuad + slot) >> 5;
    return matrix(source, k.to64(row * scaleColumns + local) * 4 + tail,
                  k.to64(row * sharedScaleColumns + local) * 4 + sharedTail);
  });
  if (format == Format::NVFP4)
    k.loop(k.thread(), k.i32(sources), k.threads(), [&](V i) {
      k.store(globals + i * 4,
              k.loadF32(matrix(i, k.i64(tail), k.i64(sharedTail))));
    });
  StreamCore::X x;
  x.values = k.buffer(0);
  x.sources = sources;
  x.columns = columns;
  x.lastColumns = sharedUnits ? spec.sharedRows : columns;
  bool early = s.quads * 4 <= k.threads();
  auto added = [&](V row) {
    V place = k.minimum(firstQuad * 4 + row, k.i32(rows - 1));
    return k.loadF32(k.buffer(residualAt) + place * 4, Cached::L2);
  };
  V mine;
  core.stageX(
      x,
      [&] {
        k.gridWait();
        if (twoFit)
          k.gridTrigger();
      },
      [&] {
        if (residual && early)
          mine = added(k.minimum(k.thread(), k.i32(s.quads * 4 - 1)));
      });
  k.barrier();
  core.run();
  k.barrier();
  auto finishRow = [&](V row, V more) {
    V place = firstQuad * 4 + row;
    k.when(place < rows, [&] {
      V y = core.sum(row);
      if (more)
        y = y + more;
      k.store(k.buffer(yAt) + place * 4, y);
    });
  };
  if (early)
    k.when(k.thread() < s.quads * 4, [&] { finishRow(k.thread(), mine); });
  else
    k.loop(k.thread(), k.i32(s.quads * 4), k.threads(),
           [&](V row) { finishRow(row, residual ? added(row) : V()); });
  k.finish();
  return kernel;
}

Kernel expertsDownOne(KernelSite site, const ExpertSpec &spec, bool residual) {
  return expertsDownOne(site, spec, residual, downOneShape(spec, site.gpu));
}

} // namespace mla::nvvm
