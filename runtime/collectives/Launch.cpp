//===- Launch.cpp - which process of how many this is ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Launch.h"
#include "runtime/collectives/Transport.h"
#include <charconv>
#include <string_view>

namespace mla::collectives {
namespace {

/// The variables of one way to start processes.
struct Launcher {
  const char *name;
  const char *rank, *size;
  const char *localRank;
  /// How many processes, or machines, there are: if all are on one machine,
  /// rank 0 is at hand.
  const char *localSize;
};

constexpr Launcher byHand{"MLA_RANK", "MLA_RANK", "MLA_WORLD_SIZE",
                          "MLA_LOCAL_RANK", nullptr};
constexpr Launcher launchers[] = {
    byHand,
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"MPICH", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
};
constexpr const char *slurm = "Slurm";
/// Steps from here on are the shells of salloc and sbatch and the like, which
/// have the variables of the tasks that they may start.
constexpr uint64_t firstSpecialStep = 0xfffffff0;

class Environment {
public:
  explicit Environment(Lookup lookup) : lookup(lookup) {}

  /// Empty counts as unset: that is how a shell takes one away for one command.
  std::string_view get(const char *name) const {
    const char *value = name ? lookup(name) : nullptr;
    return value ? value : "";
  }
  bool has(const char *name) const { return !get(name).empty(); }

  Result<uint64_t> number(const char *name, uint64_t least,
                          uint64_t most) const {
    std::string_view text = get(name);
    uint64_t value = 0;
    auto [end, error] =
        std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc() ||
        end != text.data() + text.size() || value < least || value > most)
      return invalid(
          std::string(name) + ": expected a number from " +
          std::to_string(least) + " to " + std::to_string(most) + ", found " +
          (text.empty() ? "nothing" : "\"" + std::string(text) + "\""));
    return value;
  }

private:
  const Lookup lookup;
};

/// Nothing unless srun started this process as a task.
std::optional<Launcher> slurmStep(const Environment &environment) {
  if (!environment.has("SLURM_PROCID") || !environment.has("SLURM_STEP_ID"))
    return std::nullopt;
  auto step = environment.number("SLURM_STEP_ID", 0, firstSpecialStep - 1);
  if (!step.ok())
    return std::nullopt;
  const char *size = environment.has("SLURM_STEP_NUM_TASKS")
                         ? "SLURM_STEP_NUM_TASKS"
                         : "SLURM_NTASKS";
  return Launcher{slurm, "SLURM_PROCID", size, "SLURM_LOCALID", nullptr};
}

std::optional<Launcher> launcherOf(const Environment &environment) {
  for (const Launcher &launcher : launchers)
    if (environment.has(launcher.rank) || environment.has(launcher.size))
      return launcher;
  return slurmStep(environment);
}

bool onOneMachine(const Environment &environment, const Launcher &launcher,
                  const World &world) {
  if (launcher.name == slurm) {
    const char *nodes = environment.has("SLURM_STEP_NUM_NODES")
                            ? "SLURM_STEP_NUM_NODES"
                            : "SLURM_NNODES";
    return environment.get(nodes) == "1";
  }
  return environment.get(launcher.localSize) == std::to_string(world.size);
}

Status findAddress(const Environment &environment, const Launcher &launcher,
                   World &world) {
  for (const char *name : {"MLA_MASTER_ADDR", "MASTER_ADDR"})
    if (world.address.empty())
      world.address = environment.get(name);
  if (world.address.empty() && onOneMachine(environment, launcher, world))
    world.address = "127.0.0.1";
  if (world.address.empty() && launcher.name == slurm)
    world.address = environment.get("SLURM_LAUNCH_NODE_IPADDR");
  if (world.address.empty())
    return invalid("MLA_MASTER_ADDR: expected the address of the machine of "
                   "rank 0, found nothing, nor in MASTER_ADDR (" +
                   world.source + " says that this is rank " +
                   std::to_string(world.rank) + " of " +
                   std::to_string(world.size) + ")");

  if (environment.has("MLA_MASTER_PORT")) {
    MLA_ASSIGN_OR_RETURN(uint64_t port,
                         environment.number("MLA_MASTER_PORT", 1, 65535));
    world.port = static_cast<uint16_t>(port);
    return {};
  }
  if (environment.has("MASTER_PORT")) {
    // At MASTER_PORT itself torchrun listens, for workers that use its store.
    bool taken = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True";
    MLA_ASSIGN_OR_RETURN(
        uint64_t port,
        environment.number("MASTER_PORT", 1, taken ? 65534 : 65535));
    world.port = static_cast<uint16_t>(port + (taken ? 1 : 0));
    return {};
  }
  if (launcher.name == slurm && environment.has("SLURM_JOB_ID")) {
    // The same for all tasks, another for another job, and below the ports that
    // the system hands out.
    MLA_ASSIGN_OR_RETURN(uint64_t job,
                         environment.number("SLURM_JOB_ID", 0, UINT32_MAX));
    MLA_ASSIGN_OR_RETURN(uint64_t step,
                         environment.number("SLURM_STEP_ID", 0, UINT32_MAX));
    world.port = static_cast<uint16_t>(15000 + (job * 16 + step % 16) % 15000);
    return {};
  }
  return invalid("MLA_MASTER_PORT: expected the port at which rank 0 listens, "
                 "found nothing, nor in MASTER_PORT (" +
                 world.source + " says that this is rank " +
                 std::to_string(world.rank) + " of " +
                 std::to_string(world.size) + ")");
}

} // namespace

Result<std::optional<World>> worldFromEnvironment(Lookup lookup) {
  Environment environment(lookup);
  std::optional<Launcher> launcher = launcherOf(environment);
  if (!launcher)
    return std::optional<World>();
  World world;
  world.source = launcher->name;
  MLA_ASSIGN_OR_RETURN(uint64_t size, environment.number(launcher->size, 1,
                                                         Transport::maxRanks));
  MLA_ASSIGN_OR_RETURN(uint64_t rank,
                       environment.number(launcher->rank, 0, size - 1));
  world.size = static_cast<int>(size);
  world.rank = static_cast<int>(rank);
  if (world.size == 1)
    return std::optional<World>();
  if (environment.has(launcher->localRank)) {
    MLA_ASSIGN_OR_RETURN(uint64_t local,
                         environment.number(launcher->localRank, 0, size - 1));
    world.localRank = static_cast<int>(local);
  }
  MLA_RETURN_IF_ERROR(findAddress(environment, *launcher, world));
  return std::optional<World>(std::move(world));
}

} // namespace mla::collectives
