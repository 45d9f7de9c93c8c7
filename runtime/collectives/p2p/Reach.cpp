//===- Reach.cpp - exchange memory on devices and on the host -------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/p2p/Reach.h"
#include "runtime/base/Memory.h"
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

namespace mla::p2p {
using namespace hal::cuda;
using runtime::formatBytes;

namespace {

/// A Status in bytes.
struct Verdict {
  int32_t code = 0;
  char text[508] = {};
};

std::string rankText(size_t rank) { return "rank " + std::to_string(rank); }

//===----------------------------------------------------------------------===//
// On the devices
//===----------------------------------------------------------------------===//

/// How another rank may get to a rank's memory.
struct Offer {
  Address address = 0; ///< In the rank's process.
  Context context = nullptr;
  Ordinal device = 0;
  int32_t hasHandle = 0;
  IpcHandle handle;
};

class DeviceMapping final : public Mapping {
public:
  using Mapping::Mapping;
  ~DeviceMapping() override {
    driver.ctxSetCurrent(context);
    closeOthers();
    if (own)
      driver.memFree(own);
  }
  /// Memory that others have opened is not to be freed before they have closed it.
  void closeOthers() {
    for (Address address : opened)
      driver.ipcCloseMemHandle(address);
    opened.clear();
  }

  Status take(const Place &place, uint64_t bytes) {
    std::string attempt = "to take " + formatBytes(bytes) + " for exchanges";
    if (Code code = driver.memAlloc(&own, bytes); code != Success)
      return own = 0, check(code, "cuMemAlloc", attempt);
    MLA_RETURN_IF_ERROR(
        check(driver.memsetD8Async(own, 0, bytes, place.stream),
              "cuMemsetD8Async", attempt));
    return check(driver.streamSynchronize(place.stream), "cuStreamSynchronize",
                 attempt);
  }

  Offer offer(const Place &place) const {
    Offer offer{own, context, place.device, 0, {}};
    // Some systems have none; ranks of one process need none.
    offer.hasHandle = driver.ipcGetMemHandle(&offer.handle, own) == Success;
    return offer;
  }

  Status reach(const Place &place, size_t rank, const Offer &offer,
               const Identity &mine, const Identity &other) {
    bool sameDevice = other.isOnDeviceOf(mine);
    std::string pair = "GPU " + std::string(mine.device) + " to GPU " +
                       other.device;
    if (mine.process == other.process) {
      if (!sameDevice) {
        int can = 0;
        MLA_RETURN_IF_ERROR(
            check(driver.deviceCanAccessPeer(&can, place.device, offer.device),
                  "cuDeviceCanAccessPeer", "from " + pair));
        if (!can)
          return unsupported("no peer access from " + pair);
        Code code = driver.ctxEnablePeerAccess(offer.context, 0);
        if (code != PeerAccessAlreadyEnabled)
          MLA_RETURN_IF_ERROR(check(code, "cuCtxEnablePeerAccess",
                                    "from " + pair));
      }
      addresses[rank] = offer.address;
      return {};
    }
    if (!offer.hasHandle)
      return unsupported(rankText(rank) +
                         "'s memory cannot be opened in another process (no CUDA "
                         "IPC)");
    Address address = 0;
    MLA_RETURN_IF_ERROR(check(
        driver.ipcOpenMemHandle(&address, offer.handle, ipcLazyEnablePeerAccess),
        "cuIpcOpenMemHandle", "from " + pair));
    opened.push_back(address);
    addresses[rank] = address;
    return {};
  }

