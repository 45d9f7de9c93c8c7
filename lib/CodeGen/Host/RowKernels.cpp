//===- RowKernels.cpp - norms, embedding, elementwise ---------------------===//
//
// Part of mla. One work item is one token.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::host {

/// All bits of a constant that is compiled into a kernel: two epsilons that
/// differ are two kernels.
static std::string number(double v) {
  return llvm::utohexstr(llvm::bit_cast<uint64_t>(v));
}

std::string embedding(KernelSite site, MatrixShape table, bool part) {
  std::string name =
      "embedding_" + nameOf(table.format) + "_" + std::to_string(table.columns);
  if (part)
    name += "_" + std::to_string(table.rows);
  return kernelOnce(
      site, name, {"read", "read", "write"}, part, [&](KernelBuilder &k) {
        Mem ids = k.buffer(0, Format::I32), w = k.buffer(1, table.format);
        Mem y = k.buffer(2, Format::F32);
        k.items([&](V t) {
          V id = k.load(ids, t), at = t * table.columns;
          auto copy = [&](V row) {
            k.copy(w, row * table.columns, y, at, table.columns);
          };
          if (!part)
            return copy(id);
          int64_t n = lanesFor(table.columns);
          k.loop(k.index(0), k.index(table.columns), n,
                 [&](V c) { k.storeVector(y, at + c, k.zeros(n)); });
          V row = id - k.scalar(0);
          k.when(row >= k.index(0),
                 [&] { k.when(row < table.rows, [&] { copy(row); }); });
        });
      });
}

/// Sum over a row of f(vector of values), lanes first.
static V sumOverRow(KernelBuilder &k, Mem x, V at, int64_t width,
                    function_ref<V(V values, V sum)> accumulate) {
  int64_t n = lanesFor(width);
  SmallVector<V> sums =
      k.loop(k.index(0), k.index(width), n, {k.zeros(n)},
             [&](V c, ArrayRef<V> acc) {
               return SmallVector<V>{
                   accumulate(k.loadVector(x, at + c, n), acc[0])};
             });
  return k.sum(sums[0]);
}

void rmsNormRow(KernelBuilder &k, Mem from, V fromAt, Mem weight, Mem to,
                V toAt, int64_t width, double eps) {
  V squares = sumOverRow(k, from, fromAt, width,
                         [&](V v, V acc) { return k.fma(v, v, acc); });
  V scale = k.f32(1.0) / k.sqrt(squares / k.f32(width) + k.f32(eps));
  int64_t n = lanesFor(width);
  V scales = k.splat(scale, n);
  k.loop(k.index(0), k.index(width), n, [&](V c) {
    V v = k.loadVector(from, fromAt + c, n) * scales;
    k.storeVector(to, toAt + c, k.loadVector(weight, c, n) * v);
  });
}

std::string rmsNorm(KernelSite site, int64_t width, Format weight, double eps) {
  std::string name = "rms_norm_" + nameOf(weight) + "_" +
                     std::to_string(width) + "_" + number(eps);
  return kernelOnce(
      site, name, {"read", "read", "write"}, 0, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), w = k.buffer(1, weight);
        Mem y = k.buffer(2, Format::F32);
        k.items([&](V t) {
          rmsNormRow(k, x, t * width, w, y, t * width, width, eps);
        });
      });
}

std::string layerNorm(KernelSite site, int64_t width, Format weight,
                      Format bias, double eps) {
  std::string name = "layer_norm_" + nameOf(weight) + "_" + nameOf(bias) + "_" +
                     std::to_string(width) + "_" + number(eps);
  return kernelOnce(
      site, name, {"read", "read", "read", "write"}, 0, [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), w = k.buffer(1, weight);
        Mem bs = k.buffer(2, bias), y = k.buffer(3, Format::F32);
        int64_t n = lanesFor(width);
        k.items([&](V t) {
          V at = t * width;
          V mean = sumOverRow(k, x, at, width,
                              [](V v, V acc) { return acc + v; }) /
                   k.f32(width);
          V means = k.splat(mean, n);
          V variance = sumOverRow(k, x, at, width,
                                  [&](V v, V acc) {
                                    V d = v - means;
                                    return k.fma(d, d, acc);
                                  }) /
                       k.f32(width);
          V scales =
              k.splat(k.f32(1.0) / k.sqrt(variance + k.f32(eps)), n);
          k.loop(k.index(0), k.index(width), n, [&](V c) {
            V v = (k.loadVector(x, at + c, n) - means) * scales;
            k.storeVector(y, at + c,
                          k.fma(v, k.loadVector(w, c, n),
                                k.loadVector(bs, c, n)));
          });
        });
      });
}

