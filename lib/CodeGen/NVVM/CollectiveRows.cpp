//===- CollectiveRows.cpp - what is done to rows as they arrive -----------===//
//
// Part of mla. Sum, residual and RMS norm in one kernel; partial attention of all
// ranks to one. See Exchange.h for the protocol.
//
// all_reduce_norm: 256 threads, shared memory for a row. With fewer rows than blocks
// a row's columns are divided among blocks, which add their sums of squares through
// the rank's own exchange memory: all of them are resident, being few. Over
// all_reduce_one_shot it has that (about 1 us), and reads no row again.
//
// merge_attention: 256 threads. Each rank stores for each other one the heads that
// are its own: (N - 1) / N of the rows leave a GPU. The unit behind a head's values is
// its lse, for which each thread of the head waits before it waits for its values.
//
//===----------------------------------------------------------------------===//
#include "CollectiveKernels.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

static int64_t rowBytes(const ReduceSpec &spec) {
  UnitShape unit{spec.format, Transport::Flagged};
  return llvm::alignTo(spec.width, unit.values()) * 4;
}

bool canReduceNorm(const ExchangeSpec &with, const ReduceSpec &spec,
                   const Gpu &gpu) {
  UnitShape unit{spec.format, Transport::Flagged};
  return int64_t(llvm::divideCeil(spec.width, unit.values())) <=
             with.layout.flaggedUnits &&
         rowBytes(spec) + 1024 <= gpu.sharedBytesPerBlock;
}

