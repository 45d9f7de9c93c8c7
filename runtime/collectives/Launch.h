//===- Launch.h - which process of how many this is -------------*- C++ -*-===//
//
// Part of mla. What starts one process a rank tells each by environment
// variables which one it is. The first set that is there counts:
//
//   by hand      MLA_RANK, MLA_WORLD_SIZE [, MLA_LOCAL_RANK]
//   torchrun     RANK, WORLD_SIZE [, LOCAL_RANK]
//   Open MPI     OMPI_COMM_WORLD_RANK, _SIZE [, _LOCAL_RANK]
//   MPICH, Intel PMI_RANK, PMI_SIZE [, MPI_LOCALRANKID]
//   Slurm        SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS
//                [, SLURM_LOCALID], only in a step that srun started
//
// and where rank 0 listens:
//
//   MLA_MASTER_ADDR, MLA_MASTER_PORT; then MASTER_ADDR, MASTER_PORT; then what
//   Slurm and MPI say of the machines (docs/collectives.md).
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_COLLECTIVES_LAUNCH_H
#define MLA_RUNTIME_COLLECTIVES_LAUNCH_H

#include "mla/Support/Status.h"
#include <cstdint>
#include <optional>
#include <string>

namespace mla::collectives {

struct World {
  int rank = 0, size = 1;
  /// The rank among those on this machine, if that is said.
  std::optional<int> localRank;
  /// Where rank 0 listens; nothing in a world of one.
  std::string address;
  uint16_t port = 0;
  /// Who said so: "torchrun".
  std::string source;
};

/// As std::getenv().
using Lookup = const char *(*)(const char *name);

/// Nothing if this process is the only one. Invalid, naming the variable, what
/// was expected and what was found, if half of a set is there, a value is no
/// number or out of range, or there is no address.
Result<std::optional<World>> worldFromEnvironment(Lookup lookup);

} // namespace mla::collectives

#endif // MLA_RUNTIME_COLLECTIVES_LAUNCH_H
