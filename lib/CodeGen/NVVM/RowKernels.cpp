//===- RowKernels.cpp - embedding, norms, elementwise ---------------------===//
//
// Part of mla. One block a token, or one thread four values. All are bound by
// latency at decode sizes: a few kilobytes a token.
//
//===----------------------------------------------------------------------===//
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

/// Values of a row that a block of an elementwise kernel does.
constexpr int64_t chunkValues = 1024, chunkThreads = 256;

/// Blocks of an elementwise kernel over `rows` rows, each in chunks.
static std::string chunkGrid(StringRef rows, int64_t width) {
  int64_t chunks = llvm::divideCeil(width, chunkValues);
  return chunks == 1 ? rows.str() : (rows + " * " + Twine(chunks)).str();
}

/// Calls `body` with the row of this block and four columns of it at a time where
/// the width allows, else with one: (row, first column, number).
static void
eachChunk(KernelBuilder &k, int64_t width,
          function_ref<void(V row, V column, unsigned count)> body) {
  int64_t chunks = llvm::divideCeil(width, chunkValues);
  V row = chunks == 1 ? k.block() : k.block() / chunks;
  V first = chunks == 1 ? k.i32(0) : k.block() % chunks * chunkValues;
  if (width % 4 == 0) {
    V column = first + k.thread() * 4;
    k.when(column < width, [&] { body(row, column, 4); });
    return;
  }
  for (int64_t i = 0; i < chunkValues; i += chunkThreads) {
    V column = first + k.thread() + i;
    k.when(column < width, [&] { body(row, column, 1); });
  }
}

static Vs loadSome(KernelBuilder &k, Ptr p, unsigned count) {
  return count == 4 ? k.loadFloats(p, 4) : Vs{k.loadF32(p)};
}
static void storeSome(KernelBuilder &k, Ptr p, ArrayRef<V> values) {
  values.size() == 4 ? k.storeWords(p, values) : k.store(p, values[0]);
}
static Ptr at(Ptr base, V row, int64_t width, V column) {
  return base + row.k->to64(row) * (width * 4) + column * 4;
}

Kernel embedding(KernelSite site, MatrixShape table, bool part) {
  int64_t width = table.columns;
  std::string name =
      kernelName("embedding", formatName(table.format), width);
  if (part)
    name += "_" + std::to_string(table.rows);
  Kernel kernel{name, chunkGrid("tokens", width)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, part,
                  {chunkThreads});
  k.gridTrigger();
  k.gridWait();
  int64_t bytes = int64_t(*elementBytes(table.format));
  eachChunk(k, width, [&](V row, V column, unsigned count) {
    V id = k.loadI32(k.buffer(0) + row * 4), mine;
    if (part) {
      // Ids of other ranks read row 0 and store zeros.
      id = id - k.scalar32(0);
      mine = (id >= 0) & (id < table.rows);
      id = k.select(mine, id, k.i32(0));
    }
    Ptr from = k.buffer(1) + k.to64(id) * (width * bytes);
    Vs values;
    for (unsigned i = 0; i < count; ++i)
      values.push_back(k.loadElement(from, column + i, table.format));
    for (V &value : values)
      if (part)
        value = k.select(mine, value, k.f32(0));
    storeSome(k, at(k.buffer(2), row, width, column), values);
  });
  k.finish();
  return kernel;
}

