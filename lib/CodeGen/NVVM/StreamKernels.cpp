//===- StreamKernels.cpp - packed weights times one token -----------------===//
//
// Part of mla. A linear of one token; StreamCore.h has how. One block an SM owns
// ceil(quads / SMs) quads of 4 rows, of all segments together; gate and up take
// turns, so that a block has both of a row.
//
//   bytes      the weights, once; x once a block, from L2
//   flops      2 * rows * columns (8 times that in the instruction)
//   registers  64 to 128: two blocks an SM where shared memory allows
//   shared     at most 99 KB: x in 16 bits, the ring with what is left
//   bound by   reading for bf16; latency for small matrices; decoding for nvfp4 and
//              int4 where an SM gets more than 10 bytes a cycle
//
// The next kernel is let in after the wait where two blocks fit an SM, else at the
// start, since then it cannot run beside this one.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"
#include "StreamCore.h"

using namespace mlir;

namespace mla::nvvm {

/// Quads of all segments, and of a block.
static int64_t allQuads(const LinearSpec &spec) {
  int64_t quads = 0;
  for (const MatrixShape &shape : spec.segments)
    quads += llvm::divideCeil(shape.rows, 4);
  return quads;
}

std::optional<StreamShape> streamShape(const LinearSpec &spec, const Gpu &gpu) {
  Format format = spec.segments[0].format;
  StreamShape s;
  s.format = format;
  s.units = quant::packedUnits(format, spec.segments[0].columns);
  s.planes = spec.exact ? 2 : 1;
  if (spec.maxTokens != 1 || (spec.exact && quant::unitColumns(format) == 128))
    return std::nullopt;
  if (format == Format::FP8Block)
    s.scaleColumns = llvm::divideCeil(spec.segments[0].columns, 128);
  // Sums of many rows would take the ring's place: rather more blocks.
  int64_t step = spec.gated ? 2 : 1, quads = allQuads(spec);
  int64_t blocks =
      gpu.multiprocessors * llvm::divideCeil(quads, gpu.multiprocessors * 40);
  s.quads = llvm::alignTo(llvm::divideCeil(quads, blocks), step);
  // One quad would leave three quarters of an instruction empty.
  StreamShape folded = s;
  folded.folded = true;
  if (format == Format::BF16 && s.quads == 1 && folded.choose(0))
    return folded;
  if (!s.choose(0))
    return std::nullopt;
  return s;
}

bool canStream(const LinearSpec &spec, const Gpu &gpu) {
  return streamShape(spec, gpu).has_value();
}

Kernel linearStream(KernelSite site, const LinearSpec &spec) {
  return linearStream(site, spec, *streamShape(spec, site.gpu));
}

/// Which quad of which segment `slot` of the block is.
static void eachSegment(const LinearSpec &spec, V quad,
                        function_ref<void(unsigned, V, V)> body) {
  if (spec.gated) {
    body(0, (quad & 1) == 0, quad >> 1);
    body(1, (quad & 1) == 1, quad >> 1);
    return;
  }
  int64_t at = 0;
  for (auto [i, shape] : llvm::enumerate(spec.segments)) {
    int64_t count = llvm::divideCeil(shape.rows, 4);
    V inside = quad < at + count;
    if (at > 0)
      inside = inside & (quad >= at);
    body(i, inside, quad - at);
    at += count;
  }
}

Kernel linearStream(KernelSite site, const LinearSpec &spec,
                    const StreamShape &s) {
  std::string name = linearName("linear_stream", spec);
  int64_t total = allQuads(spec);
  Kernel kernel{name, std::to_string(llvm::divideCeil(total, s.quads))};
  if (exists(site, name))
    return kernel;
  LinearOperands operands(spec);
  Format format = s.format;
  int64_t columns = spec.segments[0].columns;
  // 4-bit formats take more than 72 registers if what they count is not constant
  // or x comes in several rounds.
  bool more = quant::unitColumns(format) == 128 &&
              (spec.gated || !s.even() || s.units > 64);
  bool twoFit = s.twoFit(site.gpu) && !more;
  KernelBuilder k(site.kernels, site.loc, name, operands.access, 1,
                  {s.warps() * 32, twoFit ? 2 : 1});
  StreamCore core(k, s);
  V firstQuad = k.block() * s.quads;
  core.quads = k.minimum(k.i32(total) - firstQuad, k.i32(s.quads));

  /// From the segment of a block's quad, at `offset` of the segment's quad.
  auto inSegment = [&](V slot,
                       function_ref<Ptr(const LinearSegment &, Ptr, V)> place) {
    Ptr from{Value(), &k};
    eachSegment(spec, firstQuad + slot, [&](unsigned i, V inside, V quad) {
      const LinearSegment &segment = operands.segments[i];
      Ptr p = place(segment, k.buffer(segment.weight), quad);
      from = from.value ? k.select(inside, p, from) : p;
    });
    return from;
  };
  core.weights = [&](V slot, V unit) {
    return inSegment(slot, [&](const LinearSegment &, Ptr p, V quad) {
      return p +
             (k.to64(quad) * s.units + k.to64(unit)) * quant::unitBytes(format);
    });
  };
  core.scaleColumn = [](V unit) { return unit >> 1; };
  if (!twoFit)
    k.gridTrigger();
  core.init();
  core.fill();
  core.fetchScales([&](V slot, V column) {
    return inSegment(slot, [&](const LinearSegment &segment, Ptr p, V quad) {
      return p + quant::packedTail(format, segment.rows, columns) +
             ((quad >> 5) * s.scaleColumns + column) * 4;
    });
  });

  // What a row of the result needs besides its sum. Where a thread has at most
  // one, it is fetched long before its use.
  int64_t rows = s.quads * 4 / (spec.gated ? 2 : 1);
  V first = spec.gated ? firstQuad >> 1 : firstQuad;
  bool early = rows <= k.threads();
  auto factors = [&](V row) {
    Vs out;
    for (int64_t i = 0; format == Format::NVFP4 && i < (spec.gated ? 2 : 1);
         ++i) {
      V quad = spec.gated ? k.i32(i) : row >> 2;
      V last = k.i32(total - 1) - firstQuad;
      out.push_back(k.loadF32(inSegment(
          k.minimum(quad, last), [&](const LinearSegment &segment, Ptr p, V) {
            return p + quant::packedTail(format, segment.rows, columns);
          })));
    }
    return out;
  };
  auto residual = [&](V row) {
    V y = k.minimum(first * 4 + row, k.i32(spec.segments[0].rows - 1));
    return k.loadF32(k.buffer(operands.residual) + y * 4, Cached::L2);
  };
  Vs myFactors;
  V myResidual;
  V myRow = k.minimum(k.thread(), k.i32(rows - 1));
  if (early)
    myFactors = factors(myRow);

  StreamCore::X x;
  x.columns = x.lastColumns = columns;
  x.values = k.buffer(0);
  if (spec.norm)
    x.gamma = k.buffer(operands.gamma);
  x.gammaFormat = spec.gamma;
  core.stageX(
      x,
      [&] {
        k.gridWait();
        if (twoFit)
          k.gridTrigger();
        if (spec.outputs)
          x.values = x.values +
                     k.to64(k.loadI32(k.buffer(operands.outputs), Cached::L2)) *
                         (columns * 4);
      },
      [&] {
        if (early && spec.residual)
          myResidual = residual(myRow);
      });
  k.barrier();
  core.run();
  k.barrier();
  V norm;
  if (spec.norm)
    norm = core.normFactor(spec.eps, columns);
  auto finishRow = [&](V row, ArrayRef<V> factor, V added) {
    if (spec.gated) {
      const LinearSegment &segment = operands.segments[0];
      V place = first * 4 + row;
      k.when(place < segment.rows, [&] {
        V at = (row >> 2) * 8 + (row & 3);
        V gate = core.sum(at), up = core.sum(at + 4);
        if (norm) {
          gate = gate * norm;
          up = up * norm;
        }
        if (!factor.empty()) {
          gate = gate * factor[0];
          up = up * factor[1];
        }
        k.store(k.buffer(segment.output) + place * 4, k.silu(gate) * up);
      });
      return;
    }
    V y = core.sum(row);
    if (norm)
      y = y * norm;
    if (!factor.empty())
      y = y * factor[0];
    if (added)
      y = y + added;
    eachSegment(
        spec, firstQuad + (row >> 2), [&](unsigned i, V inside, V quad) {
          const LinearSegment &segment = operands.segments[i];
          V place = quad * 4 + (row & 3);
          k.when(inside & (place < segment.rows),
                 [&] { k.store(k.buffer(segment.output) + place * 4, y); });
        });
  };
  if (early)
    k.when(k.thread() < rows,
           [&] { finishRow(k.thread(), myFactors, myResidual); });
  else
    k.loop(k.thread(), k.i32(rows), k.threads(), [&](V row) {
      finishRow(row, factors(row), spec.residual ? residual(row) : V());
    });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
