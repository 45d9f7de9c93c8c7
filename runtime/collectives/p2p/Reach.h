//===- Reach.h - a rank's way to the memory of the others -------*- C++ -*-===//
//
// Part of mla. Exchange memory of all ranks, as one of them reaches it: on the
// devices, or on the host.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_P2P_REACH_H
#define MLA_RUNTIME_COLLECTIVES_P2P_REACH_H

#include "runtime/collectives/p2p/Peers.h"
#include <cstring>
#include <vector>

namespace mla::p2p {

/// Memory that was taken or mapped, and is given back.
class Mapping {
public:
  Mapping(const hal::cuda::Driver &driver, hal::cuda::Context context)
      : driver(driver), context(context) {}
  virtual ~Mapping() = default;
  /// Of each rank's memory, as kernels of this rank's device reach it.
  std::vector<hal::cuda::Address> addresses;

protected:
  /// An error with `call` and what was attempted, unless Success.
  Status check(hal::cuda::Code code, const char *call,
               const std::string &attempt) const;

  const hal::cuda::Driver &driver;
  const hal::cuda::Context context;
};

/// What ranks tell each other: who they are. The same bits mean the same.
struct Identity {
  char machine[64] = {}; ///< That has booted once.
  char device[32] = {};  ///< PCI bus id.
  int32_t multiprocessors = 0;
  uint64_t process = 0;  ///< Random.

  bool isOnMachineOf(const Identity &other) const {
    return !std::strcmp(machine, other.machine);
  }
  bool isOnDeviceOf(const Identity &other) const {
    return isOnMachineOf(other) && !std::strcmp(device, other.device);
  }
};

/// Those of all ranks, at each of them. Called by all at once; if one cannot say who it
/// is, all return its error.
Result<std::vector<Identity>> identify(const Place &place,
                                       collectives::Collectives &ranks);

/// What a call of all ranks together found.
template <typename T> struct Outcome {
  std::unique_ptr<T> mapping; ///< Null if any rank could not.
  std::string why;            ///< Then the reason of the first such rank.
};

/// On the devices. Tried with data; not an error if that does not work. `identities`
/// of all ranks.
Result<Outcome<Mapping>> mapDevices(const Place &place, uint64_t bytes,
                                    std::span<const Identity> identities,
                                    collectives::Collectives &ranks);
/// On the host, all ranks on one machine.
Result<Outcome<Mapping>> mapHost(const Place &place, uint64_t bytes,
                                 std::span<const Identity> identities,
                                 collectives::Collectives &ranks);

/// Gathers each rank's `own`: `all` is Ok if all are, else the first rank's error that
/// is not, with its number.
Status agree(const Status &own, collectives::Collectives &ranks, const char *what,
             Status &all);

} // namespace mla::p2p

#endif // MLA_RUNTIME_COLLECTIVES_P2P_REACH_H
