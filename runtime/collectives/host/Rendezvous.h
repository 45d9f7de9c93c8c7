//===- Rendezvous.h - how the connections of a group come about -*- C++ -*-===//
//
// Part of mla. Internal to the socket transport.
//
//   rank r > 0                          rank 0
//   connects to rank 0, greets   --->   listens; drops who does not greet
//   listens for ranks > r        <---   table of all addresses, a random token
//   connects to ranks 0 < q < r
//   ready                        --->
//                                <---   go
//
// The token keeps strangers out of the second half. Whoever fails tells rank 0,
// which tells all.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_HOST_RENDEZVOUS_H
#define MLA_RUNTIME_COLLECTIVES_HOST_RENDEZVOUS_H

#include "runtime/collectives/host/Sockets.h"
#include "runtime/collectives/host/Wire.h"

namespace mla::collectives::wire {

/// One connection for each other rank, at its place; nothing at the own one.
Result<std::vector<Fd>> rendezvous(const SocketOptions &options);

} // namespace mla::collectives::wire

#endif // MLA_RUNTIME_COLLECTIVES_HOST_RENDEZVOUS_H
