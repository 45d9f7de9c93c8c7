//===- Exchange.h - how kernels of several ranks pass data ------*- C++ -*-===//
//
// Part of mla. The protocol of all kernels that write into other ranks' memory;
// include/mla/Plan/Peers.h is what the runtime gives them.
//
// Block b of a kernel exchanges with block b of the same kernel on every other
// rank, and with no other block. An *exchange* of a block is: it stores something
// into the memory of every rank (its own too, so that all are alike), then it waits
// until what every rank's block b stored has come. Exchanges of a block are numbered
// by its *epoch*: a counter in the rank's own exchange memory, read after gridWait()
// and written at the kernel's end. Nothing of it comes from the host, so a CUDA graph
// can be replayed. All ranks launch the same kernels with the same numbers of rows,
// so that block b does as many exchanges on each; a block without work does none.
//
// What is stored lies in slots [block][parity of the epoch][rank that stores], in one
// of three forms:
//   flagged  units of 16 bytes, {4 bytes, flag, 4 bytes, flag}: each half is one
//            store, and has arrived when its flag is that of the epoch. Twice the
//            bytes, nothing to wait for between data and flag: for what is small.
//   bulk     units of 16 bytes of data, and one flag for the whole slot, stored with
//            release behind a barrier of the block, read with acquire before one. The
//            wait for all stores to have landed takes microseconds: for what is large.
//   pull     as bulk, but a rank stores into its own memory, in slot [..][rank that it is
//            for], or the first if it is for all, and the others load it from there: where
//            stores to peers are slow and loads are not. Only flags are stored at peers.
//
// Two slots, by parity, are enough, and no barrier at a kernel's end is needed. Let
// block b of rank r store for epoch e + 1 into rank p, where its last use was for
// epoch e - 1. Block b of r begins epoch e + 1 behind a barrier (or in a later kernel)
// after it has received all of epoch e, also what p stored for e. Block b of p stored
// that after it had ended e - 1 in the same way: all its threads had read what had come
// for e - 1. So nothing is overwritten that is still to be read, whatever kernels the
// epochs belong to: the slots of all collectives of a plan lie at the same places,
// smaller ones use a prefix, and flagged and bulk slots do not overlap. This needs that
// in each exchange every rank stores at least one flag into each other rank's slot. The
// same holds of what others load from r's own memory: p stored its flag for e after it
// had loaded all that was for e - 1.
//
// A flag is 2 * epoch + 1 in 32 bits: never 0, which memory is before its first use. An
// old one is mistaken for a new one if the place was last used exactly 2^31 exchanges
// ago.
//
// Every wait ends: see Exchange::poll(). After a time-out epochs differ among ranks,
// and the plan has to be loaded again.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_LIB_CODEGEN_NVVM_EXCHANGE_H
#define MLA_LIB_CODEGEN_NVVM_EXCHANGE_H

#include "KernelBuilder.h"
#include "mla/Plan/Peers.h"

namespace mla::nvvm {

/// Where things lie in exchange memory. One for all kernels of a plan. Sizes and
/// offsets in bytes; units are of 16.
struct ExchangeLayout {
  static constexpr int64_t line = 64, unit = 16, maxRanks = 8, maxBlocks = 64;
  int64_t ranks = maxRanks;    ///< that there are slots for
  int64_t blocks = maxBlocks;  ///< most blocks of a kernel, up to maxBlocks
  int64_t flaggedUnits = 2048; ///< of a slot
  int64_t bulkUnits = 2048;    ///< of a slot

  /// Of block b: counters() + b * line.
  int64_t counters() const { return 0; }
  /// Flagged units [block that reads][block that stores], within a rank.
  int64_t partials() const { return counters() + blocks * line; }
  /// Of bulk slots, a line each.
  int64_t flags() const { return partials() + blocks * blocks * unit; }
  int64_t flagged() const { return flags() + blocks * 2 * ranks * line; }
  int64_t bulk() const {
    return flagged() + blocks * 2 * ranks * flaggedUnits * unit;
  }
  int64_t end() const { return bulk() + blocks * 2 * ranks * bulkUnits * unit; }
  /// Exchange memory that kernels use, those of bulk slots or others.
  int64_t bytes(bool bulkSlots) const { return bulkSlots ? end() : bulk(); }
};

/// The form of what is stored.
enum class Transport { Flagged, Bulk, Pull };
llvm::StringRef transportName(Transport transport); ///< "flagged"

/// One kernel's side of its exchanges.
class Exchange {
public:
  /// Before gridWait(). `ranks`: 0 if only the table says how many, up to
  /// layout.ranks. `table`: the operand "peers". `launch`: an i32 for the report.
  Exchange(KernelBuilder &k, const ExchangeLayout &layout, int64_t ranks,
           Ptr table, V launch);

