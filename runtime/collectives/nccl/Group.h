//===- Group.h - the ranks of a group over NCCL -----------------*- C++ -*-===//
//
// Part of mla. Sums and moves of values in the memory of GPUs, each rank's on a
// GPU of its own: NCCL refuses two ranks on one. The ranks meet through the
// host's collectives::Collectives; from then on NCCL moves everything.
//
// Calls put kernels into the rank's stream and return; they can be recorded into
// a graph. Every rank makes the same calls in the same order, with the same
// counts. Sums are in f32 unless another type is said, in an order that NCCL
// chooses by size and machine: all ranks have the same bits, but not those of
// collectives::Collectives.
//
// Nothing hangs: create() ends by its deadline, and p2p::waitForStream() with
// abort() is how to wait for what was put into the stream. A call that puts kernels
// into the stream may wait for the other ranks where NCCL makes connections that it
// had not needed before; create() makes those of sums and gathers of all sizes.
//
// Threads: one at a time, the context current.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_NCCL_GROUP_H
#define MLA_RUNTIME_COLLECTIVES_NCCL_GROUP_H

#include "runtime/collectives/Collectives.h"
#include "runtime/collectives/nccl/Nccl.h"
#include "runtime/collectives/p2p/Peers.h"
#include <memory>
#include <string>

namespace mla::nccl {

class Group {
public:
  using Address = hal::cuda::Address;

  /// Called by all ranks of `ranks` at once. Unsupported, on all ranks, if two of
  /// them are on one GPU, naming both; Io after `timeout`; Exhausted; Internal with
  /// what NCCL says; else the errors of collectives::Collectives. `place` and
  /// `ranks` outlive this.
  static Result<std::unique_ptr<Group>>
  create(std::shared_ptr<const Library> library, const p2p::Place &place,
         collectives::Collectives &ranks, std::chrono::milliseconds timeout);
  /// What was put into the stream has ended, on all ranks, or is aborted.
  ~Group();
  Group(const Group &) = delete;
  Group &operator=(const Group &) = delete;

  int rank() const { return ownRank; }
  int size() const { return groupSize; }

  /// to[i] = the sum of all ranks' from[i], 0 <= i < count; `from` and `to` are one
  /// array or do not overlap. Internal with what NCCL says, as all of these.
  Status allReduce(Address from, Address to, int64_t count,
                   DataType type = Float32);
  /// to = `from` of rank 0, then that of rank 1, ..., `count` values each. `from` may
  /// be this rank's place in `to`.
  Status allGather(Address from, Address to, int64_t count,
                   DataType type = Float32);
  /// to[i] = the sum of all ranks' from[rank * count + i].
  Status reduceScatter(Address from, Address to, int64_t count,
                       DataType type = Float32);
  /// to[r * count + i] = from[rank * count + i] of rank r. No overlap.
  Status allToAll(Address from, Address to, int64_t count,
                  DataType type = Float32);

  /// Whether NCCL has found an error since, without waiting: Io if it is another
  /// rank's.
  Status check() const;
  /// Kernels in the stream end, whatever they wait for; what they computed means
  /// nothing. The group is over: later calls return `why`, which is an error. The
  /// other ranks do not learn of it by this.
  void abort(const Status &why);

private:
  Group(std::shared_ptr<const Library> library, const p2p::Place &place,
        collectives::Collectives &ranks, std::chrono::milliseconds timeout);
  Status begin(const UniqueId &id, collectives::Collectives &ranks);
  /// Ok for Success and for what goes on; else an error, Io if another rank's.
  Status checked(Code code, const char *call) const;

  std::shared_ptr<const Library> library;
  const p2p::Place place;
  collectives::Collectives &ranks;
  const int ownRank, groupSize;
  const std::chrono::milliseconds timeout;
  Comm comm = nullptr;
  Status over;
};

} // namespace mla::nccl

#endif // MLA_RUNTIME_COLLECTIVES_NCCL_GROUP_H