Kernel allReduceNorm(KernelSite site, const ExchangeSpec &with,
                     const ReduceNormSpec &spec, StringRef symbol) {
  const ReduceSpec &reduce = spec.reduce;
  UnitShape unit{reduce.format, Transport::Flagged};
  int64_t width = reduce.width, values = unit.values();
  int64_t unitsOfRow = llvm::divideCeil(width, values);
  bool aligned = width % values == 0, residual = reduce.residual;
  std::string name = exchangeName("all_reduce_norm", with, reduce.format) +
                     "_" + std::to_string(width);
  if (residual)
    name += "_residual";
  name = kernelName(name, formatName(spec.weight), nameOf(spec.eps));
  // A unit for each thread: a row may be divided among blocks.
  Kernel kernel{name, "min(" + std::to_string(with.layout.blocks) +
                          ", ceildiv(" + symbol.str() + " * " +
                          std::to_string(unitsOfRow) + ", " +
                          std::to_string(exchangeThreads) + "))"};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access{"read", "read"};
  if (residual)
    access.push_back("read");
  access.append({"write", "read", "write"});
  KernelBuilder k(site.kernels, site.loc, name, access, 2,
                  {exchangeThreads, 2});
  k.gridTrigger();
  Exchange exchange(k, with.layout, with.ranks, k.buffer(0), k.scalar32(1));
  Ptr x = k.buffer(1), sums = k.buffer(residual ? 3 : 2);
  Ptr gamma = k.buffer(residual ? 4 : 3), normed = k.buffer(residual ? 5 : 4);
  Ptr row = k.shared(rowBytes(reduce)), scratch = k.shared(k.warps() * 4);

  // Either a row is divided among several blocks, `parts` of them with `each` units,
  // or a block has several rows. Blocks behind all that have none.
  V rows = k.scalar32(0), blocks = k.blocks();
  V whole = k.maximum(rows, k.i32(1));
  V parts = k.maximum(blocks / whole, k.i32(1));
  V each = (k.i32(unitsOfRow) + parts - 1) / parts;
  parts = (k.i32(unitsOfRow) + each - 1) / each;
  V rowsEach = (rows + blocks - 1) / blocks;
  V place = k.block() / parts, part = k.block() % parts;
  V lowRow = k.minimum(place * rowsEach, rows);
  V highRow = k.minimum(lowRow + rowsEach, rows);
  V firstUnit = part * each;
  V unitsHere = k.minimum(each, k.i32(unitsOfRow) - firstUnit);
  auto at = [&](Ptr base, V r, V column) {
    return base + k.to64(r) * (width * 4) + column * 4;
  };
  // The weight does not change: its lines are fetched meanwhile.
  int64_t weightBytes = int64_t(*elementBytes(spec.weight));
  k.loop(k.thread() * 128, k.i32(width * weightBytes), exchangeThreads * 128,
         [&](V offset) { k.prefetchL2(gamma + offset); });
  k.gridWait();
  exchange.begin();
  V neighbour = exchange.epochBefore(k.block() - part +
                                     k.minimum(k.thread(), parts - 1));
  int64_t rowsAtOnce =
      std::max<int64_t>(with.layout.flaggedUnits / unitsOfRow, 1);
  V rounds = eachRound(
      k, lowRow, highRow, k.i32(rowsAtOnce),
      [&](V round, V first, V end) {
        auto epoch = exchange.epoch(unit.transport, round);
        // There is more in registers than there.
        int64_t atOnce = std::min<int64_t>(2, exchange.unitsAtOnce());
        auto leftAt = [&](V column) {
          return aligned ? V() : k.i32(width) - column;
        };
        eachUnits(k, k.i32(0), (end - first) * unitsHere, atOnce,
                  [&](ArrayRef<ThreadUnit> units) {
                    SmallVector<Vs> own;
                    for (const ThreadUnit &u : units) {
                      V column = (firstUnit + u.index % unitsHere) * values;
                      Ptr from = at(x, first + u.index / unitsHere, column);
                      own.push_back(packUnit(
                          k, unit,
                          loadUnit(k, unit, from, leftAt(column), aligned)));
                    }
                    for (auto [u, words] : llvm::zip(units, own))
                      whenThere(k, u, [&] {
                        exchange.sendAll(epoch, u.index, words);
                      });
                  });
        k.loop(first, end, 1, [&](V r) {
          Vs square = eachUnits(
              k, k.i32(0), unitsHere, atOnce, {k.f32(0)},
              [&](ArrayRef<ThreadUnit> units, ArrayRef<V> acc) {
                Vs slots, columns;
                SmallVector<Vs> before;
                for (const ThreadUnit &u : units) {
                  slots.push_back((r - first) * unitsHere + u.index);
                  columns.push_back((firstUnit + u.index) * values);
                  if (residual)
                    before.push_back(
                        loadUnit(k, unit, at(k.buffer(2), r, columns.back()),
                                 leftAt(columns.back()), aligned));
                }
                V all = acc[0];
                for (auto [i, words] :
                     llvm::enumerate(exchange.receive(epoch, slots))) {
                  Vs sum = sumUnits(k, unit, words);
                  if (residual)
                    for (auto [to, v] : llvm::zip(sum, before[i]))
                      to = v + to;
                  whenThere(k, units[i], [&] {
                    storeUnit(k, at(sums, r, columns[i]), sum,
                              leftAt(columns[i]), aligned);
                    // What is behind the end of a row is zero.
                    k.storeWords(row + units[i].index * (values * 4), sum);
                  });
                  V own = k.f32(0);
                  for (V v : sum)
                    own = k.fma(v, v, own);
                  all = all + (units[i].there
                                   ? k.select(units[i].there, own, k.f32(0))
                                   : own);
                }
                return Vs{all};
              });
          V total = k.blockSum(square[0], scratch);
          total = k.ifElse(
              parts > 1, {k.f32Type()},
              [&]() -> Vs {
                return {exchange.sumOverBlocks(total, k.block() - part, parts,
                                               part, epoch.flag, neighbour)};
              },
              [&]() -> Vs { return {total}; })[0];
          V mean = total * k.f32(1.0 / double(width));
          V factor = k.reciprocal(k.sqrt(mean + k.f32(spec.eps)));
          k.loop(k.thread(), unitsHere, exchangeThreads, [&](V u) {
            V column = (firstUnit + u) * values;
            Vs out = k.loadFloats(row + u * (values * 4), values);
            for (int64_t i = 0; i < values; ++i) {
              // Beyond the end the last weight stands in, and is not stored.
              V c = aligned ? column + i
                            : k.minimum(column + i, k.i32(width - 1));
              out[i] = out[i] * factor * k.loadElement(gamma, c, spec.weight);
            }
            storeUnit(k, at(normed, r, column), out, leftAt(column), aligned);
          });
        });
        k.barrier();
      });
  exchange.end(rounds);
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Attention
//===----------------------------------------------------------------------===//

/// Units of a head: its values, and its lse.
static int64_t unitsOfHead(const MergeSpec &spec) {
  UnitShape unit{spec.format, spec.transport};
  return llvm::divideCeil(spec.latent, unit.values()) + 1;
}
static int64_t slotUnits(const ExchangeSpec &with, const MergeSpec &spec) {
  return spec.transport == Transport::Flagged ? with.layout.flaggedUnits
                                              : with.layout.bulkUnits;
}

bool canMerge(const ExchangeSpec &with, const MergeSpec &spec) {
  return unitsOfHead(spec) <= slotUnits(with, spec);
}

Kernel mergeAttention(KernelSite site, const ExchangeSpec &with,
                      const MergeSpec &spec, StringRef symbol) {
  UnitShape unit{spec.format, spec.transport};
  int64_t heads = spec.heads, latent = spec.latent, values = unit.values();
  std::string name =
      exchangeName(("merge_attention_" + transportName(spec.transport)).str(),
                   with, spec.format) +
      "_" + std::to_string(heads) + "_" + std::to_string(latent);
  Kernel kernel{name, "min(" + std::to_string(with.layout.blocks) + ", " +
                          symbol.str() + " * " + std::to_string(heads) + ")"};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name,
                  {"read", "read", "read", "write"}, 2, {exchangeThreads, 2});
  k.gridTrigger();
  Exchange exchange(k, with.layout, with.ranks, k.buffer(0), k.scalar32(1));
  Ptr x = k.buffer(1), lse = k.buffer(2), y = k.buffer(3);
  // A head of a token stays within a block and a round.
  int64_t each = unitsOfHead(spec), dataUnits = each - 1;
  bool aligned = latent % values == 0;
  auto [low, high] = shareOf(k, k.scalar32(0) * heads);
  V headsOfAll = exchange.ranks() * heads;
  k.gridWait();
  exchange.begin();
  V most = k.i32(slotUnits(with, spec) / each);
  V rounds = eachRound(k, low, high, most, [&](V round, V first, V end) {
    auto epoch = exchange.epoch(spec.transport, round, /*forAll=*/false);
    exchange.eachRank([&](V peer, Ptr memory) {
      k.loop(k.thread(), (end - first) * each, exchangeThreads, [&](V u) {
        V item = first + u / each, j = u % each;
        V head = item / heads * headsOfAll + peer * heads + item % heads;
        V column = j * values;
        Vs words = k.ifElse(
            j == dataUnits, SmallVector<Type>(unit.words(), k.i32Type()),
            [&] {
              Vs lone(unit.words(), k.i32(0));
              lone[0] = k.bits(k.loadF32(lse + k.to64(head) * 4));
              return lone;
            },
            [&] {
              Ptr from = x + k.to64(head) * (latent * 4) + column * 4;
              return packUnit(k, unit,
                              loadUnit(k, unit, from, k.i32(latent) - column,
                                       aligned));
            });
        exchange.send(epoch, peer, memory, u, words);
      });
    });
    exchange.arrive(epoch);
    k.loop(k.thread(), (end - first) * dataUnits, exchangeThreads, [&](V u) {
      V item = u / dataUnits, j = u % dataUnits;
      V slot = item * each, column = j * values;
      // Of ranks that are not there, and of those that have seen nothing, -inf.
      Vs weights;
      V largest = k.f32(-infinity);
      for (auto [r, words] :
           llvm::enumerate(exchange.receive(epoch, slot + dataUnits))) {
        V w = k.fromBits(words[0]);
        if (!with.ranks)
          w = k.select(exchange.ranks() > int64_t(r), w, k.f32(-infinity));
        weights.push_back(w);
        largest = k.maximum(largest, w);
      }
      V some = largest > k.f32(-infinity), sum = k.f32(0);
      for (V &w : weights) {
        w = k.select(some & (w > k.f32(-infinity)), k.exp(w - largest),
                     k.f32(0));
        sum = sum + w;
      }
      Vs out(values, k.f32(0));
      for (auto [w, words] :
           llvm::zip(weights, exchange.receive(epoch, slot + j)))
        for (auto [to, v] : llvm::zip(out, unpackUnit(k, unit, words)))
          to = k.fma(w, k.select(w > k.f32(0), v, k.f32(0)), to);
      V scale = k.divide(k.f32(1), sum);
      for (V &v : out)
        v = k.select(some, v * scale, k.f32(0));
      // Rows are tokens' heads of this rank, one behind the other.
      Ptr to = y + k.to64(first + item) * (latent * 4) + column * 4;
      storeUnit(k, to, out, k.i32(latent) - column, aligned);
    });
    k.barrier();
  });
  exchange.end(rounds);
  k.finish();
  return kernel;
}