/// One block a row. Rows of up to 16,384 values in fours stay in registers, so
/// that a row is read once; others are read twice.
Kernel rmsNorm(KernelSite site, int64_t width, Format weight, double eps) {
  std::string name =
      kernelName("rms_norm", formatName(weight), width, nameOf(eps));
  Kernel kernel{name, "tokens"};
  if (exists(site, name))
    return kernel;
  bool fours = width % 4 == 0 && width <= 16384;
  int64_t lanes = fours ? width / 4 : width;
  int64_t threads = std::clamp<int64_t>(llvm::alignTo(lanes, 32), 64,
                                        fours ? 1024 : 512);
  int64_t steps = llvm::divideCeil(lanes, threads);
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 0,
                  {threads});
  Ptr scratch = k.shared(k.warps() * 4);
  Ptr x = k.buffer(0), y = k.buffer(2);
  auto factorOf = [&](V sum) {
    V mean = k.blockSum(sum, scratch) * k.f32(1.0 / double(width));
    return k.reciprocal(k.sqrt(mean + k.f32(eps)));
  };
  if (!fours) {
    k.gridTrigger();
    k.gridWait();
    V row = k.to64(k.block()) * (width * 4);
    Vs sum = k.loop(k.thread(), k.i32(width), threads, {k.f32(0)},
                    [&](V i, ArrayRef<V> acc) {
                      V v = k.loadF32(x + row + i * 4);
                      return Vs{k.fma(v, v, acc[0])};
                    });
    V factor = factorOf(sum[0]);
    k.loop(k.thread(), k.i32(width), threads, [&](V i) {
      k.store(y + row + i * 4, k.loadF32(x + row + i * 4) * factor *
                                   k.loadElement(k.buffer(1), i, weight));
    });
    k.finish();
    return kernel;
  }
  // Beyond the end of the row the first values stand in, and count for nothing.
  SmallVector<V> column, inside;
  SmallVector<Vs> gamma, values;
  for (int64_t s = 0; s < steps; ++s) {
    V c = (k.thread() + s * threads) * 4;
    inside.push_back(c < width);
    column.push_back(k.select(inside.back(), c, k.i32(0)));
    Vs &g = gamma.emplace_back();
    for (int64_t i = 0; i < 4; ++i) // The weight does not change.
      g.push_back(k.loadElement(k.buffer(1), column[s] + i, weight));
  }
  k.gridTrigger();
  k.gridWait();
  for (int64_t s = 0; s < steps; ++s)
    values.push_back(k.loadFloats(at(x, k.block(), width, column[s]), 4));
  V sum = k.f32(0);
  for (int64_t s = 0; s < steps; ++s)
    for (V v : values[s])
      sum = k.fma(v, k.select(inside[s], v, k.f32(0)), sum);
  V factor = factorOf(sum);
  for (int64_t s = 0; s < steps; ++s)
    k.when(inside[s], [&] {
      Vs out;
      for (int64_t i = 0; i < 4; ++i)
        out.push_back(values[s][i] * factor * gamma[s][i]);
      k.storeWords(at(y, k.block(), width, column[s]), out);
    });
  k.finish();
  return kernel;
}

/// y = f(values of all but the last operand), over T * width values.
static Kernel elementwise(KernelSite site, StringRef family, int64_t width,
                          unsigned inputs,
                          function_ref<V(KernelBuilder &, ArrayRef<V>)> f) {
  std::string name = kernelName(family, width);
  Kernel kernel{name, chunkGrid("tokens", width)};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access(inputs, "read");
  access.push_back("write");
  KernelBuilder k(site.kernels, site.loc, name, access, 0, {chunkThreads});
  k.gridTrigger();
  k.gridWait();
  eachChunk(k, width, [&](V row, V column, unsigned count) {
    SmallVector<Vs> in;
    for (unsigned o = 0; o < inputs; ++o)
      in.push_back(loadSome(k, at(k.buffer(o), row, width, column), count));
    Vs out;
    for (unsigned i = 0; i < count; ++i) {
      Vs values;
      for (Vs &operand : in)
        values.push_back(operand[i]);
      out.push_back(f(k, values));
    }
    storeSome(k, at(k.buffer(inputs), row, width, column), out);
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

Kernel repeat(KernelSite site, int64_t width, int64_t all, StringRef rows) {
  std::string name = kernelName("repeat", width, all);
  Kernel kernel{name, chunkGrid(rows, width)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 0,
                  {chunkThreads});
  k.gridTrigger();
  k.gridWait();
  eachChunk(k, width, [&](V row, V column, unsigned count) {
    Vs values = loadSome(k, at(k.buffer(0), row, width, column), count);
    Ptr y = k.buffer(1) + k.to64(row) * (all * 4) + column * 4;
    int64_t copies = all / width, rest = all % width;
    for (int64_t copy = 0; copy < copies; ++copy)
      if (all % 4 == 0)
        storeSome(k, y + copy * width * 4, values);
      else
        for (auto [i, value] : llvm::enumerate(values))
          k.store(y + (copy * width + int64_t(i)) * 4, value);
    for (unsigned i = 0; rest != 0 && i < values.size(); ++i)
      k.when(column + i < rest, [&] {
        k.store(y + (copies * width + i) * 4, values[i]);
      });
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
  KernelBuilder k(site.kernels, site.loc, name, access, 0, {chunkThreads});
  k.gridTrigger();
  k.gridWait();
  V token = k.to64(k.block());
  int64_t from = 0;
  for (auto [part, w] : llvm::enumerate(widths)) {
    k.loop(k.thread(), k.i32(w), chunkThreads, [&](V i) {
      k.store(k.buffer(part + 1) + token * (w * 4) + i * 4,
              k.loadF32(k.buffer(0) + token * (width * 4) + (i + from) * 4));
    });
    from += w;
  }
  k.finish();
  return kernel;
}

Kernel readCeiling(KernelSite site) {
  std::string name = "read_ceiling";
  constexpr int64_t threads = 512, atOnce = 8;
  Kernel kernel{name, std::to_string(2 * site.gpu.multiprocessors)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, {"read", "write"}, 1,
                  {threads, 2});
  k.gridTrigger();
  k.gridWait();
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
