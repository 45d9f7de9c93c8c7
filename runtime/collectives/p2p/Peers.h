//===- Peers.h - memory by which kernels of several ranks meet --*- C++ -*-===//
//
// Part of mla. What kernels that exchange rows need of the runtime: each rank's
// exchange memory where all ranks reach it, and the table mla/Plan/Peers.h. It is
// made once, by all ranks together; after that kernels meet by themselves.
//
//   where the memory lies   when
//   ----------------------  -----------------------------------------------------
//   a rank's own device     ranks on one device; or devices that reach each other
//                           (a thread each: peer access, a process each: CUDA IPC),
//                           which is tried with data
//   the host's              any rank cannot reach any other so, or it is forbidden
//
// All ranks use the same. With memory of the host every kernel does the same, only
// slower; several machines have neither.
//
// Threads: as hal::Device, of which this is part.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_P2P_PEERS_H
#define MLA_RUNTIME_COLLECTIVES_P2P_PEERS_H

#include "mla/Plan/Peers.h"
#include "runtime/collectives/Collectives.h"
#include "runtime/hal/cuda/Driver.h"
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace mla::p2p {

/// A device, and the stream in which its kernels run. The context is current in the
/// thread that calls.
struct Place {
  const hal::cuda::Driver &driver;
  hal::cuda::Ordinal device;
  hal::cuda::Context context;
  hal::cuda::Stream stream;
};

/// Where exchange memory may lie.
enum class Path {
  Any,  ///< On the devices if they reach each other, else on the host.
  Host, ///< On the host.
};

/// Waits until what was put into the stream has ended. Meanwhile looks whether a rank
/// has ended the group; then, after a while in which the rest may still end by itself,
/// `giveUp` is called, which makes kernels that wait end, and the group's error is
/// returned. With `patience`, that is also done for an Io error after so long.
Status waitForStream(const Place &place, collectives::Collectives &ranks,
                     const std::function<void()> &giveUp,
                     std::optional<std::chrono::milliseconds> patience = {});

/// The name of the launch with a number in the program that was run, for errors.
using LaunchName = std::function<std::string(uint32_t launch)>;

class Peers {
public:
  /// Called by all ranks of `ranks` at once, with the same `bytes` and `path`.
  /// `bytes` of exchange memory a rank, zero. The kernels' time-out is that of the
  /// group's calls. Unsupported if the ranks are on several machines; Exhausted; else
  /// the errors of collectives::Collectives. `place` and `ranks` outlive this.
  static Result<std::unique_ptr<Peers>> connect(const Place &place,
                                                uint64_t bytes, Path path,
                                                collectives::Collectives &ranks);
  /// Kernels that use the memory have ended, on all ranks.
  ~Peers();
  Peers(const Peers &) = delete;
  Peers &operator=(const Peers &) = delete;

  /// What kernels get as "peers".
  hal::cuda::Address table() const;
  /// Whether another rank is on this device.
  bool sharesDevice() const;
  /// Most blocks of a launch that exchanges, the same on all ranks: if those of all
  /// ranks on a device wait, half of its multiprocessors are left to other kernels.
  int64_t mostBlocks() const;
  /// Where the memory lies, and why not on the devices: "one GPU", "peer access", "peer
  /// access (CUDA IPC)", "memory of the host (rank 0: no peer access from GPU ...)".
  const std::string &path() const;

  /// Makes kernels that wait end now, and those that come later at once.
  void abort();
  /// When the stream has ended: Io if a kernel has waited in vain or was told to end.
  /// What kernels that exchange compute means nothing from then on.
  Status check(const LaunchName &name) const;
  /// Whether a kernel of this rank has waited in vain.
  bool timedOut() const;
  /// waitForStream(), then check().
  Status wait(const LaunchName &name);

private:
  struct State;
  explicit Peers(std::unique_ptr<State> state);
  std::unique_ptr<State> state;
};

} // namespace mla::p2p

#endif // MLA_RUNTIME_COLLECTIVES_P2P_PEERS_H
