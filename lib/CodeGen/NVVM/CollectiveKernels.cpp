//===- CollectiveKernels.cpp - kernels that exchange rows -----------------===//
//
// Part of mla. All-reduce in one step and in two, and all-gather; Exchange.h has the
// protocol. Every kernel has up to layout.blocks blocks of 256 threads, a few words
// of shared memory and up to 128 registers: so few that blocks that wait never fill a
// GPU. How many there are is the launch's to say, as long as it is the same on all
// ranks: with several on one GPU, fewer. The next launch may begin at once (gridTrigger), so that its weights are
// fetched while this one waits.
//
//   kernel     stored in each rank's memory             bound by
//   one-shot   rows * width, twice its bytes (flags)    latency of a link, then the
//                                                       link: (N - 1) times the bytes
//   two-shot   2 / N of rows * width                    two latencies and two waits for
//                                                       stores to land, then the link
//   gather     rows * part of each segment              as one-shot, or, in bulk, one
//                                                       latency and one wait
//   ... pull   flags; what is above is loaded from the  the link's loads, and a latency
//              other ranks' memory                      there and back more
//
// Rows lie one behind the other, so an all-reduce takes them as one vector.
//
//===----------------------------------------------------------------------===//
#include "CollectiveKernels.h"
#include "KernelSupport.h"

using namespace mlir;