/// A block a token and head. As the host's, in f32.
Kernel mergeAttentionLocal(KernelSite site, int64_t heads, int64_t latent,
                           int64_t ranks) {
  std::string name = kernelName("merge_attention_local", heads, latent, ranks);
  Kernel kernel{name, "tokens * " + std::to_string(heads)};
  if (exists(site, name))
    return kernel;
  int64_t threads = std::clamp<int64_t>(llvm::alignTo(latent, 32), 32, 256);
  KernelBuilder k(site.kernels, site.loc, name, {"read", "read", "write"}, 0,
                  {threads});
  k.gridTrigger();
  k.gridWait();
  // Head 0 of rank 0's part of the token's row, and from there to this head.
  V token = k.block() / heads, head = k.block() % heads;
  auto part = [&](V rank) {
    return k.to64((token * ranks + rank) * heads + head);
  };
  auto lseOf = [&](V rank) { return k.loadF32(k.buffer(1) + part(rank) * 4); };
  V all = k.i32(ranks), none = k.f32(-infinity);
  V largest = k.loop(k.i32(0), all, 1, {none}, [&](V r, ArrayRef<V> acc) {
    return Vs{k.maximum(acc[0], lseOf(r))};
  })[0];
  V some = largest > none;
  k.loop(k.thread(), k.i32(latent), threads, [&](V i) {
    Vs sums = k.loop(
        k.i32(0), all, 1, {k.f32(0), k.f32(0)}, [&](V r, ArrayRef<V> acc) {
          V lse = lseOf(r);
          V w = k.select(lse > none, k.exp(lse - largest), k.f32(0));
          V x = k.loadF32(k.buffer(0) + part(r) * (latent * 4) + i * 4);
          x = k.select(w > k.f32(0), x, k.f32(0));
          return Vs{acc[0] + w, k.fma(w, x, acc[1])};
        });
    V y = k.select(some, k.divide(sums[1], sums[0]), k.f32(0));
    k.store(k.buffer(2) + k.to64(k.block()) * (latent * 4) + i * 4, y);
  });
  k.finish();
  return kernel;
}

} // namespace mla::nvvm
