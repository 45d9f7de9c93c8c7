//===- Exchange.cpp - how kernels of several ranks pass data --------------===//
//
// Part of mla. See Exchange.h for the protocol.
//
//===----------------------------------------------------------------------===//
#include "Exchange.h"
#include "llvm/Support/ErrorHandling.h"

using namespace mlir;

namespace mla::nvvm {

StringRef transportName(Transport transport) {
  switch (transport) {
  case Transport::Flagged:
    return "flagged";
  case Transport::Bulk:
    return "bulk";
  case Transport::Pull:
    return "pull";
  }
  llvm_unreachable("a transport");
}

Exchange::Exchange(KernelBuilder &k, const ExchangeLayout &layout,
                   int64_t ranks, Ptr table, V launch)
    : k(k), layout(layout), fixedRanks(ranks), table(table),
      gaveUp(k.shared(4, 4)), sums(k.shared(layout.blocks * 4)),
      launch(launch) {
  if (fixedRanks)
    this->layout.ranks = fixedRanks;
  // Of the table, which never changes: before gridWait(), too.
  rankValue = k.loadI32(word(plan::peersRank));
  ranksValue = fixedRanks ? k.i32(fixedRanks)
                          : k.loadI32(word(plan::peersRanks));
  own = memoryOf(rankValue);
  V peer = rankValue;
  for (int64_t r = 0; r < most(); ++r) {
    peer = peer + 1;
    peer = k.select(peer >= ranksValue, k.i32(0), peer);
    peers.push_back(peer);
    memories.push_back(memoryOf(peer));
  }
}

Ptr Exchange::memoryOf(V peer) {
  return k.global(k.loadI64(word(plan::peersFirst) + peer * 8));
}
Ptr Exchange::counter(V block) {
  return own + (block * ExchangeLayout::line + layout.counters());
}
V Exchange::isThere(int64_t r) {
  // Two ranks there are always.
  return fixedRanks || r < 2 ? V() : ranksValue > r;
}

void Exchange::begin() {
  // What this block wrote at the end of an earlier kernel.
  first = k.pull(counter(k.block()));
  k.when(k.thread() == 0, [&] { k.store(gaveUp, k.i32(0)); });
  k.barrier();
}

void Exchange::end(V exchanges) {
  k.when(k.thread() == 0,
         [&] { k.push(counter(k.block()), first + exchanges); });
}

Exchange::Epoch Exchange::epoch(Transport transport, V index, bool forAll) {
  V number = first + index + 1;
  return {transport, forAll, flagOf(number), (k.block() << 1) + (number & 1)};
}

void Exchange::eachRank(function_ref<void(V, Ptr)> body) {
  for (int64_t r = 0; r < most(); ++r)
    if (V there = isThere(r))
      k.when(there, [&] { body(peers[r], memories[r]); });
    else
      body(peers[r], memories[r]);
}

/// Offset of a slot's unit.
static V unitOf(const ExchangeLayout &layout, const Exchange::Epoch &epoch,
                V source, V unit) {
  bool flagged = epoch.transport == Transport::Flagged;
  int64_t units = flagged ? layout.flaggedUnits : layout.bulkUnits;
  V slot = epoch.slots * layout.ranks + source;
  return (slot * units + unit) * ExchangeLayout::unit +
         (flagged ? layout.flagged() : layout.bulk());
}

void Exchange::send(const Epoch &epoch, V peer, Ptr memory, V unit,
                    ArrayRef<V> words) {
  if (epoch.transport == Transport::Pull)
    return k.pushWords(own + unitOf(layout, epoch, peer, unit), words);
  Ptr to = memory + unitOf(layout, epoch, rankValue, unit);
  if (epoch.transport == Transport::Flagged)
    k.pushFlagged(to, words[0], words[1], epoch.flag);
  else
    k.pushWords(to, words);
}

void Exchange::sendAll(const Epoch &epoch, V unit, ArrayRef<V> words) {
  if (epoch.transport == Transport::Pull)
    return send(epoch, k.i32(0), own, unit, words);
  eachRank(
      [&](V peer, Ptr memory) { send(epoch, peer, memory, unit, words); });
}

void Exchange::arrive(const Epoch &epoch) {
  if (epoch.transport == Transport::Flagged)
    return;
  auto flagAt = [&](Ptr memory, V source) {
    V slot = epoch.slots * layout.ranks + source;
    return memory + (slot * ExchangeLayout::line + layout.flags());
  };
  // The barrier puts the block's stores before the release of one thread, and what
  // one thread acquired before the block's loads. Thread r is for rank r.
  k.barrier();
  V r = k.thread();
  k.when(r < ranksValue, [&] {
    k.pushRelease(flagAt(memoryOf(r), rankValue), epoch.flag);
    poll([&] { return Vs{k.pullAcquire(flagAt(own, r))}; },
         [&](ArrayRef<V> seen) { return seen[0] == epoch.flag; },
         [&](ArrayRef<V>) { return r; }, epoch.flag);
  });
  k.barrier();
}

SmallVector<SmallVector<Vs>> Exchange::receive(const Epoch &epoch,
                                               ArrayRef<V> units) {
  SmallVector<SmallVector<Vs>> out(units.size(), SmallVector<Vs>(most()));
  auto put = [&](Vs &to, int64_t r, V word) {
    V there = isThere(r);
    to.push_back(there ? k.select(there, word, k.i32(0)) : word);
  };
  if (epoch.transport != Transport::Flagged) {
    for (auto [to, unit] : llvm::zip(out, units))
      for (int64_t r = 0; r < most(); ++r) {
        // A rank that is not there has no memory to load from.
        V source = k.i32(r), there = isThere(r);
        if (there && epoch.transport == Transport::Pull)
          source = k.select(there, source, k.i32(0));
        for (V word : receiveFrom(epoch, source, unit))
          put(to[r], r, word);
      }
    return out;
  }
  // All loads of a round are under way together. Slots of ranks that are not there
  // are memory, too.
  auto look = [&] {
    Vs all;
    for (int64_t r = 0; r < most(); ++r)
      for (V unit : units)
        all.append(k.pullFlagged(own + unitOf(layout, epoch, k.i32(r), unit)));
    return all;
  };
  int64_t words = 4 * int64_t(units.size());
  auto hasCome = [&](ArrayRef<V> seen, int64_t r) {
    V all = seen[words * r + 1] == epoch.flag;
    for (int64_t i = 3; i < words; i += 2)
      all = all & (seen[words * r + i] == epoch.flag);
    V there = isThere(r);
    return there ? all | (!there) : all;
  };
  auto arrived = [&](ArrayRef<V> seen) {
    V all = hasCome(seen, 0);
    for (int64_t r = 1; r < most(); ++r)
      all = all & hasCome(seen, r);
    return all;
  };
  auto missing = [&](ArrayRef<V> seen) {
    V peer = k.i32(0);
    for (int64_t r = most(); r-- > 0;)
      peer = k.select(hasCome(seen, r), peer, k.i32(r));
    return peer;
  };
  Vs seen = poll(look, arrived, missing, epoch.flag);
  for (int64_t r = 0; r < most(); ++r)
    for (auto [u, to] : llvm::enumerate(out))
      for (int64_t i : {0, 2})
        put(to[r], r, seen[words * r + 4 * int64_t(u) + i]);
  return out;
}

Vs Exchange::receiveFrom(const Epoch &epoch, V source, V unit) {
  if (epoch.transport == Transport::Bulk)
    return k.pullWords(own + unitOf(layout, epoch, source, unit));
  V slot = epoch.forAll ? k.i32(0) : rankValue;
  return k.pullWords(memoryOf(source) + unitOf(layout, epoch, slot, unit));
}

V Exchange::sumOverBlocks(V value, V firstBlock, V count, V index, V flag,
                          V before) {
  // Readers look for flags of their own epochs, which differ among blocks. They
  // cannot have counted on yet: they wait for this block's value.
  auto place = [&](V reader, V writer) {
    return own + ((reader * layout.blocks + writer) * ExchangeLayout::unit +
                  layout.partials());
  };
  V t = k.thread();
  k.when(t < count, [&] {
    V reader = firstBlock + t;
    V theirs = flagOf(before + 1);
    k.pushFlagged(place(reader, index), k.bits(value), k.i32(0), theirs);
    Vs seen = poll([&] { return k.pullFlagged(place(k.block(), t)); },
                   [&](ArrayRef<V> seen) {
                     return (seen[1] == flag) & (seen[3] == flag);
                   },
                   [&](ArrayRef<V>) { return rankValue; }, flag);
    k.store(sums + t * 4, k.fromBits(seen[0]));
  });
  k.barrier();
  Vs sum = k.loop(k.i32(0), count, 1, {k.f32(0)}, [&](V i, ArrayRef<V> acc) {
    return Vs{acc[0] + k.loadF32(sums + i * 4)};
  });
  return sum[0];
}

Vs Exchange::poll(function_ref<Vs()> look,
                  function_ref<V(ArrayRef<V>)> arrived,
                  function_ref<V(ArrayRef<V>)> missing, V flag) {
  // A look takes some 0.5 us, the clock and the host's memory more.
  constexpr int64_t looksBetween = 512;
  // Once a thread of the block has given up, no other waits.
  auto stopped = [&] {
    return k.inlinePTX("ld.volatile.shared.b32 $0, [$1];", "=r,r", k.i32Type(),
                       {k.sharedAddress(gaveUp).value}, true);
  };
  Vs init{k.i32(0), k.i64(0), stopped()};
  init.append(look());
  auto seenOf = [](ArrayRef<V> state) { return state.drop_front(3); };
  Vs last = k.loopWhile(
      init,
      [&](ArrayRef<V> state) {
        return (!arrived(seenOf(state))) & (state[2] == 0);
      },
      [&](ArrayRef<V> state) {
        V looks = state[0] + 1;
        Vs next = k.ifElse(
            (looks & (looksBetween - 1)) == 0, {k.i64Type(), k.i32Type()},
            [&]() -> Vs {
              V now = k.globalTimer();
              V since = k.select(state[1] == 0, now, state[1]);
              V waited = now - since;
              V stop = k.pull(k.global(k.loadI64(word(plan::peersAbort))));
              stop = stop | stopped();
              V late = (waited >= k.loadI64(word(plan::peersTimeout))) &
                       (stop == 0);
              k.when(late,
                     [&] { report(missing(seenOf(state)), flag, waited); });
              stop = k.select(late, k.i32(1), stop);
              k.when(!(stop == 0), [&] { k.store(gaveUp, k.i32(1)); });
              return {since, stop};
            },
            [&]() -> Vs { return {state[1], state[2]}; });
        Vs all{looks};
        all.append(next);
        all.append(look());
        return all;
      });
  return Vs(last.begin() + 3, last.end());
}

void Exchange::report(V peer, V flag, V waited) {
  using plan::PeerReport;
  Ptr to = k.global(k.loadI64(word(plan::peersReport)));
  V before = k.swap(to + offsetof(PeerReport, claimed), k.i32(1));
  k.when(before == 0, [&] {
    k.push(to + offsetof(PeerReport, rank), rankValue);
    k.push(to + offsetof(PeerReport, peer), peer);
    k.push(to + offsetof(PeerReport, launch), launch);
    k.push(to + offsetof(PeerReport, epoch), k.to64((flag >> 1) - 1));
    k.push(to + offsetof(PeerReport, waited), waited);
    // Who sees the abort word sees the report.
    k.pushRelease(k.global(k.loadI64(word(plan::peersAbort))), k.i32(1));
  });
}

} // namespace mla::nvvm