  Address own = 0;

private:
  std::vector<Address> opened;
};

/// What rank `from` stores in rank `to`'s memory, and where: links have been seen
/// that report peer access and lose what is stored.
constexpr uint64_t testWords = 64;
std::array<uint32_t, testWords> testPattern(size_t from, size_t to) {
  std::array<uint32_t, testWords> words;
  for (uint32_t i = 0; i < testWords; ++i)
    words[i] = (i + 1) * 0x9E3779B1U ^ static_cast<uint32_t>(from * 257 + to);
  return words;
}

Status testPush(const Place &place, const Mapping &mapping, size_t own) {
  const Driver &d = place.driver;
  std::string attempt = "to try peer access";
  auto check = [&](Code code, const char *call) -> Status {
    return code == Success ? Status()
                           : ioError(std::string(call) + " failed " + attempt +
                                     ": " + d.describe(code));
  };
  Address staging = 0;
  MLA_RETURN_IF_ERROR(
      check(d.memAlloc(&staging, sizeof testPattern(0, 0)), "cuMemAlloc"));
  auto push = [&]() -> Status {
    for (size_t r = 0; r < mapping.addresses.size(); ++r) {
      auto words = testPattern(own, r);
      MLA_RETURN_IF_ERROR(check(
          d.memcpyHtoDAsync(staging, words.data(), sizeof words, place.stream),
          "cuMemcpyHtoDAsync"));
      MLA_RETURN_IF_ERROR(
          check(d.memcpyDtoDAsync(mapping.addresses[r] + own * sizeof words,
                                  staging, sizeof words, place.stream),
                "cuMemcpyDtoDAsync"));
      MLA_RETURN_IF_ERROR(
          check(d.streamSynchronize(place.stream), "cuStreamSynchronize"));
    }
    return {};
  };
  Status status = push();
  d.memFree(staging);
  return status;
}

Status testPull(const Place &place, Address memory, size_t own, size_t ranks) {
  const Driver &d = place.driver;
  Status status;
  for (size_t r = 0; r < ranks && status.ok(); ++r) {
    auto expected = testPattern(r, own);
    std::array<uint32_t, testWords> found{};
    if (d.memcpyDtoHAsync(found.data(), memory + r * sizeof found, sizeof found,
                          place.stream) != Success ||
        d.streamSynchronize(place.stream) != Success)
      status = ioError("cannot read what peers have stored");
    else if (found != expected)
      status = ioError("what " + rankText(r) +
                       " stores by peer access does not arrive (IOMMU or ACS?)");
  }
  // As it was, for kernels.
  if (status.ok() &&
      (d.memsetD8Async(memory, 0, ranks * testWords * 4, place.stream) !=
           Success ||
       d.streamSynchronize(place.stream) != Success))
    status = ioError("cannot clear memory of exchanges");
  return status;
}

//===----------------------------------------------------------------------===//
// On the host
//===----------------------------------------------------------------------===//

class HostMapping final : public Mapping {
public:
  using Mapping::Mapping;
  ~HostMapping() override {
    driver.ctxSetCurrent(context);
    for (auto [memory, bytes] : mapped) {
      driver.memHostUnregister(memory);
      munmap(memory, bytes);
    }
    if (!name.empty())
      shm_unlink(name.c_str());
  }

  Status create(const std::string &wanted, uint64_t bytes) {
    int file = shm_open(wanted.c_str(), O_CREAT | O_EXCL | O_RDWR, 0600);
    if (file < 0)
      return failed("create", wanted);
    name = wanted;
    // Else the first store beyond what there is would be a signal.
    int error = posix_fallocate(file, 0, static_cast<off_t>(bytes));
    close(file);
    if (error)
      return exhausted("cannot take " + formatBytes(bytes) +
                       " of shared memory (/dev/shm) for exchanges: " +
                       std::strerror(error));
    return {};
  }

  Status map(size_t rank, const std::string &of, uint64_t bytes) {
    int file = shm_open(of.c_str(), O_RDWR, 0);
    if (file < 0)
      return failed("open", of);
    void *memory =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (memory == MAP_FAILED)
      return failed("map", of);
    std::string attempt = "to give kernels memory of the host";
    Status status = check(
        driver.memHostRegister(memory, bytes, hostRegisterPortable | hostRegisterMapped),
        "cuMemHostRegister", attempt);
    if (!status.ok()) {
      munmap(memory, bytes);
      return status;
    }
    mapped.push_back({memory, bytes});
    return check(driver.memHostGetDevicePointer(&addresses[rank], memory, 0),
                 "cuMemHostGetDevicePointer", attempt);
  }

  void removeName() {
    shm_unlink(name.c_str());
    name.clear();
  }

private:
  static Status failed(const char *verb, const std::string &name) {
    return ioError("cannot " + std::string(verb) + " shared memory " + name +
                   ": " + std::strerror(errno));
  }
  std::string name;
  std::vector<std::pair<void *, uint64_t>> mapped;
};

/// Of this rank.
Result<Identity> identifyOne(const Place &place) {
  Identity id;
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty())
    return ioError("cannot read /proc/sys/kernel/random/boot_id, which tells "
                   "machines apart");
  std::snprintf(id.machine, sizeof id.machine, "%s", boot.c_str());
  if (Code code = place.driver.deviceGetAttribute(
          &id.multiprocessors, MultiprocessorCount, place.device);
      code != Success)
    return ioError("cuDeviceGetAttribute failed to count multiprocessors: " +
                   place.driver.describe(code));
  Code code = place.driver.deviceGetPCIBusId(
      id.device, int(sizeof id.device) - 1, place.device);
  if (code != Success)
    return ioError("cuDeviceGetPCIBusId failed to name the GPU: " +
                   place.driver.describe(code));
  static const uint64_t token = [] {
    uint64_t random = 0;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
      random = static_cast<uint64_t>(
          std::chrono::steady_clock::now().time_since_epoch().count());
    return random;
  }();
  // A process that was forked has the same token.
  id.process = token + static_cast<uint64_t>(getpid());
  return id;
}

} // namespace

