//===- GpuBackends.cpp - ranks on GPUs ------------------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "GpuBackends.h"
#include "runtime/collectives/nccl/Group.h"
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>

namespace mla::testing {
using namespace collectives;

namespace {

/// The largest array of the suite: 16 MB, and what is behind it.
constexpr int64_t mostValues = 4 << 20, guards = 16;

/// Nobody writes beyond the end. Behind it was NaN.
Status checkGuards(const float *end, const std::string &what) {
  for (int64_t i = 0; i < guards; ++i)
    if (!std::isnan(end[i]))
      return internalError(what + ": written beyond the end on the GPU");
  return {};
}

void copyFloats(float *to, const float *from, int64_t count) {
  if (count > 0)
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
}

} // namespace

//===----------------------------------------------------------------------===//
// Kernels that write to other ranks' memory
//===----------------------------------------------------------------------===//

Status P2pMember::connect() {
  MLA_ASSIGN_OR_RETURN(from, seat.values(mostValues));
  MLA_ASSIGN_OR_RETURN(to, seat.values(mostValues + guards));
  MLA_ASSIGN_OR_RETURN(word, seat.values(2));
  MLA_ASSIGN_OR_RETURN(peers, p2p::Peers::connect(seat.place(),
                                                  p2p::exchangeBytes, path,
                                                  ranks));
  setTimeout(gpuPatience);
  return transport.status();
}

void P2pMember::setTimeout(std::chrono::milliseconds timeout) {
  transport.setTimeout(timeout);
  auto nanoseconds =
      static_cast<uint64_t>(std::chrono::nanoseconds(timeout).count());
  std::memcpy(word.host, &nanoseconds, sizeof nanoseconds);
  Values place{peers->table() + plan::peersTimeout * sizeof(uint64_t),
               word.host, 2};
  Status status = seat.up(place);
  if (status.ok())
    status = seat.synchronize();
  if (!status.ok())
    transport.abort(status);
}

Status P2pMember::finish(Status status) {
  if (!status.ok())
    transport.abort(status);
  return status;
}

void P2pMember::settle() {
  if (peers)
    peers->abort();
  Status status = seat.synchronize();
  if (!status.ok())
    transport.abort(status);
}

Status P2pMember::allReduce(const float *x, float *y, int64_t count,
                            const std::string &what) {
  MLA_RETURN_IF_ERROR(transport.look(what));
  if (count > mostValues)
    return finish(invalid("too many values"));
  bool inPlace = x == y;
  const Values &source = inPlace ? to : from;
  auto run = [&]() -> Status {
    Values reached = to;
    reached.count = count + guards;
    MLA_RETURN_IF_ERROR(seat.poison(reached));
    copyFloats(source.host, x, count);
    MLA_RETURN_IF_ERROR(seat.up(source, count));
    bool once = count * 4 * (size() - 1) <= oneShot;
    MLA_RETURN_IF_ERROR(seat.launch(
        once ? p2p::Kernel::OneShotF32 : p2p::Kernel::TwoShotF32, peers.get(),
        {source, to}, count));
    return seat.down(to, count + guards);
  };
  MLA_RETURN_IF_ERROR(finish(run()));
  MLA_RETURN_IF_ERROR(wait("all-reduce " + what));
  copyFloats(y, to.host, count);
  return finish(checkGuards(to.host + count, what));
}

Status P2pMember::allGather(const float *x, float *y, int64_t rows,
                            int64_t columns, const std::string &what) {
  MLA_RETURN_IF_ERROR(transport.look(what));
  // The kernel makes a row of eight places of each value.
  constexpr int64_t places = 8;
  int64_t count = rows * columns;
  if (count * places > mostValues)
    return finish(invalid("too many values"));
  auto run = [&]() -> Status {
    Values reached = to;
    reached.count = count * places + guards;
    MLA_RETURN_IF_ERROR(seat.poison(reached));
    copyFloats(from.host, x, count);
    MLA_RETURN_IF_ERROR(seat.up(from, count));
    MLA_RETURN_IF_ERROR(seat.launch(count % 2 ? p2p::Kernel::GatherFlagged
                                              : p2p::Kernel::GatherBulk,
                                    peers.get(), {from, to}, count));
    return seat.down(to, reached.count);
  };
  MLA_RETURN_IF_ERROR(finish(run()));
  MLA_RETURN_IF_ERROR(wait("all-gather " + what));
  for (int64_t i = 0; i < count; ++i)
    for (int64_t r = 0; r < places; ++r) {
      float value = to.host[i * places + r];
      if (r < size())
        y[(i / columns * size() + r) * columns + i % columns] = value;
      else if (!std::isnan(value))
        return finish(internalError(
            what + ": written for a rank that is not there"));
    }
  return finish(checkGuards(to.host + count * places, what));
}

Status P2pMember::reduceScatter(const float *, float *, int64_t, int64_t,
                                const std::string &) {
  return finish(unsupported("no kernel scatters sums"));
}
Status P2pMember::allToAll(const float *, float *, int64_t, int64_t,
                           const std::string &) {
  return finish(unsupported("no kernel exchanges columns for rows"));
}

Status P2pMember::sameOnAll(const Values &values, const std::string &what) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  MLA_ASSIGN_OR_RETURN(std::vector<uint64_t> all, ranks.gatherEach(hash, what));
  for (size_t r = 0; r < all.size(); ++r)
    if (all[r] != all[0])
      return internalError(what + ": ranks 0 and " + std::to_string(r) +
                           " have other bits");
  return {};
}