  /// After gridWait(), by all threads.
  void begin();
  /// By all threads, after `exchanges` of them (i32) in all.
  void end(V exchanges);

  /// This rank, and how many there are, as i32.
  V rank() const { return rankValue; }
  V ranks() const { return ranksValue; }
  /// The most ranks; what the kernel repeats for each of them.
  int64_t most() const { return layout.ranks; }

  /// An exchange of this block.
  struct Epoch {
    Transport transport;
    bool forAll;   ///< each rank sends all others the same
    V flag, slots; ///< slots: offset of those of its block and parity, i32
  };
  /// The `index`-th of the kernel, from 0 (i32). `forAll`: by sendAll(), else by send().
  Epoch epoch(Transport transport, V index, bool forAll = true);

  /// Calls `body` for each rank, this one last: each rank another one first, so
  /// that no link gets all at once.
  void eachRank(llvm::function_ref<void(V peer, Ptr memory)> body);
  /// Stores unit `unit` of what `peer`, whose memory that is, gets: two words flagged,
  /// else four.
  void send(const Epoch &epoch, V peer, Ptr memory, V unit,
            llvm::ArrayRef<V> words);
  void sendAll(const Epoch &epoch, V unit, llvm::ArrayRef<V> words);
  /// Behind all sends, by all threads: waits until what all ranks have sent is there.
  /// Flagged, nothing.
  void arrive(const Epoch &epoch);
  /// Units `units` of every rank's slot, [unit][rank], two or four words; flagged,
  /// waits until all of them have come. Zeros for ranks beyond ranks().
  llvm::SmallVector<llvm::SmallVector<Vs>> receive(const Epoch &epoch,
                                                   llvm::ArrayRef<V> units);
  llvm::SmallVector<Vs> receive(const Epoch &epoch, V unit) {
    return receive(epoch, llvm::ArrayRef<V>(unit)).front();
  }
  /// As many units as fit the registers of a thread.
  int64_t unitsAtOnce() const { return most() <= 2 ? 4 : most() <= 4 ? 2 : 1; }
  /// Unit `unit` of rank `source`'s slot, not flagged.
  Vs receiveFrom(const Epoch &epoch, V source, V unit);

  /// Adds a value of each of the blocks [first, first + count) of this rank, which
  /// all call it, once in a kernel in which each does one exchange. The same bits for
  /// all. `index`: which of them this block is. By all threads, with the same value.
  /// `before`: epochBefore() of block first + thread, if that is one of them.
  V sumOverBlocks(V value, V first, V count, V index, V flag, V before);
  /// The epoch of a block before this kernel; after begin(), well before it is used.
  V epochBefore(V block) { return k.pull(counter(block)); }

private:
  /// Looks until `arrived(what was seen)`, a time-out, or an abort. `missing` is the
  /// rank that is waited for; called where `arrived` is false.
  Vs poll(llvm::function_ref<Vs()> look,
          llvm::function_ref<V(llvm::ArrayRef<V>)> arrived,
          llvm::function_ref<V(llvm::ArrayRef<V>)> missing, V flag);
  void report(V peer, V flag, V waited);
  V isThere(int64_t r); ///< i1; null if always
  Ptr word(int64_t index) { return table + index * 8; }
  Ptr memoryOf(V peer);
  V flagOf(V epoch) { return (epoch << 1) | 1; }
  Ptr counter(V block);

  KernelBuilder &k;
  ExchangeLayout layout;
  int64_t fixedRanks;
  Ptr table, own, gaveUp, sums;
  V launch, rankValue, ranksValue, first;
  llvm::SmallVector<V> peers;
  llvm::SmallVector<Ptr> memories;
};

} // namespace mla::nvvm

#endif // MLA_LIB_CODEGEN_NVVM_EXCHANGE_H
