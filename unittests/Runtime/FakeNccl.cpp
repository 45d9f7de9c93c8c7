//===- FakeNccl.cpp - an NCCL for tests without GPUs ----------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "FakeNccl.h"
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#define MLA_EXPORT __attribute__((visibility("default")))

extern "C" {
MLA_EXPORT FakeNccl fakeNccl;
}

namespace {

constexpr int success = 0, systemError = 2;

struct Id {
  uint64_t number;
  char rest[120];
};

struct Comm {
  uint64_t id;
  int rank, ranks;
  uint64_t calls = 0;
  std::atomic<bool> aborted{false};
};

std::mutex mutex;
std::condition_variable changed;

using Parts = std::vector<std::vector<float>>;
struct Meeting {
  Parts parts;
  size_t come = 0, left = 0;
};
std::map<std::pair<uint64_t, uint64_t>, Meeting> meetings;

/// What all ranks brought to a call. False if it was ended before.
bool meet(Comm &comm, std::vector<float> mine, Parts &all) {
  struct Counted {
    Counted() { ++fakeNccl.inside; }
    ~Counted() { --fakeNccl.inside; }
  } counted;
  std::unique_lock lock(mutex);
  auto key = std::pair(comm.id, comm.calls++);
  Meeting &meeting = meetings[key];
  auto ranks = static_cast<size_t>(comm.ranks);
  meeting.parts.resize(ranks);
  meeting.parts[static_cast<size_t>(comm.rank)] = std::move(mine);
  ++meeting.come;
  changed.notify_all();
  while (meeting.come < ranks) {
    if (comm.aborted || fakeNccl.release)
      return false;
    changed.wait_for(lock, std::chrono::milliseconds(5));
  }
  all = meeting.parts;
  if (++meeting.left == ranks)
    meetings.erase(key);
  return true;
}

std::vector<float> copyOf(const void *from, size_t count) {
  auto *values = static_cast<const float *>(from);
  return {values, values + count};
}

/// What is sent and received between ncclGroupStart and ncclGroupEnd.
struct Batch {
  Comm *comm = nullptr;
  size_t count = 0;
  std::vector<const void *> from;
  std::vector<void *> to;
};
thread_local Batch batch;

} // namespace

extern "C" {

MLA_EXPORT int ncclGetVersion(int *version) {
  *version = 22809;
  return success;
}
MLA_EXPORT const char *ncclGetErrorString(int) { return "a system call failed"; }
MLA_EXPORT int ncclGetUniqueId(Id *id) {
  static std::atomic<uint64_t> ids{0};
  *id = {++ids, {}};
  return fakeNccl.idError;
}
MLA_EXPORT int ncclCommInitRank(Comm **to, int ranks, Id id, int rank) {
  if (fakeNccl.refused == rank)
    return systemError;
  auto *comm = new Comm{id.number, rank, ranks};
  Parts all;
  if (fakeNccl.missing == rank)
    comm->id = UINT64_MAX; // Where it meets nobody.
  if (!meet(*comm, {}, all)) {
    delete comm;
    return systemError;
  }
  ++fakeNccl.comms;
  *to = comm;
  return success;
}
MLA_EXPORT int ncclCommDestroy(Comm *comm) {
  --fakeNccl.comms;
  if (const int *graphs = fakeNccl.graphs; graphs && *graphs != 0)
    ++fakeNccl.endedBeforeGraphs;
  delete comm;
  return success;
}
MLA_EXPORT int ncclCommAbort(Comm *comm) {
  ++fakeNccl.aborted;
  return ncclCommDestroy(comm);
}
MLA_EXPORT int ncclCommGetAsyncError(Comm *, int *error) {
  *error = fakeNccl.asyncError;
  return success;
}

MLA_EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int, int,
                             Comm *comm, void *) {
  Parts all;
  if (!meet(*comm, copyOf(from, count), all))
    return systemError;
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const auto &part : all)
      sum += part[i];
    static_cast<float *>(to)[i] = sum;
  }
  return success;
}
MLA_EXPORT int ncclAllGather(const void *from, void *to, size_t count, int,
                             Comm *comm, void *) {
  Parts all;
  if (!meet(*comm, copyOf(from, count), all))
    return systemError;
  for (size_t r = 0; r < all.size(); ++r)
    std::memcpy(static_cast<float *>(to) + r * count, all[r].data(),
                count * sizeof(float));
  return success;
}
MLA_EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int,
                                 int, Comm *comm, void *) {
  Parts all;
  auto ranks = static_cast<size_t>(comm->ranks),
       own = static_cast<size_t>(comm->rank);
  if (!meet(*comm, copyOf(from, count * ranks), all))
    return systemError;
  for (size_t i = 0; i < count; ++i) {
    float sum = 0;
    for (const auto &part : all)
      sum += part[own * count + i];
    static_cast<float *>(to)[i] = sum;
  }
  return success;
}

MLA_EXPORT int ncclGroupStart() {
  batch = {};
  return success;
}
MLA_EXPORT int ncclSend(const void *from, size_t count, int, int peer,
                        Comm *comm, void *) {
  batch.comm = comm;
  batch.count = count;
  batch.from.resize(static_cast<size_t>(comm->ranks));
  batch.from[static_cast<size_t>(peer)] = from;
  return success;
}
MLA_EXPORT int ncclRecv(void *to, size_t, int, int peer, Comm *comm, void *) {
  batch.to.resize(static_cast<size_t>(comm->ranks));
  batch.to[static_cast<size_t>(peer)] = to;
  return success;
}
/// Every rank has sent to and received from all.
MLA_EXPORT int ncclGroupEnd() {
  std::vector<float> mine;
  for (const void *from : batch.from) {
    std::vector<float> part = copyOf(from, batch.count);
    mine.insert(mine.end(), part.begin(), part.end());
  }
  Parts all;
  auto own = static_cast<size_t>(batch.comm->rank);
  if (!meet(*batch.comm, std::move(mine), all))
    return systemError;
  for (size_t r = 0; r < all.size(); ++r)
    std::memcpy(batch.to[r], all[r].data() + own * batch.count,
                batch.count * sizeof(float));
  return success;
}
}
