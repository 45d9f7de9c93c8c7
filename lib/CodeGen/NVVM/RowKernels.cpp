//===- RowKernels.cpp - embedding, norms, elementwise ---------------------===//
//
// Part of mla. One block a token, or one thread four values. All are bound by
// latency at decode sizes: a few kilobytes a token.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

/// Threads for a row: as many as it has values, up to 512.
static int64_t rowThreads(int64_t width) {
  return std::clamp<int64_t>((width + 31) / 32 * 32, 64, 512);
}

/// Calls `body` with each index below `width` that is this thread's.
static void eachOfRow(KernelBuilder &k, int64_t width,
                      function_ref<void(V)> body) {
  k.loop(k.thread(), k.i32(width), k.threads(), body);
}

Kernel embedding(KernelSite site, MatrixShape table) {
  std::string name =
      kernelName("embedding", formatName(table.format), table.columns);
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 0,
                  {rowThreads(table.columns)});
  k.gridWait();
  k.gridTrigger();
  V id = k.loadI32(k.buffer(0) + k.block() * 4);
  int64_t bytes = int64_t(*elementBytes(table.format));
  Ptr row = k.buffer(1) + k.to64(id) * (table.columns * bytes);
  Ptr y = k.buffer(2) + k.to64(k.block()) * (table.columns * 4);
  eachOfRow(k, table.columns, [&](V i) {
    k.store(y + i * 4, k.loadElement(row, i, table.format));
  });
  k.finish();
  return kernel;
}

Kernel rmsNorm(KernelSite site, int64_t width, Format weight, double eps) {
  std::string name =
      kernelName("rms_norm", formatName(weight), width, nameOf(eps));
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 0,
                  {rowThreads(width)});
  Ptr scratch = k.shared(k.warps() * 4);
  k.gridWait();
  k.gridTrigger();
  Ptr x = k.buffer(0) + k.to64(k.block()) * (width * 4);
  Ptr y = k.buffer(2) + k.to64(k.block()) * (width * 4);
  Vs sum = k.loop(k.thread(), k.i32(width), k.threads(), {k.f32(0)},
                  [&](V i, ArrayRef<V> acc) {
                    V v = k.loadF32(x + i * 4);
                    return Vs{k.fma(v, v, acc[0])};
                  });
  V mean = k.blockSum(sum[0], scratch) * k.f32(1.0 / double(width));
  V factor = k.reciprocal(k.sqrt(mean + k.f32(eps)));
  eachOfRow(k, width, [&](V i) {
    k.store(y + i * 4, k.loadF32(x + i * 4) * factor *
                           k.loadElement(k.buffer(1), i, weight));
  });
  k.finish();
  return kernel;
}

/// y[i] = f(values at i of all but the last operand), over T * width values.
static Kernel elementwise(KernelSite site, StringRef family, int64_t width,
                          unsigned inputs,
                          function_ref<V(KernelBuilder &, ArrayRef<V>)> f) {
  std::string name = kernelName(family, width);
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access(inputs, "read");
  access.push_back("write");
  KernelBuilder k(site.kernels, site.loc, name, access, 0,
                  {rowThreads(width)});
  k.gridWait();
  k.gridTrigger();
  V row = k.to64(k.block()) * (width * 4);
  eachOfRow(k, width, [&](V i) {
    Vs in;
    for (unsigned o = 0; o < inputs; ++o)
      in.push_back(k.loadF32(k.buffer(o) + row + i * 4));
    k.store(k.buffer(inputs) + row + i * 4, f(k, in));
  });
  k.finish();
  return kernel;
}

Kernel add(KernelSite site, int64_t width) {
  return elementwise(site, "add", width, 2, [](KernelBuilder &, ArrayRef<V> v) {
    return v[0] + v[1];
  });
}

Kernel swiglu(KernelSite site, int64_t width) {
  return elementwise(site, "swiglu", width, 2,
                     [](KernelBuilder &k, ArrayRef<V> v) {
                       return k.silu(v[0]) * v[1];
                     });
}

Kernel repeat(KernelSite site, int64_t width, int64_t times, StringRef rows) {
  std::string name = kernelName("repeat", width, times);
  Kernel kernel{name, rows.str()};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 0,
                  {rowThreads(width)});
  k.gridWait();
  k.gridTrigger();
  V row = k.to64(k.block()) * (width * 4);
  eachOfRow(k, width, [&](V i) {
    V v = k.loadF32(k.buffer(0) + row + i * 4);
    for (int64_t copy = 0; copy < times; ++copy)
      k.store(k.buffer(1) + row * times + (i + copy * width) * 4, v);
  });
  k.finish();
  return kernel;
}

Kernel split(KernelSite site, ArrayRef<int64_t> widths) {
  std::string name = "split";
  int64_t width = 0;
  for (int64_t w : widths) {
    name += "_" + std::to_string(w);
    width += w;
  }
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access(widths.size() + 1, "write");
  access[0] = "read";
  KernelBuilder k(site.kernels, site.loc, name, access, 0,
                  {rowThreads(width)});
  k.gridWait();
  k.gridTrigger();
  V token = k.to64(k.block());
  int64_t at = 0;
  for (auto [part, w] : llvm::enumerate(widths)) {
    eachOfRow(k, w, [&](V i) {
      k.store(k.buffer(part + 1) + token * (w * 4) + i * 4,
              k.loadF32(k.buffer(0) + token * (width * 4) + (i + at) * 4));
    });
    at += w;
  }
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// The read ceiling
//===----------------------------------------------------------------------===//

/// Two blocks of 512 threads an SM, 8 loads of 16 bytes a thread in flight: 128 KB
/// an SM, more than latency times rate.
Kernel readCeiling(KernelSite site) {
  std::string name = "read_ceiling";
  constexpr int64_t threads = 512, atOnce = 8;
  Kernel kernel{name, std::to_string(2 * site.gpu.multiprocessors)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 1,
                  {threads, 2});
  k.gridWait();
  k.gridTrigger();
  V end = k.scalar(0);
  V first = k.to64(k.block() * threads + k.thread()) * 16;
  V stride = k.to64(k.blocks()) * (threads * 16);
  // Rounds in which every thread has all its loads, then the rest.
  V round = stride * atOnce, rounds = end / round;
  Vs now = k.loop(
      k.i64(0), rounds, 1, {first, k.i32(0)}, [&](V, ArrayRef<V> state) {
        SmallVector<Vs> loaded;
        for (int64_t i = 0; i < atOnce; ++i)
          loaded.push_back(
              k.loadWords(k.buffer(0) + (state[0] + stride * i), 4,
                          Cached::Stream));
        V mix = state[1];
        for (const Vs &words : loaded)
          for (V word : words)
            mix = mix ^ word;
        return Vs{state[0] + round, mix};
      });
  now = k.loopWhile(
      now, [&](ArrayRef<V> state) { return state[0] < end; },
      [&](ArrayRef<V> state) {
        V mix = state[1];
        for (V word : k.loadWords(k.buffer(0) + state[0], 4, Cached::Stream))
          mix = mix ^ word;
        return Vs{state[0] + stride, mix};
      });
  V mix = now[1];
  // Keeps the loads alive; a hit is harmless.
  k.when(mix == 0x2F0E1D3C, [&] { k.store(k.buffer(1), mix); });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
