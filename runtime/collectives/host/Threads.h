//===- Threads.h - a group whose ranks are threads --------------*- C++ -*-===//
//
// Part of mla. Ranks of one process read each other's memory. A call is:
//
//   1. each rank posts what it shows: small ranges are copied into memory of
//   the
//      group, of large ones the place;
//   2. all wait until all have posted;
//   3. each takes what is for it;
//   4. if any place was posted, all wait until all have taken.
//
// Small calls have no step 4, since what is posted lies in one of two
// mailboxes: a rank that posts into the same one again, two calls later, has
// seen every rank post in the call between, hence end this one.
//
// Waiting is some spinning while there is a core for each rank, then sleep:
// ranks without work take no time from those that have some.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_HOST_THREADS_H
#define MLA_RUNTIME_COLLECTIVES_HOST_THREADS_H

#include "runtime/collectives/Transport.h"
#include <memory>
#include <vector>

namespace mla::collectives {

/// The transports of a group of `ranks` threads, in the order of ranks; each is
/// then used by a thread of its own, and may outlive the others. One that is
/// destroyed has left: calls that need it end with an error. Invalid unless
/// 1 <= ranks <= Transport::maxRanks.
Result<std::vector<std::unique_ptr<Transport>>> createThreadGroup(int ranks);

} // namespace mla::collectives

#endif // MLA_RUNTIME_COLLECTIVES_HOST_THREADS_H
