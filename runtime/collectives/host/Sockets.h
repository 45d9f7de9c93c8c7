//===- Sockets.h - a group whose ranks are processes ------------*- C++ -*-===//
//
// Part of mla. Every two ranks have a TCP connection. Rank 0 listens at an
// address that all know; the others tell it who they are and where they listen,
// learn where everybody else does, and connect to each other (Rendezvous.h).
// From then on nobody listens.
//
// There is no encryption and no authentication: who can reach the addresses can
// disturb a group that is forming. Use a network that you trust, or loopback.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_HOST_SOCKETS_H
#define MLA_RUNTIME_COLLECTIVES_HOST_SOCKETS_H

#include "runtime/collectives/Transport.h"
#include <memory>
#include <string>

namespace mla::collectives {

struct SocketOptions {
  int rank = 0, size = 1;
  /// Where rank 0 listens: a name or a number of one of its own interfaces.
  std::string address;
  uint16_t port = 0;
  /// What the ranks have in common, as a hash of the plan: one that comes with
  /// another is refused.
  uint64_t group = 0;
  /// For the rendezvous; then for each call, until Transport::setTimeout().
  std::chrono::milliseconds timeout = Transport::defaultTimeout;
  /// Rank 0 only: a socket that listens already, instead of address and port.
  /// It is closed.
  int listener = -1;
};

/// Returns when all ranks have joined. Invalid if ranks do not agree (two with
/// one number, another size, group or version; all ranks get the message), Io
/// on time-out, if the address cannot be used, or if a rank ended meanwhile.
Result<std::unique_ptr<Transport>>
joinSocketGroup(const SocketOptions &options);

} // namespace mla::collectives

#endif // MLA_RUNTIME_COLLECTIVES_HOST_SOCKETS_H
