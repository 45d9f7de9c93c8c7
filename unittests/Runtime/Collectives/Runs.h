//===- Runs.h - ranks that are threads, or processes ------------*- C++ -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_COLLECTIVES_RUNS_H
#define MLA_UNITTESTS_RUNTIME_COLLECTIVES_RUNS_H

#include "Backend.h"

namespace mla::testing {

/// What a rank does with its end of the group.
using RankBody = std::function<Outcome(collectives::Transport &)>;

/// Ranks that are threads of this process.
std::unique_ptr<Ongoing> startThreads(int ranks, const RankBody &body);

/// Ranks that know of each other by the environment, as those that mpirun starts.
/// They are forked without another program, so that a body can be any function; no
/// thread runs when that happens.
std::unique_ptr<Ongoing> startProcesses(int ranks, const RankBody &body);

/// The outcome of a body.
Outcome timed(const Body &body, Member &member);

} // namespace mla::testing

#endif // MLA_UNITTESTS_RUNTIME_COLLECTIVES_RUNS_H
