//===- ProbeKernels.cpp - kernels that measure a machine ------------------===//
//
// Part of mla. What `mla-run probe` launches, with read_ceiling: the runtime
// carries their PTX (runtime/probe/Kernels.ptx, a test says when it is stale) for
// plain sm_90, which the driver compiles for any later GPU.
//
//   kernel              blocks     bound by
//   probe_empty         an SM one  nothing: the gap between launches
//   probe_matrix_bf16   an SM two  tensor cores: 8 accumulators a warp, 16 warps
//                                  an SM, operands that stay in registers
//   probe_push          an SM two  stores, 16 bytes a thread
//   probe_check         any        loads
//   probe_ping_pong     one        latency of a link, both ways
//
// No kernel waits longer than it is told to: a link over which nothing arrives is
// what the probe is to find.
//
//===----------------------------------------------------------------------===//
#include "ProbeKernels.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {
namespace {

constexpr int64_t copyThreads = 512;

/// Word `index` of the pattern `seed`.
V pattern(V index, V seed) {
  return (index * int64_t(0x9E3779B1)) ^ seed;
}

V now(KernelBuilder &k, StringRef counter) {
  return k.inlinePTX("mov.u64 $0, %" + counter.str() + ";", "=l", k.i64Type(),
                     {}, /*sideEffects=*/true);
}

void empty(KernelSite site) {
  KernelBuilder k(site.kernels, site.loc, "probe_empty", {}, 0, {128});
  k.gridTrigger();
  k.gridWait();
  k.finish();
}

void matrixRate(KernelSite site) {
  constexpr int accumulators = 8, unroll = 2;
  KernelBuilder k(site.kernels, site.loc, "probe_matrix_bf16", {"write"}, 1,
                  {256, 2});
  k.gridTrigger();
  k.gridWait();
  // Magnitudes from 0.5 to 1 with all bits and signs used: multiplying zeros
  // takes less power, and the clock would be one that no product sees.
  auto operand = [&](int64_t i) {
    V mixed = (k.lane() + i * 32) * int64_t(0x9E3779B1);
    return (mixed & int64_t(0x807F807F)) | int64_t(0x3F003F00);
  };
  Vs a, b, sums;
  for (int64_t i = 0; i < 4; ++i)
    a.push_back(operand(i));
  for (int64_t i = 4; i < 6; ++i)
    b.push_back(operand(i));
  for (int i = 0; i < 4 * accumulators; ++i)
    sums.push_back(k.f32(0));
  V cycles = now(k, "clock64"), time = now(k, "globaltimer");
  sums = k.loop(k.i32(0), k.scalar32(0), 1, sums, [&](V, ArrayRef<V> old) {
    Vs next(old.begin(), old.end());
    for (int i = 0; i < unroll * accumulators; ++i) {
      int at = i % accumulators * 4;
      Vs c(next.begin() + at, next.begin() + at + 4);
      llvm::copy(k.mmaBF16(a, b, c), next.begin() + at);
    }
    return next;
  });
  V all = k.f32(0);
  for (V v : sums)
    all = all + v;
  // Keeps the products alive; a hit is harmless.
  k.when(k.bits(all) == 0x2F0E1D3C, [&] { k.store(k.buffer(0) + 16, all); });
  k.when(k.block() + k.thread() == 0, [&] {
    k.store(k.buffer(0), now(k, "clock64") - cycles);
    k.store(k.buffer(0) + 8, now(k, "globaltimer") - time);
  });
  k.finish();
}

/// Calls `body` with the offset of each 16 bytes that this thread has of
/// scalar(0).
void eachVector(KernelBuilder &k, function_ref<void(V offset)> body) {
  V first = k.to64(k.block() * copyThreads + k.thread()) * 16;
  V stride = k.to64(k.blocks()) * (copyThreads * 16);
  k.loop(first, k.scalar(0), stride, body);
}

void push(KernelSite site) {
  KernelBuilder k(site.kernels, site.loc, "probe_push", {"write"}, 2,
                  {copyThreads});
  k.gridTrigger();
  k.gridWait();
  V seed = k.scalar32(1);
  eachVector(k, [&](V offset) {
    V index = k.to32(offset >> 2);
    Vs words;
    for (int64_t i = 0; i < 4; ++i)
      words.push_back(pattern(index + i, seed));
    k.storeWords(k.buffer(0) + offset, words);
  });
  k.finish();
}

void check(KernelSite site) {
  KernelBuilder k(site.kernels, site.loc, "probe_check", {"read", "readwrite"},
                  2, {copyThreads});
  k.gridTrigger();
  k.gridWait();
  V seed = k.scalar32(1);
  eachVector(k, [&](V offset) {
    V index = k.to32(offset >> 2);
    V differ = k.i32(0);
    Vs words = k.loadWords(k.buffer(0) + offset, 4, Cached::L2);
    for (int64_t i = 0; i < 4; ++i)
      differ = differ | (words[i] ^ pattern(index + i, seed));
    k.when(!(differ == 0), [&] { k.atomicAdd(k.buffer(1), k.i32(1)); });
  });
  k.finish();
}

void pingPong(KernelSite site) {
  constexpr int64_t warmUp = 16;
  KernelBuilder k(site.kernels, site.loc, "probe_ping_pong",
                  {"read", "write", "write"}, 3, {32});
  k.gridTrigger();
  k.gridWait();
  k.when(k.thread() == 0, [&] {
    V rounds = k.scalar32(0), second = k.scalar32(1), limit = k.scalar32(2);
    auto seen = [&] {
      return k.inlinePTX("ld.relaxed.sys.global.u32 $0, [$1];", "=r,l",
                         k.i32Type(), {k.buffer(0).value}, true);
    };
    auto send = [&](V value) {
      k.inlinePTX("st.relaxed.sys.global.u32 [$0], $1;", "l,r", Type(),
                  {k.buffer(1).value, value.value}, true);
    };
    // After one wait that was too long there is none.
    auto round = [&](V value, V failed) {
      k.when(second == 0, [&] { send(value); });
      V polls = k.select(failed == 0, limit, k.i32(0));
      Vs end = k.loopWhile(
          {k.i32(0), seen()},
          [&](ArrayRef<V> s) { return (!(s[1] == value)) & (s[0] < polls); },
          [&](ArrayRef<V> s) { return Vs{s[0] + 1, seen()}; });
      k.when(!(second == 0), [&] { send(value); });
      return k.select(end[1] == value, failed, k.i32(1));
    };
    auto body = [&](V i, ArrayRef<V> failed) {
      return Vs{round(i, failed[0])};
    };
    Vs failed = k.loop(k.i32(1), k.i32(warmUp + 1), 1, {k.i32(0)}, body);
    V start = now(k, "globaltimer");
    failed = k.loop(k.i32(warmUp + 1), rounds + (warmUp + 1), 1, failed, body);
    k.store(k.buffer(2), now(k, "globaltimer") - start);
    k.store(k.buffer(2) + 8, k.to64(failed[0]));
  });
  k.finish();
}

} // namespace

void probeKernels(KernelSite site) {
  readCeiling(site);
  empty(site);
  matrixRate(site);
  push(site);
  check(site);
  pingPong(site);
}

} // namespace mla::nvvm