namespace {

//===----------------------------------------------------------------------===//
// NCCL
//===----------------------------------------------------------------------===//

class NcclMember final : public Member {
public:
  NcclMember(Transport &transport, Seat &seat)
      : transport(transport), ranks(transport), seat(seat) {}
  Status connect() {
    MLA_ASSIGN_OR_RETURN(from, seat.values(mostValues));
    MLA_ASSIGN_OR_RETURN(to, seat.values(mostValues + guards));
    MLA_ASSIGN_OR_RETURN(std::shared_ptr<const nccl::Library> library,
                         nccl::Library::load());
    // Connections take seconds.
    MLA_ASSIGN_OR_RETURN(group,
                         nccl::Group::create(library, seat.place(), ranks,
                                             std::chrono::seconds(60)));
    return {};
  }

  int rank() const override { return ranks.rank(); }
  int size() const override { return ranks.size(); }
  Status allReduce(const float *x, float *y, int64_t count,
                   const std::string &what) override {
    auto source = x == y ? to : from;
    return run(x, source, count, y, count, what, [&] {
      return group->allReduce(source.device, to.device, count);
    });
  }
  Status allGather(const float *x, float *y, int64_t rows, int64_t columns,
                   const std::string &what) override {
    int64_t count = rows * columns;
    std::vector<float> parts(static_cast<size_t>(count * size()));
    MLA_RETURN_IF_ERROR(run(x, from, count, parts.data(), count * size(), what,
                            [&] {
                              return group->allGather(from.device, to.device,
                                                      count);
                            }));
    // Each rank's rows, one rank behind the other.
    for (int64_t r = 0; r < size(); ++r)
      for (int64_t row = 0; row < rows; ++row)
        copyFloats(y + (row * size() + r) * columns,
                   parts.data() + (r * rows + row) * columns, columns);
    return {};
  }
  Status reduceScatter(const float *x, float *y, int64_t rows, int64_t columns,
                       const std::string &what) override {
    std::vector<float> parts = partsOf(x, rows, columns);
    int64_t count = rows * columns;
    return run(parts.data(), from, count * size(), y, count, what, [&] {
      return group->reduceScatter(from.device, to.device, count);
    });
  }
  Status allToAll(const float *x, float *y, int64_t rows, int64_t columns,
                  const std::string &what) override {
    std::vector<float> parts = partsOf(x, rows, columns);
    int64_t count = rows * columns;
    return run(parts.data(), from, count * size(), y, count * size(), what,
               [&] {
                 return group->allToAll(from.device, to.device, count);
               });
  }
  Status barrier(const std::string &what) override {
    return ranks.barrier(what);
  }
  void setTimeout(std::chrono::milliseconds timeout) override {
    transport.setTimeout(timeout);
  }
  void abort(const Status &why) override { transport.abort(why); }
  void settle() {
    if (group)
      group->abort(ioError("the test has failed"));
    Status status = seat.synchronize();
    if (!status.ok())
      transport.abort(status);
  }

private:
  /// The columns of rank 0 of all rows, then those of rank 1, ...
  std::vector<float> partsOf(const float *x, int64_t rows,
                             int64_t columns) const {
    std::vector<float> parts(static_cast<size_t>(rows * columns * size()));
    for (int64_t r = 0; r < size(); ++r)
      for (int64_t row = 0; row < rows; ++row)
        copyFloats(parts.data() + (r * rows + row) * columns,
                   x + (row * size() + r) * columns, columns);
    return parts;
  }

  Status run(const float *x, const Values &source, int64_t in, float *y,
             int64_t out, const std::string &what,
             const std::function<Status()> &enqueue) {
    MLA_RETURN_IF_ERROR(transport.look(what));
    auto all = [&]() -> Status {
      if (in > mostValues || out > mostValues)
        return invalid("too many values");
      Values reached = to;
      reached.count = std::max(in, out) + guards;
      MLA_RETURN_IF_ERROR(seat.poison(reached));
      copyFloats(source.host, x, in);
      MLA_RETURN_IF_ERROR(seat.up(source, in));
      MLA_RETURN_IF_ERROR(enqueue());
      MLA_RETURN_IF_ERROR(seat.down(to, out + guards));
      auto giveUp = [&] { group->abort(ioError("another rank has ended")); };
      MLA_RETURN_IF_ERROR(p2p::waitForStream(seat.place(), ranks, giveUp,
                                             transport.timeout()));
      copyFloats(y, to.host, out);
      return checkGuards(to.host + out, what);
    };
    Status status = all();
    if (!status.ok())
      transport.abort(status);
    return status;
  }

