//===- Transport.h - one rank's end of a group ------------------*- C++ -*-===//
//
// Part of mla. A group is N ranks, 0 to N - 1, that run the same program:
// threads of one process (host/Threads.h) or processes (host/Sockets.h). Each
// holds one Transport. All ranks make the same calls in the same order; every
// call carries a number, the sizes and a text, and ranks that disagree get an
// error that names both.
//
// No call hangs: each ends by its deadline with an error that says who waited
// for whom, in what and how long. A rank that gives up (abort(), or an error in
// a call, or its process is killed) ends the present or next call of every
// other rank with an error that names it. After an error the group is over:
// every later call returns that error.
//
// Threads: a Transport belongs to one thread at a time.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_TRANSPORT_H
#define MLA_RUNTIME_COLLECTIVES_TRANSPORT_H

#include "mla/Support/Status.h"
#include "runtime/base/Memory.h"
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mla::collectives {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;
using Clock = std::chrono::steady_clock;

/// "60.0 s": a time, as all errors of ranks that wait have it.
std::string secondsText(std::chrono::duration<double> time);

class Transport {
public:
  static constexpr std::chrono::milliseconds defaultTimeout{60'000};
  /// Ranks of a group.
  static constexpr int maxRanks = 1024;
  /// Bytes of `what` that other ranks see and compare.
  static constexpr size_t maxWhat = 240;

  virtual ~Transport();
  Transport(const Transport &) = delete;
  Transport &operator=(const Transport &) = delete;

  int rank() const { return ownRank; }
  int size() const { return groupSize; }

  /// How long a call waits for other ranks before it is an error. May differ
  /// between ranks: the first to lose patience ends the group.
  void setTimeout(std::chrono::milliseconds timeout) { patience = timeout; }
  std::chrono::milliseconds timeout() const { return patience; }

  /// Sends send[i] to rank i and fills receive[i] from rank i, for all i, the
  /// own rank included; both have size() entries. Sizes may differ and be 0,
  /// but what rank i expects from j is what j sends to i. Returns when all of
  /// it has happened: `receive` is filled, and nobody reads `send` any more.
  /// The two must not overlap.
  ///
  /// `what` says in errors what this is for ("all-reduce layers.3.o_proj, step
  /// 12"). It is compared, so it is the same on every rank: two collectives of
  /// the same size are not mistaken for each other.
  ///
  /// Io on time-out or if a rank ended, Internal if the ranks' calls differ,
  /// the code that another rank gave up with, Invalid if the arguments are
  /// wrong.
  Status exchange(std::span<const ConstBytes> send,
                  std::span<const Bytes> receive, std::string_view what);

  /// What share() calls: the ranges of all ranks, in their order.
  using Reader = std::function<void(std::span<const ConstBytes> all)>;

  /// Shows every rank's `mine`, of the same size on all, to every rank: calls
  /// `read` once with all of them. Ranks in one address space read each other's
  /// memory in place; else it is an exchange into memory of the transport.
  /// After return nobody reads `mine` any more. `read` may write to memory that
  /// is part of no rank's `mine` only; it does not call the transport. Errors
  /// as of exchange(), and Exhausted; `read` may or may not have been called
  /// then.
  Status share(ConstBytes mine, const Reader &read, std::string_view what);
  /// Whether share() moves nothing that `read` does not look at.
  virtual bool sharesMemory() const { return false; }

  /// Whether another rank has ended the group, as far as this one sees without
  /// waiting: its error, as from then on every call returns. For who waits for
  /// something else that other ranks do. `what` as in exchange().
  Status look(std::string_view what);

  /// This rank gives up. The others learn `why`, which must be an error. Does
  /// nothing if the group is over already.
  void abort(const Status &why);

  /// The error that ended the group, or Ok.
  const Status &status() const { return over; }

protected:
  Transport(int rank, int size) : ownRank(rank), groupSize(size) {}

  /// One call, as the implementations see it.
  struct Call {
    uint64_t number; ///< 1, 2, ...: the same on all ranks.
    std::string_view what;
    Clock::time_point begin, deadline;
  };

  virtual Status doExchange(const Call &call, std::span<const ConstBytes> send,
                            std::span<const Bytes> receive) = 0;
  /// Through doExchange() unless overridden.
  virtual Status doShare(const Call &call, ConstBytes mine, const Reader &read);
  /// look(): `call` is none, its number that of the last one.
  virtual Status doLook(const Call &call) = 0;
  /// Tells the other ranks `why`, which they return as it is. Called once, and
  /// for an error of a call before that call returns to the caller: the memory
  /// that it was given is still there.
  virtual void doAbort(const Status &why) = 0;

  // The words of errors, the same for all implementations.

  /// "rank 0 waited 60.0 s for rank 3 in all-reduce x (call 7)"
  Status timedOut(const Call &call, std::span<const int> missing) const;
  /// "rank 3 HOW while rank 0 waited for it in all-reduce x (call 7)"
  Status ended(const Call &call, int rank, const std::string &how) const;
  /// "rank 3 gave up: WHY" with this rank's number and WHY's code.
  Status gaveUp(const Status &why) const;
  /// What one rank says of a message.
  struct Side {
    int rank;
    uint64_t number, bytes;
    std::string_view what;
  };
  static Status mismatch(const Side &expects, const Side &sends);

private:
  Call begin(std::string_view what);
  Status end(Status status);

  const int ownRank, groupSize;
  std::chrono::milliseconds patience = defaultTimeout;
  uint64_t calls = 0;
  Status over;
  runtime::HostMemory scratch; ///< Of doShare().
};

} // namespace mla::collectives

#endif // MLA_RUNTIME_COLLECTIVES_TRANSPORT_H
