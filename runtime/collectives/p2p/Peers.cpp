//===- Peers.cpp - memory by which kernels of several ranks meet ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/p2p/Peers.h"
#include "runtime/base/Memory.h"
#include "runtime/base/Pause.h"
#include "runtime/collectives/p2p/Reach.h"
#include <algorithm>
#include <atomic>
#include <limits>

namespace mla::p2p {
using namespace hal::cuda;
using namespace std::chrono_literals;

namespace {

/// Allocations that others open are whole pages of the driver's.
constexpr uint64_t granularity = uint64_t(2) << 20;

/// What kernels write in the host's memory.
struct Signals {
  alignas(64) uint32_t abort = 0;
  alignas(64) plan::PeerReport report{};
};

/// Between two looks at what other ranks do, and, if one has ended the group, until
/// this one's kernels are told: it may have ended because all was done.
constexpr std::chrono::milliseconds lookEvery = 1ms, grace = 1s;

/// What Peers::mostBlocks() says, of who is on which device.
int64_t mostBlocksOf(std::span<const Identity> identities) {
  int64_t most = std::numeric_limits<int64_t>::max();
  for (const Identity &one : identities) {
    auto ranks = std::count_if(
        identities.begin(), identities.end(),
        [&](const Identity &other) { return other.isOnDeviceOf(one); });
    most = std::min<int64_t>(most, one.multiprocessors / (2 * ranks));
  }
  return std::max<int64_t>(most, 1);
}

} // namespace

struct Peers::State {
  State(const Place &place, collectives::Collectives &ranks)
      : place(place), ranks(ranks) {}
  ~State() {
    place.driver.ctxSetCurrent(place.context);
    if (table)
      place.driver.memFree(table);
    if (signals)
      place.driver.memFreeHost(signals);
  }

  Status check(Code code, const char *call, const std::string &attempt) const {
    return code == Success
               ? Status()
               : ioError(std::string(call) + " failed " + attempt + ": " +
                         place.driver.describe(code));
  }
  Status fillTable();