/// A kernel of two row operands and a row result.
static std::string elementwise(KernelSite site, const std::string &name,
                               int64_t width, function_ref<V(V, V)> combine) {
  return kernelOnce(
      site, name + "_" + std::to_string(width), {"read", "read", "write"}, 0,
      [&](KernelBuilder &k) {
        Mem x = k.buffer(0, Format::F32), z = k.buffer(1, Format::F32);
        Mem y = k.buffer(2, Format::F32);
        int64_t n = lanesFor(width);
        k.items([&](V t) {
          V at = t * width;
          k.loop(k.index(0), k.index(width), n, [&](V c) {
            k.storeVector(y, at + c,
                          combine(k.loadVector(x, at + c, n),
                                  k.loadVector(z, at + c, n)));
          });
        });
      });
}

std::string swiglu(KernelSite site, int64_t width) {
  return elementwise(site, "swiglu", width,
                     [](V gate, V up) { return gate.k->silu(gate) * up; });
}

std::string add(KernelSite site, int64_t width) {
  return elementwise(site, "add", width, [](V x, V y) { return x + y; });
}

std::string repeat(KernelSite site, int64_t width, int64_t all) {
  std::string name =
      "repeat_" + std::to_string(width) + "_" + std::to_string(all);
  return kernelOnce(site, name, {"read", "write"}, 0, [&](KernelBuilder &k) {
    Mem x = k.buffer(0, Format::F32), y = k.buffer(1, Format::F32);
    int64_t copies = all / width, rest = all % width;
    k.items([&](V t) {
      k.loop(k.index(0), k.index(copies), 1, [&](V i) {
        k.copy(x, t * width, y, t * all + i * width, width);
      });
      if (rest != 0)
        k.copy(x, t * width, y, t * all + copies * width, rest);
    });
  });
}

std::string collective(KernelSite site, plan::Collective kind) {
  std::string name = "exchange_" + std::string(plan::collectiveName(kind));
  if (site.kernels.lookupSymbol(name))
    return name;
  // A declaration: the runtime does it.
  OpBuilder b = OpBuilder::atBlockEnd(site.kernels.getBody());
  auto function =
      func::FuncOp::create(b, site.loc, name, b.getFunctionType({}, {}));
  function.setPrivate();
  function->setAttr("mla.access", b.getStrArrayAttr({"read", "write"}));
  function->setAttr("mla.scalars", b.getI64IntegerAttr(3));
  function->setAttr("mla.collective",
                    b.getStringAttr(StringRef(plan::collectiveName(kind))));
  return name;
}

std::string split(KernelSite site, ArrayRef<int64_t> widths) {
  std::string name = "split";
  SmallVector<StringRef> access{"read"};
  int64_t total = 0;
  for (int64_t w : widths) {
    name += "_" + std::to_string(w);
    access.push_back("write");
    total += w;
  }
  return kernelOnce(site, name, access, 0, [&](KernelBuilder &k) {
    Mem x = k.buffer(0, Format::F32);
    SmallVector<Mem> ys;
    for (size_t i = 0; i < widths.size(); ++i)
      ys.push_back(k.buffer(1 + i, Format::F32));
    k.items([&](V t) {
      int64_t offset = 0;
      for (auto [y, w] : llvm::zip(ys, widths)) {
        k.copy(x, t * total + offset, y, t * w, w);
        offset += w;
      }
    });
  });
}

} // namespace mla::host