Result<std::vector<Identity>> identify(const Place &place,
                                       collectives::Collectives &ranks) {
  Result<Identity> mine = identifyOne(place);
  Status all;
  MLA_RETURN_IF_ERROR(agree(mine.status(), ranks, "who the ranks are", all));
  MLA_RETURN_IF_ERROR(all);
  return ranks.gatherEach(*mine, "who the ranks are");
}

Status Mapping::check(Code code, const char *call,
                      const std::string &attempt) const {
  if (code == Success)
    return {};
  std::string text = std::string(call) + " failed " + attempt + ": " +
                     driver.describe(code);
  return code == OutOfMemory ? exhausted(text) : ioError(text);
}

Status agree(const Status &own, collectives::Collectives &ranks, const char *what,
             Status &all) {
  all = {};
  Verdict mine;
  mine.code = static_cast<int32_t>(own.code());
  std::snprintf(mine.text, sizeof mine.text, "%s", own.message().c_str());
  MLA_ASSIGN_OR_RETURN(std::vector<Verdict> verdicts,
                       ranks.gatherEach(mine, what));
  for (size_t r = 0; r < verdicts.size() && all.ok(); ++r)
    if (const Verdict &v = verdicts[r]; v.code != 0)
      all = Status(static_cast<StatusCode>(v.code), v.text)
                .withContext(rankText(r));
  return {};
}

Result<Outcome<Mapping>> mapDevices(const Place &place, uint64_t bytes,
                                    std::span<const Identity> identities,
                                    collectives::Collectives &ranks) {
  auto own = static_cast<size_t>(ranks.rank());
  auto mapping = std::make_unique<DeviceMapping>(place.driver, place.context);
  mapping->addresses.resize(identities.size());
  // The ranks go from step to step together, also those that have failed.
  Status status = mapping->take(place, bytes);
  Offer offer = status.ok() ? mapping->offer(place) : Offer();
  MLA_ASSIGN_OR_RETURN(std::vector<Offer> offers,
                       ranks.gatherEach(offer, "memory of exchanges"));
  for (size_t r = 0; r < offers.size() && status.ok(); ++r)
    if (r == own)
      mapping->addresses[r] = offer.address;
    else if (!offers[r].address)
      status = unsupported(rankText(r) + " has no memory for exchanges");
    else
      status = mapping->reach(place, r, offers[r], identities[own],
                              identities[r]);
  Status all;
  MLA_RETURN_IF_ERROR(agree(status, ranks, "peer access", all));
  if (all.ok())
    MLA_RETURN_IF_ERROR(agree(testPush(place, *mapping, own), ranks,
                              "stores by peer access", all));
  if (all.ok())
    MLA_RETURN_IF_ERROR(
        agree(testPull(place, offer.address, own, identities.size()), ranks,
              "what peers have stored", all));
  if (all.ok())
    return Outcome<Mapping>{std::move(mapping), ""};
  mapping->closeOthers();
  MLA_RETURN_IF_ERROR(ranks.barrier("closing memory of exchanges"));
  return Outcome<Mapping>{nullptr, all.message()};
}

Result<Outcome<Mapping>> mapHost(const Place &place, uint64_t bytes,
                                 std::span<const Identity> identities,
                                 collectives::Collectives &ranks) {
  auto own = static_cast<size_t>(ranks.rank());
  auto mapping = std::make_unique<HostMapping>(place.driver, place.context);
  mapping->addresses.resize(identities.size());
  // Ranks know each other's from who they are; one process may be in many groups.
  static std::atomic<uint64_t> groups{0};
  MLA_ASSIGN_OR_RETURN(
      std::vector<uint64_t> numbers,
      ranks.gatherEach(groups.fetch_add(1), "memory of exchanges"));
  auto nameOf = [&](size_t r) {
    char text[64];
    std::snprintf(text, sizeof text, "/mla-%016llx-%llu",
                  static_cast<unsigned long long>(identities[r].process),
                  static_cast<unsigned long long>(numbers[r]));
    return std::string(text);
  };
  Status all;
  MLA_RETURN_IF_ERROR(
      agree(mapping->create(nameOf(own), bytes), ranks, "shared memory", all));
  if (all.ok()) {
    Status status;
    for (size_t r = 0; r < identities.size() && status.ok(); ++r)
      status = mapping->map(r, nameOf(r), bytes);
    MLA_RETURN_IF_ERROR(agree(status, ranks, "shared memory", all));
  }
  mapping->removeName();
  if (!all.ok())
    return Outcome<Mapping>{nullptr, all.message()};
  return Outcome<Mapping>{std::move(mapping), ""};
}

} // namespace mla::p2p