  const Place place;
  collectives::Collectives &ranks;
  std::unique_ptr<Mapping> mapping;
  Signals *signals = nullptr; ///< Pinned.
  Address table = 0;
  bool sharesDevice = false;
  int64_t mostBlocks = 1;
  std::string path;
};

Peers::Peers(std::unique_ptr<State> state) : state(std::move(state)) {}
Peers::~Peers() = default;
Address Peers::table() const { return state->table; }
bool Peers::sharesDevice() const { return state->sharesDevice; }
int64_t Peers::mostBlocks() const { return state->mostBlocks; }
const std::string &Peers::path() const { return state->path; }

Status Peers::State::fillTable() {
  std::string attempt = "to make a table of the ranks";
  void *memory = nullptr;
  MLA_RETURN_IF_ERROR(check(
      place.driver.memHostAlloc(&memory, sizeof(Signals), hostAllocPortable),
      "cuMemHostAlloc", attempt));
  signals = new (memory) Signals;
  std::vector<uint64_t> words(plan::peersFirst);
  words[plan::peersRank] = static_cast<uint64_t>(ranks.rank());
  words[plan::peersRanks] = static_cast<uint64_t>(ranks.size());
  words[plan::peersTimeout] = static_cast<uint64_t>(
      std::chrono::nanoseconds(ranks.timeout()).count());
  // Kernels reach pinned memory by the host's addresses.
  words[plan::peersAbort] = reinterpret_cast<uintptr_t>(&signals->abort);
  words[plan::peersReport] = reinterpret_cast<uintptr_t>(&signals->report);
  words.insert(words.end(), mapping->addresses.begin(),
               mapping->addresses.end());
  size_t bytes = words.size() * sizeof(uint64_t);
  MLA_RETURN_IF_ERROR(
      check(place.driver.memAlloc(&table, bytes), "cuMemAlloc", attempt));
  MLA_RETURN_IF_ERROR(check(place.driver.memcpyHtoDAsync(
                                table, words.data(), bytes, place.stream),
                            "cuMemcpyHtoDAsync", attempt));
  return check(place.driver.streamSynchronize(place.stream),
               "cuStreamSynchronize", attempt);
}

Result<std::unique_ptr<Peers>> Peers::connect(const Place &place, uint64_t bytes,
                                              Path path,
                                              collectives::Collectives &ranks) {
  auto state = std::make_unique<State>(place, ranks);
  bytes = (bytes + granularity - 1) / granularity * granularity;
  MLA_ASSIGN_OR_RETURN(std::vector<Identity> identities,
                       identify(place, ranks));

  auto own = static_cast<size_t>(ranks.rank());
  bool oneDevice = true, oneProcess = true;
  state->mostBlocks = mostBlocksOf(identities);
  for (size_t r = 0; r < identities.size(); ++r) {
    const Identity &other = identities[r];
    if (!other.isOnMachineOf(identities[0]))
      return unsupported("ranks 0 and " + std::to_string(r) +
                         " are on different machines, whose GPUs do not reach each "
                         "other's memory: compile the plan with "
                         "--collectives nccl");
    state->sharesDevice |= r != own && other.isOnDeviceOf(identities[own]);
    oneDevice &= other.isOnDeviceOf(identities[0]);
    oneProcess &= other.process == identities[0].process;
  }
  std::string why = "peer access is off";
  if (path != Path::Host) {
    MLA_ASSIGN_OR_RETURN(auto devices,
                         mapDevices(place, bytes, identities, ranks));
    state->mapping = std::move(devices.mapping);
    state->path = oneDevice ? "one GPU" : "peer access";
    if (!oneProcess)
      state->path += " (CUDA IPC)";
    why = devices.why;
  }
  if (!state->mapping) {
    MLA_ASSIGN_OR_RETURN(auto host, mapHost(place, bytes, identities, ranks));
    if (!host.mapping)
      return ioError("the ranks' GPUs do not reach each other (" + why +
                     "), and not by the host's memory either: " + host.why);
    state->mapping = std::move(host.mapping);
    state->path = "memory of the host (" + why + ")";
  }
  Status all;
  MLA_RETURN_IF_ERROR(
      agree(state->fillTable(), ranks, "tables of the ranks", all));
  MLA_RETURN_IF_ERROR(all);
  return std::unique_ptr<Peers>(new Peers(std::move(state)));
}

void Peers::abort() {
  std::atomic_ref(state->signals->abort).store(1, std::memory_order_release);
}

bool Peers::timedOut() const {
  return std::atomic_ref(state->signals->abort)
             .load(std::memory_order_acquire) &&
         state->signals->report.claimed;
}

Status Peers::check(const LaunchName &name) const {
  if (!std::atomic_ref(state->signals->abort).load(std::memory_order_acquire))
    return {};
  if (!timedOut())
    return ioError("kernels that wait for other ranks were told to end");
  const plan::PeerReport &r = state->signals->report;
  return ioError("rank " + std::to_string(r.rank) + " waited " +
                 collectives::secondsText(std::chrono::nanoseconds(r.waited)) +
                 " for rank " + std::to_string(r.peer) + " in " +
                 name(r.launch));
}

Status Peers::wait(const LaunchName &name) {
  Status status =
      waitForStream(state->place, state->ranks, [&] { abort(); });
  // What a kernel says comes first: others may have ended because of it.
  Status own = check(name);
  return timedOut() || status.ok() ? own : status;
}

Status waitForStream(const Place &place, collectives::Collectives &ranks,
                     const std::function<void()> &giveUp,
                     std::optional<std::chrono::milliseconds> patience) {
  using Clock = std::chrono::steady_clock;
  auto begin = Clock::now(), looked = begin, since = begin;
  Status why;
  bool told = false;
  while (true) {
    Code code = place.driver.streamQuery(place.stream);
    if (code == Success)
      return told ? why : Status();
    if (code != NotReady)
      return ioError("cuStreamQuery failed to wait for kernels: " +
                     place.driver.describe(code));
    for (int i = 0; i < 20; ++i)
      runtime::pause();
    auto now = Clock::now();
    if (now - looked < lookEvery || told)
      continue;
    looked = now;
    if (why.ok()) {
      why = ranks.look("a step's kernels");
      since = now;
      if (why.ok() && patience && now - begin > *patience) {
        why = ioError("rank " + std::to_string(ranks.rank()) + " waited " +
                      collectives::secondsText(now - begin) +
                      " for other ranks in a step's kernels");
        since = now - grace;
      }
    } else if (now - since >= grace) {
      giveUp();
      told = true;
    }
  }
}

} // namespace mla::p2p
