//===- ProcessGroup.h - a process a rank ------------------------*- C++ -*-===//
//
// Part of mla. mpirun, srun, torchrun or a shell start the same mla-run command once
// for each rank of a plan (collectives/Launch.h). Each process runs its rank; rank 0
// alone prints and writes results, which all have. What ends one process ends all.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CLI_PROCESSGROUP_H
#define MLA_RUNTIME_CLI_PROCESSGROUP_H

#include "mla/Support/Status.h"
#include "runtime/cli/Commands.h"
#include "runtime/collectives/Launch.h"
#include "runtime/collectives/Transport.h"
#include <filesystem>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>

namespace mla::cli {

class ProcessGroup {
public:
  /// Joins the processes that the environment tells of. Null if this one is alone.
  /// Invalid if the environment contradicts itself, else the errors of
  /// joinSocketGroup(): other processes with another plan, or missing ones.
  static Result<std::unique_ptr<ProcessGroup>>
  join(const std::filesystem::path &plan, std::chrono::milliseconds timeout,
       collectives::Lookup lookup);

  collectives::Transport &transport() { return *link; }
  int rank() const { return link->rank(); }
  /// The number among those on this machine; -1: not known.
  int localRank() const { return numberHere; }
  bool isFirst() const { return rank() == 0; }

  /// Makes `text` that of rank 0, which may take its time.
  Status share(std::string &text);
  /// With what this process ends, if its own work ended with `status`: an error is
  /// told to the others; else it waits for them and has theirs.
  Status finish(const Status &status);

private:
  ProcessGroup(std::unique_ptr<collectives::Transport> link, int numberHere)
      : link(std::move(link)), numberHere(numberHere) {}
  std::unique_ptr<collectives::Transport> link;
  const int numberHere;
};

/// Runs a subcommand that can be one of several processes. `command` gets the group,
/// or null, and where results and remarks go: nowhere but on rank 0. Errors of the
/// other ranks begin with "rank N: ".
Status runInGroup(
    PlanOptions &options,
    const std::function<Status(ProcessGroup *group, std::ostream &out,
                               std::ostream &err)> &command);

/// Unsupported if the environment says that this is one of several processes;
/// `command` is for the message.
Status checkAlone(const char *command);

/// Whether this process writes the files that a subcommand makes.
inline bool writesFiles(const PlanOptions &options) {
  return !options.engine.group || options.engine.group->rank() == 0;
}

} // namespace mla::cli

#endif // MLA_RUNTIME_CLI_PROCESSGROUP_H
