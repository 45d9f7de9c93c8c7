//===- Group.cpp - the ranks of a group over NCCL -------------------------===//
//
// Part of mla. ncclCommInitRank() waits for all ranks, for ever if one does not
// come, and so does the first collective of each kind, which makes connections. Both
// run in a thread of their own, which is left behind if they do not end in time.
// (NCCL's form of that call which does not wait would do without it, but then every
// call of the communicator returns before its kernel is in the stream, which a
// recording into a graph is not made for.)
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/nccl/Group.h"
#include "runtime/collectives/p2p/Reach.h"
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace mla::nccl {
using collectives::Clock;

namespace {

constexpr hal::cuda::Code cudaSuccess = hal::cuda::Success;

/// What rank 0 tells the others.
struct Invitation {
  UniqueId id;
  int32_t code = Success;
};

Status cudaError(const hal::cuda::Driver &driver, hal::cuda::Code code,
                 const char *call) {
  if (code == cudaSuccess)
    return {};
  std::string message = std::string(call) +
                        " failed for NCCL: " + driver.describe(code);
  return code == hal::cuda::OutOfMemory ? exhausted(message)
                                        : internalError(message);
}

/// All ranks get the same answer.
Status checkSeats(const p2p::Place &place, collectives::Collectives &ranks) {
  MLA_ASSIGN_OR_RETURN(std::vector<p2p::Identity> seats,
                       p2p::identify(place, ranks));
  for (size_t i = 0; i < seats.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (seats[i].isOnDeviceOf(seats[j]))
        return unsupported("ranks " + std::to_string(j) + " and " +
                           std::to_string(i) + " share GPU " +
                           seats[i].device + ": NCCL needs a GPU for each rank");
  return {};
}

/// Bytes of the calls by which connections are made: NCCL takes other ways for
/// small, middling and large ones.
constexpr size_t firstSizes[] = {4, 64 << 10, 1 << 20, 16 << 20};
constexpr size_t largest = firstSizes[std::size(firstSizes) - 1];

/// The beginning, in a thread that may outlive the group. So it has a copy of all
/// that it needs.
class Beginning {
public:
  Beginning(std::shared_ptr<const Library> library, const p2p::Place &place,
            int rank, int size, const UniqueId &id)
      : library(std::move(library)), context(place.context),
        stream(place.stream), rank(rank), size(size), id(id),
        ctxSetCurrent(place.driver.ctxSetCurrent),
        memAlloc(place.driver.memAlloc), memFree(place.driver.memFree),
        streamSynchronize(place.driver.streamSynchronize) {}

  void run() {
    connect();
    std::lock_guard lock(mutex);
    done = true;
    ended.notify_all();
  }
  /// Whether it has ended by then.
  bool wait(Clock::time_point deadline) {
    std::unique_lock lock(mutex);
    return ended.wait_until(lock, deadline, [&] { return done; });
  }
  /// The communicator, once it is there. The thread has ended, or goes on with
  /// nothing from here on.
  Comm take() {
    std::lock_guard lock(mutex);
    left = true;
    return comm;
  }

  // What failed, where it ended, if `call` is not null.
  const char *call = nullptr;
  Code code = Success;
  hal::cuda::Code cuda = cudaSuccess;

private:
  bool well(const char *name, Code ncclCode,
            hal::cuda::Code cudaCode = cudaSuccess) {
    std::lock_guard lock(mutex);
    if (ncclCode != Success || cudaCode != cudaSuccess) {
      call = name;
      code = ncclCode;
      cuda = cudaCode;
    }
    return !call && !left;
  }

  void connect() {
    Comm made = nullptr;
    if (!well("cuCtxSetCurrent", Success, ctxSetCurrent(context)) ||
        !well("ncclCommInitRank",
              library->commInitRank(&made, size, id, rank)))
      return;
    {
      std::lock_guard lock(mutex);
      if (left)
        return; // Nobody is there any more to whom to give it.
      comm = made;
    }
    hal::cuda::Address memory = 0;
    if (!well("cuMemAlloc", Success, memAlloc(&memory, largest)))
      return;
    if (warm(made, reinterpret_cast<char *>(memory)))
      well("cuMemFree", Success, memFree(memory));
  }

  bool warm(Comm made, char *data) {
    auto ranks = static_cast<size_t>(size), own = static_cast<size_t>(rank);
    for (size_t bytes : firstSizes) {
      size_t each = std::max<size_t>(bytes / 4 / ranks, 1);
      if (!well("ncclAllReduce",
                library->allReduce(data, data, bytes / 4, Float32, Sum, made,
                                   stream)) ||
          !well("ncclAllGather",
                library->allGather(data + own * each * 4, data, each, Float32,
                                   made, stream)))
        return false;
    }
    return well("cuStreamSynchronize", Success, streamSynchronize(stream));
  }

  const std::shared_ptr<const Library> library;
  const hal::cuda::Context context;
  const hal::cuda::Stream stream;
  const int rank, size;
  const UniqueId id;
  decltype(hal::cuda::Driver::ctxSetCurrent) const ctxSetCurrent;
  decltype(hal::cuda::Driver::memAlloc) const memAlloc;
  decltype(hal::cuda::Driver::memFree) const memFree;
  decltype(hal::cuda::Driver::streamSynchronize) const streamSynchronize;

  std::mutex mutex;
  std::condition_variable ended;
  bool done = false, left = false;
  Comm comm = nullptr;
};

size_t bytesOf(DataType type) { return type == Float32 ? 4 : 2; }

char *at(hal::cuda::Address address, int64_t values = 0,
         DataType type = Float32) {
  return reinterpret_cast<char *>(address) +
         static_cast<size_t>(values) * bytesOf(type);
}

} // namespace

Result<std::unique_ptr<Group>>
Group::create(std::shared_ptr<const Library> library, const p2p::Place &place,
              collectives::Collectives &ranks,
              std::chrono::milliseconds timeout) {
  MLA_RETURN_IF_ERROR(checkSeats(place, ranks));
  Invitation invitation;
  if (ranks.rank() == 0)
    invitation.code = library->getUniqueId(&invitation.id);
  MLA_RETURN_IF_ERROR(
      ranks.broadcast(std::as_writable_bytes(std::span(&invitation, 1)), 0,
                      "NCCL's address"));
  MLA_RETURN_IF_ERROR(
      library->check(invitation.code, "ncclGetUniqueId", "on rank 0"));
  std::unique_ptr<Group> group(new Group(
      std::move(library), place, ranks, timeout));
  MLA_RETURN_IF_ERROR(group->begin(invitation.id, ranks));
  // Nobody puts kernels into a stream that wait for one that has failed.
  if (Status all = ranks.barrier("the start of NCCL"); !all.ok()) {
    group->abort(all);
    return all;
  }
  return group;
}

Group::Group(std::shared_ptr<const Library> library, const p2p::Place &place,
             collectives::Collectives &ranks,
             std::chrono::milliseconds timeout)
    : library(std::move(library)), place(place), ranks(ranks),
      ownRank(ranks.rank()), groupSize(ranks.size()), timeout(timeout) {}

Status Group::begin(const UniqueId &id, collectives::Collectives &ranks) {
  auto beginning =
      std::make_shared<Beginning>(library, place, ownRank, groupSize, id);
  std::thread thread([beginning] { beginning->run(); });
  constexpr std::chrono::milliseconds lookEvery{50};
  auto deadline = Clock::now() + timeout;
  Status why;
  bool ended = false;
  while (!ended && why.ok()) {
    ended = beginning->wait(Clock::now() + lookEvery);
    why = ranks.look("the start of NCCL");
    if (why.ok() && Clock::now() > deadline)
      why = ioError("rank " + std::to_string(ownRank) + " waited " +
                    collectives::secondsText(timeout) + " for NCCL to connect " +
                    std::to_string(groupSize) + " ranks");
  }
  comm = beginning->take();
  if (!ended) {
    abort(why); // If there is a communicator, its kernels and calls end now.
    if (beginning->wait(Clock::now() + std::chrono::seconds(2)))
      thread.join();
    else
      thread.detach();
    return why;
  }
  thread.join();
  if (beginning->call) { // What it says is closer to the cause.
    why = cudaError(place.driver, beginning->cuda, beginning->call);
    if (why.ok())
      why = checked(beginning->code, beginning->call);
  }
  if (!why.ok())
    abort(why);
  return why;
}

Group::~Group() {
  if (!comm)
    return;
  // A communicator of which a peer is gone waits for ever when destroyed, whether
  // NCCL knows of it or the host does.
  if (check().ok() && ranks.look("the end of NCCL").ok())
    library->commDestroy(comm);
  else
    library->commAbort(comm);
}

void Group::abort(const Status &why) {
  if (over.ok())
    over = why;
  if (comm)
    library->commAbort(comm);
  comm = nullptr;
}

Status Group::checked(Code code, const char *call) const {
  Status status = library->check(code, call,
                                 "on rank " + std::to_string(ownRank) + " of " +
                                     std::to_string(groupSize));
  return code == RemoteError ? ioError(status.message()) : status;
}

Status Group::check() const {
  MLA_RETURN_IF_ERROR(over);
  Code error = Success;
  MLA_RETURN_IF_ERROR(
      checked(library->commGetAsyncError(comm, &error), "ncclCommGetAsyncError"));
  return error == InProgress ? Status() : checked(error, "NCCL's transport");
}

Status Group::allReduce(Address from, Address to, int64_t count,
                        DataType type) {
  MLA_RETURN_IF_ERROR(over);
  return checked(library->allReduce(at(from), at(to),
                                    static_cast<size_t>(count), type, Sum, comm,
                                    place.stream),
                 "ncclAllReduce");
}

Status Group::allGather(Address from, Address to, int64_t count,
                        DataType type) {
  MLA_RETURN_IF_ERROR(over);
  return checked(library->allGather(at(from), at(to),
                                    static_cast<size_t>(count), type, comm,
                                    place.stream),
                 "ncclAllGather");
}

Status Group::reduceScatter(Address from, Address to, int64_t count,
                            DataType type) {
  MLA_RETURN_IF_ERROR(over);
  return checked(library->reduceScatter(at(from), at(to),
                                        static_cast<size_t>(count), type, Sum,
                                        comm, place.stream),
                 "ncclReduceScatter");
}

Status Group::allToAll(Address from, Address to, int64_t count,
                       DataType type) {
  MLA_RETURN_IF_ERROR(over);
  // All of them in one kernel; what has been begun is ended in any case.
  MLA_RETURN_IF_ERROR(checked(library->groupStart(), "ncclGroupStart"));
  Status status;
  for (int peer = 0; peer < groupSize && status.ok(); ++peer) {
    status = checked(library->send(at(from, peer * count, type),
                                   static_cast<size_t>(count), type, peer, comm,
                                   place.stream),
                     "ncclSend");
    if (status.ok())
      status = checked(library->receive(at(to, peer * count, type),
                                        static_cast<size_t>(count), type, peer,
                                        comm, place.stream),
                       "ncclRecv");
  }
  Status ended = checked(library->groupEnd(), "ncclGroupEnd");
  return status.ok() ? ended : status;
}

} // namespace mla::nccl
