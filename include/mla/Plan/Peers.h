//===- Peers.h - what kernels that exchange data receive --------*- C++ -*-===//
//
// Part of mla. A kernel of a GPU that exchanges data with other ranks has a
// parameter "peers": the address, in device memory, of a table of 8-byte words.
// The runtime fills it when the plan is loaded; it never changes.
//
//   word           holds
//   ------------   ----------------------------------------------------------
//   rank           the rank's number
//   ranks          how many there are
//   timeout        nanoseconds of %globaltimer that a kernel waits for a peer
//   abort          address of a word of 4 bytes in the host's memory: a kernel
//                  that waits and finds it not zero ends at once
//   report         address of PeerReport in the host's memory
//   first + r      address of rank r's exchange memory, as this rank reaches it
//
// Exchange memory is Plan::exchangeBytes of device memory a rank, zero when the
// plan is loaded and then written by kernels alone. A peer may be another context,
// process or device: every access to its memory is of system scope.
//
// Such a kernel does all of its work in however many blocks it is launched: the
// runtime may take fewer than its grid, as many on all ranks, so that blocks that wait
// never fill a device.
//
// A kernel that waits in vain claims the report (an exchange of `claimed` from 0
// to 1), fills it, sets the abort word and ends; what it computes then means
// nothing. The host looks at the abort word when a step has ended.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_PLAN_PEERS_H
#define MLA_PLAN_PEERS_H

#include <cstdint>

namespace mla::plan {

/// Words of the table.
enum PeersWord : uint32_t {
  peersRank,
  peersRanks,
  peersTimeout,
  peersAbort,
  peersReport,
  peersFirst
};

/// Written by the device, read by the host.
struct PeerReport {
  uint32_t claimed; ///< 1: somebody fills, or has filled, the rest
  uint32_t rank;    ///< who waited
  uint32_t peer;    ///< for whom
  uint32_t launch;  ///< the kernel's scalar that says where in the program it stands
  uint64_t epoch;   ///< how many exchanges the block had done
  uint64_t waited;  ///< nanoseconds
};

} // namespace mla::plan

#endif // MLA_PLAN_PEERS_H