namespace mla::nvvm {

//===----------------------------------------------------------------------===//
// Units, rounds
//===----------------------------------------------------------------------===//

/// From `u` on, exchangeThreads apart; `u` for those beyond the end.
static SmallVector<ThreadUnit> unitsFrom(KernelBuilder &k, V u, V end,
                                         int64_t count) {
  SmallVector<ThreadUnit> units{{u, V()}};
  for (int64_t i = 1; i < count; ++i) {
    V next = u + i * exchangeThreads, there = next < end;
    units.push_back({k.select(there, next, u), there});
  }
  return units;
}

Vs eachUnits(
    KernelBuilder &k, V first, V end, int64_t atOnce, ArrayRef<V> init,
    function_ref<Vs(ArrayRef<ThreadUnit>, ArrayRef<V>)> body) {
  auto types =
      llvm::map_to_vector(init, [](V v) { return v.value.getType(); });
  auto loop = [&](int64_t count) {
    return k.loop(first + k.thread(), end, exchangeThreads * count, init,
                  [&](V u, ArrayRef<V> state) {
                    return body(unitsFrom(k, u, end, count), state);
                  });
  };
  return k.ifElse(
      end - first < exchangeThreads + 1, types, [&] { return loop(1); },
      [&] { return loop(atOnce); });
}

void eachUnits(KernelBuilder &k, V first, V end, int64_t atOnce,
               function_ref<void(ArrayRef<ThreadUnit>)> body) {
  auto loop = [&](int64_t count) {
    k.loop(first + k.thread(), end, exchangeThreads * count,
           [&](V u) { body(unitsFrom(k, u, end, count)); });
  };
  k.ifElse(
      end - first < exchangeThreads + 1, [&] { loop(1); },
      [&] { loop(atOnce); });
}

void whenThere(KernelBuilder &k, const ThreadUnit &unit,
               function_ref<void()> body) {
  if (unit.there)
    k.when(unit.there, body);
  else
    body();
}

Vs loadUnit(KernelBuilder &k, const UnitShape &unit, Ptr from, V left,
            bool aligned) {
  int64_t count = unit.values();
  auto some = [&] {
    Vs values;
    for (int64_t i = 0; i < count; ++i) {
      V there = left > i;
      V at = k.select(there, k.i32(4 * i), k.i32(0));
      values.push_back(k.select(there, k.loadF32(from + at), k.f32(0)));
    }
    return values;
  };
  if (!aligned)
    return some();
  auto all = [&] {
    Vs values;
    int64_t atOnce = std::min<int64_t>(count, 4);
    for (int64_t i = 0; i < count; i += atOnce)
      values.append(k.loadFloats(from + i * 4, atOnce));
    return values;
  };
  if (!left.value)
    return all();
  return k.ifElse(left >= count, SmallVector<Type>(count, k.f32Type()), all,
                  some);
}

void storeUnit(KernelBuilder &k, Ptr to, ArrayRef<V> values, V left,
               bool aligned) {
  auto count = int64_t(values.size());
  auto some = [&] {
    for (int64_t i = 0; i < count; ++i)
      k.when(left > i, [&] { k.store(to + i * 4, values[i]); });
  };
  auto all = [&] {
    int64_t atOnce = std::min<int64_t>(count, 4);
    for (int64_t i = 0; i < count; i += atOnce)
      k.storeWords(to + i * 4, values.slice(i, atOnce));
  };
  if (!aligned)
    return some();
  if (!left.value)
    return all();
  k.ifElse(left >= count, all, some);
}

Vs packUnit(KernelBuilder &k, const UnitShape &unit, ArrayRef<V> values) {
  Vs words;
  if (unit.format == Format::F32)
    for (V v : values)
      words.push_back(k.bits(v));
  else
    for (size_t i = 0; i < values.size(); i += 2)
      words.push_back(k.packBF16(values[i], values[i + 1]));
  return words;
}

Vs unpackUnit(KernelBuilder &k, const UnitShape &unit, ArrayRef<V> words) {
  Vs values;
  for (V word : words) {
    if (unit.format == Format::F32) {
      values.push_back(k.fromBits(word));
      continue;
    }
    auto [low, high] = k.unpackBF16(word);
    values.append({low, high});
  }
  return values;
}

Vs sumUnits(KernelBuilder &k, const UnitShape &unit, ArrayRef<Vs> received) {
  Vs sum = unpackUnit(k, unit, received[0]);
  for (const Vs &words : received.drop_front())
    for (auto [to, v] : llvm::zip(sum, unpackUnit(k, unit, words)))
      to = to + v;
  return sum;
}

std::string exchangeName(StringRef family, const ExchangeSpec &with,
                         Format format) {
  std::string name = kernelName(family, formatName(format));
  if (with.ranks)
    name += "_" + std::to_string(with.ranks);
  ExchangeLayout usual;
  if (with.layout.blocks != usual.blocks)
    name += "_blocks" + std::to_string(with.layout.blocks);
  if (with.layout.flaggedUnits != usual.flaggedUnits ||
      with.layout.bulkUnits != usual.bulkUnits)
    name += "_units" + std::to_string(with.layout.flaggedUnits) + "_" +
            std::to_string(with.layout.bulkUnits);
  return name;
}

V eachRound(KernelBuilder &k, V low, V high, V most,
            function_ref<void(V, V, V)> body) {
  V count = k.maximum(high - low, k.i32(0));
  V rounds = (count + most - 1) / most;
  k.loop(k.i32(0), rounds, 1, [&](V round) {
    V first = low + round * most;
    body(round, first, k.minimum(first + most, high));
  });
  return rounds;
}

std::pair<V, V> shareOf(KernelBuilder &k, V count) {
  V each = (count + k.blocks() - 1) / k.blocks();
  V low = k.minimum(k.block() * each, count);
  return {low, k.minimum(low + each, count)};
}

/// As many blocks as have a unit for each thread.
static std::string gridOf(const ExchangeSpec &with, StringRef symbol,
                          int64_t unitsOfRow, int64_t rowsOfUnit = 1) {
  std::string units = symbol.str();
  if (unitsOfRow != 1)
    units += " * " + std::to_string(unitsOfRow);
  return "min(" + std::to_string(with.layout.blocks) + ", ceildiv(" + units +
         ", " + std::to_string(exchangeThreads * rowsOfUnit) + "))";
}

static SmallVector<StringRef> accessOf(bool residual) {
  if (residual)
    return {"read", "read", "read", "write"};
  return {"read", "read", "write"};
}

static Ptr value(Ptr base, V index) {
  return base + base.k->to64(index) * 4;
}

//===----------------------------------------------------------------------===//
// All-reduce
//===----------------------------------------------------------------------===//

namespace {
/// What both forms have in common, for the exchanges between.
struct Reduction {
  KernelBuilder &k;
  Exchange &exchange;
  UnitShape unit;
  V low, high; ///< units of this block
  function_ref<Vs(Ptr from, const ThreadUnit &)> load;
  function_ref<void(const ThreadUnit &, ArrayRef<V> sum)> store; ///< to y
  Ptr x, residual; ///< residual null if there is none