  Transport &transport;
  Collectives ranks;
  Seat &seat;
  std::unique_ptr<nccl::Group> group;
  Values from, to;
};

//===----------------------------------------------------------------------===//
// Backends
//===----------------------------------------------------------------------===//

enum class Way { P2p, P2pHost, Nccl };

/// Of a run's ranks that are threads: until all have come, nobody's memory goes.
using Together = std::shared_ptr<std::barrier<>>;

template <typename M>
Outcome runMember(const Body &body, M &member, Transport &transport,
                  const Together &together) {
  auto begin = Clock::now();
  Status status = member.connect();
  if (status.ok())
    status = transport.look("the start");
  Outcome outcome;
  if (status.ok())
    outcome = timed(body, member);
  else
    outcome = {status.withContext("at the start"),
               std::chrono::duration<double>(Clock::now() - begin).count()};
  // The others' kernels may write here until their bodies have ended, too.
  if (outcome.status.ok())
    outcome.status = member.barrier("the end of a test");
  if (!outcome.status.ok()) {
    transport.abort(outcome.status);
    member.settle();
  }
  if (together)
    together->arrive_and_wait();
  return outcome;
}

class GpuBackend final : public Backend {
public:
  GpuBackend(Way way, bool processes) : way(way), processes(processes) {}

  std::string name() const override {
    std::string name = way == Way::Nccl ? "Nccl" : "P2p";
    name += processes ? "Processes" : "Threads";
    return way == Way::P2pHost ? name + "HostMemory" : name;
  }
  bool hasProcesses() const override { return processes; }
  bool has(Feature feature) const override {
    switch (feature) {
    case Feature::OrderedSums:
    case Feature::MissingNamed:
      return way != Way::Nccl;
    case Feature::Moves:
    case Feature::OneRank:
      return way == Way::Nccl;
    case Feature::Bytes:
    case Feature::SeveralGroups: // One frees memory where the other's kernels wait.
    case Feature::DifferencesFound:
    case Feature::Leaving: // Its memory would be written to.
    case Feature::AllMissingNamed:
    case Feature::CallsNamed:
      return false;
    }
    return true;
  }
  int mostRanks() const override {
    if (way == Way::Nccl)
      return std::min(8, gpuFacts.gpus);
    // Processes on one GPU take turns of milliseconds.
    return processes ? std::clamp(gpuFacts.gpus, 4, 8) : 8;
  }
  std::string unusable() const override {
    if (processes != gpuFacts.forked)
      return processes ? "ranks that are processes have a run of their own"
                       : "ranks that are threads have a run of their own";
    if (way == Way::Nccl && gpuFacts.gpus < 2)
      return "NCCL needs a GPU for each rank, found " +
             std::to_string(gpuFacts.gpus);
    return "";
  }
  int replays() const override {
    return !processes ? 2000 : gpuFacts.gpus > 1 ? 400 : 100;
  }
  double secondsToNotice() const override { return 10; }

  std::unique_ptr<Ongoing> start(int ranks, const Body &body) override {
    Together together;
    if (!processes)
      together = std::make_shared<std::barrier<>>(ranks);
    RankBody rank = [this, body, together](Transport &transport) {
      return run(body, transport, together);
    };
    return processes ? startProcesses(ranks, rank) : startThreads(ranks, rank);
  }

  const Way way;
  const bool processes;

private:
  Outcome run(const Body &body, Transport &transport,
              const Together &together) const {
    // The first time GPUs are opened and kernels compiled, one after the other.
    transport.setTimeout(std::chrono::seconds(60));
    auto seat = Seat::take(transport.rank() % gpuFacts.gpus);
    if (!seat.ok()) {
      transport.abort(seat.status());
      if (together)
        together->arrive_and_wait();
      return {seat.status()};
    }
    Outcome outcome;
    if (way == Way::Nccl) {
      NcclMember member(transport, **seat);
      outcome = runMember(body, member, transport, together);
    } else {
      P2pMember member(transport, **seat,
                       way == Way::P2p ? p2p::Path::Any : p2p::Path::Host);
      outcome = runMember(body, member, transport, together);
    }
    (*seat)->giveBack();
    return outcome;
  }
};

GpuBackend p2pThreads(Way::P2p, false), p2pProcesses(Way::P2p, true),
    hostThreads(Way::P2pHost, false), hostProcesses(Way::P2pHost, true),
    ncclThreads(Way::Nccl, false), ncclProcesses(Way::Nccl, true);

} // namespace

const std::vector<Backend *> &backends() {
  static const std::vector<Backend *> all = {&p2pThreads,   &hostThreads,
                                             &ncclThreads,  &p2pProcesses,
                                             &hostProcesses, &ncclProcesses};
  return all;
}

std::vector<Backend *> p2pBackends() {
  return {&p2pThreads, &hostThreads, &p2pProcesses, &hostProcesses};
}

} // namespace mla::testing