  /// Of the residual that stands before each unit, if there is one.
  SmallVector<Vs> loadResiduals(ArrayRef<ThreadUnit> units) const {
    SmallVector<Vs> all;
    if (residual.value)
      for (const ThreadUnit &u : units)
        all.push_back(load(residual, u));
    return all;
  }
  /// Packed, of x.
  SmallVector<Vs> loadOwn(ArrayRef<ThreadUnit> units) const {
    SmallVector<Vs> all;
    for (const ThreadUnit &u : units)
      all.push_back(packUnit(k, unit, load(x, u)));
    return all;
  }
};
} // namespace

/// `body` returns how many exchanges there were. Both forms have a unit a thread at
/// least.
static Kernel reduceKernel(KernelSite site, StringRef family,
                           const ExchangeSpec &with, const ReduceSpec &spec,
                           Transport transport, StringRef symbol,
                           function_ref<V(const Reduction &)> body) {
  UnitShape unit{spec.format, spec.pull ? Transport::Pull : transport};
  int64_t values = unit.values();
  std::string name =
      exchangeName(spec.pull ? (family + "_pull").str() : family.str(), with,
                   spec.format) +
      "_" + std::to_string(spec.width);
  if (spec.residual)
    name += "_residual";
  Kernel kernel{name, gridOf(with, symbol, spec.width, values)};
  if (exists(site, name))
    return kernel;
  KernelBuilder k(site.kernels, site.loc, name, accessOf(spec.residual), 2,
                  {exchangeThreads, 2});
  k.gridTrigger();
  Exchange exchange(k, with.layout, with.ranks, k.buffer(0), k.scalar32(1));
  Ptr y = k.buffer(spec.residual ? 3 : 2);
  bool whole = spec.width % values == 0;
  V count = k.scalar32(0) * spec.width;
  auto [low, high] = shareOf(k, k.ceilDiv(count, values));
  k.gridWait();
  exchange.begin();
  auto load = [&](Ptr from, const ThreadUnit &u) {
    V at = u.index * values;
    return loadUnit(k, unit, value(from, at), whole ? V() : count - at, true);
  };
  auto store = [&](const ThreadUnit &u, ArrayRef<V> sum) {
    V at = u.index * values;
    whenThere(k, u, [&] {
      storeUnit(k, value(y, at), sum, whole ? V() : count - at, true);
    });
  };
  exchange.end(body({k, exchange, unit, low, high, load, store, k.buffer(1),
                     spec.residual ? k.buffer(2) : Ptr()}));
  k.finish();
  return kernel;
}

static void addTo(Vs &sum, ArrayRef<V> residual) {
  for (auto [to, v] : llvm::zip(sum, residual))
    to = v + to;
}

Kernel allReduceOneShot(KernelSite site, const ExchangeSpec &with,
                        const ReduceSpec &spec, StringRef symbol) {
  auto body = [&](const Reduction &r) {
    auto &[k, exchange, unit, low, high, load, store, x, residual] = r;
    int64_t atOnce = exchange.unitsAtOnce();
    V most =
        k.i32(spec.pull ? with.layout.bulkUnits : with.layout.flaggedUnits);
    return eachRound(k, low, high, most, [&](V round, V first, V end) {
      auto epoch = exchange.epoch(unit.transport, round);
      eachUnits(k, first, end, atOnce, [&](ArrayRef<ThreadUnit> units) {
        for (auto [u, words] : llvm::zip(units, r.loadOwn(units)))
          whenThere(k, u,
                    [&] { exchange.sendAll(epoch, u.index - first, words); });
      });
      exchange.arrive(epoch);
      eachUnits(k, first, end, atOnce, [&](ArrayRef<ThreadUnit> units) {
        Vs slots;
        for (const ThreadUnit &u : units)
          slots.push_back(u.index - first);
        SmallVector<Vs> before = r.loadResiduals(units);
        for (auto [i, words] :
             llvm::enumerate(exchange.receive(epoch, slots))) {
          Vs sum = sumUnits(k, unit, words);
          if (spec.residual)
            addTo(sum, before[i]);
          store(units[i], sum);
        }
      });
      k.barrier();
    });
  };
  return reduceKernel(site, "all_reduce_one_shot", with, spec,
                      Transport::Flagged, symbol, body);
}

Kernel allReduceTwoShot(KernelSite site, const ExchangeSpec &with,
                        const ReduceSpec &spec, StringRef symbol) {
  auto body = [&](const Reduction &reduction) {
    auto &[k, exchange, unit, low, high, load, store, x, residual] = reduction;
    int64_t atOnce = exchange.unitsAtOnce();
    // In a round each rank sums up to bulkUnits; two exchanges.
    V most = exchange.ranks() * with.layout.bulkUnits;
    V rounds = eachRound(k, low, high, most, [&](V round, V first, V end) {
      V each = (end - first + exchange.ranks() - 1) / exchange.ranks();
      /// The units of a rank's part: [begin, stop).
      auto eachOf =
          [&](V rank, function_ref<void(V begin, ArrayRef<ThreadUnit>)> units) {
            V begin = first + rank * each;
            eachUnits(k, begin, k.minimum(begin + each, end), atOnce,
                      [&](ArrayRef<ThreadUnit> some) { units(begin, some); });
          };
      auto scatter =
          exchange.epoch(unit.transport, round << 1, /*forAll=*/false);
      exchange.eachRank([&](V peer, Ptr memory) {
        eachOf(peer, [&](V begin, ArrayRef<ThreadUnit> units) {
          for (auto [u, words] : llvm::zip(units, reduction.loadOwn(units)))
            whenThere(k, u, [&] {
              exchange.send(scatter, peer, memory, u.index - begin, words);
            });
        });
      });
      exchange.arrive(scatter);
      auto gather = exchange.epoch(unit.transport, (round << 1) + 1);
      eachOf(exchange.rank(), [&](V begin, ArrayRef<ThreadUnit> units) {
        Vs slots;
        for (const ThreadUnit &u : units)
          slots.push_back(u.index - begin);
        for (auto [i, words] :
             llvm::enumerate(exchange.receive(scatter, slots)))
          whenThere(k, units[i], [&] {
            exchange.sendAll(gather, slots[i],
                             packUnit(k, unit, sumUnits(k, unit, words)));
          });
      });
      exchange.arrive(gather);
      k.loop(k.i32(0), exchange.ranks(), 1, [&](V rank) {
        eachOf(rank, [&](V begin, ArrayRef<ThreadUnit> units) {
          SmallVector<Vs> sums;
          for (const ThreadUnit &u : units)
            sums.push_back(unpackUnit(
                k, unit, exchange.receiveFrom(gather, rank, u.index - begin)));
          SmallVector<Vs> before = reduction.loadResiduals(units);
          for (auto [i, u] : llvm::enumerate(units)) {
            if (spec.residual)
              addTo(sums[i], before[i]);
            store(u, sums[i]);
          }
        });
      });
      k.barrier();
    });
    return rounds << 1;
  };
  return reduceKernel(site, "all_reduce_two_shot", with, spec, Transport::Bulk,
                      symbol, body);
}

//===----------------------------------------------------------------------===//
// All-gather
//===----------------------------------------------------------------------===//

Kernel allGather(KernelSite site, const ExchangeSpec &with,
                 const GatherSpec &spec, StringRef symbol) {
  UnitShape unit{spec.format, spec.transport};
  int64_t values = unit.values(), unitsOfRow = 0;
  std::string name = exchangeName(
      ("all_gather_" + transportName(spec.transport)).str(), with,
      spec.format);
  for (const GatherSpec::Segment &s : spec.segments) {
    name += "_" + std::to_string(s.part) + "x" + std::to_string(s.all);
    unitsOfRow += llvm::divideCeil(s.part, values);
  }
  Kernel kernel{name, gridOf(with, symbol, unitsOfRow)};
  if (exists(site, name))
    return kernel;
  SmallVector<StringRef> access{"read"};
  for (size_t i = 0; i < spec.segments.size(); ++i)
    access.append({"read", "write"});
  KernelBuilder k(site.kernels, site.loc, name, access, 2,
                  {exchangeThreads, 2});
  k.gridTrigger();
  Exchange exchange(k, with.layout, with.ranks, k.buffer(0), k.scalar32(1));
  V rows = k.scalar32(0);
  auto [low, high] = shareOf(k, rows * unitsOfRow);
  k.gridWait();
  exchange.begin();
  int64_t most = spec.transport == Transport::Flagged
                     ? with.layout.flaggedUnits
                     : with.layout.bulkUnits;
  V rounds = eachRound(k, low, high, k.i32(most), [&](V round, V first,
                                                      V end) {
    auto epoch = exchange.epoch(spec.transport, round);
    // A segment's units lie behind those of all rows of the one before it.
    auto eachUnit = [&](function_ref<void(unsigned segment, V slot, V row,
                                          V column)>
                            body) {
      int64_t before = 0;
      for (auto [i, s] : llvm::enumerate(spec.segments)) {
        int64_t each = llvm::divideCeil(s.part, values);
        V base = rows * before;
        V from = k.maximum(first, base);
        V to = k.minimum(end, base + rows * each);
        k.loop(from + k.thread(), to, exchangeThreads, [&](V u) {
          V inside = u - base;
          body(i, u - first, inside / each, inside % each * values);
        });
        before += each;
      }
    };
    eachUnit([&](unsigned i, V slot, V row, V column) {
      int64_t part = spec.segments[i].part;
      Ptr from = k.buffer(1 + 2 * i) + k.to64(row) * (part * 4) + column * 4;
      Vs own = loadUnit(k, unit, from, k.i32(part) - column,
                        part % values == 0);
      exchange.sendAll(epoch, slot, packUnit(k, unit, own));
    });
    exchange.arrive(epoch);
    eachUnit([&](unsigned i, V slot, V row, V column) {
      auto [part, all] = spec.segments[i];
      Ptr to = k.buffer(2 + 2 * i) + k.to64(row) * (all * 4) + column * 4;
      V inPart = k.i32(part) - column;
      for (auto [r, words] :
           llvm::enumerate(exchange.receive(epoch, slot))) {
        // Of a rank that is not there, or of padding, nothing is left.
        V left = k.minimum(inPart, k.i32(all - int64_t(r) * part) - column);
        if (!with.ranks)
          left = k.select(exchange.ranks() > int64_t(r), left, k.i32(0));
        storeUnit(k, to + int64_t(r) * part * 4, unpackUnit(k, unit, words),
                  left, part % values == 0 && all % values == 0);
      }
    });
    k.barrier();
  });
  exchange.end(rounds);
  k.finish();
  return kernel;
}

//===----------------------------------------------------------------------===//
// Without a plan
//===----------------------------------------------------------------------===//

void collectiveSuite(KernelSite site) {
  ExchangeSpec with;
  ReduceSpec hidden{7168, Format::BF16, /*residual=*/true};
  ReduceSpec values{1, Format::F32}, valuesPull = values, hiddenPull = hidden;
  valuesPull.pull = hiddenPull.pull = true;
  for (const ReduceSpec &spec : {ReduceSpec{1, Format::BF16}, values, valuesPull,
                                 hidden, hiddenPull}) {
    allReduceOneShot(site, with, spec, "tokens");
    allReduceTwoShot(site, with, spec, "tokens");
  }
  allReduceNorm(site, with, {hidden, Format::BF16, 1e-5}, "tokens");
  // `all` for any number of ranks: a rank's columns are its own.
  int64_t most = with.layout.ranks;
  constexpr Transport transports[] = {Transport::Flagged, Transport::Bulk,
                                      Transport::Pull};
  for (Transport transport : transports) {
    allGather(site, with, {{{1, most}}, Format::F32, transport}, "tokens");
    allGather(site, with,
              {{{192, 192 * most}, {72, 72 * most}}, Format::F32, transport},
              "tokens");
  }
  for (Transport transport : transports)
    mergeAttention(site, with, {8, 512, Format::BF16, transport}, "tokens");
  // What they are compared with.
  add(site, hidden.width);
  rmsNorm(site, hidden.width, Format::BF16, 1e-5);
  repeat(site, hidden.width, hidden.width, "tokens");
}

} // namespace mla::nvvm
